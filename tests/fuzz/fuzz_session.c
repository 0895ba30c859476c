/* SPDX-License-Identifier: Apache-2.0 */
/* A job's state machine under any sequence of calls, answers and orders, sensible or not: it must not crash, and must
 * answer each parked call at most once. */
#include "control/coordinator.h"
#include "control/job.h"

#include <stdlib.h>
#include <string.h>

#define MAX_CALLS 4096

static struct engine_command last[8];
static unsigned n_sent;
static unsigned char answered[MAX_CALLS];
static uint8_t token[2][16];

static void reply(void *ctx, uint64_t call, const struct reply *r)
{
	if (call >= MAX_CALLS || answered[call]++)
		abort();
	if (!r->status && r->kind == REPLY_ATTACH)
		memcpy(token[r->attach.rank % 2], r->attach.token, 16);
}
static bool engine_send(void *ctx, uint64_t job, const struct engine_command *c, const void *present)
{
	last[n_sent++ % 8] = *c;
	return true;
}
static void report(void *ctx, const struct report *r)
{
}
static void allocate(void *ctx, uint64_t job)
{
}
static void event(void *ctx, uint64_t job, bool warning, const char *reason, int64_t rank, const char *text)
{
}
static bool alive(void *ctx, int64_t pid, uint64_t start_time)
{
	return pid & 1;
}
static void random16(void *ctx, uint8_t out[16])
{
	static uint8_t n;
	memset(out, ++n, 16);
}

static const struct job_ports ports = { .reply = reply,
					.engine_send = engine_send,
					.report = report,
					.allocate = allocate,
					.event = event,
					.process_alive = alive,
					.random16 = random16 };

static void up(struct job *j, struct now now)
{
	struct control_state s;
	if (control_state_init(&s, 2, 64))
		abort();
	s.r.ranks = 2;
	s.r.max_micro_size = 64;
	s.r.micro_size = 2;
	s.r.loss_scale = 1;
	s.r.params_ready = 1;
	job_on_engine_up(j, &s, 0, now);
	control_state_fini(&s);
}

/* The set as the edge brings it; NULL: no memory. */
static struct tensor_set *set_of(const struct tensor_spec *t, struct tensor_set *out)
{
	static const struct job_spec any;
	char why[128];
	return tensor_set_init(out, &any, t, 1, why, sizeof(why)) ? NULL : out;
}

static void one(struct job *j, const uint8_t *d, uint64_t call, struct now now)
{
	struct session_key k = { .rank = d[1] % 3, .uid = d[2] & 1 ? 7 : 1000 };
	memcpy(k.token, token[d[1] % 2], 16);
	struct attach_args a = { .rank = d[1] % 3,
				 .world_size = 2,
				 .uid = 1000,
				 .pid = d[2] % 8,
				 .start_time = 1,
				 .nonce = { d[3] },
				 .shared_memory = d[2] & 2,
				 .resume_generation = d[3] & 3 };
	struct push_args p = { .window = d[2] & 3,
			       .micro = d[3] & 3,
			       .slot = d[3] >> 2 & 3,
			       .weight = d[2] >> 3,
			       .data_key = d[3] >> 5,
			       .present = d + 1,
			       .n_present = d[2] >> 7 };
	struct order o = { .job_id = 1,
			   .epoch = 1,
			   .term = d[1] & 3,
			   .window = d[2] & 3,
			   .want = d[3] % 5,
			   .run = true,
			   .attempt = d[1] >> 4,
			   .commit = { .window = d[2] & 3,
				       .term = d[1] & 3,
				       .attempt = d[1] >> 4,
				       .outcome = 1,
				       .next_micro_size = 2,
				       .next.scale.scale = 1 } };
	struct engine_answer e = { .op = last[d[1] % 8].op,
				   .id = last[d[1] % 8].id,
				   .rank = last[d[1] % 8].rank,
				   .window = last[d[1] % 8].window,
				   .attempt = last[d[1] % 8].attempt,
				   .status = d[2] & 1 ? d[3] % ST_COUNT : 0,
				   .result = 1 + (d[3] & 3) };
	struct tensor_set set;
	struct tensor_spec t = { .name = "w", .dtype = DTYPE_F32, .n_dims = 1, .shape = { 1 + (d[2] & 1) } };
	uint32_t slot;
	bool is_put = d[3] & 64;
	switch (d[0] % 22) {
	case 0:
		job_attach(j, call, &a, now);
		break;
	case 1:
		job_register(j, call, &k, set_of(&t, &set), (struct layout_part){ 0, 0 }, now);
		break;
	case 2:
		job_wait_ready(j, call, &k, d[2] * 1000000, now);
		break;
	case 3:
		job_push(j, call, &k, &p, now);
		break;
	case 4:
		job_flush(j, call, &k, d[2] & 3, now);
		break;
	case 5:
		job_wait_step(j, call, &k, d[2] & 3, d[3] * 1000000, now);
		break;
	case 6:
		job_ack_step(j, call, &k, d[2] & 3, now);
		break;
	case 7:
		job_detach(j, call, &k, d[2] & 1, now);
		break;
	case 8:
		job_on_call_gone(j, d[1] | (uint64_t)(d[2] & 15) << 8, k.rank);
		break;
	case 9:
		up(j, now);
		break;
	case 10:
		job_on_engine_down(j, now);
		break;
	case 11:
		job_on_answer(j, &e, now);
		break;
	case 12:
		job_on_order(j, &o, now);
		break;
	case 13:
		job_tick(j, now);
		break;
	case 14:
		job_on_link(j, d[1] % 3, d[2] & 3, d[3] & 1, now);
		break;
	case 15:
		job_on_mapped(j, d[1] % 3, d[2] & 3);
		break;
	case 16:
		job_stream_open(j, call, &k, is_put ? NULL : &p, &slot, now);
		break;
	case 17:
		job_put_params(j, call, &k, d[2] & 1, d[3] & 7, d[3] >> 3 & 7, d[3] >> 6 & 1, now);
		break;
	/* of a stream that may have been opened some calls before */
	case 18:
		job_stream_took(j, call - d[3] % 4, k.rank, d[2] & 7, d[2] >> 4);
		break;
	case 19:
		job_stream_push(j, call - d[3] % 4, &k, &p, now);
		break;
	case 20:
		job_stream_put(j, call - d[3] % 4, &k, d[2] & 7, d[2] >> 4, d[3] & 128, now);
		break;
	case 21:
		job_stream_gone(j, call - d[3] % 4, k.rank);
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct job_spec spec = { .name = "fuzz", .ranks = 2, .micro_size = 2, .optim = { .type = OPTIM_SGD, .lr = 1 } };
	const char *field;
	char why[256];
	struct job *j = NULL;
	memset(last, 0, sizeof(last));
	memset(answered, 0, sizeof(answered));
	memset(token, 0, sizeof(token));
	n_sent = 0;
	if (job_spec_check(&spec, &field, why, sizeof(why)) || job_new(&j, 1, part_whole(&spec), 1000, 1, &ports))
		abort();
	for (size_t i = 0; i + 4 <= n && i / 4 < MAX_CALLS; i += 4)
		one(j, data + i, i / 4, (struct now){ (int64_t)i * 1000000, (int64_t)i * 1000000 });
	job_free(j);
	return 0;
}
