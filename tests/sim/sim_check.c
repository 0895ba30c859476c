/* SPDX-License-Identifier: Apache-2.0 */
/* The invariants of docs/protocol.md, looked at after every event. */
#include "sim.h"

#include <string.h>

static bool bit(const struct sim *s, const uint64_t *map, uint32_t rank, uint32_t micro)
{
	return control_bit(map, s->spec.max_micro_size, rank, micro);
}

/* I5, I8: the accumulator is the multiset of its bitmap, every payload whole and its own. */
static void check_accumulator(struct sim *s)
{
	uint32_t seen[SIM_MAX_RANKS][SIM_MAX_MICRO] = { { 0 } };
	for (uint32_t i = 0; i < s->n_acc; i++) {
		const struct tag *t = s->acc[i].piece;
		if (t->window != s->d.r.window || t->rank >= s->spec.ranks || t->micro >= s->d.r.micro_size)
			sim_fail(s, "I6: contribution of window %llu rank %u micro %u in window %llu",
				 (unsigned long long)t->window, t->rank, t->micro, (unsigned long long)s->d.r.window);
		else
			seen[t->rank][t->micro]++;
		for (uint32_t k = 1; k < SIM_PIECES; k++)
			if (memcmp(t, &t[k], sizeof(*t)))
				sim_fail(s, "I8: torn payload of rank %u micro %u: piece %u is of process %u, micro %u",
					 t->rank, t->micro, k, t[k].proc, t[k].micro);
	}
	for (uint32_t r = 0; r < s->spec.ranks; r++)
		for (uint32_t m = 0; m < SIM_MAX_MICRO; m++)
			if (seen[r][m] != bit(s, s->d.counted, r, m))
				sim_fail(s, "I5: rank %u micro %u is %u times in the accumulator, its bit is %d", r, m,
					 seen[r][m], bit(s, s->d.counted, r, m));
}

static const struct store_window *stored(const struct sim *s, uint64_t window)
{
	for (uint32_t i = 0; i < s->n_windows; i++)
		if (s->window[i].commit.window == window)
			return &s->window[i];
	return NULL;
}

/* I4: what a trainer was told is, and stays, so. */
static void check_told(struct sim *s)
{
	for (uint32_t i = s->n_settled; i < s->n_told; i++) {
		const struct store_window *w = stored(s, s->told_push[i].window);
		bool open = s->told_push[i].window == s->d.r.window;
		const uint64_t *map = w ? w->counted : open ? s->d.counted : NULL;
		bool in = map && bit(s, map, s->told_push[i].rank, s->told_push[i].micro);
		bool should = s->told_push[i].result >= 1 && s->told_push[i].result <= 3;
		bool may_come = s->told_push[i].result == 100 && open && s->d.r.phase == WINDOW_OPEN;
		if (w && i == s->n_settled) /* the log stays as it is */
			s->n_settled++;
		if (should != in && !may_come)
			sim_fail(s, "I4: rank %u micro %u of window %llu was told %u and is %s", s->told_push[i].rank,
				 s->told_push[i].micro, (unsigned long long)s->told_push[i].window,
				 s->told_push[i].result, in ? "in" : "not in");
	}
}

/* I7: nothing goes back. */
static void check_monotone(struct sim *s)
{
	if (s->d.r.window < s->max_window)
		sim_fail(s, "I7: window went from %llu to %llu", (unsigned long long)s->max_window,
			 (unsigned long long)s->d.r.window);
	s->max_window = s->d.r.window;
	for (uint32_t r = 0; r < s->spec.ranks; r++) {
		if (s->d.rank[r].sgen < s->max_sgen[r])
			sim_fail(s, "I7: session generation of rank %u went back", r);
		s->max_sgen[r] = s->d.rank[r].sgen;
	}
}

/* I13: what a job counts beside its bitmaps is what the bitmaps say. */
static void check_counts(struct sim *s)
{
	char why[200];
	if (s->job && job_counts_wrong(s->job, why, sizeof(why)))
		sim_fail(s, "I13: %s", why);
}

void sim_check(struct sim *s)
{
	check_counts(s);
	if (!s->durable)
		return;
	check_accumulator(s);
	check_told(s);
	check_monotone(s);
	sim_check_boxes(s);
}

/* I1, I2, I3: what the engine applies now is durable, is this window, and holds what its bitmap says. */
void sim_check_apply(struct sim *s, const struct commit *k)
{
	if (s->d.r.params_nonfinite)
		sim_fail(s, "I17: window %llu is applied to parameters that are lost", (unsigned long long)k->window);
	const struct store_window *w = stored(s, k->window);
	if (!w || w->commit.term != k->term || w->commit.attempt != k->attempt || w->commit.outcome != k->outcome) {
		sim_fail(s, "I3: window %llu is applied without its durable commit", (unsigned long long)k->window);
		return;
	}
	if (s->n_applied && s->applied[s->n_applied - 1].window + 1 != k->window)
		sim_fail(s, "I2: window %llu applied after %llu", (unsigned long long)k->window,
			 (unsigned long long)s->applied[s->n_applied - 1].window);
	if (memcmp(w->counted, s->d.counted, s->d.n_words * 8))
		sim_fail(s, "I1: the commit's bitmap of window %llu is not what the engine holds",
			 (unsigned long long)k->window);
	if (w->commit.micro_count != s->n_acc)
		sim_fail(s, "I1: commit of window %llu counts %llu micro-batches, the engine holds %u",
			 (unsigned long long)k->window, (unsigned long long)w->commit.micro_count, s->n_acc);
}

/* What holds in this window, by the log alone. */
static struct values values_in(const struct sim *s, uint64_t window)
{
	struct values v = values_of(&s->spec);
	for (uint64_t w = 0; w <= window; w++)
		for (uint32_t i = 0; i < s->n_updates; i++)
			if (s->update[i].window == w)
				update_apply(&v, &s->update[i]);
	return v;
}

/* I10: each window has exactly the values that the updates before it in the log say, and the learning rate that its
 * pushes gave. */
static void check_values(struct sim *s, const struct commit *k)
{
	double given = sim_lr_of(s, k->window);
	struct values v = values_in(s, k->window), next = values_in(s, k->window + 1);
	if (k->outcome == OUTCOME_APPLIED)
		v.lr *= schedule_factor(&s->spec.schedule, k->applied_step - 1);
	if (k->micro_size != v.micro_size || k->next_micro_size != next.micro_size || k->clip_value != v.clip_value ||
	    (k->outcome == OUTCOME_APPLIED && k->lr != (given > 0 ? given : v.lr)))
		sim_fail(s, "I10: window %llu has micro_size %u (next %u), lr %g, clip_value %g, not %u (%u), %g, %g",
			 (unsigned long long)k->window, k->micro_size, k->next_micro_size, k->lr, k->clip_value,
			 v.micro_size, next.micro_size, given > 0 ? given : v.lr, v.clip_value);
}

/* I12: loss scale and skips are those of one process that reads the log in order. */
static void check_serial(struct sim *s, const struct commit *k)
{
	const struct loss_scale_rules *r = &s->spec.dynamic_loss_scale;
	const struct outlier_skip *o = &s->spec.outlier_skip;
	bool voids = k->next.counters.rejected_micros != s->serial.rejected, applied = k->outcome == OUTCOME_APPLIED;
	double mean = s->serial.weight > 0 ? s->serial.sum / s->serial.weight : 0;
	bool outlier =
		o->factor > 0 && s->serial.steps >= o->warmup_steps && k->grad_norm > o->factor * mean && mean > 0;
	if (k->loss_scale != s->serial.scale)
		sim_fail(s, "I12: window %llu has loss scale %g, not %g", (unsigned long long)k->window, k->loss_scale,
			 s->serial.scale);
	if ((applied && outlier) || (k->skip_reason == SKIP_OUTLIER && !outlier))
		sim_fail(s, "I12: window %llu, norm %g, mean %g: outcome %u", (unsigned long long)k->window,
			 k->grad_norm, mean, k->outcome);
	if (applied) {
		s->serial.sum = s->serial.sum * o->decay + k->grad_norm;
		s->serial.weight = s->serial.weight * o->decay + 1;
		s->serial.steps++;
		s->serial.refused = 0;
	} else if (k->skip_reason == SKIP_OUTLIER && ++s->serial.refused == o->warmup_steps) {
		s->serial.sum = s->serial.weight = 0;
		s->serial.steps = s->serial.refused = 0;
	}
	s->serial.rejected = k->next.counters.rejected_micros;
	if (!r->enabled)
		return;
	if (voids || k->skip_reason == SKIP_NONFINITE) {
		s->serial.good = 0;
		s->serial.allowance -= s->serial.allowance > 0;
		if (!s->serial.allowance && s->serial.scale * r->backoff_factor >= r->min)
			s->serial.scale *= r->backoff_factor;
	} else if (applied && ++s->serial.good == r->growth_interval) {
		s->serial.good = 0;
		s->serial.allowance = r->hysteresis;
		if (s->serial.scale * r->growth_factor <= r->max)
			s->serial.scale *= r->growth_factor;
	}
}

uint64_t sim_count_void(const struct sim *s)
{
	uint64_t n = 0;
	for (uint32_t w = 0; w < s->d.n_words; w++)
		n += (uint64_t)__builtin_popcountll(s->d.voided[w]);
	return n;
}

/* Fewer than all micro-batches are settled in the engine's window. */
static bool is_short(const struct sim *s)
{
	return s->n_acc + sim_count_void(s) < (uint64_t)s->spec.ranks * s->d.r.micro_size;
}

/* I15: `uneven` and `nonfinite` are judged by all that the engine has counted and refused. */
static void check_policies(struct sim *s, const struct commit *k)
{
	uint64_t voids = sim_count_void(s);
	bool drops = s->n_acc && is_short(s) && s->spec.uneven == UNEVEN_DROP;
	if (s->d.r.window != k->window)
		sim_fail(s, "I3: window %llu commits while the engine is in %llu", (unsigned long long)k->window,
			 (unsigned long long)s->d.r.window);
	if (k->next.counters.rejected_micros != s->n_void + voids)
		sim_fail(s, "I14: the commit of window %llu knows of %llu refused micro-batches, there are %llu",
			 (unsigned long long)k->window, (unsigned long long)k->next.counters.rejected_micros,
			 (unsigned long long)(s->n_void + voids));
	if ((k->outcome == OUTCOME_DROPPED) != drops)
		sim_fail(s, "I15: window %llu has outcome %u with %u counted and %llu refused",
			 (unsigned long long)k->window, k->outcome, s->n_acc, (unsigned long long)voids);
	if (s->spec.uneven == UNEVEN_ERROR && s->n_acc && is_short(s))
		sim_fail(s, "I15: window %llu is short and commits (uneven: error)", (unsigned long long)k->window);
	if (s->spec.nonfinite == NONFINITE_ERROR && voids)
		sim_fail(s, "I15: window %llu has refused micro-batches and commits (nonfinite: error)",
			 (unsigned long long)k->window);
}

/* I14: an acknowledged micro-batch is in a commit, in the open window, or announced as void; and a job completes only
 * when its open window is empty. A job that fails says what it failed of. */
void sim_check_end(struct sim *s, enum status st, const char *reason)
{
	uint64_t voids = sim_count_void(s);
	switch (st) {
	case ST_OK:
		if (s->d.r.params_nonfinite)
			sim_fail(s, "I17: the job is complete (%s), and its parameters are lost", reason);
		if (s->n_applied != s->n_windows || s->n_acc || voids)
			sim_fail(s,
				 "I14: the job is complete (%s) with %u counted and %llu refused micro-batches in "
				 "window %llu",
				 reason, s->n_acc, (unsigned long long)voids, (unsigned long long)s->d.r.window);
		break;
	case ST_WINDOW_CLOSED:
		if (s->spec.uneven != UNEVEN_ERROR || !s->n_acc || !is_short(s))
			sim_fail(s, "I15: the job ends: %s", reason);
		break;
	case ST_NONFINITE:
		if (!s->d.r.params_nonfinite && (s->spec.nonfinite != NONFINITE_ERROR || !voids))
			sim_fail(s, "I15: the job ends: %s", reason);
		break;
	case ST_INVALID_SPEC: /* the decision has a number that no engine takes */
		if (!s->extreme)
			sim_fail(s, "the job ends: %s", reason);
		break;
	case ST_STALLED:
	case ST_ATTEMPT_FAILED: /* parts wait for ranks that are not there to acknowledge a step */
		if (!s->deserted || s->faults)
			sim_fail(s, "the job ends: %s", reason);
		break;
	default:
		sim_fail(s, "the job ends with %s: %s", status_info(st)->name, reason);
	}
}

void sim_check_commit(struct sim *s, const struct commit *k)
{
	check_policies(s, k);
	if (s->held && k->window > s->held_bound && s->held_bound != UINT64_MAX)
		sim_fail(s, "I11: window %llu commits while the job is paused since window %llu",
			 (unsigned long long)k->window, (unsigned long long)s->held_bound);
	check_values(s, k);
	check_serial(s, k);
}

void sim_check_update(struct sim *s, const struct update *u)
{
	if (u->window <= s->n_windows)
		sim_fail(s, "I10: an update is for window %llu, whose size was decided by window %u's commit",
			 (unsigned long long)u->window, s->n_windows - 1);
}

void sim_check_put(struct sim *s, const struct reply *r)
{
	switch (r->status) {
	case ST_OK:
	case ST_SESSION_FENCED:
	case ST_SESSION_UNKNOWN:
	case ST_ENGINE_DOWN:
	case ST_JOB_ENDED:
	case ST_NO_MEMORY:
	case ST_BAD_SLOT: /* before it has mapped its slots */
	case ST_SLOT_BUSY:
		return;
	default:
		if (job_record(s->job))
			sim_fail(s, "a rank of part %u gives parameters, and is told %s: %s", s->part.number,
				 status_info(r->status)->name, r->text);
	}
}
