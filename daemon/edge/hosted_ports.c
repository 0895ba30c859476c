/* SPDX-License-Identifier: Apache-2.0 */
/* What the coordinator of a job asks of the rest of gaccd: orders on their way to the parts, the journal, events. Loop
 * thread. */
#include "edge/hosted_ports.h"

#include "base/log.h"
#include "cluster/board_message.h"
#include "cluster/event_message.h"
#include "cluster/placed_message.h"
#include "cluster/report_message.h"
#include "coll/gloo_blob.h"
#include "edge/checkpoints.h"
#include "edge/exchanging.h"
#include "edge/hosted_journal.h"
#include "edge/hosted_nodes.h"
#include "edge/hosted_norms.h"
#include "edge/node_facts.h"
#include "edge/placing.h"
#include "edge/submitting.h"
#include "gacc/v1/common.pb-c.h"

#include <stdio.h>

static void on_event(void *ctx, uint64_t job, bool warning, const char *reason, int64_t rank, const char *text)
{
	hosted_event(ctx, warning, reason, rank, text);
}

/* ---- messages of the parts ---- */

/* Of another part; or of a part that has taken orders of a later coordinator, which Hello would have said: believed, it
 * would end this coordinator's work on the job in silence. */
static bool is_credible(const struct daemon *d, const struct link_message *m, const struct report *r)
{
	char why[120];
	if (r->part != m->part) {
		links_refuse(m, "Report.part is another one");
		return false;
	}
	if (r->term <= d->term)
		return true;
	snprintf(why, sizeof(why), "Report.term is %llu, and this coordinator has %llu", (unsigned long long)r->term,
		 (unsigned long long)d->term);
	links_refuse(m, why);
	return false;
}

void hosted_take_report(struct daemon *d, const struct link_message *m)
{
	struct hosted *h = hosted_of_message(d, m);
	struct report r;
	char why[200];
	if (!h)
		return;
	const struct part_ranks all = { h->spec->ranks, NULL }; /* takes less time than a list of them */
	const struct message_bounds bounds = message_bounds_of(h->spec);
	const struct part_ranks *ranks = h->n_parts > 1 ? coord_part_ranks(h->coord, m->part) : &all;
	enum status st = report_unpack(m->bytes, m->n, ranks, &bounds, &r, why, sizeof(why));
	if (st == ST_NO_MEMORY)
		return; /* it is repeated */
	if (st) {
		links_refuse(m, why);
		return;
	}
	if (is_credible(d, m, &r)) {
		placing_answered(h, r.part);
		coord_on_report(h->coord, &r, daemon_now(d));
	}
	report_release(&r);
}

/* What is dropped is of an engine that is gone, or comes again. */
void hosted_take_blob(struct daemon *d, const struct link_message *m)
{
	struct hosted *h = hosted_of_message(d, m);
	struct held_blob b;
	char why[200], at[MEMBER_ADDRESS];
	if (!h)
		return;
	enum status st = blob_unpack(m->bytes, m->n, h->n_parts, &b, why, sizeof(why));
	if (st == ST_VERSION_SKEW)
		links_refuse(m, why);
	if (st)
		return;
	hosted_node_address(h, m->part, at);
	if (!gloo_blob_is_at(b.blob.bytes, b.blob.n, at)) {
		snprintf(why, sizeof(why), "it is not node.data_address of its node, %s", at);
		links_refuse(m, why);
	} else if (b.blob.part == m->part) {
		hosted_nodes_compare(h, daemon_now(d));
		st = coord_on_blob(h->coord, &b.blob, daemon_now(d));
	} else {
		links_refuse(m, "PartBlob.part is another one");
	}
	if (st)
		log_job(h->id, LOG_DEBUG, "LinkMessage",
			"the address of the engine of part %u for communicator %llu is dropped: %s", m->part,
			(unsigned long long)b.blob.comm, status_info(st)->text);
	blob_release(&b);
}

/* The submitter hears that all parts are there, or why the first of those is not that cannot be. */
static void tell_submitter(struct hosted *h, const struct placed *p)
{
	char why[sizeof(p->text) + 16];
	uint32_t i = 0;
	h->part[p->part].ready = p->status == ST_OK;
	while (i < h->n_parts && h->part[i].ready)
		i++;
	hosted_part_text(h, p->part, p->text, why, sizeof(why));
	if (p->status || i == h->n_parts)
		submitting_done(h, p->status, why);
}

void hosted_take_placed(struct daemon *d, const struct link_message *m)
{
	struct hosted *h = hosted_of_message(d, m);
	struct placed p;
	char why[200];
	if (!h)
		return;
	enum status st = placed_unpack(m->bytes, m->n, &p, why, sizeof(why));
	if (st == ST_VERSION_SKEW)
		links_refuse(m, why);
	if (st || p.job_id != h->id || p.part != m->part || p.epoch != coord_epoch(h->coord))
		return; /* it is repeated, or of an earlier placement */
	if (p.refused) {
		placing_refused(h, p.part, p.status, p.text);
	} else {
		placing_answered(h, p.part);
		h->changed = true; /* it may have another engine */
		if (!p.status)
			saving_on_placed(h, p.part, p.save_bytes, p.carry_bytes);
		tell_submitter(h, &p);
	}
}

void hosted_take_event(struct daemon *d, const struct link_message *m)
{
	struct hosted *h = hosted_of_message(d, m);
	struct part_event e;
	char why[200];
	if (!h)
		return;
	enum status st = event_unpack(m->bytes, m->n, h->spec->ranks, &e, why, sizeof(why));
	if (!st && e.rank >= 0 && !hosted_part_has(h, m->part, (uint32_t)e.rank)) {
		snprintf(why, sizeof(why), "PartEvent.rank is %lld, which is not in the part", (long long)e.rank);
		st = ST_VERSION_SKEW;
	}
	if (st == ST_VERSION_SKEW)
		links_refuse(m, why);
	else if (!st && e.job_id == h->id && e.part == m->part && e.epoch == coord_epoch(h->coord))
		hosted_part_event(h, &e);
}

/* ---- what the coordinator asks for ---- */

static void on_params_durable(void *arg, enum status st)
{
	struct hosted *h = arg;
	daemon_check_store(st);
	h->params_noted = false;
	h->params_durable = st == ST_OK;
	if (h->params_durable && h->coord)
		coord_resend(h->coord, daemon_now(h->d));
}

/* The journal knows that the job has its parameters. If its memory is lost before that, it begins anew, as no push can
 * have been acknowledged. */
static bool params_are_durable(struct hosted *h)
{
	struct journal_record r = { .kind = JOURNAL_PARAMS_READY, .params_ready = { h->id } };
	if (!h->params_durable && !h->params_noted)
		h->params_noted = persist_put(h->d->persist, &r, on_params_durable, h) == ST_OK;
	return h->params_durable;
}

/* A last checkpoint may come first. */
static void on_persist_end(void *ctx, uint64_t job, enum status end, const char *reason)
{
	if (!saving_hold_end(ctx, end, reason))
		hosted_write_end(ctx, end, reason);
}

/* Nobody waits for it: a gaccd that finds nothing of it in the journal will find the same reason. */
static void on_hold(void *ctx, uint64_t job, const char *reason)
{
	struct hosted *h = ctx;
	const struct journal_record r = { .kind = JOURNAL_HOLD, .hold = { h->id, reason } };
	if (!persist_put(h->d->persist, &r, hosted_on_written, h))
		hosted_hold(h);
}

static void on_order(void *ctx, uint32_t part, const struct order *o)
{
	struct hosted *h = ctx;
	if (!h->part[part].wanted)
		return; /* nobody has it */
	if (o->run && o->want != WANT_END && !params_are_durable(h))
		return; /* sent again when they are */
	struct order whole = *o;
	node_uuid_halves(h->uuid, &whole.uuid_high, &whole.uuid_low);
	links_send_order(h->d, h->part[part].node, part, &whole);
}

static void on_board(void *ctx, uint32_t part, const struct part_board *b)
{
	const struct hosted *h = ctx;
	links_send_board(h->d, h->part[part].node, part, b);
}

static void on_changed(void *ctx, uint64_t job)
{
	struct hosted *h = ctx;
	h->changed = true;
	hosted_history_applied(h);
	const struct commit *k = coord_last_commit(h->coord);
	if (k && coord_phase(h->coord) == COORD_COLLECT && k->window + 1 == coord_window(h->coord))
		hosted_note_step(h, k);
	saving_look(h);
}

static void on_saved(void *ctx, char *text, size_t n)
{
	const struct hosted *h = ctx;
	const struct saved *k = saved_newest(&h->saved);
	if (k)
		snprintf(text, n, "; restore the checkpoint of step %llu: %s", (unsigned long long)k->applied_step,
			 k->path);
	else if (h->spec->restores)
		snprintf(text, n, "; it has no checkpoint of its own, it began with %s", h->text->pb->restore_from);
	else
		snprintf(text, n, "; there is no checkpoint to restore");
}

struct coord_ports hosted_coord_ports(struct hosted *h)
{
	return (struct coord_ports){ .ctx = h,
				     .order = on_order,
				     .board = on_board,
				     .exchange_ask = exchanging_ask,
				     .exchange_give = exchanging_give,
				     .exchange_waits = exchanging_waits,
				     .persist_commit = hosted_persist_commit,
				     .persist_end = on_persist_end,
				     .hold = on_hold,
				     .event = on_event,
				     .changed = on_changed,
				     .norms = hosted_norms,
				     .saved = on_saved };
}
