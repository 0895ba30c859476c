/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator's state machine: looks at what the reports say together and takes every step that is due. Driven by
 * daemon/edge with reports and with the journal's answers. Pure; loop thread. */
#include "control/coord_impl.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* ---- the state machine: look at what is known, take every step that is due ---- */

/* opened_unix_ns: the time that users see, which a restart must not change. */
static void open_window(struct coord *c, uint64_t window, int64_t opened_unix_ns, struct now now)
{
	c->window = window;
	c->values = updates_take(&c->updates, c->values, window);
	c->failed_attempts = c->failed_norms = 0;
	c->n_late = 0;
	c->window_opened_unix_ns = opened_unix_ns;
	c->opened_ns = now.mono_ns;
	c->opened_ran_ns = coord_ran_ns(c, now.mono_ns);
	c->failing_ns = 0;
	c->n_counted = c->n_voided = 0;
	COORD_EACH_RANK(c, r)
	{
		struct rank_progress *p = &c->rank[r];
		p->counted = p->voided = 0;
		p->flushed = p->flushed == RANK_LEFT ? RANK_LEFT : RANK_OPEN;
		p->weight = 0;
		p->ready_ns = p->waiting_ns = 0;
		c->times[r].ready_ns = c->times[r].waiting_ns = 0;
	}
	c->waiting_since_ns = 0;
	coord_take_early(c);
	coord_mark_all(c);
	coord_set_phase(c, COORD_COLLECT, now);
}

static void start_go(struct coord *c, struct now now)
{
	c->armed = false;
	c->attempt++;
	c->norms_asked = c->norms_wanted;
	c->progress_ns = now.mono_ns;
	coord_mark_all(c);
	if (c->comm.board && coord_comm_is_over(c))
		coord_comm_form(c, now);
	coord_set_phase(c, COORD_GO, now);
	coord_broadcast(c, now);
}

static void forget_bitmaps(struct coord *c)
{
	memset(c->counted, 0, c->n_words * sizeof(*c->counted));
	COORD_EACH_PART(c, i)
	c->peer[i].has_bitmap = false;
}

void coord_start_close(struct coord *c, struct now now)
{
	forget_bitmaps(c);
	c->n_late = 0; /* no rank is waited for from now on */
	coord_mark_all(c);
	/* complete parts take no more pushes, a single part waits for no other: one order closes them and makes them
	 * vote */
	if (c->n_peers == 1 || (coord_all(c, MARK_COMPLETE) && coord_slots_ask(c, now))) {
		start_go(c, now);
		return;
	}
	coord_set_phase(c, COORD_CLOSE, now);
	coord_broadcast(c, now);
}

/* ---- the armed GO ---- */

/* One part needs no word from here to close its window: nobody else's is to be closed with it (engine/go.h). */
void coord_arm(struct coord *c)
{
	c->armed = c->n_peers == 1 && !c->held && !c->norms_wanted && !c->commit.final;
	c->attempt += c->armed;
	coord_mark_all(c); /* a vote for the attempt before is none for this one */
}

enum armed { ARMED_NOT, ARMED_WAITS, ARMED_VOTES };

/* What an armed attempt has come to. A part that is complete, counts something and is armed votes in the same turn of
 * its engine, so that its vote is on the way. */
static enum armed look_at_armed(const struct coord *c)
{
	const struct report *r = &c->peer[0].last;
	if (!c->armed || c->norms_wanted) /* only an ordered GO brings the norms */
		return ARMED_NOT;
	if (coord_all(c, MARK_VOTED) && coord_all(c, MARK_CLOSED))
		return ARMED_VOTES;
	bool will = coord_all(c, MARK_COMPLETE) && r->term == c->term && r->armed == c->attempt && c->n_counted > 0;
	return will ? ARMED_VOTES : coord_all(c, MARK_VOTED) ? ARMED_WAITS : ARMED_NOT;
}

/* As if its GO had been ordered now. Parts that do not seem to know get the order with a repetition. */
static void take_armed(struct coord *c, struct now now)
{
	c->armed = c->norms_asked = false;
	c->n_late = 0;
	c->progress_ns = now.mono_ns;
	coord_renew_order(c);
	coord_set_phase(c, COORD_GO, now);
	coord_step(c, now);
}

static void step_start(struct coord *c, struct now now)
{
	if (c->comm.board ? !coord_comm_start(c, now) : !coord_all(c, MARK_STARTED))
		return;
	coord_arm(c);
	c->comm.fill = 0;
	open_window(c, c->window, now.unix_ns, now);
	coord_set_running(c, now);
	coord_broadcast(c, now);
	coord_step(c, now);
}

static void step_collect(struct coord *c, struct now now)
{
	if (!c->held && coord_all(c, MARK_LEFT) && c->n_counted + c->n_voided == 0) {
		coord_end(c, ST_OK, "all ranks have left", now);
		return;
	}
	enum armed armed = look_at_armed(c);
	if (armed == ARMED_VOTES && !c->held)
		take_armed(c, now);
	if (armed != ARMED_NOT) /* it is paused: the vote waits here */
		return;
	/* an earlier coordinator has closed the window at some parts: the others must follow, complete or not. One part
	 * alone may have closed it by itself, and waits */
	bool follow = c->n_marked[MARK_FROZEN] && (!c->held || c->n_peers > 1);
	if (follow || (!c->held && coord_all(c, MARK_COMPLETE)))
		coord_start_close(c, now);
}

static void step_close(struct coord *c, struct now now)
{
	/* who has asked before has had only complete parts */
	bool ready = coord_all(c, MARK_CLOSED) || (c->slots.state != SLOTS_NONE && coord_all(c, MARK_COMPLETE));
	if (ready && coord_slots_ask(c, now))
		start_go(c, now);
}

/* After a failed attempt and its pause. */
static void again(struct coord *c, struct now now)
{
	if (now.mono_ns < c->slots.not_before_ns || !coord_slots_ask(c, now))
		return;
	c->progress_ns = now.mono_ns;
	coord_set_phase(c, COORD_GO, now);
	coord_broadcast(c, now);
}

static void step_go(struct coord *c, struct now now)
{
	char why[300];
	if (!coord_slots_held(c)) {
		again(c, now);
		return;
	}
	if (!c->n_marked[MARK_FAILED]) {
		if (coord_all(c, MARK_VOTED) && coord_all(c, MARK_CLOSED))
			coord_decide(c, now);
		return;
	}
	coord_take_failed_vote(c, why, sizeof(why));
	coord_fail_attempt(c, why, now);
}

static void step_commit(struct coord *c, struct now now)
{
	if (!coord_all(c, MARK_AHEAD)) {
		coord_comm_commit(c, now);
		return;
	}
	c->commit.params_digest = c->peer[0].last.params_digest;
	if (coord_end_on_lost(c, now))
		return;
	COORD_EACH_PART(c, i)
	if (c->peer[i].last.params_digest != c->commit.params_digest) {
		coord_hold_on_difference(c, now);
		return;
	}
	if (c->commit.final) {
		coord_end(c, ST_OK,
			  c->spec->steps && c->applied_step >= c->spec->steps ? "all steps are applied"
									      : "all ranks have left",
			  now);
		return;
	}
	forget_bitmaps(c);
	open_window(c, c->commit.window + 1, c->commit.unix_nanos, now);
	coord_set_running(c, now);
	c->ports.changed(c->ports.ctx, c->job_id);
	coord_step(c, now);
}

/* nonfinite: error. A void micro-batch stays in the reports until the window's end, so none is overlooked. */
static bool end_on_void(struct coord *c, struct now now)
{
	if (!c->n_voided || c->spec->nonfinite != NONFINITE_ERROR || c->phase < COORD_COLLECT || c->phase > COORD_GO)
		return false;
	COORD_EACH_RANK(c, r)
	{
		const struct rank_progress *p = &c->rank[r];
		char text[160];
		if (!p->voided)
			continue;
		snprintf(text, sizeof(text),
			 "rank %u (pid %lld): micro-batch %u of window %llu has a non-finite gradient (nonfinite: "
			 "error)",
			 r, (long long)p->pid, p->first_void, (unsigned long long)c->window);
		coord_end(c, ST_NONFINITE, text, now);
		return true;
	}
	return false;
}

void coord_step(struct coord *c, struct now now)
{
	assert(c->phase <= COORD_ENDED && c->n_late <= c->spec->ranks);
	if (end_on_void(c, now) || coord_end_on_refusal(c, now))
		return;
	switch (c->phase) {
	case COORD_START:
		step_start(c, now);
		break;
	case COORD_COLLECT:
		step_collect(c, now);
		break;
	case COORD_CLOSE:
		step_close(c, now);
		break;
	case COORD_GO:
		step_go(c, now);
		break;
	case COORD_COMMIT:
		step_commit(c, now);
		break;
	case COORD_PERSIST:
	case COORD_ENDING:
	case COORD_ENDED:
		break;
	}
}

/* ---- events ---- */

void coord_on_persisted(struct coord *c, uint64_t window, enum status st, struct now now)
{
	if (c->phase != COORD_PERSIST || window != c->window)
		return;
	if (st == ST_STALE_TERM) {
		c->superseded = true;
		return;
	}
	if (st) {
		coord_end(c, st, "the journal cannot be written; nothing was applied", now);
		return;
	}
	assert(c->commit.window == window && c->commit.term == c->term);
	c->have_commit = true;
	c->applied_step = c->commit.applied_step;
	c->carry = c->commit.next;
	coord_tell_outcome(c);
	coord_tell_changes(c);
	coord_set_phase(c, COORD_COMMIT, now);
	c->progress_ns = now.mono_ns;
	if (c->comm.board && coord_comm_is_over(c))
		coord_comm_leave(c);
	coord_arm(c);
	coord_broadcast(c, now);
	coord_step(c, now);
}

void coord_enqueue(struct coord *c, const char *reason, struct now now)
{
	if (c->phase != COORD_START)
		return;
	c->queued = true;
	coord_set_state(c, JOB_PENDING, reason, now);
}

void coord_admit(struct coord *c, struct now now)
{
	c->queued = false;
	if (c->phase == COORD_START)
		coord_set_state(c, JOB_STARTING, "", now);
}

void coord_on_ended(struct coord *c, enum status st, struct now now)
{
	if (c->phase != COORD_ENDING)
		return;
	if (st == ST_STALE_TERM) {
		c->superseded = true;
		return;
	}
	coord_set_phase(c, COORD_ENDED, now);
	coord_set_state(c, coord_end_state(c->end_status), c->end_reason, now);
	coord_broadcast(c, now);
}
