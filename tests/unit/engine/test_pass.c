/* SPDX-License-Identifier: Apache-2.0 */
/* Plan, workers and passes; main of the parts' test program. */
#include "engine/pass.h"
#include "rig.h"
#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

Suite *segment_suite(void);
Suite *control_suite(void);
Suite *accum_suite(void);
Suite *judge_suite(void);
Suite *judge_borders_suite(void);
Suite *refusal_suite(void);
Suite *apply_suite(void);
Suite *go_suite(void);

static struct rig rig;
static struct workers *workers;
static struct gaps *gaps;
static struct pass *pass;

static void open_pass(struct rig_config c)
{
	rig_open(&rig, &c);
	ck_assert_int_eq(workers_new(&workers, c.threads), ST_OK);
	ck_assert_int_eq(gaps_new(&gaps, rig.plan), ST_OK);
	ck_assert_int_eq(pass_new(&pass, rig.plan, gaps, kernels_get(NULL), workers), ST_OK);
}

static void close_pass(void)
{
	pass_free(pass);
	gaps_free(gaps);
	workers_free(workers);
	rig_close(&rig);
}

static struct pass_source source(uint32_t slot, double coefficient)
{
	return (struct pass_source){ rig_data(&rig, SEG_SLOT, slot), coefficient, NULL };
}

static void *half(uint32_t x)
{
	return rig_data(&rig, SEG_ACCUM0 + x, 0);
}

static void inspect(uint32_t x, struct arith_norm *out)
{
	const struct sum_view sum = sum_view_of_half(rig.plan, kernels_get(NULL), half(x));
	pass_inspect(pass, &sum, out);
}

static size_t sum_bytes(void)
{
	return rig_bytes(&rig, SEG_ACCUM0, 0);
}

START_TEST(segments_of_a_plan_come_in_a_fixed_order)
{
	struct plan_segment s[16];
	struct rig_config c = rig_small();
	c.optim = (struct optim_config){ .type = OPTIM_ADAMW, .lr = 1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8 };
	rig_open(&rig, &c);
	static const uint32_t roles[] = { SEG_CONTROL, SEG_STATUS, SEG_ACCUM0, SEG_ACCUM1, SEG_PARAMS, SEG_MASTER,
					  SEG_STATE0,  SEG_STATE1, SEG_SLOT,   SEG_SLOT,   SEG_SLOT,   SEG_SLOT };
	ck_assert_int_eq(plan_segments(rig.plan, s, 16), 12);
	for (int i = 0; i < 12; i++)
		ck_assert_uint_eq(s[i].role, roles[i]);
	ck_assert_uint_eq(s[11].index, 3);
	ck_assert_uint_eq(s[2].bytes, rig.plan->n_elements * 4);
	ck_assert_uint_eq(s[11].bytes, rig.plan->slot_bytes);
	ck_assert_int_eq(8, PLAN_BESIDE_SLOTS);
	rig.plan->device = PLAN_CUDA;
	rig.plan->slots_on_host = 1;
	ck_assert_int_eq(plan_segments(rig.plan, s, 16), 12 + PLAN_ON_DEVICE);
	rig.plan->device = PLAN_HOST;
	rig.plan->slots_on_host = 0;
	rig.plan->master = 0;
	rig.plan->optim = (struct optim_config){ .type = OPTIM_SGD, .lr = 1 };
	ck_assert_int_eq(plan_segments(rig.plan, s, 2), 9);
	rig.plan->optim.momentum = 0.9;
	ck_assert_int_eq(plan_segments(rig.plan, s, 16), 10);
	ck_assert_uint_eq(s[5].role, SEG_STATE0);
	rig_close(&rig);
}
END_TEST

START_TEST(a_plan_that_reaches_outside_is_refused)
{
	char why[200];
	struct rig_config c = rig_small();
	rig_open(&rig, &c);
	struct plan *p = rig.plan, *good = malloc(p->bytes);
	memcpy(good, p, p->bytes);
	struct plan_range *range = (struct plan_range *)((char *)p + p->ranges_offset);
	struct plan_tensor *tensor = (struct plan_tensor *)((char *)p + p->tensors_offset);
#define BAD(change)                                                                                                    \
	do {                                                                                                           \
		change;                                                                                                \
		ck_assert_int_eq(plan_check(p, good->bytes, why, sizeof(why)), ST_INVALID_ARGUMENT);                   \
		memcpy(p, good, good->bytes);                                                                          \
		ck_assert_int_eq(plan_check(p, good->bytes, why, sizeof(why)), ST_OK);                                 \
	} while (0)
	BAD(p->version++);
	BAD(p->bytes_of_plan--);
	BAD(p->bytes++);
	BAD(p->ranks = 0);
	BAD(p->micro_size = p->max_micro_size + 1);
	BAD(p->ranks = p->max_micro_size = UINT32_MAX);
	BAD(p->n_parts = 0);
	BAD(p->part = p->n_parts);
	BAD(p->n_parts = PLAN_MAX_PARTS + 1);
	BAD(p->threads = 0);
	BAD(p->threads = PLAN_MAX_THREADS + 1);
	BAD(p->slots = 0);
	BAD(p->acc_dtype = DTYPE_BF16);
	BAD(p->optim.type = 9);
	BAD(p->n_elements += KERNEL_BLOCK);
	BAD(p->n_groups = 0);
	BAD(p->n_groups = ARENA_MAX_GROUPS + 1);
	BAD(p->group[0].count -= ARENA_ALIGN);
	BAD(p->group[1].slot_offset = p->slot_bytes - 64);
	BAD(p->group[1].param_offset = UINT64_MAX - 63);
	BAD(p->tensors_offset = p->bytes);
	BAD(p->n_tensors = UINT64_MAX / 8);
	BAD(p->n_tensors = 0);
	BAD(p->ranges_offset = UINT64_MAX - 7);
	BAD(p->n_ranges--);
	BAD(p->n_optim_groups = UINT64_MAX);
	BAD(range[1].count += ARENA_ALIGN);
	BAD(range[0].dtype_group = p->n_groups);
	BAD(range[0].optim_group = 3);
	BAD(tensor[1].start += KERNEL_BLOCK * 4);
	BAD(tensor[1].count = UINT64_MAX);
	BAD(tensor[4].alias = 4);
	BAD(tensor[1].dtype_group = p->n_groups);
	ck_assert_int_eq(plan_check(p, sizeof(*p) - 1, why, sizeof(why)), ST_INVALID_ARGUMENT);
	free(good);
	rig_close(&rig);
}
END_TEST

/* Shares are nearly equal, and their borders are also those of a part that updates alone: no part's block of any kind
 * is cut in two. */
START_TEST(the_shares_of_the_parts_cover_the_arena)
{
	static const uint64_t sizes[] = { KERNEL_BLOCK, PLAN_SHARE_ALIGN, PLAN_SHARE_ALIGN + KERNEL_BLOCK,
					  UINT64_C(1000) * PLAN_SHARE_ALIGN - 3 * KERNEL_BLOCK, UINT64_C(1) << 48 };
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		for (uint32_t parts = 1; parts <= PLAN_MAX_PARTS; parts++) {
			struct plan p = { .n_elements = sizes[i], .n_parts = parts, .n_shards = 1 };
			uint64_t at[PLAN_MAX_PARTS + 1], fair = sizes[i] / parts;
			plan_shares(&p, at);
			ck_assert(at[0] == 0 && at[parts] == sizes[i]);
			for (uint32_t s = 0; s < parts; s++) {
				uint64_t n = at[s + 1] - at[s];
				ck_assert(at[s] <= at[s + 1] && at[s] % PLAN_SHARE_ALIGN == 0);
				ck_assert(n <= fair + PLAN_SHARE_ALIGN && n + PLAN_SHARE_ALIGN >= fair);
			}
		}
}
END_TEST

struct tally {
	_Atomic uint32_t done[5000];
	_Atomic uint32_t inside[8];
};

static void count_item(void *arg, uint32_t item, uint32_t worker)
{
	struct tally *t = arg;
	if (atomic_fetch_add(&t->inside[worker], 1) != 0)
		abort();
	atomic_fetch_add(&t->done[item], 1);
	atomic_fetch_sub(&t->inside[worker], 1);
}

/* Each piece runs every item once; between pieces the threads may or may not have fallen asleep. */
START_TEST(workers_do_every_item_once)
{
	uint32_t threads = (uint32_t)_i;
	static struct tally t;
	struct workers *w;
	volatile uint64_t busy = 0;
	ck_assert_int_eq(workers_new(&w, threads), ST_OK);
	for (uint32_t round = 1; round <= 300; round++) {
		uint32_t n = (uint32_t)(rig_mix(round) % 5000);
		memset(&t, 0, sizeof(t));
		workers_run(w, count_item, &t, n, round % 7 == 0);
		uint32_t wrong = 0;
		for (uint32_t i = 0; i < 5000; i++)
			wrong += t.done[i] != (i < n);
		ck_assert_uint_eq(wrong, 0);
		for (uint64_t i = rig_mix(round) % 100000; i; i--)
			busy = busy + 1;
	}
	workers_free(w);
	workers_free(NULL);
}
END_TEST

static void halve(void *arg, uint32_t item, uint32_t worker)
{
	volatile float tiny = 1e-38f;
	((float *)arg)[item] = tiny / 100;
}

START_TEST(all_workers_flush_subnormals)
{
	struct workers *w;
	float out[64];
	ck_assert_int_eq(workers_new(&w, 3), ST_OK);
	memset(out, 1, sizeof(out));
	workers_run(w, halve, out, 64, false);
	for (int i = 0; i < 64; i++)
		ck_assert(out[i] == 0 && !signbit(out[i]));
	workers_free(w);
}
END_TEST

static const enum dtype grad_dtypes[] = { DTYPE_NONE, DTYPE_F32, DTYPE_BF16, DTYPE_F16 };

/* k sources in one pass are the bits of k passes, for every gradient and accumulator dtype. */
START_TEST(one_pass_of_many_is_many_passes_of_one)
{
	struct rig_config c = rig_large();
	c.grad_dtype = grad_dtypes[_i % 4];
	c.acc_dtype = _i < 4 ? DTYPE_F32 : DTYPE_F64;
	open_pass(c);
	struct pass_source s[4];
	struct arith_norm together, apart, looked;
	for (uint32_t i = 0; i < 4; i++) {
		rig_fill_slot(&rig, i, i + 1);
		s[i] = source(i, 0.3 + i);
	}
	pass_add(pass, half(0), NULL, true, s, 4, NULL, &together);
	void *want = malloc(sum_bytes());
	memcpy(want, half(0), sum_bytes());
	for (uint32_t i = 0; i < 4; i++)
		pass_add(pass, half(i & 1), half(1 - (i & 1)), i == 0, &s[i], 1, NULL, &apart);
	ck_assert_mem_eq(want, half(1), sum_bytes());
	ck_assert_mem_eq(&together, &apart, sizeof(apart));
	inspect(1, &looked);
	ck_assert_mem_eq(&together, &looked, sizeof(looked));
	ck_assert_uint_eq(looked.nonfinite, 0);
	ck_assert(looked.sumsq > 0);
	free(want);
	close_pass();
}
END_TEST

START_TEST(bits_do_not_depend_on_threads)
{
	struct arith_norm norm[2];
	void *bits[2];
	for (int i = 0; i < 2; i++) {
		struct rig_config c = rig_large();
		c.threads = i ? 3 : 1;
		open_pass(c);
		rig_fill_slot(&rig, 0, 9);
		struct pass_source s = source(0, 1.25);
		pass_add(pass, half(0), NULL, true, &s, 1, NULL, &norm[i]);
		bits[i] = malloc(sum_bytes());
		memcpy(bits[i], half(0), sum_bytes());
		if (i)
			ck_assert_mem_eq(bits[0], bits[1], sum_bytes());
		close_pass();
	}
	ck_assert_mem_eq(&norm[0], &norm[1], sizeof(norm[0]));
	free(bits[0]);
	free(bits[1]);
}
END_TEST

/* Random presence: an absent tensor adds nothing; norm and digest are those of the sum. */
START_TEST(absent_tensors_add_nothing)
{
	struct rig_config c = _i % 2 ? rig_small() : rig_large();
	open_pass(c);
	unsigned char present[4];
	struct pass_source s[4];
	struct arith_norm fused, looked;
	for (uint32_t k = 0; k < 4; k++) {
		present[k] = (unsigned char)(rig_mix((uint64_t)_i * 8 + k) & ((1u << c.n_tensors) - 1));
		rig_fill_slot_exact(&rig, k, k + (uint64_t)_i * 10);
		s[k] = source(k, k + 1);
		s[k].present = k == 3 ? NULL : &present[k];
	}
	pass_add(pass, half(1), NULL, true, s, 4, NULL, &fused);
	uint64_t wrong = 0;
	for (int t = 0; t < c.n_tensors; t++)
		for (uint64_t i = 0; i < rig.arena.tensor[t].count; i++) {
			double want = 0;
			for (uint32_t k = 0; k < 4; k++) {
				/* "head" (4) is an alias of "embed" (0) in the small set: either stands for both */
				unsigned bits = s[k].present ? present[k] : 0xff;
				bool here = bits >> t & 1;
				if (_i % 2 && (t == 0 || t == 4))
					here = bits & 0x11;
				want += here ? (k + 1) * rig_gradient(&rig, k, t, i) : 0;
			}
			wrong += rig_sum(&rig, 1, t, i) != want;
		}
	ck_assert_uint_eq(wrong, 0);
	inspect(1, &looked);
	ck_assert_mem_eq(&fused, &looked, sizeof(looked));
	close_pass();
}
END_TEST

/* A slot holds what its trainer wrote anywhere in it; what is in no tensor is in neither sum, norm nor count. */
START_TEST(bytes_between_tensors_add_nothing)
{
	struct rig_config c = _i < 4 ? rig_small() : rig_large();
	c.grad_dtype = grad_dtypes[_i % 4];
	open_pass(c);
	struct arith_norm norm[2];
	uint64_t nonfinite[2] = { 1, 1 };
	for (uint32_t i = 0; i < 2; i++) {
		memset(rig_data(&rig, SEG_SLOT, i), i ? 0xff : 0, rig.plan->slot_bytes); /* NaN in every dtype */
		rig_fill_slot(&rig, i, 7);
		struct pass_source s = source(i, 2);
		pass_add(pass, half(i), NULL, true, &s, 1, &nonfinite[i], &norm[i]);
	}
	ck_assert_mem_eq(half(0), half(1), sum_bytes());
	ck_assert_mem_eq(&norm[0], &norm[1], sizeof(norm[0]));
	ck_assert_uint_eq(nonfinite[1], 0);
	close_pass();
}
END_TEST

START_TEST(a_frozen_tensor_counts_as_zero)
{
	struct rig_config c = rig_small();
	c.frozen = 1u << 3 | 1u << 0;
	open_pass(c);
	uint64_t nonfinite = 1;
	struct arith_norm norm;
	double want = 0;
	uint64_t wrong = 0;
	rig_fill_slot_exact(&rig, 0, 4);
	rig_set_gradient(&rig, 0, 3, 100, INFINITY);
	struct pass_source s = source(0, 1);
	pass_add(pass, half(0), NULL, true, &s, 1, &nonfinite, &norm);
	ck_assert_uint_eq(nonfinite, 0);
	for (int t = 0; t < c.n_tensors; t++)
		for (uint64_t i = 0; rig.arena.tensor[t].alias < 0 && i < rig.arena.tensor[t].count; i++) {
			double v = t == 0 || t == 3 ? 0 : rig_gradient(&rig, 0, t, i);
			wrong += rig_sum(&rig, 0, t, i) != v;
			want += v * v;
		}
	ck_assert_uint_eq(wrong, 0);
	ck_assert_double_eq(norm.sumsq, want);
	close_pass();
}
END_TEST

START_TEST(non_finite_values_are_counted_per_source)
{
	open_pass(rig_large());
	uint64_t nonfinite[2];
	struct arith_norm norm;
	rig_fill_slot(&rig, 0, 1);
	rig_fill_slot(&rig, 1, 2);
	rig_set_gradient(&rig, 1, 0, 149999, NAN);
	rig_set_gradient(&rig, 1, 0, 3, -INFINITY);
	rig_set_gradient(&rig, 1, 1, 70000, INFINITY);
	struct pass_source s[2] = { source(0, 1), source(1, 1) };
	pass_add(pass, half(0), NULL, true, s, 2, nonfinite, &norm);
	ck_assert_uint_eq(nonfinite[0], 0);
	ck_assert_uint_eq(nonfinite[1], 3);
	ck_assert_uint_eq(norm.nonfinite, 3);
	close_pass();
}
END_TEST

START_TEST(scale_and_zero_cover_everything)
{
	open_pass(rig_large());
	rig_fill_slot_exact(&rig, 0, 1);
	struct pass_source s = source(0, 1);
	pass_add(pass, half(0), NULL, true, &s, 1, NULL, NULL);
	pass_scale(pass, half(1), half(0), 0.5, 3);
	uint64_t wrong = 0;
	for (int t = 0; t < rig.config.n_tensors; t++)
		for (uint64_t i = 0; i < rig.arena.tensor[t].count; i++) {
			double v = 0.5 * rig_gradient(&rig, 0, t, i);
			wrong += rig_sum(&rig, 1, t, i) != (v < -3 ? -3 : v > 3 ? 3 : v);
		}
	unsigned char *slot = rig_data(&rig, SEG_SLOT, 0);
	pass_zero(pass, slot);
	for (size_t i = 0; i < rig.plan->slot_bytes; i++)
		wrong += slot[i] != 0;
	ck_assert_uint_eq(wrong, 0);
	close_pass();
}
END_TEST

static Suite *pass_suite(void)
{
	Suite *s = suite_create("pass");
	TCase *t = tcase_create("pass");
	tcase_set_timeout(t, 60);
	tcase_add_test(t, segments_of_a_plan_come_in_a_fixed_order);
	tcase_add_test(t, a_plan_that_reaches_outside_is_refused);
	tcase_add_test(t, the_shares_of_the_parts_cover_the_arena);
	tcase_add_loop_test(t, workers_do_every_item_once, 1, 5);
	tcase_add_test(t, all_workers_flush_subnormals);
	tcase_add_loop_test(t, one_pass_of_many_is_many_passes_of_one, 0, 8);
	tcase_add_test(t, bits_do_not_depend_on_threads);
	tcase_add_loop_test(t, absent_tensors_add_nothing, 0, 12);
	tcase_add_loop_test(t, bytes_between_tensors_add_nothing, 0, 8);
	tcase_add_test(t, a_frozen_tensor_counts_as_zero);
	tcase_add_test(t, non_finite_values_are_counted_per_source);
	tcase_add_test(t, scale_and_zero_cover_everything);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return suite_run(segment_suite(), control_suite(), accum_suite(), judge_suite(), judge_borders_suite(),
			 refusal_suite(), go_suite(), apply_suite(), pass_suite());
}
