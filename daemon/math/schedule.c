/* SPDX-License-Identifier: Apache-2.0 */
/* Learning-rate schedules: the factor of a step from its number. Checked at submission on the loop thread, used for
 * each step by the engine; pure. */
#include "math/optim.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#define REFUSE(...) (snprintf(why, n_why, __VA_ARGS__), ST_INVALID_SPEC)

static bool is_fraction(double x)
{
	return x >= 0 && x <= 1;
}

enum status schedule_check(const struct schedule *s, char *why, size_t n_why)
{
	if (s->type < SCHEDULE_CONSTANT || s->type > SCHEDULE_STEP)
		return REFUSE("schedule.type: %d is none of constant, linear_warmup, cosine, step", (int)s->type);
	if (s->type == SCHEDULE_CONSTANT && s->warmup_steps)
		return REFUSE("schedule.warmup_steps: %" PRIu64 " has no effect with type constant; use linear_warmup",
			      s->warmup_steps);
	if (s->type == SCHEDULE_LINEAR_WARMUP && !s->warmup_steps)
		return REFUSE("schedule.warmup_steps: must be at least 1 with type linear_warmup");
	if (!is_fraction(s->warmup_start_factor))
		return REFUSE("schedule.warmup_start_factor: %g is outside [0, 1]", s->warmup_start_factor);
	if (s->type == SCHEDULE_COSINE && s->total_steps <= s->warmup_steps)
		return REFUSE("schedule.total_steps: %" PRIu64 " must be greater than warmup_steps (%" PRIu64 ")",
			      s->total_steps, s->warmup_steps);
	if (s->type == SCHEDULE_COSINE && !is_fraction(s->min_factor))
		return REFUSE("schedule.min_factor: %g is outside [0, 1]", s->min_factor);
	if (s->type == SCHEDULE_STEP && !s->step_size)
		return REFUSE("schedule.step_size: must be at least 1 with type step");
	if (s->type == SCHEDULE_STEP && !(s->gamma > 0 && isfinite(s->gamma)))
		return REFUSE("schedule.gamma: %g must be finite and > 0", s->gamma);
	return ST_OK;
}

double schedule_factor(const struct schedule *s, uint64_t applied)
{
	if (s->type == SCHEDULE_CONSTANT)
		return 1;
	if (applied < s->warmup_steps)
		return s->warmup_start_factor +
		       (1 - s->warmup_start_factor) * (double)applied / (double)s->warmup_steps;
	uint64_t t = applied - s->warmup_steps;
	if (s->type == SCHEDULE_COSINE) {
		uint64_t period = s->total_steps - s->warmup_steps;
		if (t >= period)
			return s->min_factor;
		return s->min_factor + (1 - s->min_factor) * (1 + cos(M_PI * (double)t / (double)period)) / 2;
	}
	if (s->type == SCHEDULE_STEP) {
		uint64_t steps = t / s->step_size; /* whole ones */
		return pow(s->gamma, (double)steps);
	}
	return 1;
}
