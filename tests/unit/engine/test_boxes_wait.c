/* SPDX-License-Identifier: Apache-2.0 */
/* WAITs in mailboxes at a real engine: when they are answered, with which result, and after which deaths. */
#include "boxes_rig.h"

#include "base/packet.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

Suite *boxes_wait_suite(void);

static const struct step_result result = { .total_weight = 3.5,
					   .divisor = 7,
					   .grad_norm = 0.25,
					   .mean_loss = -1.5,
					   .micro_count = 11,
					   .last_lag_ns = -12345678901,
					   .last_rank = 77,
					   .skip_reason = 2 };

static uint64_t publish_wait(uint32_t rank, uint32_t cell, uint64_t window)
{
	return boxes_publish(rank, cell, (struct gacc_box_request){ .kind = GACC_BOX_WAIT, .window = window });
}

/* At once. */
static uint32_t status_of(uint32_t rank, uint64_t window)
{
	struct gacc_box_answer a = boxes_await(rank, 7, publish_wait(rank, 7, window));
	ck_assert(a.window == window && (a.status == ST_OK) == (a.result == 1));
	return a.status;
}

/* The window is frozen and voted for. */
static void prepare(void)
{
	for (uint32_t r = 0; r < BOXES_RANKS; r++) {
		struct engine_command c = rig_add_command(&boxes_rig, r, 0, 1);
		c.loss_scale = boxes_rig.window ? 4 : 1;
		ck_assert_uint_eq(rig_call(&boxes_rig, c).result, COUNTED);
	}
	ck_assert_uint_eq(rig_close_window(&boxes_rig).status, ST_OK);
	ck_assert_uint_eq(rig_go(&boxes_rig, 1).status, ST_OK);
}

static struct engine_command commit_command(uint32_t outcome)
{
	struct engine_command c = rig_commit_command(&boxes_rig, outcome, 0.25, 0.5);
	c.next_micro_size = 1 + (uint32_t)(boxes_rig.window + 1) % 2;
	c.next_loss_scale = 4;
	c.result = result;
	c.result.micro_count += boxes_rig.window;
	return c;
}

static struct engine_answer commit(struct engine_command c)
{
	struct engine_answer a = rig_call(&boxes_rig, c);
	ck_assert_msg(a.status == ST_OK, "%u %s", a.status, a.text);
	boxes_rig.window++;
	boxes_rig.applied_step += c.outcome == APPLIED;
	return a;
}

/* The block is that of commit_command(outcome), of the window before the open one. */
static void expect_block(uint32_t rank, const struct engine_answer *committed, uint32_t outcome)
{
	struct gacc_box_step s;
	ck_assert(box_read_step(&boxes_trainer[rank], boxes_rig.window - 1, &s));
	struct gacc_box_step want = { .window = boxes_rig.window - 1,
				      .applied_step = boxes_rig.applied_step,
				      .outcome = outcome,
				      .skip_reason = 2,
				      .total_weight = 3.5,
				      .divisor = 7,
				      .grad_norm = 0.25,
				      .lr = 0.5,
				      .mean_loss = -1.5,
				      .micro_count = 11 + boxes_rig.window - 1,
				      .last_rank = 77,
				      .last_lag_ns = -12345678901,
				      .params_digest = committed->digest,
				      .next_loss_scale = 4,
				      .next_micro_size = 1 + (uint32_t)boxes_rig.window % 2 };
	want.check = s.check;
	ck_assert_int_eq(memcmp(&s, &want, sizeof(s)), 0);
}

static void expect_over(uint32_t rank, uint32_t cell, uint64_t seq)
{
	struct gacc_box_answer a = boxes_await(rank, cell, seq);
	ck_assert_msg(a.status == ST_OK, "status %u", a.status);
	ck_assert_uint_eq(a.window, boxes_rig.window - 1);
	ck_assert(a.result == 1 && a.counted == 0 && a.half == 0);
}

/* ---- when and with what ---- */

START_TEST(a_wait_is_answered_when_its_window_is_over)
{
	static const uint32_t outcome[] = { APPLIED, SKIPPED, APPLIED };
	boxes_begin_with_mailboxes(rig_small());
	for (uint32_t i = 0; i < 3; i++) {
		uint64_t first = publish_wait(0, 1, i), again = publish_wait(0, 6, i);
		prepare();
		uint64_t second = publish_wait(1, 0, i); /* in a frozen window */
		ck_assert(boxes_is_open(0, 1, first) && boxes_is_open(0, 6, again) && boxes_is_open(1, 0, second));
		struct engine_answer a = commit(commit_command(outcome[i]));
		expect_over(0, 1, first);
		expect_over(0, 6, again);
		expect_over(1, 0, second);
		for (uint32_t r = 0; r < BOXES_RANKS; r++)
			expect_block(r, &a, outcome[i]);
		ck_assert(a.digest != 0);
		ck_assert_uint_eq(status_of(0, i), ST_OK); /* asked too late */
		expect_block(0, &a, outcome[i]);
	}
	boxes_end();
}
END_TEST

START_TEST(what_cannot_be_waited_for_is_refused)
{
	boxes_begin_with_mailboxes(rig_small());
	ck_assert_uint_eq(status_of(0, 1), ST_NOT_CURRENT_WINDOW);
	ck_assert_uint_eq(status_of(0, UINT64_MAX), ST_NOT_CURRENT_WINDOW);
	rig_step(&boxes_rig, EMPTY, 0, 0);
	rig_step(&boxes_rig, EMPTY, 0, 0);
	ck_assert_uint_eq(status_of(0, 0), ST_WINDOW_FORGOTTEN);
	ck_assert_uint_eq(status_of(0, 1), ST_OK);
	ck_assert_uint_eq(status_of(0, 3), ST_NOT_CURRENT_WINDOW);
	boxes_end();
}
END_TEST

/* The trainer learns from RPC how the job has ended. */
START_TEST(no_window_follows_the_last_one)
{
	struct gacc_box_step s;
	boxes_begin_with_mailboxes(rig_small());
	uint64_t seq = publish_wait(0, 0, 0);
	prepare();
	struct engine_command c = commit_command(APPLIED);
	c.result.final = 1;
	commit(c);
	expect_over(0, 0, seq);
	ck_assert(box_read_step(&boxes_trainer[0], 0, &s) && s.final == 1);
	ck_assert_uint_eq(status_of(0, 1), ST_JOB_ENDED);
	ck_assert_uint_eq(status_of(1, 0), ST_OK);
	boxes_end();
}
END_TEST

/* WaitStep does not report such a step either. */
START_TEST(a_step_whose_parameters_are_lost_is_not_reported)
{
	struct gacc_box_step s;
	boxes_begin_with_mailboxes(rig_small());
	uint64_t seq = publish_wait(0, 0, 0);
	rig_set_gradient(&boxes_rig, 0, 0, 3, INFINITY);
	prepare();
	ck_assert_uint_gt(commit(commit_command(APPLIED)).nonfinite, 0);
	ck_assert_uint_eq(boxes_await(0, 0, seq).status, ST_NONFINITE);
	ck_assert_uint_eq(status_of(1, 0), ST_NONFINITE);
	ck_assert(!box_read_step(&boxes_trainer[0], 0, &s) && !box_read_step(&boxes_trainer[1], 0, &s));
	boxes_end();
}
END_TEST

/* What it then sends, by RPC, finds a gaccd that can know of the new window. And nobody waits for a pass. */
START_TEST(gaccd_hears_of_it_first_and_all_are_woken_at_once)
{
	struct epoll_event event;
	struct engine_answer a;
	boxes_begin_with_mailboxes(rig_small());
	prepare();
	for (uint32_t r = 0; r < BOXES_RANKS; r++) {
		ck_assert(boxes_is_open(r, 0, publish_wait(r, 0, 0)));
		while (epoll_wait(boxes_trainer[r].waits, &event, 1, 0) > 0)
			;
	}
	rig_send(&boxes_rig, commit_command(APPLIED));
	while (!__atomic_load_n(&boxes_trainer[0].mem->answer[0].seq, __ATOMIC_ACQUIRE))
		;
	ck_assert_int_eq(packet_recv(boxes_rig.fd, &a, sizeof(a), NULL, NULL), sizeof(a));
	ck_assert(a.op == ENGINE_COMMIT && a.status == ST_OK);
	for (uint32_t r = 0; r < BOXES_RANKS; r++)
		ck_assert_int_eq(epoll_wait(boxes_trainer[r].waits, &event, 1, BOXES_SOON_MS), 1);
	boxes_end();
}
END_TEST

/* optimizer client */
START_TEST(the_answer_says_where_the_reduced_gradient_is)
{
	struct gacc_box_step s;
	struct rig_config c = rig_small();
	c.optim.type = OPTIM_CLIENT;
	boxes_begin_with_mailboxes(c);
	uint32_t halves = 0;
	for (uint64_t w = 0; w < 3; w++) {
		uint64_t seq = publish_wait(0, 0, w);
		for (uint32_t r = 0; r < BOXES_RANKS && r <= w % 2; r++)
			ck_assert_uint_eq(rig_add(&boxes_rig, r, 0, 1).result, COUNTED);
		rig_close_window(&boxes_rig);
		rig_go(&boxes_rig, 1);
		struct engine_answer a = rig_call(&boxes_rig, rig_commit_command(&boxes_rig, APPLIED, 0.25, 0.5));
		ck_assert_uint_eq(a.status, ST_OK);
		struct gacc_box_answer over = boxes_await(0, 0, seq);
		ck_assert(over.status == ST_OK && over.half == 1 - a.x);
		ck_assert(box_read_step(&boxes_trainer[0], w, &s) && s.half == 1 - a.x);
		rig_call(&boxes_rig, (struct engine_command){ .op = ENGINE_ACK_STEP, .window = w, .last = 1 });
		boxes_rig.window++;
		boxes_rig.applied_step++;
		halves |= 1u << over.half;
	}
	ck_assert_uint_eq(halves, 3);
	boxes_end();
}
END_TEST

/* A COMMIT sent again is of the window before: those who wait for the open one go on waiting. */
START_TEST(a_repeated_commit_ends_no_other_wait)
{
	boxes_begin_with_mailboxes(rig_small());
	prepare();
	struct engine_command c = commit_command(APPLIED);
	commit(c);
	uint64_t seq = publish_wait(0, 0, 1);
	ck_assert(boxes_is_open(0, 0, seq));
	ck_assert_uint_eq(rig_call(&boxes_rig, c).status, ST_OK);
	ck_assert(boxes_is_open(0, 0, seq));
	ck_assert_uint_eq(rig_close_window(&boxes_rig).status, ST_OK);
	ck_assert_uint_eq(rig_go(&boxes_rig, 1).status, ST_OK);
	ck_assert(boxes_is_open(0, 0, seq));
	commit(commit_command(EMPTY));
	expect_over(0, 0, seq);
	boxes_end();
}
END_TEST

START_TEST(a_refused_commit_ends_no_wait)
{
	boxes_begin_with_mailboxes(rig_small());
	uint64_t seq = publish_wait(0, 0, 0);
	prepare();
	struct engine_command c = commit_command(APPLIED);
	c.attempt = 2;
	ck_assert_uint_eq(rig_call(&boxes_rig, c).status, ST_STALE_ATTEMPT);
	ck_assert(boxes_is_open(0, 0, seq));
	boxes_end();
}
END_TEST

/* ---- the trainer ---- */

/* It has SLOT_BUSY as its answer, and waits for no other; the cell is free for requests again when the window is over.
 */
START_TEST(a_cell_that_is_rewritten_while_it_waits)
{
	boxes_begin_with_mailboxes(rig_small());
	uint64_t old = publish_wait(0, 0, 0), other = publish_wait(0, 1, 0);
	ck_assert(boxes_is_open(0, 0, old));
	uint64_t seq = publish_wait(0, 0, 0);
	ck_assert_uint_eq(boxes_await(0, 0, seq).status, ST_SLOT_BUSY);
	prepare();
	struct engine_answer a = commit(commit_command(APPLIED));
	expect_over(0, 1, other);
	ck_assert(boxes_await(0, 0, seq).status == ST_SLOT_BUSY); /* still */
	expect_block(0, &a, APPLIED);
	seq = publish_wait(0, 0, 0);
	expect_over(0, 0, seq);
	boxes_end();
}
END_TEST

START_TEST(a_trainer_that_scribbles_on_its_block_is_alone)
{
	struct gacc_box_step s;
	boxes_begin_with_mailboxes(rig_small());
	uint64_t first = publish_wait(0, 0, 0), second = publish_wait(1, 0, 0);
	prepare();
	memset(&boxes_trainer[0].mem->step, 0xff, sizeof(s));
	struct engine_answer a = commit(commit_command(APPLIED));
	expect_over(0, 0, first);
	expect_over(1, 0, second);
	expect_block(0, &a, APPLIED);
	expect_block(1, &a, APPLIED);
	boxes_trainer[0].mem->step.grad_norm += 1;
	ck_assert(!box_read_step(&boxes_trainer[0], 0, &s));
	expect_block(1, &a, APPLIED);
	boxes_end();
}
END_TEST

START_TEST(a_fenced_session_waits_for_nothing)
{
	boxes_begin_with_mailboxes(rig_small());
	uint64_t fenced = publish_wait(1, 0, 0), other = publish_wait(0, 0, 0);
	ck_assert(boxes_is_open(1, 0, fenced) && boxes_is_open(0, 0, other));
	rig_call(&boxes_rig, (struct engine_command){ .op = ENGINE_ATTACH, .rank = 1, .sgen = 2 });
	struct gacc_box_step s;
	ck_assert_uint_eq(rig_close_window(&boxes_rig).status, ST_OK);
	ck_assert_uint_eq(rig_go(&boxes_rig, 1).status, ST_OK);
	commit(commit_command(EMPTY));
	expect_over(0, 0, other);
	ck_assert(boxes_is_open(1, 0, fenced) && !box_read_step(&boxes_trainer[1], 0, &s));
	boxes_unmake(1);
	boxes_make(1, 2);
	boxes_give(1, 2);
	fenced = publish_wait(1, 0, 0);
	expect_over(1, 0, fenced);
	boxes_end();
}
END_TEST

/* ---- deaths ---- */

static void begin_again(void)
{
	rig_kill(&boxes_rig);
	rig_start(&boxes_rig);
	for (uint32_t r = 0; r < BOXES_RANKS; r++)
		boxes_give(r, 1);
}

START_TEST(a_successor_answers_who_waits)
{
	boxes_begin_with_mailboxes(rig_small());
	uint64_t first = publish_wait(0, 0, 0), second = publish_wait(1, 3, 0);
	ck_assert(boxes_is_open(0, 0, first));
	begin_again();
	ck_assert(boxes_is_open(0, 0, first) && boxes_is_open(1, 3, second));
	prepare();
	begin_again();
	struct engine_answer a = commit(commit_command(APPLIED));
	expect_over(0, 0, first);
	expect_over(1, 3, second);
	expect_block(1, &a, APPLIED);
	boxes_end();
}
END_TEST

/* What is left when it dies between the commit and the answer: the cell is open. 0: no block; 1: half of it; 2: all. */
START_TEST(an_engine_dies_before_the_answer)
{
	boxes_begin_with_mailboxes(rig_small());
	struct gacc_box *mem = boxes_trainer[0].mem;
	uint64_t seq = publish_wait(0, 0, 0);
	prepare();
	struct engine_answer a = commit(commit_command(APPLIED));
	expect_over(0, 0, seq);
	rig_kill(&boxes_rig);
	memset(&mem->answer[0], 0, sizeof(mem->answer[0]));
	if (_i < 2)
		memset(&mem->step, 0, _i ? sizeof(mem->step) / 2 : sizeof(mem->step));
	rig_start(&boxes_rig);
	for (uint32_t r = 0; r < BOXES_RANKS; r++)
		boxes_give(r, 1);
	expect_over(0, 0, seq);
	expect_block(0, &a, APPLIED);
	boxes_end();
}
END_TEST

/* It dies at any moment from the COMMIT on; gaccd repeats it. */
START_TEST(deaths_around_the_commit)
{
	unsigned seed = 1 + (unsigned)_i;
	struct engine_answer a;
	boxes_begin_with_mailboxes(rig_large());
	for (uint64_t w = 0; w < 20; w++) {
		uint64_t seq[BOXES_RANKS];
		for (uint32_t r = 0; r < BOXES_RANKS; r++)
			seq[r] = publish_wait(r, w % GACC_BOX_CELLS, w);
		prepare();
		struct engine_command c = commit_command(APPLIED);
		rig_send(&boxes_rig, c);
		usleep((useconds_t)rand_r(&seed) % 3000);
		begin_again();
		a = rig_call(&boxes_rig, c);
		ck_assert_msg(a.status == ST_OK, "%u %s", a.status, a.text);
		boxes_rig.window = boxes_rig.applied_step = w + 1;
		for (uint32_t r = 0; r < BOXES_RANKS; r++) {
			expect_over(r, w % GACC_BOX_CELLS, seq[r]);
			expect_block(r, &a, APPLIED);
		}
	}
	boxes_end();
}
END_TEST

Suite *boxes_wait_suite(void)
{
	Suite *s = suite_create("boxes, waits");
	TCase *c = tcase_create("waits");
	tcase_set_timeout(c, 60);
	tcase_add_test(c, a_wait_is_answered_when_its_window_is_over);
	tcase_add_test(c, what_cannot_be_waited_for_is_refused);
	tcase_add_test(c, no_window_follows_the_last_one);
	tcase_add_test(c, a_step_whose_parameters_are_lost_is_not_reported);
	tcase_add_test(c, gaccd_hears_of_it_first_and_all_are_woken_at_once);
	tcase_add_test(c, the_answer_says_where_the_reduced_gradient_is);
	tcase_add_test(c, a_repeated_commit_ends_no_other_wait);
	tcase_add_test(c, a_refused_commit_ends_no_wait);
	tcase_add_test(c, a_cell_that_is_rewritten_while_it_waits);
	tcase_add_test(c, a_trainer_that_scribbles_on_its_block_is_alone);
	tcase_add_test(c, a_fenced_session_waits_for_nothing);
	tcase_add_test(c, a_successor_answers_who_waits);
	tcase_add_loop_test(c, an_engine_dies_before_the_answer, 0, 3);
	tcase_add_loop_test(c, deaths_around_the_commit, 0, 4);
	suite_add_tcase(s, c);
	return s;
}
