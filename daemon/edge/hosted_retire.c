/* SPDX-License-Identifier: Apache-2.0 */
/* Releases an ended job in steps: its memory, then its state machines, and at last its records, when the history has
 * too many jobs. Called by each tick. Loop thread; the journal's thread deletes the records. */
#include "edge/hosted_life.h"

#include "base/log.h"
#include "control/forget.h"
#include "edge/checkpoints.h"
#include "edge/hosted_past.h"
#include "edge/hosted_scalars.h"
#include "edge/launching.h"
#include "edge/state_share.h"
#include "gacc/v1/common.pb-c.h"

#include <stdlib.h>
#include <string.h>

#define RETIRE_AFTER_NS (INT64_C(10) * 1000000000) /* in which a lost last answer can be asked for again */
#define SILENT_NS (INT64_C(60) * 1000000000)	   /* six views of a part have not come */
/* ended jobs of one user that are still whole; when there are more, the older ones are retired at once */
#define MAX_WHOLE 16

/* Reduces the job to what is kept of a job that had ended before this gaccd started. What is shown of it stays the
 * same. */
static void retire(struct hosted *h, struct now now)
{
	const char *reason;
	int64_t since;
	enum job_state state = hosted_state(h, &reason, &since);
	char *copy = strdup(reason);
	if (!copy || !hosted_past_keep(h, now)) { /* the next tick tries again */
		free(copy);
		return;
	}
	free(h->end.reason);
	const struct commit *k = coord_last_commit(h->coord);
	h->end.state = state;
	h->end.reason = copy;
	h->end.window = k ? k->window + 1 : coord_window(h->coord);
	h->end.step = coord_applied_step(h->coord);
	if (k)
		h->end.commit = *k;
	hosted_drop_machines(h);
	events_shrink(&h->events, HOSTED_PAST_EVENTS);
	launching_free(h);
	saving_free(h);
	hosted_scalars_end(h);
	calls_fini(&h->watchers);
}

/* A job that is not retired takes up to megabytes. Ending one is cheap, so without this a user who submits and
 * cancels jobs would fill gaccd's memory. */
static void hurry_older(const struct daemon *d, uint32_t uid)
{
	uint32_t n = 0;
	for (uint32_t i = d->n_jobs; i--;) {
		struct hosted *h = d->job[i];
		if (h->uid == uid && h->coord && hosted_ended(h) && ++n > MAX_WHOLE)
			h->hurried = true;
	}
}

/* What of its parts is left at their nodes. */
struct left {
	bool parts, memory, links; /* parts: some that have not ended */
};

/* A node that has had a part repeats its view, so long silence means that it has none any more. */
static struct left find_left(const struct hosted *h, struct now now)
{
	struct left left = { false, false, false };
	for (uint32_t i = 0; i < h->n_parts; i++) {
		const struct hosted_seen *seen = h->part[i].seen;
		if (!seen || now.mono_ns - seen->heard_ns >= SILENT_NS)
			continue;
		left.parts |= !seen->view.ended || seen->view.allocating;
		left.memory |= !seen->view.released;
		left.links |= seen->view.links != 0;
	}
	return left;
}

/* A job is released when nothing uses it any more. Its parts give their memory back by themselves (parts.c). */
void hosted_end_tick(struct hosted *h, struct now now)
{
	const struct left left = find_left(h, now);
	if (!hosted_ended(h) || left.parts)
		return;
	if (!h->released_ns) {
		h->released_ns = now.mono_ns;
		hurry_older(h->d, h->uid);
	} else if (!left.memory && !h->renewed) { /* what the last sessions did has been reported */
		hosted_past_renew(h, now);
		h->renewed = true;
	}
	bool told = !h->watchers.n && !h->waits && !h->norms_calls.n && !h->changed && !left.links;
	bool due = h->renewed && (h->hurried || now.mono_ns - h->released_ns > RETIRE_AFTER_NS);
	if (due && told && !h->n_holders && !h->deciding && launching_over(h))
		retire(h, now);
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
	daemon_check_store(st);
	if (!st && f.left--)
		forget_some(f);
}

static bool may_be_forgotten(const struct hosted *h)
{
	return !h->coord && !h->aside && !h->n_holders;
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

static void forget(struct daemon *d, struct hosted *h)
{
	struct forgetting f = { d, h->id, h->end.window / JOURNAL_FORGET_WINDOWS };
	const uint32_t uid = h->uid;
	hosted_free(h);
	recorder_forget(d->recorder, uid, f.job);
	forget_some(f);
}

/* As many in a tick as can end in one, whoever ends them: else they pile up. */
void hosted_forget_old(struct daemon *d)
{
	uint32_t uid = 0, kept = 0;
	size_t n = d->n_jobs > d->node.conf->history.jobs ? too_many(d, &uid) : 0;
	if (!n)
		return;
	for (uint32_t i = 0; i < d->n_jobs; i++) {
		struct hosted *h = d->job[i];
		if (n && h->uid == uid && may_be_forgotten(h)) {
			forget(d, h);
			n--;
		} else {
			d->job[kept++] = h;
		}
	}
	d->n_jobs = kept;
	state_share_changed(d); /* which deletes their logs */
}

void hosted_forget_unknown(struct daemon *d)
{
	uint64_t *id = calloc(d->n_jobs + 1, sizeof(*id));
	for (uint32_t i = 0; i < d->n_jobs && id; i++)
		id[i] = d->job[i]->id;
	if (id)
		history_forget_others(d->history, id, d->n_jobs); /* if it fails, the next start does it */
	free(id);
}
