/* SPDX-License-Identifier: Apache-2.0 */
/* Inline streams of a job: the table of docs/protocol.md, "Inline stream", with an engine that answers when it is told
 * to. */
#include "job_fakes.h"

#include "support/suite.h"

#include <string.h>

#define COUNTED 1
#define CALLS 32

static struct job_spec spec;
static struct job *job;
static struct control_state record;
static const struct now now = { 1000, 5000 };
static struct session_key key, before; /* of the session in force, and of the one that it has fenced */
static struct reply reply_to[CALLS];
static bool replied[CALLS];
static bool next_piece; /* the stream's client has its next piece at hand when it is answered */

static void on_reply(void *ctx, uint64_t call, const struct reply *r)
{
	ck_assert(call < CALLS && (!replied[call] || next_piece));
	reply_to[call] = *r;
	replied[call] = true;
	if (!next_piece || r->status || r->put.ready)
		return;
	next_piece = false;
	replied[call] = false;
	job_stream_put(job, call, &key, 16, 16, true, now);
}
static void on_report(void *ctx, const struct report *r)
{
}

static const struct job_ports ports = { .reply = on_reply,
					.engine_send = fake_send,
					.report = on_report,
					.allocate = fake_allocate,
					.event = fake_event,
					.process_alive = fake_alive,
					.random16 = fake_random };

/* The engine's answer to the newest command, or to `c`. */
static void answer_to(const struct engine_command *c, uint32_t op, uint32_t result)
{
	ck_assert_uint_eq(c->op, op);
	struct engine_answer a = { .op = c->op, .id = c->id, .rank = c->rank, .result = result };
	job_on_answer(job, &a, now);
}
static void answer(uint32_t op, uint32_t result)
{
	struct engine_command c = sent[n_sent - 1];
	answer_to(&c, op, result);
}

static void attach_call(uint64_t call)
{
	struct attach_args a = { .world_size = 1, .uid = 7, .pid = 40 + (int64_t)call, .nonce = { (uint8_t)call } };
	job_attach(job, call, &a, now);
}
static void attached(uint64_t call)
{
	ck_assert(replied[call] && !reply_to[call].status);
	before = key;
	key = (struct session_key){ .uid = 7 };
	memcpy(key.token, reply_to[call].attach.token, 16);
}
static void attach(uint64_t call)
{
	attach_call(call);
	answer(ENGINE_ATTACH, 0);
	attached(call);
}

static void start(bool params_ready, uint32_t slots)
{
	static const struct tensor_spec tensor = { .name = "w", .n_dims = 1, .shape = { 8 }, .dtype = DTYPE_F32 };
	struct order run = { .job_id = 1, .epoch = 1, .term = 1, .run = true };
	const char *field;
	char why[200];
	spec = (struct job_spec){
		.name = "t", .ranks = 1, .micro_size = 4, .slots_per_rank = slots, .master_f32 = true
	};
	spec.optim = (struct optim_config){ .type = OPTIM_SGD, .lr = 0.1 };
	ck_assert_int_eq(job_spec_check(&spec, &field, why, sizeof(why)), ST_OK);
	memset(replied, 0, sizeof(replied));
	n_sent = n_tokens = 0;
	next_piece = false;
	ck_assert_int_eq(job_new(&job, 1, part_whole(&spec), 7, 1, &ports), ST_OK);
	ck_assert_int_eq(job_set_tensors(job, &tensor, 1, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(control_state_init(&record, 1, spec.max_micro_size), ST_OK);
	record.r.micro_size = 4;
	record.r.loss_scale = 1;
	record.r.params_ready = params_ready;
	ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
	if (params_ready)
		job_on_order(job, &run, now);
	attach(30);
}
static void setup(void)
{
	start(true, 1);
}
static void setup_params(void)
{
	start(false, 2);
}
static void teardown(void)
{
	job_free(job);
	control_state_fini(&record);
}

static struct push_args args(uint32_t micro)
{
	return (struct push_args){ .micro = micro, .weight = 1 };
}
static bool open_push(uint64_t call, uint32_t micro)
{
	uint32_t slot;
	struct push_args a = args(micro);
	return job_stream_open(job, call, &key, &a, &slot, now);
}
static bool open_put(uint64_t call)
{
	uint32_t slot;
	return job_stream_open(job, call, &key, NULL, &slot, now);
}
/* A chunk: asked for, copied, noted. */
static bool chunk(uint64_t call, uint64_t offset, uint64_t n)
{
	return job_stream_admits(job, call, 0, offset, n) && job_stream_took(job, call, 0, offset, n);
}
static void finish(uint64_t call, uint32_t micro)
{
	struct push_args a = args(micro);
	job_stream_push(job, call, &key, &a, now);
}
static void expect(uint64_t call, enum status st)
{
	ck_assert_msg(replied[call], "call %d has no answer", (int)call);
	ck_assert_msg(reply_to[call].status == st, "call %d: %s", (int)call, reply_to[call].text);
}

/* ---- gradients ---- */

START_TEST(a_stream_that_is_whole_becomes_a_push)
{
	ck_assert(open_push(0, 0) && chunk(0, 16, 16) && chunk(0, 0, 16));
	finish(0, 0);
	ck_assert_uint_eq(sent[n_sent - 1].op, ENGINE_ADD);
	ck_assert(!open_push(1, 1)); /* the push has the only slot */
	expect(1, ST_SLOT_BUSY);
	answer_to(&sent[n_sent - 1], ENGINE_ADD, COUNTED);
	expect(0, ST_OK);
	ck_assert(open_push(2, 1));
}
END_TEST

START_TEST(a_stream_that_lacks_a_byte_is_refused)
{
	int n = n_sent;
	ck_assert(open_push(0, 0) && chunk(0, 0, 31));
	finish(0, 0);
	expect(0, ST_INVALID_ARGUMENT);
	ck_assert_int_eq(n_sent, n);
	ck_assert(open_push(1, 0)); /* and has left its slot */
}
END_TEST

/* A bitmap of up to 4 MB would be kept for each stream until its end. */
START_TEST(a_stream_with_a_wrong_bitmap_does_not_begin)
{
	static const uint8_t bitmap[2][2] = { { 1, 0 }, { 2 } }; /* of two bytes; of a tensor that there is not */
	uint32_t slot;
	struct push_args a = args(0);
	a.present = bitmap[_i];
	a.n_present = _i ? 1 : 2;
	ck_assert(!job_stream_open(job, 0, &key, &a, &slot, now));
	expect(0, ST_INVALID_ARGUMENT);
	ck_assert(open_push(1, 0));
}
END_TEST

START_TEST(a_chunk_lies_in_the_slot)
{
	uint64_t all = job_arena(job)->slot_bytes;
	/* offset and bytes, beyond the slot's end */
	static const uint64_t past[][2] = { { 1, 0 }, { 0, 1 }, { UINT64_MAX, 2 } };
	ck_assert(open_push(0, 0) && chunk(0, all, 0) && chunk(0, 0, all));
	job_stream_gone(job, 0, 0);
	for (uint64_t i = 0; i < 3; i++) {
		uint64_t offset = i == 2 ? past[i][0] : all + past[i][0], n = past[i][1];
		ck_assert(open_push(1 + i, 0) && !chunk(1 + i, offset, n));
		expect(1 + i, ST_INVALID_ARGUMENT);
	}
}
END_TEST

/* At each moment of the stream's life: before its first byte, between chunks, whole. */
START_TEST(a_fenced_stream_writes_nothing)
{
	ck_assert(open_push(0, 0));
	if (_i > 0)
		ck_assert(chunk(0, 0, 16));
	if (_i > 1)
		ck_assert(chunk(0, 16, 16));
	attach_call(1);
	ck_assert(!sent[n_sent - 1].session.spare); /* the old process lives, but maps nothing */
	ck_assert(chunk(0, 0, 8)); /* the engine has not stored the new session: the slot is still the old one's */
	answer(ENGINE_ATTACH, 0);
	attached(1);
	expect(0, ST_SESSION_FENCED);
	ck_assert(!chunk(0, 16, 16));
	int n = n_sent;
	struct push_args a = args(0);
	job_stream_push(job, 0, &before, &a, now);
	ck_assert_int_eq(n_sent, n);
	ck_assert(open_push(2, 0)); /* its successor has the slot at once */
	ck_assert(!chunk(0, 0, 16) && chunk(2, 0, 32));
}
END_TEST

static void end_detach(void)
{
	job_detach(job, 9, &key, false, now);
}
static void end_leave(void)
{
	job_detach(job, 9, &key, true, now);
}
static void end_gone(void)
{
	job_stream_gone(job, 0, 0);
}
static void end_job(void)
{
	struct order end = {
		.job_id = 1, .epoch = 1, .term = 1, .run = true, .want = WANT_END, .end_reason = "cancelled"
	};
	job_on_order(job, &end, now);
}
static const struct {
	void (*end)(void);
	enum status st; /* ST_OK: nobody is there to be answered */
} ENDS[] = {
	{ end_detach, ST_CANCELLED }, { end_leave, ST_CANCELLED }, { end_gone, ST_OK }, { end_job, ST_JOB_ENDED }
};

START_TEST(a_stream_ends_with_its_session_its_client_and_its_job)
{
	ck_assert(open_push(0, 0) && chunk(0, 0, 16));
	ENDS[_i].end();
	if (ENDS[_i].st)
		expect(0, ENDS[_i].st);
	ck_assert(replied[0] == (ENDS[_i].st != ST_OK) && !chunk(0, 16, 16));
	int n = n_sent;
	finish(0, 0);
	ck_assert_int_eq(n_sent, n);
}
END_TEST

/* The connection of the first try has died, and nobody knows yet. */
START_TEST(a_repeat_takes_the_place_of_the_earlier_try)
{
	ck_assert(open_push(0, 0) && chunk(0, 0, 16) && open_push(1, 0));
	expect(0, ST_UNAVAILABLE);
	ck_assert(!chunk(0, 16, 16) && chunk(1, 0, 32));
	ck_assert(!open_push(2, 1)); /* another micro-batch is no repeat */
	expect(2, ST_SLOT_BUSY);
	ck_assert(!replied[1]);
	finish(1, 0);
	ck_assert(!open_push(3, 0)); /* parked: the repeat waits with it, without a slot */
	ck_assert(!replied[3]);
	struct engine_command repeat = sent[--n_sent];
	answer(ENGINE_ADD, COUNTED);
	expect(1, ST_OK);
	sent[n_sent - 1] = repeat;
	answer(ENGINE_ADD, PUSH_DUPLICATE);
	expect(3, ST_OK);
	ck_assert(!open_push(4, 0)); /* counted: needs none of its bytes */
	answer(ENGINE_ADD, PUSH_DUPLICATE);
	expect(4, ST_OK);
}
END_TEST

START_TEST(nobody_pushes_a_slot_that_a_stream_fills)
{
	struct push_args a = args(0);
	job_on_mapped(job, 0, job_generation(job, 0));
	ck_assert(open_push(0, 0) && chunk(0, 0, 32));
	job_push(job, 1, &key, &a, now); /* all but its slot is for the engine to judge, which is told of no slot */
	ck_assert_uint_eq(sent[n_sent - 1].slot, UINT32_MAX);
	struct engine_answer no = { .op = ENGINE_ADD, .id = sent[n_sent - 1].id, .status = ST_BAD_SLOT };
	job_on_answer(job, &no, now);
	expect(1, ST_SLOT_BUSY);
	job_stream_gone(job, 0, 0);
	job_push(job, 2, &key, &a, now);
	ck_assert(!replied[2] && sent[n_sent - 1].slot == 0);
}
END_TEST

/* ---- parameters ---- */

static const struct engine_command *put(void)
{
	ck_assert_uint_eq(sent[n_sent - 1].op, ENGINE_PUT_PARAMS);
	return &sent[n_sent - 1];
}

START_TEST(parameters_go_to_the_engine_piece_by_piece)
{
	ck_assert(open_put(0));
	job_stream_put(job, 0, &key, 0, 16, false, now);
	ck_assert(!job_stream_admits(job, 0, 0, 16, 16)); /* the engine reads the slot */
	next_piece = true;
	answer(ENGINE_PUT_PARAMS, 0);
	ck_assert(put()->last && put()->offset == 16 && put()->sgen == 1);
	answer(ENGINE_PUT_PARAMS, 0);
	expect(0, ST_OK);
	ck_assert(reply_to[0].put.ready && job_params_ready(job));
}
END_TEST

START_TEST(parameters_that_lack_a_byte_are_not_complete)
{
	ck_assert(open_put(0));
	job_stream_put(job, 0, &key, 0, 16, false, now);
	answer(ENGINE_PUT_PARAMS, 0);
	int n = n_sent;
	replied[0] = false;
	job_stream_put(job, 0, &key, 17, 15, true, now);
	expect(0, ST_INVALID_ARGUMENT);
	ck_assert(n_sent == n && !job_params_ready(job));
}
END_TEST

/* The engine takes the piece before it hears of the successor, or refuses it: either way, the slot is not read any
 * more. */
START_TEST(a_fenced_stream_gives_no_parameters)
{
	ck_assert(open_put(0));
	job_stream_put(job, 0, &key, 0, 16, false, now);
	struct engine_command piece = *put();
	attach_call(1);
	struct engine_command fence = sent[n_sent - 1];
	if (_i == 0) {
		answer_to(&piece, ENGINE_PUT_PARAMS, 0);
		ck_assert(replied[0] && !reply_to[0].status);
		replied[0] = false;
		int n = n_sent;
		ck_assert(job_stream_admits(job, 0, 0, 16, 16));
		job_stream_put(job, 0, &key, 16, 16, true, now);
		ck_assert_int_eq(n_sent, n); /* not behind the fence */
	}
	answer_to(&fence, ENGINE_ATTACH, 0);
	attached(1);
	expect(0, ST_SESSION_FENCED);
	for (int i = 0; i < n_sent; i++)
		ck_assert(sent[i].op != ENGINE_PUT_PARAMS || !sent[i].last);
	ck_assert(!job_stream_admits(job, 0, 0, 16, 16));
	ck_assert(open_put(2) && open_push(3, 0)); /* both slots are free */
}
END_TEST

/* The client is gone while the engine reads: until it has answered, nobody else writes into that slot. */
START_TEST(a_slot_that_the_engine_reads_is_busy)
{
	uint32_t slot;
	ck_assert(job_stream_open(job, 0, &key, NULL, &slot, now) && slot == 0);
	job_stream_put(job, 0, &key, 0, 16, false, now);
	struct engine_command piece = *put();
	job_stream_gone(job, 0, 0);
	job_on_call_gone(job, 0, 0);
	ck_assert(job_stream_open(job, 1, &key, NULL, &slot, now) && slot == 1);
	job_stream_gone(job, 1, 0);
	answer_to(&piece, ENGINE_PUT_PARAMS, 0);
	ck_assert(job_stream_open(job, 2, &key, NULL, &slot, now) && slot == 0);
}
END_TEST

/* PutParameters, from slots: all pieces must have come, of one process. */
START_TEST(the_last_piece_of_a_slot_is_checked_too)
{
	job_put_params(job, 0, &key, 0, 0, 16, false, now);
	expect(0, ST_BAD_SLOT); /* it has not mapped the slot */
	job_on_mapped(job, 0, job_generation(job, 0));
	job_put_params(job, 1, &key, 0, 0, 16, false, now);
	int n = n_sent;
	job_put_params(job, 2, &key, 1, _i ? 16 : 20, _i ? 16 : 12, true, now);
	ck_assert(n_sent == n && !replied[2]); /* it waits for the first */
	answer(ENGINE_PUT_PARAMS, 0);
	expect(1, ST_OK);
	if (_i == 0) {
		expect(2, ST_INVALID_ARGUMENT);
		return;
	}
	ck_assert(put()->last);
	answer(ENGINE_PUT_PARAMS, 0);
	ck_assert(job_params_ready(job));
}
END_TEST

START_TEST(what_another_process_has_given_does_not_count)
{
	struct attach_args again = {
		.world_size = 1, .uid = 7, .pid = 9, .nonce = { 77 }, .resume_generation = _i ? 1 : 0
	};
	job_on_mapped(job, 0, job_generation(job, 0));
	job_put_params(job, 0, &key, 0, 0, 16, false, now);
	answer(ENGINE_PUT_PARAMS, 0);
	job_attach(job, 1, &again, now);
	answer(ENGINE_ATTACH, 0);
	attached(1);
	job_on_mapped(job, 0, job_generation(job, 0));
	job_put_params(job, 2, &key, 0, 16, 16, true, now);
	ck_assert(replied[2] == !_i); /* the same process goes on */
}
END_TEST

int main(void)
{
	Suite *s = suite_create("streams");
	TCase *g = tcase_create("gradients"), *p = tcase_create("parameters");
	tcase_add_checked_fixture(g, setup, teardown);
	tcase_add_checked_fixture(p, setup_params, teardown);
	suite_add_tcase(s, g);
	suite_add_tcase(s, p);
	tcase_add_test(g, a_stream_that_is_whole_becomes_a_push);
	tcase_add_test(g, a_stream_that_lacks_a_byte_is_refused);
	tcase_add_loop_test(g, a_stream_with_a_wrong_bitmap_does_not_begin, 0, 2);
	tcase_add_test(g, a_chunk_lies_in_the_slot);
	tcase_add_loop_test(g, a_fenced_stream_writes_nothing, 0, 3);
	tcase_add_loop_test(g, a_stream_ends_with_its_session_its_client_and_its_job, 0,
			    (int)(sizeof(ENDS) / sizeof(*ENDS)));
	tcase_add_test(g, a_repeat_takes_the_place_of_the_earlier_try);
	tcase_add_test(g, nobody_pushes_a_slot_that_a_stream_fills);
	tcase_add_test(p, parameters_go_to_the_engine_piece_by_piece);
	tcase_add_test(p, parameters_that_lack_a_byte_are_not_complete);
	tcase_add_loop_test(p, a_fenced_stream_gives_no_parameters, 0, 2);
	tcase_add_test(p, a_slot_that_the_engine_reads_is_busy);
	tcase_add_loop_test(p, the_last_piece_of_a_slot_is_checked_too, 0, 2);
	tcase_add_loop_test(p, what_another_process_has_given_does_not_count, 0, 2);
	return suite_run(s);
}
