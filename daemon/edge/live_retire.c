/* SPDX-License-Identifier: Apache-2.0 */
/* Releases an ended job in two steps: first all but a small part, then that, too. */
#include "edge/live_job.h"

#include "base/log.h"
#include "control/forget.h"
#include "edge/live_past.h"
#include "edge/live_saving.h"
#include "edge/state_share.h"
#include "gacc/v1/common.pb-c.h"

#include <stdlib.h>
#include <string.h>

#define RELEASE_AFTER_NS (INT64_C(60) * 1000000000)
#define RETIRE_AFTER_NS (INT64_C(10) * 1000000000) /* so long a trainer whose last answer was lost is told all */
/* jobs of a user that are over and still whole; who ends more, one after the other, has the older ones retired at once
 */
#define MAX_WHOLE 16

void live_hold(struct live_job *l)
{
	l->n_holders++;
}

void live_drop(struct live_job *l)
{
	l->n_holders--;
}

/* The last LIVE_PAST_EVENTS of the ring, in one of just that size. */
void live_shrink_events(struct live_job *l)
{
	events_shrink(&l->events, LIVE_PAST_EVENTS);
}

/* Becomes what a job is that had ended before this gaccd started; what was shown of it is kept as it is. */
static void retire(struct live_job *l, struct now now)
{
	const char *reason;
	int64_t since;
	enum job_state state = live_state(l, &reason, &since);
	char *copy = strdup(reason);
	if (!copy || !live_past_keep(l, now)) { /* the next tick tries again */
		free(copy);
		return;
	}
	free(l->end.reason);
	const struct commit *k = coord_last_commit(l->coord);
	l->end.state = state;
	l->end.reason = copy;
	l->end.window = k ? k->window + 1 : coord_window(l->coord);
	l->end.step = coord_applied_step(l->coord);
	if (k)
		l->end.commit = *k;
	live_drop_machines(l);
	live_shrink_events(l);
	live_launch_free(l);
	saving_free(l);
	calls_fini(&l->watchers);
}

/* A whole job has up to megabytes. Ending is cheap, so without this a user who submits and cancels would fill gaccd's
 * memory. */
static void hurry_older(const struct daemon *d, uint32_t uid)
{
	uint32_t n = 0;
	for (uint32_t i = d->n_jobs; i--;) {
		struct live_job *l = d->job[i];
		if (l->uid == uid && l->coord && live_ended(l) && ++n > MAX_WHOLE)
			l->hurried = true;
	}
}

/* Trainers may still read the last parameters: memory goes when all sessions are over, or after a minute. What is left
 * of the job goes when nobody holds on to it. */
void live_end_tick(struct live_job *l, struct now now)
{
	if (!live_ended(l) || !job_ended(l->part->job) || l->part->mem.allocating)
		return;
	if (!l->released_ns) {
		l->released_ns = now.mono_ns;
		hurry_older(l->d, l->uid);
	}
	if (!l->part->mem.released &&
	    (job_idle(l->part->job) || l->hurried || now.mono_ns - l->released_ns > RELEASE_AFTER_NS)) {
		part_release(l->part);
	} else if (l->part->mem.released &&
		   !l->renewed) { /* a tick later: what the last sessions did has been reported */
		live_past_renew(l, now);
		l->renewed = true;
	}
	bool told = !l->watchers.n && !l->part->n_links && !l->waits && !l->norms_calls.n && !l->changed;
	bool due = l->renewed && (l->hurried || now.mono_ns - l->released_ns > RETIRE_AFTER_NS);
	if (due && told && !l->n_holders && !l->part->n_holders && !l->deciding && live_launch_over(l))
		retire(l, now);
}

/* ---- forgetting ---- */

#define FORGET_AT_ONCE 256 /* in a tick */

/* A job that leaves the journal, some of its windows at a time, so that no commit waits long behind it. */
struct forgetting {
	struct daemon *d;
	uint64_t job, left;
};

static void on_forgotten(void *arg, enum status st);

/* Without memory the next gaccd does it. */
static void forget_some(struct forgetting f)
{
	struct journal_record r = { .kind = JOURNAL_FORGET, .forget = { f.job } };
	struct forgetting *kept = malloc(sizeof(*kept));
	if (!kept)
		return;
	*kept = f;
	persist_put_own(f.d->persist, &r, on_forgotten, kept);
}

static void on_forgotten(void *arg, enum status st)
{
	struct forgetting f = *(const struct forgetting *)arg;
	live_check_store(st);
	if (!st && f.left--)
		forget_some(f);
}

static bool may_be_forgotten(const struct live_job *l)
{
	return !l->coord && !l->aside && !l->n_holders;
}

/* How many jobs of *out_uid, the oldest of them, are to be forgotten now. */
static size_t too_many(const struct daemon *d, uint32_t *out_uid)
{
	uint32_t *uid = calloc(d->n_jobs + 1, 2 * sizeof(*uid));
	size_t n = 0, lead = 0, over = 0;
	for (uint32_t i = 0; i < d->n_jobs && uid; i++)
		if (may_be_forgotten(d->job[i]))
			uid[n++] = d->job[i]->uid;
	if (n > d->node.conf->history.jobs) {
		over = n - d->node.conf->history.jobs;
		*out_uid = uid[forget_choose(uid, n, uid + n, &lead)];
	}
	free(uid);
	over = over < lead ? over : lead;
	return over < FORGET_AT_ONCE ? over : FORGET_AT_ONCE;
}

static void forget(struct daemon *d, struct live_job *l)
{
	struct forgetting f = { d, l->id, l->end.window / JOURNAL_FORGET_WINDOWS };
	live_free(l);
	recorder_forget(d->recorder, f.job);
	forget_some(f);
}

/* As many in a tick as can end in one, whoever ends them: else they pile up. */
void live_forget_old(struct daemon *d)
{
	uint32_t uid = 0, kept = 0;
	size_t n = d->n_jobs > d->node.conf->history.jobs ? too_many(d, &uid) : 0;
	if (!n)
		return;
	for (uint32_t i = 0; i < d->n_jobs; i++) {
		struct live_job *l = d->job[i];
		if (n && l->uid == uid && may_be_forgotten(l)) {
			forget(d, l);
			n--;
		} else {
			d->job[kept++] = l;
		}
	}
	d->n_jobs = kept;
	state_share_changed(d); /* which deletes their logs */
}

void live_forget_unknown(struct daemon *d)
{
	uint64_t *id = calloc(d->n_jobs + 1, sizeof(*id));
	for (uint32_t i = 0; i < d->n_jobs && id; i++)
		id[i] = d->job[i]->id;
	if (id)
		history_forget_others(d->history, id, d->n_jobs); /* if it fails, the next start does it */
	free(id);
}
