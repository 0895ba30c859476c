/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of failures have in common: one communicator, each operation by its number, and what must hold after a
 * failure. */
#include "broken.h"

#include <check.h>
#include <string.h>
#include <time.h>

struct rig r;
struct actor a[COLL_MAX_PARTS];
pthread_t thread[COLL_MAX_PARTS];

void broken_setup(void)
{
	memset(&r, 0, sizeof(r));
}

void broken_teardown(void)
{
	rig_close(&r);
}

void wait_ms(int64_t ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * MS };
	nanosleep(&t, NULL);
}

/* That the member has failed like this; suspect -1: none. */
void check_failure(uint32_t part, enum status st, int suspect, const char *text)
{
	struct coll_state state;
	coll_poll(r.member[part], &state);
	for (int i = 0; over_gloo && i < 5000 && state.phase != COLL_BROKEN; i++) {
		wait_ms(1);
		coll_poll(r.member[part], &state);
	}
	ck_assert_int_eq(state.phase, COLL_BROKEN);
	ck_assert_msg(state.failure.status == st, "part %u: %s: %s", part, status_info(state.failure.status)->name,
		      state.failure.text);
	ck_assert_uint_eq(state.failure.n_suspects, suspect >= 0);
	if (suspect >= 0)
		ck_assert_int_eq(state.failure.suspect[0], suspect);
	/* Over Gloo a member that goes cannot always say why, or another one comes first to say it. */
	bool other_words = over_gloo && st == ST_UNAVAILABLE && suspect >= 0;
	ck_assert_msg(other_words || strstr(state.failure.text, text), "%s", state.failure.text);
}

/* ---- each operation, by number ---- */

const struct shape small = { .bounds = { 0, 400, 800, 1200 }, .piece = 100, .salt = 1 };

void act_operation(struct actor *me)
{
	switch (*(const int *)me->arg) {
	case EXCHANGE:
		me->status = do_exchange(me, &small);
		break;
	case GATHER:
		me->status = do_gather(me, &small);
		break;
	case BROADCAST:
		me->status = do_broadcast(me, &small, 2);
		break;
	case SUM_SMALL:
		me->status = do_sum_small(me, 400, 1);
		break;
	case BARRIER:
		act_barrier(me);
		break;
	default:
		act_join(me);
	}
}

/* Part 2 does nothing; the others wait for it. */
static void act_but_2(struct actor *me)
{
	if (me->part != 2)
		act_operation(me);
}

void begin_but_2(int *operation)
{
	rig_open(&r, 3);
	if (*operation != JOIN)
		rig_join(&r);
	rig_start(&r, a, thread, act_but_2, 0, operation);
	wait_ms(20);
}

/* A failure is for ever: every call returns it at once. */
void check_unusable(void)
{
	int64_t begin = now_ns();
	struct coll_state state;
	for (uint32_t s = 0; s < r.n; s++) {
		coll_poll(r.member[s], &state);
		for (int i = 0; over_gloo && i < 5000 && state.phase != COLL_BROKEN; i++) {
			wait_ms(1);
			coll_poll(r.member[s], &state);
		}
		enum status st = state.failure.status;
		struct actor me = { .rig = &r, .c = r.member[s], .part = s };
		ck_assert_int_ne(st, ST_OK);
		for (int operation = 0; operation < N_OPERATIONS; operation++) {
			me.arg = &operation;
			act_operation(&me);
			ck_assert_int_eq(me.status, st);
		}
		coll_abort(r.member[s]); /* changes nothing */
		coll_poll(r.member[s], &state);
		ck_assert_int_eq(state.failure.status, st);
	}
	ck_assert_int_lt(now_ns() - begin, SOON_NS);
}

/* Only a new communicator helps, and it does. */
void check_next(void)
{
	int operation = EXCHANGE;
	rig_leave(&r);
	rig_open(&r, r.n);
	rig_join(&r);
	rig_run(&r, a, act_operation, 0, &operation);
	for (uint32_t s = 0; s < r.n; s++) {
		ck_assert_int_eq(a[s].status, ST_OK);
		ck_assert_msg(!a[s].wrong, "%s", a[s].wrong);
	}
}
