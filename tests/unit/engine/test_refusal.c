/* SPDX-License-Identifier: Apache-2.0 */
/* Why a push is refused, in words: learning rates, and pushes that were queued. The other sentences stand in
 * test_judge.c beside what is refused. */
#include "engine/refusal.h"

#include "support/suite.h"

#include <check.h>
#include <string.h>

Suite *refusal_suite(void);

static struct {
	struct plan plan;
	uint32_t numbers[3]; /* behind the plan, which knows where */
} plan = { .plan = { .ranks = 3, .numbers_offset = sizeof(struct plan) }, .numbers = { 40, 41, 42 } };
static struct control_state state;
static const struct window_state window = { .plan = &plan.plan, .record = &state };
static char text[REFUSAL_BYTES];

static void setup_record(void)
{
	state = (struct control_state){
		.r = { .window = 7, .ranks = 3, .count = 1, .window_lr = 0.5, .lr_rank = 2, .max_micro_size = 5 }
	};
}

static const char *other_lr(double lr)
{
	const struct push p = { .rank = 1, .window = 7, .lr = lr };
	const struct verdict v = { .ruling = PUSH_OTHER_LR, .status = ST_LR_MISMATCH };
	refusal_describe(&window, &p, &v, text, sizeof(text));
	return text;
}

START_TEST(learning_rates_have_words)
{
	ck_assert_str_eq(other_lr(0),
			 "rank 41 gives window 7 the learning rate the schedule's; rank 42, whose push was "
			 "counted first, gave it 0.5");
	state.r.window_lr = 0;
	ck_assert_str_eq(other_lr(0.25),
			 "rank 41 gives window 7 the learning rate 0.25; rank 42, whose push was counted "
			 "first, gave it the schedule's");
	plan.plan.numbers_offset = 0; /* the engine has all ranks of its job */
	ck_assert_str_eq(other_lr(0.25), "rank 1 gives window 7 the learning rate 0.25; rank 2, whose push was counted "
					 "first, gave it the schedule's");
	plan.plan.numbers_offset = sizeof(struct plan);
}
END_TEST

START_TEST(queued_pushes_are_refused_with_words)
{
	const struct accum_entry e = { .rank = 1, .micro = 3, .window_lr = 0.25 };
	ck_assert_pstr_eq(refusal_describe_queued(&window, &e, ST_WINDOW_CLOSED, text, sizeof(text)),
			  "go on with the next window");
	ck_assert_str_eq(text,
			 "rank 41, window 7, micro-batch 3: the window closed without this micro-batch: not counted");
	ck_assert_ptr_null(refusal_describe_queued(&window, &e, ST_FLUSHED, text, sizeof(text)));
	ck_assert_str_eq(text, "rank 41, window 7, micro-batch 3: this rank has flushed the window");
	refusal_describe_queued(&window, &e, ST_SESSION_FENCED, text, sizeof(text));
	ck_assert_str_eq(text, "rank 41, window 7, micro-batch 3: a newer process has attached as this rank");
	refusal_describe_queued(&window, &e, ST_LR_MISMATCH, text, sizeof(text));
	ck_assert_str_eq(text, "rank 41, window 7, micro-batch 3: learning rate 0.25; rank 42, whose push was counted "
			       "first, gave the window 0.5");
	state.r.window_lr = 0;
	refusal_describe_queued(&window, &e, ST_LR_MISMATCH, text, sizeof(text));
	ck_assert_msg(strstr(text, "gave the window 0 (the schedule's)"), "%s", text);
}
END_TEST

/* The longest numbers that there are. */
START_TEST(words_of_a_queued_push_are_whole)
{
	char large[400];
	const struct accum_entry e = { .rank = 1, .micro = 65535, .window_lr = 3.40282e+38 };
	plan.numbers[1] = plan.numbers[2] = 65535;
	state.r.window = UINT64_C(1000000000000000);
	state.r.window_lr = _i ? 3.40282e+38 : 0;
	refusal_describe_queued(&window, &e, ST_LR_MISMATCH, text, sizeof(text));
	refusal_describe_queued(&window, &e, ST_LR_MISMATCH, large, sizeof(large));
	ck_assert_str_eq(text, large);
	plan.numbers[1] = 41;
	plan.numbers[2] = 42;
}
END_TEST

Suite *refusal_suite(void)
{
	Suite *s = suite_create("refusal");
	TCase *t = tcase_create("words");
	tcase_add_checked_fixture(t, setup_record, NULL);
	tcase_add_test(t, learning_rates_have_words);
	tcase_add_test(t, queued_pushes_are_refused_with_words);
	tcase_add_loop_test(t, words_of_a_queued_push_are_whole, 0, 2);
	suite_add_tcase(s, t);
	return s;
}
