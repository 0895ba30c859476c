/* SPDX-License-Identifier: Apache-2.0 */
/* Part 1 of a job of 8 ranks, which has ranks 1, 4 and 5: trainers, texts and reports speak of the job's ranks, the
 * engine and the bitmaps of the part's; and the coordinator puts together what two such parts say. */
#include "control/coordinator.h"
#include "control/job.h"
#include "job_fakes.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

Suite *of_parts_suite(void); /* test_part_coord.c */
Suite *part_map_suite(void); /* test_part_map.c */

#define MICRO_SIZE 3
#define CALLS 32

static const uint32_t ranks_here[] = { 1, 4, 5 };
static struct job_spec spec;
static struct job *job;
static struct now now;
static struct reply reply_to[CALLS];
static bool replied[CALLS];
static struct report said;
static struct rank_progress said_rank[3];
static uint64_t said_bits;
static int n_reports;
static char event_text[256];
static int64_t event_rank;

static void on_reply(void *ctx, uint64_t call, const struct reply *r)
{
	ck_assert(call < CALLS);
	reply_to[call] = *r;
	replied[call] = true;
}

static void on_report(void *ctx, const struct report *r)
{
	n_reports++;
	said = *r;
	ck_assert_uint_eq(r->n_ranks, 3);
	memcpy(said_rank, r->rank, sizeof(said_rank));
	ck_assert(!r->counted || r->n_words == 1);
	said_bits = r->counted ? r->counted[0] : 0;
}

static void on_event(void *ctx, uint64_t id, bool warning, const char *reason, int64_t rank, const char *text)
{
	event_rank = rank;
	snprintf(event_text, sizeof(event_text), "%s", text);
}

static const struct job_ports ports = { .reply = on_reply,
					.engine_send = fake_send,
					.report = on_report,
					.allocate = fake_allocate,
					.event = on_event,
					.process_alive = fake_alive,
					.random16 = fake_random };

static struct engine_answer answer_to_last(uint32_t op)
{
	const struct engine_command *c = &sent[n_sent - 1];
	ck_assert_uint_eq(c->op, op);
	return (struct engine_answer){
		.op = c->op, .id = c->id, .rank = c->rank, .window = c->window, .attempt = c->attempt
	};
}

static void answer(uint32_t op, uint32_t result)
{
	struct engine_answer a = answer_to_last(op);
	a.result = result;
	job_on_answer(job, &a, now);
}

static struct part_spec the_part(void)
{
	return (struct part_spec){
		.number = 1, .n_parts = 2, .world = 8, .epoch = 3, .spec = &spec, .global = ranks_here
	};
}

static void attach(uint64_t call, uint32_t rank)
{
	struct attach_args a = { .rank = rank, .world_size = 8, .uid = 7, .pid = 40 + rank, .shared_memory = true };
	a.nonce[0] = (uint8_t)call; /* another process each time */
	job_attach(job, call, &a, now);
}

static void setup(void)
{
	static const struct tensor_spec tensor = { .name = "w", .n_dims = 1, .shape = { 4 }, .dtype = DTYPE_F32 };
	struct control_state record;
	const char *field;
	char why[200];
	spec = (struct job_spec){ .name = "t", .ranks = 3, .micro_size = MICRO_SIZE, .max_micro_size = MICRO_SIZE };
	spec.master_f32 = true;
	spec.optim = (struct optim_config){ .type = OPTIM_SGD, .lr = 0.1 };
	ck_assert_int_eq(job_spec_check(&spec, &field, why, sizeof(why)), ST_OK);
	now = (struct now){ INT64_C(1000000), 5000 };
	memset(replied, 0, sizeof(replied));
	n_sent = n_reports = n_tokens = 0;
	ck_assert_int_eq(job_new(&job, 1, the_part(), 7, 1, &ports), ST_OK);
	ck_assert_int_eq(job_set_tensors(job, &tensor, 1, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(control_state_init(&record, 3, MICRO_SIZE), ST_OK);
	record.r.micro_size = MICRO_SIZE;
	record.r.loss_scale = 1;
	record.r.params_ready = 1;
	ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
	control_state_fini(&record);
	struct order run = { .job_id = 1, .epoch = 3, .term = 1, .run = true };
	job_on_order(job, &run, now);
}

static void teardown(void)
{
	job_free(job);
}

static struct session_key key_of(uint64_t attach_call)
{
	struct session_key k = { .rank = reply_to[attach_call].attach.rank, .uid = 7 };
	memcpy(k.token, reply_to[attach_call].attach.token, 16);
	return k;
}

/* The rank has a session, which may push. */
static struct session_key enter(uint64_t call, uint32_t rank)
{
	attach(call, rank);
	answer(ENGINE_ATTACH, 0);
	ck_assert(replied[call] && !reply_to[call].status);
	job_on_mapped(job, rank, 1);
	return key_of(call);
}

static void push(uint64_t call, const struct session_key *k, uint32_t micro)
{
	struct push_args a = { .micro = micro, .weight = 1, .slot = micro % 2 };
	job_push(job, call, k, &a, now);
}

/* ---- a part's own ---- */

START_TEST(a_rank_attaches_by_the_jobs_number)
{
	struct session_key k = enter(1, 4);
	ck_assert_uint_eq(sent[n_sent - 1].rank, 1); /* the engine's number */
	ck_assert_uint_eq(reply_to[1].attach.rank, 4);
	ck_assert_uint_eq(reply_to[1].attach.epoch, 3);
	ck_assert_uint_eq(job_generation(job, 4), 1);
	ck_assert_uint_eq(job_generation(job, 1), 0);
	ck_assert_uint_eq(job_generation(job, 2), 0);
	ck_assert(job_session_is(job, 4, 1) && !job_session_is(job, 5, 1));
	uint32_t n, first = job_session_slots(job, 4, &n);
	ck_assert_uint_eq(first, 1 * spec.slots_per_rank);
	push(2, &k, 0);
	answer(ENGINE_ADD, 1);
	ck_assert(replied[2] && !reply_to[2].status);
	ck_assert_uint_eq(reply_to[2].push.parked_for_rank, 1); /* whose turn was before */
}
END_TEST

START_TEST(a_rank_of_another_part_is_refused)
{
	attach(1, 3);
	ck_assert_int_eq(reply_to[1].status, ST_RANK_OUT_OF_RANGE);
	ck_assert_str_eq(reply_to[1].text, "rank 3 is not on this node: it has part 1 of job 1, with ranks 1, 4-5");
	attach(2, 8);
	ck_assert_str_eq(reply_to[2].text, "rank 8 of a job with 8 ranks");
	struct attach_args a = { .rank = 4, .world_size = 3, .uid = 7, .pid = 44, .shared_memory = true };
	job_attach(job, 3, &a, now);
	ck_assert_str_eq(reply_to[3].text, "world_size is 3, the job has 8 ranks");
	struct session_key k = { .rank = 0, .uid = 7 };
	job_wait_ready(job, 4, &k, 0, now);
	ck_assert_int_eq(reply_to[4].status, ST_SESSION_UNKNOWN);
	k.rank = 2;
	job_stream_gone(job, 5, 2);
	job_on_call_gone(job, 5, 2);
	job_on_link(job, 2, 0, true, now);
	job_on_mapped(job, 2, 0);
	push(5, &k, 0);
	ck_assert_int_eq(reply_to[5].status, ST_SESSION_UNKNOWN);
	ck_assert_int_eq(n_sent, 0);
}
END_TEST

START_TEST(texts_and_events_name_the_jobs_rank)
{
	struct session_key k = enter(1, 5);
	push(2, &k, 2);
	ck_assert_uint_eq(sent[n_sent - 1].rank, 2); /* the engine has its own numbers */
	struct engine_answer no = answer_to_last(ENGINE_ADD);
	no.status = ST_OUT_OF_ORDER;
	job_on_answer(job, &no, now);
	ck_assert(strstr(reply_to[2].text, "rank 5, window 0, micro-batch 2: "));
	push(3, &k, 0);
	struct engine_answer is_void = answer_to_last(ENGINE_ADD);
	is_void.result = PUSH_VOID;
	is_void.nonfinite_count = 1;
	job_on_answer(job, &is_void, now);
	ck_assert_int_eq(event_rank, 5);
	job_on_link(job, 5, 1, true, now);
	job_on_link(job, 5, 1, false, now);
	ck_assert_int_eq(event_rank, 5);
	ck_assert_str_eq(event_text, "the trainer (pid 45) is gone with 0 of 3 micro-batches counted in window 0");
	attach(4, 5);
	answer(ENGINE_ATTACH, 0);
	push(5, &k, 1);
	ck_assert_str_eq(reply_to[5].text, "a newer process has attached as rank 5 of job 1 (pid 45)");
}
END_TEST

START_TEST(a_stream_belongs_to_the_jobs_rank)
{
	struct session_key k = enter(1, 4);
	struct push_args a = { .weight = 1 };
	uint32_t slot[3], mine = 1 * spec.slots_per_rank;
	for (uint32_t m = 0; m < 3; m++) {
		a.micro = m;
		ck_assert_int_eq(job_stream_open(job, 2 + m, &k, &a, &slot[m], now), m < 2);
	}
	ck_assert_uint_eq(slot[0], mine);
	ck_assert_uint_eq(slot[1], mine + 1);
	ck_assert_str_eq(reply_to[4].text, "rank 4 has a stream or a push in each of its slots");
	ck_assert(!job_stream_took(job, 3, 1, 0, 16)); /* that rank has no such stream */
	ck_assert(job_stream_took(job, 2, 4, 0, 16));
	a.micro = 0;
	job_stream_push(job, 2, &k, &a, now);
	ck_assert_uint_eq(sent[n_sent - 1].op, ENGINE_ADD);
	ck_assert_uint_eq(sent[n_sent - 1].rank, 1);
	ck_assert_uint_eq(sent[n_sent - 1].slot, mine);
	ck_assert(job_stream_admits(job, 3, 4, 0, 16));
	job_stream_gone(job, 3, 4);
	ck_assert(!job_stream_admits(job, 3, 4, 0, 16));
}
END_TEST

/* Who is late is the job's business: any rank of it. */
START_TEST(a_call_that_times_out_names_ranks_of_any_part)
{
	struct session_key k = enter(1, 1);
	const struct late_rank late[2] = { { .rank = 7, .micro_size = 3 }, { .rank = 4, .micro_size = 3 } };
	struct order o = { .job_id = 1, .epoch = 3, .term = 1, .run = true, .late = late, .n_late = 2 };
	job_wait_step(job, 2, &k, 0, 10, now);
	job_on_order(job, &o, now);
	now.mono_ns += 20;
	job_tick(job, now);
	ck_assert_uint_eq(reply_to[2].n_missing, 2);
	ck_assert_uint_eq(reply_to[2].missing[0], 7);
	ck_assert_uint_eq(reply_to[2].missing[1], 4);
}
END_TEST

START_TEST(who_was_late_in_the_window_before_is_not_named)
{
	struct session_key k = enter(1, 1);
	const struct late_rank late = { .rank = 7, .micro_size = 3 };
	struct order o = { .job_id = 1, .epoch = 3, .term = 1, .run = true, .late = &late, .n_late = 1 };
	struct control_state next;
	job_on_order(job, &o, now);
	ck_assert_int_eq(control_state_init(&next, 3, MICRO_SIZE), ST_OK);
	next.r.window = 1;
	next.r.micro_size = MICRO_SIZE;
	next.r.loss_scale = 1;
	next.r.params_ready = 1;
	job_on_engine_down(job, now);
	ck_assert_int_eq(job_on_engine_up(job, &next, 0, now), ST_OK);
	control_state_fini(&next);
	job_wait_step(job, 2, &k, 1, 10, now);
	now.mono_ns += 20;
	job_tick(job, now);
	ck_assert_int_eq(reply_to[2].status, ST_STALLED);
	ck_assert_uint_eq(reply_to[2].n_missing, 0);
}
END_TEST

/* Rank 5 gives its learning rate first, ranks 1 and 4 nothing. */
START_TEST(a_report_has_the_jobs_ranks_and_the_parts_bits)
{
	struct session_key k = enter(1, 5);
	struct push_args a = { .micro = 0, .weight = 2, .lr = 0.5 };
	spec.ordering = ORDER_ARRIVAL;
	job_push(job, 2, &k, &a, now);
	answer(ENGINE_ADD, 1);
	struct order close = { .job_id = 1, .epoch = 3, .term = 1, .run = true, .want = WANT_CLOSE };
	job_on_order(job, &close, now);
	struct engine_answer closed = answer_to_last(ENGINE_CLOSE);
	closed.count = 1;
	closed.sum_weight = 2;
	closed.window_lr = 0.5;
	closed.lr_rank = 2;
	job_on_answer(job, &closed, now);
	ck_assert_uint_eq(said.part, 1);
	ck_assert_uint_eq(said.epoch, 3);
	ck_assert_uint_eq(said.count, 1);
	ck_assert_uint_eq(said.lr_rank, 5);
	ck_assert_uint_eq(said_bits, UINT64_C(1) << 2 * MICRO_SIZE); /* of the part's rank 2 */
	for (int i = 0; i < 3; i++)
		ck_assert_uint_eq(said_rank[i].rank, ranks_here[i]);
	ck_assert_uint_eq(said_rank[2].counted, 1);
}
END_TEST

/* It knows the job's numbers from the plan. */
START_TEST(an_engines_refusal_is_passed_on_as_it_is)
{
	struct session_key k = enter(1, 4);
	struct push_args a = { .weight = 1 };
	push(3, &k, 0);
	struct engine_answer refused = answer_to_last(ENGINE_ADD);
	refused.status = ST_LR_MISMATCH;
	snprintf(refused.text, sizeof(refused.text), "learning rate 0.25; rank 5, whose push ...");
	snprintf(refused.hint, sizeof(refused.hint), "try this");
	job_on_answer(job, &refused, now);
	ck_assert_str_eq(reply_to[3].text, "learning rate 0.25; rank 5, whose push ...");
	ck_assert_str_eq(reply_to[3].hint, "try this");
	job_push(job, 4, &k, &a, now);
	refused = answer_to_last(ENGINE_ADD);
	refused.status = ST_NO_MEMORY;
	job_on_answer(job, &refused, now);
	ck_assert_str_eq(reply_to[4].text, "rank 4, window 0, micro-batch 0: out of memory");
}
END_TEST

/* ---- ages ---- */

START_TEST(times_are_reported_as_ages)
{
	struct session_key k = enter(1, 1);
	for (uint32_t m = 0; m < MICRO_SIZE; m++) {
		push(2 + m, &k, m);
		answer(ENGINE_ADD, 1);
	}
	struct session_key other = enter(8, 5);
	push(9, &other, 0); /* it waits for rank 4 */
	job_on_link(job, 5, 1, true, now);
	job_on_link(job, 5, 1, false, now);
	now.mono_ns += 700;
	job_tick(job, now);
	ck_assert_int_eq(said_rank[0].ready_ns, 700);
	ck_assert_int_eq(said_rank[0].waiting_ns, 700);
	ck_assert_int_eq(said_rank[0].lost_ns, 0);
	ck_assert_int_eq(said_rank[1].waiting_ns, 0);
	ck_assert_int_eq(said_rank[2].ready_ns, 0);
	ck_assert_int_eq(said_rank[2].waiting_ns, 700);
	ck_assert_int_eq(said_rank[2].lost_ns, 700);
}
END_TEST

/* ---- hindrance, failure, end, epoch ---- */

START_TEST(what_hinders_a_part_is_reported_at_once)
{
	int before = n_reports;
	job_hinder(job, "no room", now);
	ck_assert_int_eq(n_reports, before + 1);
	ck_assert_str_eq(said.hindrance, "no room");
	job_hinder(job, "no room", now);
	ck_assert_int_eq(n_reports, before + 1);
	now.mono_ns += INT64_C(2000000000);
	job_tick(job, now);
	ck_assert_str_eq(said.hindrance, "no room");
	job_hinder(job, "", now);
	ck_assert_str_eq(said.hindrance, "");
}
END_TEST

START_TEST(the_first_failure_is_reported)
{
	job_fail(job, ST_SEGMENT_CORRUPT, "both records are damaged", now);
	job_fail(job, ST_ENGINE_FAILED, "the engine is gone", now);
	now.mono_ns += INT64_C(2000000000);
	job_tick(job, now);
	ck_assert_int_eq(said.failed.status, ST_SEGMENT_CORRUPT);
	ck_assert_str_eq(said.failed.text, "both records are damaged");
}
END_TEST

START_TEST(the_end_is_reported_for_each_order_and_then_no_more)
{
	struct order end = { .job_id = 1, .epoch = 3, .term = 1, .want = WANT_END };
	ck_assert(!said.ended);
	for (int i = 0; i < 2; i++) {
		int before = n_reports;
		job_on_order(job, &end, now);
		ck_assert_int_eq(n_reports, before + 1);
		ck_assert(said.ended);
	}
	int before = n_reports;
	for (int i = 0; i < 10; i++) {
		now.mono_ns += INT64_C(1000000000);
		job_tick(job, now);
	}
	ck_assert_int_eq(n_reports, before);
}
END_TEST

START_TEST(what_was_taken_is_acknowledged)
{
	struct order o = { .job_id = 1, .epoch = 3, .term = 1, .number = 7, .run = true, .paused = true };
	job_on_order(job, &o, now);
	job_tick(job, now);
	ck_assert_uint_eq(said.term, 1);
	ck_assert_uint_eq(said.order, 7);
	int before = n_reports;
	for (int i = 0; i < 9; i++) { /* nothing has changed */
		now.mono_ns += INT64_C(100000000);
		job_tick(job, now);
	}
	ck_assert_int_eq(n_reports, before);
	now.mono_ns += INT64_C(100000000);
	job_tick(job, now);
	ck_assert_int_eq(n_reports, before + 1);
	o.number = 6; /* overtaken */
	o.want = WANT_NOTHING;
	o.paused = false;
	job_on_order(job, &o, now);
	job_tick(job, now);
	ck_assert_uint_eq(said.order, 7);
	job_exchange(job, 1, 12); /* not for each piece */
	before = n_reports;
	job_tick(job, now);
	ck_assert_int_eq(n_reports, before);
	now.mono_ns += INT64_C(1000000000);
	job_tick(job, now);
	ck_assert_uint_eq(said.connected, 1);
	ck_assert_uint_eq(said.pieces, 12);
}
END_TEST

/* The window of an earlier epoch is void: what its coordinator wants must not happen. */
START_TEST(an_order_of_an_earlier_epoch_is_ignored)
{
	struct order later = { .job_id = 1, .epoch = 4, .term = 1, .run = true },
		     close = { .job_id = 1, .epoch = 3, .term = 1, .run = true, .want = WANT_CLOSE };
	job_on_order(job, &later, now);
	int before = n_sent;
	job_on_order(job, &close, now);
	ck_assert_int_eq(n_sent, before);
	now.mono_ns += INT64_C(2000000000);
	job_tick(job, now);
	ck_assert_uint_eq(said.epoch, 4);
	ck_assert_uint_eq(job_epoch(job), 4);
	close.epoch = 4;
	job_on_order(job, &close, now);
	ck_assert_int_eq(n_sent, before + 1);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("part");
	TCase *c = tcase_create("job");
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, a_rank_attaches_by_the_jobs_number);
	tcase_add_test(c, a_rank_of_another_part_is_refused);
	tcase_add_test(c, texts_and_events_name_the_jobs_rank);
	tcase_add_test(c, a_stream_belongs_to_the_jobs_rank);
	tcase_add_test(c, a_call_that_times_out_names_ranks_of_any_part);
	tcase_add_test(c, who_was_late_in_the_window_before_is_not_named);
	tcase_add_test(c, a_report_has_the_jobs_ranks_and_the_parts_bits);
	tcase_add_test(c, an_engines_refusal_is_passed_on_as_it_is);
	tcase_add_test(c, times_are_reported_as_ages);
	tcase_add_test(c, what_hinders_a_part_is_reported_at_once);
	tcase_add_test(c, the_first_failure_is_reported);
	tcase_add_test(c, the_end_is_reported_for_each_order_and_then_no_more);
	tcase_add_test(c, what_was_taken_is_acknowledged);
	tcase_add_test(c, an_order_of_an_earlier_epoch_is_ignored);
	suite_add_tcase(s, c);
	return s;
}

int main(void)
{
	return suite_run(suite(), of_parts_suite(), part_map_suite());
}
