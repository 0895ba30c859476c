/* SPDX-License-Identifier: Apache-2.0 */
/* Restarts that several nodes share: by hand, and at random with the real ranks of each node, a network that loses and
 * repeats, and coordinators that begin anew. */
#include "control/launch_share.h"

#include "control/launch.h"
#include "support/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { NODES = 3 };

static struct launch_share share[NODES];

static void begin(void)
{
	memset(share, 0, sizeof(share));
}

/* A node with two ranks that wait, and that have been started again `restarts` times. */
static bool hear_of(int node, uint32_t allowed, uint32_t wanted, uint32_t restarts)
{
	return launch_share_hear(
		&share[node],
		&(struct launch_told){
			.allowed = allowed, .wanted = wanted, .n_ranks = 2, .n_waiting = 2, .restarts = restarts });
}

static void hear(int node, uint32_t allowed, uint32_t wanted)
{
	ck_assert(hear_of(node, allowed, wanted, 0));
}

START_TEST(one_node_has_all_at_once)
{
	begin();
	ck_assert(launch_share_give(share, 1, 5));
	ck_assert_uint_eq(share[0].allowed, 5);
	ck_assert(share[0].final);
	ck_assert(!launch_share_give(share, 1, 5));
}
END_TEST

START_TEST(without_restarts_nobody_waits)
{
	begin();
	ck_assert(launch_share_give(share, NODES, 0));
	for (int i = 0; i < NODES; i++)
		ck_assert(share[i].final && !share[i].allowed);
}
END_TEST

START_TEST(nothing_is_given_before_all_are_heard)
{
	begin();
	share[2].inherits = true;
	hear(0, 0, 1);
	hear(1, 0, 0);
	ck_assert(!launch_share_give(share, NODES, 2));
	hear(2, 2, 0); /* an earlier coordinator has given it all */
	ck_assert(launch_share_give(share, NODES, 2));
	ck_assert(share[0].final && !share[0].allowed);
	ck_assert(!share[1].final);
	ck_assert_uint_eq(share[2].allowed, 2);
}
END_TEST

START_TEST(a_wish_is_answered_once)
{
	begin();
	for (int i = 0; i < NODES; i++)
		hear(i, 0, 0);
	ck_assert(!launch_share_give(share, NODES, 3));
	hear(1, 0, 2);
	ck_assert(launch_share_give(share, NODES, 3));
	ck_assert_uint_eq(share[1].allowed, 2);
	ck_assert(!launch_share_give(share, NODES, 3)); /* it has not taken that yet */
	hear(1, 0, 2);
	ck_assert(!launch_share_give(share, NODES, 3));
	hear(1, 2, 2);
	ck_assert(launch_share_give(share, NODES, 3)); /* what is left */
	ck_assert_uint_eq(share[1].allowed, 3);
	ck_assert(!share[1].final);
	hear(0, 0, 1);
	ck_assert(launch_share_give(share, NODES, 3));
	ck_assert(share[0].final);
	ck_assert(!launch_share_give(share, NODES, 3));
}
END_TEST

/* One message of a broken node: the others have their restarts even so. */
START_TEST(nobody_can_claim_what_was_not_given)
{
	begin();
	ck_assert(!hear_of(0, 5, 0, 5));
	hear(1, 0, 1);
	hear(2, 0, 0);
	ck_assert(launch_share_give(share, NODES, 5));
	ck_assert(share[1].allowed == 1 && !share[1].final && share[0].allowed == 0);
	ck_assert(!hear_of(1, 2, 1, 0));
	ck_assert(launch_share_give(share, NODES, 5)); /* it has taken its one, and wants another */
	ck_assert_uint_eq(share[1].allowed, 2);
	hear(1, 2, 0);
}
END_TEST

/* Of a coordinator before this one it is believed as far as its ranks can have used that. */
START_TEST(an_inherited_allowance_is_bounded_by_the_restarts)
{
	begin();
	share[0].inherits = share[1].inherits = true;
	ck_assert(!hear_of(0, 9, 0, 3));
	ck_assert_uint_eq(share[0].allowed, 3 + 2);
	ck_assert(hear_of(1, 5, 0, 3));
	ck_assert_uint_eq(share[1].allowed, 5);
	ck_assert(hear_of(1, 5, 0, 0)); /* a launcher that knows nothing of them: what counts once goes on counting */
	ck_assert_uint_eq(share[1].allowed, 5);
}
END_TEST

START_TEST(only_ranks_that_wait_want_restarts)
{
	begin();
	for (int i = 0; i < NODES; i++)
		hear(i, 0, 0);
	launch_share_hear(&share[0], &(struct launch_told){ .wanted = 2, .n_ranks = 2, .n_waiting = 1 });
	ck_assert(launch_share_give(share, NODES, 5));
	ck_assert_uint_eq(share[0].allowed, 1);
}
END_TEST

/* ---- at random ---- */

static struct launch *launch[NODES];
static struct now now;
static int64_t last_pid;

static int64_t fake_start(void *ctx, uint32_t rank, uint32_t restarts)
{
	return ++last_pid;
}

static void fake_signal(void *ctx, uint32_t rank, int64_t pid, int signal)
{
}

static void fake_changed(void *ctx, uint32_t rank)
{
}

static void kill_one(unsigned *seed)
{
	struct launch *l = launch[rand_r(seed) % NODES];
	uint32_t rank = (uint32_t)rand_r(seed) % 2;
	if (launch_rank(l, rank)->state == LAUNCH_RANK_RUNNING)
		launch_on_exit(l, rank, launch_rank(l, rank)->pid, 9, now);
}

static bool tell(int node)
{
	const struct launch_summary *s = launch_summary(launch[node]);
	struct launch_told t = { .allowed = s->allowed, .wanted = s->wanted, .n_ranks = 2 };
	for (uint32_t i = 0; i < 2; i++) {
		t.restarts += launch_rank(launch[node], i)->restarts;
		t.n_waiting += launch_rank(launch[node], i)->state == LAUNCH_RANK_WAITING;
	}
	return launch_share_hear(&share[node], &t);
}

/* One turn: each message arrives, or is lost. */
static void turn(unsigned *seed, uint32_t max_restarts)
{
	now.mono_ns += INT64_C(50000000);
	if (rand_r(seed) % 4 == 0)
		kill_one(seed);
	if (rand_r(seed) % 20 == 0) {
		begin(); /* a new coordinator */
		for (int i = 0; i < NODES; i++)
			share[i].inherits = true;
	}
	for (int i = 0; i < NODES; i++) {
		launch_tick(launch[i], now);
		if (rand_r(seed) % 2)
			ck_assert(tell(i)); /* nobody who tells the truth is doubted */
		launch_share_give(share, NODES, max_restarts);
		if (rand_r(seed) % 2)
			launch_allow(launch[i], share[i].allowed, share[i].final, now);
	}
}

static uint32_t charged(void)
{
	uint32_t sum = 0;
	for (int i = 0; i < NODES; i++)
		sum += launch_summary(launch[i])->charged;
	return sum;
}

static uint32_t given(void)
{
	uint32_t sum = 0;
	for (int i = 0; i < NODES; i++)
		sum += share[i].allowed;
	return sum;
}

static bool any_failed(void)
{
	bool failed = false;
	for (int i = 0; i < NODES; i++)
		failed |= launch_summary(launch[i])->result == LAUNCH_FAILED;
	return failed;
}

static void try_one(unsigned seed)
{
	const uint32_t max_restarts = (uint32_t)rand_r(&seed) % 6;
	const struct launch_ports p = { .start = fake_start, .signal = fake_signal, .changed = fake_changed };
	now = (struct now){ 1, 1 };
	begin();
	for (int i = 0; i < NODES; i++) {
		ck_assert_int_eq(launch_new(&launch[i], 2, 0, 1, &p), ST_OK);
		launch_allow(launch[i], 0, false, now);
		launch_start(launch[i], now);
	}
	for (int i = 0; i < 2000 && !any_failed(); i++) {
		turn(&seed, max_restarts);
		ck_assert_uint_le(charged(), max_restarts);
		ck_assert_uint_le(given(), max_restarts);
	}
	ck_assert(any_failed());		  /* nobody waits for ever */
	ck_assert_uint_eq(given(), max_restarts); /* used, or on its way */
	for (int i = 0; i < NODES; i++)
		launch_free(launch[i]);
}

START_TEST(never_more_than_all_and_all_are_used)
{
	for (unsigned seed = 1; seed <= 300; seed++)
		try_one(seed);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("launch_share");
	TCase *c = tcase_create("launch_share");
	suite_add_tcase(s, c);
	tcase_add_test(c, one_node_has_all_at_once);
	tcase_add_test(c, without_restarts_nobody_waits);
	tcase_add_test(c, nothing_is_given_before_all_are_heard);
	tcase_add_test(c, a_wish_is_answered_once);
	tcase_add_test(c, nobody_can_claim_what_was_not_given);
	tcase_add_test(c, an_inherited_allowance_is_bounded_by_the_restarts);
	tcase_add_test(c, only_ranks_that_wait_want_restarts);
	tcase_add_test(c, never_more_than_all_and_all_are_used);
	return suite_run(s);
}
