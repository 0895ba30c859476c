/* SPDX-License-Identifier: Apache-2.0 */
/* Connects coordinators and parts by messages: those of this gaccd by the link inside it, others by the link to their
 * gaccd. Neither side knows the other but by the job's id. Loop thread. */
#include "edge/links.h"

#include "base/log.h"
#include "cluster/board_message.h"
#include "cluster/link.h"
#include "cluster/order_message.h"
#include "cluster/report_message.h"
#include "edge/node_dial.h"
#include "proto/failpoint.h"

#include <stdlib.h>

static void on_arrived(void *ctx, const struct link_message *m)
{
	struct daemon *d = ctx;
	d->link_takes[m->kind](d, m);
}

#define LINES 20 /* in a minute: another gaccd may repeat what it cannot say right */

/* Whether one more line may be logged. Loop thread. */
static bool may_log(void)
{
	static int64_t from_ns;
	static uint32_t told, untold;
	const int64_t now_ns = node_now().mono_ns;
	if (now_ns - from_ns >= INT64_C(60) * 1000000000) {
		if (untold)
			log_warn("%u more messages of links were dropped", untold);
		from_ns = now_ns;
		told = untold = 0;
	}
	if (told < LINES) {
		told++;
		return true;
	}
	untold++;
	return false;
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
						       [LINK_LEDGER] = "a ledger",
						       [LINK_BLOB] = "an address",
						       [LINK_BOARD] = "a board of addresses",
						       [LINK_LAUNCH] = "an order to a launcher",
						       [LINK_LAUNCHED] = "news of launched ranks",
						       [LINK_LOG_ASK] = "a question for a log",
						       [LINK_LOG_PIECE] = "a piece of a log",
						       [LINK_NORMS_ASK] = "a question for norms",
						       [LINK_NORMS] = "norms" };
	if (may_log())
		log_job(m->job, LOG_ERROR, "LinkMessage", "%s about part %u is dropped: %s", names[m->kind], m->part,
			why);
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
	links_send(d, LINK_REPORT, r->job_id, r->part, bytes, n);
}

void links_send_order(struct daemon *d, uint32_t node, uint32_t part, const struct order *o)
{
	size_t n = 0;
	void *bytes = FAILPOINT_ERROR(coord_order_before) ? NULL : order_pack(o, &n);
	links_send_down(d, node, LINK_ORDER, o->job_id, part, bytes, n, NULL);
}

void links_send_blob(struct daemon *d, const struct part_blob *b)
{
	size_t n = 0;
	void *bytes = FAILPOINT_ERROR(gaccd_blob_before) ? NULL : blob_pack(b, &n);
	links_send(d, LINK_BLOB, b->job_id, b->part, bytes, n);
}

void links_send_board(struct daemon *d, uint32_t node, uint32_t part, const struct part_board *b)
{
	size_t n = 0;
	void *bytes = FAILPOINT_ERROR(coord_board_before) ? NULL : board_pack(b, &n);
	links_send_down(d, node, LINK_BOARD, b->job_id, part, bytes, n, NULL);
}

/* ---- which link ---- */

static bool send_here(struct daemon *d, enum link_kind kind, uint64_t job, uint32_t part, void *bytes, size_t n,
		      struct shared *end)
{
	if (d->link)
		link_send_shared(d->link, kind, job, part, bytes, n, end);
	else
		free(bytes);
	return d->link != NULL;
}

static bool send_there(struct peer_link *l, enum link_kind kind, uint64_t job, uint32_t part, void *bytes, size_t n,
		       struct shared *end)
{
	if (l)
		return peer_link_post(l, kind, job, part, bytes, n, end);
	free(bytes);
	return false;
}

void links_send(struct daemon *d, enum link_kind kind, uint64_t job, uint32_t part, void *bytes, size_t n)
{
	links_send_shared(d, kind, job, part, bytes, n, NULL);
}

void links_send_shared(struct daemon *d, enum link_kind kind, uint64_t job, uint32_t part, void *bytes, size_t n,
		       struct shared *end)
{
	if (d->away)
		send_there(node_dial_link(d), kind, job, part, bytes, n, end);
	else
		send_here(d, kind, job, part, bytes, n, end);
}

bool links_send_down(struct daemon *d, uint32_t node, enum link_kind kind, uint64_t job, uint32_t part, void *bytes,
		     size_t n, struct shared *end)
{
	return node ? send_there(node < d->n_node_links ? d->node_link[node] : NULL, kind, job, part, bytes, n, end)
		    : send_here(d, kind, job, part, bytes, n, end);
}

bool links_have_room(const struct daemon *d, uint32_t node)
{
	const struct peer_link *l = node && node < d->n_node_links ? d->node_link[node] : NULL;
	return !node || (l && l->queued < PEER_LINK_QUEUE / 4);
}
