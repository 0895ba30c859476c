/* SPDX-License-Identifier: Apache-2.0 */
/* Sends what has changed of a job to the streams that watch it, those of Watch and of WatchSession. Called by each
 * tick. Loop thread. */
#include "edge/hosted_watchers.h"

#include "edge/convert.h"
#include "edge/hosted_view.h"
#include "gacc/v1/gradient.pb-c.h"
#include "gacc/v1/job.pb-c.h"
#include "proto/utf8.h"

#include <stdio.h>

/* The message is made once but packed for each watcher, so this bounds what one change sends. */
static bool fits(uint64_t ranks, uint64_t watchers)
{
	return ranks * watchers <= VIEW_MAX_RANKS;
}

static void tell_job(struct hosted *h, uint32_t n_watchers, struct now now)
{
	Gacc__V1__WatchResponse m = GACC__V1__WATCH_RESPONSE__INIT;
	m.job = hosted_view(h, fits(h->spec->ranks, n_watchers) ? VIEW_RANKS : 0, now);
	for (uint32_t i = h->watchers.n; i-- > 0;) {
		struct rpc_call *call =
			h->watchers.item[i].rank == RANK_NONE ? rpc_find(h->d->rpc, h->watchers.item[i].call) : NULL;
		if (!call)
			continue; /* its on_end removes it */
		if (m.job)
			rpc_send(call, &m.base); /* a slow reader misses this state and gets the next */
		if (hosted_ended(h))
			rpc_finish(call, NULL);
	}
	if (m.job)
		gacc__v1__job__free_unpacked(m.job, NULL);
}

static void fill_step(struct hosted *h, Gacc__V1__WatchSessionResponse *m, Gacc__V1__StepResult *step)
{
	convert_step(coord_last_commit(h->coord), step);
	m->event_case = GACC__V1__WATCH_SESSION_RESPONSE__EVENT_STEP;
	m->step = step;
}

/* Moves the stragglers among `all`'s ranks to the front and lends them to `out`, as many as can be sent to
 * `n_watchers`. */
static void fill_stall(const Gacc__V1__Job *all, uint32_t n_watchers, Gacc__V1__StallWarning *out)
{
	out->window = all->window;
	out->late = all->ranks;
	for (size_t i = 0; i < all->n_ranks; i++) {
		Gacc__V1__RankStatus *late = all->ranks[i];
		if (late->late_ns > out->waiting_ns)
			out->waiting_ns = late->late_ns;
		if (late->late_ns && (!out->n_late || fits(out->n_late + 1, n_watchers))) {
			all->ranks[i] = all->ranks[out->n_late];
			all->ranks[out->n_late++] = late;
		}
	}
}

static void fill_state(enum job_state state, const Gacc__V1__Job *stalled, uint32_t n_watchers,
		       Gacc__V1__WatchSessionResponse *m, Gacc__V1__StallWarning *stall)
{
	if (stalled) {
		m->event_case = GACC__V1__WATCH_SESSION_RESPONSE__EVENT_STALL;
		fill_stall(stalled, n_watchers, stall);
		m->stall = stall;
	} else {
		m->event_case = GACC__V1__WATCH_SESSION_RESPONSE__EVENT_STATE;
		m->state = (Gacc__V1__JobState)state;
	}
}

/* `step` or `state` is NULL if it is not to be sent. */
static void tell_sessions(struct hosted *h, const Gacc__V1__WatchSessionResponse *step,
			  const Gacc__V1__WatchSessionResponse *state)
{
	for (uint32_t i = h->watchers.n; i-- > 0;) {
		struct rpc_call *call =
			h->watchers.item[i].rank != RANK_NONE ? rpc_find(h->d->rpc, h->watchers.item[i].call) : NULL;
		if (call && step)
			rpc_send(call, &step->base);
		if (call && state)
			rpc_send(call, &state->base);
		if (call && state && hosted_ended(h))
			rpc_finish(call, NULL);
	}
}

static void tell_step_and_state(struct hosted *h, uint32_t n_watchers, bool new_step, struct now now)
{
	Gacc__V1__WatchSessionResponse step = GACC__V1__WATCH_SESSION_RESPONSE__INIT,
				       change = GACC__V1__WATCH_SESSION_RESPONSE__INIT;
	Gacc__V1__StallWarning stall = GACC__V1__STALL_WARNING__INIT;
	Gacc__V1__StepResult result = GACC__V1__STEP_RESULT__INIT;
	Gacc__V1__Job *stalled = NULL;
	const char *reason;
	enum job_state state = hosted_state(h, &reason, NULL);
	bool new_state = state != h->told_state;
	char text[256];
	if (!new_step && !new_state)
		return;
	if (new_step)
		fill_step(h, &step, &result);
	if (new_state && state == JOB_STALLED)
		stalled = hosted_view(h, VIEW_RANKS, now);
	fill_state(state, stalled, n_watchers, &change, &stall);
	snprintf(text, sizeof(text), "%s", reason);
	utf8_repair(text);
	change.message = text;
	tell_sessions(h, new_step ? &step : NULL, new_state ? &change : NULL);
	if (stalled)
		gacc__v1__job__free_unpacked(stalled, NULL);
}

void hosted_tell(struct hosted *h, struct now now)
{
	if (!h->changed)
		return;
	const struct commit *k = coord_last_commit(h->coord);
	bool new_step = k && (!h->told_any || k->window != h->told_window) && coord_phase(h->coord) != COORD_PERSIST;
	uint32_t n_looking = 0;
	for (uint32_t i = 0; i < h->watchers.n; i++)
		n_looking += h->watchers.item[i].rank == RANK_NONE;
	if (n_looking)
		tell_job(h, n_looking, now);
	if (n_looking < h->watchers.n)
		tell_step_and_state(h, h->watchers.n - n_looking, new_step, now);
	if (new_step) {
		h->told_window = k->window;
		h->told_any = true;
	}
	h->told_state = hosted_state(h, NULL, NULL);
	h->changed = false;
}
