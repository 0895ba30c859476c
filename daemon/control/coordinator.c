/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator's phases and its orders: looks at what the reports say together and takes every step that is due.
 * Pure; loop thread. */
#include "control/coord_impl.h"

#include <stdio.h>
#include <string.h>

/* ---- small things ---- */

void coord_set_state(struct coord *c, enum job_state state, const char *reason, struct now now)
{
	if (c->state == state && !strcmp(c->reason, reason))
		return;
	if (c->state != state)
		c->state_since_unix_ns = now.unix_ns;
	c->state = state;
	if (reason != c->reason) /* the state alone is new */
		snprintf(c->reason, sizeof(c->reason), "%s", reason);
	c->ports.changed(c->ports.ctx, c->job_id);
}

void coord_set_running(struct coord *c, struct now now)
{
	coord_forget_straggler(c, !c->held && !*c->hindrance, now);
	if (c->held)
		coord_set_state(c, JOB_PAUSED, c->hold_reason, now);
	else
		coord_set_state(c, *c->hindrance ? JOB_STALLED : JOB_RUNNING, c->hindrance, now);
}

void coord_set_phase(struct coord *c, enum coord_phase phase, struct now now)
{
	c->phase = phase;
	c->phase_since_ns = now.mono_ns;
	c->sent_ns = 0;
}

void coord_event(struct coord *c, bool warning, const char *reason, int64_t rank, const char *text)
{
	c->ports.event(c->ports.ctx, c->job_id, warning, reason, rank, text);
}

/* ---- orders ---- */

static void fill_order(const struct coord *c, struct order *o)
{
	*o = (struct order){ .job_id = c->job_id,
			     .epoch = c->epoch,
			     .term = c->term,
			     .window = c->window,
			     .number = c->order_number };
	o->run = c->phase != COORD_START;
	o->late = c->late;
	o->n_late = c->n_late < ORDER_MAX_LATE ? c->n_late : ORDER_MAX_LATE;
	o->paused = c->held;
	switch (c->phase) {
	case COORD_CLOSE:
		o->want = WANT_CLOSE;
		break;
	case COORD_GO:
	case COORD_PERSIST: /* a node whose engine restarted votes again */
		o->want = WANT_GO;
		o->attempt = c->attempt;
		o->norms = c->norms_asked;
		break;
	case COORD_COMMIT:
		o->want = WANT_COMMIT;
		o->commit = c->commit;
		break;
	case COORD_ENDED:
		o->want = WANT_END;
		o->end_status = c->end_status;
		memcpy(o->end_reason, c->end_reason, sizeof(o->end_reason));
		break;
	case COORD_START:
	case COORD_COLLECT:
	case COORD_ENDING:
		break;
	}
}

void coord_send_order(struct coord *c, uint32_t part)
{
	struct order o;
	fill_order(c, &o);
	c->ports.order(c->ports.ctx, part, &o);
}

void coord_renew_order(struct coord *c)
{
	c->order_number++;
}

void coord_broadcast(struct coord *c, struct now now)
{
	coord_renew_order(c);
	coord_resend(c, now);
}

void coord_resend(struct coord *c, struct now now)
{
	if (c->superseded || c->phase == COORD_ENDING)
		return;
	c->sent_ns = now.mono_ns;
	c->late_sent_ns = c->n_late ? now.mono_ns : 0;
	COORD_EACH_PART(c, i)
	if (c->phase != COORD_ENDED || !c->peer[i].last.ended)
		coord_send_order(c, i);
}

static bool has_order(const struct coord *c, const struct peer *p)
{
	if (c->phase == COORD_ENDED)
		return p->last.ended;
	return p->known && p->last.term == c->term && p->last.order >= c->order_number;
}

void coord_repeat(struct coord *c, struct now now)
{
	int64_t late_every = c->n_peers * COORD_LATE_EACH_NS;
	if (c->superseded || c->phase == COORD_ENDING)
		return;
	if (late_every < COORD_RESEND_NS)
		late_every = COORD_RESEND_NS;
	if ((c->n_late || c->late_sent_ns) && now.mono_ns - c->late_sent_ns >= late_every) {
		coord_resend(c, now);
		return;
	}
	if (now.mono_ns - c->sent_ns < COORD_RESEND_NS)
		return;
	c->sent_ns = now.mono_ns;
	COORD_EACH_PART(c, i)
	if (!has_order(c, &c->peer[i]))
		coord_send_order(c, i);
}

/* ---- what the reports say together ---- */

static uint32_t bit(enum mark m, bool is)
{
	return (uint32_t)is << m;
}

/* A node that is behind the open window, or ahead of it, says nothing about it. */
static uint32_t marks_of(const struct coord *c, const struct peer *p)
{
	const struct report *r = &p->last;
	bool here = r->window == c->window, frozen = here && r->phase >= WINDOW_CLOSED;
	bool voted = here && r->vote_term == c->term && r->vote_attempt == c->attempt;
	if (!p->known)
		return 0;
	return bit(MARK_STARTED, r->start >= START_PARAMS) | bit(MARK_COMPLETE, here && r->complete) |
	       bit(MARK_FROZEN, frozen) | bit(MARK_CLOSED, frozen && p->has_bitmap) |
	       bit(MARK_LEFT, here && r->all_left) | bit(MARK_VOTED, voted) |
	       bit(MARK_FAILED, voted && r->vote_status) | bit(MARK_AHEAD, r->window > c->window) |
	       bit(MARK_FAR_AHEAD, r->window > c->window + 1) |
	       bit(MARK_REFUSES, r->refused && r->refused != ST_NOT_READY);
}

void coord_mark(struct coord *c, struct peer *p)
{
	uint32_t is = marks_of(c, p);
	for (uint32_t changed = is ^ p->marks; changed; changed &= changed - 1) {
		int m = __builtin_ctz(changed);
		c->n_marked[m] += (is >> m & 1) ? 1 : -1u;
	}
	p->marks = is;
}

void coord_mark_all(struct coord *c)
{
	COORD_EACH_PART(c, i)
	coord_mark(c, &c->peer[i]);
}

/* ---- the state machine: look at what is known, take every step that is due ---- */

/* opened_unix_ns: as people see it, which a restart must not change. */
static void open_window(struct coord *c, uint64_t window, int64_t opened_unix_ns, struct now now)
{
	c->window = window;
	c->values = updates_take(&c->updates, c->values, window);
	c->failed_attempts = 0;
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
	c->attempt++;
	c->norms_asked = c->norms_wanted;
	c->progress_ns = now.mono_ns;
	coord_mark_all(c);
	coord_set_phase(c, COORD_GO, now);
	coord_broadcast(c, now);
}

void coord_start_close(struct coord *c, struct now now)
{
	memset(c->counted, 0, c->n_words * sizeof(*c->counted));
	COORD_EACH_PART(c, i)
	c->peer[i].has_bitmap = false;
	coord_mark_all(c);
	if (c->n_peers == 1) { /* no other node to wait for: it closes and votes in one go */
		start_go(c, now);
		return;
	}
	coord_set_phase(c, COORD_CLOSE, now);
	coord_broadcast(c, now);
}

static void step_collect(struct coord *c, struct now now)
{
	if (!c->held && coord_all(c, MARK_LEFT) && c->n_counted + c->n_voided == 0) {
		coord_end(c, ST_OK, "all ranks have left", now);
		return;
	}
	/* one that an earlier coordinator has closed: the others must follow, complete or not */
	if ((!c->held && coord_all(c, MARK_COMPLETE)) || c->n_marked[MARK_FROZEN])
		coord_start_close(c, now);
}

static void step_close(struct coord *c, struct now now)
{
	if (coord_all(c, MARK_CLOSED))
		start_go(c, now);
}

static void step_go(struct coord *c, struct now now)
{
	uint32_t i = 0;
	if (!c->n_marked[MARK_FAILED]) {
		if (coord_all(c, MARK_VOTED))
			coord_decide(c, now);
		return;
	}
	while (!(c->peer[i].marks & bit(MARK_FAILED, true)))
		i++;
	coord_fail_attempt(c, status_info(c->peer[i].last.vote_status)->text, now);
}

static void step_commit(struct coord *c, struct now now)
{
	if (!coord_all(c, MARK_AHEAD))
		return;
	c->commit.params_digest = c->peer[0].last.params_digest;
	if (coord_end_on_lost(c, now))
		return;
	COORD_EACH_PART(c, i)
	if (c->peer[i].last.params_digest != c->commit.params_digest) {
		coord_end(c, ST_CHECKSUM, "nodes disagree on the parameters (digest)", now);
		return;
	}
	if (c->commit.final) {
		coord_end(c, ST_OK,
			  c->spec->steps && c->applied_step >= c->spec->steps ? "all steps are applied"
									      : "all ranks have left",
			  now);
		return;
	}
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
	if (end_on_void(c, now) || coord_end_on_refusal(c, now))
		return;
	switch (c->phase) {
	case COORD_START:
		if (coord_all(c, MARK_STARTED)) {
			open_window(c, c->window, now.unix_ns, now);
			coord_set_running(c, now);
			coord_broadcast(c, now);
			coord_step(c, now);
		}
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
	c->have_commit = true;
	c->applied_step = c->commit.applied_step;
	c->carry = c->commit.next;
	coord_tell_outcome(c);
	coord_tell_changes(c);
	coord_set_phase(c, COORD_COMMIT, now);
	coord_broadcast(c, now);
	coord_step(c, now);
}

void coord_end(struct coord *c, enum status end, const char *reason, struct now now)
{
	if (c->phase >= COORD_ENDING)
		return;
	c->end_status = end;
	snprintf(c->end_reason, sizeof(c->end_reason), "%s", reason);
	coord_set_phase(c, COORD_ENDING, now);
	coord_set_state(c, JOB_COMPLETING, reason, now);
	c->ports.persist_end(c->ports.ctx, c->job_id, end, c->end_reason);
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

enum job_state coord_end_state(enum status end)
{
	return end == ST_OK					      ? JOB_COMPLETED
	       : end == ST_CANCELLED				      ? JOB_CANCELLED
	       : end == ST_SEGMENT_CORRUPT || end == ST_ENGINE_FAILED ? JOB_NODE_FAIL
								      : JOB_FAILED;
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
