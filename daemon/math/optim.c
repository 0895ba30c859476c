/* SPDX-License-Identifier: Apache-2.0 */
/* The table of optimizers: which state each needs, which settings are valid, and the scalars of one step. For job
 * submission (loop thread) and for steps (the engine's main thread); pure. */
#include "math/optim.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define REFUSE(...) (snprintf(why, n_why, __VA_ARGS__), ST_INVALID_SPEC)

static int no_state(const struct optim_config *c)
{
	return 0;
}

static int sgd_state(const struct optim_config *c)
{
	return c->momentum != 0;
}

static int adam_state(const struct optim_config *c)
{
	return 2;
}

static const struct optim_info optimizers[] = {
	{ OPTIM_CLIENT, "client", no_state }, { OPTIM_SGD, "sgd", sgd_state },	  { OPTIM_ADAM, "adam", adam_state },
	{ OPTIM_ADAMW, "adamw", adam_state }, { OPTIM_LAMB, "lamb", adam_state },
};
#define N_OPTIMIZERS (sizeof(optimizers) / sizeof(optimizers[0]))

const struct optim_info *optim_info(enum optim_type type)
{
	for (size_t i = 0; i < N_OPTIMIZERS; i++)
		if (optimizers[i].type == type)
			return &optimizers[i];
	return NULL;
}

/* Finite and not negative. */
static bool is_amount(double x)
{
	return x >= 0 && isfinite(x);
}

static enum status check_sgd(const struct optim_config *c, char *why, size_t n_why)
{
	if (!is_amount(c->momentum))
		return REFUSE("optimizer.momentum: %g must be finite and >= 0", c->momentum);
	if (!isfinite(c->dampening))
		return REFUSE("optimizer.dampening: %g must be finite", c->dampening);
	if (c->nesterov && (c->momentum == 0 || c->dampening != 0))
		return REFUSE("optimizer.nesterov: needs momentum > 0 and dampening 0, not %g and %g", c->momentum,
			      c->dampening);
	return ST_OK;
}

static enum status check_adam(const struct optim_config *c, char *why, size_t n_why)
{
	if (!(c->beta1 >= 0 && c->beta1 < 1))
		return REFUSE("optimizer.beta1: %g is outside [0, 1)", c->beta1);
	if (!(c->beta2 >= 0 && c->beta2 < 1))
		return REFUSE("optimizer.beta2: %g is outside [0, 1)", c->beta2);
	if (!(c->eps >= FLT_MIN && c->eps <= FLT_MAX))
		return REFUSE("optimizer.eps: %g is outside [1.2e-38, 3.4e38], where f32 is normal", c->eps);
	return ST_OK;
}

enum status optim_check(const struct optim_config *c, char *why, size_t n_why)
{
	if (!c->type)
		return REFUSE("optimizer.type is missing: client, sgd, adam, adamw or lamb");
	if (!optim_info(c->type))
		return REFUSE("optimizer.type: %d is none of client, sgd, adam, adamw, lamb", (int)c->type);
	if (c->type == OPTIM_CLIENT)
		return ST_OK;
	if (!is_amount(c->lr))
		return REFUSE("optimizer.lr: %g must be finite and >= 0", c->lr);
	if (!is_amount(c->weight_decay))
		return REFUSE("optimizer.weight_decay: %g must be finite and >= 0", c->weight_decay);
	return c->type == OPTIM_SGD ? check_sgd(c, why, n_why) : check_adam(c, why, n_why);
}

void optim_step(const struct optim_config *c, const struct optim_group *group, uint64_t t, double step_lr, double scale,
		double clip_value, struct kernel_update *out)
{
	double lr = step_lr * group->lr_scale;
	double bias1 = 1 - pow(c->beta1, (double)t), bias2 = 1 - pow(c->beta2, (double)t);
	*out = (struct kernel_update){
		.scale = (float)scale,
		.clip_value = (float)clip_value,
		.lr = (float)lr,
		.weight_decay = c->type == OPTIM_ADAMW ? 0 : (float)group->weight_decay,
		.momentum = (float)c->momentum,
		.one_minus_dampening = (float)(1 - c->dampening),
		.nesterov = c->nesterov,
		.first = t == 1,
		.beta1 = (float)c->beta1,
		.one_minus_beta1 = (float)(1 - c->beta1),
		.beta2 = (float)c->beta2,
		.one_minus_beta2 = (float)(1 - c->beta2),
		.eps = (float)c->eps,
		.step_size = (float)(lr / bias1),
		.inv_bias2_sqrt = (float)(1 / sqrt(bias2)),
		.decay = (float)(1 - lr * group->weight_decay),
		.inv_bias1 = (float)(1 / bias1),
	};
}

const char *optim_wrong_scalar(const struct optim_config *c, const struct kernel_update *u)
{
	const bool sgd = c->type == OPTIM_SGD, lamb = c->type == OPTIM_LAMB;
	const bool adam = c->type == OPTIM_ADAM || c->type == OPTIM_ADAMW;
	const struct {
		const char *name;
		bool used;
		float value;
	} scalars[] = {
		{ "lr", sgd || lamb, u->lr },
		{ "weight_decay", sgd || lamb || adam, u->weight_decay },
		{ "momentum", sgd, u->momentum },
		{ "1 - dampening", sgd, u->one_minus_dampening },
		{ "lr / (1 - beta1^t)", adam, u->step_size },
		{ "1 - lr * weight_decay", c->type == OPTIM_ADAMW, u->decay },
		{ "1 / (1 - beta1^t)", lamb, u->inv_bias1 },
		{ "1 / sqrt(1 - beta2^t)", lamb || adam, u->inv_bias2_sqrt },
	};
	for (size_t i = 0; i < sizeof(scalars) / sizeof(scalars[0]); i++)
		if (scalars[i].used && !isfinite(scalars[i].value))
			return scalars[i].name;
	return NULL;
}

double optim_trust_ratio(const struct optim_group *group, double param_sumsq, double direction_sumsq)
{
	double ratio = sqrt(param_sumsq) / sqrt(direction_sumsq);
	return group->weight_decay != 0 && ratio > 0 && isfinite(ratio) ? ratio : 1;
}

void optim_apply(const struct kernels *k, const struct optim_config *c, const struct kernel_params *params,
		 const void *g, enum dtype acc_dtype, size_t n, const struct kernel_update *u,
		 const struct kernel_undo *undo, const struct kernel_partials *out)
{
	if (c->type == OPTIM_SGD)
		k->sgd(params, g, acc_dtype, n, u, undo, out);
	else if (c->type == OPTIM_ADAM)
		k->adam(params, g, acc_dtype, n, u, undo, out);
	else if (c->type == OPTIM_ADAMW)
		k->adamw(params, g, acc_dtype, n, u, undo, out);
	else if (c->type == OPTIM_LAMB)
		k->lamb(params, g, acc_dtype, n, u, undo, out);
}

double reduce_coefficient(enum reduction reduction, enum grad_of of, double w)
{
	if (reduction == REDUCE_WEIGHTED_MEAN || reduction == REDUCE_SUM)
		return of == GRAD_OF_SUM ? 1 : w;
	if (reduction == REDUCE_MEAN)
		return of == GRAD_OF_SUM ? 1 / w : 1;
	return 1;
}

double reduce_divisor(enum reduction reduction, enum grad_of of, double sum_weight, uint64_t count, double fixed)
{
	switch (reduction) {
	case REDUCE_WEIGHTED_MEAN:
		return sum_weight;
	case REDUCE_MEAN:
		return (double)count;
	case REDUCE_FIXED:
		return fixed;
	default:
		return 1;
	}
}
