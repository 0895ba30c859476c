/* SPDX-License-Identifier: Apache-2.0 */
/* Rebuilds all jobs from their records in the journal after a restart; what cannot be read sets its job aside. For
 * daemon.c, at the start. Loop thread. */
#include "edge/hosted_recover.h"

#include "cluster/job_records.h"
#include "edge/checkpoints.h"
#include "edge/hosted_aside.h"
#include "edge/hosted_life.h"
#include "edge/hosted_past.h"
#include "edge/hosted_queue.h"
#include "edge/journal_keep.h"
#include "edge/launching.h"
#include "edge/restoring.h"
#include "gacc/v1/common.pb-c.h"
#include "runtime/prepared.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One job's rows as they are read; `record` and `why`: the one that cannot be. */
struct rows {
	struct hosted *h;
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

static enum status read_commit(const struct hosted *h, const struct journal_window *w, struct decided *out, char *why,
			       size_t n_why)
{
	const struct message_bounds b = message_bounds_of(h->spec);
	return commit_record_read(w->payload.data, w->payload.n, &b, w->window, out, why, n_why);
}

/* A record that cannot be read, or is gone, only matters to the history, except the newest: it says where the job
 * stands. */
static enum status restore_window(void *arg, const struct journal_window *w)
{
	struct rows *r = arg;
	struct hosted *h = r->h;
	struct decided k;
	char why[200] = "";
	enum status st = read_commit(h, w, &k, why, sizeof(why));
	if (st == ST_NO_MEMORY)
		return st;
	if (st)
		return w->window + 1 == h->end.window ? unreadable(r, "COMMIT", w->window, why) : ST_OK;
	job_restore_window(h->part->job, &k.commit, k.counted, k.n_words);
	coord_restore(h->coord, &k.commit);
	hosted_history_restored(h, &k.commit);
	hosted_note_step(h, &k.commit);
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
		st = coord_restore_update(r->h->coord, &update);
	if (st && !why[0])
		snprintf(why, sizeof(why), "it is refused: %s", status_info(st)->text);
	return st && st != ST_NO_MEMORY ? unreadable(r, "UPDATE", u->window, why) : st;
}

/* A large set is read later, unless gaccd launches the ranks and the job has not begun: it may wait in the queue,
 * which must know how much memory it needs. */
static enum status restore_tensors(struct rows *r, const struct journal_bytes *b)
{
	char why[200];
	bool at_once = r->h->spec->launch_mode == LAUNCH_DAEMON && !r->h->params_durable;
	void *packed = malloc(b->n);
	if (!packed)
		return ST_NO_MEMORY;
	memcpy(packed, b->data, b->n);
	enum status st = part_restore_tensors(r->h->part, packed, b->n, at_once, why, sizeof(why));
	return st && st != ST_NO_MEMORY ? unreadable(r, "TENSORS", UINT64_MAX, why) : st;
}

/* An ended job is made from its view, or like the others when it has none. *why: set where this gaccd cannot read the
 * job, which then has no state machines. */
static enum status new_of(struct daemon *d, const struct journal_job *j, struct hosted **out, char *why, size_t n_why)
{
	if (j->ended && !hosted_past_new(d, j, out))
		return ST_OK;
	struct prepared *p = prepared_from_journal(j->spec.data, j->spec.n);
	enum status st = p ? hosted_new(d, j->id, j->uid, j->user, p, out) : ST_NO_MEMORY;
	if (st && st != ST_NO_MEMORY) {
		snprintf(why, n_why, "%.250s", p->why[0] ? p->why : status_info(st)->text);
		st = hosted_aside_new(d, j, p, out);
	}
	prepared_free(p);
	return st;
}

static enum status take_end(struct hosted *h, const struct journal_job *j)
{
	h->end.reason = strdup(j->end_reason);
	h->end.state = (enum job_state)j->end_state;
	h->ended_unix_ns = j->ended_unix_ns;
	hosted_drop_machines(h);
	saving_free(h);
	if (j->exits.n && !h->end.settled)
		launching_exits_restore(h, &j->exits);
	return h->end.reason ? ST_OK : ST_NO_MEMORY;
}

/* What the job had before the restart: its tensors, the checkpoint that it began with, its pause. */
static enum status take_state(struct rows *r, const struct journal_job *j)
{
	struct hosted *h = r->h;
	char why[256] = "";
	enum status st = ST_OK;
	if (h->text->pb->n_tensors)
		st = hosted_declare_spec_tensors(h, why, sizeof(why));
	if (st && st != ST_NO_MEMORY)
		return unreadable(r, "JOB", UINT64_MAX, why);
	if (!st && !h->text->pb->n_tensors && j->tensors.n)
		st = restore_tensors(r, &j->tensors);
	if (!st && j->base.n && (st = restoring_from_journal(h, &j->base, why, sizeof(why))) == ST_VERSION_SKEW)
		unreadable(r, "RESTORED", UINT64_MAX, why);
	if (!st && j->hold_reason)
		coord_restore_hold(h->coord, j->hold_reason);
	return st;
}

static bool is_fatal(enum status st)
{
	return st == ST_NO_MEMORY || st == ST_STORE_FAILED;
}

static enum status restore_job(void *arg, const struct journal_job *j)
{
	struct daemon *d = arg;
	struct hosted *h = NULL;
	char why[256] = "";
	enum status st = new_of(d, j, &h, why, sizeof(why));
	if (st)
		return st;
	struct rows r = { .h = h };
	fdstore_starting(d->node.fdstore, daemon_now(d).mono_ns); /* there may be many, of 4 MB each */
	memcpy(h->uuid, j->uuid, 16);
	memcpy(h->request_id, j->request_id, 16);
	h->created_unix_ns = j->created_unix_ns;
	h->params_durable = j->params_ready;
	if (h->part)
		h->part->begun = j->params_ready;
	h->end.window = j->next_window;
	if (j->ended)
		st = take_end(h, j);
	else if (why[0])
		st = hosted_set_aside(h, "JOB", why);
	else if ((st = take_state(&r, j)) && !is_fatal(st))
		st = hosted_set_aside(h, r.record, r.why);
	enum status added = hosted_add(d, h);
	return st ? st : added;
}

static enum status last_window(void *arg, const struct journal_window *w)
{
	struct hosted *h = ((struct rows *)arg)->h;
	struct decided k;
	char why[200];
	h->end.step = w->applied_step;
	enum status st = read_commit(h, w, &k, why, sizeof(why));
	if (st)
		return st == ST_NO_MEMORY ? st : ST_OK;
	uint64_t digest = h->end.commit.window == k.commit.window ? h->end.commit.params_digest : 0;
	h->end.commit = k.commit;
	h->end.commit.params_digest = digest; /* known from the view alone */
	/* a trainer may still ask for a lost answer */
	if (daemon_now(h->d).unix_ns - h->ended_unix_ns < HOSTED_COUNTED_NS)
		h->end.counted = k.counted;
	else
		free(k.counted);
	return ST_OK;
}

/* A job that gaccd is to launch waits again, unless it had begun: then it has a launcher, or at least parameters. */
static void take_up(struct hosted *h)
{
	bool launch = h->spec->launch_mode == LAUNCH_DAEMON && !h->aside, found = launch && launching_adopt(h);
	if (!h->coord)
		return; /* its tick makes the view that stays */
	hosted_queue_restore(h, launch && !found && !h->params_durable);
	if (launch && !h->admission.queued)
		coord_admit(h->coord, daemon_now(h->d));
	if (launch && !found && !h->admission.queued)
		launching_begin(h);
	if (!h->admission.queued && (job_has_tensors(h->part->job) || h->part->tensors.due || h->spec->restores))
		job_take_over(h->part->job);
}

static enum status check_held(const struct daemon *d)
{
	size_t n = 0;
	for (uint32_t i = 0; i < d->n_jobs; i++)
		n += d->job[i]->coord != NULL;
	return hosted_queue_check_held(d->node.n_stored, n);
}

/* Windows, updates and checkpoints of a job. What cannot be read sets this job aside, and no other. */
static enum status restore_rows(struct hosted *h)
{
	struct rows r = { .h = h };
	enum status st = ST_OK;
	hosted_history_load(h);
	if (!h->coord)
		events_shrink(&h->events, HOSTED_PAST_EVENTS);
	if (h->coord)
		st = journal_each_update(h->d->journal, h->id, restore_update, &r);
	if (!st && !h->aside)
		st = journal_each_window(h->d->journal, h->id, h->coord ? JOB_HISTORY : 1,
					 h->coord ? restore_window : last_window, &r);
	if (!st)
		st = saving_from_journal(h);
	if (st && !is_fatal(st))
		st = hosted_set_aside(h, r.record ? r.record : "CHECKPOINT", r.record ? r.why : status_info(st)->text);
	if (h->coord && coord_held(h->coord))
		coord_restore_since(h->coord, hosted_history_when(h, "Paused"));
	return st;
}

enum status hosted_recover(struct daemon *d)
{
	enum status st = journal_last_job(d->journal, &d->last_job);
	if (!st)
		st = journal_each_job(d->journal, true, restore_job, d);
	if (!st)
		hosted_forget_unknown(d);
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
		hosted_queue_warn(d);
	return st;
}
