/* SPDX-License-Identifier: Apache-2.0 */
/* Two ranks of a job, with an engine that answers when it is told to: whose initial parameters count, and whose
 * acknowledgement. */
#include "job_fakes.h"

#include "support/suite.h"

#include <string.h>

#define CALLS 64
#define ALL 32 /* bytes of the parameters */

static struct job_spec spec;
static struct job *job;
static struct control_state record;
static const struct now now = { 1000, 5000 };
static struct session_key key[2];
static struct reply reply_to[CALLS];
static int replies[CALLS];
static uint32_t slots = 2;

static void on_reply(void *ctx, uint64_t call, const struct reply *r)
{
	ck_assert(call < CALLS);
	reply_to[call] = *r;
	replies[call]++;
}
static struct report last_report;
static void on_report(void *ctx, const struct report *r)
{
	last_report = *r;
}

static const struct job_ports ports = { .reply = on_reply,
					.engine_send = fake_send,
					.report = on_report,
					.allocate = fake_allocate,
					.event = fake_event,
					.process_alive = fake_alive,
					.random16 = fake_random };

static void answer_to(struct engine_command c, enum status st)
{
	struct engine_answer a = { .op = c.op, .id = c.id, .rank = c.rank, .status = st };
	job_on_answer(job, &a, now);
}

/* Calls from 40 on are attaches. */
static void attach_call(uint32_t rank, uint64_t call, uint64_t resume)
{
	struct attach_args a = { .rank = rank,
				 .world_size = 2,
				 .uid = 7,
				 .pid = 50 + (int64_t)rank,
				 .start_time = 1,
				 .shared_memory = true,
				 .nonce = { (uint8_t)call },
				 .resume_generation = resume };
	job_attach(job, call, &a, now);
}
static void attached(uint32_t rank, uint64_t call)
{
	ck_assert(replies[call] == 1 && !reply_to[call].status);
	key[rank] = (struct session_key){ .rank = rank, .uid = 7 };
	memcpy(key[rank].token, reply_to[call].attach.token, 16);
	job_on_mapped(job, rank, job_generation(job, rank));
	job_on_link(job, rank, job_generation(job, rank), true, now);
}
static void attach(uint32_t rank, uint64_t call, uint64_t resume)
{
	attach_call(rank, call, resume);
	ck_assert_uint_eq(sent[n_sent - 1].op, ENGINE_ATTACH);
	answer_to(sent[n_sent - 1], ST_OK);
	attached(rank, call);
}

static void start(void)
{
	static const struct tensor_spec tensor = { .name = "w", .n_dims = 1, .shape = { ALL / 4 }, .dtype = DTYPE_F32 };
	const char *field;
	char why[200];
	spec = (struct job_spec){
		.name = "t", .ranks = 2, .micro_size = 4, .slots_per_rank = slots, .master_f32 = true
	};
	spec.optim = (struct optim_config){ .type = OPTIM_CLIENT, .lr = 0.1 };
	ck_assert_int_eq(job_spec_check(&spec, &field, why, sizeof(why)), ST_OK);
	memset(replies, 0, sizeof(replies));
	n_sent = n_tokens = 0;
	ck_assert_int_eq(job_new(&job, 1, part_whole(&spec), 7, 1, &ports), ST_OK);
	ck_assert_int_eq(job_set_tensors(job, &tensor, 1, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(control_state_init(&record, 2, spec.max_micro_size), ST_OK);
	record.r.micro_size = 4;
	record.r.loss_scale = 1;
}
static void setup(void)
{
	start();
	ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
	attach(0, 40, 0);
	attach(1, 41, 0);
	n_sent = 0;
}
/* The reduced gradient of window 0 is being read. */
static void setup_reading(void)
{
	struct order run = { .job_id = 1, .epoch = 1, .term = 1, .run = true };
	start();
	record.r.params_ready = 1;
	record.r.window = 1;
	record.r.client_pending = 1;
	ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
	job_on_order(job, &run, now);
	attach(0, 40, 0);
	attach(1, 41, 0);
	n_sent = 0;
}
static void teardown(void)
{
	job_free(job);
	control_state_fini(&record);
	slots = 2;
}

static void expect(uint64_t call, enum status st, bool ready)
{
	ck_assert_msg(replies[call] == 1, "call %d has %d answers", (int)call, replies[call]);
	ck_assert_msg(reply_to[call].status == st, "call %d: %s", (int)call, reply_to[call].text);
	ck_assert(st || reply_to[call].put.ready == ready);
}
static void put(uint32_t rank, uint64_t call, uint32_t slot, uint64_t offset, uint64_t bytes, bool last)
{
	job_put_params(job, call, &key[rank], slot, offset, bytes, last, now);
}
/* The first piece of a stream. */
static void stream(uint32_t rank, uint64_t call, uint64_t bytes, bool last)
{
	uint32_t slot;
	ck_assert(job_stream_open(job, call, &key[rank], NULL, &slot, now));
	job_stream_put(job, call, &key[rank], 0, bytes, last, now);
}
/* The engine has n commands since setup, and the newest is a piece of this rank. */
static void sent_to_engine(int n, uint32_t rank)
{
	ck_assert_int_eq(n_sent, n);
	ck_assert(sent[n - 1].op == ENGINE_PUT_PARAMS && sent[n - 1].rank == rank);
}
static void taken(void)
{
	answer_to(sent[n_sent - 1], ST_OK);
}

/* ---- initial parameters ---- */

static bool streamed;

static void begin(uint32_t rank, uint64_t call)
{
	if (streamed)
		stream(rank, call, 16, false);
	else
		put(rank, call, 0, 0, 16, false);
}
static void go_on(uint32_t rank, uint64_t call)
{
	if (streamed) {
		replies[call] = 0; /* that its piece was taken */
		job_stream_put(job, call, &key[rank], 16, 16, true, now);
	} else {
		put(rank, call + 1, 1, 16, 16, true);
	}
}

/* Both begin at once: the engine gets the pieces of one, and never one of the other, however they are sent. */
START_TEST(parameters_are_those_of_one_rank)
{
	streamed = _i & 1;
	begin(0, 0);
	sent_to_engine(1, 0);
	streamed = _i & 2;
	begin(1, 10);
	job_tick(job, now);
	ck_assert_int_eq(n_sent, 1);
	taken();
	expect(0, ST_OK, false);
	job_tick(job, now);
	ck_assert(n_sent == 1 && !replies[10]);
	streamed = _i & 1;
	go_on(0, 0);
	sent_to_engine(2, 0);
	ck_assert(sent[1].last);
	taken();
	expect(streamed ? 0 : 1, ST_OK, true);
	expect(10, ST_OK, true);
	job_tick(job, now);
	ck_assert_int_eq(n_sent, 2);
}
END_TEST

/* The engine dies with the giver's piece: it is the giver still. */
START_TEST(the_giver_stays_over_a_death_of_the_engine)
{
	streamed = _i;
	begin(1, 0);
	begin(0, 10);
	job_on_engine_down(job, now);
	ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
	struct engine_command *pieces = sent + 1;
	int n = 0;
	for (int i = 1; i < n_sent; i++)
		if (sent[i].op == ENGINE_PUT_PARAMS)
			pieces[n++] = sent[i];
	ck_assert(n == 1 && pieces[0].rank == 1);
}
END_TEST

/* The engine may take pieces in any order, but with the last one it must have all. */
START_TEST(the_last_piece_waits_for_those_before_it)
{
	put(0, 0, 0, 0, 16, false);
	put(0, 1, 1, 16, 16, true);
	sent_to_engine(1, 0);
	ck_assert(!replies[1]);
	taken();
	expect(0, ST_OK, false);
	sent_to_engine(2, 0);
	ck_assert(sent[1].last);
	taken();
	expect(1, ST_OK, true);
}
END_TEST

/* There may be thousands of both. */
START_TEST(a_piece_looks_at_no_rank)
{
	uint64_t before = job_ranks_visited(job);
	streamed = _i;
	begin(0, 0);
	taken();
	ck_assert_uint_eq(job_ranks_visited(job), before);
}
END_TEST

static void by_detach(void)
{
	job_detach(job, 30, &key[0], false, now);
}
static void by_loss(void)
{
	if (streamed) { /* its calls end with the process */
		job_stream_gone(job, 0, 0);
		job_on_call_gone(job, 0, 0);
	}
	job_on_link(job, 0, job_generation(job, 0), false, now);
}
static void by_fence(void)
{
	attach(0, 42, 0);
}
static void (*const STOPS[])(void) = { by_detach, by_loss, by_fence };

/* It stops half way: who waits gives all, and what it gave before counts for nothing, also when it is heard again. */
START_TEST(a_giver_that_stops_gives_its_place_away)
{
	streamed = _i & 1;
	begin(0, 0);
	taken();
	begin(1, 10);
	STOPS[_i / 2]();
	job_tick(job, now);
	sent_to_engine(n_sent, 1);
	taken();
	expect(10, ST_OK, false);
	int n = n_sent;
	put(0, 4, 1, 16, 16, true);
	job_tick(job, now);
	ck_assert_int_eq(n_sent, n); /* it is rank 1's turn */
	if (streamed) {
		job_stream_gone(job, 10, 1);
		job_on_call_gone(job, 10, 1);
	}
	job_detach(job, 31, &key[1], false, now);
	job_tick(job, now);
	ck_assert_int_eq(n_sent, n);
	expect(4, ST_INVALID_ARGUMENT, false); /* the first half is rank 1's */
}
END_TEST

/* The same process attaches again and goes on. */
START_TEST(a_giver_that_attaches_again_goes_on)
{
	streamed = false;
	begin(0, 0);
	taken();
	begin(1, 10);
	attach(0, 42, 1);
	job_tick(job, now);
	int n = n_sent;
	go_on(0, 2);
	sent_to_engine(n + 1, 0);
	taken();
	expect(3, ST_OK, true);
	expect(10, ST_OK, true);
}
END_TEST

/* A stream that waits for its turn: begun again, detached from or cut, it is answered once and leaves its slot. */
START_TEST(a_stream_that_waits_may_end)
{
	uint32_t slot;
	streamed = true;
	begin(0, 0);
	begin(1, 10);
	if (_i == 0) {
		ck_assert(job_stream_open(job, 11, &key[1], NULL, &slot, now));
		expect(10, ST_UNAVAILABLE, false);
	} else if (_i == 1) {
		job_detach(job, 12, &key[1], false, now);
		expect(10, ST_CANCELLED, false);
	} else {
		job_stream_gone(job, 10, 1);
		job_on_call_gone(job, 10, 1);
		ck_assert(job_stream_open(job, 11, &key[1], NULL, &slot, now));
	}
	taken();
	job_stream_gone(job, 0, 0);
	job_tick(job, now);
	ck_assert_int_eq(n_sent, 1);
	ck_assert_int_eq(replies[10], _i < 2);
}
END_TEST

static void one_slot(void)
{
	slots = 1;
	setup();
}

/* The engine's answer to a piece of a stream that has ended since is nobody's. */
START_TEST(a_stream_is_answered_once)
{
	streamed = true;
	begin(0, 0);
	job_detach(job, 1, &key[0], false, now);
	expect(0, ST_CANCELLED, false);
	taken();
	ck_assert_int_eq(replies[0], 1);
}
END_TEST

/* ---- optimizer CLIENT ---- */

START_TEST(an_acknowledgement_does_not_pass_the_fence)
{
	attach_call(0, 42, 0);
	struct engine_command fence = sent[n_sent - 1];
	job_ack_step(job, 0, &key[0], 0, now);
	job_tick(job, now);
	ck_assert_int_eq(n_sent, 1);
	answer_to(fence, ST_OK);
	attached(0, 42);
	expect(0, ST_SESSION_FENCED, false);
	job_ack_step(job, 1, &key[0], 0, now);
	ck_assert(n_sent == 2 && sent[1].op == ENGINE_ACK_STEP && sent[1].sgen == 2 && sent[1].rank == 0);
	answer_to(sent[1], ST_OK);
	ck_assert(replies[1] == 1 && !reply_to[1].status);
}
END_TEST

/* The engine has refused it: it is not acknowledged. */
START_TEST(a_refused_acknowledgement_is_an_error)
{
	job_ack_step(job, 0, &key[1], 0, now);
	answer_to(sent[0], ST_SESSION_FENCED);
	expect(0, ST_SESSION_FENCED, false);
	ck_assert_uint_eq(job_record(job)->rank[1].session.step_acked, 0);
}
END_TEST

/* Its parameters have begun to come, and do not go on: all who wait for the start hear whose they are, until it is
 * gone. */
START_TEST(who_waits_for_the_start_hears_who_gives)
{
	struct now later = { now.mono_ns + INT64_C(1000000000), now.unix_ns };
	streamed = _i;
	begin(1, 0);
	taken();
	job_wait_ready(job, 2, &key[0], 1, now);
	job_tick(job, later);
	ck_assert_int_eq(reply_to[2].status, ST_STALLED);
	ck_assert_str_eq(
		reply_to[2].text,
		"the job has not started: it waits for the initial parameters: rank 1 (pid 51) has given some of "
		"them, and not yet the last part");
	ck_assert(reply_to[2].n_missing == 1 && reply_to[2].missing[0] == 1);
	ck_assert_str_eq(last_report.start_waits,
			 "the initial parameters: rank 1 (pid 51) has given some of them, and not yet the last part");
	job_on_link(job, 1, job_generation(job, 1), false, now);
	job_wait_ready(job, 3, &key[0], 1, now);
	job_tick(job, later);
	ck_assert_ptr_nonnull(strstr(reply_to[3].text, _i ? "rank 1" : "no rank has given all of them"));
	ck_assert_uint_eq(reply_to[3].n_missing, _i ? 1 : 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("puts");
	TCase *p = tcase_create("parameters"), *o = tcase_create("one slot"), *a = tcase_create("acknowledgements");
	tcase_add_checked_fixture(p, setup, teardown);
	tcase_add_checked_fixture(o, one_slot, teardown);
	tcase_add_checked_fixture(a, setup_reading, teardown);
	suite_add_tcase(s, p);
	suite_add_tcase(s, o);
	suite_add_tcase(s, a);
	tcase_add_loop_test(p, parameters_are_those_of_one_rank, 0, 4);
	tcase_add_test(p, the_last_piece_waits_for_those_before_it);
	tcase_add_loop_test(p, a_piece_looks_at_no_rank, 0, 2);
	tcase_add_loop_test(p, the_giver_stays_over_a_death_of_the_engine, 0, 2);
	tcase_add_loop_test(p, a_giver_that_stops_gives_its_place_away, 0, 6);
	tcase_add_test(p, a_giver_that_attaches_again_goes_on);
	tcase_add_test(p, a_stream_is_answered_once);
	tcase_add_loop_test(p, who_waits_for_the_start_hears_who_gives, 0, 2);
	tcase_add_loop_test(o, a_stream_that_waits_may_end, 0, 3);
	tcase_add_test(a, an_acknowledgement_does_not_pass_the_fence);
	tcase_add_test(a, a_refused_acknowledgement_is_an_error);
	return suite_run(s);
}
