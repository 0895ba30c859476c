/* SPDX-License-Identifier: Apache-2.0 */
/* Adapts the loss scale from one window to the next. For decide.c, which keeps the state in the commits.
 * Pure, no state; any thread. */
#include "control/loss_scale.h"

struct loss_scale loss_scale_first(const struct loss_scale_rules *r, double scale)
{
	return (struct loss_scale){ .scale = scale, .allowance = r->hysteresis };
}

static struct loss_scale shrink(const struct loss_scale_rules *r, struct loss_scale s)
{
	s.good = 0;
	if (s.allowance)
		s.allowance--;
	if (s.allowance == 0) { /* every further one shrinks it, too, until it has grown */
		s.scale *= r->backoff_factor;
		s.scale = s.scale < r->min ? r->min : s.scale;
	}
	return s;
}

static struct loss_scale grow(const struct loss_scale_rules *r, struct loss_scale s)
{
	if (++s.good < r->growth_interval)
		return s;
	s.good = 0;
	s.allowance = r->hysteresis;
	s.scale *= r->growth_factor;
	s.scale = s.scale > r->max ? r->max : s.scale;
	return s;
}

struct loss_scale loss_scale_next(const struct loss_scale_rules *r, struct loss_scale s, enum window_finite w)
{
	if (!r->enabled || w == WINDOW_NO_SIGN)
		return s;
	return w == WINDOW_FINITE ? grow(r, s) : shrink(r, s);
}
