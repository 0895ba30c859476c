/* SPDX-License-Identifier: Apache-2.0 */
/* Work that takes long waits for its like, and nobody waits for it. */
#include "rpc/pool.h"

#include "support/suite.h"

#include <check.h>
#include <semaphore.h>
#include <string.h>
#include <uv.h>

#define MANY 8

struct job {
	struct rpc_work work;
	sem_t go; /* run() waits for it */
	char name;
};

static uv_loop_t loop;
static struct rpc_pool *pool;
static struct job job[MANY];
static char order[MANY * 2 + 1]; /* names, as they were done */

static void run(struct rpc_work *w)
{
	sem_wait(&((struct job *)w)->go);
}

static void done(struct rpc_work *w)
{
	order[strlen(order)] = ((struct job *)w)->name;
}

static void setup(void)
{
	ck_assert_int_eq(rpc_pool_make_threads(), ST_OK);
	ck_assert_int_eq(uv_loop_init(&loop), 0);
	ck_assert_int_eq(rpc_pool_new(&loop, &pool), ST_OK);
	memset(order, 0, sizeof(order));
	for (int i = 0; i < MANY; i++) {
		job[i] = (struct job){ .name = (char)('a' + i) };
		sem_init(&job[i].go, 0, 0);
	}
}

static void teardown(void)
{
	ck_assert(!rpc_pool_busy(pool));
	rpc_pool_free(pool);
	uv_run(&loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(uv_loop_close(&loop), 0);
}

static void put(int i, enum rpc_pool_kind kind, int64_t who)
{
	rpc_pool_put_kind(pool, kind, &job[i].work, who, run, done);
}

/* Lets a piece go on, and waits until it is done. */
static void finish(int i)
{
	size_t n = strlen(order);
	sem_post(&job[i].go);
	while (strlen(order) == n)
		uv_run(&loop, UV_RUN_ONCE);
	ck_assert_int_eq(order[n], job[i].name);
}

START_TEST(memory_and_disks_hold_up_nothing_else)
{
	for (int i = 0; i < 3; i++)
		put(i, RPC_POOL_ALLOCATE, i);
	put(3, RPC_POOL_RELEASE, 3);
	for (int i = 4; i < 7; i++)
		put(i, RPC_POOL_DISK, i);
	rpc_pool_put(pool, &job[7].work, 7, run, done);
	ck_assert_int_eq(rpc_pool_running(pool, RPC_POOL_ALLOCATE), 1);
	ck_assert_int_eq(rpc_pool_running(pool, RPC_POOL_RELEASE), 1);
	ck_assert_int_eq(rpc_pool_running(pool, RPC_POOL_DISK), 2);
	ck_assert_int_eq(rpc_pool_running(pool, RPC_POOL_COMPUTE), 1);
	finish(7);
	finish(5);
	finish(3);
	finish(0);
	for (int i = 1; i < 7; i += 1 + (i == 2 || i == 4)) /* 1 2 4 6 */
		finish(i);
}
END_TEST

START_TEST(users_take_turns)
{
	for (int i = 0; i < 4; i++)
		put(i, RPC_POOL_ALLOCATE, 1);
	put(4, RPC_POOL_ALLOCATE, 2);
	finish(0);
	finish(4);
	finish(1);
	put(5, RPC_POOL_ALLOCATE, 3);
	finish(2);
	finish(5);
	finish(3);
	ck_assert_str_eq(order, "aebcfd");
}
END_TEST

/* A file system of his that does not answer takes one worker, not all. */
START_TEST(a_user_has_one_piece_of_disk_work_at_a_time)
{
	put(0, RPC_POOL_DISK, 1);
	put(1, RPC_POOL_DISK, 1);
	ck_assert_int_eq(rpc_pool_running(pool, RPC_POOL_DISK), 1);
	put(2, RPC_POOL_DISK, 2);
	put(3, RPC_POOL_DISK, 2);
	ck_assert_int_eq(rpc_pool_running(pool, RPC_POOL_DISK), 2);
	finish(2);
	finish(3);
	put(4, RPC_POOL_DISK, 3);
	finish(4);
	finish(0);
	finish(1);
}
END_TEST

START_TEST(two_at_a_time_compute)
{
	for (int i = 0; i < 4; i++)
		put(i, RPC_POOL_COMPUTE, 1);
	ck_assert_int_eq(rpc_pool_running(pool, RPC_POOL_COMPUTE), 2);
	for (int i = 0; i < 4; i++)
		finish(i);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("pool");
	TCase *t = tcase_create("pool");
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, memory_and_disks_hold_up_nothing_else);
	tcase_add_test(t, users_take_turns);
	tcase_add_test(t, a_user_has_one_piece_of_disk_work_at_a_time);
	tcase_add_test(t, two_at_a_time_compute);
	suite_add_tcase(s, t);
	return suite_run(s);
}
