/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers and learning-rate schedules as numbers: one row per optimizer, scalars of one step in f64.
 *
 * Formulas are those of torch.optim 2.13 (SGD, Adam, AdamW; amsgrad, maximize and foreach left out):
 *   SGD    g += wd*p; b = first ? g : momentum*b + (1-dampening)*g; d = nesterov ? g + momentum*b : b (or g
 *          without momentum); p -= lr*d
 *   Adam   g += wd*p; m += (1-beta1)*(g-m); v = beta2*v + (1-beta2)*g*g;
 *          p -= (lr/(1-beta1^t)) * m / (sqrt(v)/sqrt(1-beta2^t) + eps)
 *   AdamW  p *= 1 - lr*wd; then Adam with wd = 0
 * and that of apex.optimizers.FusedLAMB with its defaults (adam_w_mode, bias_correction, grad_averaging, no nvlamb),
 * which is LAMB of You et al. (arXiv 1904.00962v5, algorithm 2) with Adam's bias correction, per tensor: LAMB   m, v as
 * Adam with wd = 0; d = (m/(1-beta1^t)) / (sqrt(v)/sqrt(1-beta2^t) + eps) + wd*p; p -= lr * trust * d, trust = |p|/|d|,
 * or 1 where a norm is 0 or wd is 0 t is the number of applied steps, this one included. Schedules are functions of the
 * applied steps before this one.
 */
#ifndef GACC_MATH_OPTIM_H
#define GACC_MATH_OPTIM_H

#include "math/kernels.h"
#include "proto/status.h"

/* Numbers are those of gacc.v1.OptimizerType. */
enum optim_type { OPTIM_CLIENT = 1, OPTIM_SGD = 2, OPTIM_ADAM = 3, OPTIM_ADAMW = 4, OPTIM_LAMB = 5 };

struct optim_config {
	enum optim_type type;
	double lr, momentum, dampening, weight_decay, beta1, beta2, eps;
	bool nesterov;
};

struct optim_info {
	enum optim_type type;
	const char *name;			     /* "sgd" */
	int (*n_state)(const struct optim_config *); /* state tensors per parameter: 0, 1 (m), 2 (m, v) */
};
const struct optim_info *optim_info(enum optim_type type); /* NULL: unknown */

/* Checks ranges as PyTorch does (lr >= 0, 0 <= beta < 1, nesterov needs momentum and no dampening, ...); all values
 * must be finite; Adam, AdamW and LAMB need an eps that is no subnormal f32. On ST_INVALID_SPEC `why` names the field,
 * its value and the range. */
enum status optim_check(const struct optim_config *, char *why, size_t n_why);

/* A parameter group as the kernels need it. */
struct optim_group {
	double lr_scale; /* 1 without a group */
	double weight_decay;
	bool frozen; /* the caller leaves its ranges out of updates */
};

/* Scalars of applied step t >= 1 for one group: step_lr is the schedule's learning rate, scale and clip_value as in
 * kernel_update. Computed in f64, rounded once to f32. */
void optim_step(const struct optim_config *, const struct optim_group *, uint64_t t, double step_lr, double scale,
		double clip_value, struct kernel_update *out);

/* The first of the scalars that this optimizer uses and that f32 cannot hold, or NULL: with it every update would give
 * inf or NaN. */
const char *optim_wrong_scalar(const struct optim_config *, const struct kernel_update *);

/* LAMB: |p| / |d| of a tensor from sums of squares; 1 without weight decay, or where a norm is 0 or not finite. The
 * second phase takes scalars whose lr is multiplied by it. */
double optim_trust_ratio(const struct optim_group *, double param_sumsq, double direction_sumsq);

/* Runs the optimizer's kernel, LAMB's second phase; CLIENT has none and nothing happens. */
void optim_apply(const struct kernels *, const struct optim_config *, const struct kernel_params *, const void *g,
		 enum dtype acc_dtype, size_t n, const struct kernel_update *, const struct kernel_undo *,
		 const struct kernel_partials *out);

/* Numbers are those of gacc.v1.ScheduleType. */
enum schedule_type { SCHEDULE_CONSTANT = 1, SCHEDULE_LINEAR_WARMUP = 2, SCHEDULE_COSINE = 3, SCHEDULE_STEP = 4 };
struct schedule {
	enum schedule_type type;
	uint64_t warmup_steps, total_steps, step_size;
	double min_factor, gamma, warmup_start_factor;
};
enum status schedule_check(const struct schedule *, char *why, size_t n_why);
/* Factor for the step that follows `applied` applied steps: PyTorch's LinearLR during the warm-up, then the closed form
 * of CosineAnnealingLR (held at min_factor after total_steps) or StepLR, counted from the end of the warm-up. */
double schedule_factor(const struct schedule *, uint64_t applied);

/* Numbers are those of gacc.v1.Reduction and GradOf. */
enum reduction { REDUCE_WEIGHTED_MEAN = 1, REDUCE_MEAN = 2, REDUCE_SUM = 3, REDUCE_FIXED = 4 };
enum grad_of { GRAD_OF_MEAN = 1, GRAD_OF_SUM = 2 };
/* Coefficient of one micro-batch of weight w, and divisor of the window; docs/gradient.md, section 2, has the table. */
double reduce_coefficient(enum reduction, enum grad_of, double w);
double reduce_divisor(enum reduction, enum grad_of, double sum_weight, uint64_t count, double fixed);

#endif
