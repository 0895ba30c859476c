/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine with mailboxes tells gaccd unasked: that a window is complete, and which pushes of cells were void or
 * had non-finite elements. */
#include "boxes_rig.h"

#include "base/packet.h"

#include <check.h>
#include <math.h>
#include <unistd.h>

Suite *boxes_progress_suite(void);

/* Nothing of a trainer waits for the engine any more. */
static void settle(void)
{
	usleep(20000);
	boxes_settle();
}

static uint32_t count(enum progress_kind kind, uint64_t window)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < boxes_rig.n_progress; i++)
		n += boxes_rig.progress[i].result == (uint32_t)kind && boxes_rig.progress[i].window == window;
	return n;
}

/* There are n messages of this kind about the window, and no more come. */
static void expect_told(enum progress_kind kind, uint64_t window, uint32_t n)
{
	for (int ms = 0; count(kind, window) < n && ms < BOXES_SOON_MS; ms++) {
		usleep(1000);
		boxes_settle();
	}
	settle();
	ck_assert_uint_eq(count(kind, window), n);
}

static void push_all(uint32_t rank)
{
	for (uint32_t m = 0; m < boxes_rig.config.micro_size; m++)
		boxes_publish(rank, m, boxes_request(m, 1));
}

static void fill_window(void)
{
	for (uint32_t r = 0; r < BOXES_RANKS; r++)
		push_all(r);
	for (uint32_t r = 0; r < BOXES_RANKS; r++)
		for (uint32_t m = 0; m < boxes_rig.config.micro_size; m++)
			boxes_await(r, m, boxes_trainer[r].mem->request[m].seq);
}

/* ---- a window is complete ---- */

START_TEST(a_complete_window_is_told_once)
{
	boxes_begin_with_mailboxes(rig_small());
	for (uint64_t w = 0; w < 3; w++) {
		push_all(1);
		expect_told(PROGRESS_COMPLETE, w, 0);
		fill_window();
		expect_told(PROGRESS_COMPLETE, w, 1);
		const struct engine_answer *a = &boxes_rig.progress[boxes_rig.n_progress - 1];
		ck_assert(a->op == ENGINE_PROGRESS && a->status == ST_OK && a->count == 4);
		boxes_push(0, 0, boxes_request(0, 1)); /* a repeat */
		rig_flush(&boxes_rig, 0, false);
		expect_told(PROGRESS_COMPLETE, w, 1);
		rig_step(&boxes_rig, APPLIED, 0.25, 0.01);
	}
	ck_assert_uint_eq(boxes_rig.n_progress, 3);
	boxes_end();
}
END_TEST

START_TEST(gaccd_sees_by_itself_what_it_has_sent)
{
	boxes_begin(rig_small());
	rig_add_all(&boxes_rig, NULL);
	settle();
	ck_assert_uint_eq(boxes_rig.n_progress, 0);
	boxes_end();
}
END_TEST

/* When the message is there, what it relies on is told, and no slot of it waits to be zeroed. */
START_TEST(what_a_message_relies_on_is_done)
{
	struct engine_answer a;
	boxes_begin_with_mailboxes(rig_large());
	for (uint32_t r = 0; r < boxes_rig.config.ranks && r < BOXES_RANKS; r++)
		for (uint32_t m = 0; m < boxes_rig.config.micro_size; m++) {
			struct gacc_box_request q = boxes_request(m, 1);
			q.flags = GACC_BOX_ZERO_AFTER;
			q.slot = m;
			boxes_publish(r, m, q);
		}
	while (packet_recv(boxes_rig.fd, &a, sizeof(a), NULL, NULL) != (int)sizeof(a))
		;
	const struct status_progress *p =
		(const struct status_progress *)((char *)rig_data(&boxes_rig, SEG_STATUS, 0) + STATUS_PROGRESS_OFFSET);
	uint64_t told = p->told;
	rig_read(&boxes_rig);
	ck_assert(a.op == ENGINE_PROGRESS && a.result == PROGRESS_COMPLETE);
	ck_assert(boxes_rig.state.r.count == a.count && boxes_rig.state.r.n_zero == 0);
	ck_assert_uint_eq(told, boxes_rig.state.r.seq);
	boxes_end();
}
END_TEST

/* A rank that is gone owes nothing, in this window and in the next ones, until it has attached and one has begun. */
START_TEST(flushes_make_a_window_complete)
{
	boxes_begin_with_mailboxes(rig_small());
	push_all(0);
	ck_assert_uint_eq(rig_flush(&boxes_rig, 1, false).status, ST_OK);
	expect_told(PROGRESS_COMPLETE, 0, 1);
	ck_assert_uint_eq(rig_flush(&boxes_rig, 1, true).status, ST_OK);
	rig_step(&boxes_rig, APPLIED, 0.25, 0.01);
	push_all(0);
	expect_told(PROGRESS_COMPLETE, 1, 1);
	ck_assert_uint_eq(
		rig_call(&boxes_rig, (struct engine_command){ .op = ENGINE_ATTACH, .rank = 1, .sgen = 2 }).status,
		ST_OK);
	rig_step(&boxes_rig, APPLIED, 0.25, 0.01);
	push_all(0);
	expect_told(PROGRESS_COMPLETE, 2, 0);
	rig_call(&boxes_rig, (struct engine_command){ .op = ENGINE_FLUSH, .rank = 1, .sgen = 2, .window = 2 });
	expect_told(PROGRESS_COMPLETE, 2, 1);
	ck_assert_uint_eq(boxes_rig.n_progress, 3);
	boxes_end();
}
END_TEST

/* gaccd cannot know yet what its mailbox held. */
START_TEST(a_window_that_is_completed_by_commands_after_the_last_mailbox_is_told)
{
	boxes_begin(rig_small());
	boxes_give(0, 1);
	push_all(0);
	settle();
	rig_call(&boxes_rig, (struct engine_command){ .op = ENGINE_ATTACH, .rank = 0, .sgen = 2 });
	for (uint32_t m = 0; m < 2; m++) {
		struct engine_command c = rig_add_command(&boxes_rig, 0, m, 1);
		c.sgen = 2;
		rig_send(&boxes_rig, c);
		rig_send(&boxes_rig, rig_add_command(&boxes_rig, 1, m, 1));
	}
	for (int i = 0; i < 4; i++)
		ck_assert(rig_receive(&boxes_rig, &(struct engine_answer){ 0 }));
	expect_told(PROGRESS_COMPLETE, 0, 1);
	boxes_end();
}
END_TEST

/* Nobody has told gaccd: the engine died with the pushes in the cells, or before it could say that they are counted. */
START_TEST(a_successor_tells_what_its_mailboxes_complete)
{
	boxes_begin(rig_small());
	push_all(0);
	push_all(1);
	rig_kill(&boxes_rig);
	rig_start(&boxes_rig);
	boxes_give(0, 1);
	expect_told(PROGRESS_COMPLETE, 0, 0);
	boxes_give(1, 1);
	expect_told(PROGRESS_COMPLETE, 0, 1);
	rig_kill(&boxes_rig);
	rig_start(&boxes_rig); /* its record says it */
	expect_told(PROGRESS_COMPLETE, 0, 1);
	boxes_end();
}
END_TEST

/* ---- pushes that are not finite ---- */

static void begin_nonfinite(bool reject)
{
	struct rig_config c = rig_small();
	c.reject_nonfinite = reject;
	boxes_begin_with_mailboxes(c);
	rig_set_gradient(&boxes_rig, 1, 0, 3, INFINITY); /* micro-batch 1 of rank 0 */
	rig_set_gradient(&boxes_rig, 1, 0, 4, NAN);
}

START_TEST(a_push_that_is_not_finite_is_told)
{
	bool reject = _i;
	begin_nonfinite(reject);
	push_all(0);
	push_all(1);
	expect_told(PROGRESS_VOID, 0, reject);
	expect_told(PROGRESS_NONFINITE, 0, !reject);
	expect_told(PROGRESS_COMPLETE, 0, 1);
	const struct engine_answer *a = &boxes_rig.progress[0];
	ck_assert(a->rank == 0 && a->micro == 1 && a->nonfinite_count == 2 && a->window == 0);
	boxes_push(0, 3, boxes_request(1, 1)); /* it is void or counted already */
	ck_assert_uint_eq(boxes_rig.n_progress, 2);
	boxes_end();
}
END_TEST

/* The command's answer says it. */
START_TEST(a_push_that_a_command_asks_for_too_is_not)
{
	struct engine_answer a;
	bool cell_first = _i;
	begin_nonfinite(true);
	boxes_push(0, 0, boxes_request(0, 1));
	uint64_t id = cell_first ? 0 : rig_send(&boxes_rig, rig_add_command(&boxes_rig, 0, 1, 1));
	boxes_publish(0, 1, boxes_request(1, 1));
	settle();
	id = cell_first ? rig_send(&boxes_rig, rig_add_command(&boxes_rig, 0, 1, 1)) : id;
	ck_assert_uint_eq(boxes_push(1, 0, boxes_request(0, 1)).result, COUNTED);
	ck_assert(rig_receive(&boxes_rig, &a) && a.id == id && a.result == VOID && a.nonfinite_count == 2);
	settle();
	ck_assert_uint_eq(boxes_rig.n_progress, 0);
	boxes_end();
}
END_TEST

Suite *boxes_progress_suite(void)
{
	Suite *s = suite_create("boxes, progress");
	TCase *c = tcase_create("progress");
	tcase_set_timeout(c, 20);
	tcase_add_test(c, a_complete_window_is_told_once);
	tcase_add_test(c, gaccd_sees_by_itself_what_it_has_sent);
	tcase_add_test(c, what_a_message_relies_on_is_done);
	tcase_add_test(c, flushes_make_a_window_complete);
	tcase_add_test(c, a_window_that_is_completed_by_commands_after_the_last_mailbox_is_told);
	tcase_add_test(c, a_successor_tells_what_its_mailboxes_complete);
	tcase_add_loop_test(c, a_push_that_is_not_finite_is_told, 0, 2);
	tcase_add_loop_test(c, a_push_that_a_command_asks_for_too_is_not, 0, 2);
	suite_add_tcase(s, c);
	return s;
}
