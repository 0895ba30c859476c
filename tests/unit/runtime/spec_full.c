/* SPDX-License-Identifier: Apache-2.0 */
/* A specification's message for tests: all fields are set, each to a value of its own. */
#include "spec_full.h"

#include <check.h>

Gacc__V1__JobSpec full;
Gacc__V1__Optimizer optimizer;
Gacc__V1__Schedule schedule;
Gacc__V1__ParamGroup group;
static Gacc__V1__ParamGroup second_group, *groups[] = { &group, &second_group };
Gacc__V1__InitRule rule;
static Gacc__V1__InitRule *rules[] = { &rule };
Gacc__V1__Launch launch;
Gacc__V1__Label variable;
static Gacc__V1__Label *variables[] = { &variable };
Gacc__V1__DynamicLossScale dynamic;
Gacc__V1__OutlierSkip outliers;
Gacc__V1__CheckpointPolicy checkpoint;
static char *command[2];
static char text_name[] = "full";
static char text_w[] = "w*", text_b[] = "b*", text_all[] = "*", text_program[] = "/bin/true", text_argument[] = "-x",
	    text_key[] = "NAME", text_value[] = "value", text_logs[] = "/logs", text_work[] = "/work",
	    text_dir[] = "/kept", text_from[] = "/kept/9", text_v[] = "v";
static char *named[] = { text_v };

static void fill_numbers(void)
{
	full.ranks = 3;
	full.micro_size = 2;
	full.steps = 100;
	full.reduction = GACC__V1__REDUCTION__REDUCTION_MEAN;
	full.fixed_divisor = 2.5;
	full.grad_of = GACC__V1__GRAD_OF__GRAD_OF_MEAN;
	full.uneven = GACC__V1__UNEVEN__UNEVEN_FLUSH;
	full.accumulate_dtype = GACC__V1__DATA_TYPE__DATA_TYPE_F32;
	full.gradient_dtype = GACC__V1__DATA_TYPE__DATA_TYPE_F16;
	full.master = GACC__V1__MASTER__MASTER_F32;
	full.clip_norm = 1.5;
	full.clip_value = 3.5;
	full.nonfinite = GACC__V1__NON_FINITE__NON_FINITE_SKIP_STEP;
	full.loss_scale = 1024;
	full.seed = 77;
	full.ordering = GACC__V1__ORDERING__ORDERING_CANONICAL;
	full.slots_per_rank = 1;
	full.max_micro_size = 16;
	full.stall_warn_ms = 5000;
	full.stall_abort_ms = 70000;
	full.launch = GACC__V1__LAUNCH_MODE__LAUNCH_MODE_CLIENT;
	full.batch = 32;
	full.host_memory = 123456;
	full.abandoned_ms = 90000;
	full.parts = 1;
	full.accumulate = GACC__V1__ACCUMULATE__ACCUMULATE_SUM;
	full.untouched = GACC__V1__UNTOUCHED__UNTOUCHED_ZERO;
	full.device = GACC__V1__DEVICE__DEVICE_HOST;
	full.slots_on = GACC__V1__SLOTS_ON__SLOTS_ON_HOST;
	full.sharding = GACC__V1__SHARDING__SHARDING_NONE;
}

static void fill_messages(void)
{
	optimizer.type = GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_TYPE_ADAMW;
	optimizer.lr = 0.125;
	optimizer.momentum = 0.25;
	optimizer.dampening = 0.375;
	optimizer.weight_decay = 0.0625;
	optimizer.beta1 = 0.5;
	optimizer.beta2 = 0.75;
	optimizer.eps = 0.03125;
	schedule.type = GACC__V1__SCHEDULE_TYPE__SCHEDULE_TYPE_COSINE;
	schedule.warmup_steps = 10;
	schedule.total_steps = 90;
	schedule.min_factor = 0.1;
	schedule.step_size = 7;
	schedule.gamma = 0.5;
	schedule.warmup_start_factor = 0.2;
	group = (Gacc__V1__ParamGroup){ group.base, text_w, 0.5, 0.25, 1, 0, 1, named };
	second_group = (Gacc__V1__ParamGroup){ second_group.base, text_b, 3, 0, 0, 1, 0, NULL };
	rule = (Gacc__V1__InitRule){ rule.base, text_all, GACC__V1__INIT_TYPE__INIT_TYPE_NORMAL, 0.5, 0.75 };
	launch.command = command;
	launch.n_command = 2;
	launch.working_dir = text_work;
	launch.environment = variables;
	launch.n_environment = 1;
	launch.max_restarts = 4;
	launch.grace_ms = 1500;
	launch.no_torch_env = true;
	variable = (Gacc__V1__Label){ variable.base, text_key, text_value };
	dynamic.enabled = 1;
	dynamic.growth_factor = 3;
	dynamic.backoff_factor = 0.25;
	dynamic.growth_interval = 50;
	dynamic.hysteresis = 2;
	dynamic.min_scale = 2;
	dynamic.max_scale = 65536;
	outliers = (Gacc__V1__OutlierSkip){ outliers.base, 4, 0.5, 9 };
	checkpoint = (Gacc__V1__CheckpointPolicy){ checkpoint.base, text_dir, 20, 3, 1 };
}

void spec_full(void)
{
	gacc__v1__job_spec__init(&full);
	gacc__v1__optimizer__init(&optimizer);
	gacc__v1__schedule__init(&schedule);
	gacc__v1__param_group__init(&group);
	gacc__v1__param_group__init(&second_group);
	gacc__v1__init_rule__init(&rule);
	gacc__v1__launch__init(&launch);
	gacc__v1__label__init(&variable);
	gacc__v1__dynamic_loss_scale__init(&dynamic);
	gacc__v1__outlier_skip__init(&outliers);
	gacc__v1__checkpoint_policy__init(&checkpoint);
	command[0] = text_program;
	command[1] = text_argument;
	full.name = text_name;
	full.log_dir = text_logs;
	full.restore_from = text_from;
	full.optimizer = &optimizer;
	full.schedule = &schedule;
	full.param_groups = groups;
	full.n_param_groups = 2;
	full.init = rules;
	full.n_init = 1;
	full.launch_command = &launch;
	full.dynamic_loss_scale = &dynamic;
	full.outlier_skip = &outliers;
	full.checkpoint = &checkpoint;
	fill_numbers();
	fill_messages();
}

struct job_spec spec_full_take(void)
{
	struct job_spec s;
	const char *field = "";
	char why[320] = "";
	ck_assert_msg(spec_from_message(&full, &s, &field, why, sizeof(why)) == ST_OK, "%s: %s", field, why);
	return s;
}
