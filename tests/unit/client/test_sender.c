/* SPDX-License-Identifier: Apache-2.0 */
/* Asynchronous pushes, with push_attempt replaced (-Wl,--wrap) by a script. */
#include "lib/channel.h"
#include "lib/internal.h"
#include "support/suite.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum status __wrap_push_attempt(struct gacc_job *job, void *arg, int64_t timeout_ms, struct rpc_failure *failure);

/* What the daemon says to each micro-batch, attempt by attempt; the last word repeats. */
struct answer {
	enum status st[4];
	bool is_void;
	int attempts;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct answer answers[8];
static uint32_t order[32]; /* micro-batches in the order of attempts */
static int n_attempts;
static bool held; /* attempts wait */
static pthread_t job_thread;
static int by_sender; /* attempts that came from its thread */

enum status __wrap_push_attempt(struct gacc_job *job, void *arg, int64_t timeout_ms, struct rpc_failure *failure)
{
	struct push *push = arg;
	struct answer *a = &answers[push->micro];
	enum status st;

	pthread_mutex_lock(&lock);
	while (held)
		pthread_cond_wait(&changed, &lock);
	st = a->st[a->attempts < 3 ? a->attempts : 3];
	a->attempts++;
	order[n_attempts++ % 32] = push->micro;
	by_sender += !pthread_equal(pthread_self(), job_thread);
	pthread_mutex_unlock(&lock);
	push->is_void = a->is_void;
	failure->status = st;
	return st;
}

static void hold(bool on)
{
	pthread_mutex_lock(&lock);
	held = on;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

static struct gacc_client client;
static struct gacc_job job;
static char endpoint[] = "dns:nowhere";

static void setup(void)
{
	memset(answers, 0, sizeof(answers));
	n_attempts = 0;
	held = false;
	by_sender = 0;
	job_thread = pthread_self();
	client = (struct gacc_client){ .endpoint = endpoint, .pid = getpid() };
	job = (struct gacc_job){ .client = &client,
				 .outage_ms = 0,
				 .memory.socket = -1,
				 .held_slot = -1,
				 .running = true,
				 .layout.slots = 2 };
	ck_assert_int_eq(window_begin(&job.window, 5, 5, 8, 1), ST_OK);
}

static void teardown(void)
{
	sender_free(job.sender);
	window_fini(&job.window);
}

static void queue(uint32_t micro)
{
	struct push push = { .window = 5, .micro = micro };
	int slot;

	ck_assert_int_eq(async_free_slot(&job, &slot), GACC_OK);
	push.slot = (uint32_t)slot;
	push.present = malloc(1); /* freed by the sender */
	ck_assert_int_eq(async_push(&job, &push), GACC_OK);
}

static void ordered(int n)
{
	ck_assert_int_eq(n_attempts, n);
	for (int i = 0; i < n; i++)
		ck_assert_uint_eq(order[i], (uint32_t)i);
}

START_TEST(in_order_on_its_own_thread)
{
	uint32_t micro;
	bool last;

	for (uint32_t m = 0; m < 6; m++)
		queue(m);
	ck_assert(window_next(&job.window, &micro, &last) && micro == 6); /* what is queued is no longer owed */
	ck_assert_int_eq(async_settle(&job), GACC_OK);
	ordered(6);
	ck_assert_int_eq(by_sender, 6);
}
END_TEST

START_TEST(slots_are_not_shared)
{
	uint32_t queued[SLOTS_MAX];
	int slot;

	hold(true);
	queue(0);
	ck_assert_int_eq(async_free_slot(&job, &slot), GACC_OK);
	ck_assert_int_eq(slot, 1);
	ck_assert_uint_eq(sender_queued(job.sender, queued), 1);
	ck_assert_uint_eq(queued[0], 0);
	hold(false);
	queue(1);
	queue(2); /* waits for a slot */
	ck_assert_int_eq(async_settle(&job), GACC_OK);
	ck_assert_uint_eq(sender_queued(job.sender, queued), 0);
	ordered(3);
}
END_TEST

START_TEST(parked_pushes_are_repeated)
{
	answers[0] = (struct answer){ .st = { ST_STALLED, ST_STALLED, ST_OK } };
	queue(0);
	queue(1);
	ck_assert_int_eq(async_settle(&job), GACC_OK);
	ck_assert_int_eq(answers[0].attempts, 3);
	ck_assert_int_eq(order[3], 1);
	ck_assert_int_eq(by_sender, 4);
}
END_TEST

/* Both are queued before the first one is answered. */
static void queue_two(void)
{
	hold(true);
	queue(0);
	queue(1);
	hold(false);
}

/* A lost reply: the job's thread repeats it, and what is behind it. */
START_TEST(the_job_thread_takes_over)
{
	answers[0] = (struct answer){ .st = { ST_UNAVAILABLE, ST_OK } };
	queue_two();
	ck_assert_int_eq(async_settle(&job), GACC_OK);
	ck_assert_int_eq(answers[0].attempts, 2);
	ck_assert_int_eq(answers[1].attempts, 1);
	queue(2); /* and the sender goes on */
	ck_assert_int_eq(async_settle(&job), GACC_OK);
	ck_assert_int_eq(answers[2].attempts, 1);
}
END_TEST

/* An outage without end is told, and nothing is forgotten: the next call tries again. */
START_TEST(an_outage_keeps_the_queue)
{
	uint32_t queued[SLOTS_MAX];

	answers[0] = (struct answer){ .st = { ST_UNAVAILABLE, ST_UNAVAILABLE, ST_OK } };
	queue_two();
	ck_assert_int_eq(async_settle(&job), GACC_EUNAVAIL);
	ck_assert_uint_eq(sender_queued(job.sender, queued), 2);
	ck_assert_int_eq(async_settle(&job), GACC_OK);
	ck_assert_int_eq(answers[0].attempts, 3);
	ck_assert_int_eq(answers[1].attempts, 1);
}
END_TEST

START_TEST(a_void_push_is_told_once)
{
	answers[1] = (struct answer){ .is_void = true };
	queue_two();
	ck_assert_int_eq(async_settle(&job), GACC_ENONFINITE);
	ck_assert_ptr_nonnull(strstr(job.failure.text, "micro-batch 1 of window 5"));
	ck_assert_int_eq(async_settle(&job), GACC_OK);
	ordered(2);
}
END_TEST

/* Also where the push behind it is to be tried again later: the sender was told (0), or the job's thread (1). */
START_TEST(a_void_push_is_told_when_the_next_has_to_wait)
{
	int told = 0;

	answers[0] = (struct answer){ .st = { _i ? ST_UNAVAILABLE : ST_OK, ST_OK }, .is_void = true };
	answers[1] = (struct answer){ .st = { ST_UNAVAILABLE, ST_UNAVAILABLE, ST_OK } };
	queue_two();
	for (int i = 0; i < 3; i++)
		told += async_settle(&job) == GACC_ENONFINITE;
	ck_assert_int_eq(told, 1);
	ck_assert_int_eq(async_settle(&job), GACC_OK);
}
END_TEST

START_TEST(a_closed_window_is_given_up)
{
	uint32_t micro;
	bool last;

	answers[0] = answers[1] = (struct answer){ .st = { ST_WINDOW_CLOSED, ST_WINDOW_CLOSED } };
	queue_two();
	ck_assert_int_eq(async_settle(&job), GACC_ESTALE);
	ck_assert(!window_next(&job.window, &micro, &last));
	ck_assert_int_eq(async_settle(&job), GACC_OK);
}
END_TEST

/* What the daemon refuses for another reason: only a new session knows what is owed now. */
START_TEST(a_refusal_asks_the_daemon)
{
	uint32_t queued[SLOTS_MAX];

	answers[0] = (struct answer){ .st = { ST_BAD_WEIGHT, ST_BAD_WEIGHT } };
	queue_two();
	ck_assert_int_eq(async_settle(&job), GACC_EINVAL);
	ck_assert(job.lost);
	ck_assert_uint_eq(sender_queued(job.sender, queued), 0);
	ck_assert_int_eq(answers[1].attempts, 0);
}
END_TEST

START_TEST(ends_with_pushes_queued)
{
	answers[0] = (struct answer){ .st = { ST_UNAVAILABLE } };
	queue_two(); /* teardown frees the sender and both */
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client sender");
	TCase *tc = tcase_create("all");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, in_order_on_its_own_thread);
	tcase_add_test(tc, slots_are_not_shared);
	tcase_add_test(tc, parked_pushes_are_repeated);
	tcase_add_test(tc, the_job_thread_takes_over);
	tcase_add_test(tc, an_outage_keeps_the_queue);
	tcase_add_test(tc, a_void_push_is_told_once);
	tcase_add_loop_test(tc, a_void_push_is_told_when_the_next_has_to_wait, 0, 2);
	tcase_add_test(tc, a_closed_window_is_given_up);
	tcase_add_test(tc, a_refusal_asks_the_daemon);
	tcase_add_test(tc, ends_with_pushes_queued);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
