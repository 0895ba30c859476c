/* SPDX-License-Identifier: Apache-2.0 */
/* Specifications that are refused: with the field's name, and a sentence that says what is allowed. */
#include "spec_full.h"

#include <check.h>
#include <math.h>
#include <string.h>

Suite *refused_suite(void);

static char long_text[5000];

static char *of_length(size_t n)
{
	memset(long_text, 'a', n);
	long_text[0] = '/';
	long_text[n] = '\0';
	return long_text;
}

static void refused(const char *name, const char *part_of_why)
{
	struct job_spec s = { .ranks = 12345 };
	const char *field = "nothing";
	char why[320] = "";
	ck_assert_msg(spec_from_message(&full, &s, &field, why, sizeof(why)) == ST_INVALID_SPEC, "%s is taken", name);
	ck_assert_str_eq(field, name);
	ck_assert_msg(strstr(why, part_of_why) != NULL, "%s: %s", field, why);
	ck_assert_uint_eq(s.ranks, 12345); /* *out is as it was */
	spec_full();
}

static void taken(void)
{
	struct job_spec s = spec_full_take();
	job_spec_fini(&s);
	spec_full();
}

#define REFUSED(change, name, why)                                                                                     \
	do {                                                                                                           \
		change;                                                                                                \
		refused(name, why);                                                                                    \
	} while (0)

START_TEST(names)
{
	char with[] = "a\tb", deleted[] = "ab\x7f", utf8[] = "caf\xc3\xa9 7", empty[] = "";
	REFUSED(full.name = empty, "name", "name is empty");
	REFUSED(full.name = with, "name", "the control character 0x09 at byte 1");
	REFUSED(full.name = deleted, "name", "the control character 0x7f at byte 2");
	REFUSED(full.name = of_length(128), "name", "name has 128 bytes, at most 127 are allowed");
	full.name = of_length(127);
	taken();
	full.name = utf8;
	taken();
}
END_TEST

START_TEST(paths)
{
	char relative[] = "logs", up[] = "/a/../b", up_last[] = "/a/..", dots[] = "/a/..b/...";
	REFUSED(full.restore_from = relative, "restore_from", "absolute path");
	REFUSED(full.restore_from = up, "restore_from", "absolute path");
	REFUSED(full.restore_from = up_last, "restore_from", "absolute path");
	REFUSED(checkpoint.dir = relative, "checkpoint.dir", "must be absolute");
	REFUSED(checkpoint.dir = up, "checkpoint.dir", "must be absolute");
	REFUSED(checkpoint.dir = up_last, "checkpoint.dir", "must be absolute");
	full.restore_from = checkpoint.dir = dots;
	taken();
	REFUSED(full.log_dir = of_length(4097), "log_dir", "4097 bytes, at most 4096");
	REFUSED(checkpoint.dir = of_length(3841), "checkpoint.dir", "3841 bytes, at most 3840");
	REFUSED(full.restore_from = of_length(3841), "restore_from", "3841 bytes, at most 3840");
	full.log_dir = of_length(4096);
	taken();
	full.restore_from = checkpoint.dir = of_length(3840);
	taken();
	full.launch = GACC__V1__LAUNCH_MODE__LAUNCH_MODE_DAEMON;
	taken();
	REFUSED((full.launch = 3, full.log_dir = relative), "launch_command.working_dir", "must be absolute");
	REFUSED((full.launch = 3, launch.working_dir = relative), "launch_command.working_dir", "must be absolute");
	full.log_dir = relative; /* ranks are not started here */
	taken();
}
END_TEST

START_TEST(numbers_that_no_enum_has)
{
	static const struct {
		int *value;
		const char *field;
	} of[] = { { (int *)&full.reduction, "reduction" },
		   { (int *)&full.grad_of, "grad_of" },
		   { (int *)&full.uneven, "uneven" },
		   { (int *)&full.accumulate, "accumulate" },
		   { (int *)&full.untouched, "untouched" },
		   { (int *)&full.device, "device" },
		   { (int *)&full.accumulate_dtype, "accumulate_dtype" },
		   { (int *)&full.gradient_dtype, "gradient_dtype" },
		   { (int *)&full.master, "master" },
		   { (int *)&full.nonfinite, "nonfinite" },
		   { (int *)&full.ordering, "ordering" },
		   { (int *)&full.launch, "launch" },
		   { (int *)&optimizer.type, "optimizer" },
		   { (int *)&schedule.type, "schedule" },
		   { (int *)&rule.type, "init.type" } };
	static const int wrong[] = { -1, 99, INT32_MAX, INT32_MIN };
	for (size_t i = 0; i < sizeof(of) / sizeof(*of); i++)
		for (size_t k = 0; k < sizeof(wrong) / sizeof(*wrong); k++)
			REFUSED(*of[i].value = wrong[k], of[i].field, "");
}
END_TEST

/* full.max_micro_size is 16, which leaves 0 to be filled in. */
START_TEST(sums_that_stay_in_their_slot)
{
	char none[] = "";
#define IN_SLOT (full.accumulate = 2, full.ranks = full.micro_size = 1, full.max_micro_size = 0)
	REFUSED((IN_SLOT, full.ranks = 2), "accumulate", "for one rank, this job has 2");
	REFUSED((IN_SLOT, full.micro_size = 2), "accumulate", "micro_size is 2");
	REFUSED((IN_SLOT, full.max_micro_size = 2), "accumulate", "max_micro_size 2, both must be 1");
	REFUSED((IN_SLOT, full.accumulate_dtype = GACC__V1__DATA_TYPE__DATA_TYPE_F64), "accumulate",
		"accumulate_dtype f64");
	REFUSED((IN_SLOT, checkpoint.every_steps = 0, checkpoint.at_end = 0, full.restore_from = none,
		 optimizer.type = GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_TYPE_CLIENT),
		"accumulate", "optimizer client");
	IN_SLOT;
	taken();
#undef IN_SLOT
}
END_TEST

START_TEST(steps_of_the_trainers_leave_out_what_they_like)
{
	char none[] = "";
	REFUSED((full.untouched = 2, checkpoint.every_steps = 0, checkpoint.at_end = 0, full.restore_from = none,
		 optimizer.type = GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_TYPE_CLIENT),
		"untouched", "optimizer client");
	full.untouched = GACC__V1__UNTOUCHED__UNTOUCHED_SKIP;
	taken();
	full.device = GACC__V1__DEVICE__DEVICE_CUDA;
	taken();
}
END_TEST

START_TEST(jobs_that_no_gpu_takes)
{
	char none[] = "";
	full.device = GACC__V1__DEVICE__DEVICE_CUDA;
	taken();
#define ON_GPU full.device = GACC__V1__DEVICE__DEVICE_CUDA
	REFUSED((ON_GPU, full.parts = 2, full.ranks = 2, full.gpu = (char *)"GPU-0"), "gpu", "gpu with 2 parts");
	REFUSED((ON_GPU, full.parts = 2, full.ranks = 2, full.sharding = GACC__V1__SHARDING__SHARDING_FULL), "sharding",
		"device: cuda with sharding");
	REFUSED((ON_GPU, full.accumulate_dtype = GACC__V1__DATA_TYPE__DATA_TYPE_F64), "device", "sum in f32");
	REFUSED((ON_GPU, full.accumulate = 2, full.ranks = full.micro_size = 1, full.max_micro_size = 0), "device",
		"accumulate: none");
	REFUSED((ON_GPU, checkpoint.every_steps = 0, checkpoint.at_end = 0, full.restore_from = none,
		 optimizer.type = GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_TYPE_CLIENT),
		"device", "optimizer client");
	REFUSED(full.slots_on = GACC__V1__SLOTS_ON__SLOTS_ON_DEVICE, "slots_on", "for jobs with device: cuda");
	REFUSED((ON_GPU, full.slots_on = 3), "slots_on", "slots_on 3 is unknown: host or device");
	REFUSED((ON_GPU, full.slots_on = GACC__V1__SLOTS_ON__SLOTS_ON_DEVICE, full.slots_per_rank = 1),
		"slots_per_rank", "with slots_on: device it must be 2");
	REFUSED(full.verify_params = true, "verify_params", "trainers cannot write to parameters in shared memory");
	REFUSED((ON_GPU, full.verify_params = true), "verify_params", "with slots_on: host");
	REFUSED(full.gpu = (char *)"GPU-0", "gpu", "for jobs with device: cuda");
	REFUSED((ON_GPU, full.gpu = (char *)"GPU-"), "gpu", "gpu is \"GPU-\"");
	REFUSED((ON_GPU, full.gpu = (char *)"0"), "gpu", "nvidia-smi -L");
	REFUSED((ON_GPU, full.gpu = (char *)"GPU-12 4"), "gpu", "nvidia-smi -L");
	REFUSED((ON_GPU, full.gpu = (char *)"GPU-12345678-1234-1234-1234-1234567890123"), "gpu",
		"41 bytes, at most 40");
	ON_GPU;
	full.gpu = (char *)"GPU-12345678-1234-1234-1234-123456789012";
	taken();
#undef ON_GPU
}
END_TEST

START_TEST(ranges)
{
	char empty[] = "", no_name[] = "A=B";
	Gacc__V1__InitRule *many_rules[257];
	Gacc__V1__ParamGroup *many_groups[257];
	Gacc__V1__Label *many_labels[257];
	for (int i = 0; i < 257; i++) {
		many_rules[i] = &rule;
		many_groups[i] = &group;
		many_labels[i] = &variable;
	}
	REFUSED(full.ranks = 0, "ranks", "ranks is 0");
	REFUSED(full.ranks = 65537, "ranks", "ranks is 65537");
	REFUSED(full.micro_size = 0, "micro_size", "micro_size is 0");
	REFUSED(full.max_micro_size = 1, "max_micro_size", "max_micro_size is 1");
	REFUSED(full.parts = 17, "parts", "parts is 17, must be 1..16");
	REFUSED(full.sharding = 4, "sharding", "sharding 4 is unknown");
	REFUSED(full.sharding = 3, "shard_size", "shard_size is 0: with sharding: hybrid give how many parts");
	REFUSED((full.sharding = 3, full.shard_size = 2), "shard_size", "a divisor of parts (1)");
	REFUSED(full.shard_size = 2, "shard_size", "it is for sharding: hybrid");
	REFUSED(full.shard_threshold = 1, "shard_threshold", "leave it out");
	REFUSED(full.slots_per_rank = 3, "slots_per_rank", "slots_per_rank is 3");
	REFUSED(full.clip_norm = NAN, "clip_norm", "nan");
	REFUSED(full.loss_scale = INFINITY, "loss_scale", "inf");
	REFUSED(optimizer.lr = -1, "optimizer", "optimizer.lr: -1");
	REFUSED(dynamic.backoff_factor = 1, "dynamic_loss_scale.backoff_factor", "is 1");
	REFUSED(outliers.factor = 0.5, "outlier_skip.factor", "0.5");
	REFUSED((group.pattern = empty, group.n_tensors = 0), "param_groups.pattern",
		"param_groups[0].pattern is empty");
	REFUSED(rule.pattern = of_length(256), "init.pattern", "256 bytes");
	REFUSED((full.init = many_rules, full.n_init = 257), "init", "257 init rules, at most 256");
	REFUSED((full.param_groups = many_groups, full.n_param_groups = 257), "param_groups", "257 param_groups");
	REFUSED((full.labels = many_labels, full.n_labels = 257), "labels", "257 labels, at most 256");
	REFUSED((full.launch = 3, launch.n_command = 0), "launch_command.command", "must name the program");
	REFUSED((full.launch = 3, variable.key = empty), "launch_command.environment", "must not be empty");
	REFUSED((full.launch = 3, variable.key = no_name), "launch_command.environment", "must not contain =");
	REFUSED((full.launch = 3, launch.grace_ms = UINT64_MAX), "launch_command.grace_ms", "at most an hour");
	full.labels = many_labels;
	full.n_labels = 256;
	full.init = many_rules;
	full.n_init = 256;
	taken();
}
END_TEST

START_TEST(times_do_not_run_over)
{
	ck_assert_int_eq(spec_ms(0), 0);
	ck_assert_int_eq(spec_ms(1), 1000000);
	ck_assert_int_eq(spec_ms(INT64_MAX / 1000000), INT64_MAX / 1000000 * 1000000);
	ck_assert_int_eq(spec_ms(INT64_MAX / 1000000 + 1), INT64_MAX);
	ck_assert_int_eq(spec_ms(UINT64_MAX), INT64_MAX);
	full.stall_abort_ms = full.abandoned_ms = UINT64_MAX;
	struct job_spec s = spec_full_take();
	ck_assert_int_eq(s.stall_abort_ns, INT64_MAX);
	ck_assert_int_eq(s.abandoned_ns, INT64_MAX);
	job_spec_fini(&s);
}
END_TEST

Suite *refused_suite(void)
{
	Suite *s = suite_create("refused");
	TCase *t = tcase_create("refused");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, spec_full, NULL);
	tcase_add_test(t, names);
	tcase_add_test(t, paths);
	tcase_add_test(t, numbers_that_no_enum_has);
	tcase_add_test(t, sums_that_stay_in_their_slot);
	tcase_add_test(t, steps_of_the_trainers_leave_out_what_they_like);
	tcase_add_test(t, jobs_that_no_gpu_takes);
	tcase_add_test(t, ranges);
	tcase_add_test(t, times_do_not_run_over);
	return s;
}
