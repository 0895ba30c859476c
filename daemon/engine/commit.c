/* SPDX-License-Identifier: Apache-2.0 */
/* Which numbers a COMMIT may carry: one rule for the coordinator, which decides them, and for the engine, which
 * applies them; gaccd also checks what users ask for with it. Pure, no state; any thread. */
#include "engine/commit.h"

#include <stddef.h>

enum { FIRST_OUTCOME = 1, APPLIED = 1, LAST_OUTCOME = 4 }; /* gacc.v1.StepOutcome */

bool commit_is_factor(double x)
{
	return x >= COMMIT_MIN && x <= COMMIT_MAX;
}

bool commit_is_limit(double x)
{
	return x == 0 || commit_is_factor(x);
}

bool commit_is_lr(double x)
{
	return x >= 0 && x <= COMMIT_MAX;
}

const char *commit_wrong_number(const struct engine_command *c, uint32_t max_micro_size)
{
	if (c->outcome < FIRST_OUTCOME || c->outcome > LAST_OUTCOME)
		return "outcome";
	if (c->next_micro_size == 0 || c->next_micro_size > max_micro_size)
		return "next_micro_size";
	if (!commit_is_factor(c->next_loss_scale))
		return "next_loss_scale";
	if (c->outcome != APPLIED)
		return NULL;
	if (!commit_is_factor(c->scale))
		return "scale";
	if (!commit_is_lr(c->lr))
		return "lr";
	return commit_is_limit(c->clip_value) ? NULL : "clip_value";
}

const char *commit_wrong_scalar(const struct engine_command *c, const struct optim_config *optim,
				const struct optim_group *group, bool own_steps)
{
	struct kernel_update u;
	if (c->outcome != APPLIED || group->frozen)
		return NULL;
	optim_step(optim, group, own_steps ? 1 : c->applied_step, c->lr, c->scale, c->clip_value, &u);
	return optim_wrong_scalar(optim, &u);
}
