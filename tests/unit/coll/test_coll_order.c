/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which small sums over Gloo call the shim, which stands between the members and Gloo here: to each part
 * the receive for the next sum is announced before this sum's message is sent. A part that has all messages may leave
 * at once; an announcement that came behind it would be answered with a reset (gloo_small.c). */
#include "rig.h"

#include "coll/gloo_impl.h"
#include "support/suite.h"

#include <check.h>
#include <string.h>

enum { SUMS = 5 };

enum shim_result __real_shim_send(struct shim_buffer *, uint32_t to, uint64_t slot, uint64_t from, size_t n);
enum shim_result __real_shim_recv(struct shim_buffer *, uint32_t source, uint64_t slot, uint64_t from, size_t n);
enum shim_result __wrap_shim_send(struct shim_buffer *, uint32_t to, uint64_t slot, uint64_t from, size_t n);
enum shim_result __wrap_shim_recv(struct shim_buffer *, uint32_t source, uint64_t slot, uint64_t from, size_t n);

/* What one member has called since it was opened, of small sums and by part. */
struct calls {
	atomic_uint received, sent;
	struct shim_buffer *into; /* of the receive that was announced last */
};

static struct calls calls[COLL_MAX_PARTS][COLL_MAX_PARTS];
static atomic_uint n_late, n_same_place;

/* Of the communication threads; -1: another one, such as those that join. */
static _Thread_local int own = -1;

enum shim_result __wrap_shim_send(struct shim_buffer *b, uint32_t to, uint64_t slot, uint64_t from, size_t n)
{
	if (slot == GLOO_SLOT_SMALL && own >= 0) {
		struct calls *c = &calls[own][to];
		const unsigned sums = atomic_fetch_add(&c->sent, 1) + 1;
		n_late += atomic_load(&c->received) != sums;
	}
	return __real_shim_send(b, to, slot, from, n);
}

enum shim_result __wrap_shim_recv(struct shim_buffer *b, uint32_t source, uint64_t slot, uint64_t from, size_t n)
{
	if (slot == GLOO_SLOT_SMALL && own >= 0) {
		struct calls *c = &calls[own][source];
		n_same_place += c->into == b; /* whose bytes nobody may have read yet */
		c->into = b;
		atomic_fetch_add(&c->received, 1);
	}
	return __real_shim_recv(b, source, slot, from, n);
}

static void act_sums(struct actor *me)
{
	own = (int)me->part;
	for (uint64_t i = 0; i < SUMS && me->status == ST_OK; i++)
		me->status = do_sum_small(me, 4 * i, i);
	own = -1;
}

START_TEST(the_next_receive_is_announced_before_a_message_is_sent)
{
	struct rig r = { 0 };
	struct actor a[4];
	memset(calls, 0, sizeof(calls));
	rig_open(&r, (uint32_t)_i);
	rig_join(&r);
	rig_run(&r, a, act_sums, 0, NULL);
	for (uint32_t s = 0; s < r.n; s++) {
		ck_assert_int_eq(a[s].status, ST_OK);
		ck_assert_msg(!a[s].wrong, "%s", a[s].wrong);
		for (uint32_t to = 0; to < r.n; to++)
			ck_assert_uint_eq(calls[s][to].sent, s == to ? 0 : SUMS);
	}
	ck_assert_uint_eq(n_late, 0);
	ck_assert_uint_eq(n_same_place, 0);
	rig_close(&r);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("coll_order");
	TCase *t = tcase_create("coll_order");
	tcase_add_loop_test(t, the_next_receive_is_announced_before_a_message_is_sent, 2, 5);
	suite_add_tcase(s, t);
	return suite_run(s);
}
