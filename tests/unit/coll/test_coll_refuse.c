/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives with members that are silent, slow, of another life, or call something wrong. */
#include "broken.h"

#include "support/suite.h"

#include <check.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

static bool has_suspect(const struct coll_failure *f, uint32_t part)
{
	for (uint32_t i = 0; i < f->n_suspects; i++)
		if (f->suspect[i] == part)
			return true;
	return false;
}

/* ---- stalls ---- */

START_TEST(silence_is_named)
{
	r.stall_ns = 400 * MS;
	begin_but_2(&_i);
	rig_wait(&r, thread);
	unsigned stalled = 0;
	for (uint32_t s = 0; s < 2; s++) {
		struct coll_state state;
		ck_assert_int_ge(a[s].took_ns, 300 * MS);
		ck_assert_int_lt(a[s].took_ns, SOON_NS);
		stalled += a[s].status == ST_STALLED;
		coll_poll(r.member[s], &state);
		if (over_gloo) { /* who hears of it names part 2, too */
			ck_assert(has_suspect(&state.failure, 2) && !has_suspect(&state.failure, s));
			ck_assert_int_eq(state.failure.status, ST_STALLED);
			continue;
		}
		if (a[s].status != ST_STALLED) {
			check_failure(s, ST_UNAVAILABLE, 1 - (int)s, "could not go on");
			continue;
		}
		/* Also the other one, if its thread comes so late on a busy machine. */
		ck_assert(has_suspect(&state.failure, 2) && !has_suspect(&state.failure, s));
		ck_assert_ptr_nonnull(strstr(state.failure.text, " ms for part"));
	}
	ck_assert_uint_ge(stalled, 1);
	r.stall_ns = 0;
	if (over_gloo && _i == JOIN)
		coll_abort(r.member[2]);
	check_unusable();
	check_next();
}
END_TEST

static sem_t hang;

static enum status hang_in_2(void *arg, const struct coll_piece *p)
{
	struct actor *me = arg;
	if (me->part == 2 && p->from == 800)
		sem_wait(&hang);
	return ST_OK;
}

static enum status hang_sum_in_2(void *arg, const struct coll_piece *p, const void *const *source, uint32_t n)
{
	return hang_in_2(arg, p);
}

/* Part 0 has all: in the gather it waits for part 1, too, which waits for part 2. */
static void act_hanging_callback(struct actor *me)
{
	unsigned char *memory = calloc(1, 1200);
	struct coll_exchange x = { memory, small.bounds, 100, 4, hang_sum_in_2, me, NULL };
	struct coll_gather g = {
		.buffer = memory, .bounds = small.bounds, .piece = 100, .produce = hang_in_2, .arg = me
	};
	g.whole = me->part == 0;
	me->status = *(int *)me->arg == EXCHANGE ? coll_exchange(me->c, &x) : coll_gather(me->c, &g);
	free(memory);
}

START_TEST(a_member_that_hangs_holds_nobody)
{
	sem_init(&hang, 0, 0);
	r.first_stall_ns = 800 * MS;
	r.stall_ns = over_gloo ? 800 * MS : 0; /* there part 0 of the gather waits for nobody */
	rig_open(&r, 3);
	rig_join(&r);
	rig_start(&r, a, thread, act_hanging_callback, 0, &_i);
	pthread_join(thread[0], NULL);
	pthread_join(thread[1], NULL);
	ck_assert_int_lt(a[0].took_ns, SOON_NS);
	ck_assert_int_lt(a[1].took_ns, SOON_NS);
	if (!over_gloo) {
		check_failure(0, ST_STALLED, 2, "for part 2"); /* and not part 1, which waits itself */
		check_failure(1, ST_UNAVAILABLE, 0, "part 0 could not go on");
	} else {
		check_failure(1, ST_STALLED, 2, "part");
		if (_i == EXCHANGE)
			check_failure(0, ST_STALLED, 2, "part");
	}
	sem_post(&hang);
	pthread_join(thread[2], NULL);
	/* Over Gloo all that it gathers may be here, and what it sends is on its way. */
	ck_assert(a[2].status == ST_UNAVAILABLE || (over_gloo && _i == GATHER && a[2].status == ST_OK));
}
END_TEST

static enum status slow_sum(void *arg, const struct coll_piece *p, const void *const *source, uint32_t n)
{
	wait_ms(80);
	return ST_OK;
}

static enum status slow_produce(void *arg, const struct coll_piece *p)
{
	return slow_sum(arg, p, NULL, 0);
}

/* Part 0 alone has a share: the others have nothing to do but to wait for it. */
static void act_slow(struct actor *me)
{
	static const uint64_t bounds[] = { 0, 1000, 1000, 1000 };
	unsigned char memory[1000] = { 0 };
	struct coll_exchange x = { memory, bounds, 100, 4, slow_sum, me, NULL };
	struct coll_gather g = { .buffer = memory, .bounds = bounds, .piece = 100, .produce = slow_produce, .arg = me };
	me->status = *(int *)me->arg == EXCHANGE ? coll_exchange(me->c, &x) : coll_gather(me->c, &g);
}

START_TEST(slow_is_not_silent)
{
	r.stall_ns = 600 * MS; /* less than the ten pieces take */
	rig_open(&r, 3);
	rig_join(&r);
	rig_run(&r, a, act_slow, 0, &_i);
	ck_assert_int_gt(a[0].took_ns, 600 * MS);
	for (uint32_t s = 0; s < 3; s++) {
		ck_assert_int_eq(a[s].status, ST_OK);
		ck_assert(over_gloo || a[s].took_ns > 600 * MS); /* there they have sent before it is summed */
	}
}
END_TEST

/* Parts 1 and 2 come in time, one after the other; parts 3 and 4 when part 0 has given up. */
static void act_trickle(struct actor *me)
{
	struct coll_state first = { 0 };
	wait_ms(me->part < 3 ? 150 * me->part : 0);
	for (; me->part >= 3 && first.phase != COLL_BROKEN; wait_ms(1))
		coll_poll(me->rig->member[0], &first);
	act_join(me);
}

START_TEST(a_join_has_a_limit_of_its_own)
{
	r.first_join_ns = 400 * MS;
	r.join_ns = over_gloo ? 1500 * MS : 0;
	rig_open(&r, 5);
	rig_run(&r, a, act_trickle, 0, NULL);
	struct coll_state state;
	coll_poll(r.member[0], &state);
	ck_assert_int_eq(state.failure.status, ST_STALLED);
	ck_assert_uint_ge(state.failure.n_suspects, 2);
	ck_assert(has_suspect(&state.failure, 3) && has_suspect(&state.failure, 4) && !has_suspect(&state.failure, 0));
	for (uint32_t i = 1; i < state.failure.n_suspects; i++)
		ck_assert_uint_lt(state.failure.suspect[i - 1], state.failure.suspect[i]);
	ck_assert_int_ge(a[0].took_ns, 350 * MS);
	if (!over_gloo) /* there parts 3 and 4 find nobody */
		check_failure(4, ST_UNAVAILABLE, 0, "part 0 could not go on");
	else
		ck_assert(a[4].status == ST_UNAVAILABLE || a[4].status == ST_STALLED);
}
END_TEST

/* ---- lives ---- */

static enum status open_as(uint32_t part, uint32_t n, uint64_t life, struct coll **out, struct coll_failure *why)
{
	struct coll_config config = {
		.id = r.id, .part = part, .n_parts = n, .life = life, .stall_ns = 60000 * MS, .join_ns = 60000 * MS
	};
	return coll_open(r.net, &config, out, why);
}

START_TEST(second_life_is_refused)
{
	struct coll_failure why;
	struct coll *c = NULL;
	rig_open(&r, 2);
	for (int round = 0; round < 3; round++) { /* opened, joined, left */
		ck_assert_int_eq(open_as(1, 2, r.life[1] + 1, &c, &why), ST_ALREADY_EXISTS);
		ck_assert_uint_eq(why.n_suspects, 1);
		ck_assert_uint_eq(why.suspect[0], 1);
		ck_assert_ptr_nonnull(strstr(why.text, "another life"));
		ck_assert_int_eq(open_as(1, 2, r.life[1], &c, &why), ST_ALREADY_EXISTS);
		ck_assert_int_eq(open_as(1, 2, r.life[1], &c, NULL), ST_ALREADY_EXISTS);
		ck_assert_ptr_null(c);
		if (round == 0)
			rig_join(&r);
		if (round == 1) {
			coll_leave(r.member[1]);
			r.member[1] = NULL;
		}
	}
	r.life[1]++;
	check_next();
}
END_TEST

START_TEST(refused_lives_do_not_disturb)
{
	int operation = EXCHANGE;
	struct coll *c;
	rig_open(&r, 3);
	rig_join(&r);
	ck_assert_int_eq(open_as(0, 3, 99, &c, NULL), ST_ALREADY_EXISTS);
	rig_run(&r, a, act_operation, 0, &operation);
	for (uint32_t s = 0; s < 3; s++)
		ck_assert_int_eq(a[s].status, ST_OK);
}
END_TEST

/* The board was complete with the first life of part 1; its second life comes before the first was seen here. */
START_TEST(lives_are_those_of_the_board)
{
	struct coll_address all[2];
	struct local_blob_words {
		uint64_t word[4];
	} blob;
	struct coll *c;
	rig_open(&r, 2);
	memcpy(all, r.all, sizeof(all));
	rig_leave(&r);
	r.id.k++;
	ck_assert_int_eq(open_as(0, 2, r.life[0], &r.member[0], NULL), ST_OK);
	r.n = 1;
	rig_start(&r, a, thread, act_join, 0, NULL);
	struct coll_state state = { 0 };
	for (; state.phase != COLL_JOINING; wait_ms(1))
		coll_poll(r.member[0], &state);
	ck_assert_int_eq(open_as(1, 2, r.life[1] + 1, &c, NULL), ST_ALREADY_EXISTS); /* never opened, but named */
	ck_assert_int_eq(open_as(1, 2, r.life[1], &r.member[1], NULL), ST_OK);
	/* A board that names another life of part 0 than the one that has joined. */
	memcpy(&blob, all[0].blob, sizeof(blob));
	blob.word[3] = all[0].life = 99;
	all[0].blob = &blob;
	ck_assert_int_eq(coll_join(r.member[1], all), ST_ALREADY_EXISTS);
	check_failure(1, ST_ALREADY_EXISTS, 0, "another life");
	rig_wait(&r, thread);
	r.n = 2;
	check_failure(0, ST_UNAVAILABLE, 1, "could not go on");
}
END_TEST

START_TEST(addresses_are_checked)
{
	struct coll_address all[2];
	char blob[1024] = { 0 };
	rig_open(&r, 2);
	memcpy(all, r.all, sizeof(all));
	switch (_i) {
	case 0:
		all[1].blob = blob;
		break;
	case 1:
		all[1].n_blob--;
		break;
	case 2:
		all[1] = all[0]; /* of another part */
		break;
	case 3:
		all[1].life++; /* not the one in the blob */
		break;
	case 4:
		all[1].life = 0;
		break;
	case 5:
		all[1].n_blob = 0;
		break;
	default:
		all[1].n_blob = COLL_MAX_BLOB + 1;
	}
	enum status want = _i < 4 ? ST_MALFORMED : ST_INVALID_ARGUMENT;
	ck_assert_int_eq(coll_join(r.member[0], all), want);
	check_failure(0, want, want == ST_MALFORMED ? 1 : -1, "address");
	if (!over_gloo) /* not connected yet */
		check_failure(1, ST_UNAVAILABLE, 0, "could not go on");
}
END_TEST

START_TEST(nets_do_not_mix)
{
	struct rig other = { .id = r.id };
	rig_open(&r, 2);
	rig_open(&other, 2);
	ck_assert_int_eq(coll_join(r.member[0], other.all), ST_MALFORMED);
	rig_close(&other);
}
END_TEST

/* ---- wrong calls ---- */

START_TEST(open_checks_its_arguments)
{
	struct coll_failure why = { .status = ST_OK };
	struct coll *c;
	rig_open(&r, 2);
	if (!over_gloo) { /* which knows its own members alone */
		ck_assert_int_eq(open_as(1, 3, r.life[1], &c, &why), ST_INVALID_ARGUMENT);
		ck_assert_ptr_nonnull(strstr(why.text, "number of parts"));
	}
	ck_assert_int_eq(open_as(2, 2, 1, &c, &why), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(why.status, ST_INVALID_ARGUMENT);
	ck_assert_int_eq(open_as(0, 0, 1, &c, &why), ST_INVALID_ARGUMENT);
	r.id.k++;
	ck_assert_int_eq(open_as(0, COLL_MAX_PARTS + 1, 1, &c, &why), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(open_as(0, 2, 0, &c, &why), ST_INVALID_ARGUMENT);
	struct coll_config large = { .id = r.id, .n_parts = 2, .life = 1, .stall_ns = 1, .join_ns = 1 };
	large.small = COLL_MAX_SMALL + 1;
	ck_assert_int_eq(coll_open(r.net, &large, &c, &why), ST_INVALID_ARGUMENT);
	ck_assert(over_gloo || coll_local_count(r.net) == 1);
}
END_TEST

static enum status use_nothing(void *arg, const struct coll_piece *p, const void *const *source, uint32_t n)
{
	return ST_OK;
}

static const struct coll_division wrong_division[] = {
	{ .n_shares = 3, .owns = { 0, 1, 1 } },		    /* twice in one group */
	{ .n_shares = 3, .owns = { 0, 1, 3 } },		    /* there is none */
	{ .n_shares = 0 },				    /* none at all */
	{ .n_shares = 3, .owns = { 0, 1, 2 }, .group = 2 }, /* which is no divisor */
	{ .n_shares = 3, .owns = { 0, 1, 2 }, .group = 1, .across = 2 },
	/* of an exchange */
	{ .n_shares = 2, .owns = { 0, 1, 1 }, .group = 1 }, /* twice in two groups */
	{ .n_shares = 3, .owns = { 0, 1, 2 }, .group = 1 },
	{ .n_shares = 4, .owns = { 0, 1, 2 } }, /* whose last one nobody has */
};

START_TEST(operations_check_their_arguments)
{
	static const uint64_t good[] = { 0, 400, 800, 1200, 1200 }, down[] = { 0, 400, 396, 1200 },
			      odd[] = { 0, 398, 800, 1200 };
	unsigned char memory[1200] = { 0 };
	struct coll_exchange x = { memory, good, 100, 4, use_nothing, NULL, NULL };
	struct coll_gather g = {
		.buffer = memory,
		.bounds = good,
		.piece = 100,
	};
	enum status st = ST_OK;
	rig_open(&r, 3);
	rig_join(&r);
	struct coll *c = r.member[0];
	if (_i < 5) {
		x.bounds = _i == 0 ? down : _i == 1 ? odd : good;
		x.piece = _i == 2 ? 0 : _i == 3 ? COLL_MAX_PIECE + 4 : 100;
		x.element = _i == 4 ? 3 : 4;
		st = coll_exchange(c, &x);
	} else if (_i < 7) {
		g.bounds = _i == 5 ? down : good;
		g.piece = _i == 6 ? 0 : 100;
		st = coll_gather(c, &g);
	} else if (_i == 7) {
		st = coll_broadcast(c, memory, 1, 3);
	} else if (_i < 11) {
		struct coll_sum_small s = { memory, _i == 8 ? RIG_SMALL + 4 : 9, _i == 9 ? 4 : 3, use_nothing, NULL };
		st = coll_sum_small(c, &s);
	} else if (_i == 11) {
		st = coll_join(c, r.all); /* a second time */
	} else if (_i < 20) {
		g.division = &wrong_division[_i - 12];
		x.division = &wrong_division[_i - 12];
		st = _i < 17 ? coll_gather(c, &g) : coll_exchange(c, &x);
	} else {
		rig_leave(&r);
		rig_open(&r, 3);
		st = coll_barrier(r.member[0]); /* not joined */
	}
	ck_assert_int_eq(st, ST_INVALID_ARGUMENT);
	check_failure(0, ST_INVALID_ARGUMENT, -1, "");
	if (!over_gloo || _i < 20)
		check_failure(1, ST_UNAVAILABLE, 0, "part 0 could not go on");
}
END_TEST

/* Both know the same shares, and part 1 does not know of groups. */
static enum status gather_divided(struct actor *me)
{
	static const uint64_t bounds[] = { 0, 400, 800 };
	const struct coll_division d = { .n_shares = 2, .owns = { 0, 1 }, .group = me->part ? 0 : 1 };
	unsigned char memory[800] = { 0 };
	const struct coll_gather g = { .buffer = memory, .bounds = bounds, .piece = 100, .division = &d };
	return coll_gather(me->c, &g);
}

/* Part 1 calls something else than part 0. */
static void act_different(struct actor *me)
{
	int what = *(int *)me->arg, operation = EXCHANGE;
	struct shape shape = small;
	if (me->part == 1 && what == 0)
		shape.piece = 200;
	if (me->part == 1 && what == 1)
		shape.bounds[1] += 4;
	if (me->part == 1 && what == 2)
		operation = GATHER;
	if (what == 5) {
		me->status = gather_divided(me);
		return;
	}
	if (what == 3)
		me->status = do_broadcast(me, &shape, me->part);
	else if (what == 4)
		me->status = do_sum_small(me, me->part ? 400 : 404, 1);
	else
		me->status = operation == EXCHANGE ? do_exchange(me, &shape) : do_gather(me, &shape);
}

START_TEST(all_call_the_same)
{
	rig_open(&r, 2);
	rig_join(&r);
	rig_run(&r, a, act_different, 0, &_i);
	uint32_t second = a[1].status == ST_INVALID_ARGUMENT; /* it finds the difference */
	ck_assert_int_eq(a[second].status, ST_INVALID_ARGUMENT);
	check_failure(second, ST_INVALID_ARGUMENT, 1 - (int)second, "differs");
	if (!over_gloo) /* both find it there */
		check_failure(1 - second, ST_UNAVAILABLE, (int)second, "could not go on");
}
END_TEST

int main(void)
{
	Suite *s = suite_create(over_gloo ? "coll_refuse over Gloo" : "coll_refuse");
	TCase *t = tcase_create("coll_refuse");
	tcase_add_checked_fixture(t, broken_setup, broken_teardown);
	tcase_add_loop_test(t, silence_is_named, 0, N_OPERATIONS);
	tcase_add_loop_test(t, a_member_that_hangs_holds_nobody, EXCHANGE, GATHER + 1);
	tcase_add_loop_test(t, slow_is_not_silent, EXCHANGE, GATHER + 1);
	tcase_add_test(t, a_join_has_a_limit_of_its_own);
	tcase_add_test(t, second_life_is_refused);
	tcase_add_test(t, refused_lives_do_not_disturb);
	if (!over_gloo)
		tcase_add_test(t, lives_are_those_of_the_board);
	tcase_add_loop_test(t, addresses_are_checked, 0, 7);
	tcase_add_test(t, nets_do_not_mix);
	tcase_add_test(t, open_checks_its_arguments);
	tcase_add_loop_test(t, operations_check_their_arguments, 0, 21);
	tcase_add_loop_test(t, all_call_the_same, 0, 6);
	suite_add_tcase(s, t);
	return suite_run(s);
}
