/* SPDX-License-Identifier: Apache-2.0 */
/* What the part and the coordinator of a job ask of the rest of gaccd: the messages between them, the journal, events,
 * answers to calls. Loop thread. */
#include "edge/live_job.h"
#include "edge/live_restoring.h"
#include "edge/live_saving.h"
#include "edge/reply.h"
#include "gacc/v1/common.pb-c.h"
#include "proto/failpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void on_event(void *ctx, uint64_t job, bool warning, const char *reason, int64_t rank, const char *text)
{
	live_event(ctx, warning, reason, rank, text);
}

/* ---- reports and orders: delivered when the sender has returned ---- */

struct posted_report {
	struct posted post;
	struct live_job *l;
	struct report report;
};

static void deliver_report(struct posted *p)
{
	struct posted_report *r = (struct posted_report *)p;
	live_drop(r->l);
	coord_on_report(r->l->coord, &r->report, daemon_now(r->l->d));
	free(r);
}

static void on_report(void *ctx, const struct report *r)
{
	struct live_job *l = ctx;
	size_t n_rank = r->n_ranks * sizeof(*r->rank), n_map = r->counted ? r->n_words * sizeof(*r->counted) : 0;
	struct posted_report *p = FAILPOINT_ERROR(gaccd_report_before) ? NULL : malloc(sizeof(*p) + n_rank + n_map);
	if (!p)
		return; /* the tick reports again */
	char *at = (char *)(p + 1);
	p->l = l;
	p->report = *r;
	p->report.rank = memcpy(at, r->rank, n_rank);
	if (n_map)
		p->report.counted = memcpy(at + n_rank, r->counted, n_map);
	live_hold(l);
	daemon_post(l->d, &p->post, deliver_report);
}

struct posted_order {
	struct posted post;
	struct live_job *l;
	struct order order;
};

static void deliver_order(struct posted *p)
{
	struct posted_order *o = (struct posted_order *)p;
	live_drop(o->l);
	part_on_order(o->l->part, &o->order);
	FAILPOINT(coord_order_after);
	free(o);
}

static void on_params_durable(void *arg, enum status st)
{
	struct live_job *l = arg;
	live_check_store(st);
	l->params_noted = false;
	l->params_durable = st == ST_OK;
	if (l->params_durable && l->coord)
		coord_resend(l->coord, daemon_now(l->d));
}

/* The journal knows that the job has its parameters. If its memory is lost before that, it begins anew, as no push can
 * have been acknowledged. */
static bool params_are_durable(struct live_job *l)
{
	struct journal_record r = { .kind = JOURNAL_PARAMS_READY, .params_ready = { l->id } };
	if (!l->params_durable && !l->params_noted)
		l->params_noted = persist_put(l->d->persist, &r, on_params_durable, l) == ST_OK;
	return l->params_durable;
}

static void on_order(void *ctx, uint32_t node, const struct order *o)
{
	struct live_job *l = ctx;
	if (o->run && o->want != WANT_END && !params_are_durable(l))
		return; /* sent again when they are */
	size_t n_late = o->n_late * sizeof(*o->late);
	struct posted_order *p = FAILPOINT_ERROR(coord_order_before) ? NULL : malloc(sizeof(*p) + n_late);
	if (!p)
		return; /* the tick orders again */
	p->l = l;
	p->order = *o;
	if (n_late)
		p->order.late = memcpy(p + 1, o->late, n_late);
	live_hold(l);
	daemon_post(l->d, &p->post, deliver_order);
}

/* ---- other ports ---- */

static void on_changed(void *ctx, uint64_t job)
{
	struct live_job *l = ctx;
	l->changed = true;
	live_history_applied(l);
	const struct commit *k = coord_last_commit(l->coord);
	if (k && coord_phase(l->coord) == COORD_COLLECT && k->window + 1 == coord_window(l->coord))
		live_note_step(l, k);
}

static void on_reply(void *ctx, uint64_t call, const struct reply *r)
{
	struct live_job *l = ctx;
	reply_send(l->d, l->part, call, r);
}

/* ---- what the part says ---- */

static void on_part_event(void *ctx, bool warning, const char *reason, int64_t rank, const char *text)
{
	live_event(ctx, warning, reason, rank, text);
}

static void on_part_changed(void *ctx)
{
	struct live_job *l = ctx;
	l->changed = true;
}

static void on_placed(void *ctx, enum status st, const char *why)
{
	live_submit_done(ctx, st, why);
}

static void on_tensors_durable(void *arg, enum status st)
{
	struct live_job *l = arg;
	live_check_store(st);
	part_on_tensors_kept(l->part, st);
}

static enum status on_keep_tensors(void *ctx)
{
	struct live_job *l = ctx;
	enum status st = part_pack_tensors(l->part);
	if (st)
		return st;
	struct shared *set = l->part->tensors.packed;
	struct journal_record r = { .kind = JOURNAL_TENSORS, .tensors = { l->id, { set->data, set->n } } };
	return persist_put_shared(l->d->persist, &r, set, on_tensors_durable, l);
}

static enum status on_fits(void *ctx, uint64_t bytes, char *why, size_t n_why)
{
	return live_queue_fits(ctx, bytes, why, n_why);
}

static void on_restore_read(struct live_job *l, enum status st, const char *why)
{
	if (!st) {
		part_allocate(l->part);
		return;
	}
	part_fail_beginning(l->part, "RestoreFailed", st, why);
	job_fail(l->part->job, st, why, daemon_now(l->d));
}

static bool on_restore(void *ctx)
{
	bool due = restoring_due(ctx);
	if (due)
		restoring_begin(ctx, on_restore_read);
	return due;
}

static void on_engine_up(void *ctx)
{
	saving_on_engine_up(ctx);
}

static void on_engine_down(void *ctx)
{
	saving_on_engine_down(ctx);
}

static void on_engine_answer(void *ctx, const struct engine_answer *a)
{
	if (a->op == ENGINE_CHECKPOINT)
		saving_on_answer(ctx, a);
	else if (a->op == ENGINE_RESTORE)
		restoring_on_answer(ctx, a);
	else
		saving_on_committed(ctx);
}

static void on_saved(void *ctx, char *text, size_t n)
{
	const struct live_job *l = ctx;
	const struct saved *k = saved_newest(&l->saved);
	if (k)
		snprintf(text, n, "; restore the checkpoint of step %llu: %s", (unsigned long long)k->applied_step,
			 k->path);
	else if (l->spec->restores)
		snprintf(text, n, "; it has no checkpoint of its own, it began with %s", l->text->pb->restore_from);
	else
		snprintf(text, n, "; there is no checkpoint to restore");
}

struct part_ports live_part_ports(struct live_job *l)
{
	return (struct part_ports){ .ctx = l,
				    .reply = on_reply,
				    .report = on_report,
				    .event = on_part_event,
				    .changed = on_part_changed,
				    .placed = on_placed,
				    .keep_tensors = on_keep_tensors,
				    .fits = on_fits,
				    .restore = on_restore,
				    .engine_up = on_engine_up,
				    .engine_down = on_engine_down,
				    .engine_answer = on_engine_answer };
}

struct coord_ports live_coord_ports(struct live_job *l)
{
	return (struct coord_ports){ .ctx = l,
				     .order = on_order,
				     .persist_commit = live_persist_commit,
				     .persist_end = live_persist_end,
				     .event = on_event,
				     .changed = on_changed,
				     .norms = live_norms,
				     .saved = on_saved };
}
