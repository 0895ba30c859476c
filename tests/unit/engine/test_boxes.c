/* SPDX-License-Identifier: Apache-2.0 */
/* Mailboxes at a real engine: pushes from cells beside pushes by command, the fence, flushes. */
#include "boxes_rig.h"

#include "engine/progress.h"
#include "support/suite.h"

#include <check.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

Suite *boxes_armed_suite(void);
Suite *boxes_deaths_suite(void);
Suite *boxes_wait_suite(void);
Suite *boxes_progress_suite(void);

/* ---- pushes ---- */

START_TEST(the_trainer_is_woken)
{
	struct epoll_event event;
	boxes_begin_with_mailboxes(rig_small());
	/* when the mailbox comes: an engine before this one may have died before its bell */
	ck_assert_int_eq(epoll_wait(boxes_trainer[0].waits, &event, 1, BOXES_SOON_MS), 1);
	uint64_t seq = boxes_publish(0, 0, boxes_request(0, 1));
	ck_assert_int_eq(epoll_wait(boxes_trainer[0].waits, &event, 1, BOXES_SOON_MS), 1);
	ck_assert_uint_eq(event.data.u64, MAILBOX_BELL);
	ck_assert(!boxes_is_open(0, 0, seq));
	ck_assert_int_eq(epoll_wait(boxes_trainer[0].waits, &event, 1, 0), 0);
	boxes_end();
}
END_TEST

START_TEST(a_push_in_a_cell_counts_like_one_by_command)
{
	boxes_begin_with_mailboxes(rig_small());
	for (uint32_t m = 0; m < boxes_rig.config.micro_size; m++)
		for (uint32_t r = 0; r < BOXES_RANKS; r++) {
			struct gacc_box_answer a = boxes_push(r, m, boxes_request(m, 1 + 2 * m + r));
			ck_assert(a.status == ST_OK && a.result == COUNTED && a.window == 0);
			ck_assert(a.counted == m + 1 && a.micro_size == boxes_rig.config.micro_size);
		}
	rig_close_window(&boxes_rig);
	struct engine_answer go = rig_go(&boxes_rig, 1);
	double weight = go.sum_weight, sumsq = go.sumsq;
	uint64_t count = go.count, digest = go.digest;
	boxes_end();
	boxes_begin(rig_small());
	for (uint32_t m = 0; m < boxes_rig.config.micro_size; m++)
		for (uint32_t r = 0; r < BOXES_RANKS; r++)
			ck_assert_uint_eq(rig_add(&boxes_rig, r, m, 1 + 2 * m + r).result, COUNTED);
	rig_close_window(&boxes_rig);
	go = rig_go(&boxes_rig, 1);
	ck_assert(go.sum_weight == weight && go.sumsq == sumsq && go.count == count && go.digest == digest);
	ck_assert(count == BOXES_RANKS * boxes_rig.config.micro_size && sumsq > 0);
	boxes_end();
}
END_TEST

START_TEST(what_it_waited_for_is_said)
{
	boxes_begin_with_mailboxes(rig_small());
	const int64_t since = progress_clock();
	uint64_t seq = boxes_publish(1, 0, boxes_request(0, 1));
	ck_assert(boxes_is_open(1, 0, seq)); /* for 50 ms, which a busy engine may begin late */
	ck_assert_uint_eq(boxes_push(0, 0, boxes_request(0, 1)).result, COUNTED);
	struct gacc_box_answer a = boxes_await(1, 0, seq);
	ck_assert(a.status == ST_OK && a.result == COUNTED && a.waited_for == 0);
	ck_assert(a.parked_ns > 0 && (int64_t)a.parked_ns <= progress_clock() - since);
	boxes_end();
}
END_TEST

START_TEST(refusals_are_numbers)
{
	boxes_begin_with_mailboxes(rig_small());
	struct gacc_box_request q = boxes_request(1, 1);
	ck_assert_uint_eq(boxes_push(0, 0, q).status, ST_OUT_OF_ORDER);
	q = boxes_request(0, 1);
	q.loss_scale = 2;
	ck_assert_uint_eq(boxes_push(0, 0, q).status, ST_LOSS_SCALE_MISMATCH);
	q = boxes_request(0, 1);
	q.window = 1;
	struct gacc_box_answer a = boxes_push(0, 0, q);
	ck_assert(a.status == ST_NOT_CURRENT_WINDOW && a.window == 1);
	q = boxes_request(boxes_rig.config.micro_size, 1);
	q.slot = 0;
	ck_assert_uint_eq(boxes_push(0, 0, q).status, ST_WINDOW_FULL);
	rig_read(&boxes_rig);
	ck_assert_uint_eq(boxes_rig.state.r.count, 0);
	boxes_end();
}
END_TEST

START_TEST(both_ways_may_be_mixed)
{
	struct engine_answer a;
	boxes_begin_with_mailboxes(rig_small());
	uint64_t seq = boxes_publish(1, 3, boxes_request(0, 2));
	boxes_settle();
	uint64_t id = rig_send(&boxes_rig, rig_add_command(&boxes_rig, 1, 0, 2)); /* repeats it */
	boxes_settle();
	ck_assert(boxes_is_open(1, 3, seq));
	ck_assert_uint_eq(boxes_push(0, 0, boxes_request(0, 1)).result, COUNTED);
	ck_assert_uint_eq(boxes_await(1, 3, seq).result, COUNTED);
	ck_assert(rig_receive(&boxes_rig, &a) && a.id == id && a.result == DUPLICATE);
	ck_assert_uint_eq(boxes_push(1, 3, boxes_request(0, 2)).result, DUPLICATE);
	ck_assert_uint_eq(rig_add(&boxes_rig, 0, 1, 1).result, COUNTED);
	ck_assert_uint_eq(boxes_push(1, 3, boxes_request(1, 2)).result, COUNTED);
	rig_read(&boxes_rig);
	ck_assert(boxes_rig.state.r.count == 4 && boxes_rig.state.r.sum_weight == 6);
	boxes_end();
}
END_TEST

/* The bell of a cell has not come yet when a command overtakes it. */
START_TEST(a_command_does_not_overtake_a_cell)
{
	boxes_begin_with_mailboxes(rig_small());
	struct engine_answer a;
	uint64_t seq = box_publish(&boxes_trainer[0], 5, boxes_request(0, 1), NULL);
	uint64_t id = rig_send(&boxes_rig, rig_add_command(&boxes_rig, 0, 1, 1));
	ck_assert_uint_eq(rig_add(&boxes_rig, 1, 0, 1).result, COUNTED);
	ck_assert(rig_receive(&boxes_rig, &a) && a.id == id && a.result == COUNTED);
	ck_assert_uint_eq(boxes_await(0, 5, seq).result, COUNTED);
	rig_read(&boxes_rig);
	ck_assert_uint_eq(boxes_rig.state.r.count, 3);
	boxes_end();
}
END_TEST

static uint64_t ready_push(uint32_t rank, uint32_t cell, uint32_t flags)
{
	struct gacc_box_request q = boxes_request(0, 1);
	q.ready_at = 1;
	q.ready_value = 7;
	q.flags = flags;
	return boxes_publish(rank, cell, q);
}

static void set_ready(uint32_t rank)
{
	__atomic_store_n(&boxes_trainer[rank].mem->ready[0].value, 7, __ATOMIC_RELEASE);
}

/* Without a bell the engine looks again by itself; with GACC_BOX_RINGS it does not have to. */
START_TEST(a_gradient_that_is_not_ready_waits_for_its_word)
{
	boxes_begin_with_mailboxes(rig_small());
	uint64_t first = ready_push(0, 0, 0), second = ready_push(1, 0, GACC_BOX_RINGS);
	ck_assert(boxes_is_open(0, 0, first) && boxes_is_open(1, 0, second));
	set_ready(0);
	ck_assert_uint_eq(boxes_await(0, 0, first).result, COUNTED);
	set_ready(1);
	box_bell(&boxes_trainer[1]);
	ck_assert_uint_eq(boxes_await(1, 0, second).result, COUNTED);
	boxes_end();
}
END_TEST

/* How often the engine has slept, and gone on. */
static unsigned long sleeps(void)
{
	char path[64], line[128];
	unsigned long n = 0;
	snprintf(path, sizeof(path), "/proc/%d/status", (int)boxes_rig.pid);
	FILE *f = fopen(path, "re");
	ck_assert_ptr_nonnull(f);
	while (fgets(line, sizeof(line), f))
		sscanf(line, "voluntary_ctxt_switches: %lu", &n);
	fclose(f);
	return n;
}

/* A rank leaves without its word: gaccd closes the mailbox, and the engine has nothing to look for. It still sees the
 * bell, and what lies there when a command comes that must not overtake it. */
START_TEST(nothing_is_looked_for_in_a_closed_mailbox)
{
	boxes_begin_with_mailboxes(rig_small());
	uint64_t seq = ready_push(0, 0, 0);
	unsigned long at_first = sleeps();
	ck_assert(boxes_is_open(0, 0, seq));
	ck_assert_uint_ge(sleeps() - at_first, 10); /* in 50 ms */
	__atomic_store_n(&boxes_trainer[0].mem->header.closed, 1, __ATOMIC_RELEASE);
	usleep(20000);
	at_first = sleeps();
	ck_assert(boxes_is_open(0, 0, seq) && boxes_is_open(0, 0, seq));
	ck_assert_uint_le(sleeps() - at_first, 3);
	set_ready(0);
	ck_assert(boxes_is_open(0, 0, seq));
	ck_assert_uint_eq(rig_flush(&boxes_rig, 0, true).status, ST_OK);
	ck_assert_uint_eq(boxes_await(0, 0, seq).result, COUNTED);
	boxes_end();
}
END_TEST

START_TEST(void_and_zeroed_after)
{
	struct rig_config c = rig_small();
	c.reject_nonfinite = true;
	boxes_begin_with_mailboxes(c);
	rig_set_gradient(&boxes_rig, 0, 0, 3, INFINITY);
	ck_assert_uint_eq(boxes_push(0, 0, boxes_request(0, 1)).result, VOID);
	struct gacc_box_request q = boxes_request(0, 1);
	q.flags = GACC_BOX_ZERO_AFTER;
	ck_assert_uint_eq(boxes_push(1, 0, q).result, COUNTED);
	const unsigned char *slot = rig_data(&boxes_rig, SEG_SLOT, boxes_rig.config.micro_size);
	ck_assert(slot[0] == 0 && !memcmp(slot, slot + 1, boxes_rig.plan->slot_bytes - 1));
	rig_read(&boxes_rig);
	ck_assert(boxes_rig.state.r.count == 1 && boxes_rig.state.voided[0] == 1);
	boxes_end();
}
END_TEST

/* nonfinite: error. From its pass, and as a repeat; other ranks are as ever. */
START_TEST(a_void_push_that_fails_the_job_is_an_error)
{
	struct rig_config c = rig_small();
	c.reject_nonfinite = c.void_is_error = true;
	boxes_begin_with_mailboxes(c);
	rig_set_gradient(&boxes_rig, 0, 0, 3, INFINITY);
	for (int i = 0; i < 2; i++) {
		struct gacc_box_answer a = boxes_push(0, 0, boxes_request(0, 1));
		ck_assert(a.status == ST_NONFINITE && a.result == 0 && a.counted == 0);
	}
	ck_assert_uint_eq(rig_add(&boxes_rig, 0, 0, 1).result, VOID); /* gaccd makes an error of it */
	ck_assert_uint_eq(boxes_push(1, 0, boxes_request(0, 1)).result, COUNTED);
	boxes_end();
}
END_TEST

START_TEST(tensors_that_are_not_present_add_nothing)
{
	boxes_begin_with_mailboxes(rig_small());
	unsigned char first_only = 1;
	rig_set_gradient(&boxes_rig, 0, 0, 1, 5);
	rig_set_gradient(&boxes_rig, 0, 5, 1, 3);
	struct gacc_box_request q = boxes_request(0, 1);
	q.n_present = 1;
	uint64_t seq = box_publish(&boxes_trainer[0], 0, q, &first_only);
	box_bell(&boxes_trainer[0]);
	ck_assert_uint_eq(boxes_await(0, 0, seq).result, COUNTED);
	rig_read(&boxes_rig);
	ck_assert_double_eq(rig_sum(&boxes_rig, boxes_rig.state.r.x, 0, 1), 5);
	ck_assert_double_eq(rig_sum(&boxes_rig, boxes_rig.state.r.x, 5, 1), 0);
	first_only = 0xff; /* bits behind the last tensor */
	q = boxes_request(1, 1);
	q.n_present = 1;
	seq = box_publish(&boxes_trainer[0], 1, q, &first_only);
	box_bell(&boxes_trainer[0]);
	ck_assert_uint_eq(boxes_await(0, 1, seq).status, ST_INVALID_ARGUMENT);
	boxes_end();
}
END_TEST

/* ---- mailboxes come and go ---- */

static int count_fds(void)
{
	char path[64];
	int n = 0;
	snprintf(path, sizeof(path), "/proc/%d/fd", (int)boxes_rig.pid);
	DIR *d = opendir(path);
	ck_assert_ptr_nonnull(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

START_TEST(mailboxes_that_are_refused_leave_no_descriptor)
{
	rig_begin(&boxes_rig, rig_small());
	for (uint32_t i = 0; i < BOXES_RANKS; i++)
		boxes_make(i, 1);
	const struct engine_command good = { .rank = 1, .sgen = 1, .epoch = 1 };
	struct engine_command c = good;
	int before = count_fds();
	ck_assert_uint_eq(boxes_give_as(good, BOXES_FDS).status, ST_NOT_READY); /* no parameters */
	rig_zero_params(&boxes_rig);
	c.rank = BOXES_RANKS;
	ck_assert_uint_eq(boxes_give_as(c, BOXES_FDS).status, ST_RANK_OUT_OF_RANGE);
	c = good;
	c.sgen = 0;
	ck_assert_uint_eq(boxes_give_as(c, BOXES_FDS).status, ST_SESSION_FENCED);
	c.sgen = 2;
	ck_assert_uint_eq(boxes_give_as(c, BOXES_FDS).status, ST_SESSION_UNKNOWN);
	c = good;
	c.epoch = 2;
	ck_assert_uint_eq(boxes_give_as(c, BOXES_FDS).status, ST_STALE_EPOCH);
	struct engine_answer a = boxes_give_as(good, 2);
	ck_assert_uint_eq(a.status, ST_INVALID_ARGUMENT);
	ck_assert_str_eq(a.text, "a mailbox with 2 descriptors instead of 3 (memory, submit, answer)");
	const int wrong[] = { boxes_fds[1].submit, boxes_fds[1].submit, boxes_fds[1].answer };
	boxes_send_mailbox(good, wrong, BOXES_FDS);
	ck_assert(rig_receive(&boxes_rig, &a) && a.status == ST_SEGMENT_CORRUPT);
	ck_assert_int_eq(count_fds(), before);
	ck_assert_uint_eq(boxes_give_as(good, BOXES_FDS).status, ST_OK);
	int with_one = count_fds();
	ck_assert_int_eq(with_one, before + 2);				 /* two bells */
	ck_assert_uint_eq(boxes_give_as(good, BOXES_FDS).status, ST_OK); /* again: in the place of the first */
	ck_assert_int_eq(count_fds(), with_one);
	boxes_end();
}
END_TEST

START_TEST(a_fenced_session_is_heard_no_more)
{
	boxes_begin_with_mailboxes(rig_small());
	uint64_t parked = boxes_publish(1, 0, boxes_request(0, 64));
	boxes_settle();
	ck_assert_uint_eq(
		rig_call(&boxes_rig, (struct engine_command){ .op = ENGINE_ATTACH, .rank = 1, .sgen = 2 }).status,
		ST_OK);
	uint64_t late = boxes_publish(1, 1, boxes_request(0, 32));
	ck_assert_uint_eq(boxes_push(0, 0, boxes_request(0, 1)).result, COUNTED);
	ck_assert(boxes_is_open(1, 0, parked) && boxes_is_open(1, 1, late));
	boxes_unmake(1);
	boxes_make(1, 2);
	boxes_give(1, 2);
	ck_assert_uint_eq(boxes_push(1, 0, boxes_request(0, 2)).result, COUNTED);
	rig_read(&boxes_rig);
	ck_assert(boxes_rig.state.r.count == 2 && boxes_rig.state.r.sum_weight == 3);
	boxes_end();
}
END_TEST

START_TEST(what_lies_in_a_mailbox_before_it_is_given_is_taken_with_it)
{
	boxes_begin(rig_small());
	uint64_t first = box_publish(&boxes_trainer[0], 6, boxes_request(0, 1), NULL);
	uint64_t second = box_publish(&boxes_trainer[0], 2, boxes_request(1, 1), NULL);
	boxes_give(0, 1);
	ck_assert_uint_eq(boxes_await(0, 6, first).result, COUNTED);
	ck_assert(boxes_is_open(0, 2, second)); /* rank 1's first comes before */
	ck_assert_uint_eq(rig_add(&boxes_rig, 1, 0, 1).result, COUNTED);
	ck_assert_uint_eq(boxes_await(0, 2, second).result, COUNTED);
	boxes_end();
}
END_TEST

/* ---- the end of a window ---- */

START_TEST(a_flush_waits_for_the_cells_before_it)
{
	struct engine_answer a;
	struct engine_command c = { .op = ENGINE_FLUSH, .rank = 1, .sgen = 1 };
	boxes_begin_with_mailboxes(rig_small());
	uint64_t seq = box_publish(&boxes_trainer[1], 0, boxes_request(0, 2), NULL); /* no bell */
	uint64_t id = rig_send(&boxes_rig, c);
	boxes_settle(); /* its answer comes first: the flush waits */
	ck_assert_uint_eq(boxes_push(0, 0, boxes_request(0, 1)).result, COUNTED);
	ck_assert_uint_eq(boxes_await(1, 0, seq).result, COUNTED);
	ck_assert(rig_receive(&boxes_rig, &a) && a.id == id && a.op == ENGINE_FLUSH && a.status == ST_OK);
	rig_read(&boxes_rig);
	ck_assert(boxes_rig.state.rank[1].flushed == RANK_FLUSHED && boxes_rig.state.rank[1].counted == 1);
	ck_assert_uint_eq(boxes_push(1, 0, boxes_request(1, 2)).status, ST_FLUSHED);
	boxes_end();
}
END_TEST

START_TEST(a_flush_that_waits_ends_with_its_session_and_with_the_window)
{
	struct engine_answer a;
	struct engine_command c = { .op = ENGINE_FLUSH, .rank = 1, .sgen = 1 };
	boxes_begin_with_mailboxes(rig_small());
	boxes_publish(1, 0, boxes_request(0, 2));
	uint64_t id = rig_send(&boxes_rig, c);
	uint64_t attach = rig_send(&boxes_rig, (struct engine_command){ .op = ENGINE_ATTACH, .rank = 1, .sgen = 2 });
	ck_assert(rig_receive(&boxes_rig, &a) && a.id == id && a.status == ST_SESSION_FENCED);
	ck_assert(rig_receive(&boxes_rig, &a) && a.id == attach && a.status == ST_OK);
	boxes_unmake(1);
	boxes_make(1, 2);
	boxes_give(1, 2);
	uint64_t seq = boxes_publish(1, 0, boxes_request(0, 2));
	c.sgen = 2;
	id = rig_send(&boxes_rig, c);
	uint64_t close = rig_send(&boxes_rig, (struct engine_command){ .op = ENGINE_CLOSE });
	ck_assert(rig_receive(&boxes_rig, &a) && a.id == close && a.status == ST_OK && a.count == 0);
	ck_assert(rig_receive(&boxes_rig, &a) && a.id == id && a.status == ST_WINDOW_CLOSED);
	ck_assert_uint_eq(boxes_await(1, 0, seq).status, ST_WINDOW_CLOSED);
	boxes_end();
}
END_TEST

START_TEST(a_late_repeat_hears_that_it_was_committed)
{
	boxes_begin_with_mailboxes(rig_small());
	for (uint32_t m = 0; m < boxes_rig.config.micro_size; m++)
		for (uint32_t r = 0; r < BOXES_RANKS; r++)
			ck_assert_uint_eq(boxes_push(r, 0, boxes_request(m, 1)).result, COUNTED);
	struct gacc_box_request again = boxes_request(1, 1);
	rig_step(&boxes_rig, APPLIED, 1, 1);
	ck_assert_uint_eq(boxes_push(0, 1, boxes_request(0, 1)).result, COUNTED);
	struct gacc_box_answer a = boxes_push(0, 2, again);
	ck_assert(a.result == ALREADY_COMMITTED && a.window == 0 && a.counted == 0); /* 1 is of the open window */
	boxes_end();
}
END_TEST

int main(void)
{
	Suite *s = suite_create("boxes");
	TCase *c = tcase_create("boxes");
	tcase_set_timeout(c, 20);
	tcase_add_test(c, the_trainer_is_woken);
	tcase_add_test(c, a_push_in_a_cell_counts_like_one_by_command);
	tcase_add_test(c, what_it_waited_for_is_said);
	tcase_add_test(c, refusals_are_numbers);
	tcase_add_test(c, both_ways_may_be_mixed);
	tcase_add_test(c, a_command_does_not_overtake_a_cell);
	tcase_add_test(c, a_gradient_that_is_not_ready_waits_for_its_word);
	tcase_add_test(c, nothing_is_looked_for_in_a_closed_mailbox);
	tcase_add_test(c, void_and_zeroed_after);
	tcase_add_test(c, a_void_push_that_fails_the_job_is_an_error);
	tcase_add_test(c, tensors_that_are_not_present_add_nothing);
	tcase_add_test(c, mailboxes_that_are_refused_leave_no_descriptor);
	tcase_add_test(c, a_fenced_session_is_heard_no_more);
	tcase_add_test(c, what_lies_in_a_mailbox_before_it_is_given_is_taken_with_it);
	tcase_add_test(c, a_flush_waits_for_the_cells_before_it);
	tcase_add_test(c, a_flush_that_waits_ends_with_its_session_and_with_the_window);
	tcase_add_test(c, a_late_repeat_hears_that_it_was_committed);
	suite_add_tcase(s, c);
	return suite_run(s, boxes_progress_suite(), boxes_wait_suite(), boxes_armed_suite(), boxes_deaths_suite());
}
