/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/spec.h"

#include "gacc/gacc_admin.h"
#include "support/suite.h"

#include <gacc/v1/common.pb-c.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char why[512];

static Gacc__V1__JobSpec *parse(const char *text)
{
	Gacc__V1__JobSpec *m = NULL;
	enum status st = spec_parse(text, strlen(text), "job.yaml", &m, why, sizeof(why));
	ck_assert_msg(st == ST_OK, "%s", why);
	return m;
}

START_TEST(a_whole_file)
{
	Gacc__V1__JobSpec *m =
		parse("api_version: gacc/v1\n"
		      "kind: Job\n"
		      "metadata: { name: mlp, labels: { team: vision } }\n"
		      "spec:\n"
		      "  ranks: 4\n"
		      "  micro_size: 8                 # per rank and step\n"
		      "  max_micro_size: 128\n"
		      "  steps: 177\n"
		      "  batch: 32\n"
		      "  reduction: fixed_divisor\n"
		      "  fixed_divisor: 1000\n"
		      "  grad_of: sum\n"
		      "  uneven: drop\n"
		      "  accumulate_dtype: f64\n"
		      "  gradient_dtype: bf16\n"
		      "  master: none\n"
		      "  clip_norm: 1.0\n"
		      "  clip_value: 0.5\n"
		      "  nonfinite: reject_micro\n"
		      "  loss_scale: 1024\n"
		      "  dynamic_loss_scale: { enabled: true, growth_factor: 4, backoff_factor: 0.25,\n"
		      "    growth_interval: 100, hysteresis: 2, min_scale: 8, max_scale: 65536 }\n"
		      "  outlier_skip: { factor: 5, decay: 0.9, warmup_steps: 30 }\n"
		      "  optimizer: { type: sgd, lr: 0.1, momentum: 0.9, nesterov: true, weight_decay: 1e-4 }\n"
		      "  schedule: { type: cosine, warmup_steps: 10, total_steps: 177, min_factor: 0.1 }\n"
		      "  param_groups:\n"
		      "  - { pattern: '*.bias', weight_decay: 0 }\n"
		      "  - { pattern: 'emb*', tensors: [w, 'a[0]'], lr_scale: 0.1, frozen: true }\n"
		      "  init:\n"
		      "  - { pattern: '*.bias', type: zeros }\n"
		      "  - { pattern: '*', type: normal, a: -1, b: 0.02 }\n"
		      "  seed: 18446744073709551615\n"
		      "  deterministic: false\n"
		      "  slots_per_rank: 1\n"
		      "  parts: 3\n"
		      "  nodes: 'a:2,b:1'\n"
		      "  sharding: full\n"
		      "  accumulate: none\n"
		      "  untouched: skip\n"
		      "  device: cuda\n"
		      "  slots_on: device\n"
		      "  verify_params: true\n"
		      "  gpu: GPU-12ab\n"
		      "  shard_threshold: 7\n"
		      "  shard_size: 3\n"
		      "  timeouts: { stall_warn: 1500ms, stall_abort: 1h, abandoned: 2h }\n"
		      "  launch:\n"
		      "    { mode: daemon, command: [python3, train.py, --lr, 0.1], working_dir: /tmp,\n"
		      "      environment: { A: '1', B: '' }, max_restarts: 3, grace: 5s, no_torch_env: true }\n"
		      "  host_memory: 1.5GiB\n"
		      "  checkpoint: { dir: /data/%j, every_steps: 100, keep: 3, at_end: true }\n"
		      "  restore_from: /data/1/step-5-2\n"
		      "  output: { log_dir: /var/log/gacc/%j-%x }\n"
		      "  tensors:\n"
		      "  - { name: w, shape: [784, 10] }\n"
		      "  - { name: tied, dtype: bf16, shape: [784, 10], alias_of: w }\n");
	ck_assert_str_eq(m->name, "mlp");
	ck_assert_uint_eq(m->n_labels, 1);
	ck_assert_str_eq(m->labels[0]->key, "team");
	ck_assert_str_eq(m->labels[0]->value, "vision");
	ck_assert_uint_eq(m->ranks, 4);
	ck_assert_uint_eq(m->micro_size, 8);
	ck_assert_uint_eq(m->max_micro_size, 128);
	ck_assert_uint_eq(m->steps, 177);
	ck_assert_uint_eq(m->batch, 32);
	ck_assert_int_eq(m->reduction, GACC__V1__REDUCTION__REDUCTION_FIXED_DIVISOR);
	ck_assert_double_eq(m->fixed_divisor, 1000);
	ck_assert_int_eq(m->grad_of, GACC__V1__GRAD_OF__GRAD_OF_SUM);
	ck_assert_int_eq(m->uneven, GACC__V1__UNEVEN__UNEVEN_DROP);
	ck_assert_int_eq(m->accumulate_dtype, GACC__V1__DATA_TYPE__DATA_TYPE_F64);
	ck_assert_int_eq(m->gradient_dtype, GACC__V1__DATA_TYPE__DATA_TYPE_BF16);
	ck_assert_int_eq(m->master, GACC__V1__MASTER__MASTER_NONE);
	ck_assert_double_eq(m->clip_norm, 1);
	ck_assert_double_eq(m->clip_value, 0.5);
	ck_assert_int_eq(m->nonfinite, GACC__V1__NON_FINITE__NON_FINITE_REJECT_MICRO);
	ck_assert_double_eq(m->loss_scale, 1024);
	ck_assert_int_eq(m->optimizer->type, GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_TYPE_SGD);
	ck_assert_double_eq(m->optimizer->lr, 0.1);
	ck_assert_double_eq(m->optimizer->momentum, 0.9);
	ck_assert(m->optimizer->nesterov);
	ck_assert_double_eq(m->optimizer->weight_decay, 1e-4);
	ck_assert_double_eq(m->optimizer->eps, 0);
	ck_assert_int_eq(m->schedule->type, GACC__V1__SCHEDULE_TYPE__SCHEDULE_TYPE_COSINE);
	ck_assert_uint_eq(m->schedule->warmup_steps, 10);
	ck_assert_double_eq(m->schedule->warmup_start_factor, 1.0 / 3);
	ck_assert_double_eq(m->schedule->min_factor, 0.1);
	ck_assert_double_eq(m->schedule->gamma, 0);
	ck_assert(m->dynamic_loss_scale->enabled);
	ck_assert_double_eq(m->dynamic_loss_scale->growth_factor, 4);
	ck_assert_double_eq(m->dynamic_loss_scale->backoff_factor, 0.25);
	ck_assert_uint_eq(m->dynamic_loss_scale->growth_interval, 100);
	ck_assert_uint_eq(m->dynamic_loss_scale->hysteresis, 2);
	ck_assert_double_eq(m->dynamic_loss_scale->min_scale, 8);
	ck_assert_double_eq(m->dynamic_loss_scale->max_scale, 65536);
	ck_assert_double_eq(m->outlier_skip->factor, 5);
	ck_assert_double_eq(m->outlier_skip->decay, 0.9);
	ck_assert_uint_eq(m->outlier_skip->warmup_steps, 30);
	ck_assert_uint_eq(m->n_param_groups, 2);
	ck_assert_str_eq(m->param_groups[0]->pattern, "*.bias");
	ck_assert_double_eq(m->param_groups[0]->lr_scale, 1);
	ck_assert(m->param_groups[0]->override_weight_decay && m->param_groups[0]->weight_decay == 0);
	ck_assert(!m->param_groups[1]->override_weight_decay && m->param_groups[1]->frozen);
	ck_assert_uint_eq(m->param_groups[0]->n_tensors, 0);
	ck_assert_uint_eq(m->param_groups[1]->n_tensors, 2);
	ck_assert_str_eq(m->param_groups[1]->tensors[1], "a[0]");
	ck_assert_uint_eq(m->n_init, 2);
	ck_assert_int_eq(m->init[1]->type, GACC__V1__INIT_TYPE__INIT_TYPE_NORMAL);
	ck_assert_double_eq(m->init[1]->a, -1);
	ck_assert_double_eq(m->init[1]->b, 0.02);
	ck_assert_uint_eq(m->seed, UINT64_MAX);
	ck_assert_int_eq(m->ordering, GACC__V1__ORDERING__ORDERING_ARRIVAL);
	ck_assert_uint_eq(m->slots_per_rank, 1);
	ck_assert_uint_eq(m->parts, 3);
	ck_assert_uint_eq(m->stall_warn_ms, 1500);
	ck_assert_uint_eq(m->stall_abort_ms, 3600000);
	ck_assert_uint_eq(m->abandoned_ms, 7200000);
	ck_assert_int_eq(m->launch, GACC__V1__LAUNCH_MODE__LAUNCH_MODE_DAEMON);
	ck_assert_uint_eq(m->launch_command->n_command, 4);
	ck_assert_str_eq(m->launch_command->command[3], "0.1");
	ck_assert_str_eq(m->launch_command->working_dir, "/tmp");
	ck_assert_uint_eq(m->launch_command->n_environment, 2);
	ck_assert_str_eq(m->launch_command->environment[0]->key, "A");
	ck_assert_str_eq(m->launch_command->environment[1]->value, "");
	ck_assert_uint_eq(m->launch_command->max_restarts, 3);
	ck_assert_uint_eq(m->launch_command->grace_ms, 5000);
	ck_assert_uint_eq(m->host_memory, 3u << 29);
	ck_assert_str_eq(m->checkpoint->dir, "/data/%j");
	ck_assert_uint_eq(m->checkpoint->every_steps, 100);
	ck_assert_uint_eq(m->checkpoint->keep, 3);
	ck_assert(m->checkpoint->at_end);
	ck_assert_str_eq(m->restore_from, "/data/1/step-5-2");
	ck_assert_str_eq(m->nodes, "a:2,b:1");
	ck_assert_int_eq(m->sharding, GACC__V1__SHARDING__SHARDING_FULL);
	ck_assert_uint_eq(m->shard_threshold, 7);
	ck_assert_uint_eq(m->shard_size, 3);
	ck_assert_int_eq(m->accumulate, GACC__V1__ACCUMULATE__ACCUMULATE_NONE);
	ck_assert_int_eq(m->untouched, GACC__V1__UNTOUCHED__UNTOUCHED_SKIP);
	ck_assert_int_eq(m->device, GACC__V1__DEVICE__DEVICE_CUDA);
	ck_assert_str_eq(m->gpu, "GPU-12ab");
	ck_assert_int_eq(m->slots_on, GACC__V1__SLOTS_ON__SLOTS_ON_DEVICE);
	ck_assert(m->verify_params);
	ck_assert_str_eq(m->log_dir, "/var/log/gacc/%j-%x");
	ck_assert_uint_eq(m->n_tensors, 2);
	ck_assert_int_eq(m->tensors[0]->dtype, GACC__V1__DATA_TYPE__DATA_TYPE_F32);
	ck_assert_uint_eq(m->tensors[0]->n_shape, 2);
	ck_assert_int_eq(m->tensors[0]->shape[0], 784);
	ck_assert_str_eq(m->tensors[0]->alias_of, "");
	ck_assert_str_eq(m->tensors[1]->alias_of, "w");
	spec_free(m);
}
END_TEST

/* Values that no key sets yet. */
static const char *const values_to_come[] = { "OPTIMIZER_TYPE_LAMB" };

START_TEST(every_field_of_the_message_was_in_that_file)
{
	/* The file above names every field of JobSpec: one that the proto gains must get a key here and there. */
	ck_assert_uint_eq(gacc__v1__job_spec__descriptor.n_fields, 48);
	ck_assert_uint_eq(gacc__v1__checkpoint_policy__descriptor.n_fields, 4);
	ck_assert_uint_eq(gacc__v1__dynamic_loss_scale__descriptor.n_fields, 7);
	ck_assert_uint_eq(gacc__v1__outlier_skip__descriptor.n_fields, 3);
	ck_assert_uint_eq(gacc__v1__optimizer__descriptor.n_fields, 9);
	ck_assert_uint_eq(gacc__v1__schedule__descriptor.n_fields, 7);
	ck_assert_uint_eq(gacc__v1__param_group__descriptor.n_fields, 6);
	ck_assert_uint_eq(gacc__v1__init_rule__descriptor.n_fields, 4);
	ck_assert_uint_eq(gacc__v1__tensor_spec__descriptor.n_fields, 4);
}
END_TEST

START_TEST(json_and_the_alias)
{
	Gacc__V1__JobSpec *m = parse("{\"spec\": {\"gradient_accumulation_steps\": 16}}");
	ck_assert_uint_eq(m->micro_size, 16);
	ck_assert_uint_eq(m->ranks, 1);
	spec_free(m);
}
END_TEST

static const struct {
	const char *type;
	double lr, weight_decay, beta1, beta2, eps;
} pytorch[] = { { "sgd", 1e-3, 0, 0, 0, 0 },
		{ "adam", 1e-3, 0, 0.9, 0.999, 1e-8 },
		{ "adamw", 1e-3, 1e-2, 0.9, 0.999, 1e-8 },
		{ "lamb", 1e-3, 1e-2, 0.9, 0.999, 1e-6 },
		{ "client", 0, 0, 0, 0, 0 } };

START_TEST(optimizers_have_pytorchs_defaults)
{
	char text[64];
	snprintf(text, sizeof(text), "spec: { optimizer: { type: %s } }", pytorch[_i].type);
	Gacc__V1__JobSpec *m = parse(text);
	ck_assert_double_eq(m->optimizer->lr, pytorch[_i].lr);
	ck_assert_double_eq(m->optimizer->weight_decay, pytorch[_i].weight_decay);
	ck_assert_double_eq(m->optimizer->beta1, pytorch[_i].beta1);
	ck_assert_double_eq(m->optimizer->beta2, pytorch[_i].beta2);
	ck_assert_double_eq(m->optimizer->eps, pytorch[_i].eps);
	ck_assert_double_eq(m->optimizer->momentum, 0);
	spec_free(m);
}
END_TEST

START_TEST(what_is_given_is_kept)
{
	Gacc__V1__JobSpec *m =
		parse("spec: { optimizer: { type: adamw, betas: [0.8, 0.95], weight_decay: 0, lr: 0 } }");
	ck_assert_double_eq(m->optimizer->beta1, 0.8);
	ck_assert_double_eq(m->optimizer->beta2, 0.95);
	ck_assert_double_eq(m->optimizer->weight_decay, 0);
	ck_assert_double_eq(m->optimizer->lr, 0);
	spec_free(m);
	m = parse("spec: { schedule: { type: step, step_size: 30 } }");
	ck_assert_double_eq(m->schedule->gamma, 0.1);
	ck_assert_double_eq(m->schedule->warmup_start_factor, 0);
	spec_free(m);
}
END_TEST

/* Reads the enum that a file with `format` sets. */
static const struct {
	const char *format;
	const ProtobufCEnumDescriptor *type;
	const char *prefix;
	size_t offset; /* in JobSpec; of the message there if `inner` */
	size_t inner;
} enums[] = {
#define OF(field) offsetof(Gacc__V1__JobSpec, field)
	{ "reduction: %s", &gacc__v1__reduction__descriptor, "REDUCTION_", OF(reduction), 0 },
	{ "grad_of: %s", &gacc__v1__grad_of__descriptor, "GRAD_OF_", OF(grad_of), 0 },
	{ "uneven: %s", &gacc__v1__uneven__descriptor, "UNEVEN_", OF(uneven), 0 },
	{ "accumulate_dtype: %s", &gacc__v1__data_type__descriptor, "DATA_TYPE_", OF(accumulate_dtype), 0 },
	{ "gradient_dtype: %s", &gacc__v1__data_type__descriptor, "DATA_TYPE_", OF(gradient_dtype), 0 },
	{ "untouched: %s", &gacc__v1__untouched__descriptor, "UNTOUCHED_", OF(untouched), 0 },
	{ "device: %s", &gacc__v1__device__descriptor, "DEVICE_", OF(device), 0 },
	{ "slots_on: %s", &gacc__v1__slots_on__descriptor, "SLOTS_ON_", OF(slots_on), 0 },
	{ "master: %s", &gacc__v1__master__descriptor, "MASTER_", OF(master), 0 },
	{ "nonfinite: %s", &gacc__v1__non_finite__descriptor, "NON_FINITE_", OF(nonfinite), 0 },
	{ "ordering: %s", &gacc__v1__ordering__descriptor, "ORDERING_", OF(ordering), 0 },
	{ "init: [ { pattern: x, type: %s } ]", &gacc__v1__init_type__descriptor, "INIT_TYPE_", OF(init),
	  offsetof(Gacc__V1__InitRule, type) },
	{ "launch: { mode: %s }", &gacc__v1__launch_mode__descriptor, "LAUNCH_MODE_", OF(launch), 0 },
	{ "optimizer: { type: %s }", &gacc__v1__optimizer_type__descriptor, "OPTIMIZER_TYPE_", OF(optimizer),
	  offsetof(Gacc__V1__Optimizer, type) },
	{ "schedule: { type: %s }", &gacc__v1__schedule_type__descriptor, "SCHEDULE_TYPE_", OF(schedule),
	  offsetof(Gacc__V1__Schedule, type) },
};

static bool is_to_come(const char *value)
{
	for (size_t i = 0; i < sizeof(values_to_come) / sizeof(*values_to_come); i++)
		if (!strcmp(value, values_to_come[i]))
			return true;
	return false;
}

START_TEST(every_enum_value_has_its_name)
{
	for (unsigned v = 1; v < enums[_i].type->n_values; v++) {
		char name[64], line[128], text[160];
		const ProtobufCEnumValue *value = &enums[_i].type->values[v];
		if (is_to_come(value->name))
			continue;
		ck_assert_int_eq(strncmp(value->name, enums[_i].prefix, strlen(enums[_i].prefix)), 0);
		snprintf(name, sizeof(name), "%s", value->name + strlen(enums[_i].prefix));
		for (char *c = name; *c; c++)
			*c = (char)tolower((unsigned char)*c);
		snprintf(line, sizeof(line), enums[_i].format, name);
		snprintf(text, sizeof(text), "spec: { %s }", line);
		Gacc__V1__JobSpec *m = parse(text);
		const char *at = (const char *)m + enums[_i].offset;
		if (enums[_i].offset == OF(init))
			at = *(const char *const *)at; /* its first message */
		if (enums[_i].inner)
			at = *(const char *const *)at + enums[_i].inner;
		ck_assert_msg(*(const int *)at == value->value, "%s", text);
		spec_free(m);
	}
}
END_TEST

static const struct {
	const char *text, *error;
} wrong[] = {
	{ "name: mlp", "job.yaml:1:1: unknown key \"name\"; there is metadata.name" },
	{ "spec: { lr: 1 }", "job.yaml:1:9: unknown key \"lr\" in spec; there is spec.optimizer.lr" },
	{ "spec: { zzzzzzzz: 1 }", "job.yaml:1:9: unknown key \"zzzzzzzz\" in spec; there are ranks, micro_size, "
				   "gradient_accumulation_steps, max_micro_size, steps, batch, reduction, "
				   "fixed_divisor, grad_of, uneven, accumulate, untouched, "
				   "accumulate_dtype, gradient_dtype, master, clip_norm, clip_value, nonfinite, "
				   "loss_scale, dynamic_loss_scale, outlier_skip, optimizer, schedule, ..." },
	{ "spec:\n  micro_sise: 8\n",
	  "job.yaml:2:3: unknown key \"micro_sise\" in spec; did you mean \"micro_size\"?" },
	{ "spec:\n  reduction: weighted_men\n",
	  "job.yaml:2:14: spec.reduction: \"weighted_men\" is none of weighted_mean, mean, sum, fixed_divisor;"
	  " did you mean \"weighted_mean\"?" },
	{ "spec: { micro_size: 8, gradient_accumulation_steps: 8 }",
	  "job.yaml:1:24: \"gradient_accumulation_steps\" sets micro_size a second time" },
	{ "spec: { ranks: 0 }", "job.yaml:1:16: spec.ranks: \"0\" must be in 1..65536" },
	{ "api_version: gacc/v2",
	  "job.yaml:1:14: api_version: \"gacc/v2\" is none of gacc/v1; did you mean \"gacc/v1\"?" },
	{ "kind: Pod", "job.yaml:1:7: kind: \"Pod\" is none of Job" },
	{ "spec: { optimizer: { type: sgd, betas: [0.9, 0.9] } }",
	  "job.yaml:1:40: spec.optimizer.betas: sgd has no betas" },
	{ "spec: { optimizer: { nesterov: true, type: adam } }",
	  "job.yaml:1:32: spec.optimizer.nesterov: adam has no nesterov" },
	{ "spec: { optimizer: { type: client, lr: 1 } }", "job.yaml:1:40: spec.optimizer.lr: client has no lr" },
	{ "spec: { optimizer: { type: client, weight_decay: 1 } }",
	  "job.yaml:1:50: spec.optimizer.weight_decay: client has no weight_decay" },
	{ "spec: { optimizer: { type: adam, lr: -1 } }",
	  "job.yaml:1:38: spec.optimizer.lr: \"-1\" must be at least 0" },
	{ "spec: { param_groups: [ { patern: x } ] }",
	  "job.yaml:1:27: unknown key \"patern\" in spec.param_groups; did you mean \"pattern\"?" },
	{ "spec: { timeouts: { stall_warn: 60 } }", "job.yaml:1:33: spec.timeouts.stall_warn: \"60\" is not a time: a "
						    "number and ms, s, m, h or d, as 10s or 1h30m" },
	{ "spec: { tensors: [ { name: w, shape: [0] } ] }",
	  "job.yaml:1:39: spec.tensors.shape: \"0\" must be at least 1" },
};

START_TEST(mistakes_are_named_with_their_place)
{
	Gacc__V1__JobSpec *m = NULL;
	ck_assert_int_eq(spec_parse(wrong[_i].text, strlen(wrong[_i].text), "job.yaml", &m, why, sizeof(why)),
			 ST_INVALID_SPEC);
	ck_assert_str_eq(why, wrong[_i].error);
	ck_assert_ptr_null(m);
}
END_TEST

START_TEST(a_spec_is_changed_key_by_key)
{
	gacc_spec *s = NULL;
	ck_assert_int_eq(gacc_spec_parse(NULL, "none", &s, why, sizeof(why)), GACC_OK);
	ck_assert_uint_eq(spec_message(s)->micro_size, 1);
	ck_assert_int_eq(gacc_spec_set(s, "spec.micro_size", "8", why, sizeof(why)), GACC_OK);
	ck_assert_int_eq(gacc_spec_set(s, "optimizer.type", "adamw", why, sizeof(why)), GACC_OK);
	ck_assert_int_eq(gacc_spec_set(s, "optimizer.betas", "[0.5, 0.6]", why, sizeof(why)), GACC_OK);
	ck_assert_int_eq(gacc_spec_set(s, "metadata.name", "x", why, sizeof(why)), GACC_OK);
	ck_assert_int_eq(gacc_spec_set(s, "param_groups", "[{pattern: '*'}]", why, sizeof(why)), GACC_OK);
	ck_assert_int_eq(gacc_spec_set(s, "ranks", "2", why, sizeof(why)), GACC_OK);
	ck_assert_uint_eq(spec_message(s)->micro_size, 8);
	ck_assert_double_eq(spec_message(s)->optimizer->beta2, 0.6);
	ck_assert_double_eq(spec_message(s)->optimizer->eps, 1e-8);
	ck_assert_str_eq(spec_message(s)->name, "x");
	ck_assert(!spec_message(s)->param_groups[0]->override_weight_decay);

	ck_assert_int_eq(gacc_spec_set(s, "rank", "3", why, sizeof(why)), GACC_EINVAL);
	ck_assert_str_eq(why, "--set: unknown key \"rank\" in spec; did you mean \"ranks\"?");
	ck_assert_int_eq(gacc_spec_set(s, "ranks", "many", why, sizeof(why)), GACC_EINVAL);
	ck_assert_str_eq(why, "--set: spec.ranks: \"many\" is not a whole number >= 0");
	ck_assert_int_eq(gacc_spec_set(s, "optimizer.type", "sgd", why, sizeof(why)), GACC_EINVAL);
	ck_assert_str_eq(why, "--set: spec.optimizer.betas: sgd has no betas");
	ck_assert_uint_eq(spec_message(s)->ranks, 2);
	ck_assert_ptr_nonnull(strstr(gacc_spec_json(s), "\"micro_size\":8"));
	gacc_spec_free(s);
	s = NULL;
	ck_assert_int_eq(gacc_spec_parse("speck: 1", "f", &s, why, sizeof(why)), GACC_EINVAL);
	ck_assert_str_eq(why, "f:1:1: unknown key \"speck\"; did you mean \"spec\"?");
	ck_assert_ptr_null(s);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("spec");
	TCase *c = tcase_create("spec");
	suite_add_tcase(s, c);
	tcase_add_test(c, a_whole_file);
	tcase_add_test(c, every_field_of_the_message_was_in_that_file);
	tcase_add_test(c, json_and_the_alias);
	tcase_add_loop_test(c, optimizers_have_pytorchs_defaults, 0, sizeof(pytorch) / sizeof(*pytorch));
	tcase_add_test(c, what_is_given_is_kept);
	tcase_add_loop_test(c, every_enum_value_has_its_name, 0, sizeof(enums) / sizeof(*enums));
	tcase_add_loop_test(c, mistakes_are_named_with_their_place, 0, sizeof(wrong) / sizeof(*wrong));
	tcase_add_test(c, a_spec_is_changed_key_by_key);
	return suite_run(s);
}
