/* SPDX-License-Identifier: Apache-2.0 */
/* Users of the RPC server come and go. What their quotas do is tests/system/test_flood.py's. */
#include "rpc/tenants.h"
#include "rpc_calls.h"
#include "support/suite.h"

#include <time.h>
#include <unistd.h>

#define OTHERS 60000 /* uids from here on */

static void enter(struct fixture *fixture, void *arg)
{
	struct rpc_tenant **out = arg;
	static uid_t next = OTHERS;
	ck_assert_int_eq(rpc_tenant_enter(fixture->server, next++, out), ST_OK);
}

static void leave(struct fixture *fixture, void *arg)
{
	rpc_server_fd_gone(fixture->server, *(const uid_t *)arg);
}

static void count_tenants(struct fixture *fixture, void *arg)
{
	unsigned *n = arg;
	*n = 0;
	for (const struct rpc_tenant *t = fixture->server->tenants; t; t = t->next)
		++*n;
}

static void expect_tenants(unsigned n)
{
	unsigned now = 0;
	for (int i = 0; i < 10000; i++) {
		fixture_do(server, count_tenants, &now);
		if (now == n)
			return;
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	ck_abort_msg("%u tenants, not %u", now, n);
}

static void gone(uid_t uid)
{
	fixture_do(server, leave, &uid);
}

/* The last connection ends a tenant, no other; the next one makes another. */
START_TEST(a_user_comes_and_goes)
{
	uint32_t count;
	expect_tenants(1); /* nobody has called */
	for (uint32_t round = 1; round < 4; round++) {
		struct rpc_channel *second = open_channel(server->target, NULL);
		ck_assert_int_eq(flush(round, 10 * SECONDS, &count), ST_OK);
		ck_assert_int_eq(flush_on(second, round, 10 * SECONDS, &count, &failure), ST_OK);
		expect_tenants(2);
		rpc_channel_close(second);
		gone(getuid());
		ck_assert_int_eq(flush(round, 10 * SECONDS, &count), ST_OK);
		ck_assert_uint_eq(count, round);
		expect_tenants(2);
		rpc_channel_close(channel);
		gone(getuid());
		expect_tenants(1);
		channel = open_channel(server->target, NULL);
	}
}
END_TEST

/* A call under way keeps the closing tenant; the user's next connection does not wait for it. */
START_TEST(a_call_outlives_the_count_of_connections)
{
	uint32_t count;
	struct rpc_stream *parked = parked_call();
	fixture_wait(server, any_begun);
	gone(getuid());
	struct rpc_channel *next = open_channel(server->target, NULL);
	ck_assert_int_eq(flush_on(next, 7, 10 * SECONDS, &count, &failure), ST_OK);
	expect_tenants(3);
	rpc_stream_free(parked);
	expect_tenants(2);
	rpc_channel_close(next);
}
END_TEST

/* Users beyond the most share one tenant with callers over TCP, and stay there while they have connections. */
START_TEST(users_beyond_the_most_share_one)
{
	struct rpc_tenant *of[TENANTS_MAX + 2];
	for (size_t i = 0; i < TENANTS_MAX + 2; i++) {
		fixture_do(server, enter, &of[i]);
		ck_assert_int_eq(of[i] == server->server->overflow, i >= TENANTS_MAX - 1);
		ck_assert(i == 0 || i >= TENANTS_MAX - 1 || of[i] != of[i - 1]);
	}
	expect_tenants(TENANTS_MAX);
	gone(OTHERS);
	gone(OTHERS + TENANTS_MAX); /* a user of `overflow` */
	expect_tenants(TENANTS_MAX - 1);
	for (uid_t i = 1; i < TENANTS_MAX + 2; i++)
		if (i != TENANTS_MAX)
			gone(OTHERS + i);
	expect_tenants(1);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("tenants");
	TCase *tc = tcase_create("tenants");
	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, a_user_comes_and_goes);
	tcase_add_test(tc, a_call_outlives_the_count_of_connections);
	tcase_add_test(tc, users_beyond_the_most_share_one);
	tcase_set_timeout(tc, 60);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
