/* SPDX-License-Identifier: Apache-2.0 */
/* The seam between an engine and its arithmetic: what is asked for, by number, when, and what a failure does. */
#include "seam.h"

#include "base/log.h"
#include "engine/engine.h"
#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <string.h>

/* ---- what is asked for ---- */

/* Two micro-batches a pass, canonical order; the half alternates, the last pass takes the norm. */
START_TEST(a_push_names_slots_and_halves)
{
	seam_begin(seam_config());
	seam_push(0, 0);
	recorder_expect(&rec, ""); /* queued */
	seam_push(1, 0);
	push_pass(&rec.e);
	recorder_expect(&rec, "add 1+1*0+1*2; ");
	seam_push(0, 1);
	push_pass(&rec.e);
	recorder_expect(&rec, "add 0=1+2*1; ");
	struct engine_command last = rig_add_command(&rig, 1, 1, 2);
	last.zero_after = 1;
	last.n_present = 1;
	recorder_command(&rec, last, (const unsigned char[]){ 0x3f });
	push_pass(&rec.e);
	recorder_expect(&rec, "add 1=0+2*3p norm; zero_slot 3 of 1; ");
	seam_drain(4);
	ck_assert(rig_gradient(&rig, 3, 0, 0) == 0 && rig_gradient(&rig, 3, 5, 9998) == 0);
	ck_assert_uint_eq(rec.e.state.r.n_zero, 0);
	seam_end();
}
END_TEST

/* Of two pushes one is void: the pass is asked for again, without it, into the same half. */
START_TEST(a_void_micro_batch_is_left_out_of_a_second_pass)
{
	seam_begin(seam_config());
	rig_set_gradient(&rig, 0, 5, 7, INFINITY);
	seam_push(0, 0);
	seam_push(1, 0);
	push_pass(&rec.e);
	recorder_expect(&rec, "add 1+1*0+1*2; add 1+1*2; ");
	ck_assert_uint_eq(recorder_answer(&rec).result, VOID);
	ck_assert_uint_eq(recorder_answer(&rec).result, COUNTED);
	seam_end();
}
END_TEST

START_TEST(a_vote_asks_for_the_norm_only_when_it_must)
{
	seam_begin(seam_config());
	seam_fill_window();
	const double sumsq = seam_command(seam_go(1, false)).sumsq;
	recorder_expect(&rec, ""); /* the last pass has told */
	ck_assert(seam_command(seam_go(1, true)).sumsq == sumsq);
	recorder_expect(&rec, "norms 0; ");
	ck_assert(seam_command(seam_go(1, true)).sumsq == sumsq);
	recorder_expect(&rec, "");
	ck_assert(seam_command(seam_go(2, false)).sumsq == sumsq);
	recorder_expect(&rec, "inspect 0; "); /* a new attempt reads the sum again */
	seam_command(rig_commit_command(&rig, SKIPPED, 0, 0));
	seam_end();
}
END_TEST

/* Who still needs what a half holds. */
static void note_role(void *roles, enum segment_role role)
{
	size_t n = strlen(roles);
	((char *)roles)[n] = (char)('0' + role);
}

START_TEST(who_needs_a_half_is_asked_before_it_is_written)
{
	char roles[8] = "";
	seam_begin(seam_config());
	rec.arith.before_write = note_role;
	rec.arith.before_write_arg = roles;
	seam_push(0, 0);
	ck_assert_str_eq(roles, "");
	push_pass(&rec.e);
	seam_push(1, 0);
	push_pass(&rec.e);
	ck_assert_str_eq(roles, "43"); /* SEG_ACCUM1, SEG_ACCUM0 */
	seam_drain(2);
	seam_end();
}
END_TEST

START_TEST(an_empty_window_has_no_half)
{
	seam_begin(seam_config());
	memset(rig_data(&rig, SEG_ACCUM0, 0), 0x3f, 4096); /* left over: no sum */
	ck_assert(seam_command(seam_go(1, true)).sumsq == 0);
	recorder_expect(&rec, "norms 2; ");
	ck_assert(control_page_norms(&rig.page)[0].grad_sumsq == 0);
	seam_command(rig_commit_command(&rig, EMPTY, 0, 0));
	recorder_expect(&rec, "update_begin 0 in phase 2; ");
	ck_assert_uint_eq(rec.e.state.r.window, 1);
	seam_end();
}
END_TEST

/* Stamps before the record says APPLYING, the update behind it. */
START_TEST(a_commit_begins_before_its_record_and_runs_behind_it)
{
	seam_begin(seam_config());
	ck_assert_uint_eq(seam_command(seam_put()).status, ST_OK);
	recorder_expect(&rec, "put 2 64+128; inspect_params; ");
	seam_fill_window();
	seam_command(seam_go(1, false));
	recorder_expect(&rec, "");
	struct engine_answer a = seam_command(seam_commit(1));
	ck_assert_uint_eq(a.status, ST_OK);
	recorder_expect(&rec, "update_begin 0 in phase 2; update_run 0 with 0 in phase 3; ");
	ck_assert_uint_eq(seam_command(seam_commit(1)).digest, a.digest); /* done is done */
	recorder_expect(&rec, "");
	seam_end();
}
END_TEST

START_TEST(the_reduced_gradient_is_the_other_half_scaled)
{
	struct rig_config c = rig_small();
	c.optim = (struct optim_config){ .type = OPTIM_CLIENT, .lr = 1 };
	seam_begin(c);
	seam_fill_window();
	seam_command(seam_go(1, false));
	struct engine_command commit = seam_commit(1);
	commit.clip_value = 3;
	ck_assert_uint_eq(seam_command(commit).status, ST_OK);
	recorder_expect(&rec, "update_begin 0 in phase 2; scale 1=0.5*0 clip 3 in phase 3; ");
	rig.window++;
	seam_push(0, 0); /* while trainers read half 1, the sum begins in half 0 itself */
	push_pass(&rec.e);
	recorder_expect(&rec, "add 0+1*0; ");
	seam_drain(1);
	seam_end();
}
END_TEST

START_TEST(parameters_outside_the_layout_are_not_asked_for)
{
	struct rig_config c = seam_config();
	c.grad_dtype = DTYPE_BF16; /* slots smaller than the parameters */
	seam_begin(c);
	const struct engine_command good = seam_put();
	struct engine_command bad[4] = { good, good, good, good };
	bad[0].slot = rig.plan->slots;
	bad[1].offset = 0;
	bad[1].bytes = rig.plan->slot_bytes + 1;
	bad[2].offset = rig.plan->param_bytes - 127;
	bad[3].offset = UINT64_MAX;
	for (int i = 0; i < 4; i++)
		ck_assert_uint_eq(seam_command(bad[i]).status, ST_INVALID_ARGUMENT);
	recorder_expect(&rec, "");
	struct engine_command edge = good;
	edge.offset = rig.plan->param_bytes - 128;
	ck_assert_uint_eq(seam_command(edge).status, ST_OK);
	seam_command(good);
	seam_end();
}
END_TEST

START_TEST(drawn_parameters_are_looked_at)
{
	struct rig_config c = seam_config();
	c.init = (struct init_rule){ INIT_NORMAL, 0, 1 };
	seam_begin(c);
	struct engine_answer a = seam_command((struct engine_command){ .op = ENGINE_INIT_PARAMS });
	recorder_expect(&rec, "init; inspect_params; ");
	ck_assert(a.status == ST_OK && a.digest != 0 && rig_param(&rig, 5, 3) != 0);
	seam_end();
}
END_TEST

/* ---- an operation that fails ---- */

static struct rig_config config_for(const char *op)
{
	struct rig_config c = seam_config();
	if (!strcmp(op, "scale"))
		c.optim = (struct optim_config){ .type = OPTIM_CLIENT, .lr = 1 };
	c.init = (struct init_rule){ INIT_NORMAL, 0, 1 };
	return c;
}

static struct engine_command params_command(const char *op)
{
	return strcmp(op, "init") ? seam_put() : (struct engine_command){ .op = ENGINE_INIT_PARAMS };
}

static struct engine_command push_command(uint32_t rank, uint32_t micro)
{
	struct engine_command c = rig_add_command(&rig, rank, micro, 1 + micro);
	c.zero_after = micro == 1;
	return c;
}

/* A window with every operation in it. */
static void whole_window(const char *op)
{
	seam_attach();
	seam_command(params_command(op));
	for (uint32_t micro = 0; micro < 2; micro++) {
		for (uint32_t rank = 0; rank < 2; rank++)
			recorder_command(&rec, push_command(rank, micro), NULL);
		push_pass(&rec.e);
		seam_drain(2);
	}
	seam_command(seam_go(1, false));
	seam_command(seam_go(2, true));
	seam_command(seam_commit(2));
}

/* The same window by a real engine, which adopts what is there: everything is sent again. What it comes to. */
static double finish(const char *op)
{
	rig_start(&rig);
	rig.window = 0;
	rig_attach_all(&rig);
	ck_assert_uint_eq(rig_call(&rig, params_command(op)).status, ST_OK);
	for (uint32_t micro = 0; micro < 2; micro++)
		for (uint32_t rank = 0; rank < 2; rank++)
			ck_assert_uint_eq(rig_call(&rig, push_command(rank, micro)).status, ST_OK);
	rig_call(&rig, seam_go(2, true)); /* refused if the window is over */
	struct engine_answer a = rig_call(&rig, seam_commit(2));
	ck_assert_msg(a.status == ST_OK, "%s: %u %s", op, a.status, a.text);
	ck_assert_uint_eq(a.window, 1);
	for (uint32_t slot = 1; slot < 4; slot += 2)
		ck_assert(rig_gradient(&rig, slot, 5, 77) == 0);
	return rig.config.optim.type == OPTIM_CLIENT ? rig_sum(&rig, 1 - a.x, 5, 77) : (double)(a.digest >> 11);
}

START_TEST(a_failed_operation_ends_the_engine_and_a_successor_goes_on)
{
	static const char *const ops[] = { "put",     "init",  "inspect_params", "add",	       "zero_slot",
					   "inspect", "norms", "update_begin",	 "update_run", "scale" };
	const char *op = ops[_i];
	struct rig_config c = config_for(op);
	rig_open(&rig, &c);
	rig_fill_all(&rig, 1, true);
	const double want = finish(op);
	rig_close(&rig);
	rig_open(&rig, &c);
	rig_fill_all(&rig, 1, true);
	ck_assert_int_eq(seam_run_to_failure(op, whole_window), ENGINE_EXIT_LOST);
	ck_assert(finish(op) == want && want != 0);
	rig_close(&rig);
}
END_TEST

Suite *arith_saving_suite(void);

/* An update that was begun for another window, or whose stamps are none: nobody can go on with it. */
START_TEST(stamps_that_do_not_fit_the_record_are_refused)
{
	struct rig_config c = seam_config();
	int fds[32];
	rig_open(&rig, &c);
	rig_fill_all(&rig, 1, true);
	ck_assert_int_eq(seam_run_to_failure("update_run", whole_window), ENGINE_EXIT_LOST);
	ck_assert_uint_eq(rig.state.r.phase, WINDOW_APPLYING);
	for (int i = 0; i < rig.n_segments; i++)
		fds[i] = rig.segment[i].fd;
	control_page_stamp(&rig.page, 1)->window++;
	struct engine_answer a = rig_start_with(&rig, fds, rig.n_segments);
	ck_assert_uint_eq(a.status, ST_SEGMENT_CORRUPT);
	ck_assert_int_eq(rig_wait(&rig), ENGINE_EXIT_REFUSED);
	control_page_stamp(&rig.page, 1)->window--;
	rig_start(&rig);
	ck_assert_uint_eq(rig.window, 1);
	rig_close(&rig);
}
END_TEST

START_TEST(what_an_update_has_lost_is_in_the_answer)
{
	struct rig_config c = seam_config();
	c.reject_nonfinite = false;
	seam_begin(c);
	seam_command(seam_put());
	rig_set_gradient(&rig, 0, 5, 7, INFINITY);
	rig_set_gradient(&rig, 0, 5, 9, INFINITY);
	seam_fill_window();
	seam_command(seam_go(1, false));
	struct engine_answer a = seam_command(seam_commit(1));
	ck_assert_uint_eq(a.nonfinite, 2);
	ck_assert_uint_eq(a.nonfinite_tensor, 5);
	ck_assert_uint_eq(rec.e.state.r.params_nonfinite, 2);
	seam_end();
}
END_TEST

int main(void)
{
	log_init("test", LOG_TEXT, 0); /* complaints are expected */
	Suite *s = suite_create("arith");
	TCase *t = tcase_create("arith");
	tcase_set_timeout(t, 60);
	tcase_add_test(t, a_push_names_slots_and_halves);
	tcase_add_test(t, a_void_micro_batch_is_left_out_of_a_second_pass);
	tcase_add_test(t, a_vote_asks_for_the_norm_only_when_it_must);
	tcase_add_test(t, who_needs_a_half_is_asked_before_it_is_written);
	tcase_add_test(t, an_empty_window_has_no_half);
	tcase_add_test(t, a_commit_begins_before_its_record_and_runs_behind_it);
	tcase_add_test(t, the_reduced_gradient_is_the_other_half_scaled);
	tcase_add_test(t, parameters_outside_the_layout_are_not_asked_for);
	tcase_add_test(t, drawn_parameters_are_looked_at);
	tcase_add_loop_test(t, a_failed_operation_ends_the_engine_and_a_successor_goes_on, 0, 10);
	tcase_add_test(t, stamps_that_do_not_fit_the_record_are_refused);
	tcase_add_test(t, what_an_update_has_lost_is_in_the_answer);
	suite_add_tcase(s, t);
	return suite_run(s, arith_saving_suite());
}
