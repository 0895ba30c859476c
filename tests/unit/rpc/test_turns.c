/* SPDX-License-Identifier: Apache-2.0 */
/* What comes all at once is done in parts: so many in a turn of the loop, in order, and the loop does not wait between.
 */
#include "rpc/pump.h"
#include "rpc/turns.h"
#include "support/suite.h"

#include <check.h>
#include <grpc/grpc.h>
#include <unistd.h>
#include <uv.h>

#define MANY 1000

struct item {
	struct rpc_tag tag;
	int number;
};

static uv_loop_t loop;
static uv_check_t check; /* runs once a turn, after the waiting */
static struct item item[MANY];
static int n_run, in_turn, most_in_turn, n_turns;
static unsigned slow_us;
static bool stopped;

static void on_check(uv_check_t *c)
{
	in_turn = 0;
	n_turns++;
}

static void run(struct rpc_tag *tag, bool ok)
{
	ck_assert_int_eq(((struct item *)tag)->number, n_run);
	n_run++;
	in_turn++;
	if (in_turn > most_in_turn)
		most_in_turn = in_turn;
	if (slow_us)
		usleep(slow_us);
}

static void on_stopped(void *context)
{
	stopped = true;
}

static void setup(void)
{
	n_run = in_turn = most_in_turn = n_turns = 0;
	slow_us = 0;
	stopped = false;
	ck_assert_int_eq(uv_loop_init(&loop), 0);
	uv_check_init(&loop, &check);
	uv_check_start(&check, on_check);
	uv_unref((uv_handle_t *)&check);
	for (int i = 0; i < MANY; i++)
		item[i] = (struct item){ .tag.run = run, .number = i };
}

static void teardown(void)
{
	uv_close((uv_handle_t *)&check, NULL);
	uv_run(&loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(uv_loop_close(&loop), 0);
}

static void run_until(int n)
{
	while (n_run < n)
		uv_run(&loop, UV_RUN_ONCE);
}

START_TEST(so_many_in_a_turn)
{
	struct rpc_turns *t;
	int now = 0;
	ck_assert_int_eq(rpc_turns_new(&loop, 100, &t), ST_OK);
	uv_run(&loop, UV_RUN_NOWAIT);
	while (rpc_turns_take(t))
		now++;
	ck_assert_int_eq(now, 100);
	for (int i = 0; i < MANY; i++)
		rpc_turns_put(t, &item[i].tag);
	ck_assert(!rpc_turns_take(t)); /* not before those that wait */
	run_until(MANY);
	ck_assert_int_eq(most_in_turn, 100);
	ck_assert_int_ge(n_turns, MANY / 100);
	rpc_turns_free(t);
}
END_TEST

START_TEST(few_that_take_long_in_a_turn)
{
	struct rpc_turns *t;
	ck_assert_int_eq(rpc_turns_new(&loop, 100, &t), ST_OK);
	slow_us = 2000;
	for (int i = 0; i < 20; i++)
		rpc_turns_put(t, &item[i].tag);
	run_until(20);
	ck_assert_int_le(most_in_turn, 3);
	rpc_turns_free(t);
}
END_TEST

/* Requests that many calls make at once. */
START_TEST(a_pump_runs_some_in_a_turn)
{
	struct rpc_pump *pump;
	grpc_init();
	ck_assert_int_eq(rpc_pump_start(&loop, &pump), ST_OK);
	for (int i = 0; i < MANY; i++)
		rpc_pump_post(pump, &item[i].tag);
	run_until(MANY);
	ck_assert_int_le(most_in_turn, 64);
	rpc_pump_stop(pump, on_stopped, NULL);
	while (!stopped)
		uv_run(&loop, UV_RUN_ONCE);
	grpc_shutdown();
}
END_TEST

START_TEST(a_pump_runs_few_that_take_long)
{
	struct rpc_pump *pump;
	grpc_init();
	ck_assert_int_eq(rpc_pump_start(&loop, &pump), ST_OK);
	slow_us = 2000;
	for (int i = 0; i < 20; i++)
		rpc_pump_post(pump, &item[i].tag);
	run_until(20);
	ck_assert_int_le(most_in_turn, 3);
	rpc_pump_stop(pump, on_stopped, NULL);
	while (!stopped)
		uv_run(&loop, UV_RUN_ONCE);
	grpc_shutdown();
}
END_TEST

int main(void)
{
	Suite *s = suite_create("turns");
	TCase *t = tcase_create("turns");
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, so_many_in_a_turn);
	tcase_add_test(t, few_that_take_long_in_a_turn);
	tcase_add_test(t, a_pump_runs_some_in_a_turn);
	tcase_add_test(t, a_pump_runs_few_that_take_long);
	suite_add_tcase(s, t);
	return suite_run(s);
}
