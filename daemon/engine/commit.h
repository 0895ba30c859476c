/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers that a COMMIT may carry.
 *
 * The coordinator checks before it makes an outcome durable, the engine before it applies one, with the same function:
 * a durable outcome that no engine accepts would stop its job for ever. Pure; any thread.
 */
#ifndef GACC_ENGINE_COMMIT_H
#define GACC_ENGINE_COMMIT_H

#include "engine/channel.h"
#include "math/optim.h"

#include <float.h>
#include <stdbool.h>

/* Engines compute in f32 and take subnormal numbers for 0 (math/kernels.h). */
#define COMMIT_MIN ((double)FLT_MIN)
#define COMMIT_MAX ((double)FLT_MAX)

/* Finite, above 0, and normal in f32. */
bool commit_is_factor(double x);
/* A factor, or 0 for "off". */
bool commit_is_limit(double x);
/* A learning rate: finite in f32 and not negative. A subnormal one moves nothing. */
bool commit_is_lr(double x);
/* NULL, or the name of the first member of the COMMIT that no engine takes. Window, term, attempt and applied_step are
 * not looked at. */
const char *commit_wrong_number(const struct engine_command *, uint32_t max_micro_size);
/* The same for the scalars that the optimizer makes of an APPLIED one for a group of parameters: learning rate times
 * lr_scale, its product with the weight decay and so on. own_steps: tensors have steps of their own, and this may be
 * the first one of some, whose scalars are the largest. Only for a command that commit_wrong_number likes. */
const char *commit_wrong_scalar(const struct engine_command *, const struct optim_config *, const struct optim_group *,
				bool own_steps);

#endif
