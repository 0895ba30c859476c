/* SPDX-License-Identifier: Apache-2.0 */
/* What is particular to collectives over Gloo: devices, keys, digests of what was sent, and memory that nobody touches
 * once a call has returned. */
#include "broken.h"

#include "coll/gloo_impl.h"
#include "support/suite.h"

#include <arpa/inet.h>
#include <check.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- devices ---- */

START_TEST(a_device_needs_one_place)
{
	struct coll_failure why;
	struct coll_gloo_config bad[] = {
		{ 0 },
		{ .interface = "lo", .address = "127.0.0.1" },
		{ .address = "localhost" },
		{ .address = "192.0.2.1" }, /* nobody's */
		{ .interface = "nosuch0" },
		{ .address = "127.0.0.1", .congestion = "a name that is far too long" },
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		ck_assert_ptr_null(coll_gloo_new(&bad[i], &why));
		ck_assert_int_eq(why.status, ST_INVALID_ARGUMENT);
		ck_assert(why.text[0]);
	}
	ck_assert_ptr_null(coll_gloo_new(&bad[0], NULL));
}
END_TEST

START_TEST(interfaces_and_addresses)
{
	static const struct coll_gloo_config good[] = { { .interface = "lo" },
							{ .address = "127.0.0.1", .congestion = "reno" } };
	struct sigaction action;
	int operation = EXCHANGE;
	r.net = coll_gloo_new(&good[_i], NULL);
	ck_assert_ptr_nonnull(r.net);
	r.board = board_new();
	sigaction(SIGPIPE, NULL, &action);
	ck_assert(action.sa_handler == SIG_IGN);
	rig_open(&r, 3);
	rig_join(&r);
	rig_run(&r, a, act_operation, 0, &operation);
	for (uint32_t s = 0; s < 3; s++)
		ck_assert_int_eq(a[s].status, ST_OK);
}
END_TEST

/* ---- elements ---- */

struct adding {
	uint32_t element;
	unsigned char out[4096];
};

static uint64_t word(const void *p, uint32_t bytes)
{
	uint64_t w = 0;
	memcpy(&w, p, bytes);
	return w;
}

static enum status add(void *arg, const struct coll_piece *p, const void *const *source, uint32_t n)
{
	struct adding *t = arg;
	for (size_t at = 0; at < p->n; at += t->element) {
		uint64_t sum = 0;
		for (uint32_t s = 0; s < n; s++)
			sum = sum * 3 + word((const char *)source[s] + at, t->element); /* the order matters */
		memcpy(t->out + p->from + at, &sum, t->element);
	}
	return ST_OK;
}

static void act_elements(struct actor *me)
{
	for (uint32_t element = 2; element <= 8 && me->status == ST_OK; element *= 2) {
		uint64_t bounds[] = { 0, 40 * element, 40 * element, 99 * element };
		struct adding t = { .element = element };
		unsigned char in[4096], all[3][4096];
		for (size_t i = 0; i < sizeof(in); i++) {
			for (uint32_t s = 0; s < 3; s++)
				all[s][i] = (unsigned char)((i + 1) * (s + 3) * 37);
			in[i] = all[me->part][i];
		}
		const void *source[] = { all[0], all[1], all[2] };
		struct coll_exchange x = { in, bounds, 7 * element, element, add, &t, NULL };
		struct adding want = { .element = element };
		me->status = coll_exchange(me->c, &x);
		uint64_t from = bounds[me->part], n = bounds[me->part + 1] - from;
		add(&want, &(struct coll_piece){ .n = 99 * element }, source, 3);
		if (memcmp(t.out + from, want.out + from, n))
			me->wrong = "not the sum";
	}
}

START_TEST(elements_of_every_size)
{
	rig_open(&r, 3);
	rig_join(&r);
	rig_run(&r, a, act_elements, 0, NULL);
	for (uint32_t s = 0; s < 3; s++) {
		ck_assert_int_eq(a[s].status, ST_OK);
		ck_assert_msg(!a[s].wrong, "%s", a[s].wrong);
	}
}
END_TEST

/* ---- large pieces, slow sums ---- */

#define LARGE (24u << 20)

static enum status sum_slowly(void *arg, const struct coll_piece *p, const void *const *source, uint32_t n)
{
	struct actor *me = arg;
	wait_ms(10);
	for (uint32_t s = 0; s < n; s++)
		if (((const unsigned char *)source[s])[p->n - 1] != s + 1)
			me->wrong = "not what part s has sent";
	return ST_OK;
}

/* Part 0 alone has a share: the other returns when all is sent, and takes its memory away. */
static void act_large(struct actor *me)
{
	static const uint64_t bounds[] = { 0, 4 * LARGE, 4 * LARGE };
	unsigned char *in = malloc(bounds[1]);
	memset(in, (int)me->part + 1, bounds[1]);
	struct coll_exchange x = { in, bounds, LARGE, 4, sum_slowly, me, NULL };
	me->status = coll_exchange(me->c, &x);
	memset(in, 0, bounds[1]);
	free(in);
}

START_TEST(memory_is_kept_until_all_is_sent)
{
	r.stall_ns = 3000 * MS;
	rig_open(&r, 2);
	rig_join(&r);
	rig_run(&r, a, act_large, 0, NULL);
	for (uint32_t s = 0; s < 2; s++) {
		ck_assert_msg(!a[s].wrong, "%s", a[s].wrong);
		ck_assert_int_eq(a[s].status, ST_OK);
	}
}
END_TEST

/* ---- who says that it is part 1 ---- */

static struct gloo_blob forged;

/* Part 0 has another key for part 1, or another life, than part 1 itself. */
static void act_forged(struct actor *me)
{
	struct coll_address all[2];
	memcpy(all, me->rig->all, sizeof(all));
	if (me->part == 0) {
		memcpy(&forged, all[1].blob, all[1].n_blob);
		if (*(int *)me->arg == 0)
			forged.key[1] ^= 1;
		else
			forged.life = ++all[1].life;
		all[1].blob = &forged;
	}
	me->status = coll_join(me->c, all);
}

START_TEST(members_prove_who_they_are)
{
	rig_open(&r, 2);
	rig_run(&r, a, act_forged, 0, &_i);
	ck_assert_int_eq(a[0].status, _i == 0 ? ST_MALFORMED : ST_ALREADY_EXISTS);
	check_failure(0, a[0].status, 1, _i == 0 ? "stranger" : "another life");
	struct coll_state state = { 0 };
	for (; state.phase != COLL_BROKEN; wait_ms(1))
		coll_poll(r.member[1], &state);
}
END_TEST

/* ---- digests ---- */

#define N_PIECES 6
#define PIECE 4000u

static sem_t changed;

static enum status change_or_wait(void *arg, const struct coll_piece *p, const void *const *source, uint32_t n)
{
	struct actor *me = arg;
	if (me->part == 0 && p->from == 0)
		sem_wait(&changed); /* it has taken the first pieces, and no more */
	if (me->part == 1 && p->from == (N_PIECES + 1) * PIECE) {
		((unsigned char *)me->arg)[3 * PIECE + 5] ^= 4; /* its digest is made, it is not sent yet */
		sem_post(&changed);
	}
	return ST_OK;
}

static void act_changed(struct actor *me)
{
	static const uint64_t bounds[] = { 0, N_PIECES * PIECE, 2 * N_PIECES * PIECE };
	me->arg = calloc(1, bounds[2]);
	struct coll_exchange x = { me->arg, bounds, PIECE, 4, change_or_wait, me, NULL };
	me->status = coll_exchange(me->c, &x);
	free(me->arg);
}

START_TEST(a_bit_that_changes_on_the_way_is_found)
{
	sem_init(&changed, 0, 0);
	rig_open(&r, 2);
	rig_join(&r);
	rig_run(&r, a, act_changed, 0, NULL);
	ck_assert_int_eq(a[0].status, ST_CHECKSUM);
	check_failure(0, ST_CHECKSUM, 1, "changed on the way");
}
END_TEST

/* Part 1 sends another byte than it has made the digest of: what it sends lies in the member. */
static void act_changed_small(struct actor *me)
{
	struct gloo_member *m = (struct gloo_member *)me->c;
	if (me->part == 1)
		m->secret[0] ^= 1; /* all its digests are wrong */
	me->status = do_sum_small(me, 400, 1);
}

START_TEST(a_small_sum_with_another_digest_is_refused)
{
	rig_open(&r, 2);
	rig_join(&r);
	rig_run(&r, a, act_changed_small, 0, NULL);
	ck_assert_int_eq(a[0].status == ST_CHECKSUM || a[0].status == ST_UNAVAILABLE, 1);
	ck_assert_int_eq(a[1].status == ST_CHECKSUM || a[1].status == ST_UNAVAILABLE, 1);
	ck_assert(a[0].status == ST_CHECKSUM || a[1].status == ST_CHECKSUM);
}
END_TEST

/* ---- what small sums are ---- */

START_TEST(members_of_other_small_sums_do_not_meet)
{
	struct gloo_blob other;
	struct coll_address all[2];
	rig_open(&r, 2);
	memcpy(all, r.all, sizeof(all));
	memcpy(&other, all[1].blob, all[1].n_blob);
	other.small = RIG_SMALL / 2;
	all[1].blob = &other;
	ck_assert_int_eq(coll_join(r.member[0], all), ST_MALFORMED);
	check_failure(0, ST_MALFORMED, 1, "address");
}
END_TEST

/* ---- digests ---- */

/* Members on machines with different vectors, or whose libraries were built otherwise, must agree. */
START_TEST(digests_do_not_depend_on_the_machine)
{
	static struct gloo_member m;
	static unsigned char bytes[100000];
	static const uint64_t key[2][2] = { { 1, 2 }, { 3, 4 } };
	static const size_t sizes[] = { 0, 1, 16, 128, 240, 241, 1024, 4097, sizeof(bytes) };
	uint64_t seed = 1;
	m.base.n_parts = 2;
	gloo_make_secret(&m, key);
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (unsigned char)draw(&seed, 256);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
		ck_assert_uint_eq(gloo_digest(&m, bytes, sizes[i]),
				  XXH3_64bits_withSecret(bytes, sizes[i], m.secret, sizeof(m.secret)));
}
END_TEST

/* ---- memory ---- */

#define BIG (8u << 20)

/* All gather into memory of their own; whoever returns without success owns it again. */
static void act_reuse(struct actor *me)
{
	static const uint64_t bounds[] = { 0, BIG, 2 * BIG, 3 * BIG };
	unsigned char *memory = calloc(1, bounds[3]);
	struct coll_gather g = { .buffer = memory, .bounds = bounds, .piece = 1u << 20 };
	while ((me->status = coll_gather(me->c, &g)) == ST_OK)
		;
	memset(memory, 0xee, bounds[3]);
	wait_ms(30);
	for (uint64_t i = 0; i < bounds[3]; i++)
		if (memory[i] != 0xee)
			me->wrong = "memory was written after the call had returned";
	free(memory);
}

START_TEST(nobody_writes_late)
{
	uint64_t seed = 1;
	for (int i = 0; i < 12; i++) {
		rig_open(&r, 3);
		rig_join(&r);
		rig_start(&r, a, thread, act_reuse, 0, NULL);
		wait_ms(5 + (int64_t)draw(&seed, 30));
		coll_abort(r.member[0]);
		rig_wait(&r, thread);
		for (uint32_t s = 0; s < 3; s++) {
			ck_assert_msg(!a[s].wrong, "part %u: %s", s, a[s].wrong);
			ck_assert_int_eq(a[s].status, s ? ST_UNAVAILABLE : ST_CANCELLED);
		}
		rig_leave(&r);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("coll_gloo_only");
	TCase *t = tcase_create("coll_gloo_only");
	tcase_add_checked_fixture(t, broken_setup, broken_teardown);
	tcase_add_loop_test(t, interfaces_and_addresses, 0, 2);
	tcase_add_test(t, elements_of_every_size);
	tcase_add_test(t, memory_is_kept_until_all_is_sent);
	tcase_add_loop_test(t, members_prove_who_they_are, 0, 2);
	tcase_add_test(t, a_bit_that_changes_on_the_way_is_found);
	tcase_add_test(t, a_small_sum_with_another_digest_is_refused);
	tcase_add_test(t, members_of_other_small_sums_do_not_meet);
	tcase_add_test(t, nobody_writes_late);
	suite_add_tcase(s, t);
	t = tcase_create("devices");
	tcase_add_test(t, a_device_needs_one_place);
	tcase_add_test(t, digests_do_not_depend_on_the_machine);
	suite_add_tcase(s, t);
	return suite_run(s);
}
