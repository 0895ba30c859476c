/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions of trainers: attach, fence, what is waited for and acknowledged, who is lost; call by call, with an engine
 * that answers when it is told to. */
#include "session_rig.h"

#include "support/suite.h"

#include <stdio.h>
#include <string.h>

static void setup_two(void)
{
	ranks = 2;
	setup();
}

static void teardown_two(void)
{
	teardown();
	ranks = 1;
}

static void setup_many(void)
{
	ranks = 1000;
	setup();
}

/* To look at a process takes time, and a job may have 65,536: some a tick, until all have been looked at. */
START_TEST(processes_are_looked_at_a_few_at_a_time)
{
	struct now later = now;
	for (uint32_t r = 0; r < ranks; r++) {
		record.rank[r].sgen = 5;
		record.rank[r].session.pid = 1000 + r;
		record.rank[r].session.start_time = 1;
	}
	dead_pid[0] = 1000 + 700;
	job_on_engine_down(job, now);
	looks = 0;
	ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
	ck_assert_int_le(looks, 64);
	int ticks = 0;
	for (looks = 0; looks < (int)ranks; ticks++) {
		int before = looks;
		later.mono_ns += INT64_C(1000000000);
		last_event[0] = '\0';
		job_tick(job, later);
		ck_assert(looks - before >= 1 && looks - before <= 64);
		ck_assert((before <= 700 && looks > 700) == !strcmp(last_event, "RankLost"));
	}
	ck_assert_int_eq(ticks, 16);
	ck_assert_int_eq(looks, ranks);
}
END_TEST

/* A message for each, which thousands may be due in one tick. */
START_TEST(calls_time_out_some_at_a_time)
{
	struct now later = { now.mono_ns + 2, now.unix_ns };
	for (int i = 0; i < 1000; i++)
		job_wait_step(job, ANONYMOUS, &key, 0, 1, now);
	n_anonymous = 0;
	for (int before = 0; n_anonymous < 1000; before = n_anonymous) {
		job_tick(job, later);
		ck_assert(n_anonymous > before && n_anonymous - before <= 256);
	}
	ck_assert_int_eq(n_anonymous, 1000);
}
END_TEST

/* pid 0: it maps nothing. */
static enum status attach_as(uint64_t call, uint32_t rank, int64_t pid)
{
	struct attach_args a = { .world_size = 2,
				 .rank = rank,
				 .uid = 7,
				 .pid = pid,
				 .shared_memory = pid != 0,
				 .nonce = { (uint8_t)(call + 1) } };
	job_attach(job, call, &a, now);
	if (!replied[call])
		answer(ENGINE_ATTACH, 0);
	if (!reply_to[call].status)
		job_on_mapped(job, rank, job_generation(job, rank));
	return reply_to[call].status;
}

/* Its last push may still be on its way, whether its process lives or not, and whether it maps the slots or streams
 * into them. */
START_TEST(the_spare_slots_are_one_ranks_until_it_attaches_anew)
{
	int64_t second = _i ? 0 : 43;
	ck_assert_int_eq(attach_as(0, 0, second), ST_OK); /* pid 42 lives and has the rank's own */
	ck_assert_int_eq(attach_as(1, 1, 50), ST_OK);
	ck_assert_int_eq(attach_as(2, 1, 51), ST_NO_SLOT);
	dead_pid[0] = 43;
	ck_assert_int_eq(attach_as(3, 1, 51), ST_NO_SLOT);
	dead_pid[1] = 42;
	ck_assert_int_eq(attach_as(4, 0, 44), ST_OK); /* its own are free again */
	ck_assert_int_eq(attach_as(5, 1, 51), ST_OK);
}
END_TEST

static enum status judged(const struct session_key *k)
{
	struct reply why = { 0 };
	return job_session_ok(job, k, &why) ? ST_OK : why.status;
}

START_TEST(every_byte_of_the_token_counts)
{
	ck_assert_int_eq(judged(&key), ST_OK);
	struct session_key other = key;
	other.token[_i] ^= 0x10;
	ck_assert_int_eq(judged(&other), ST_SESSION_UNKNOWN);
}
END_TEST

START_TEST(a_session_belongs_to_its_user)
{
	struct session_key other = key;
	other.uid = 8;
	ck_assert_int_eq(judged(&other), ST_PERMISSION_DENIED);
	other.uid = 0;
	ck_assert_int_eq(judged(&other), ST_OK);
}
END_TEST

/* Its request was on its way when it died; somebody else has attached as this rank meanwhile. */
START_TEST(an_attach_of_a_dead_process_fences_nobody)
{
	struct attach_args attach = { .world_size = 1, .uid = 7, .pid = 41, .shared_memory = true, .nonce = { 1 } };
	int before = n_sent;
	alive = false;
	job_attach(job, 0, &attach, now);
	expect(0, ST_CANCELLED, 0);
	ck_assert_int_eq(n_sent, before);
	ck_assert_int_eq(judged(&key), ST_OK);
}
END_TEST

/* Its last step is still to be asked for, with the new session. */
START_TEST(an_attach_whose_answer_was_lost_is_answered_after_the_end)
{
	const struct order end = { .job_id = 1, .epoch = 1, .term = 1, .run = true, .window = 1, .want = WANT_END };
	struct attach_args first = { .world_size = 1, .uid = 7, .pid = 42, .shared_memory = true, .nonce = { 1 } };
	struct attach_args other = { .world_size = 1, .uid = 7, .pid = 42, .shared_memory = true, .nonce = { 2 } };
	job_attach(job, 0, &first, now);
	answer(ENGINE_ATTACH, 0);
	ck_assert(replied[0] && !reply_to[0].status);
	job_on_order(job, &end, now);
	job_attach(job, 1, &first, now);
	ck_assert(replied[1] && !reply_to[1].status);
	ck_assert_mem_eq(reply_to[1].attach.token, reply_to[0].attach.token, 16);
	job_attach(job, 2, &other, now);
	expect(2, ST_JOB_ENDED, 0);
	first.uid = 8;
	job_attach(job, 3, &first, now);
	expect(3, ST_PERMISSION_DENIED, 0);
}
END_TEST

/* The first copy was answered, and the process was fenced; the second one had been on its way all the time. */
START_TEST(a_late_copy_of_an_attach_fences_nobody)
{
	struct attach_args first = { .world_size = 1, .uid = 7, .pid = 42, .shared_memory = true, .nonce = { 1 } };
	struct attach_args second = { .world_size = 1, .uid = 7, .pid = 43, .shared_memory = true, .nonce = { 2 } };
	job_attach(job, 0, &first, now);
	answer(ENGINE_ATTACH, 0);
	ck_assert(replied[0] && !reply_to[0].status);
	job_attach(job, 1, &second, now);
	answer(ENGINE_ATTACH, 0);
	ck_assert(replied[1] && !reply_to[1].status);
	job_attach(job, 2, &first, now);
	expect(2, ST_SESSION_FENCED, 0);
	memcpy(key.token, reply_to[1].attach.token, 16);
	ck_assert_int_eq(judged(&key), ST_OK);
}
END_TEST

START_TEST(a_wait_may_be_longer_than_the_clock_can_tell)
{
	job_wait_step(job, 1, &key, 0, INT64_MAX - 1, now);
	job_tick(job, now);
	ck_assert(!replied[1]);
}
END_TEST

/* A job of its own that has come this far: no tensors, no engine, no parameters, which come from a rank or from rules.
 */
START_TEST(who_waits_for_the_start_hears_what_it_lacks)
{
	static const struct tensor_spec tensor = { .name = "w", .n_dims = 1, .shape = { 4 }, .dtype = DTYPE_F32 };
	static const char *const said[] = {
		"its tensors: no rank has called RegisterTensors", "its memory and its engine",
		"the initial parameters: no rank has given all of them (PutParameters, the last part with `last`)",
		"the initial parameters to be drawn by the rules of init", "the coordinator"
	};
	struct attach_args attach = { .world_size = 1, .uid = 7, .pid = 42 };
	struct spec_init zeros = { (char *)(uintptr_t) "*", { INIT_ZEROS, 0, 0 } };
	char why[200], want[200];
	job_free(job);
	spec.init = &zeros;
	spec.n_init = _i == 3;
	ck_assert_int_eq(job_new(&job, 1, part_whole(&spec), 7, 1, &session_ports), ST_OK);
	job_attach(job, 14, &attach, now);
	memcpy(key.token, reply_to[14].attach.token, 16);
	if (_i > 0)
		ck_assert_int_eq(job_set_tensors(job, &tensor, 1, why, sizeof(why)), ST_OK);
	record.r.params_ready = _i == 4;
	if (_i > 1) {
		ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
		for (int k = 0; k < n_sent && sent[n_sent - 1].op != ENGINE_ATTACH; k++)
			n_sent--;
		answer(ENGINE_ATTACH, 0); /* the session is in force again */
	}
	job_wait_ready(job, 1, &key, 1, now);
	job_tick(job, (struct now){ now.mono_ns + 2, now.unix_ns });
	expect(1, ST_STALLED, 0);
	snprintf(want, sizeof(want), "the job has not started: it waits for %s", said[_i]);
	ck_assert_str_eq(reply_to[1].text, want);
	spec.n_init = 0;
}
END_TEST

/* What the engine answers is what it was asked: a plain flush says nothing of a leave that came after it. */
START_TEST(a_detach_behind_a_flush_has_an_answer_of_its_own)
{
	job_flush(job, 0, &key, 0, now);
	ck_assert(sent[n_sent - 1].op == ENGINE_FLUSH && !sent[n_sent - 1].leave);
	job_detach(job, 1, &key, true, now);
	answer(ENGINE_FLUSH, 0);
	ck_assert(replied[0] && !reply_to[0].status && !replied[1]);
	ck_assert(sent[n_sent - 1].leave);
	answer(ENGINE_FLUSH, 0);
	ck_assert(replied[1] && !reply_to[1].status);
}
END_TEST

/* The record in which gradients of window 0 are read, by a gaccd that starts or one that has seen it. */
static void read_gradients(uint32_t acked)
{
	record.r.window = 1;
	record.r.client_pending = 1;
	record.rank[0].sgen = 1;
	memcpy(record.rank[0].session.token, key.token, 16);
	record.rank[0].session.step_acked = acked;
	spec.optim.type = OPTIM_CLIENT;
}

/* A trainer says once that it has read the gradients: who could die with that may not answer. */
START_TEST(an_acknowledgement_is_stored_before_it_is_answered)
{
	read_gradients(0);
	job_on_engine_down(job, now);
	ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
	int before = n_sent;
	job_ack_step(job, 0, &key, 0, now);
	ck_assert_int_eq(n_sent, before + 1);
	ck_assert(!replied[0] && !sent[before].last);
	if (_i) { /* it dies with that */
		job_on_engine_down(job, now);
		ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
		ck_assert_int_eq(n_sent, before + 2);
	}
	answer(ENGINE_ACK_STEP, 0);
	ck_assert(replied[0] && !reply_to[0].status);
	/* the only rank: all have read them */
	ck_assert(sent[n_sent - 1].op == ENGINE_ACK_STEP && sent[n_sent - 1].last);
	answer(ENGINE_ACK_STEP, 0);
	before = n_sent;
	job_ack_step(job, 1, &key, 0, now);
	ck_assert(replied[1] && !reply_to[1].status && n_sent == before);
}
END_TEST

START_TEST(an_acknowledgement_of_a_job_that_ends_is_well)
{
	const struct order end = { .job_id = 1, .epoch = 1, .term = 1, .run = true, .window = 1, .want = WANT_END };
	read_gradients(0);
	job_on_engine_down(job, now);
	ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
	job_ack_step(job, 0, &key, 0, now);
	ck_assert(!replied[0]);
	job_on_order(job, &end, now);
	ck_assert(replied[0] && !reply_to[0].status);
	job_ack_step(job, 1, &key, 0, now);
	ck_assert(replied[1] && !reply_to[1].status);
}
END_TEST

/* gaccd has died between a rank's acknowledgement and the last one's; and a rank that has left for good has nothing to
 * read. */
START_TEST(acknowledgements_outlive_gaccd)
{
	read_gradients(_i == 0);
	record.rank[0].flushed = _i == 1 ? 2 : 0;
	job_free(job);
	n_sent = 0;
	static const struct tensor_spec tensor = { .name = "w", .n_dims = 1, .shape = { 4 }, .dtype = DTYPE_F32 };
	char why[200];
	ck_assert_int_eq(job_new(&job, 1, part_whole(&spec), 7, 2, &session_ports), ST_OK);
	ck_assert_int_eq(job_set_tensors(job, &tensor, 1, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
	ck_assert_int_eq(n_sent, _i < 2);
	ck_assert(_i == 2 || (sent[0].op == ENGINE_ACK_STEP && sent[0].last));
}
END_TEST

/* The journal has a commit without the digest of the parameters that it made. */
START_TEST(a_restarted_gaccd_knows_the_last_digest)
{
	const struct commit last = { .window = 0, .applied_step = 1, .outcome = OUTCOME_APPLIED, .next_micro_size = 4 };
	const uint64_t counted[4] = { 1 };
	job_restore_window(job, &last, counted, (uint32_t)record.n_words);
	job_on_engine_down(job, now);
	record.r.window = 1;
	record.r.params_digest = 0x1234;
	record.rank[0].sgen = 1;
	ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
	job_wait_step(job, 0, &key, 0, 0, now);
	ck_assert(replied[0] && !reply_to[0].status);
	ck_assert_uint_eq(reply_to[0].step.commit.params_digest, 0x1234);
}
END_TEST

/* gaccd has been started again, and the trainer has not found it yet. */
START_TEST(a_trainer_that_dies_before_it_is_back_is_lost)
{
	static const struct tensor_spec tensor = { .name = "w", .n_dims = 1, .shape = { 4 }, .dtype = DTYPE_F32 };
	char why[200];
	job_free(job);
	ck_assert_int_eq(job_new(&job, 1, part_whole(&spec), 7, 2, &session_ports), ST_OK);
	ck_assert_int_eq(job_set_tensors(job, &tensor, 1, why, sizeof(why)), ST_OK);
	record.rank[0] = (struct control_rank){ .sgen = 1, .session = { .pid = 42 } };
	job_take_over(job);
	ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
	last_event[0] = '\0';
	for (int i = 0; i < 40; i++) {
		alive = i < 20;
		if (_i && i == 10)
			job_on_link(job, 0, 1, true, now); /* it is back: its end will be told */
		job_tick(job, (struct now){ now.mono_ns + i * INT64_C(100000000), now.unix_ns });
		if (i < 20)
			ck_assert_str_eq(last_event, "");
	}
	ck_assert_str_eq(last_event, _i ? "" : "RankLost");
}
END_TEST

/* It has mapped its slots twice, or has a watch stream beside the socket: the older one's end says nothing. */
START_TEST(a_trainer_is_lost_with_its_last_lifeline)
{
	last_event[0] = '\0';
	job_on_link(job, 0, 1, true, now);
	job_on_link(job, 0, 1, true, now);
	job_on_link(job, 0, 1, false, now);
	job_tick(job, now);
	ck_assert(shown.attached && !shown.lost);
	ck_assert_str_eq(last_event, "");
	job_on_link(job, 0, 1, false, now);
	job_tick(job, now);
	ck_assert(!shown.attached && shown.lost);
	ck_assert_str_eq(last_event, "RankLost");
}
END_TEST

/* A call with the token of a lost session: of its living process, or the delayed last word of a dead one. */
START_TEST(a_lost_trainer_that_is_heard_is_attached)
{
	job_on_link(job, 0, 1, true, now);
	job_on_link(job, 0, 1, false, now);
	alive = _i == 0;
	push(0, 0, 0);
	answer(ENGINE_ADD, COUNTED);
	job_tick(job, now);
	ck_assert(shown.lost == !alive && shown.attached == alive);
	ck_assert_str_eq(last_event, alive ? "RankHeard" : "RankLost");
	if (!alive)
		return;
	alive = false; /* without a lifeline, it is looked at */
	job_tick(job, (struct now){ now.mono_ns + INT64_C(2000000000), now.unix_ns });
	ck_assert(shown.lost && shown.lost_ns);
}
END_TEST

/* It has no lifeline, and its process is not of this machine: only its calls tell that it lives. */
START_TEST(an_inline_trainer_far_away_is_silent_without_calls)
{
	struct attach_args inl = { .world_size = 1,
				   .uid = 7,
				   .nonce = { 9 },
				   .pid = _i == 2 ? 77 : 0,
				   .start_time = _i == 2 ? 5 : 0,
				   .shown_pid = 77 };
	const int64_t warn = spec.stall_warn_ns;
	job_attach(job, 0, &inl, now);
	answer(ENGINE_ATTACH, 0);
	memcpy(key.token, reply_to[0].attach.token, 16);
	key.pid = 0;
	if (_i == 1)
		job_on_link(job, 0, job_generation(job, 0), true, now);
	job_tick(job, (struct now){ now.mono_ns + warn - 1, now.unix_ns });
	ck_assert(!shown.silent);
	job_tick(job, (struct now){ now.mono_ns + warn + 1000000000, now.unix_ns });
	ck_assert(shown.attached && shown.silent == !_i); /* else its stream, or its process, would have ended */
	if (_i)
		return;
	job_wait_step(job, 1, &key, 0, 0, now); /* heard, and there while it waits */
	job_tick(job, (struct now){ now.mono_ns + 3 * warn, now.unix_ns });
	ck_assert(!shown.silent);
	job_on_call_gone(job, 1, 0);
	job_tick(job, (struct now){ now.mono_ns + 3 * warn + warn / 2, now.unix_ns });
	ck_assert(!shown.silent);
	job_tick(job, (struct now){ now.mono_ns + 5 * warn, now.unix_ns });
	ck_assert(shown.silent);
}
END_TEST

/* Without memory: of this machine (its process is known), or of another one (its pid is only shown). */
START_TEST(an_inline_session_shows_its_process)
{
	struct attach_args inl = {
		.world_size = 1, .uid = 7, .nonce = { 9 }, .pid = _i ? 0 : 77, .start_time = _i ? 0 : 5, .shown_pid = 77
	};
	job_attach(job, 0, &inl, now);
	ck_assert(sent[n_sent - 1].session.no_memory && sent[n_sent - 1].session.pid == 77);
	answer(ENGINE_ATTACH, 0);
	job_tick(job, now);
	ck_assert(shown.pid == 77 && shown.unwatched);
	alive = false;
	job_tick(job, (struct now){ now.mono_ns + INT64_C(2000000000), now.unix_ns });
	ck_assert(shown.lost == !_i);
	memcpy(key.token, reply_to[0].attach.token, 16);
	key.pid = 78; /* another process goes on with the session */
	job_flush(job, 1, &key, 0, now);
	job_tick(job, (struct now){ now.mono_ns + INT64_C(4000000000), now.unix_ns });
	key.pid = 0;
	ck_assert(!shown.lost && shown.attached);
}
END_TEST

START_TEST(what_is_shown_of_pushes_is_restored)
{
	struct attach_args again = { .world_size = 1, .uid = 7, .pid = 43, .shared_memory = true };
	job_restore_pushes(job, 0, 2.5, 4000);
	job_tick(job, now);
	ck_assert(shown.weight == 2.5 && shown.last_push_unix_ns == 4000);
	push(0, 0, 0);
	answer(ENGINE_ADD, COUNTED);
	job_tick(job, now);
	ck_assert(shown.weight == 3.5 && shown.last_push_unix_ns == now.unix_ns);
	job_restore_pushes(job, 0, 3.5, 4000); /* the engine has died; a push that it had not counted was newer */
	job_attach(job, 1, &again, now);
	job_tick(job, now);
	ck_assert(shown.weight == 3.5 && shown.last_push_unix_ns == now.unix_ns);
}
END_TEST

Suite *pushes_suite(void); /* test_pushes.c */
Suite *run_on_suite(void);

int main(void)
{
	Suite *s = suite_create("session");
	TCase *c = tcase_create("session");
	tcase_add_checked_fixture(c, setup, teardown);
	suite_add_tcase(s, c);
	tcase_add_loop_test(c, every_byte_of_the_token_counts, 0, 16);
	tcase_add_test(c, a_session_belongs_to_its_user);
	tcase_add_test(c, an_attach_of_a_dead_process_fences_nobody);
	tcase_add_test(c, a_late_copy_of_an_attach_fences_nobody);
	tcase_add_test(c, an_attach_whose_answer_was_lost_is_answered_after_the_end);
	tcase_add_test(c, a_wait_may_be_longer_than_the_clock_can_tell);
	tcase_add_loop_test(c, who_waits_for_the_start_hears_what_it_lacks, 0, 5);
	tcase_add_loop_test(c, a_trainer_that_dies_before_it_is_back_is_lost, 0, 2);
	tcase_add_test(c, a_trainer_is_lost_with_its_last_lifeline);
	tcase_add_loop_test(c, a_lost_trainer_that_is_heard_is_attached, 0, 2);
	tcase_add_loop_test(c, an_inline_session_shows_its_process, 0, 2);
	tcase_add_loop_test(c, an_inline_trainer_far_away_is_silent_without_calls, 0, 3);
	tcase_add_test(c, what_is_shown_of_pushes_is_restored);
	tcase_add_test(c, a_detach_behind_a_flush_has_an_answer_of_its_own);
	tcase_add_loop_test(c, an_acknowledgement_is_stored_before_it_is_answered, 0, 2);
	tcase_add_test(c, an_acknowledgement_of_a_job_that_ends_is_well);
	tcase_add_loop_test(c, acknowledgements_outlive_gaccd, 0, 3);
	tcase_add_test(c, a_restarted_gaccd_knows_the_last_digest);
	c = tcase_create("two ranks");
	tcase_add_checked_fixture(c, setup_two, teardown_two);
	tcase_add_loop_test(c, the_spare_slots_are_one_ranks_until_it_attaches_anew, 0, 2);
	suite_add_tcase(s, c);
	c = tcase_create("many ranks");
	tcase_add_checked_fixture(c, setup_many, teardown_two);
	tcase_add_test(c, calls_time_out_some_at_a_time);
	tcase_add_test(c, processes_are_looked_at_a_few_at_a_time);
	suite_add_tcase(s, c);
	return suite_run(s, pushes_suite(), run_on_suite());
}
