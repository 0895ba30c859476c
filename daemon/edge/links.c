/* SPDX-License-Identifier: Apache-2.0 */
/* Connects the coordinators and the parts of this gaccd by messages, as if they were on two machines: neither knows the
 * other but by the job's id. Loop thread. */
#include "edge/links.h"

#include "base/log.h"
#include "cluster/link.h"
#include "cluster/order_message.h"
#include "cluster/report_message.h"
#include "proto/failpoint.h"

#include <stdlib.h>

static void on_arrived(void *ctx, const struct link_message *m)
{
	struct daemon *d = ctx;
	d->link_takes[m->kind](d, m);
}

void links_refuse(const struct link_message *m, const char *why)
{
	static const char *const names[LINK_KINDS] = { [LINK_REPORT] = "a report",
						       [LINK_ORDER] = "an order",
						       [LINK_PLACEMENT] = "a placement",
						       [LINK_PLACED] = "a placement's answer",
						       [LINK_DROP] = "a placement's end",
						       [LINK_EVENT] = "an event",
						       [LINK_TENSORS] = "a tensor set",
						       [LINK_KEPT] = "a tensor set's answer",
						       [LINK_SAVE] = "a checkpoint",
						       [LINK_SAVED] = "a checkpoint's answer",
						       [LINK_VIEW] = "a view",
						       [LINK_LEDGER] = "a ledger" };
	log_job(m->job, LOG_ERROR, "LinkMessage", "%s about part %u is dropped: %s", names[m->kind], m->part, why);
}

/* ---- the local link ---- */

static void run_local(struct posted *p)
{
	struct daemon *d = (struct daemon *)((char *)p - offsetof(struct daemon, link_post));
	d->link_posted = false;
	link_run(d->link);
}

static void on_wake(void *ctx)
{
	struct daemon *d = ctx;
	if (!d->link_posted)
		daemon_post(d, &d->link_post, run_local);
	d->link_posted = true;
}

void links_run_now(struct daemon *d)
{
	link_run(d->link);
}

enum status links_new(struct daemon *d, links_take *const takes[LINK_KINDS])
{
	d->link_takes = takes;
	const struct link_ends ends = { .ctx = d, .wake = on_wake, .arrived = on_arrived };
	return link_new(&ends, &d->link);
}

void links_free(struct daemon *d)
{
	link_free(d->link);
	d->link = NULL;
}

void links_send_report(struct daemon *d, const struct report *r)
{
	size_t n = 0;
	void *bytes = FAILPOINT_ERROR(gaccd_report_before) ? NULL : report_pack(r, &n);
	link_send(d->link, LINK_REPORT, r->job_id, r->part, bytes, n);
}

void links_send_order(struct daemon *d, uint32_t part, const struct order *o)
{
	size_t n = 0;
	void *bytes = FAILPOINT_ERROR(coord_order_before) ? NULL : order_pack(o, &n);
	link_send(d->link, LINK_ORDER, o->job_id, part, bytes, n);
}

void links_send(struct daemon *d, enum link_kind kind, uint64_t job, uint32_t part, void *bytes, size_t n)
{
	links_send_shared(d, kind, job, part, bytes, n, NULL);
}

void links_send_shared(struct daemon *d, enum link_kind kind, uint64_t job, uint32_t part, void *bytes, size_t n,
		       struct shared *end)
{
	if (d->link)
		link_send_shared(d->link, kind, job, part, bytes, n, end);
	else
		free(bytes);
}
