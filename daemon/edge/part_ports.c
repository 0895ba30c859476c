/* SPDX-License-Identifier: Apache-2.0 */
/* What a part of a job asks of the rest of gaccd: reports, events and tensor sets on their way to the coordinator,
 * what has become of checkpoints; and answers to calls. Loop thread. */
#include "edge/part_ports.h"

#include "cluster/board_message.h"
#include "cluster/event_message.h"
#include "cluster/order_message.h"
#include "cluster/placed_message.h"
#include "cluster/save_message.h"
#include "cluster/tensors_message.h"
#include "edge/hosted_queue.h"
#include "edge/links.h"
#include "edge/part_record.h"
#include "edge/part_ledgers.h"
#include "edge/part_norms.h"
#include "edge/part_views.h"
#include "edge/reply.h"
#include "proto/failpoint.h"

#include <stdio.h>

/* ---- messages of the coordinator ---- */

void part_take_order(struct daemon *d, const struct link_message *m)
{
	struct part *p = part_find(&d->node, m->job, m->part);
	struct held_order o;
	char why[200];
	if (!p)
		return;
	struct message_bounds bounds = message_bounds_of(&p->text->spec); /* of all ranks */
	bounds.parts = p->n_parts;
	enum status st = order_unpack(m->bytes, m->n, &bounds, &o, why, sizeof(why));
	if (st == ST_NO_MEMORY)
		return; /* it is repeated */
	if (st) {
		links_refuse(m, why);
		return;
	}
	if (!part_record_is_of(p->uuid, o.order.uuid_high, o.order.uuid_low)) {
		links_refuse(m, "Order.uuid is another job's, which has this id elsewhere");
		return;
	}
	if (o.order.run && o.order.want != WANT_END && !part_record_has_begun(p))
		return; /* it is repeated */
	part_on_order(p, &o.order);
	FAILPOINT(coord_order_after);
}

void part_take_board(struct daemon *d, const struct link_message *m)
{
	struct part *p = part_find(&d->node, m->job, m->part);
	struct held_board b;
	char why[200];
	if (!p)
		return;
	enum status st = board_unpack(m->bytes, m->n, p->n_parts, &b, why, sizeof(why));
	if (st == ST_VERSION_SKEW)
		links_refuse(m, why);
	if (st)
		return; /* without memory: it is repeated */
	part_on_board(p, &b.board);
	board_release(&b);
}

/* ---- what the part asks for ---- */

static void on_report(void *ctx, const struct report *r)
{
	if (r->failed.status)
		part_view_send(ctx); /* the job ends by this report, and what is seen of it then is kept */
	part_norms_keep(ctx, r);
	links_send_report(daemon_of_node(((struct part *)ctx)->node), r);
	part_ledger_send(ctx, r);
}

static void on_blob(void *ctx, const struct part_blob *b)
{
	links_send_blob(daemon_of_node(((struct part *)ctx)->node), b);
}

static void on_part_event(void *ctx, bool warning, const char *reason, int64_t rank, const char *text)
{
	const struct part *p = ctx;
	struct part_event e = { .job_id = p->id,
				.epoch = job_part(p->job)->epoch,
				.part = p->number,
				.window = job_window(p->job),
				.warning = warning,
				.rank = rank };
	size_t n = 0;
	snprintf(e.reason, sizeof(e.reason), "%s", reason);
	snprintf(e.text, sizeof(e.text), "%s", text);
	void *bytes = event_pack(&e, &n);
	links_send(daemon_of_node(p->node), LINK_EVENT, p->id, e.part, bytes, n);
}

static void on_placed(void *ctx, enum status st, const char *why)
{
	struct part *p = ctx;
	p->placed |= !st;
	struct placed placed = { .job_id = p->id, .epoch = job_part(p->job)->epoch, .part = p->number, .status = st };
	size_t n = 0;
	part_save_bytes(p, &placed.save_bytes, &placed.carry_bytes);
	snprintf(placed.text, sizeof(placed.text), "%s", why ? why : "");
	part_view_send(ctx);
	void *bytes = placed_pack(&placed, &n);
	links_send(daemon_of_node(p->node), LINK_PLACED, p->id, placed.part, bytes, n);
}

/* Repeated by parts_tick until it is answered. */
void part_send_tensors(struct part *p)
{
	const struct part_tensor_set t = { p->id, job_part(p->job)->epoch, p->number };
	size_t n = 0;
	void *bytes = tensor_set_pack(&t, p->tensors.packed, &n);
	p->tensors.asked_ns = node_now().mono_ns;
	links_send_shared(daemon_of_node(p->node), LINK_TENSORS, p->id, t.part, bytes, n, p->tensors.packed);
}

static enum status on_keep_tensors(void *ctx)
{
	enum status st = part_pack_tensors(ctx);
	if (!st)
		part_send_tensors(ctx);
	return st;
}

void part_take_kept(struct daemon *d, const struct link_message *m)
{
	struct part *p = part_find(&d->node, m->job, m->part);
	struct tensors_kept k;
	char why[200];
	enum status st = p ? tensors_kept_unpack(m->bytes, m->n, &k, why, sizeof(why)) : ST_NO_MEMORY;
	if (st == ST_VERSION_SKEW)
		links_refuse(m, why);
	if (st || !p->tensors.asked_ns || k.job_id != p->id || k.part != p->number ||
	    k.epoch != job_part(p->job)->epoch)
		return; /* it is answered already, or asked again */
	p->tensors.asked_ns = 0;
	if (p->away && !k.status)
		part_record_tensors(p);
	else
		part_on_tensors_kept(p, k.status);
}

static enum status on_fits(void *ctx, uint64_t bytes, char *why, size_t n_why)
{
	return hosted_queue_fits(ctx, bytes, why, n_why);
}

static void on_saved(void *ctx, const struct part_saved *is)
{
	const struct part *p = ctx;
	size_t n = 0;
	void *bytes = saved_pack(is, &n);
	links_send(daemon_of_node(p->node), LINK_SAVED, p->id, is->part, bytes, n);
}

/* Nobody else would answer. */
static void refuse_save(struct daemon *d, const struct save *w, enum status st, const char *why)
{
	struct part_saved is = { .job_id = w->job_id,
				 .epoch = w->epoch,
				 .part = w->part,
				 .term = w->term,
				 .number = w->number,
				 .status = st };
	size_t n = 0;
	snprintf(is.text, sizeof(is.text), "%.159s", why);
	void *bytes = saved_pack(&is, &n);
	links_send(d, LINK_SAVED, w->job_id, w->part, bytes, n);
}

void part_take_save(struct daemon *d, const struct link_message *m)
{
	struct part *p = part_find(&d->node, m->job, m->part);
	struct save w;
	char why[200];
	enum status st = save_unpack(m->bytes, m->n, &w, why, sizeof(why));
	if (st == ST_VERSION_SKEW) { /* repeated, it would be the same */
		links_refuse(m, why);
		if (w.number && w.epoch && w.term)
			refuse_save(d, &w, st, why);
	}
	if (st || w.job_id != m->job)
		return;
	if (p) {
		part_on_save(p, &w);
		return;
	}
	snprintf(why, sizeof(why), "node %.80s does not have part %u", d->node.conf->node.name, w.part);
	refuse_save(d, &w, ST_JOB_NOT_FOUND, why);
}

const struct part_ports *part_ports(void)
{
	static const struct part_ports ports = { .reply = reply_send,
						 .report = on_report,
						 .blob = on_blob,
						 .event = on_part_event,
						 .placed = on_placed,
						 .keep_tensors = on_keep_tensors,
						 .fits = on_fits,
						 .saved = on_saved };
	return &ports;
}
