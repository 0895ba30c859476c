/* SPDX-License-Identifier: Apache-2.0 */
/* gacc_wait through a mailbox, answered by the engine's own code on another thread, or by a process that serves it
 * (support/box.h); and when it asks WaitStep instead (session_unary is replaced, see -Wl,--wrap). */
#include "lib/internal.h"

#include "gacc/v1/gradient.pb-c.h"
#include "lib/channel.h"
#include "support/box.h"
#include "support/suite.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum status __wrap_session_unary(struct gacc_job *job, void *arg, int64_t timeout_ms, struct rpc_failure *failure);

#define TENSORS 5
#define MICRO 3
#define WINDOW 0

static struct gacc_client client;
static char endpoint[] = "dns:nowhere";
static struct gacc_job job;
static struct box_world world;
static struct box_cells engine;
static unsigned char reduced[2][64];
static int line[2];

/* ---- WaitStep ---- */

static int by_rpc;
static uint64_t rpc_window;
static int64_t rpc_timeout_ms;
static enum status rpc_says;

enum status __wrap_session_unary(struct gacc_job *j, void *arg, int64_t timeout_ms, struct rpc_failure *failure)
{
	struct unary *u = arg;
	Gacc__V1__WaitStepResponse r = GACC__V1__WAIT_STEP_RESPONSE__INIT;
	Gacc__V1__StepResult result = GACC__V1__STEP_RESULT__INIT;
	uint8_t bytes[256];

	ck_assert_str_eq(u->method, "WaitStep");
	by_rpc++;
	rpc_window = ((const Gacc__V1__WaitStepRequest *)u->request)->window;
	rpc_timeout_ms = timeout_ms;
	if (rpc_says)
		return failure->status = rpc_says;
	result.window = rpc_window;
	result.outcome = GACC__V1__STEP_OUTCOME__STEP_OUTCOME_EMPTY;
	r.result = &result;
	r.micro_size = 9;
	ck_assert_uint_le(gacc__v1__wait_step_response__get_packed_size(&r), sizeof(bytes));
	return bytes_decode(&gacc__v1__wait_step_response__descriptor, bytes,
			    gacc__v1__wait_step_response__pack(&r, bytes), &u->reply);
}

/* ---- an engine that answers one WAIT ---- */

static struct {
	struct gacc_box_step block;
	struct gacc_box_answer answer;
	bool torn, mute;
	uint64_t asked; /* window */
} script;
static pthread_t thread;

static const struct gacc_box_step good = { .window = WINDOW,
					   .applied_step = 21,
					   .outcome = GACC_STEP_APPLIED,
					   .total_weight = 3.5,
					   .divisor = 7.5,
					   .grad_norm = 0.125,
					   .lr = 0.25,
					   .mean_loss = 1.75,
					   .micro_count = 31,
					   .last_rank = 41,
					   .last_lag_ns = -51,
					   .params_digest = UINT64_C(0xfedcba9876543210),
					   .next_loss_scale = 1024,
					   .next_micro_size = 4,
					   .half = 1 };

static void bell(void)
{
	const uint64_t one = 1;

	ck_assert_int_eq(write(world.fds[0].answer, &one, sizeof(one)), sizeof(one));
}

static void *serve(void *arg)
{
	struct box_request r;

	while (box_look(&engine, 0, &r) != BOX_TAKEN)
		sleep_ms(1);
	script.asked = r.q.window;
	ck_assert_uint_eq(r.q.kind, GACC_BOX_WAIT);
	if (script.mute)
		return NULL;
	box_write_step(&engine, &script.block);
	if (script.torn)
		engine.mem->step.total_weight++;
	box_answer(&engine, 0, r.q.seq, &script.answer);
	bell();
	return NULL;
}

static void setup(void)
{
	struct cells_owner o = { .job = 7, .sgen = 1, .rank = 0, .slots = 2, .n_tensors = TENSORS };
	char why[160] = "";

	box_world_make(&world, 1, MICRO, TENSORS);
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line), 0);
	by_rpc = 0;
	rpc_says = ST_OK;
	client = (struct gacc_client){ .endpoint = endpoint, .pid = getpid() };
	job = (struct gacc_job){ .client = &client,
				 .generation = 1,
				 .memory.socket = -1,
				 .held_slot = -1,
				 .registered = true,
				 .running = true,
				 .client_optimizer = true,
				 .layout = { .slots = 2, .n = TENSORS } };
	for (int i = 0; i < 2; i++)
		job.memory.reduced[i].base = reduced[i];
	ck_assert_int_eq(window_begin(&job.window, WINDOW, 0, MICRO, 1), ST_OK);
	window_give_up(&job.window);
	struct cells_fds fds = { dup(world.fds[0].memory), dup(world.fds[0].submit), dup(world.fds[0].waits) };
	ck_assert_msg(cells_open(&job.memory.cells, &fds, &o, line[0], why, sizeof(why)) == ST_OK, "%s", why);
	box_take_over(&engine, job.memory.cells.mem, TENSORS, 2);
	script.block = good;
	script.answer = (struct gacc_box_answer){ .status = ST_OK, .result = 1, .window = WINDOW };
	script.torn = script.mute = false;
}

static void teardown(void)
{
	cells_close(&job.memory.cells);
	window_fini(&job.window);
	close(line[0]);
	close(line[1]);
	box_world_free(&world);
}

static gacc_status wait_served(int timeout_ms, gacc_step *out)
{
	gacc_status st;

	ck_assert_int_eq(pthread_create(&thread, NULL, serve, NULL), 0);
	st = gacc_wait(&job, timeout_ms, out);
	pthread_join(thread, NULL);
	return st;
}

/* ---- by the mailbox ---- */

START_TEST(every_field_arrives)
{
	gacc_step s;

	ck_assert_int_eq(wait_served(-1, &s), GACC_OK);
	ck_assert_int_eq(by_rpc, 0);
	ck_assert_uint_eq(script.asked, WINDOW);
	ck_assert(s.window == WINDOW && s.applied_step == 21 && s.outcome == GACC_STEP_APPLIED);
	ck_assert(s.total_weight == 3.5 && s.divisor == 7.5 && s.micro_count == 31);
	ck_assert(s.grad_norm == 0.125 && s.lr == 0.25 && s.mean_loss == 1.75);
	ck_assert(s.last_rank == 41 && s.last_lag_ns == -51 && s.params_digest == good.params_digest);
	ck_assert(s.reduced == reduced[1] && !s.job_done);
	ck_assert(job.window.number == WINDOW + 1 && job.window.applied_step == 21 && job.window.micro_size == 4);
	ck_assert(job.window.loss_scale == 1024 && !job.window.done);
}
END_TEST

START_TEST(the_last_step)
{
	gacc_step s;

	script.block.final = 1;
	script.block.next_micro_size = 0;
	ck_assert_int_eq(wait_served(-1, &s), GACC_OK);
	ck_assert(s.job_done && job.window.done && by_rpc == 0);
	ck_assert_int_eq(gacc_wait(&job, -1, &s), GACC_EDONE);
}
END_TEST

/* Windows with pushes and a wait each, served by another process. */
START_TEST(windows_follow_each_other)
{
	unsigned char slot[2][64];
	gacc_push_opts o = { .struct_size = sizeof(o), .weight = 2 };
	pid_t server = box_spawn(&world);
	gacc_step s;
	void *base;

	job.client_optimizer = false;
	for (int i = 0; i < 2; i++)
		job.memory.slot[i].base = slot[i];
	ck_assert_int_eq(window_begin(&job.window, WINDOW, 0, MICRO, 1), ST_OK);
	for (uint64_t window = 0; window < 50; window++) {
		o.async = window % 2;
		for (int m = 0; m < MICRO; m++) {
			ck_assert_int_eq(gacc_grad_buffer(&job, &base, NULL), GACC_OK);
			ck_assert_int_eq(gacc_push(&job, &o, NULL), GACC_OK);
		}
		ck_assert_int_eq(gacc_wait(&job, -1, &s), GACC_OK);
		ck_assert(s.window == window && s.applied_step == window + 1 && s.total_weight == 2 * MICRO);
	}
	ck_assert_int_eq(by_rpc, 0);
	box_kill(server);
}
END_TEST

/* ---- by RPC ---- */

static void asks_wait_step(gacc_status st)
{
	ck_assert_int_eq(st, GACC_OK);
	ck_assert(by_rpc == 1 && rpc_window == WINDOW);
	ck_assert_uint_eq(job.window.micro_size, 9); /* RPC's */
}

enum doubt { REFUSED, NO_RESULT, OTHER_WINDOW, TORN, NO_OUTCOME, WRONG_OUTCOME, THIRD_HALF, NO_MICRO_SIZE, N_DOUBTS };

START_TEST(in_doubt_it_asks)
{
	script.answer.status = _i == REFUSED ? ST_WINDOW_FORGOTTEN : ST_OK;
	script.answer.result = _i != NO_RESULT;
	script.block.window = _i == OTHER_WINDOW ? WINDOW + 1 : WINDOW;
	script.torn = _i == TORN;
	script.block.outcome = _i == NO_OUTCOME ? 0 : _i == WRONG_OUTCOME ? 5 : GACC_STEP_APPLIED;
	script.block.half = _i == THIRD_HALF ? 2 : 0;
	script.block.next_micro_size = _i == NO_MICRO_SIZE ? 0 : 4;
	asks_wait_step(wait_served(-1, NULL));
}
END_TEST

START_TEST(without_a_mailbox_it_asks)
{
	if (_i == 0)
		cells_close(&job.memory.cells);
	else if (_i == 1)
		box_set_closed(&engine);
	else
		job.pending_apply = true; /* of a window before */
	ck_assert_int_eq(gacc_wait(&job, -1, NULL), GACC_OK);
	ck_assert_int_eq(by_rpc, 1);
	ck_assert(_i == 0 || job.memory.cells.seq == 0);
}
END_TEST

/* WaitStep says who is late, in what is left of the time. The next wait goes on with the same request. */
START_TEST(its_time_is_over)
{
	gacc_step s;
	int64_t start = now_ms();

	rpc_says = ST_STALLED;
	for (int i = 1; i <= 20; i++) {
		ck_assert_int_eq(gacc_wait(&job, 10, NULL), GACC_ETIMEOUT);
		ck_assert(by_rpc == i && rpc_timeout_ms == 1);
		ck_assert_int_ge(now_ms() - start, 10 * i);
	}
	ck_assert_uint_eq(job.memory.cells.seq, 1);
	ck_assert_int_eq(wait_served(-1, &s), GACC_OK);
	ck_assert(by_rpc == 20 && s.applied_step == 21);
}
END_TEST

/* A wait without a limit, or with a long one, asks after a while, too; the window's end is then taken from there. */
START_TEST(nobody_answers)
{
	int64_t start = now_ms();

	job.memory.cells.patience_ms = 30;
	script.mute = true;
	asks_wait_step(wait_served(_i == 0 ? -1 : 10000, NULL));
	ck_assert_int_lt(now_ms() - start, 9000);
	ck_assert_int_gt(rpc_timeout_ms, 1000);
	window_give_up(&job.window);
	ck_assert_int_eq(gacc_wait(&job, 100000, NULL), GACC_OK); /* at once: it owes an answer */
	ck_assert(by_rpc == 2 && rpc_window == WINDOW + 1);
	ck_assert_int_gt(rpc_timeout_ms, 20000);
}
END_TEST

/* The answer to an older wait comes late. The next window's is another request. */
START_TEST(a_late_answer)
{
	gacc_step s;
	struct box_request r;

	job.memory.cells.patience_ms = 30;
	ck_assert_int_eq(gacc_wait(&job, -1, NULL), GACC_OK);
	ck_assert_int_eq(box_look(&engine, 0, &r), BOX_TAKEN);
	box_write_step(&engine, &good);
	box_answer(&engine, 0, r.q.seq, &script.answer);
	window_give_up(&job.window);
	job.memory.cells.patience_ms = 20000;
	script.block.window = WINDOW + 1;
	ck_assert_int_eq(wait_served(-1, &s), GACC_OK);
	ck_assert(by_rpc == 1 && s.window == WINDOW + 1 && script.asked == WINDOW + 1);
}
END_TEST

/* The session has another mailbox than that in which the wait lies. */
START_TEST(a_wait_of_an_older_session)
{
	gacc_step s;

	job.posted.wait.seq = 1;
	job.posted.wait.window = WINDOW;
	job.posted.wait.sgen = 0;
	ck_assert_int_eq(wait_served(20000, &s), GACC_OK);
	ck_assert(job.memory.cells.seq == 1 && by_rpc == 0);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client wait");
	TCase *tc = tcase_create("all");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, every_field_arrives);
	tcase_add_test(tc, the_last_step);
	tcase_add_test(tc, windows_follow_each_other);
	tcase_add_loop_test(tc, in_doubt_it_asks, 0, N_DOUBTS);
	tcase_add_loop_test(tc, without_a_mailbox_it_asks, 0, 3);
	tcase_add_test(tc, its_time_is_over);
	tcase_add_loop_test(tc, nobody_answers, 0, 2);
	tcase_add_test(tc, a_late_answer);
	tcase_add_test(tc, a_wait_of_an_older_session);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
