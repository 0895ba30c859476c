/* SPDX-License-Identifier: Apache-2.0 */
/* What a part of a job asks of the rest of gaccd: reports on their way to the coordinator, answers to calls; and where
 * the job is coordinated here, its events, its checkpoints and its records. Loop thread. */
#include "edge/part_ports.h"

#include "edge/links.h"
#include "edge/live_job.h"
#include "edge/live_restoring.h"
#include "edge/live_saving.h"
#include "edge/reply.h"

static struct daemon *daemon_of_part(const struct part *p)
{
	_Static_assert(offsetof(struct daemon, node) == 0, "a node is the beginning of its daemon");
	return (struct daemon *)p->node;
}

/* NULL: it is coordinated elsewhere, or over. */
static struct live_job *job_of(const struct part *p)
{
	return live_find(daemon_of_part(p), p->id);
}

static void on_report(void *ctx, const struct report *r)
{
	links_send_report(daemon_of_part(ctx), r);
}

static void on_reply(void *ctx, uint64_t call, const struct reply *r)
{
	struct part *p = ctx;
	reply_send(daemon_of_part(p), p, call, r);
}

static void on_part_event(void *ctx, bool warning, const char *reason, int64_t rank, const char *text)
{
	struct live_job *l = job_of(ctx);
	if (l)
		live_event(l, warning, reason, rank, text);
}

static void on_part_changed(void *ctx)
{
	struct live_job *l = job_of(ctx);
	if (l)
		l->changed = true;
}

static void on_placed(void *ctx, enum status st, const char *why)
{
	struct live_job *l = job_of(ctx);
	if (l)
		live_submit_done(l, st, why);
}

static void on_tensors_durable(void *arg, enum status st)
{
	struct live_job *l = arg;
	live_check_store(st);
	part_on_tensors_kept(l->part, st);
}

static enum status on_keep_tensors(void *ctx)
{
	struct live_job *l = job_of(ctx);
	enum status st = l ? part_pack_tensors(l->part) : ST_UNAVAILABLE;
	if (st)
		return st;
	struct shared *set = l->part->tensors.packed;
	struct journal_record r = { .kind = JOURNAL_TENSORS, .tensors = { l->id, { set->data, set->n } } };
	return persist_put_shared(l->d->persist, &r, set, on_tensors_durable, l);
}

static enum status on_fits(void *ctx, uint64_t bytes, char *why, size_t n_why)
{
	struct live_job *l = job_of(ctx);
	return l ? live_queue_fits(l, bytes, why, n_why) : ST_UNAVAILABLE;
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
	struct live_job *l = job_of(ctx);
	bool due = l && restoring_due(l);
	if (due)
		restoring_begin(l, on_restore_read);
	return due;
}

static void on_engine_up(void *ctx)
{
	struct live_job *l = job_of(ctx);
	if (l)
		saving_on_engine_up(l);
}

static void on_engine_down(void *ctx)
{
	struct live_job *l = job_of(ctx);
	if (l)
		saving_on_engine_down(l);
}

static void on_engine_answer(void *ctx, const struct engine_answer *a)
{
	struct live_job *l = job_of(ctx);
	if (!l)
		return;
	if (a->op == ENGINE_CHECKPOINT)
		saving_on_answer(l, a);
	else if (a->op == ENGINE_RESTORE)
		restoring_on_answer(l, a);
	else
		saving_on_committed(l);
}

struct part_ports part_ports(void)
{
	return (struct part_ports){ .reply = on_reply,
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
