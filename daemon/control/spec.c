/* SPDX-License-Identifier: Apache-2.0 */
/* Fills in the defaults of a job's specification and checks every field, for runtime/spec_message.c when one is
 * submitted or read back. Pure, no state; any thread. */
#include "control/spec.h"

#include "control/messages.h"
#include "control/spec_nodes.h"
#include "engine/commit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STALL_WARN_NS (INT64_C(60) * 1000000000)
#define STALL_ABORT_NS (INT64_C(600) * 1000000000)
#define ABANDONED_NS (INT64_C(600) * 1000000000)
#define GRACE_NS (INT64_C(10) * 1000000000)

static void fill_scale_and_outliers(struct job_spec *s)
{
	struct loss_scale_rules *r = &s->dynamic_loss_scale;
	if (s->loss_scale == 0)
		s->loss_scale = 1;
	if (r->growth_factor == 0)
		r->growth_factor = 2;
	if (r->backoff_factor == 0)
		r->backoff_factor = 0.5;
	if (!r->growth_interval)
		r->growth_interval = 2000;
	if (!r->hysteresis)
		r->hysteresis = 1;
	if (r->min == 0)
		r->min = 1;
	if (r->max == 0)
		r->max = 1 << 24;
	if (s->outlier_skip.decay == 0)
		s->outlier_skip.decay = 0.99;
	if (!s->outlier_skip.warmup_steps)
		s->outlier_skip.warmup_steps = 20;
}

static void fill_defaults(struct job_spec *s)
{
	fill_scale_and_outliers(s);
	if (!s->reduction)
		s->reduction = REDUCE_WEIGHTED_MEAN;
	if (!s->grad_of)
		s->grad_of = GRAD_OF_MEAN;
	if (!s->uneven)
		s->uneven = UNEVEN_FLUSH;
	if (!s->accumulate)
		s->accumulate = ACCUMULATE_SUM;
	if (!s->untouched)
		s->untouched = UNTOUCHED_ZERO;
	if (!s->device)
		s->device = DEVICE_HOST;
	if (!s->slots_on)
		s->slots_on = SLOTS_ON_HOST;
	if (!s->accumulate_dtype)
		s->accumulate_dtype = DTYPE_F32;
	if (!s->nonfinite)
		s->nonfinite = NONFINITE_SKIP_STEP;
	if (!s->schedule.type)
		s->schedule.type = SCHEDULE_CONSTANT;
	if (!s->ordering)
		s->ordering = ORDER_CANONICAL;
	if (!s->sharding)
		s->sharding = SHARDING_NONE;
	if (!s->slots_per_rank)
		s->slots_per_rank = 2;
	char why[8];
	const uint32_t n_nodes = s->nodes ? spec_nodes_count(s->nodes, why, sizeof(why)) : 0;
	if (!s->parts)
		s->parts = n_nodes ? n_nodes : 1;
	if (!s->max_micro_size && s->accumulate == ACCUMULATE_NONE)
		s->max_micro_size = s->micro_size;
	if (!s->max_micro_size)
		s->max_micro_size = s->micro_size > 64 ? s->micro_size : 64;
	if (!s->stall_warn_ns)
		s->stall_warn_ns = STALL_WARN_NS;
	if (!s->stall_abort_ns)
		s->stall_abort_ns = STALL_ABORT_NS;
	if (!s->abandoned_ns)
		s->abandoned_ns = ABANDONED_NS;
	if (!s->launch_mode)
		s->launch_mode = LAUNCH_EXTERNAL;
	if (!s->launch.grace_ns)
		s->launch.grace_ns = GRACE_NS;
}

/* One check a line: the field, the condition that must hold, and the sentence when it does not. */
#define CHECK(name, ok, ...)                                                                                           \
	do {                                                                                                           \
		if (!(ok)) {                                                                                           \
			*field = (name);                                                                               \
			snprintf(why, n_why, __VA_ARGS__);                                                             \
			return ST_INVALID_SPEC;                                                                        \
		}                                                                                                      \
	} while (0)

static enum status check_window(struct job_spec *s, const char **field, char *why, size_t n_why)
{
	CHECK("name", s->name[0], "name is empty: give the job a name");
	CHECK("ranks", s->ranks >= 1 && s->ranks <= SPEC_MAX_RANKS, "ranks is %u, must be 1..%d", s->ranks,
	      SPEC_MAX_RANKS);
	CHECK("parts", s->parts >= 1 && s->parts <= SPEC_MAX_PARTS && s->parts <= s->ranks,
	      "parts is %u, must be 1..%d, and not more than ranks (%u)", s->parts, SPEC_MAX_PARTS, s->ranks);
	if (spec_nodes_check(s, why, n_why)) {
		*field = "nodes";
		return ST_INVALID_SPEC;
	}
	CHECK("micro_size", s->micro_size >= 1 && s->micro_size <= SPEC_MAX_MICRO_SIZE,
	      "micro_size is %u, must be 1..%d", s->micro_size, SPEC_MAX_MICRO_SIZE);
	CHECK("max_micro_size", s->max_micro_size >= s->micro_size && s->max_micro_size <= SPEC_MAX_MICRO_SIZE,
	      "max_micro_size is %u, must be micro_size (%u)..%d", s->max_micro_size, s->micro_size,
	      SPEC_MAX_MICRO_SIZE);
	CHECK("max_micro_size", (uint64_t)s->ranks * s->max_micro_size <= SPEC_MAX_MICROS,
	      "max_micro_size is %u for %u ranks: together they may have %d micro-batches in a window",
	      s->max_micro_size, s->ranks, SPEC_MAX_MICROS);
	CHECK("slots_per_rank", s->slots_per_rank <= 2, "slots_per_rank is %u, must be 1 or 2", s->slots_per_rank);
	CHECK("reduction", s->reduction >= REDUCE_WEIGHTED_MEAN && s->reduction <= REDUCE_FIXED,
	      "reduction %d is unknown: weighted_mean, mean, sum or fixed_divisor", s->reduction);
	CHECK("fixed_divisor", s->reduction != REDUCE_FIXED || (isfinite(s->fixed_divisor) && s->fixed_divisor > 0),
	      "fixed_divisor is %g, must be finite and > 0 with reduction: fixed_divisor", s->fixed_divisor);
	CHECK("grad_of", s->grad_of == GRAD_OF_MEAN || s->grad_of == GRAD_OF_SUM, "grad_of %d is unknown: mean or sum",
	      s->grad_of);
	CHECK("uneven", s->uneven >= UNEVEN_FLUSH && s->uneven <= UNEVEN_ERROR,
	      "uneven %d is unknown: flush, drop or error", s->uneven);
	CHECK("nonfinite", s->nonfinite >= NONFINITE_SKIP_STEP && s->nonfinite <= NONFINITE_ERROR,
	      "nonfinite %d is unknown: skip_step, reject_micro or error", s->nonfinite);
	CHECK("ordering", s->ordering == ORDER_CANONICAL || s->ordering == ORDER_ARRIVAL,
	      "ordering %d is unknown: canonical or arrival", s->ordering);
	CHECK("stall_abort_ms", s->stall_warn_ns > 0 && s->stall_abort_ns >= s->stall_warn_ns,
	      "stall_abort (%lld ms) must not be shorter than stall_warn (%lld ms)",
	      (long long)(s->stall_abort_ns / 1000000), (long long)(s->stall_warn_ns / 1000000));
	CHECK("abandoned_ms", s->abandoned_ns > 0, "abandoned is %lld ms, must be > 0",
	      (long long)(s->abandoned_ns / 1000000));
	return ST_OK;
}

/* Checks a schedule that grows: the learning rate of the last step or, if the job has no last step, of the first step
 * after the growth. */
static enum status check_highest_lr(struct job_spec *s, const char **field, char *why, size_t n_why)
{
	if (s->schedule.type != SCHEDULE_STEP || s->schedule.gamma <= 1)
		return ST_OK;
	uint64_t first = s->schedule.warmup_steps + s->schedule.step_size, last = s->steps ? s->steps - 1 : first;
	double lr = s->optim.lr * schedule_factor(&s->schedule, last);
	CHECK("schedule.gamma", commit_is_lr(lr),
	      "schedule.gamma is %g: the learning rate is %g at step %llu, at most %g is possible", s->schedule.gamma,
	      lr, (unsigned long long)last, COMMIT_MAX);
	return ST_OK;
}

static enum status check_accumulate(struct job_spec *s, const char **field, char *why, size_t n_why)
{
	CHECK("accumulate", s->accumulate == ACCUMULATE_SUM || s->accumulate == ACCUMULATE_NONE,
	      "accumulate %d is unknown: sum or none", s->accumulate);
	if (s->accumulate == ACCUMULATE_SUM)
		return ST_OK;
	CHECK("accumulate", s->ranks == 1,
	      "accumulate: none is for one rank, this job has %u: their gradients must be added, use accumulate: sum",
	      s->ranks);
	CHECK("accumulate", s->micro_size == 1 && s->max_micro_size == 1,
	      "accumulate: none is for windows of one micro-batch: micro_size is %u and max_micro_size %u, both must "
	      "be "
	      "1 (add up micro-batches in the trainer), or use accumulate: sum",
	      s->micro_size, s->max_micro_size);
	CHECK("accumulate", s->optim.type != OPTIM_CLIENT,
	      "accumulate: none with optimizer client: the reduced gradient is read from an accumulator, use "
	      "accumulate: sum");
	CHECK("accumulate", s->accumulate_dtype == DTYPE_F32,
	      "accumulate: none with accumulate_dtype %s: there is no sum that would gain by it, use f32",
	      dtype_name(s->accumulate_dtype));
	return ST_OK;
}

static enum status check_untouched(struct job_spec *s, const char **field, char *why, size_t n_why)
{
	CHECK("untouched", s->untouched == UNTOUCHED_ZERO || s->untouched == UNTOUCHED_SKIP,
	      "untouched %d is unknown: zero or skip", s->untouched);
	CHECK("untouched", s->untouched == UNTOUCHED_ZERO || s->optim.type != OPTIM_CLIENT,
	      "untouched: skip with optimizer client: the trainers take the step, and decide what it leaves out");
	return ST_OK;
}

static enum status check_numbers(struct job_spec *s, const char **field, char *why, size_t n_why)
{
	CHECK("accumulate_dtype", s->accumulate_dtype == DTYPE_F32 || s->accumulate_dtype == DTYPE_F64,
	      "accumulate_dtype is %s (%d), must be f32 or f64", dtype_name(s->accumulate_dtype), s->accumulate_dtype);
	CHECK("gradient_dtype",
	      s->gradient_dtype == DTYPE_NONE || s->gradient_dtype == DTYPE_F32 || s->gradient_dtype == DTYPE_F16 ||
		      s->gradient_dtype == DTYPE_BF16,
	      "gradient_dtype is %s (%d), must be f32, f16 or bf16 (or left out: each tensor's own)",
	      dtype_name(s->gradient_dtype), s->gradient_dtype);
	CHECK("clip_norm", isfinite(s->clip_norm) && s->clip_norm >= 0, "clip_norm is %g, must be finite and >= 0",
	      s->clip_norm);
	CHECK("clip_value", commit_is_limit(s->clip_value),
	      "clip_value is %g, must be 0 (off) or %g..%g, where f32 is normal", s->clip_value, COMMIT_MIN,
	      COMMIT_MAX);
	*field = "optimizer";
	enum status st = optim_check(&s->optim, why, n_why);
	if (st)
		return st;
	CHECK("optimizer.lr", commit_is_lr(s->optim.lr), "optimizer.lr is %g, must be 0..%g", s->optim.lr, COMMIT_MAX);
	*field = "schedule";
	st = schedule_check(&s->schedule, why, n_why);
	return st ? st : check_highest_lr(s, field, why, n_why);
}

static enum status check_scale_and_outliers(struct job_spec *s, const char **field, char *why, size_t n_why)
{
	const struct loss_scale_rules *r = &s->dynamic_loss_scale;
	const struct outlier_skip *o = &s->outlier_skip;
	CHECK("loss_scale", commit_is_factor(s->loss_scale), "loss_scale is %g, must be %g..%g, where f32 is normal",
	      s->loss_scale, COMMIT_MIN, COMMIT_MAX);
	CHECK("dynamic_loss_scale.growth_factor", isfinite(r->growth_factor) && r->growth_factor > 1,
	      "dynamic_loss_scale.growth_factor is %g, must be finite and > 1", r->growth_factor);
	CHECK("dynamic_loss_scale.backoff_factor", r->backoff_factor > 0 && r->backoff_factor < 1,
	      "dynamic_loss_scale.backoff_factor is %g, must be between 0 and 1", r->backoff_factor);
	CHECK("dynamic_loss_scale.min_scale", commit_is_factor(r->min) && r->min <= r->max && commit_is_factor(r->max),
	      "dynamic_loss_scale: min_scale (%g) must not be above max_scale (%g), both must be %g..%g, where f32 is "
	      "normal",
	      r->min, r->max, COMMIT_MIN, COMMIT_MAX);
	CHECK("loss_scale", !r->enabled || (s->loss_scale >= r->min && s->loss_scale <= r->max),
	      "loss_scale is %g, must lie between dynamic_loss_scale's min_scale (%g) and max_scale (%g)",
	      s->loss_scale, r->min, r->max);
	CHECK("dynamic_loss_scale.enabled", !r->enabled || s->nonfinite != NONFINITE_ERROR,
	      "dynamic_loss_scale looks for the scale by overflows, nonfinite: error ends the job at the first: use "
	      "skip_step");
	CHECK("outlier_skip.factor", o->factor == 0 || (isfinite(o->factor) && o->factor > 1),
	      "outlier_skip.factor is %g, must be finite and > 1 (0: off)", o->factor);
	CHECK("outlier_skip.decay", o->decay >= 0 && o->decay < 1, "outlier_skip.decay is %g, must be >= 0 and < 1",
	      o->decay);
	return ST_OK;
}

static enum status check_rules(struct job_spec *s, const char **field, char *why, size_t n_why)
{
	CHECK("param_groups", s->n_groups <= SPEC_MAX_RULES, "%u param_groups, at most %d", s->n_groups,
	      SPEC_MAX_RULES);
	CHECK("init", s->n_init <= SPEC_MAX_RULES, "%u init rules, at most %d", s->n_init, SPEC_MAX_RULES);
	uint64_t named = 0;
	for (uint32_t i = 0; i < s->n_groups; i++) {
		const struct spec_group *g = &s->group[i];
		CHECK("param_groups.pattern", g->pattern && (*g->pattern || g->n_tensors),
		      "param_groups[%u].pattern is empty, and there are no tensors", i);
		named += g->n_tensors;
		CHECK("param_groups.pattern", strlen(g->pattern) <= SPEC_MAX_PATTERN,
		      "param_groups[%u].pattern has %zu bytes, at most %d are allowed, as in names of tensors", i,
		      strlen(g->pattern), SPEC_MAX_PATTERN);
		CHECK("param_groups.lr_scale",
		      g->values.frozen || (isfinite(g->values.lr_scale) && g->values.lr_scale > 0),
		      "param_groups[%u].lr_scale is %g, must be finite and > 0 (use frozen: true to stop updates)", i,
		      g->values.lr_scale);
		CHECK("param_groups.weight_decay", isfinite(g->values.weight_decay) && g->values.weight_decay >= 0,
		      "param_groups[%u].weight_decay is %g, must be finite and >= 0", i, g->values.weight_decay);
	}
	CHECK("param_groups.tensors", named <= SPEC_MAX_NAMED,
	      "param_groups: %llu tensors by name, at most %d: use patterns", (unsigned long long)named,
	      SPEC_MAX_NAMED);
	for (uint32_t i = 0; i < s->n_init; i++) {
		const struct spec_init *r = &s->init[i];
		CHECK("init.pattern", r->pattern && *r->pattern, "init[%u].pattern is empty", i);
		CHECK("init.pattern", strlen(r->pattern) <= SPEC_MAX_PATTERN,
		      "init[%u].pattern has %zu bytes, at most %d are allowed, as in names of tensors", i,
		      strlen(r->pattern), SPEC_MAX_PATTERN);
		CHECK("init.type", r->rule.type >= INIT_ZEROS && r->rule.type <= INIT_XAVIER_NORMAL,
		      "init[%u].type %d is unknown: zeros, ones, normal, uniform, kaiming_uniform, kaiming_normal, "
		      "xavier_uniform or xavier_normal",
		      i, r->rule.type);
		CHECK("init.a", isfinite(r->rule.a) && isfinite(r->rule.b),
		      "init[%u]: a is %g and b is %g, both must be finite", i, r->rule.a, r->rule.b);
	}
	return ST_OK;
}

static enum status check_sharding(struct job_spec *s, const char **field, char *why, size_t n_why)
{
	CHECK("sharding", s->sharding >= SHARDING_NONE && s->sharding <= SHARDING_HYBRID,
	      "sharding %d is unknown: none, full or hybrid", s->sharding);
	CHECK("shard_threshold", !s->shard_threshold,
	      "shard_threshold is %llu: shares are cut from the flat arena, where a small tensor costs no more than a "
	      "large one: leave it out",
	      (unsigned long long)s->shard_threshold);
	CHECK("shard_size", s->sharding == SHARDING_HYBRID || !s->shard_size,
	      "shard_size is %u: it is for sharding: hybrid; with full a group is all parts", s->shard_size);
	CHECK("shard_size", s->sharding != SHARDING_HYBRID || (s->shard_size && s->parts % s->shard_size == 0),
	      "shard_size is %u: with sharding: hybrid give how many parts hold the optimizer state together, a "
	      "divisor "
	      "of parts (%u)",
	      s->shard_size, s->parts);
	if (!spec_is_sharded(s))
		return ST_OK;
	CHECK("sharding", s->optim.type != OPTIM_CLIENT,
	      "sharding with optimizer client: the trainers hold the parameters and the state: use none");
	CHECK("sharding", s->optim.type != OPTIM_LAMB,
	      "sharding with optimizer lamb: its ratios are of whole tensors, which a share may cut: use none");
	return ST_OK;
}

/* "GPU-", and at least one digit of the UUID. */
static bool is_gpu(const char *name)
{
	static const char begin[] = "GPU-";
	const size_t n = sizeof(begin) - 1;
	return !strncmp(name, begin, n) && name[n] && !name[n + strspn(name + n, "0123456789abcdef-")];
}

/* What arith_cuda_takes refuses is refused before there is a job. */
static enum status check_device(struct job_spec *s, const char **field, char *why, size_t n_why)
{
	CHECK("device", s->device >= DEVICE_HOST && s->device <= DEVICE_CUDA, "device %d is unknown: host or cuda",
	      s->device);
	CHECK("gpu", s->device == DEVICE_CUDA || !*s->gpu, "gpu is for jobs with device: cuda");
	CHECK("gpu", !*s->gpu || is_gpu(s->gpu),
	      "gpu is \"%.40s\": \"GPU-\" and the UUID, or its beginning, as nvidia-smi -L says it", s->gpu);
	CHECK("slots_on", s->slots_on == SLOTS_ON_HOST || s->slots_on == SLOTS_ON_DEVICE,
	      "slots_on %d is unknown: host or device", s->slots_on);
	CHECK("slots_on", s->slots_on == SLOTS_ON_HOST || s->device == DEVICE_CUDA,
	      "slots_on: device with device: host: slots on a GPU are for jobs with device: cuda");
	CHECK("slots_per_rank", s->slots_on == SLOTS_ON_HOST || s->slots_per_rank == 2,
	      "slots_per_rank is %u: with slots_on: device it must be 2, as a GPU fills one while the other is added",
	      s->slots_per_rank);
	CHECK("verify_params", !s->verify_params || s->slots_on == SLOTS_ON_DEVICE,
	      "verify_params with slots_on: host: trainers cannot write to parameters in shared memory, and there is "
	      "nothing to verify");
	if (s->device == DEVICE_HOST)
		return ST_OK;
	CHECK("gpu", s->parts == 1 || !*s->gpu, "gpu with %u parts: each takes one of its node's GPUs, in their order",
	      s->parts);
	CHECK("sharding", !spec_is_sharded(s),
	      "device: cuda with sharding: optimizer state that is divided over parts needs device: host");
	CHECK("device", s->accumulate_dtype == DTYPE_F32,
	      "device: cuda with accumulate_dtype f64: a GPU's kernels sum in f32, f64 needs device: host");
	CHECK("device", s->accumulate == ACCUMULATE_SUM,
	      "device: cuda with accumulate: none: a sum that stays in its slot needs device: host");
	CHECK("device", s->optim.type != OPTIM_CLIENT,
	      "device: cuda with optimizer client: the trainers hold parameters and state, and read the sum in host "
	      "memory: use device: host");
	return ST_OK;
}

static enum status check_checkpoint(struct job_spec *s, const char **field, char *why, size_t n_why)
{
	bool client = s->optim.type == OPTIM_CLIENT;
	CHECK("checkpoint.dir", !s->checkpoint.bad_dir,
	      "checkpoint.dir must be absolute and have no \"..\", or be left out");
	CHECK("checkpoint", !client || (!s->checkpoint.every_steps && !s->checkpoint.at_end),
	      "checkpoint: with optimizer client the trainers hold the parameters and save them");
	CHECK("restore_from", !s->bad_restore_path,
	      "restore_from must be the absolute path of a checkpoint, without \"..\"");
	CHECK("restore_from", !client || !s->restores,
	      "restore_from: with optimizer client the trainers hold the parameters and restore them");
	return ST_OK;
}

static enum status check_launch(struct job_spec *s, const char **field, char *why, size_t n_why)
{
	const struct spec_launch *l = &s->launch;
	bool here = s->launch_mode == LAUNCH_DAEMON;
	CHECK("launch", s->launch_mode >= LAUNCH_EXTERNAL && s->launch_mode <= LAUNCH_DAEMON,
	      "launch %d is unknown: external, client or daemon", s->launch_mode);
	CHECK("launch_command.command", !here || l->n_command,
	      "launch is daemon: launch_command.command (launch.command in a job file) must name the program");
	CHECK("launch_command", !here || l->bytes <= SPEC_MAX_LAUNCH_BYTES,
	      "launch_command has %llu bytes of command and environment, at most %d are allowed",
	      (unsigned long long)l->bytes, SPEC_MAX_LAUNCH_BYTES);
	CHECK("launch_command.working_dir", !here || l->dirs_absolute,
	      "launch is daemon: working_dir and log_dir must be absolute, or be left out");
	CHECK("launch_command.environment", !here || l->names_ok,
	      "launch_command.environment (launch.environment in a job file): a variable's name must not be empty and "
	      "must not contain =");
	CHECK("launch_command.grace_ms", !here || l->grace_ns <= SPEC_MAX_GRACE_NS,
	      "launch_command.grace is %lld ms, at most an hour is allowed", (long long)(l->grace_ns / 1000000));
	return ST_OK;
}

struct optim_group job_spec_group(const struct job_spec *s, uint32_t i)
{
	struct optim_group g = { .lr_scale = 1, .weight_decay = s->optim.weight_decay };
	if (i) {
		g = s->group[i - 1].values;
		if (!s->group[i - 1].override_weight_decay)
			g.weight_decay = s->optim.weight_decay;
	}
	return g;
}

/* Checks the first step with the full learning rate of the schedule: no later step has larger factors. */
static enum status check_scalars(struct job_spec *s, const char **field, char *why, size_t n_why)
{
	const struct engine_command first = {
		.outcome = OUTCOME_APPLIED, .applied_step = 1, .scale = 1, .lr = s->optim.lr
	};
	for (uint32_t i = 0; i <= s->n_groups; i++) {
		const struct optim_group g = job_spec_group(s, i);
		const char *wrong = commit_wrong_scalar(&first, &s->optim, &g, false);
		char who[40] = "optimizer";
		if (i)
			snprintf(who, sizeof(who), "param_groups[%u]", i - 1);
		CHECK(i ? "param_groups" : "optimizer", !wrong,
		      "%s: %s is beyond f32's largest number, %g (lr %g, lr_scale %g, weight_decay %g): every step "
		      "would end in inf or NaN",
		      who, wrong, COMMIT_MAX, s->optim.lr, g.lr_scale, g.weight_decay);
	}
	return ST_OK;
}

enum status job_spec_check(struct job_spec *s, const char **field, char *why, size_t n_why)
{
	fill_defaults(s);
	enum status st = check_window(s, field, why, n_why);
	if (!st)
		st = check_numbers(s, field, why, n_why);
	if (!st)
		st = check_accumulate(s, field, why, n_why);
	if (!st)
		st = check_untouched(s, field, why, n_why);
	if (!st)
		st = check_scale_and_outliers(s, field, why, n_why);
	if (!st)
		st = check_rules(s, field, why, n_why);
	if (!st)
		st = check_scalars(s, field, why, n_why);
	if (!st)
		st = check_launch(s, field, why, n_why);
	if (!st)
		st = check_checkpoint(s, field, why, n_why);
	if (!st)
		st = check_sharding(s, field, why, n_why);
	if (!st)
		st = check_device(s, field, why, n_why);
	return st;
}

void job_spec_fini(struct job_spec *s)
{
	if (!s)
		return;
	for (uint32_t i = 0; i < s->n_groups; i++) {
		free(s->group[i].pattern);
		free(s->group[i].tensor);
	}
	for (uint32_t i = 0; i < s->n_init; i++)
		free(s->init[i].pattern);
	free(s->group);
	free(s->init);
	free(s->nodes);
	s->nodes = NULL;
	s->group = NULL;
	s->init = NULL;
	s->n_groups = s->n_init = 0;
}
