/* SPDX-License-Identifier: Apache-2.0 */
/* What is still out when a call or the server ends: memory that gRPC has borrowed, a request that is being decoded. */
#include "gacc/v1/job.pb-c.h"
#include "rpc/private.h"
#include "rpc_calls.h"
#include "support/suite.h"

#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void rest(long ms)
{
	nanosleep(&(struct timespec){ .tv_nsec = ms * 1000000 }, NULL);
}

/* ---- borrowed memory ---- */

struct lent {
	void *borrowed;
	int released;
};

static void on_released(void *arg)
{
	((struct lent *)arg)->released++;
}

static void lend(struct fixture *fixture, void *arg)
{
	struct lent *lent = arg;
	lent->borrowed = rpc_borrowed_new(fixture->server, on_released, lent);
	ck_assert_ptr_nonnull(lent->borrowed);
}

/* Neither the end of the grace nor that of all calls ends the server while gRPC has memory of a handler. */
START_TEST(a_stop_waits_for_borrowed_memory)
{
	struct lent lent = { 0 };
	fixture_do(server, lend, &lent);
	fixture_stop_begin(server);
	rest(400); /* four times the grace */
	ck_assert_int_eq(lent.released, 0);
	rpc_borrowed_end(lent.borrowed);
	tear_down();
	ck_assert_int_eq(lent.released, 1);
	set_up();
}
END_TEST

/* ---- a request in the pool ---- */

enum { BLOCKERS = 8, ANOTHER_USER = 77 };
static struct rpc_work blocker[BLOCKERS];
static sem_t go;
static unsigned n_over; /* of the loop's thread */

static void wait_for_go(struct rpc_work *work)
{
	sem_wait(&go);
}

static void on_over(struct rpc_work *work)
{
	n_over++;
}

static void block_pool(struct fixture *fixture, void *arg)
{
	for (int i = 0; i < BLOCKERS; i++)
		rpc_pool_put(rpc_server_pool(fixture->server), &blocker[i], ANOTHER_USER, wait_for_go, on_over);
}

static void look_pool(struct fixture *fixture, void *arg)
{
	*(bool *)arg = rpc_pool_busy(rpc_server_pool(fixture->server));
}

static void look_first_call(struct fixture *fixture, void *arg)
{
	*(bool *)arg = rpc_find(fixture->server, UINT64_C(1) << 32) != NULL; /* generation 1 of slot 0 */
}

static void wait_until(void (*look)(struct fixture *, void *), bool wanted)
{
	bool is = !wanted;
	for (int i = 0; i < 10000 && is != wanted; i++) {
		fixture_do(server, look, &is);
		rest(1);
	}
	ck_assert(is == wanted);
}

static struct rpc_stream *large_call(void)
{
	static char text[100001];
	Gacc__V1__GetRequest request = GACC__V1__GET_REQUEST__INIT;
	struct rpc_stream *stream;
	memset(text, '1', sizeof(text) - 1);
	request.job = text;
	ck_assert_int_eq(rpc_stream_open(channel, &gacc__v1__job_service__descriptor, "Get", 60 * SECONDS, 0, &stream),
			 ST_OK);
	ck_assert_int_eq(rpc_stream_send(stream, &request.base), ST_OK);
	return stream;
}

/* The call dies while its request waits for the pool: the handler never sees it. */
START_TEST(a_call_that_dies_in_the_pool_reaches_no_handler)
{
	uint32_t count;
	sem_init(&go, 0, 0);
	fixture_do(server, block_pool, NULL);
	struct rpc_stream *stream = large_call();
	wait_until(look_first_call, true);
	rpc_stream_free(stream);
	wait_until(look_first_call, false);
	for (int i = 0; i < BLOCKERS; i++)
		sem_post(&go);
	wait_until(look_pool, false);
	ck_assert_uint_eq(n_over, BLOCKERS);
	ck_assert_int_eq(flush(5, 10 * SECONDS, &count), ST_OK);
	ck_assert_uint_eq(fixture_wait(server, any_begun).messages, 1); /* the flush */
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("rpc_out");
	TCase *tc = tcase_create("out");
	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, a_stop_waits_for_borrowed_memory);
	tcase_add_test(tc, a_call_that_dies_in_the_pool_reaches_no_handler);
	tcase_set_timeout(tc, 60);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
