/* SPDX-License-Identifier: Apache-2.0 */
/* The job of session_rig.h and the fakes behind it. */
#include "session_rig.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct job_spec spec;
struct job *job;
struct control_state record;
const struct now now = { 1000, 5000 };
struct session_key key = { .uid = 7 };
struct engine_command sent[16];
int n_sent;
struct reply reply_to[16];
bool replied[16];
char last_event[32];
struct rank_progress shown;
struct report reported;
struct ledger_cell *ledger;
struct status_rank *row;
bool readable;
int n_reports, n_over;
uint32_t over;
uint64_t asked;
bool alive;
int64_t dead_pid[2];
uint32_t ranks = 1;
int n_anonymous, looks;
uint32_t unsendable;

static void on_reply(void *ctx, uint64_t call, const struct reply *r)
{
	if (call == ANONYMOUS) {
		n_anonymous++;
		return;
	}
	ck_assert(call < 16 && !replied[call]);
	reply_to[call] = *r;
	replied[call] = true;
}
static bool on_send(void *ctx, uint64_t id, const struct engine_command *c, const void *present)
{
	if (c->op == unsendable)
		return false;
	ck_assert_int_lt(n_sent, 16);
	sent[n_sent++] = *c;
	return true;
}
static void on_report(void *ctx, const struct report *r)
{
	shown = r->rank[0];
	reported = *r;
	n_reports++;
}
static bool on_record(void *ctx, uint64_t newer_than, struct record_view *out)
{
	asked = newer_than;
	*out = (struct record_view){ record.r.seq > newer_than ? &record : NULL, ledger, row };
	return readable;
}
static void on_over(void *ctx, uint32_t rank)
{
	over = rank;
	n_over++;
}
static void on_allocate(void *ctx, uint64_t id)
{
}
static void on_event(void *ctx, uint64_t id, bool warning, const char *reason, int64_t rank, const char *text)
{
	snprintf(last_event, sizeof(last_event), "%s", reason);
}
static bool is_alive(void *ctx, int64_t pid, uint64_t start_time)
{
	looks++;
	return alive && pid != dead_pid[0] && pid != dead_pid[1];
}
static void on_random(void *ctx, uint8_t out[16])
{
	memset(out, 0x5a, 16);
}

const struct job_ports session_ports = { .reply = on_reply,
					 .engine_send = on_send,
					 .report = on_report,
					 .allocate = on_allocate,
					 .event = on_event,
					 .process_alive = is_alive,
					 .random16 = on_random,
					 .record = on_record,
					 .mailbox_over = on_over };

void answer(uint32_t op, uint32_t result)
{
	const struct engine_command *c = &sent[n_sent - 1];
	ck_assert_uint_eq(c->op, op);
	struct engine_answer a = { .op = c->op, .id = c->id, .rank = c->rank, .result = result };
	job_on_answer(job, &a, now);
}

void setup_job(void)
{
	static const struct tensor_spec tensor = { .name = "w", .n_dims = 1, .shape = { 4 }, .dtype = DTYPE_F32 };
	const char *field;
	char why[200];
	unsendable = 0;
	spec = (struct job_spec){
		.name = "t", .ranks = ranks, .micro_size = 4, .nonfinite = NONFINITE_REJECT_MICRO, .master_f32 = true
	};
	spec.optim = (struct optim_config){ .type = OPTIM_SGD, .lr = 0.1 };
	ck_assert_int_eq(job_spec_check(&spec, &field, why, sizeof(why)), ST_OK);
	memset(replied, 0, sizeof(replied));
	n_sent = n_reports = n_over = 0;
	alive = readable = true;
	memset(dead_pid, 0, sizeof(dead_pid));
	ck_assert_int_eq(job_new(&job, 1, part_whole(&spec), 7, 1, &session_ports), ST_OK);
	ck_assert_int_eq(job_set_tensors(job, &tensor, 1, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(control_state_init(&record, ranks, spec.max_micro_size), ST_OK);
	ledger = calloc((size_t)ranks * spec.max_micro_size, sizeof(*ledger));
	row = calloc(ranks, sizeof(*row));
	ck_assert(ledger && row);
	record.r.epoch = 1;
	record.r.micro_size = 4;
	record.r.loss_scale = 1;
	record.r.params_ready = 1;
}

void setup(void)
{
	struct attach_args attach = { .world_size = ranks, .uid = 7, .pid = 42, .shared_memory = true };
	struct order run = { .job_id = 1, .epoch = 1, .term = 1, .run = true };
	setup_job();
	ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
	job_on_order(job, &run, now);
	job_attach(job, 15, &attach, now);
	answer(ENGINE_ATTACH, 0);
	ck_assert(replied[15] && !reply_to[15].status);
	memcpy(key.token, reply_to[15].attach.token, 16);
	job_on_mapped(job, 0, 1);
}

void setup_mailbox(void)
{
	setup();
	job_on_mailbox(job, 0, 1);
	answer(ENGINE_MAILBOX, 0);
	n_sent = 0;
}

void setup_mailbox_of_two(void)
{
	ranks = 2;
	setup_mailbox();
	ranks = 1;
}

int count_sent(uint32_t op)
{
	int n = 0;
	for (int i = 0; i < n_sent; i++)
		n += sent[i].op == op;
	return n;
}

void teardown(void)
{
	job_free(job);
	control_state_fini(&record);
	free(ledger);
	free(row);
}

void push(uint64_t call, uint32_t micro, uint32_t slot)
{
	struct push_args a = { .micro = micro, .slot = slot, .weight = 1, .data_key = 100 + micro };
	job_push(job, call, &key, &a, now);
}

void expect(uint64_t call, enum status st, uint32_t result)
{
	ck_assert_msg(replied[call], "call %d has no answer", (int)call);
	ck_assert_msg(reply_to[call].status == st, "call %d: %s", (int)call, reply_to[call].text);
	if (!st)
		ck_assert_uint_eq(reply_to[call].push.result, result);
}
