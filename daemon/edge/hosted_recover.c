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
#include "edge/links.h"
#include "edge/part_record.h"
#include "edge/placing.h"
#include "edge/restoring.h"
#include "gacc/v1/common.pb-c.h"
#include "runtime/prepared.h"
#include "runtime/spec_message.h"

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
	if (!placing_note_window(h, &k)) {
		free(k.counted);
		return ST_NO_MEMORY;
	}
	coord_restore(h->coord, &k.commit);
	hosted_history_restored(h, &k.commit);
	hosted_note_step(h, &k.commit);
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

static enum status need_of(struct hosted *h, const Gacc__V1__JobSpec *pb, char *why, size_t n_why)
{
	struct tensor_spec *t = NULL;
	struct tensor_set set = { .n = 0 };
	enum status st = tensors_from_message(pb->tensors, pb->n_tensors, &t, why, n_why);
	if (!st)
		st = tensor_set_init(&set, h->spec, t, pb->n_tensors, why, n_why);
	if (!st)
		st = hosted_need(h, &set.arena, &h->place.need);
	tensor_set_fini(&set);
	free(t);
	return st;
}

/* A job that gaccd launches and that has not begun may wait in the queue, which must know how much memory it needs. Of
 * others the node that has the part reads the tensors. */
static enum status find_need(struct rows *r)
{
	struct hosted *h = r->h;
	char why[200] = "it is no tensor set";
	if (h->spec->launch_mode != LAUNCH_DAEMON || h->params_durable)
		return ST_OK;
	enum status st = ST_OK;
	const struct shared *set = h->tensors;
	if (set) {
		Gacc__V1__JobSpec *pb = gacc__v1__job_spec__unpack(NULL, set->n, set->data);
		st = pb ? need_of(h, pb, why, sizeof(why)) : ST_MALFORMED;
		if (pb)
			gacc__v1__job_spec__free_unpacked(pb, NULL);
	} else if (h->text->pb->n_tensors) {
		st = need_of(h, h->text->pb, why, sizeof(why));
	}
	return st && st != ST_NO_MEMORY ? unreadable(r, set ? "TENSORS" : "JOB", UINT64_MAX, why) : st;
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
	if (!h->text->pb->n_tensors && j->tensors.n && !placing_note_tensors(h, j->tensors.data, j->tensors.n))
		st = ST_NO_MEMORY;
	if (!st && (st = find_need(r)) == ST_VERSION_SKEW)
		return st;
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

/* The placements are delivered at once, and so are their answers: what this node keeps for its parts must be taken
 * before gaccd serves. Of a job whose checkpoint is read again nothing is kept: it had not begun. */
static enum status place(struct hosted *h)
{
	restoring_place(h, daemon_now(h->d));
	links_run_now(h->d);
	links_run_now(h->d);
	return h->place.refused ? hosted_aside_refused(h) : ST_OK;
}

/* A job that gaccd is to launch waits again, unless it had begun: then it has a launcher, or at least parameters. */
static enum status take_up(struct hosted *h)
{
	bool launch = h->spec->launch_mode == LAUNCH_DAEMON && !h->aside, found = launch && launching_adopt(h);
	if (!h->coord)
		return ST_OK; /* its tick makes the view that stays */
	hosted_queue_restore(h, launch && !found && !h->params_durable);
	if (launch && !h->admission.queued)
		coord_admit(h->coord, daemon_now(h->d));
	if (h->admission.queued)
		return ST_OK;
	enum status st = place(h);
	if (!st && h->aside)
		launching_free(h);
	else if (launch && !found)
		launching_begin(h);
	return st;
}

static enum status check_held(const struct daemon *d)
{
	size_t n = 0;
	for (uint32_t i = 0; i < d->n_jobs; i++)
		n += d->job[i]->n_parts;
	for (const struct part_record *r = d->record; r; r = r->next)
		n++;
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
	for (uint32_t i = 0; i < d->n_jobs && !st; i++) { /* from here on pool threads may have journal and history */
		fdstore_starting(d->node.fdstore, daemon_now(d).mono_ns); /* each part reads the specification */
		st = take_up(d->job[i]);
	}
	if (!st)
		hosted_queue_warn(d);
	return st;
}
