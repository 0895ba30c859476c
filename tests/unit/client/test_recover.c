/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that need another session while pushes are on their way: gaccd's calls are a script (-Wl,--wrap), its memory
 * comes over a real attach socket. */
#include "map_rig.h"

#include "gacc/v1/gradient.pb-c.h"
#include "proto/bytes.h"
#include "support/suite.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum status __wrap_rpc_channel_call(struct rpc_channel *channel, const struct ProtobufCServiceDescriptor *service,
				    const char *method, const struct ProtobufCMessage *request, int64_t timeout_ms,
				    struct ProtobufCMessage **out_reply, struct rpc_failure *failure);

#define WINDOW 12
#define PUSH_MS 150 /* how long gaccd takes for the first one */
#define ATTACH_MS 30

/* ---- gaccd ---- */

static struct {
	int attached, flushed, detached, acked;
	atomic_int pushed;
	bool done;		  /* of Detach */
	bool push_fails, parks;	  /* parks: each Push, as long as it is awaited */
	int loses;		  /* so many answers to Attach, after a new session has begun */
	bool late;		  /* what Attach waits for is said once, and then nothing */
	bool updates;		  /* else the trainers do, and acknowledge it */
	atomic_bool in_push, met; /* met: a Push was under way during an Attach */
} gaccd;

static uint64_t generation;
static uint8_t taken[NONCE_BYTES]; /* by the newest session */

/* As control/attach.c judges it. */
static bool fences(const Gacc__V1__AttachRequest *q)
{
	bool repeated = generation && !memcmp(taken, q->nonce.data, NONCE_BYTES);

	ck_assert_int_eq(q->nonce.len, NONCE_BYTES);
	if (!repeated && q->resume_generation && generation > q->resume_generation)
		return true;
	generation += !repeated;
	memcpy(taken, q->nonce.data, NONCE_BYTES);
	return false;
}

static enum status say_late(struct rpc_failure *f)
{
	if (gaccd.attached++) {
		sleep_ms(100);
		return ST_STALLED;
	}
	snprintf(f->reason, sizeof(f->reason), "DEADLINE");
	snprintf(f->message, sizeof(f->message), "node b does not answer");
	return ST_DEADLINE;
}

static enum status attach(const Gacc__V1__AttachRequest *q, struct ProtobufCMessage **out)
{
	Gacc__V1__AttachResponse r = GACC__V1__ATTACH_RESPONSE__INIT;
	Gacc__V1__Session session = GACC__V1__SESSION__INIT;
	Gacc__V1__JobSpec spec = GACC__V1__JOB_SPEC__INIT;
	Gacc__V1__Optimizer optimizer = GACC__V1__OPTIMIZER__INIT;
	int n_pushed;

	gaccd.attached++;
	if (fences(q))
		return ST_SESSION_FENCED;
	if (gaccd.loses > 0) {
		gaccd.loses--;
		return ST_UNAVAILABLE;
	}
	n_pushed = atomic_load(&gaccd.pushed);
	sleep_ms(ATTACH_MS);
	if (atomic_load(&gaccd.in_push) || atomic_load(&gaccd.pushed) != n_pushed)
		atomic_store(&gaccd.met, true);
	optimizer.type = gaccd.updates ? GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_TYPE_SGD
				       : GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_TYPE_CLIENT;
	spec.optimizer = &optimizer;
	session.token = (ProtobufCBinaryData){ 16, (uint8_t *)(uintptr_t) "0123456789abcdef" };
	r.session = &session;
	r.spec = &spec;
	r.generation = generation;
	r.protocol = 1;
	r.ranks = 4;
	r.job_id = 8;
	r.attach_socket = map_job.attach_socket;
	*out = bytes_clone(&r.base);
	return ST_OK;
}

static void lay_out(struct ProtobufCMessage **out)
{
	Gacc__V1__RegisterTensorsResponse r = GACC__V1__REGISTER_TENSORS_RESPONSE__INIT;

	r.slots = map_job.layout.slots;
	r.slot_bytes = map_job.layout.slot_bytes;
	r.param_bytes = map_job.layout.param_bytes;
	*out = bytes_clone(&r.base);
}

static void say_ready(struct ProtobufCMessage **out)
{
	Gacc__V1__WaitReadyResponse r = GACC__V1__WAIT_READY_RESPONSE__INIT;

	r.window = WINDOW;
	r.micro_size = 4;
	*out = bytes_clone(&r.base);
}

static enum status take_push(struct ProtobufCMessage **out)
{
	Gacc__V1__PushResponse r = GACC__V1__PUSH_RESPONSE__INIT;

	if (atomic_fetch_add(&gaccd.pushed, 1) == 0) {
		atomic_store(&gaccd.in_push, true);
		sleep_ms(PUSH_MS);
		atomic_store(&gaccd.in_push, false);
	}
	if (gaccd.push_fails) {
		gaccd.push_fails = false;
		return ST_UNAVAILABLE;
	}
	if (gaccd.parks) {
		sleep_ms(PUSH_MS);
		return ST_STALLED;
	}
	r.micro_count = 1;
	*out = bytes_clone(&r.base);
	return ST_OK;
}

enum status __wrap_rpc_channel_call(struct rpc_channel *channel, const struct ProtobufCServiceDescriptor *service,
				    const char *method, const struct ProtobufCMessage *request, int64_t timeout_ms,
				    struct ProtobufCMessage **out_reply, struct rpc_failure *failure)
{
	Gacc__V1__FlushResponse flush = GACC__V1__FLUSH_RESPONSE__INIT;
	Gacc__V1__AckStepResponse ack = GACC__V1__ACK_STEP_RESPONSE__INIT;
	Gacc__V1__DetachResponse detach = GACC__V1__DETACH_RESPONSE__INIT;

	if (!strcmp(method, "Push"))
		return failure->status = take_push(out_reply);
	if (!strcmp(method, "Attach") && gaccd.late)
		return failure->status = say_late(failure);
	if (!strcmp(method, "Attach"))
		return failure->status = attach((const Gacc__V1__AttachRequest *)request, out_reply);
	if (!strcmp(method, "RegisterTensors")) {
		lay_out(out_reply);
	} else if (!strcmp(method, "WaitReady")) {
		say_ready(out_reply);
	} else if (!strcmp(method, "Flush")) {
		gaccd.flushed++;
		*out_reply = bytes_clone(&flush.base);
	} else if (!strcmp(method, "AckStep")) {
		gaccd.acked++;
		*out_reply = bytes_clone(&ack.base);
	} else {
		ck_assert_str_eq(method, "Detach");
		gaccd.detached++;
		gaccd.done = ((const Gacc__V1__DetachRequest *)request)->done;
		*out_reply = bytes_clone(&detach.base);
	}
	return ST_OK;
}

/* ---- a trainer in its window ---- */

static struct gacc_client client;
static char endpoint[] = "dns:nowhere";
static struct gacc_job *job;
static struct map_daemon before, after;

static void setup(void)
{
	struct rpc_failure f = { 0 };

	map_setup();
	memset(&gaccd, 0, sizeof(gaccd));
	generation = 0;
	gaccd.updates = true;
	client = (struct gacc_client){ .endpoint = endpoint, .pid = getpid() };
	job = calloc(1, sizeof(*job));
	*job = (struct gacc_job){ .client = &client,
				  .rank = 3,
				  .world = 4,
				  .timeout_ms = 60000,
				  .outage_ms = 300,
				  .memory.socket = -1,
				  .held_slot = -1,
				  .layout = map_job.layout };
	job->name = strdup("8");
	ck_assert_int_eq(session_recover(job, 100, &f), ST_OK);
	ck_assert_int_eq(window_begin(&job->window, WINDOW, 0, 4, 1), ST_OK);
	job->registered = job->running = true;
}

/* With memory and ready words; gaccd's next memory is another one. */
static void map_memory(void)
{
	struct rpc_failure f = { 0 };

	map_daemon_init(&before);
	map_daemon_start(&before);
	ck_assert_int_eq(memory_map(&job->memory, job, &f), ST_OK);
	map_daemon_fini(&before);
	job->wants_memory = true;
	ck_assert_int_eq(words_open(&job->memory.words, &job->memory.cells), ST_OK);
	map_daemon_init(&after);
	map_daemon_start(&after);
	gaccd.attached = 0;
}

/* ---- an answer that does not come ---- */

/* gaccd dies when it has begun the new session: the trainer must not be fenced by itself. */
START_TEST(an_attach_whose_answers_are_lost_is_repeated)
{
	gaccd.updates = false;
	job->client_optimizer = true;
	for (int recovery = 1; recovery <= 2; recovery++) { /* and the next one is another session */
		gaccd.attached = 0;
		gaccd.loses = 3;
		job->lost = true;
		ck_assert_int_eq(gacc_done(job, WINDOW - 1), GACC_OK);
		ck_assert(gaccd.attached == 4 && gaccd.acked == recovery);
		ck_assert_uint_eq(generation, 1 + (unsigned)recovery);
		ck_assert_uint_eq(job->generation, generation);
	}
	gacc_detach(job, 0);
}
END_TEST

START_TEST(what_gaccd_has_said_is_not_forgotten)
{
	uint8_t nonce[NONCE_BYTES] = { 1 };

	gaccd.late = true;
	gaccd.attached = 0;
	ck_assert_int_eq(session_run(job, "attach", 400, session_attach, nonce), GACC_ETIMEOUT);
	ck_assert_int_gt(gaccd.attached, 1);
	ck_assert_msg(strstr(gacc_last_error(job), "node b does not answer"), "%s", gacc_last_error(job));
	gaccd.late = false;
	gacc_detach(job, 0);
}
END_TEST

/* ---- a word that does not come ---- */

/* gaccd is there, so nothing is repeated: the caller hears at once what is missing. */
START_TEST(an_overdue_word_is_no_outage)
{
	int64_t start;

	map_memory();
	job->memory.late[1] = (struct late){ 5, 78, now_ms(), WINDOW, 2 };
	start = now_ms();
	ck_assert_int_eq(gacc_flush(job), GACC_ETIMEOUT);
	ck_assert_int_lt(now_ms() - start, 10000);
	ck_assert(gaccd.attached == 1 && gaccd.flushed == 0 && job->lost);
	ck_assert_str_eq(gacc_last_error(job),
			 "flush (job 8, rank 3): slot 1, with micro-batch 2 of window 12, is still written to: ready "
			 "word 5 has not come to 78 in time; see why its gradient is not complete, then call again");
	__atomic_store_n(&job->memory.words.at[4].value, 78, __ATOMIC_RELEASE);
	map_daemon_fini(&after);
	map_daemon_init(&after);
	map_daemon_start(&after);
	ck_assert_int_eq(gacc_flush(job), GACC_OK); /* nothing is forgotten */
	ck_assert(gaccd.flushed == 1 && !job->lost);
	gacc_detach(job, 0);
	map_daemon_fini(&after);
}
END_TEST

/* Whoever leaves needs no slot: gaccd hears of it at once. */
START_TEST(an_overdue_word_does_not_keep_from_leaving)
{
	int64_t start;

	map_memory();
	job->memory.late[1] = (struct late){ 5, 78, _i ? INT64_MAX : 0, WINDOW, 2 };
	job->lost = true;
	start = now_ms();
	gacc_detach(job, 1);
	ck_assert_int_lt(now_ms() - start, 3000);
	ck_assert(gaccd.attached == 1 && gaccd.detached == 1 && gaccd.done);
	map_daemon_fini(&after);
}
END_TEST

/* A push that waits for another rank does not either, once its time is over. */
START_TEST(a_parked_push_does_not_keep_from_leaving)
{
	struct push push = { .window = WINDOW };
	int64_t start = now_ms();

	gaccd.parks = true;
	ck_assert_int_eq(async_push(job, &push), GACC_OK);
	gacc_detach(job, 1);
	ck_assert(now_ms() - start >= 4000 && now_ms() - start < 15000);
	ck_assert(gaccd.detached == 1 && gaccd.done && atomic_load(&gaccd.pushed) > 1);
}
END_TEST

/* ---- the sender ---- */

/* Only when the sender does not use it is a session replaced, also by a call that does not wait for pushes. */
START_TEST(a_session_is_replaced_while_nothing_is_sent)
{
	struct push push = { .window = WINDOW, .micro = 0 };

	gaccd.push_fails = _i;
	gaccd.updates = false;
	gaccd.attached = 0;
	job->client_optimizer = true;
	ck_assert_int_eq(async_push(job, &push), GACC_OK);
	push.micro = push.slot = 1;
	ck_assert_int_eq(async_push(job, &push), GACC_OK);
	while (!atomic_load(&gaccd.in_push))
		sleep_ms(1);
	job->lost = true;
	ck_assert_int_eq(gacc_done(job, WINDOW - 1), GACC_OK);
	ck_assert(gaccd.attached == 1 && gaccd.acked == 1 && !atomic_load(&gaccd.met));
	ck_assert_int_eq(async_settle(job), GACC_OK);
	ck_assert_int_eq(atomic_load(&gaccd.pushed), 2 + _i);
	push.micro = 2; /* and the sender goes on */
	ck_assert_int_eq(async_push(job, &push), GACC_OK);
	ck_assert_int_eq(async_settle(job), GACC_OK);
	ck_assert_int_eq(atomic_load(&gaccd.pushed), 3 + _i);
	gacc_detach(job, 0);
}
END_TEST

/* A push whose word has not come is not being sent: the session does not wait for it. */
START_TEST(a_session_is_replaced_while_a_word_is_awaited)
{
	struct push push = { .window = WINDOW, .ready_at = 1, .ready_value = 1, .ready_until = now_ms() + 4000 };
	int64_t start = now_ms();

	gaccd.updates = false;
	job->client_optimizer = true;
	ck_assert_int_eq(words_open(&job->memory.words, &job->memory.cells), ST_OK);
	ck_assert_int_eq(async_push(job, &push), GACC_OK);
	sleep_ms(20);
	job->lost = true;
	ck_assert_int_eq(gacc_done(job, WINDOW - 1), GACC_OK);
	ck_assert_int_lt(now_ms() - start, 2000);
	__atomic_store_n(&job->memory.words.at[0].value, 1, __ATOMIC_RELEASE);
	ck_assert_int_eq(async_settle(job), GACC_OK);
	ck_assert_int_eq(atomic_load(&gaccd.pushed), 1);
	gacc_detach(job, 0);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client recover");
	TCase *tc = tcase_create("all");

	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, setup, map_teardown);
	tcase_add_test(tc, an_attach_whose_answers_are_lost_is_repeated);
	tcase_add_test(tc, what_gaccd_has_said_is_not_forgotten);
	tcase_add_test(tc, an_overdue_word_is_no_outage);
	tcase_add_loop_test(tc, an_overdue_word_does_not_keep_from_leaving, 0, 2);
	tcase_add_test(tc, a_parked_push_does_not_keep_from_leaving);
	tcase_add_loop_test(tc, a_session_is_replaced_while_nothing_is_sent, 0, 2);
	tcase_add_test(tc, a_session_is_replaced_while_a_word_is_awaited);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
