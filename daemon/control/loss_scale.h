/* SPDX-License-Identifier: Apache-2.0 */
/* The loss scale that the daemon adapts: pure numbers, one step for each window.
 *
 * As torch.amp.GradScaler (growth_*, backoff_*, the scale starts anew counting after each change) with the hysteresis
 * of Megatron-LM's DynamicGradScaler: a window whose gradients are not finite uses up one of `hysteresis`, and shrinks
 * the scale when none is left; growth fills it again. Scales stay in [min, max]. docs/gradient.md has the rule.
 */
#ifndef GACC_CONTROL_LOSS_SCALE_H
#define GACC_CONTROL_LOSS_SCALE_H

#include <stdbool.h>
#include <stdint.h>

struct loss_scale_rules {
	bool enabled;
	double growth_factor, backoff_factor;
	uint32_t growth_interval, hysteresis;
	double min, max;
};

/* Travels with the commits. */
struct loss_scale {
	double scale;	    /* of the window that is open, or opens next */
	uint32_t good;	    /* applied windows in a row since the scale grew or one was not finite */
	uint32_t allowance; /* windows that are not finite until the scale shrinks */
};

enum window_finite {
	WINDOW_NO_SIGN = 0, /* says nothing of the scale: empty, dropped, an outlier */
	WINDOW_FINITE,	    /* applied, every micro-batch was finite */
	WINDOW_NOT_FINITE
};

struct loss_scale loss_scale_first(const struct loss_scale_rules *, double scale);
/* The state for the next window. */
struct loss_scale loss_scale_next(const struct loss_scale_rules *, struct loss_scale, enum window_finite);

#endif
