/* What becomes of a closed window: pure numbers. */
#include "control/coordinator.h"

#include <math.h>

/* torch.nn.utils.clip_grad_norm_: multiply by min(1, max_norm / (norm + 1e-6)). */
static double clip_coefficient(double clip_norm, double norm)
{
	if (clip_norm <= 0)
		return 1;
	double k = clip_norm / (norm + 1e-6);
	return k < 1 ? k : 1;
}

void commit_decide(const struct job_spec *spec, const struct window_sums *in, uint64_t applied_before,
		   struct commit *out)
{
	out->window = in->window;
	out->applied_step = applied_before;
	out->micro_count = in->count;
	out->total_weight = in->sum_weight;
	out->mean_loss = in->sum_weight > 0 ? in->sum_loss / in->sum_weight : 0;
	out->digest = in->digest;
	out->next_micro_size = spec->micro_size;
	out->next_loss_scale = spec->loss_scale;
	out->clip_value = spec->clip_value;
	if (in->count == 0) {
		out->outcome = OUTCOME_EMPTY;
		return;
	}
	if (in->missing && spec->uneven == UNEVEN_DROP) {
		out->outcome = OUTCOME_DROPPED;
		return;
	}
	out->divisor = reduce_divisor(spec->reduction, spec->grad_of, in->sum_weight, in->count, spec->fixed_divisor);
	double unit = 1 / (out->divisor * spec->loss_scale);
	out->grad_norm = sqrt(in->sumsq) * unit;
	if (in->nonfinite || !isfinite(out->grad_norm)) {
		out->outcome = OUTCOME_SKIPPED;
		return;
	}
	out->outcome = OUTCOME_APPLIED;
	out->scale = unit * clip_coefficient(spec->clip_norm, out->grad_norm);
	out->lr = spec->optim.lr * schedule_factor(&spec->schedule, applied_before);
	out->applied_step = applied_before + 1;
}
