/* SPDX-License-Identifier: Apache-2.0 */
/* The table of a job file's keys: reading, defaults, ranges, error messages and the JSON Schema all come from it.
 * Constant data and pure functions; any thread. */
#include "lib/spec_impl.h"

#include <math.h>
#include <stddef.h>

#define NAME(prefix, upper, lower)                                                                                     \
	{                                                                                                              \
		lower, GACC__V1__##prefix##upper                                                                       \
	}
#define END                                                                                                            \
	{                                                                                                              \
		NULL, 0                                                                                                \
	}
static const struct yaml_name api_versions[] = { { "gacc/v1", 1 }, END };
static const struct yaml_name kinds[] = { { "Job", 1 }, END };
static const struct yaml_name reductions[] = { NAME(REDUCTION__REDUCTION_, WEIGHTED_MEAN, "weighted_mean"),
					       NAME(REDUCTION__REDUCTION_, MEAN, "mean"),
					       NAME(REDUCTION__REDUCTION_, SUM, "sum"),
					       NAME(REDUCTION__REDUCTION_, FIXED_DIVISOR, "fixed_divisor"), END };
static const struct yaml_name grads_of[] = { NAME(GRAD_OF__GRAD_OF_, MEAN, "mean"), NAME(GRAD_OF__GRAD_OF_, SUM, "sum"),
					     END };
static const struct yaml_name unevens[] = { NAME(UNEVEN__UNEVEN_, FLUSH, "flush"), NAME(UNEVEN__UNEVEN_, DROP, "drop"),
					    NAME(UNEVEN__UNEVEN_, ERROR, "error"), END };
static const struct yaml_name dtypes[] = { NAME(DATA_TYPE__DATA_TYPE_, F32, "f32"),
					   NAME(DATA_TYPE__DATA_TYPE_, F64, "f64"),
					   NAME(DATA_TYPE__DATA_TYPE_, F16, "f16"),
					   NAME(DATA_TYPE__DATA_TYPE_, BF16, "bf16"), END };
static const struct yaml_name masters[] = { NAME(MASTER__MASTER_, F32, "f32"), NAME(MASTER__MASTER_, NONE, "none"),
					    END };
static const struct yaml_name nonfinites[] = { NAME(NON_FINITE__NON_FINITE_, SKIP_STEP, "skip_step"),
					       NAME(NON_FINITE__NON_FINITE_, REJECT_MICRO, "reject_micro"),
					       NAME(NON_FINITE__NON_FINITE_, ERROR, "error"), END };
static const struct yaml_name orderings[] = { NAME(ORDERING__ORDERING_, CANONICAL, "canonical"),
					      NAME(ORDERING__ORDERING_, ARRIVAL, "arrival"), END };
static const struct yaml_name accumulates[] = { NAME(ACCUMULATE__ACCUMULATE_, SUM, "sum"),
						NAME(ACCUMULATE__ACCUMULATE_, NONE, "none"), END };
static const struct yaml_name untoucheds[] = { NAME(UNTOUCHED__UNTOUCHED_, ZERO, "zero"),
					       NAME(UNTOUCHED__UNTOUCHED_, SKIP, "skip"), END };
static const struct yaml_name devices[] = { NAME(DEVICE__DEVICE_, HOST, "host"), NAME(DEVICE__DEVICE_, CUDA, "cuda"),
					    END };
static const struct yaml_name slot_places[] = { NAME(SLOTS_ON__SLOTS_ON_, HOST, "host"),
						NAME(SLOTS_ON__SLOTS_ON_, DEVICE, "device"), END };
static const struct yaml_name shardings[] = { NAME(SHARDING__SHARDING_, NONE, "none"),
					      NAME(SHARDING__SHARDING_, FULL, "full"),
					      NAME(SHARDING__SHARDING_, HYBRID, "hybrid"), END };
static const struct yaml_name determinisms[] = { NAME(ORDERING__ORDERING_, CANONICAL, "true"),
						 NAME(ORDERING__ORDERING_, ARRIVAL, "false"), END };
const struct yaml_name spec_optimizers[] = {
	NAME(OPTIMIZER_TYPE__OPTIMIZER_TYPE_, CLIENT, "client"), NAME(OPTIMIZER_TYPE__OPTIMIZER_TYPE_, SGD, "sgd"),
	NAME(OPTIMIZER_TYPE__OPTIMIZER_TYPE_, ADAM, "adam"),	 NAME(OPTIMIZER_TYPE__OPTIMIZER_TYPE_, ADAMW, "adamw"),
	NAME(OPTIMIZER_TYPE__OPTIMIZER_TYPE_, LAMB, "lamb"),	 END
};
static const struct yaml_name schedules[] = { NAME(SCHEDULE_TYPE__SCHEDULE_TYPE_, CONSTANT, "constant"),
					      NAME(SCHEDULE_TYPE__SCHEDULE_TYPE_, LINEAR_WARMUP, "linear_warmup"),
					      NAME(SCHEDULE_TYPE__SCHEDULE_TYPE_, COSINE, "cosine"),
					      NAME(SCHEDULE_TYPE__SCHEDULE_TYPE_, STEP, "step"), END };
static const struct yaml_name inits[] = { NAME(INIT_TYPE__INIT_TYPE_, ZEROS, "zeros"),
					  NAME(INIT_TYPE__INIT_TYPE_, ONES, "ones"),
					  NAME(INIT_TYPE__INIT_TYPE_, NORMAL, "normal"),
					  NAME(INIT_TYPE__INIT_TYPE_, UNIFORM, "uniform"),
					  NAME(INIT_TYPE__INIT_TYPE_, KAIMING_UNIFORM, "kaiming_uniform"),
					  NAME(INIT_TYPE__INIT_TYPE_, KAIMING_NORMAL, "kaiming_normal"),
					  NAME(INIT_TYPE__INIT_TYPE_, XAVIER_UNIFORM, "xavier_uniform"),
					  NAME(INIT_TYPE__INIT_TYPE_, XAVIER_NORMAL, "xavier_normal"),
					  END };
static const struct yaml_name launches[] = { NAME(LAUNCH_MODE__LAUNCH_MODE_, EXTERNAL, "external"),
					     NAME(LAUNCH_MODE__LAUNCH_MODE_, CLIENT, "client"),
					     NAME(LAUNCH_MODE__LAUNCH_MODE_, DAEMON, "daemon"), END };

/* KEY(type, where it lies, name, options..., documentation); all sections lie at offset 0, so `at` is an offset into
 * spec_file. */
#define KEY(name_, type_, at, doc_, ...)                                                                               \
	{                                                                                                              \
		.name = #name_, .type = YAML_##type_, .offset = offsetof(struct spec_file, at), .doc = doc_,           \
		__VA_ARGS__                                                                                            \
	}
#define ITEM(name_, type_, item, doc_, ...)                                                                            \
	{                                                                                                              \
		.name = #name_, .type = YAML_##type_, .offset = offsetof(struct item, name_), .doc = doc_, __VA_ARGS__ \
	}
#define LIST(name_, at, table, item, doc_)                                                                             \
	KEY(name_, LIST, at, doc_, .fields = table, .item_bytes = sizeof(struct item))
#define SECTION(name_, table, doc_)                                                                                    \
	{                                                                                                              \
		.name = #name_, .type = YAML_SECTION, .fields = table, .doc = doc_                                     \
	}
#define UNSET .initial = "nan"
#define POSITIVE .min = 0, .max = HUGE_VAL

const struct yaml_field spec_optimizer_keys[] = {
	KEY(type, ENUM, optimizer.type, "client (the trainers apply the step), sgd, adam, adamw or lamb.",
	    .names = spec_optimizers),
	KEY(lr, F64, optimizer.lr, "Learning rate; 1e-3 unless given.", UNSET, POSITIVE),
	KEY(momentum, F64, optimizer.momentum, "sgd: 0 unless given.", UNSET, POSITIVE),
	KEY(dampening, F64, optimizer.dampening, "sgd: 0 unless given.", UNSET),
	KEY(nesterov, BOOL, optimizer.nesterov, "sgd: Nesterov's momentum."),
	KEY(weight_decay, F64, optimizer.weight_decay, "0 unless given; adamw, lamb: 0.01.", UNSET, POSITIVE),
	KEY(betas, F64, betas, "adam, adamw, lamb: [0.9, 0.999] unless given.", UNSET, .n = 2, .min = 0, .max = 1),
	KEY(eps, F64, optimizer.eps, "adam, adamw: 1e-8 unless given; lamb: 1e-6.", UNSET, POSITIVE),
	{ .name = NULL }
};
static const struct yaml_field schedule_keys[] = {
	KEY(type, ENUM, schedule.type, "constant, linear_warmup, cosine or step.", .names = schedules,
	    .initial = "constant"),
	KEY(warmup_steps, U64, schedule.warmup_steps, "Steps of linear warm-up before the rest."),
	KEY(warmup_start_factor, F64, schedule.warmup_start_factor, "Factor at the warm-up's start; 1/3 unless given.",
	    UNSET, .min = 0, .max = 1),
	KEY(total_steps, U64, schedule.total_steps, "cosine: where min_factor is reached."),
	KEY(min_factor, F64, schedule.min_factor, "cosine: the last factor.", .min = 0, .max = 1),
	KEY(step_size, U64, schedule.step_size, "step: steps between two falls."),
	KEY(gamma, F64, schedule.gamma, "step: factor of a fall; 0.1 unless given.", UNSET, POSITIVE),
	{ .name = NULL }
};
static const struct yaml_field group_keys[] = {
	ITEM(pattern, STRING, group_item, "Tensor names: * ? [..]; the first group that matches wins.", .min = 1,
	     .max = 255),
	ITEM(tensors, STRINGS, group_item, "Names of tensors, exactly; beside a pattern or instead of one.",
	     .max = 262144),
	ITEM(lr_scale, F64, group_item, "Multiplies the learning rate.", .initial = "1", POSITIVE),
	ITEM(weight_decay, F64, group_item, "In place of the optimizer's.", UNSET, POSITIVE),
	ITEM(frozen, BOOL, group_item, "Never updated."),
	{ .name = NULL }
};
static const struct yaml_field init_keys[] = {
	ITEM(pattern, STRING, init_item, "Tensor names: * ? [..]; the first rule that matches wins.", .min = 1,
	     .max = 255),
	ITEM(type, ENUM, init_item, "Distribution.", .names = inits),
	ITEM(a, F64, init_item, "normal: mean; uniform: lower end; kaiming, xavier: gain."),
	ITEM(b, F64, init_item, "normal: standard deviation; uniform: upper end."),
	{ .name = NULL }
};
static const struct yaml_field tensor_keys[] = {
	ITEM(name, STRING, tensor_item, "Unique in the job.", .min = 1, .max = 255),
	ITEM(dtype, ENUM, tensor_item, "Of the parameter: f32, bf16 or f16.", .names = dtypes, .initial = "f32"),
	ITEM(shape, I64S, tensor_item, "Sizes, slowest first; none: a scalar.", .min = 1, .max = 0x1p62),
	ITEM(alias_of, STRING, tensor_item, "The earlier tensor whose storage this one shares.", .max = 255),
	{ .name = NULL }
};
static const struct yaml_field timeout_keys[] = {
	KEY(stall_warn, MS, spec.stall_warn_ms, "A rank later than this is named.", .initial = "60s", .min = 1,
	    .max = HUGE_VAL),
	KEY(stall_abort, MS, spec.stall_abort_ms, "A rank later than this ends the job.", .initial = "10m", .min = 1,
	    .max = HUGE_VAL),
	KEY(abandoned, MS, spec.abandoned_ms, "Without any attached rank for so long, the job ends.", .initial = "10m",
	    .min = 1, .max = HUGE_VAL),
	{ .name = NULL }
};
static const struct yaml_field launch_keys[] = {
	KEY(mode, ENUM, spec.launch,
	    "external (ranks come and attach), client (gaccctl run starts them) or daemon (gaccd does).",
	    .names = launches, .initial = "external"),
	KEY(command, STRINGS, command, "daemon: program, looked up in PATH, and arguments.", .max = 32768),
	KEY(working_dir, STRING, launch.working_dir, "daemon: absolute; / unless given.", .max = 4095),
	KEY(environment, MAP, environment, "daemon: variables beside those that gaccd sets.", .max = 32768),
	KEY(max_restarts, U32, launch.max_restarts, "daemon: how often ranks are started again, all together."),
	KEY(grace, MS, launch.grace_ms, "daemon: from SIGTERM to SIGKILL; 10 s unless given."),
	KEY(no_torch_env, BOOL, launch.no_torch_env,
	    "daemon: ranks get GACC_RANK and GACC_WORLD_SIZE, and none of torchrun's variables."),
	{ .name = NULL }
};
static const struct yaml_field loss_scale_keys[] = {
	KEY(enabled, BOOL, loss_scale.enabled, "The daemon adapts the loss scale; spec.loss_scale is the first one."),
	KEY(growth_factor, F64, loss_scale.growth_factor, "2 unless given.", POSITIVE),
	KEY(backoff_factor, F64, loss_scale.backoff_factor, "0.5 unless given.", .min = 0, .max = 1),
	KEY(growth_interval, U32, loss_scale.growth_interval,
	    "Applied windows in a row before it grows; 2000 unless given."),
	KEY(hysteresis, U32, loss_scale.hysteresis, "Non-finite windows that it takes to shrink; 1 unless given."),
	KEY(min_scale, F64, loss_scale.min_scale, "1 unless given.", POSITIVE),
	KEY(max_scale, F64, loss_scale.max_scale, "2^24 unless given.", POSITIVE),
	{ .name = NULL }
};
static const struct yaml_field outlier_keys[] = {
	KEY(factor, F64, outlier.factor, "A norm above factor times the usual one skips the step; 0: off.", POSITIVE),
	KEY(decay, F64, outlier.decay, "Weight of the past in the moving average; 0.99 unless given.", .min = 0,
	    .max = 1),
	KEY(warmup_steps, U32, outlier.warmup_steps,
	    "Applied steps before the first skip; as many skips in a row are a new level; 20 unless given."),
	{ .name = NULL }
};
static const struct yaml_field output_keys[] = {
	KEY(log_dir, STRING, spec.log_dir, "Where ranks' output goes; %j is the job's id, %x its name, %u its uuid.",
	    .max = 4096),
	{ .name = NULL }
};
static const struct yaml_field checkpoint_keys[] = {
	KEY(dir, STRING, checkpoint.dir,
	    "Where they go, absolute; %j, %x and %u as in log_dir. Unless given, in gaccd's state_dir.", .max = 4000),
	KEY(every_steps, U64, checkpoint.every_steps, "After every so many applied steps; 0: never by itself."),
	KEY(keep, U32, checkpoint.keep, "The newest so many are kept; 0: all."),
	KEY(at_end, BOOL, checkpoint.at_end, "One more when the job completes."),
	{ .name = NULL }
};
static const struct yaml_field spec_keys[] = {
	KEY(ranks, U32, spec.ranks, "Trainer processes.", .initial = "1", .min = 1, .max = 65536),
	KEY(micro_size, U32, spec.micro_size, "Micro-batches of each rank in one step.", .initial = "1", .min = 1,
	    .max = 65536),
	{ .name = "gradient_accumulation_steps",
	  .type = YAML_ALIAS,
	  .alias_of = "micro_size",
	  .doc = "Is micro_size." },
	KEY(max_micro_size, U32, spec.max_micro_size, "What micro_size may grow to; 0: max(micro_size, 64)."),
	KEY(steps, U64, spec.steps, "Applied steps after which the job is complete; 0: until all ranks have left."),
	KEY(batch, U64, spec.batch, "Samples in one micro-batch, for display."),
	KEY(reduction, ENUM, spec.reduction, "What the gradients' sum is divided by.", .names = reductions,
	    .initial = "weighted_mean"),
	KEY(fixed_divisor, F64, spec.fixed_divisor, "With reduction: fixed_divisor.", POSITIVE),
	KEY(grad_of, ENUM, spec.grad_of, "A pushed gradient is of the mean or the sum of its samples' losses.",
	    .names = grads_of, .initial = "mean"),
	KEY(uneven, ENUM, spec.uneven, "What a window does that is closed before it is full.", .names = unevens,
	    .initial = "flush"),
	KEY(accumulate, ENUM, spec.accumulate,
	    "none: no accumulators, the update reads the slot; one rank and micro_size 1 only.", .names = accumulates,
	    .initial = "sum"),
	KEY(untouched, ENUM, spec.untouched,
	    "A tensor without any gradient in a window: zero (its gradient is zero) or skip (no step, as in torch).",
	    .names = untoucheds, .initial = "zero"),
	KEY(accumulate_dtype, ENUM, spec.accumulate_dtype, "f32 or f64.", .names = dtypes, .initial = "f32"),
	KEY(gradient_dtype, ENUM, spec.gradient_dtype, "f32, bf16 or f16; each tensor's own unless given.",
	    .names = dtypes),
	KEY(master, ENUM, spec.master, "Of 16-bit parameters: f32 or none.", .names = masters, .initial = "f32"),
	KEY(clip_norm, F64, spec.clip_norm, "Clips the averaged gradient's 2-norm; 0: off.", POSITIVE),
	KEY(clip_value, F64, spec.clip_value, "Clips each element; 0: off.", POSITIVE),
	KEY(nonfinite, ENUM, spec.nonfinite, "What a NaN or infinity does.", .names = nonfinites,
	    .initial = "skip_step"),
	KEY(loss_scale, F64, spec.loss_scale, "What the pushed gradients were multiplied by.", .initial = "1",
	    POSITIVE),
	SECTION(dynamic_loss_scale, loss_scale_keys, "As torch.amp.GradScaler, in the daemon."),
	SECTION(outlier_skip, outlier_keys, "Skips steps whose gradient norm is far above the usual."),
	SECTION(optimizer, spec_optimizer_keys, "Names and defaults are PyTorch's."),
	SECTION(schedule, schedule_keys, "Learning-rate factor by applied steps."),
	LIST(param_groups, groups, group_keys, group_item, "Tensors with other values than the optimizer's."),
	LIST(init, init, init_keys, init_item, "Initial values drawn in the daemon; none: a rank uploads them."),
	KEY(host_memory, SIZE, spec.host_memory, "Memory to reserve while the tensors are not known; 0: none."),
	KEY(seed, U64, spec.seed, "Of the initial values."),
	KEY(ordering, ENUM, spec.ordering, "canonical (same inputs, same bits) or arrival.", .names = orderings,
	    .initial = "canonical"),
	KEY(deterministic, ENUM, spec.ordering, "true is ordering: canonical, false is ordering: arrival.",
	    .names = determinisms),
	KEY(slots_per_rank, U32, spec.slots_per_rank, "Gradient buffers of each rank.", .initial = "2", .min = 1,
	    .max = 2),
	KEY(device, ENUM, spec.device,
	    "Where accumulators, parameters and optimizer state lie: host, or cuda (one of the node's NVIDIA GPUs).",
	    .names = devices, .initial = "host"),
	KEY(gpu, STRING, spec.gpu,
	    "With device: cuda, which GPU of the node: GPU-<UUID> or its beginning. The one with the most free memory "
	    "unless given."),
	KEY(slots_on, ENUM, spec.slots_on,
	    "With device: cuda, where trainers write gradients and read parameters: host (shared memory, any trainer) "
	    "or "
	    "device (that GPU's memory, trainers on that GPU alone).",
	    .names = slot_places, .initial = "host"),
	KEY(verify_params, BOOL, spec.verify_params,
	    "With slots_on: device, end the job if something else writes to its parameters; looks before each step."),
	KEY(parts, U32, spec.parts, "Engines that share the ranks in equal blocks; one for each of nodes unless given.",
	    .min = 1, .max = 16),
	KEY(nodes, STRING, spec.nodes,
	    "Nodes of the parts, in their order: a,b or with ranks a:4,b:4; none: the coordinator's.", .max = 1152),
	KEY(sharding, ENUM, spec.sharding,
	    "Of several parts: the optimizer state is in each (none), once over all (full), or once over each group of "
	    "shard_size (hybrid).",
	    .names = shardings, .initial = "none"),
	KEY(shard_size, U32, spec.shard_size, "Of sharding: hybrid: how many parts are a group; a divisor of parts.",
	    .min = 1, .max = 16),
	KEY(shard_threshold, U64, spec.shard_threshold,
	    "Refused: shares are of the flat arena, so no tensor is too small for one."),
	SECTION(timeouts, timeout_keys, "When a late rank matters."),
	SECTION(launch, launch_keys, "Who starts the ranks."),
	SECTION(checkpoint, checkpoint_keys, "What is saved, in safetensors files."),
	KEY(restore_from, STRING, spec.restore_from, "Path of a checkpoint: the job goes on from it.", .max = 4000),
	SECTION(output, output_keys, "What ranks write."),
	LIST(tensors, tensors, tensor_keys, tensor_item, "The tensor set; none: the first rank declares it."),
	{ .name = NULL }
};
static const struct yaml_field metadata_keys[] = { KEY(name, STRING, spec.name, "The job's name.", .max = 127),
						   KEY(labels, MAP, labels, "Free keys and values.", .min = 0,
						       .max = 255),
						   { .name = NULL } };
static const struct yaml_field keys[] = { KEY(api_version, ENUM, api_version, "gacc/v1.", .names = api_versions,
					      .initial = "gacc/v1"),
					  KEY(kind, ENUM, kind, "Job.", .names = kinds, .initial = "Job"),
					  SECTION(metadata, metadata_keys, "What the job is called."),
					  SECTION(spec, spec_keys, "What it does."),
					  { .name = NULL } };

const struct yaml_field *spec_table(void)
{
	return keys;
}
