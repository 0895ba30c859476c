/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the outcome of a closed window from the sums of its parts: divisor, norm, clipping, outliers, learning
 * rate, loss scale. For coord_decide.c. Pure, no state. */
#include "control/decide.h"

#include "engine/commit.h"

#include <math.h>

/* torch.nn.utils.clip_grad_norm_: multiply by min(1, max_norm / (norm + 1e-6)). */
static double clip_coefficient(double clip_norm, double norm)
{
	if (clip_norm <= 0)
		return 1;
	double k = clip_norm / (norm + 1e-6);
	return k < 1 ? k : 1;
}

struct carry carry_first(const struct job_spec *spec)
{
	return (struct carry){ .scale = loss_scale_first(&spec->dynamic_loss_scale, spec->loss_scale) };
}

/* ---- the usual norm: sum of d^k norm over sum of d^k, k counting applied steps back; no step is favoured at the start
 * ---- */

static double usual_norm(const struct norm_mean *m)
{
	return m->weight > 0 ? m->sum / m->weight : 0;
}

static bool is_outlier(const struct outlier_skip *o, const struct norm_mean *m, double norm)
{
	double usual = usual_norm(m);
	return o->factor > 0 && m->steps >= o->warmup_steps && usual > 0 && norm > o->factor * usual;
}

static void take_norm(const struct outlier_skip *o, struct norm_mean *m, double norm)
{
	m->sum = o->decay * m->sum + norm;
	m->weight = o->decay * m->weight + 1;
	m->steps += m->steps < UINT32_MAX;
	m->refused = 0;
}

/* After as many refused norms in a row as a mean needs, they are no outliers: the usual norm has changed, and is
 * measured anew. */
static void refuse_norm(const struct outlier_skip *o, struct norm_mean *m)
{
	if (++m->refused >= o->warmup_steps)
		*m = (struct norm_mean){ 0 };
}

/* ---- the outcome ---- */

static double unit(const struct commit *k)
{
	return 1 / (k->divisor * k->loss_scale);
}

/* What the update reads is in range: the gradient in f32, and its square where the optimizer keeps one. No element
 * exceeds the norm, or clip_value. An element beyond the limit would be inf, or would make v inf, and its parameter
 * would never move again. */
static bool is_representable(const struct job_spec *spec, const struct window_base *base, double norm)
{
	const struct optim_info *o = optim_info(spec->optim.type);
	double limit = o && o->n_state(&spec->optim) == 2 ? sqrt(COMMIT_MAX) : COMMIT_MAX,
	       value = base->values.clip_value;
	return norm <= limit || (value > 0 && value <= limit);
}

static enum outcome judge(const struct job_spec *spec, const struct window_sums *in, const struct window_base *base,
			  struct commit *out)
{
	if (in->count == 0)
		return OUTCOME_EMPTY;
	out->divisor = reduce_divisor(spec->reduction, spec->grad_of, in->sum_weight, in->count, spec->fixed_divisor);
	out->grad_norm = sqrt(in->sumsq) * unit(out);
	if (in->count + in->voided < in->expected && spec->uneven == UNEVEN_DROP)
		return OUTCOME_DROPPED;
	double clip = clip_coefficient(base->values.clip_norm, out->grad_norm), scale = unit(out) * clip;
	if (in->nonfinite || !isfinite(out->grad_norm) || !commit_is_factor(scale) ||
	    !is_representable(spec, base, out->grad_norm * clip))
		out->skip_reason = SKIP_NONFINITE;
	else if (is_outlier(&spec->outlier_skip, &base->carry.norms, out->grad_norm))
		out->skip_reason = SKIP_OUTLIER;
	if (out->skip_reason)
		return OUTCOME_SKIPPED;
	out->scale = scale;
	return OUTCOME_APPLIED;
}

/* A micro-batch that was refused as non-finite (reject_micro) speaks against the scale like a skipped window. */
static enum window_finite sign_of(const struct window_sums *in, const struct commit *k)
{
	if (in->voided || k->skip_reason == SKIP_NONFINITE)
		return WINDOW_NOT_FINITE;
	return k->outcome == OUTCOME_APPLIED ? WINDOW_FINITE : WINDOW_NO_SIGN;
}

static void count(const struct window_sums *in, const struct commit *k, struct counters *c)
{
	bool applied = k->outcome == OUTCOME_APPLIED;
	c->applied += applied;
	c->partial += applied && in->count < in->expected;
	c->skipped_nonfinite += k->skip_reason == SKIP_NONFINITE;
	c->skipped_outlier += k->skip_reason == SKIP_OUTLIER;
	c->dropped += k->outcome == OUTCOME_DROPPED;
	c->empty += k->outcome == OUTCOME_EMPTY;
	c->rejected_micros += in->voided;
}

void commit_decide(const struct job_spec *spec, const struct window_sums *in, const struct window_base *base,
		   struct commit *out)
{
	const struct values *v = &base->values;
	out->window = in->window;
	out->applied_step = base->applied_step;
	out->micro_count = in->count;
	out->micro_size = v->micro_size;
	out->total_weight = in->sum_weight;
	out->mean_loss = in->sum_weight > 0 ? in->sum_loss / in->sum_weight : 0;
	out->digest = in->digest;
	out->clip_value = v->clip_value;
	out->loss_scale = base->carry.scale.scale;
	out->usual_norm = usual_norm(&base->carry.norms);
	out->next = base->carry;
	out->outcome = judge(spec, in, base, out);
	if (out->outcome == OUTCOME_APPLIED) {
		out->lr = in->lr > 0 ? in->lr : v->lr * schedule_factor(&spec->schedule, base->applied_step);
		out->applied_step++;
		take_norm(&spec->outlier_skip, &out->next.norms, out->grad_norm);
	}
	if (out->skip_reason == SKIP_OUTLIER)
		refuse_norm(&spec->outlier_skip, &out->next.norms);
	out->next.scale = loss_scale_next(&spec->dynamic_loss_scale, base->carry.scale, sign_of(in, out));
	count(in, out, &out->next.counters);
}

void commit_fill_command(const struct commit *k, struct engine_command *c)
{
	c->applied_step = k->applied_step;
	c->outcome = k->outcome;
	c->next_micro_size = k->next_micro_size;
	c->scale = k->scale;
	c->clip_value = k->clip_value;
	c->lr = k->lr;
	c->next_loss_scale = k->next.scale.scale;
	c->result = (struct step_result){ .total_weight = k->total_weight,
					  .divisor = k->divisor,
					  .grad_norm = k->grad_norm,
					  .mean_loss = k->mean_loss,
					  .micro_count = k->micro_count,
					  .last_lag_ns = k->last_lag_ns,
					  .last_rank = k->last_rank,
					  .skip_reason = k->skip_reason,
					  .final = k->final };
}
