/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives with a member that is late and says that it is at work. */
#include "broken.h"

#include "support/suite.h"

#include <check.h>

#define STALL_MS 400
#define WORK_MS (4 * STALL_MS)
#define CHAIN N_OPERATIONS /* see in_a_chain */

static int64_t works_ms; /* of part 2 */
static bool comes;	 /* whether it goes on after that */

static void wait_until_broken(struct actor *me, uint32_t part)
{
	struct coll_state other = { 0 };
	for (; other.phase != COLL_BROKEN; wait_ms(1))
		coll_poll(me->rig->member[part], &other);
}

/* Part 2: says four times in each stall that it gets on. */
static void work(struct actor *me)
{
	for (int64_t ms = 0; ms < works_ms; ms += STALL_MS / 4) {
		wait_ms(STALL_MS / 4);
		coll_at_work(me->c);
	}
	if (!comes)
		wait_until_broken(me, 1);
}

static enum status work_in_2(void *arg, const struct coll_piece *p)
{
	struct actor *me = arg;
	if (me->part == 2 && p->from == small.bounds[2])
		work(me);
	return ST_OK;
}

/* Part 0 has all, so it is soon in the barrier. There it waits for part 1, and that one in the gather for part 2. */
static void in_a_chain(struct actor *me)
{
	unsigned char memory[1200] = { 0 };
	struct coll_gather g = { .buffer = memory,
				 .bounds = small.bounds,
				 .piece = 100,
				 .produce = work_in_2,
				 .arg = me,
				 .whole = me->part == 0 };
	me->status = coll_gather(me->c, &g);
	if (me->status == ST_OK)
		me->status = coll_barrier(me->c);
}

static void act(struct actor *me)
{
	int64_t begin = now_ns();
	if (*(int *)me->arg == CHAIN) {
		in_a_chain(me);
	} else {
		if (me->part == 2)
			work(me);
		if (me->part < 2 || comes)
			act_operation(me);
	}
	me->took_ns = now_ns() - begin;
}

static void run(int *operation, int64_t ms, bool goes_on)
{
	works_ms = ms;
	comes = goes_on;
	r.stall_ns = STALL_MS * MS;
	rig_open(&r, 3);
	rig_join(&r);
	rig_run(&r, a, act, 0, operation);
}

START_TEST(work_is_no_stall)
{
	struct coll_state state;
	run(&_i, WORK_MS, true);
	for (uint32_t s = 0; s < 3; s++)
		ck_assert_int_eq(a[s].status, ST_OK);
	for (uint32_t s = 0; s < 2; s++)
		ck_assert_int_ge(a[s].took_ns, (WORK_MS - STALL_MS / 4) * MS);
	coll_poll(r.member[2], &state);
	ck_assert_uint_ge(state.pieces, 16); /* whoever looks sees that it moves */
}
END_TEST

START_TEST(work_that_ends_is_a_stall)
{
	struct coll_state state;
	run(&_i, 2 * STALL_MS, false);
	ck_assert_int_ge(a[1].took_ns, 2 * STALL_MS * MS);
	ck_assert_int_lt(a[1].took_ns, SOON_NS);
	coll_poll(r.member[1], &state);
	ck_assert(state.failure.status == ST_STALLED || !over_gloo); /* there another one may have been the first */
	if (state.failure.status == ST_STALLED) {
		ck_assert_uint_eq(state.failure.n_suspects, 1);
		ck_assert_uint_eq(state.failure.suspect[0], 2);
	}
	coll_at_work(r.member[2]); /* of no effect any more */
}
END_TEST

START_TEST(work_before_the_join_is_nothing)
{
	struct coll_state state;
	rig_open(&r, 3);
	coll_at_work(r.member[1]);
	coll_poll(r.member[1], &state);
	ck_assert_uint_eq(state.pieces, 0);
	rig_join(&r);
	coll_poll(r.member[1], &state);
	ck_assert_uint_eq(state.pieces, 0);
}
END_TEST

/* Part 0 waits for part 1, which does nothing, while part 2 works. */
static void act_next_to_work(struct actor *me)
{
	struct coll_state first = { 0 };
	if (me->part == 0)
		act_operation(me);
	for (; me->part && first.phase != COLL_BROKEN; wait_ms(STALL_MS / 8)) {
		if (me->part == 2)
			coll_at_work(me->c);
		coll_poll(me->rig->member[0], &first);
	}
}

START_TEST(work_of_another_part_does_not_count)
{
	int operation = BARRIER;
	struct coll_state state;
	r.stall_ns = STALL_MS * MS;
	rig_open(&r, 3);
	rig_join(&r);
	rig_run(&r, a, act_next_to_work, 0, &operation);
	coll_poll(r.member[0], &state);
	ck_assert_int_eq(state.failure.status, ST_STALLED);
	ck_assert_uint_eq(state.failure.n_suspects, 1);
	ck_assert_uint_eq(state.failure.suspect[0], 1);
}
END_TEST

int main(void)
{
	Suite *s = suite_create(over_gloo ? "coll_at_work over Gloo" : "coll_at_work");
	TCase *t = tcase_create("coll_at_work");
	tcase_add_checked_fixture(t, broken_setup, broken_teardown);
	tcase_add_loop_test(t, work_is_no_stall, EXCHANGE, JOIN);
	tcase_add_loop_test(t, work_is_no_stall, CHAIN, CHAIN + 1);
	tcase_add_loop_test(t, work_that_ends_is_a_stall, EXCHANGE, JOIN);
	tcase_add_loop_test(t, work_that_ends_is_a_stall, CHAIN, CHAIN + 1);
	tcase_add_test(t, work_before_the_join_is_nothing);
	if (over_gloo) /* in one process a member waits for all at once */
		tcase_add_test(t, work_of_another_part_does_not_count);
	suite_add_tcase(s, t);
	return suite_run(s);
}
