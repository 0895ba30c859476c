/* SPDX-License-Identifier: Apache-2.0 */
/* A job's records in the journal: writing them, and rebuilding the job from them after a restart. */
#include "edge/live_job.h"

#include "base/log.h"
#include "cluster/job_records.h"
#include "edge/convert.h"
#include "edge/journal_keep.h"
#include "edge/live_aside.h"
#include "edge/live_past.h"
#include "edge/live_restoring.h"
#include "edge/live_saving.h"
#include "gacc/v1/common.pb-c.h"
#include "runtime/prepared.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the journal ---- */

void live_check_store(enum status st)
{
	if (st == ST_STORE_FAILED || st == ST_STALE_TERM)
		daemon_fail();
}

void live_on_written(void *arg, enum status st)
{
	live_check_store(st);
	live_drop(arg);
}

struct pending_commit {
	struct live_job *l;
	uint64_t window;
};

static void on_commit_durable(void *arg, enum status st)
{
	const struct pending_commit *p = arg;
	live_check_store(st);
	if (!st)
		live_history_durable(p->l, p->window);
	coord_on_persisted(p->l->coord, p->window, st, daemon_now(p->l->d));
}

void live_persist_commit(void *ctx, const struct commit *k, const uint64_t *counted, uint32_t n_words)
{
	struct live_job *l = ctx;
	live_history_decided(l, k, counted, n_words);
	size_t n = 0;
	void *payload = commit_record_pack(k, counted, n_words, &n);
	struct pending_commit *p = malloc(sizeof(*p));
	enum status st = ST_NO_MEMORY;
	if (payload && p) {
		*p = (struct pending_commit){ l, k->window };
		struct journal_record r = { .kind = JOURNAL_COMMIT,
					    .commit = { .job = l->id,
							.epoch = k->epoch,
							.window = k->window,
							.applied_step = k->applied_step,
							.term = k->term,
							.attempt = k->attempt,
							.outcome = k->outcome,
							.unix_ns = k->unix_nanos,
							.payload = { payload, n } } };
		st = persist_put_own(l->d->persist, &r, on_commit_durable, p);
	} else {
		free(p);
	}
	free(payload);
	if (st) {
		log_job(l->id, LOG_ERROR, "CommitLost", "no memory to write the commit of window %llu",
			(unsigned long long)k->window);
		daemon_fail();
	}
}

static void on_end_durable(void *arg, enum status st)
{
	struct live_job *l = arg;
	live_check_store(st);
	if (st && st != ST_STALE_TERM && st != ST_JOB_ENDED) /* nobody must be told that it has ended */
		daemon_fail();
	struct now then = { daemon_now(l->d).mono_ns, l->ending_unix_ns }; /* as the next gaccd will see it */
	l->ended_unix_ns = l->ending_unix_ns;
	coord_on_ended(l->coord, st, then);
	live_waits(l, daemon_now(l->d));
}

void live_persist_end(void *ctx, uint64_t job, enum status end, const char *reason)
{
	if (!saving_hold_end(ctx, end, reason))
		live_write_end(ctx, end, reason);
}

void live_write_end(struct live_job *l, enum status end, const char *reason)
{
	enum job_state state = coord_end_state(end);
	struct now now = daemon_now(l->d);
	/* without memory the next gaccd shows less of it, if this one dies soon */
	struct journal_bytes view = live_past_record(l, now);
	struct journal_record r = {
		.kind = JOURNAL_END,
		.end = { .job = l->id, .state = state, .reason = reason, .unix_ns = now.unix_ns, .view = view }
	};
	l->ending_unix_ns = now.unix_ns;
	live_event(l, state != JOB_COMPLETED, state == JOB_COMPLETED ? "Completed" : "Ended", -1, reason);
	if (persist_put(l->d->persist, &r, on_end_durable, l))
		daemon_fail();
	free((void *)view.data);
}

/* ---- after a restart ---- */

/* One job's rows as they are read; `record` and `why`: the one that cannot be. */
struct rows {
	struct live_job *l;
	const char *record;
	char why[200];
};

static enum status unreadable(struct rows *r, const char *record, uint64_t window, const char *why)
{
	r->record = record;
	if (window == UINT64_MAX)
		snprintf(r->why, sizeof(r->why), "%s", why);
	else
		snprintf(r->why, sizeof(r->why), "that of window %llu: %s", (unsigned long long)window, why);
	return ST_VERSION_SKEW;
}

static enum status read_commit(const struct live_job *l, const struct journal_window *w, struct decided *out, char *why,
			       size_t n_why)
{
	const struct message_bounds b = message_bounds_of(l->spec);
	return commit_record_read(w->payload.data, w->payload.n, &b, w->window, out, why, n_why);
}

/* One that cannot be read, or is gone, is history only, but for the newest: it says where the job stands. */
static enum status restore_window(void *arg, const struct journal_window *w)
{
	struct rows *r = arg;
	struct live_job *l = r->l;
	struct decided k;
	char why[200] = "";
	enum status st = read_commit(l, w, &k, why, sizeof(why));
	if (st == ST_NO_MEMORY)
		return st;
	if (st)
		return w->window + 1 == l->end.window ? unreadable(r, "COMMIT", w->window, why) : ST_OK;
	job_restore_window(l->part->job, &k.commit, k.counted, k.n_words);
	coord_restore(l->coord, &k.commit);
	live_history_restored(l, &k.commit);
	live_note_step(l, &k.commit);
	free(k.counted);
	return ST_OK;
}

/* Comes before the windows: what holds in the last of them follows from all updates. */
static enum status restore_update(void *arg, const struct journal_update *u)
{
	struct rows *r = arg;
	struct update update;
	char why[200] = "";
	enum status st = update_record_read(u->payload.data, u->payload.n, u->window, &update, why, sizeof(why));
	if (!st)
		st = coord_restore_update(r->l->coord, &update);
	if (st && !why[0])
		snprintf(why, sizeof(why), "it is refused: %s", status_info(st)->text);
	return st && st != ST_NO_MEMORY ? unreadable(r, "UPDATE", u->window, why) : st;
}

/* Later, if the job has begun or others start its ranks: one that waits in the queue needs to know how much memory it
 * wants. */
static enum status restore_tensors(struct rows *r, const struct journal_bytes *b)
{
	char why[200];
	bool at_once = r->l->spec->launch_mode == LAUNCH_DAEMON && !r->l->params_durable;
	enum status st = part_restore_tensors(r->l->part, b, at_once, why, sizeof(why));
	return st && st != ST_NO_MEMORY ? unreadable(r, "TENSORS", UINT64_MAX, why) : st;
}

/* Ended: from its view, or the old way when it has none. *why: set where this gaccd cannot read it; the job has then no
 * machines. */
static enum status new_of(struct daemon *d, const struct journal_job *j, struct live_job **out, char *why, size_t n_why)
{
	if (j->ended && !live_past_new(d, j, out))
		return ST_OK;
	struct prepared *p = prepared_from_journal(j->spec.data, j->spec.n);
	enum status st = p ? live_new(d, j->id, j->uid, j->user, p, out) : ST_NO_MEMORY;
	if (st && st != ST_NO_MEMORY) {
		snprintf(why, n_why, "%.250s", p->why[0] ? p->why : status_info(st)->text);
		st = live_aside_new(d, j, p, out);
	}
	prepared_free(p);
	return st;
}

static enum status take_end(struct live_job *l, const struct journal_job *j)
{
	l->end.reason = strdup(j->end_reason);
	l->end.state = (enum job_state)j->end_state;
	l->ended_unix_ns = j->ended_unix_ns;
	live_drop_machines(l);
	saving_free(l);
	if (j->exits.n && !l->end.settled)
		live_exits_restore(l, &j->exits);
	return l->end.reason ? ST_OK : ST_NO_MEMORY;
}

/* What it had been given before. */
static enum status take_state(struct rows *r, const struct journal_job *j)
{
	struct live_job *l = r->l;
	char why[256] = "";
	enum status st = ST_OK;
	if (l->text->pb->n_tensors)
		st = live_declare_spec_tensors(l, why, sizeof(why));
	if (st && st != ST_NO_MEMORY)
		return unreadable(r, "JOB", UINT64_MAX, why);
	if (!st && !l->text->pb->n_tensors && j->tensors.n)
		st = restore_tensors(r, &j->tensors);
	if (!st && j->base.n && (st = restoring_from_journal(l, &j->base, why, sizeof(why))) == ST_VERSION_SKEW)
		unreadable(r, "RESTORED", UINT64_MAX, why);
	if (!st && j->hold_reason)
		coord_restore_hold(l->coord, j->hold_reason);
	return st;
}

static bool is_fatal(enum status st)
{
	return st == ST_NO_MEMORY || st == ST_STORE_FAILED;
}

static enum status restore_job(void *arg, const struct journal_job *j)
{
	struct daemon *d = arg;
	struct live_job *l = NULL;
	char why[256] = "";
	enum status st = new_of(d, j, &l, why, sizeof(why));
	if (st)
		return st;
	struct rows r = { .l = l };
	fdstore_starting(d->node.fdstore, daemon_now(d).mono_ns); /* there may be many, of 4 MB each */
	memcpy(l->uuid, j->uuid, 16);
	memcpy(l->request_id, j->request_id, 16);
	l->created_unix_ns = j->created_unix_ns;
	l->params_durable = j->params_ready;
	if (l->part)
		l->part->begun = j->params_ready;
	l->end.window = j->next_window;
	if (j->ended)
		st = take_end(l, j);
	else if (why[0])
		st = live_set_aside(l, "JOB", why);
	else if ((st = take_state(&r, j)) && !is_fatal(st))
		st = live_set_aside(l, r.record, r.why);
	enum status added = live_add(d, l);
	return st ? st : added;
}

static enum status last_window(void *arg, const struct journal_window *w)
{
	struct live_job *l = ((struct rows *)arg)->l;
	struct decided k;
	char why[200];
	l->end.step = w->applied_step;
	enum status st = read_commit(l, w, &k, why, sizeof(why));
	if (st)
		return st == ST_NO_MEMORY ? st : ST_OK;
	uint64_t digest = l->end.commit.window == k.commit.window ? l->end.commit.params_digest : 0;
	l->end.commit = k.commit;
	l->end.commit.params_digest = digest; /* known from the view alone */
	/* a trainer may still ask for a lost answer */
	if (daemon_now(l->d).unix_ns - l->ended_unix_ns < LIVE_COUNTED_NS)
		l->end.counted = k.counted;
	else
		free(k.counted);
	return ST_OK;
}

/* A job that gaccd is to launch waits again, unless it had begun: then it has a launcher, or at least parameters. */
static void take_up(struct live_job *l)
{
	bool launch = l->spec->launch_mode == LAUNCH_DAEMON && !l->aside, found = launch && live_launch_adopt(l);
	if (!l->coord)
		return; /* its tick makes the view that stays */
	live_queue_restore(l, launch && !found && !l->params_durable);
	if (launch && !l->admission.queued)
		coord_admit(l->coord, daemon_now(l->d));
	if (launch && !found && !l->admission.queued)
		live_launch_begin(l);
	if (!l->admission.queued && (job_has_tensors(l->part->job) || l->part->tensors.due || l->spec->restores))
		job_take_over(l->part->job);
}

static enum status check_held(const struct daemon *d)
{
	size_t n = 0;
	for (uint32_t i = 0; i < d->n_jobs; i++)
		n += d->job[i]->coord != NULL;
	return live_queue_check_held(d->node.n_stored, n);
}

/* Windows, updates and checkpoints of a job. What cannot be read sets this job aside, and no other. */
static enum status restore_rows(struct live_job *l)
{
	struct rows r = { .l = l };
	enum status st = ST_OK;
	live_history_load(l);
	if (!l->coord)
		live_shrink_events(l);
	if (l->coord)
		st = journal_each_update(l->d->journal, l->id, restore_update, &r);
	if (!st && !l->aside)
		st = journal_each_window(l->d->journal, l->id, l->coord ? JOB_HISTORY : 1,
					 l->coord ? restore_window : last_window, &r);
	if (!st)
		st = saving_from_journal(l);
	if (st && !is_fatal(st))
		st = live_set_aside(l, r.record ? r.record : "CHECKPOINT", r.record ? r.why : status_info(st)->text);
	if (l->coord && coord_held(l->coord))
		coord_restore_since(l->coord, live_history_when(l, "Paused"));
	return st;
}

enum status live_restore(struct daemon *d)
{
	enum status st = journal_last_job(d->journal, &d->last_job);
	if (!st)
		st = journal_each_job(d->journal, true, restore_job, d);
	if (!st)
		live_forget_unknown(d);
	if (!st)
		st = check_held(d);
	if (!st)
		st = journal_keep_owners(d);
	for (uint32_t i = 0; i < d->n_jobs && !st; i++) {
		fdstore_starting(d->node.fdstore, daemon_now(d).mono_ns);
		st = restore_rows(d->job[i]);
	}
	for (uint32_t i = 0; i < d->n_jobs && !st; i++) /* from here on pool threads may have journal and history */
		take_up(d->job[i]);
	if (!st)
		live_queue_warn(d);
	return st;
}
