/* SPDX-License-Identifier: Apache-2.0 */
/* Mailboxes of a job's sessions: which jobs have them, when the engine is told of one, and when it is over. */
#include "session_rig.h"

#include "support/suite.h"

#include <string.h>

Suite *catch_up_suite(void);   /* test_catch_up.c */
Suite *part_armed_suite(void); /* test_part_armed.c */

#define S INT64_C(1000000000)

static struct order run_order(uint64_t number)
{
	return (struct order){ .job_id = 1, .epoch = 1, .term = 1, .run = true, .number = number };
}

static struct now after(int64_t ns)
{
	return (struct now){ now.mono_ns + ns, now.unix_ns + ns };
}

static void attach_as(uint64_t call, uint8_t nonce)
{
	struct attach_args a = {
		.world_size = spec.ranks, .uid = 7, .pid = 43, .shared_memory = true, .nonce = { nonce }
	};
	job_attach(job, call, &a, now);
}

/* ---- when the engine is told ---- */

START_TEST(the_engine_is_told_once_the_job_runs)
{
	struct attach_args a = { .world_size = 1, .uid = 7, .pid = 42, .shared_memory = true };
	struct order run = run_order(0);
	record.r.params_ready = 0;
	record.r.epoch = 6;
	job_attach(job, 0, &a, now); /* before there is an engine */
	job_on_mailbox(job, 0, 1);
	ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
	job_on_order(job, &run, now);
	ck_assert_int_eq(count_sent(ENGINE_MAILBOX), 0); /* no parameters yet */
	job_on_engine_down(job, now);
	record.r.params_ready = 1;
	record.rank[0].sgen = 1;
	ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
	ck_assert_int_eq(count_sent(ENGINE_MAILBOX), 1);
	const struct engine_command *c = &sent[n_sent - 1];
	ck_assert(c->op == ENGINE_MAILBOX && c->rank == 0 && c->sgen == 1 && c->epoch == 6);
	answer(ENGINE_MAILBOX, 0);
	job_tick(job, after(S));
	ck_assert_int_eq(count_sent(ENGINE_MAILBOX), 1);
}
END_TEST

START_TEST(a_job_with_parameters_that_does_not_run_has_no_mailbox_yet)
{
	struct attach_args a = { .world_size = 1, .uid = 7, .pid = 42, .shared_memory = true };
	struct order run = run_order(0);
	ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
	job_attach(job, 0, &a, now);
	answer(ENGINE_ATTACH, 0);
	job_on_mailbox(job, 0, 1);
	job_tick(job, now);
	ck_assert_int_eq(count_sent(ENGINE_MAILBOX), 0);
	job_on_order(job, &run, now);
	ck_assert_int_eq(count_sent(ENGINE_MAILBOX), 1);
}
END_TEST

/* The descriptors went to a session that is over by now, or to none. */
START_TEST(only_the_session_in_force_has_a_mailbox)
{
	job_on_mailbox(job, 0, 2);
	job_on_mailbox(job, 1, 1);
	job_on_mailbox(job, 7, 1);
	ck_assert_int_eq(count_sent(ENGINE_MAILBOX), 0);
	struct order end = run_order(1);
	end.want = WANT_END;
	job_on_order(job, &end, now);
	job_on_mailbox(job, 0, 1);
	ck_assert_int_eq(count_sent(ENGINE_MAILBOX), 0);
	ck_assert_int_eq(n_over, 0);
}
END_TEST

START_TEST(a_rank_without_a_session_has_none)
{
	job_on_mailbox(job, 1, 0);
	job_tick(job, now);
	ck_assert_int_eq(n_sent, 0);
}
END_TEST

/* What lies in it came before what is repeated. */
START_TEST(a_new_engine_is_told_first)
{
	push(0, 1, 1);
	job_flush(job, 1, &key, 0, now);
	job_on_engine_down(job, now);
	n_sent = 0;
	record.rank[0].sgen = 1;
	ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
	ck_assert_int_eq(n_sent, 2);
	ck_assert(sent[0].op == ENGINE_MAILBOX && sent[1].op == ENGINE_ADD);
}
END_TEST

/* The engine has not got it, so what lies in it would come behind what is sent now. */
START_TEST(nothing_overtakes_a_mailbox_that_could_not_be_sent)
{
	unsendable = ENGINE_MAILBOX;
	n_sent = 0;
	job_on_mailbox(job, 0, 1);
	push(0, 1, 1);
	job_flush(job, 1, &key, 0, now);
	job_tick(job, now);
	ck_assert_int_eq(n_sent, 0);
	unsendable = 0;
	job_tick(job, now);
	ck_assert_int_eq(n_sent, 2);
	ck_assert(sent[0].op == ENGINE_MAILBOX && sent[1].op == ENGINE_ADD);
}
END_TEST

/* With nothing but a flush. */
START_TEST(a_flush_waits_for_a_mailbox_that_could_not_be_sent)
{
	unsendable = ENGINE_MAILBOX;
	n_sent = 0;
	job_on_mailbox(job, 0, 1);
	job_flush(job, 0, &key, 0, now);
	ck_assert_int_eq(n_sent, 0);
	unsendable = 0;
	job_tick(job, now);
	ck_assert(n_sent == 2 && sent[0].op == ENGINE_MAILBOX && sent[1].op == ENGINE_FLUSH);
}
END_TEST

/* An engine that goes on with the old session may not read its mailbox any more. */
START_TEST(while_a_newer_session_attaches_there_is_none)
{
	attach_as(0, 9);
	ck_assert_msg(!replied[0], "%s", reply_to[0].text);
	ck_assert_int_eq(count_sent(ENGINE_ATTACH), 1);
	job_on_engine_down(job, now);
	n_sent = 0;
	record.rank[0].sgen = 1;
	ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
	ck_assert(n_sent == 1 && sent[0].op == ENGINE_ATTACH && n_over == 0);
	job_on_mailbox(job, 0, 1); /* of the session that ends */
	ck_assert_int_eq(n_sent, 1);
	answer(ENGINE_ATTACH, 0);
	ck_assert(n_over == 1 && over == 0 && replied[0]);
	job_tick(job, after(S));
	ck_assert_int_eq(count_sent(ENGINE_MAILBOX), 0);
	job_on_mailbox(job, 0, 2);
	ck_assert_int_eq(count_sent(ENGINE_MAILBOX), 1);
	ck_assert_uint_eq(sent[n_sent - 1].sgen, 2);
}
END_TEST

/* ---- when it is over ---- */

static void refuse(uint64_t id)
{
	struct engine_answer a = { .op = ENGINE_MAILBOX, .id = id, .rank = 0, .status = ST_NO_MEMORY };
	job_on_answer(job, &a, now);
}

START_TEST(a_refused_mailbox_is_over)
{
	job_on_mailbox(job, 0, 1);
	uint64_t first = sent[n_sent - 1].id;
	job_on_engine_down(job, now);
	record.rank[0].sgen = 1;
	ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
	uint64_t second = sent[n_sent - 1].id;
	ck_assert_uint_ne(first, second);
	refuse(first); /* of an engine that is no more */
	ck_assert_int_eq(n_over, 0);
	refuse(second);
	ck_assert_int_eq(n_over, 1);
	refuse(second);
	job_tick(job, after(S));
	ck_assert(n_over == 1 && sent[n_sent - 1].id == second);
}
END_TEST

START_TEST(a_mailbox_ends_with_its_session_or_the_job)
{
	struct order end = run_order(1);
	end.want = WANT_END;
	if (_i == 0)
		job_detach(job, 0, &key, false, now);
	else if (_i == 1)
		job_detach(job, 0, &key, true, now);
	else
		job_on_order(job, &end, now);
	ck_assert(n_over == 1 && over == 0);
	end.number = 2;
	job_on_order(job, &end, now);
	ck_assert_int_eq(n_over, 1);
	job_on_engine_down(job, now);
	n_sent = 0;
	record.rank[0].sgen = 1;
	ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
	ck_assert_int_eq(count_sent(ENGINE_MAILBOX), 0);
}
END_TEST

/* ---- which jobs have them ---- */

START_TEST(large_records_are_not_read)
{
	struct job_spec s = { .max_micro_size = 64 };
	const uint32_t most = (256 << 10) / (sizeof(struct control_rank) + 3 * 8);
	for (s.ranks = 1; s.ranks < most; s.ranks *= 2)
		ck_assert(job_offers_mailboxes(&s));
	s.ranks = most;
	ck_assert(job_offers_mailboxes(&s));
	s.ranks = most + 1;
	ck_assert(!job_offers_mailboxes(&s));
	s.ranks = 1;
	s.max_micro_size = 65536;
	ck_assert(job_offers_mailboxes(&s));
	s.max_micro_size = 1 << 20;
	ck_assert(!job_offers_mailboxes(&s));
}
END_TEST

static TCase *with(Suite *s, void (*begin)(void), void (*end)(void))
{
	TCase *c = tcase_create("mailboxes");
	tcase_add_checked_fixture(c, begin, end);
	suite_add_tcase(s, c);
	return c;
}

int main(void)
{
	Suite *s = suite_create("mailboxes");
	TCase *c = with(s, setup_job, teardown);
	tcase_add_test(c, the_engine_is_told_once_the_job_runs);
	tcase_add_test(c, a_job_with_parameters_that_does_not_run_has_no_mailbox_yet);
	c = with(s, setup, teardown);
	tcase_add_test(c, only_the_session_in_force_has_a_mailbox);
	tcase_add_test(c, nothing_overtakes_a_mailbox_that_could_not_be_sent);
	tcase_add_test(c, a_flush_waits_for_a_mailbox_that_could_not_be_sent);
	tcase_add_test(c, a_refused_mailbox_is_over);
	tcase_add_test(c, large_records_are_not_read);
	c = with(s, setup_mailbox_of_two, teardown);
	tcase_add_test(c, a_rank_without_a_session_has_none);
	tcase_add_test(c, a_new_engine_is_told_first);
	tcase_add_test(c, while_a_newer_session_attaches_there_is_none);
	tcase_add_loop_test(c, a_mailbox_ends_with_its_session_or_the_job, 0, 3);
	return suite_run(s, catch_up_suite(), part_armed_suite());
}
