/* SPDX-License-Identifier: Apache-2.0 */
/* verify_params in real engines: what something else has written to the parameters is noticed before it counts. */
#include "rig.h"
#include "support/scratch.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct rig rig;

/* Tensors of rig_small: one of f32 and one of each 16-bit type, whose masters trainers do not see. */
static const int tensors[] = { 0, 1, 3 };
#define N_TENSORS ((int)(sizeof(tensors) / sizeof(tensors[0])))

static void begin(bool asked, bool no_master)
{
	struct rig_config c = rig_small();
	c.verify_params = asked;
	c.no_master = no_master;
	rig_begin(&rig, c);
	rig_zero_params(&rig);
}

/* A bit of the tensor's last element. */
static void flip(int tensor)
{
	const struct arena_tensor *t = &rig.arena.tensor[tensor];
	const size_t size = dtype_size(rig.arena.group[t->group].param_dtype);
	((unsigned char *)rig_data(&rig, SEG_PARAMS, 0))[t->param_offset + (t->count - 1) * size] ^= 4;
}

static void fill(void)
{
	rig_fill_all(&rig, rig.window + 1, false);
	rig_add_all(&rig, NULL);
	ck_assert_uint_eq(rig_close_window(&rig).status, ST_OK);
}

static void step(void)
{
	rig_fill_all(&rig, rig.window + 1, false);
	rig_add_all(&rig, NULL);
	rig_step(&rig, APPLIED, 0.25, 0.1);
}

static void check_refused(const struct engine_answer *a)
{
	ck_assert_uint_eq(a->status, ST_PARAMS_ALTERED);
	ck_assert_str_eq(a->text,
			 "the parameters are not what step 1 has left: something else than the job has written "
			 "to them (verify_params)");
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.r.params_altered, 1);
	ck_assert_uint_ne(rig.state.r.phase, WINDOW_PREPARED);
}

static struct engine_answer save(void)
{
	char dir[SCRATCH_PATH], path[96];
	ck_assert(scratch_make(dir));
	const int n = snprintf(path, sizeof(path), "%s/saved", dir);
	struct engine_command c = { .op = ENGINE_CHECKPOINT, .n_present = (uint32_t)n };
	struct engine_answer a;
	const uint64_t id = rig_send_with(&rig, c, path);
	do
		ck_assert(rig_receive(&rig, &a));
	while (a.id != id);
	char command[96];
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	ck_assert_int_eq(system(command), 0);
	return a;
}

/* With masters, without them, and one tensor of each type. */
START_TEST(a_bit_that_is_not_the_jobs)
{
	begin(true, _i >= N_TENSORS);
	step();
	fill();
	flip(tensors[_i % N_TENSORS]);
	struct engine_answer a = rig_go(&rig, 1);
	check_refused(&a);
	flip(tensors[_i % N_TENSORS]); /* trainers have seen it, though it has the old value again */
	a = rig_go(&rig, 2);
	check_refused(&a);
	rig_kill(&rig);
	rig_start(&rig);
	a = rig_go(&rig, 3);
	check_refused(&a);
	rig_close(&rig);
}
END_TEST

START_TEST(a_checkpoint_is_given_up)
{
	begin(true, true);
	step();
	ck_assert_uint_eq(save().status, ST_OK);
	flip(0);
	struct engine_answer a = save();
	check_refused(&a);
	fill();
	a = rig_go(&rig, 1);
	check_refused(&a);
	rig_close(&rig);
}
END_TEST

/* What the job itself writes is no alteration: uploads, updates, those of an engine that has died, a vote again. */
START_TEST(what_the_job_writes)
{
	begin(true, _i);
	for (int i = 0; i < 3; i++) {
		fill();
		ck_assert_uint_eq(rig_go(&rig, 1).status, ST_OK);
		rig_kill(&rig);
		rig_start(&rig);
		ck_assert_uint_eq(rig_go(&rig, 2).status, ST_OK);
		struct engine_command c = rig_commit_command(&rig, APPLIED, 0.25, 0.1);
		c.attempt = 2;
		const struct engine_answer a = rig_call(&rig, c);
		ck_assert_msg(!a.status, "%u %s", a.status, a.text);
		rig.window = a.window;
		rig.applied_step++;
		rig_kill(&rig);
		rig_start(&rig);
	}
	ck_assert_uint_eq(save().status, ST_OK);
	rig_close(&rig);
}
END_TEST

START_TEST(nobody_looks_unless_asked)
{
	begin(false, false);
	step();
	fill();
	flip(0);
	ck_assert_uint_eq(rig_go(&rig, 1).status, ST_OK);
	rig_close(&rig);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("engine_verify");
	TCase *t = tcase_create("verify");
	tcase_add_loop_test(t, a_bit_that_is_not_the_jobs, 0, 2 * N_TENSORS);
	tcase_add_test(t, a_checkpoint_is_given_up);
	tcase_add_loop_test(t, what_the_job_writes, 0, 2);
	tcase_add_test(t, nobody_looks_unless_asked);
	suite_add_tcase(s, t);
	return suite_run(s, NULL);
}
