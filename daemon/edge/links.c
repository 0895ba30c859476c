/* SPDX-License-Identifier: Apache-2.0 */
/* Connects the coordinators and the parts of this gaccd by messages, as if they were on two machines: neither knows the
 * other but by the job's id. Loop thread. */
#include "edge/links.h"

#include "base/log.h"
#include "cluster/link.h"
#include "cluster/order_message.h"
#include "cluster/report_message.h"
#include "edge/hosted.h"
#include "proto/failpoint.h"

/* What another gaccd has sent and this one cannot read; between two of one version it does not happen. */
static void refuse(const struct link_message *m, const char *what, const char *why)
{
	log_job(m->job, LOG_ERROR, "LinkMessage", "%s about part %u is dropped: %s", what, m->part, why);
}

static void take_report(struct daemon *d, const struct link_message *m)
{
	struct hosted *h = hosted_find(d, m->job);
	struct report r;
	char why[200];
	if (!h || !h->coord)
		return; /* it is over */
	const struct part_ranks all = { h->spec->ranks, NULL };
	enum status st = report_unpack(m->bytes, m->n, &all, h->spec->max_micro_size, &r, why, sizeof(why));
	if (st == ST_NO_MEMORY)
		return; /* it is repeated */
	if (st) {
		refuse(m, "a report", why);
		return;
	}
	coord_on_report(h->coord, &r, daemon_now(d));
	report_release(&r);
}

static void take_order(struct daemon *d, const struct link_message *m)
{
	struct part *p = part_find(&d->node, m->job);
	struct held_order o;
	char why[200];
	if (!p)
		return;
	const struct message_bounds bounds = message_bounds_of(p->spec);
	enum status st = order_unpack(m->bytes, m->n, &bounds, &o, why, sizeof(why));
	if (st == ST_NO_MEMORY)
		return; /* it is repeated */
	if (st) {
		refuse(m, "an order", why);
		return;
	}
	part_on_order(p, &o.order);
	FAILPOINT(coord_order_after);
}

static void on_arrived(void *ctx, const struct link_message *m)
{
	if (m->kind == LINK_REPORT)
		take_report(ctx, m);
	else
		take_order(ctx, m);
}

/* ---- the local link ---- */

static void run_local(struct posted *p)
{
	struct daemon *d = (struct daemon *)((char *)p - offsetof(struct daemon, link_post));
	link_run(d->link);
}

static void on_wake(void *ctx)
{
	struct daemon *d = ctx;
	daemon_post(d, &d->link_post, run_local);
}

enum status links_new(struct daemon *d)
{
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
