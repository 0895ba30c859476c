/* SPDX-License-Identifier: Apache-2.0 */
/* Turns the votes of all parts into a commit, or starts another attempt; fails an attempt that makes no progress.
 * Called from the coordinator's steps and its tick. Pure; loop thread. */
#include "control/coord_impl.h"

#include "engine/commit.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* An exchange in which no part makes progress for this long has failed. The parts themselves give up after half this
 * time, and can say why. */
#define STUCK_NS (INT64_C(20) * 1000000000)
/* For a job with one part, which exchanges nothing and reports no progress. */
#define STUCK_ALONE_NS (INT64_C(60) * 1000000000)

/* Finds when the window's last two ranks became ready: which rank made the others wait, and for how long. Pauses are
 * left out. */
static void find_last(const struct coord *c, struct commit *out, struct now now)
{
	int64_t opened = c->opened_ran_ns, end = coord_ran_ns(c, now.mono_ns), last = 0, before = 0;
	double waited = 0, open = (double)(end - opened) * c->spec->ranks;
	uint32_t n = 0;
	COORD_EACH_RANK(c, r)
	{
		const struct rank_times *at = &c->times[r];
		if (!at->ready_ns)
			continue;
		int64_t t = at->ready_ran_ns > opened ? at->ready_ran_ns : opened;
		waited += (double)(end - t);
		if (n++ == 0 || t > last) {
			before = last;
			last = t;
			out->last_rank = r;
		} else if (n == 2 || t > before) {
			before = t;
		}
	}
	out->last_lag_ns = n > 1 ? last - before : 0;
	out->wait_fraction = open > 0 ? waited / open : 0;
}

static void sum_votes(const struct coord *c, struct window_sums *s)
{
	*s = (struct window_sums){ .window = c->window };
	s->expected = (uint64_t)c->spec->ranks * c->values.micro_size;
	COORD_EACH_PART(c, i) /* in their order: the same bits on every attempt */
	{
		const struct report *r = &c->peer[i].last;
		s->count += r->count;
		s->sum_weight += r->sum_weight;
		s->sum_loss += r->sum_loss;
		s->lr = r->count ? r->lr : s->lr; /* equal on all: lr_agrees */
		s->sumsq = r->sumsq;		  /* these three are equal: votes_differ */
		s->nonfinite = r->nonfinite;
		s->digest = r->digest;
	}
	s->voided = c->n_voided;
}

static bool same_bits(double a, double b)
{
	uint64_t x, y;
	memcpy(&x, &a, sizeof(x));
	memcpy(&y, &b, sizeof(y));
	return x == y; /* also of NaN, which is not equal to itself */
}

/* Every part votes on the whole reduced gradient: all must have found the same. NULL: they have. */
static const char *votes_differ(const struct coord *c)
{
	const struct report *first = &c->peer[0].last;
	COORD_EACH_PART(c, i)
	{
		const struct report *r = &c->peer[i].last;
		if (r->digest != first->digest)
			return "the parts disagree on the reduced gradient (digest)";
		if (!same_bits(r->sumsq, first->sumsq) || r->nonfinite != first->nonfinite)
			return "the parts disagree on the norm of the reduced gradient";
	}
	return NULL;
}

/* Checks exactly-once in production: the number of bits set must be the sum of the parts' counts. */
static bool audit(const struct coord *c, uint64_t count)
{
	uint64_t bits = 0;
	for (uint32_t i = 0; i < c->n_words; i++)
		bits += (uint64_t)__builtin_popcountll(c->counted[i]);
	return bits == count;
}

/* What is only looked at must not keep a window from closing: the attempts may fail because of it. */
static void give_up_norms(struct coord *c)
{
	c->failed_norms += c->norms_asked;
	if (!c->norms_asked || c->failed_norms < 2)
		return;
	c->failed_norms = 0;
	c->norms_wanted = c->norms_asked = false;
	c->ports.norms(c->ports.ctx, NULL);
}

void coord_fail_attempt(struct coord *c, const char *why, struct now now)
{
	assert(c->phase == COORD_GO);
	snprintf(c->failure, sizeof(c->failure), "attempt %llu of window %llu failed: %s",
		 (unsigned long long)c->attempt, (unsigned long long)c->window, why);
	coord_event(c, true, "AttemptFailed", -1, c->failure);
	c->failed_attempts++;
	give_up_norms(c);
	if (!c->failing_ns)
		c->failing_ns = now.mono_ns;
	c->attempt++;
	coord_mark_all(c);
	if (c->comm.board)
		coord_comm_form(c, now);
	coord_renew_order(c);
	coord_set_phase(c, COORD_GO, now);
	coord_slots_give(c, now);
	int64_t pause = coord_pause_after(c->failed_attempts);
	c->slots.not_before_ns = now.mono_ns + pause;
	c->progress_ns = now.mono_ns + pause;
	c->sent_ns = now.mono_ns + pause - COORD_RESEND_NS; /* the next tick after the pause sends it */
}

static void fail_stuck(struct coord *c, struct now now)
{
	char why[160] = "no part has got on with it for long";
	coord_describe_comm(c, why, sizeof(why), now);
	coord_comm_late(c);
	coord_fail_attempt(c, why, now);
}

void coord_watch_attempt(struct coord *c, bool gives_up, struct now now)
{
	int64_t stuck = c->comm.board ? coord_comm_stuck_ns(c) : c->n_peers > 1 ? STUCK_NS : STUCK_ALONE_NS;
	if (*c->hindrance && now.mono_ns > c->progress_ns) /* the engine has a bound of its own: control/restarts.h */
		c->progress_ns = now.mono_ns;
	if (c->failing_ns && (c->held || *c->hindrance))
		c->failing_ns = now.mono_ns;
	if (now.mono_ns - c->progress_ns > stuck || gives_up)
		fail_stuck(c, now);
	if (!c->failing_ns)
		return;
	int64_t ns = now.mono_ns - c->failing_ns;
	if (ns >= c->spec->stall_abort_ns)
		coord_end(c, ST_ATTEMPT_FAILED, c->failure, now);
	else if (ns >= c->spec->stall_warn_ns)
		coord_set_state(c, JOB_STALLED, c->failure, now);
}

/* What the optimizer makes of the learning rate, for each group of parameters. */
static bool scalars_fit(struct coord *c, const struct engine_command *command, struct now now)
{
	char text[256], who[40] = "";
	for (uint32_t i = 0; i <= c->spec->n_groups; i++) {
		const struct optim_group g = job_spec_group(c->spec, i);
		const char *wrong =
			commit_wrong_scalar(command, &c->spec->optim, &g, c->spec->untouched == UNTOUCHED_SKIP);
		if (!wrong)
			continue;
		if (i)
			snprintf(who, sizeof(who), " of param_groups[%u]", i - 1);
		snprintf(text, sizeof(text),
			 "window %llu cannot be applied: %s%s is out of the range of f32 in step %llu (lr %g, lr_scale "
			 "%g, weight_decay %g)",
			 (unsigned long long)c->window, wrong, who, (unsigned long long)command->applied_step,
			 command->lr, g.lr_scale, g.weight_decay);
		coord_end(c, ST_INVALID_SPEC, text, now);
		return false;
	}
	return true;
}

/* An outcome that no engine would accept must not become durable: the job ends, and the reason names the number. */
static bool can_apply(struct coord *c, const struct commit *k, struct now now)
{
	struct engine_command command = { 0 };
	char text[256];
	commit_fill_command(k, &command);
	const char *number = commit_wrong_number(&command, c->spec->max_micro_size);
	if (!number)
		return scalars_fit(c, &command, now);
	snprintf(text, sizeof(text),
		 "window %llu cannot be applied: its %s is out of range (scale %g, lr %g with the schedule, clip_value "
		 "%g, next loss scale %g; engines take %g to %g)",
		 (unsigned long long)k->window, number, k->scale, k->lr, k->clip_value, k->next.scale.scale, COMMIT_MIN,
		 COMMIT_MAX);
	coord_end(c, ST_INVALID_SPEC, text, now);
	return false;
}

/* A part refuses a second learning rate for a window, but knows only its own ranks: here the parts are compared. */
static bool lr_agrees(const struct coord *c, char *text, size_t n)
{
	const struct report *first = NULL;
	COORD_EACH_PART(c, i)
	{
		const struct report *r = &c->peer[i].last;
		if (first && r->count && r->lr != first->lr) {
			snprintf(text, n, "ranks %u and %u give window %llu different learning rates: %g and %g",
				 first->lr_rank, r->lr_rank, (unsigned long long)c->window, first->lr, r->lr);
			return false;
		}
		first = first || !r->count ? first : r;
	}
	return true;
}

void coord_decide(struct coord *c, struct now now)
{
	char lr_text[160];
	struct window_sums sums;
	assert(c->phase == COORD_GO && coord_all(c, MARK_VOTED) && !c->n_marked[MARK_FAILED]);
	sum_votes(c, &sums);
	coord_comm_reached(c);
	uint64_t there = sums.count + sums.voided, missing = there < sums.expected ? sums.expected - there : 0;
	const char *differs = votes_differ(c);
	if (differs) {
		coord_fail_attempt(c, differs, now);
		return;
	}
	if (!audit(c, sums.count)) {
		coord_end(c, ST_INTERNAL, "audit: counted micro-batches and bitmap disagree", now);
		return;
	}
	if (!lr_agrees(c, lr_text, sizeof(lr_text))) {
		coord_end(c, ST_LR_MISMATCH, lr_text, now);
		return;
	}
	if (missing && c->spec->uneven == UNEVEN_ERROR && sums.count) {
		char text[256];
		coord_describe_missing(c, missing, text, sizeof(text));
		coord_end(c, ST_WINDOW_CLOSED, text, now);
		return;
	}
	struct commit k = { .job_id = c->job_id, .epoch = c->epoch, .term = c->term, .attempt = c->attempt };
	struct window_base base = { c->applied_step, c->values, c->carry };
	commit_decide(c->spec, &sums, &base, &k);
	k.params_before = c->peer[0].last.params_digest;
	k.next_micro_size = updates_at(&c->updates, c->values, c->window + 1).micro_size;
	find_last(c, &k, now);
	k.unix_nanos = now.unix_ns;
	if (!can_apply(c, &k, now))
		return;
	k.final = coord_all(c, MARK_LEFT) || (c->spec->steps && k.applied_step >= c->spec->steps);
	c->commit = k;
	if (c->norms_asked)
		c->ports.norms(c->ports.ctx, &c->commit);
	c->norms_wanted &= !c->norms_asked;
	coord_set_phase(c, COORD_PERSIST, now);
	c->ports.persist_commit(c->ports.ctx, &c->commit, c->counted, c->n_words);
}
