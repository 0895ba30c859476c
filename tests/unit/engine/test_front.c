/* SPDX-License-Identifier: Apache-2.0 */
/* The front of an update: who waits for what is below it, and shares that are given while they are updated. */
#include "../coll/rig.h"
#include "engine/share_params.h"
#include "engine/sum_parts.h"
#include "support/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHORT_US 20000

static const uint64_t bounds[] = { 100, 200, 200, 300 };

/* ---- alone ---- */

struct waiter {
	struct front *front;
	uint64_t element; /* 0: the end */
	_Atomic bool back;
	struct arith_share share;
	pthread_t thread;
};

static void *wait_for(void *arg)
{
	struct waiter *w = arg;
	if (w->element)
		front_wait(w->front, w->element);
	else
		w->share = front_wait_end(w->front);
	w->back = true;
	return NULL;
}

static void start_waiter(struct waiter *w)
{
	ck_assert_int_eq(pthread_create(&w->thread, NULL, wait_for, w), 0);
	usleep(SHORT_US);
}

static struct front *three_runs(void)
{
	struct front *f;
	ck_assert_int_eq(front_new(&f, 3, bounds), ST_OK);
	return f;
}

/* Moves the front; whether one who waits for this element is back then. */
static bool is_back_after(struct waiter *w, uint32_t run, uint64_t element)
{
	front_reach(w->front, run, element);
	usleep(SHORT_US);
	return w->back;
}

START_TEST(what_is_done_behind_the_front_does_not_count)
{
	struct waiter w = { .front = three_runs(), .element = 250 };
	front_wait(w.front, 100); /* nothing */
	start_waiter(&w);
	ck_assert(!w.back);
	ck_assert(!is_back_after(&w, 2, 260));
	ck_assert(!is_back_after(&w, 0, 150));
	ck_assert(is_back_after(&w, 0, 200));
	pthread_join(w.thread, NULL);
	front_wait(w.front, 260);
	front_begin(w.front); /* of the next window */
	w.back = false;
	start_waiter(&w);
	ck_assert(!w.back);
	ck_assert(!is_back_after(&w, 0, 200));
	ck_assert(!is_back_after(&w, 2, 249));
	ck_assert(is_back_after(&w, 2, 250));
	pthread_join(w.thread, NULL);
	front_free(w.front);
}
END_TEST

START_TEST(the_end_comes_after_the_last_element_and_brings_the_digests)
{
	const struct arith_share share = { 5, 7 };
	struct waiter some = { .front = three_runs(), .element = 300 };
	struct waiter all = { .front = some.front };
	front_reach(some.front, 0, 200);
	front_reach(some.front, 2, 300);
	front_wait(some.front, 300);
	start_waiter(&all);
	ck_assert(!all.back);
	front_end(some.front, &share);
	pthread_join(all.thread, NULL);
	ck_assert_uint_eq(all.share.values, 5);
	ck_assert_uint_eq(all.share.seen, 7);
	front_begin(some.front);
	start_waiter(&some);
	ck_assert(!some.back);
	front_end(some.front, &share); /* looked at as it is: no update has moved the front */
	pthread_join(some.thread, NULL);
	front_free(some.front);
}
END_TEST

/* ---- shares that are given meanwhile ---- */

#define ELEMENTS (UINT64_C(2) << 20) /* twice as many f32, then these of 16 bits */
#define PARTS 2

struct job {
	struct plan plan[PARTS];
	struct memory m[PARTS];
	struct front *front[PARTS];
	uint64_t at[PARTS + 1], bytes[PARTS + 1]; /* shares */
	struct arith_share table[PARTS][PLAN_MAX_PARTS];
	_Atomic bool back[PARTS];
};

static void make(struct job *j)
{
	*j = (struct job){ 0 };
	for (uint32_t s = 0; s < PARTS; s++) {
		struct plan *p = &j->plan[s];
		*p = (struct plan){
			.part = s, .n_parts = PARTS, .n_shards = PARTS, .n_elements = 3 * ELEMENTS, .n_groups = 2
		};
		p->group[0] = (struct arena_group){ .count = 2 * ELEMENTS, .param_dtype = DTYPE_F32 };
		p->group[1] = (struct arena_group){ .start = 2 * ELEMENTS,
						    .count = ELEMENTS,
						    .param_offset = 8 * ELEMENTS,
						    .param_dtype = DTYPE_BF16 };
		p->param_bytes = 10 * ELEMENTS;
		plan_shares(p, j->at);
		share_params_bounds(p, j->bytes);
		j->m[s] = (struct memory){ .plan = p, .params = malloc(p->param_bytes) };
		memset(j->m[s].params, (int)s + 1, p->param_bytes);
		ck_assert_int_eq(front_new(&j->front[s], 1, &j->at[s]), ST_OK);
	}
}

static void act_gather(struct actor *a)
{
	struct job *j = a->arg;
	a->status = share_params_gather(&j->m[a->part], a->c, j->front[a->part], false, j->table[a->part]);
	j->back[a->part] = true;
}

/* What part 0 has of part 1's share: how many pieces from its beginning, and whether what is behind is untouched. */
static uint64_t pieces_here(const struct job *j)
{
	const unsigned char *at = j->m[0].params;
	uint64_t n = 0;
	for (uint64_t i = j->bytes[1]; i < j->bytes[2] && at[i] == 2; i += SUM_PARTS_PIECE)
		n++;
	return n;
}

/* The share of part 1 begins among the f32 and ends with the 16-bit ones: pieces 0.. of 1 MiB, of which the elements
 * are 4 bytes, then 2. */
START_TEST(each_piece_is_given_when_it_is_updated)
{
	struct rig rig = { 0 };
	struct job j;
	struct actor a[PARTS];
	pthread_t thread[PARTS];
	make(&j);
	const uint64_t piece = SUM_PARTS_PIECE / 4;
	const struct arith_share own[] = { { 1, 2 }, { 3, 4 } };
	rig_open(&rig, PARTS);
	rig_join(&rig);
	front_end(j.front[0], &own[0]);
	rig_start(&rig, a, thread, act_gather, 0, &j);
	usleep(SHORT_US);
	ck_assert_uint_eq(pieces_here(&j), 0);
	front_reach(j.front[1], 0, j.at[1] + 3 * piece - 1);
	usleep(SHORT_US);
	ck_assert_uint_eq(pieces_here(&j), 2);
	front_reach(j.front[1], 0, j.at[1] + 3 * piece);
	usleep(SHORT_US);
	ck_assert_uint_eq(pieces_here(&j), 3);
	front_reach(j.front[1], 0,
		    2 * ELEMENTS + 2 * piece - 1); /* all pieces of the f32, and not all of the first of 16 bits */
	usleep(SHORT_US);
	ck_assert_uint_eq(pieces_here(&j), (2 * ELEMENTS - j.at[1]) / piece);
	front_reach(j.front[1], 0, j.at[2]); /* the digests are not known */
	usleep(SHORT_US);
	ck_assert_uint_eq(pieces_here(&j), coll_n_pieces(j.bytes, 1, SUM_PARTS_PIECE));
	ck_assert_uint_eq(j.table[0][1].values, 0);
	front_end(j.front[1], &own[1]);
	rig_wait(&rig, thread);
	for (uint32_t s = 0; s < PARTS; s++) {
		ck_assert_int_eq(a[s].status, ST_OK);
		ck_assert(!memcmp(j.table[s], own, sizeof(own)));
		ck_assert(!memcmp(j.m[s].params, j.m[0].params, j.plan[0].param_bytes));
		front_free(j.front[s]);
	}
	free(j.m[0].params);
	free(j.m[1].params);
	rig_close(&rig);
}
END_TEST

/* The communicator breaks while a piece is waited for: the gather fails as soon as the update gets on. */
START_TEST(an_abort_ends_the_gather_with_the_next_piece)
{
	struct rig rig = { 0 };
	struct job j;
	struct actor a[PARTS];
	pthread_t thread[PARTS];
	make(&j);
	const struct arith_share own = { 1, 2 };
	rig_open(&rig, PARTS);
	rig_join(&rig);
	front_end(j.front[0], &own);
	rig_start(&rig, a, thread, act_gather, 0, &j);
	usleep(SHORT_US);
	coll_abort(rig.member[1]);
	front_reach(j.front[1], 0, j.at[1] + SUM_PARTS_PIECE / 4);
	for (int i = 0; i < 100 && !j.back[1]; i++)
		usleep(10000);
	const bool in_time = j.back[1];
	front_end(j.front[1], &own);
	rig_wait(&rig, thread);
	ck_assert(in_time);
	ck_assert_int_eq(a[0].status, ST_UNAVAILABLE);
	ck_assert_int_eq(a[1].status, ST_CANCELLED);
	for (uint32_t s = 0; s < PARTS; s++) {
		free(j.m[s].params);
		front_free(j.front[s]);
	}
	rig_close(&rig);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("front");
	TCase *t = tcase_create("front");
	tcase_set_timeout(t, 60);
	tcase_add_test(t, what_is_done_behind_the_front_does_not_count);
	tcase_add_test(t, the_end_comes_after_the_last_element_and_brings_the_digests);
	tcase_add_test(t, each_piece_is_given_when_it_is_updated);
	tcase_add_test(t, an_abort_ends_the_gather_with_the_next_piece);
	suite_add_tcase(s, t);
	return suite_run(s);
}
