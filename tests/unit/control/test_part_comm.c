/* SPDX-License-Identifier: Apache-2.0 */
/* How an engine of a part becomes a member of a communicator: JOIN, its address, the board, what it says then. */
#include "coll/coll.h"
#include "part_comm_rig.h"
#include "support/suite.h"

#include <check.h>
#include <string.h>

Suite *part_go_suite(void);	/* test_part_go.c */
Suite *part_shards_suite(void); /* test_part_shards.c */
Suite *part_fill_suite(void);	/* test_part_fill.c */

/* ---- JOIN ---- */

START_TEST(an_order_with_a_communicator_is_a_join)
{
	give_order();
	ck_assert_int_eq(n_sent, 0);
	order_comm(4);
	const struct engine_command *c = last(ENGINE_JOIN);
	ck_assert_uint_eq(c->term, 2);
	ck_assert_uint_eq(c->comm, 4);
	ck_assert_int_eq(c->join_ns, SECOND * 3 / 2);
	give_order();
	job_tick(job, now);
	ck_assert_int_eq(count(ENGINE_JOIN), 1);
	ck_assert_uint_eq(said.comm, 0);
	ck_assert_uint_eq(said.life, LIFE);
}
END_TEST

START_TEST(a_join_that_could_not_be_sent_is_sent_with_the_tick)
{
	unsendable = ENGINE_JOIN;
	unsendable_from = 0;
	order_comm(4);
	ck_assert_int_eq(n_sent, 0);
	unsendable = 0;
	job_tick(job, now);
	last(ENGINE_JOIN);
}
END_TEST

START_TEST(the_address_goes_out_each_second_until_the_board_comes)
{
	order_comm(4);
	ck_assert_int_eq(n_blobs, 0);
	answer_join(ST_OK, "mine");
	ck_assert_int_eq(n_blobs, 1);
	ck_assert(blob.job_id == 1 && blob.epoch == 3 && blob.part == 1 && blob.term == 2 && blob.comm == 4);
	ck_assert(blob.life == LIFE && blob.n == 4 && !memcmp(blob_bytes, "mine", 4));
	now.mono_ns += SECOND - 1;
	job_tick(job, now);
	ck_assert_int_eq(n_blobs, 1);
	now.mono_ns += 1;
	job_tick(job, now);
	ck_assert_int_eq(n_blobs, 2);
	give_board(2, 4, LIFE, "mine");
	now.mono_ns += 5 * SECOND;
	job_tick(job, now);
	ck_assert_int_eq(n_blobs, 2);
}
END_TEST

static const struct {
	enum status st;
	const char *bytes;
	enum status vote;
} joins[] = { { ST_STALE_ATTEMPT, "", ST_STALE_ATTEMPT },
	      { ST_IO_ERROR, "", ST_IO_ERROR },
	      { ST_OK, "", ST_MALFORMED } };

/* Before the job runs, the attempt that has failed is the communicator's own. */
START_TEST(a_join_that_fails_is_a_vote)
{
	order_comm(4);
	answer_join(joins[_i].st, joins[_i].bytes);
	expect_vote(4, joins[_i].vote);
	ck_assert_str_eq(said.vote_text, joins[_i].st ? "part 0 has died" : "");
	ck_assert_int_eq(n_blobs, 0);
	job_tick(job, now);
	ck_assert_int_eq(count(ENGINE_JOIN), 1);
	order_comm(5);
	ck_assert_int_eq(count(ENGINE_JOIN), 2);
	ck_assert_uint_eq(newest(ENGINE_JOIN)->comm, 5);
}
END_TEST

START_TEST(without_memory_it_is_joined_again)
{
	order_comm(4);
	answer_join(ST_NO_MEMORY, "");
	ck_assert_int_eq(said.vote_status, ST_OK);
	job_tick(job, now);
	ck_assert_int_eq(count(ENGINE_JOIN), 1); /* not at once */
	now.mono_ns += SECOND / 10;
	job_tick(job, now);
	ck_assert_int_eq(count(ENGINE_JOIN), 2);
	answer_join(ST_OK, "mine");
	ck_assert_int_eq(n_blobs, 1);
}
END_TEST

START_TEST(an_answer_to_an_earlier_join_is_ignored)
{
	order_comm(4);
	struct engine_answer a = to(newest(ENGINE_JOIN), ST_OK);
	order_comm(5);
	a.n_tail = 3;
	job_on_joining(job, &a, "old", now);
	ck_assert_int_eq(n_blobs, 0);
	a.status = ST_IO_ERROR;
	job_on_answer(job, &a, now);
	ck_assert_int_eq(said.vote_status, ST_OK);
	answer_join(ST_OK, "mine");
	ck_assert_uint_eq(blob.comm, 5);
}
END_TEST

/* ---- the board ---- */

START_TEST(a_board_is_passed_on_entry_by_entry)
{
	order_comm(4);
	answer_join(ST_OK, "mine");
	give_board(2, 4, LIFE, "mine");
	ck_assert_int_eq(count(ENGINE_ADDRESS), 2);
	const struct engine_command *c = &sent[n_sent - 2];
	ck_assert(c->slot == 0 && c->part_life == 55 && c->n_present == 5 && c->term == 2 && c->comm == 4);
	ck_assert_str_eq(sent_bytes[n_sent - 2], "other");
	ck_assert(c[1].slot == 1 && c[1].part_life == LIFE && c[1].n_present == 4);
	ck_assert_str_eq(sent_bytes[n_sent - 1], "mine");
	give_board(2, 4, LIFE, "mine");
	ck_assert_int_eq(count(ENGINE_ADDRESS), 2);
	ck_assert_uint_eq(said.comm, 0);
	int before = n_reports;
	progress(4, COMM_JOINED, 1, 0);
	ck_assert_int_eq(n_reports, before + 1);
	ck_assert_uint_eq(said.comm, 4);
}
END_TEST

static const struct {
	uint64_t term, k, life;
	const char *own;
} boards[] = { { 1, 4, LIFE, "mine" },
	       { 2, 3, LIFE, "mine" },
	       { 2, 4, 76, "mine" },
	       { 2, 4, LIFE, "minx" },
	       { 2, 4, LIFE, "min" } };

START_TEST(a_board_of_others_is_dropped)
{
	order_comm(4);
	answer_join(ST_OK, "mine");
	give_board(boards[_i].term, boards[_i].k, boards[_i].life, boards[_i].own);
	ck_assert_int_eq(count(ENGINE_ADDRESS), 0);
	now.mono_ns += SECOND;
	job_tick(job, now);
	ck_assert_int_eq(n_blobs, 2);
}
END_TEST

START_TEST(a_board_before_the_address_is_dropped)
{
	order_comm(4);
	give_board(2, 4, LIFE, "mine");
	ck_assert_int_eq(count(ENGINE_ADDRESS), 0);
}
END_TEST

START_TEST(a_board_that_the_engine_cannot_take_is_gone_on_with)
{
	unsendable = ENGINE_ADDRESS;
	unsendable_from = 1;
	order_go(4, 4);
	answer_join(ST_OK, "mine");
	give_board(2, 4, LIFE, "mine");
	ck_assert_int_eq(count(ENGINE_ADDRESS), 1);
	ck_assert_int_eq(count(ENGINE_GO), 0);
	unsendable = 0;
	now.mono_ns += SECOND;
	job_tick(job, now);
	ck_assert_int_eq(n_blobs, 2);
	give_board(2, 4, LIFE, "mine");
	ck_assert_int_eq(count(ENGINE_ADDRESS), 2);
	ck_assert_uint_eq(newest(ENGINE_ADDRESS)->slot, 1);
	last(ENGINE_GO);
}
END_TEST

START_TEST(an_address_that_the_engine_refuses_is_a_vote)
{
	order_go(4, 4);
	reach_given(4);
	answer(ENGINE_ADDRESS, ST_MALFORMED);
	expect_vote(4, ST_MALFORMED);
}
END_TEST

/* ---- what the engine says ---- */

START_TEST(a_lost_communicator_is_a_vote_while_an_attempt_needs_it)
{
	order_go(6, 6);
	reach_given(6);
	progress(6, COMM_LOST, 0, 0);
	expect_vote(6, ST_UNAVAILABLE);
	ck_assert_str_eq(said.vote_text, "part 0 has died");
	ck_assert_uint_eq(said.vote_suspects, 1);
	ck_assert_uint_eq(said.comm, 0);
}
END_TEST

START_TEST(a_lost_communicator_in_between_is_only_said)
{
	order.run = true;
	reach_joined(4);
	progress(4, COMM_LOST, 0, 0);
	ck_assert_uint_eq(said.comm, 0);
	ck_assert_int_eq(said.vote_status, ST_OK);
	order_go(7, 4); /* by a coordinator that has not heard of it */
	expect_vote(7, ST_UNAVAILABLE);
	ck_assert_int_eq(count(ENGINE_GO), 0);
}
END_TEST

START_TEST(news_of_an_earlier_communicator_are_ignored)
{
	order_comm(4);
	progress(4, COMM_JOINED, 1, 0); /* an earlier term's, which had the same number */
	ck_assert_uint_eq(said.comm, 0);
	reach_given(4);
	progress(3, COMM_JOINED, 1, 0);
	ck_assert_uint_eq(said.comm, 0);
	progress(3, COMM_LOST, 1, 0);
	ck_assert_int_eq(said.vote_status, ST_OK);
}
END_TEST

START_TEST(pieces_are_counted_over_all_communicators)
{
	reach_joined(4);
	progress(4, COMM_MOVES, 1, 30);
	job_tick(job, now);
	ck_assert_uint_eq(said.pieces, 30);
	ck_assert_uint_eq(said.connected, 1);
	progress(4, COMM_MOVES, 1, 50);
	order_comm(5);
	answer_join(ST_OK, "mine");
	give_board(2, 5, LIFE, "mine");
	progress(5, COMM_MOVES, 0, 2);
	job_tick(job, now);
	ck_assert_uint_eq(said.pieces, 52);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("part_comm");
	TCase *c = tcase_create("joining");
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, an_order_with_a_communicator_is_a_join);
	tcase_add_test(c, a_join_that_could_not_be_sent_is_sent_with_the_tick);
	tcase_add_test(c, the_address_goes_out_each_second_until_the_board_comes);
	tcase_add_loop_test(c, a_join_that_fails_is_a_vote, 0, 3);
	tcase_add_test(c, without_memory_it_is_joined_again);
	tcase_add_test(c, an_answer_to_an_earlier_join_is_ignored);
	tcase_add_test(c, a_board_is_passed_on_entry_by_entry);
	tcase_add_loop_test(c, a_board_of_others_is_dropped, 0, 5);
	tcase_add_test(c, a_board_before_the_address_is_dropped);
	tcase_add_test(c, a_board_that_the_engine_cannot_take_is_gone_on_with);
	tcase_add_test(c, an_address_that_the_engine_refuses_is_a_vote);
	tcase_add_test(c, a_lost_communicator_is_a_vote_while_an_attempt_needs_it);
	tcase_add_test(c, a_lost_communicator_in_between_is_only_said);
	tcase_add_test(c, news_of_an_earlier_communicator_are_ignored);
	tcase_add_test(c, pieces_are_counted_over_all_communicators);
	suite_add_tcase(s, c);
	return s;
}

int main(void)
{
	return suite_run(suite(), part_go_suite(), part_fill_suite(), part_shards_suite());
}
