/* SPDX-License-Identifier: Apache-2.0 */
/* Passes over sums on a device against the host's, bit for bit. */
#include "twin.h"

#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define WINDOWS 3

static struct rig_config config(int i)
{
	struct rig_config c = rig_small();
	static const enum dtype grads[] = { DTYPE_NONE, DTYPE_F32, DTYPE_BF16, DTYPE_F16 };
	c.ranks = 3;
	c.micro_size = 3;
	c.grad_dtype = grads[i % 4];
	c.frozen = i % 3 == 0 ? 1u << 1 | 1u << 16 : 0;
	return c;
}

/* Gradients, and what a trainer leaves between the tensors. */
static void fill(struct twin *t, uint32_t slot, uint64_t seed, bool special)
{
	for (uint64_t i = 0; i < t->rig.plan->slot_bytes; i++)
		t->mem.slot[slot][i] = (unsigned char)rig_mix(seed + i);
	rig_fill_slot(&t->rig, slot, seed);
	if (special) {
		rig_set_gradient(&t->rig, slot, 0, seed % 1800, INFINITY);
		rig_set_gradient(&t->rig, slot, 3, seed % 3000, NAN);
	}
	twin_give_slot(t, slot);
}

static void draw_present(unsigned char *bits, uint64_t seed)
{
	bits[0] = (unsigned char)rig_mix(seed);
}

/* A window of passes with up to 8 micro-batches; the half alternates, the last one takes the norm. */
static void window(struct twin *t, uint64_t seed, bool special)
{
	unsigned char present[9][1];
	struct arith_source s[KERNEL_MAX_SLOTS];
	uint32_t half = 0;
	for (uint32_t slot = 0; slot < 9; slot++) {
		fill(t, slot, seed * 100 + slot, special && slot == 4);
		draw_present(present[slot], seed * 10 + slot);
	}
	for (int pass = 0; pass < 4; pass++) {
		const uint32_t n = pass == 3 ? KERNEL_MAX_SLOTS : (uint32_t)(rig_mix(seed + (uint64_t)pass) % 5);
		for (uint32_t i = 0; i < n; i++) {
			const uint32_t slot = (uint32_t)(rig_mix(seed * 7 + i + (uint64_t)pass * 9) % 9);
			s[i] = (struct arith_source){ slot, 0.1 + (double)slot / 3, i % 2 ? present[slot] : NULL };
		}
		twin_add(t, 1 - half, half, pass == 0, s, n, pass > 1);
		half = 1 - half;
		twin_same(t, SEG_ACCUM0 + half, special);
	}
	for (uint32_t slot = 0; slot < 9; slot++) /* gaps that a pass has zeroed, on both */
		twin_same_slot(t, slot);
	twin_inspect(t, half);
	OK(t->host->ops->scale(t->host, 1 - half, half, 0.37, seed % 2 ? 0 : 0.2));
	OK(t->cuda->ops->scale(t->cuda, 1 - half, half, 0.37, seed % 2 ? 0 : 0.2));
	twin_same(t, SEG_ACCUM0 + (1 - half), special);
}

START_TEST(windows_have_the_bits_of_the_host)
{
	const struct rig_config c = config(_i);
	struct twin t;
	twin_environment((uint64_t)_i);
	twin_open(&t, &c);
	for (uint64_t w = 0; w < WINDOWS; w++)
		window(&t, (uint64_t)_i * 10 + w, w == 1);
	twin_close(&t);
}
END_TEST

START_TEST(counts_are_of_one_pass)
{
	const struct rig_config c = config(1);
	const struct arith_source s = { 0, 1, NULL };
	struct twin t;
	twin_environment(1);
	twin_open(&t, &c);
	fill(&t, 0, 5, true);
	twin_add(&t, 0, 0, true, &s, 1, true);
	twin_add(&t, 1, 0, false, &s, 1, true); /* and again: not added to the last ones */
	ck_assert_uint_gt(t.norm.nonfinite, 0);
	twin_close(&t);
}
END_TEST

START_TEST(a_slot_is_zeroed)
{
	const struct rig_config c = config(0);
	struct twin t;
	twin_environment(2);
	twin_open(&t, &c);
	fill(&t, 3, 5, false);
	OK(t.host->ops->zero_slot(t.host, 3));
	OK(t.cuda->ops->zero_slot(t.cuda, 3));
	twin_same_slot(&t, 3);
	ck_assert_uint_eq(t.mem.slot[3][100], 0);
	twin_close(&t);
}
END_TEST

/* In pieces that begin and end anywhere, larger than what passes through at a time. */
START_TEST(bytes_go_there_and_back)
{
	struct rig_config c = rig_large();
	struct twin t;
	twin_environment(0);
	c.tensor[0].shape[0] = 300001;
	twin_open(&t, &c);
	unsigned char *host = rig_data(&t.rig, SEG_PARAMS, 0), one;
	for (uint64_t i = 0; i < t.rig.plan->param_bytes; i++)
		host[i] = (unsigned char)rig_mix(i);
	ck_assert_uint_gt(t.rig.plan->param_bytes, 1u << 20);
	twin_give(&t, SEG_PARAMS);
	twin_same(&t, SEG_PARAMS, true);
	host[77] = 1, host[78] = 2, host[79] = 3;
	OK(t.cuda->ops->write(t.cuda, SEG_PARAMS, 77, 3, host + 77));
	twin_same(&t, SEG_PARAMS, true);
	OK(t.cuda->ops->read(t.cuda, SEG_PARAMS, 78, 1, &one));
	ck_assert_uint_eq(one, 2);
	twin_close(&t);
}
END_TEST

static void *read_all(void *arg)
{
	twin_same(arg, SEG_PARAMS, true);
	return NULL;
}

/* As the thread that writes checkpoints, whose first call to the driver this is. */
START_TEST(another_thread_may_read)
{
	const struct rig_config c = config(0);
	pthread_t reader;
	struct twin t;
	twin_environment(0);
	twin_open(&t, &c);
	memset(rig_data(&t.rig, SEG_PARAMS, 0), 0x3c, t.rig.plan->param_bytes);
	twin_give(&t, SEG_PARAMS);
	ck_assert_int_eq(pthread_create(&reader, NULL, read_all, &t), 0);
	ck_assert_int_eq(pthread_join(reader, NULL), 0);
	twin_close(&t);
}
END_TEST

#define READERS 12 /* more than can read at once */

struct readers {
	struct twin twin;
	pthread_barrier_t begin;
	_Atomic uint32_t next;
	_Atomic unsigned wrong;
};

/* Its own piece of the parameters, which no other thread reads, again and again. */
static void *read_piece(void *arg)
{
	struct readers *r = arg;
	const uint64_t n = r->twin.rig.plan->param_bytes / READERS, at = n * atomic_fetch_add(&r->next, 1);
	const unsigned char *want = (const unsigned char *)rig_data(&r->twin.rig, SEG_PARAMS, 0) + at;
	unsigned char *is = malloc(n);
	pthread_barrier_wait(&r->begin);
	for (int i = 0; i < 20; i++) {
		memset(is, 0, n);
		if (r->twin.cuda->ops->read(r->twin.cuda, SEG_PARAMS, at, n, is) || memcmp(is, want, n) != 0)
			atomic_fetch_add(&r->wrong, 1);
	}
	free(is);
	return NULL;
}

/* As the workers do that copy aside what an update is about to change. */
START_TEST(many_threads_may_read)
{
	struct rig_config c = rig_large();
	struct readers r = { .next = 0 };
	pthread_t reader[READERS];
	twin_environment(0);
	c.tensor[0].shape[0] = 60001;
	twin_open(&r.twin, &c);
	unsigned char *host = rig_data(&r.twin.rig, SEG_PARAMS, 0);
	for (uint64_t i = 0; i < r.twin.rig.plan->param_bytes; i++)
		host[i] = (unsigned char)rig_mix(i);
	twin_give(&r.twin, SEG_PARAMS);
	pthread_barrier_init(&r.begin, NULL, READERS);
	for (int i = 0; i < READERS; i++)
		ck_assert_int_eq(pthread_create(&reader[i], NULL, read_piece, &r), 0);
	for (int i = 0; i < READERS; i++)
		pthread_join(reader[i], NULL);
	ck_assert_uint_eq(r.wrong, 0);
	pthread_barrier_destroy(&r.begin);
	twin_close(&r.twin);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("cuda_pass");
	TCase *t = tcase_create("pass");
	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, windows_have_the_bits_of_the_host, 0, 8);
	tcase_add_test(t, counts_are_of_one_pass);
	tcase_add_test(t, a_slot_is_zeroed);
	tcase_add_test(t, bytes_go_there_and_back);
	tcase_add_test(t, another_thread_may_read);
	tcase_add_test(t, many_threads_may_read);
	suite_add_tcase(s, t);
	return suite_run(s);
}
