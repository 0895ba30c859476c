/* SPDX-License-Identifier: Apache-2.0 */
/* The part of part_comm_rig.h and the fakes around it. */
#include "part_comm_rig.h"

#include "coll/coll.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

struct job_spec spec;
struct job *job;
struct now now;
struct control_state record;
struct engine_command sent[64];
char sent_bytes[64][8];
int n_sent, n_reports, n_blobs;
uint32_t unsendable; /* the op, from the n-th on */
int unsendable_from;
struct reply reply_to[CALLS];
bool replied[CALLS];
struct report said;
struct part_blob blob;
char blob_bytes[64];
struct order order;

static void on_reply(void *ctx, uint64_t call, const struct reply *r)
{
	ck_assert(call < CALLS && !replied[call]);
	reply_to[call] = *r;
	replied[call] = true;
}
int count(uint32_t op)
{
	int n = 0;
	for (int i = 0; i < n_sent; i++)
		n += sent[i].op == op;
	return n;
}
static bool on_send(void *ctx, uint64_t id, const struct engine_command *c, const void *present)
{
	ck_assert_int_lt(n_sent, 64);
	if (c->op == unsendable && count(c->op) >= unsendable_from)
		return false;
	sent[n_sent] = *c;
	memset(sent_bytes[n_sent], 0, sizeof(sent_bytes[0]));
	if (present)
		memcpy(sent_bytes[n_sent], present, c->n_present < 8 ? c->n_present : 8);
	n_sent++;
	return true;
}
static void on_report(void *ctx, const struct report *r)
{
	said = *r;
	n_reports++;
}
static void on_blob(void *ctx, const struct part_blob *b)
{
	blob = *b;
	ck_assert_uint_le(b->n, sizeof(blob_bytes));
	memcpy(blob_bytes, b->bytes, b->n);
	n_blobs++;
}
static void on_allocate(void *ctx, uint64_t id)
{
}
static void on_event(void *ctx, uint64_t id, bool warning, const char *reason, int64_t rank, const char *text)
{
}
static bool is_alive(void *ctx, int64_t pid, uint64_t start_time)
{
	return true;
}
static void on_random(void *ctx, uint8_t out[16])
{
	memset(out, 0x5a, 16);
}
static const struct job_ports ports = { .reply = on_reply,
					.engine_send = on_send,
					.report = on_report,
					.blob = on_blob,
					.allocate = on_allocate,
					.event = on_event,
					.process_alive = is_alive,
					.random16 = on_random };

void make_job(uint32_t part, enum optim_type optim)
{
	static const struct tensor_spec tensor = { .name = "w", .n_dims = 1, .shape = { 4 }, .dtype = DTYPE_F32 };
	static const uint32_t here[] = { 1, 3 };
	const char *field;
	char why[200];
	spec = (struct job_spec){ .name = "t", .ranks = 2, .micro_size = MICRO_SIZE, .max_micro_size = MICRO_SIZE };
	spec.master_f32 = true;
	spec.optim = (struct optim_config){ .type = optim, .lr = 0.1 };
	ck_assert_int_eq(job_spec_check(&spec, &field, why, sizeof(why)), ST_OK);
	now = (struct now){ 1000 * SECOND, 5000 };
	memset(replied, 0, sizeof(replied));
	n_sent = n_reports = n_blobs = 0;
	unsendable = 0;
	const struct part_spec p = {
		.number = part, .n_parts = 2, .world = 4, .epoch = 3, .spec = &spec, .global = here
	};
	ck_assert_int_eq(job_new(&job, 1, p, 7, 1, &ports), ST_OK);
	ck_assert_int_eq(job_set_tensors(job, &tensor, 1, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(control_state_init(&record, 2, MICRO_SIZE), ST_OK);
	record.r.epoch = 3;
	record.r.micro_size = MICRO_SIZE;
	record.r.loss_scale = 1;
	order = (struct order){ .job_id = 1, .epoch = 3, .term = 2, .number = 1 };
}

void up(uint64_t life)
{
	ck_assert_int_eq(job_on_engine_up(job, &record, life, now), ST_OK);
}

void setup(void)
{
	make_job(1, OPTIM_SGD);
	record.r.params_ready = 1;
	record.r.params_digest = 0xabc;
	up(LIFE);
	n_sent = 0;
}

void teardown(void)
{
	job_free(job);
	control_state_fini(&record);
}

void give_order(void)
{
	order.number++;
	job_on_order(job, &order, now);
}

/* The order has this communicator; 0: none. */
void order_comm(uint64_t k)
{
	order.comm = k;
	order.join_ms = 1500;
	give_order();
}

void order_go(uint64_t attempt, uint64_t k)
{
	order.want = WANT_GO;
	order.attempt = attempt;
	order.run = true;
	order_comm(k);
}

const struct engine_command *last(uint32_t op)
{
	ck_assert_int_gt(n_sent, 0);
	ck_assert_uint_eq(sent[n_sent - 1].op, op);
	return &sent[n_sent - 1];
}

const struct engine_command *newest(uint32_t op)
{
	for (int i = n_sent; i-- > 0;)
		if (sent[i].op == op)
			return &sent[i];
	ck_abort_msg("operation %u was not sent", op);
	return NULL;
}

struct engine_answer to(const struct engine_command *c, enum status st)
{
	struct engine_answer a = { .op = c->op, .id = c->id, .window = c->window, .attempt = c->attempt };
	a.status = st;
	a.comm = c->comm;
	if (st)
		snprintf(a.text, sizeof(a.text), "part 0 has died");
	return a;
}

void answer(uint32_t op, enum status st)
{
	struct engine_answer a = to(newest(op), st);
	job_on_answer(job, &a, now);
}

void answer_join(enum status st, const char *bytes)
{
	struct engine_answer a = to(newest(ENGINE_JOIN), st);
	a.n_tail = (uint32_t)strlen(bytes);
	job_on_joining(job, &a, *bytes ? bytes : NULL, now);
}

void progress(uint64_t k, uint32_t news, uint32_t connected, uint64_t pieces)
{
	struct engine_answer a = { .op = ENGINE_PROGRESS, .window = 99, .result = PROGRESS_COMM, .comm = k };
	a.news = news;
	a.connected = connected;
	a.pieces = pieces;
	if (news == COMM_LOST) {
		a.status = ST_UNAVAILABLE;
		a.suspects = 0xf1; /* of which only parts 0 and 1 can be */
		snprintf(a.text, sizeof(a.text), "part 0 has died");
	}
	job_on_answer(job, &a, now);
}

void give_board(uint64_t term, uint64_t k, uint64_t own_life, const char *own)
{
	const struct coll_address address[2] = { { 55, "other", 5 }, { own_life, own, strlen(own) } };
	const struct part_board b = {
		.job_id = 1, .epoch = 3, .term = term, .comm = k, .n_parts = 2, .address = address
	};
	job_on_board(job, &b, now);
}

/* As far as GIVEN; then further. */
void reach_given(uint64_t k)
{
	answer_join(ST_OK, "mine");
	give_board(2, k, LIFE, "mine");
	ck_assert_int_eq(count(ENGINE_ADDRESS), 2);
}

void reach_joined(uint64_t k)
{
	order_comm(k);
	reach_given(k);
	progress(k, COMM_JOINED, 1, 0);
	ck_assert_uint_eq(said.comm, k);
}

void expect_vote(uint64_t attempt, enum status st)
{
	ck_assert_int_eq(said.vote_status, st);
	ck_assert_uint_eq(said.vote_term, 2);
	ck_assert_uint_eq(said.vote_attempt, attempt);
}

struct session_key attach(uint32_t rank, uint64_t call)
{
	struct attach_args a = { .rank = rank, .world_size = 4, .uid = 7, .pid = 40 + rank, .shared_memory = true };
	job_attach(job, call, &a, now);
	struct engine_answer done = to(last(ENGINE_ATTACH), ST_OK);
	done.rank = last(ENGINE_ATTACH)->rank;
	job_on_answer(job, &done, now);
	ck_assert(replied[call] && !reply_to[call].status);
	job_on_mapped(job, rank, 1);
	struct session_key k = { .rank = rank, .uid = 7 };
	memcpy(k.token, reply_to[call].attach.token, 16);
	return k;
}
