/* SPDX-License-Identifier: Apache-2.0 */
/* The sum over all parts, against a plain loop, bit for bit: each part on a thread of its own, over either kind of
 * communicator. */
#include "../coll/rig.h"
#include "engine/sum_parts.h"
#include "support/suite.h"

#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LARGE                                                                                                          \
	(KERNEL_CACHED_ELEMENTS + UINT64_C(5) * KERNEL_BLOCK) /* stores past the cache, several pieces a share         \
							       */

struct job {
	uint64_t n_elements;
	enum dtype acc;
	uint32_t n_parts;
	uint32_t unfilled; /* bit p: part p has added nothing */
	const struct kernels *kernels;
	unsigned char *half[PLAN_MAX_PARTS][2]; /* 0: its own sum, 1: that of all */
	uint32_t n_shards;			/* 0: 1 */
	struct arith_norm norm[PLAN_MAX_PARTS]; /* as each part has found it; sharded */
};

/* The values repeat after this many, which divides the length of no piece and of no share. */
#define PERIOD 7007

/* Sums of these depend on the order; some are -0, subnormal, or become so. */
static double value_of_part(uint32_t part, uint64_t i, enum dtype acc)
{
	const double least = acc == DTYPE_F32 ? FLT_MIN : DBL_MIN;
	switch (i % 7) {
	case 0:
		return -0.0;
	case 1:
		return least / 4; /* read as 0 */
	case 2:
		return part % 2 ? least * 1.25 : -least; /* a sum of two is subnormal */
	case 3:
		return part == 0 && i % 1001 == 3 ? INFINITY : 1e30 / (double)(i % 97 + 1);
	default:
		return (double)value_of(part, i, 5) * (part % 3 ? 1 : 1e-7);
	}
}

static float flush_f32(float x)
{
	return fabsf(x) < FLT_MIN ? copysignf(0, x) : x;
}

static double flush_f64(double x)
{
	return fabs(x) < DBL_MIN ? copysign(0, x) : x;
}

static void store(unsigned char *at, enum dtype acc, uint64_t i, double value)
{
	if (acc == DTYPE_F32)
		((float *)at)[i] = (float)value;
	else
		((double *)at)[i] = value;
}

/* What the sum must be: written down here as it is defined, not as it is computed. i < PERIOD */
static void define_sum(const struct job *j, uint64_t i, unsigned char *at)
{
	float f = 0;
	double d = 0;
	for (uint32_t p = 0; p < j->n_parts; p++) {
		double v = j->unfilled >> p & 1 ? 0 : value_of_part(p, i, j->acc);
		f = flush_f32(f + flush_f32((float)v));
		d = flush_f64(d + flush_f64(v));
	}
	if (j->acc == DTYPE_F32)
		memcpy(at + i * sizeof(f), &f, sizeof(f));
	else
		memcpy(at + i * sizeof(d), &d, sizeof(d));
}

static void repeat(unsigned char *at, size_t period, size_t bytes)
{
	for (size_t n = period; n < bytes; n += period)
		memcpy(at + n, at, bytes - n < period ? bytes - n : period);
}

static void fill(const struct job *j, uint32_t part)
{
	const size_t size = dtype_size(j->acc);
	for (uint64_t i = 0; i < PERIOD && i < j->n_elements; i++)
		store(j->half[part][0], j->acc, i, value_of_part(part, i, j->acc));
	repeat(j->half[part][0], PERIOD * size, j->n_elements * size);
}

static void allocate(struct job *j)
{
	const size_t bytes = j->n_elements * dtype_size(j->acc);
	for (uint32_t p = 0; p < j->n_parts; p++) {
		for (int h = 0; h < 2; h++) {
			j->half[p][h] = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
			ck_assert_ptr_nonnull(j->half[p][h]);
			memset(j->half[p][h], 0x5a, bytes); /* of an earlier window */
		}
		if (!(j->unfilled >> p & 1))
			fill(j, p);
	}
}

static void act_sum(struct actor *a)
{
	struct job *j = a->arg;
	const struct plan plan = { .part = a->part,
				   .n_parts = j->n_parts,
				   .n_elements = j->n_elements,
				   .acc_dtype = j->acc,
				   .n_shards = j->n_shards ? j->n_shards : 1 };
	struct sum_parts *s;
	a->status = sum_parts_new(&s, &plan, j->kernels);
	if (!a->status)
		a->status = sum_parts_run(s, a->c, j->half[a->part][1], j->half[a->part][0],
					  !(j->unfilled >> a->part & 1), &j->norm[a->part]);
	sum_parts_free(s);
}

/* What one part that has all of the sum would find. */
static struct arith_norm norm_of(const struct job *j, const unsigned char *sum)
{
	const uint64_t n = j->n_elements / KERNEL_BLOCK;
	struct kernel_partials p = { calloc(n, sizeof(double)), calloc(n, sizeof(uint64_t)),
				     calloc(n, sizeof(uint32_t)) };
	j->kernels->inspect(sum, j->acc, j->n_elements, &p);
	struct arith_norm is = { .sumsq = kernel_sum(p.sumsq, n), .digest = kernel_digest_combine(p.digest, n, 0) };
	for (uint64_t b = 0; b < n; b++)
		is.nonfinite += p.nonfinite[b];
	free(p.sumsq);
	free(p.digest);
	free(p.nonfinite);
	return is;
}

static void check_share(const struct job *j, uint32_t part, const unsigned char *want, size_t size)
{
	const struct plan plan = { .part = part,
				   .n_parts = j->n_parts,
				   .n_shards = j->n_shards,
				   .n_elements = j->n_elements,
				   .acc_dtype = j->acc };
	uint64_t from = 0, end = j->n_elements;
	if (!sum_parts_small(&plan))
		plan_own(&plan, &from, &end);
	ck_assert(!memcmp(j->half[part][1] + from * size, want + from * size, (end - from) * size));
	const struct arith_norm norm = norm_of(j, want), *is = &j->norm[part];
	ck_assert(!memcmp(&is->sumsq, &norm.sumsq, sizeof(norm.sumsq)));
	ck_assert_uint_eq(is->digest, norm.digest);
	ck_assert_uint_eq(is->nonfinite, norm.nonfinite);
}

static void check(const struct job *j)
{
	const size_t size = dtype_size(j->acc), bytes = j->n_elements * size;
	unsigned char *want = malloc(bytes > PERIOD * size ? bytes : PERIOD * size);
	ck_assert_ptr_nonnull(want);
	for (uint64_t i = 0; i < PERIOD; i++)
		define_sum(j, i, want);
	repeat(want, PERIOD * size, bytes);
	for (uint32_t p = 0; p < j->n_parts && j->n_shards > 1; p++)
		check_share(j, p, want, size);
	for (uint32_t p = 0; p < j->n_parts && j->n_shards <= 1; p++)
		for (size_t b = 0; memcmp(j->half[p][1], want, bytes) && b < bytes; b++)
			ck_assert_msg(j->half[p][1][b] == want[b], "%u parts: part %u, element %zu", j->n_parts, p,
				      b / size);
	free(want);
}

static void run_sum(struct job *j)
{
	struct rig rig = { 0 };
	struct actor a[PLAN_MAX_PARTS];
	allocate(j);
	rig_open(&rig, j->n_parts);
	rig_join(&rig);
	rig_run(&rig, a, act_sum, 0, j);
	for (uint32_t p = 0; p < j->n_parts; p++)
		ck_assert_int_eq(a[p].status, ST_OK);
	rig_close(&rig);
	check(j);
	for (uint32_t p = 0; p < j->n_parts; p++) {
		free(j->half[p][0]);
		free(j->half[p][1]);
	}
}

START_TEST(a_sum_is_that_of_its_definition_whatever_the_number_of_parts)
{
	static const uint64_t sizes[] = { KERNEL_BLOCK, 3 * PLAN_SHARE_ALIGN + KERNEL_BLOCK, 40 * PLAN_SHARE_ALIGN };
	for (uint32_t parts = 1; parts <= (over_gloo ? 4 : PLAN_MAX_PARTS); parts++)
		for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
			run_sum(&(struct job){ .n_parts = parts,
					       .n_elements = sizes[i],
					       .acc = _i ? DTYPE_F64 : DTYPE_F32,
					       .kernels = kernels_get(NULL) });
}
END_TEST

/* Each table of kernels, a large arena, and parts that have added nothing. */
START_TEST(every_table_of_kernels_gives_the_same_sum)
{
	const struct kernels *const *tables;
	int n = kernels_list(&tables);
	for (int k = 0; k < n; k++) {
		run_sum(&(struct job){
			.n_parts = 3, .n_elements = LARGE, .acc = DTYPE_F32, .unfilled = 2, .kernels = tables[k] });
		run_sum(&(struct job){ .n_parts = over_gloo ? 4 : 13,
				       .n_elements = 20 * PLAN_SHARE_ALIGN,
				       .acc = _i ? DTYPE_F64 : DTYPE_F32,
				       .unfilled = 0x15,
				       .kernels = tables[k] });
	}
}
END_TEST

/* Each part has its share, and the norm of all: the same bits as of a sum that one part has whole. */
START_TEST(shares_have_the_norm_of_the_whole)
{
	static const uint64_t sizes[] = { KERNEL_BLOCK, 3 * PLAN_SHARE_ALIGN + KERNEL_BLOCK, 21 * PLAN_SHARE_ALIGN,
					  LARGE };
	for (uint32_t parts = 2; parts <= (over_gloo ? 4 : PLAN_MAX_PARTS); parts += parts < 4 ? 1 : 5)
		for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
			if (sizes[i] < LARGE || parts == 3)
				run_sum(&(struct job){ .n_parts = parts,
						       .n_elements = sizes[i],
						       .acc = _i ? DTYPE_F64 : DTYPE_F32,
						       .unfilled = 2,
						       .n_shards = parts,
						       .kernels = kernels_get(NULL) });
}
END_TEST

/* Fewer shards than parts: each shard's sum is at all parts that have it. */
START_TEST(groups_have_their_shards_and_the_norm_of_the_whole)
{
	static const struct {
		uint32_t parts, shards;
		uint64_t n;
	} rows[] = { { 4, 2, KERNEL_BLOCK },	      { 4, 2, 3 * PLAN_SHARE_ALIGN + KERNEL_BLOCK },
		     { 4, 2, 21 * PLAN_SHARE_ALIGN }, { 4, 2, LARGE },
		     { 6, 2, 40 * PLAN_SHARE_ALIGN }, { 6, 3, 41 * PLAN_SHARE_ALIGN },
		     { 16, 4, 5 * PLAN_SHARE_ALIGN }, { 16, 2, 40 * PLAN_SHARE_ALIGN } };
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (!over_gloo || rows[i].parts == 4)
			run_sum(&(struct job){ .n_parts = rows[i].parts,
					       .n_elements = rows[i].n,
					       .acc = _i ? DTYPE_F64 : DTYPE_F32,
					       .unfilled = 2,
					       .n_shards = rows[i].shards,
					       .kernels = kernels_get(NULL) });
}
END_TEST

/* ---- which operations ---- */

static struct {
	unsigned exchanges, gathers, small_sums;
} called;

static enum status count_exchange(struct coll *c, const struct coll_exchange *x)
{
	called.exchanges++;
	return ST_OK;
}

static enum status count_gather(struct coll *c, const struct coll_gather *g)
{
	called.gathers++;
	return ST_OK;
}

static enum status count_small_sum(struct coll *c, const struct coll_sum_small *x)
{
	called.small_sums++;
	return ST_OK;
}

/* A sum of that many elements between so many parts. */
static void count_operations(uint32_t n_parts, uint64_t n_elements)
{
	static const struct coll_ops ops = { .exchange = count_exchange,
					     .gather = count_gather,
					     .sum_small = count_small_sum };
	const struct plan plan = {
		.n_parts = n_parts, .n_shards = 1, .n_elements = n_elements, .acc_dtype = DTYPE_F32
	};
	struct coll c = { .ops = &ops, .n_parts = n_parts, .small = sum_parts_small(&plan) };
	struct sum_parts *s;
	float *half = calloc(2 * n_elements, sizeof(*half));
	memset(&called, 0, sizeof(called));
	ck_assert_int_eq(sum_parts_new(&s, &plan, kernels_get(NULL)), ST_OK);
	ck_assert_int_eq(sum_parts_run(s, &c, half, half + n_elements, true, NULL), ST_OK);
	sum_parts_free(s);
	free(half);
}

/* What a step of a tiny job costs its parts on the wire: one operation of one message for each pair. */
START_TEST(a_small_arena_takes_one_operation)
{
	const uint64_t most = SUM_PARTS_SMALL / sizeof(float);
	for (uint32_t parts = 2; parts <= 9; parts++)
		for (int more = 0; more <= 1; more++) {
			count_operations(parts, most / (parts - 1) + more);
			ck_assert_uint_eq(called.small_sums, !more);
			ck_assert_uint_eq(called.exchanges, more);
			ck_assert_uint_eq(called.gathers, more);
		}
}
END_TEST

/* One of the members leaves: the others hear it from the communicator, and nothing hangs. */
static void act_leave_or_sum(struct actor *a)
{
	if (a->part == 1)
		coll_abort(a->c);
	else
		act_sum(a);
}

START_TEST(a_member_that_aborts_ends_the_sum_of_all)
{
	struct job j = { .n_parts = 3, .n_elements = LARGE, .acc = DTYPE_F32, .kernels = kernels_get(NULL) };
	struct rig rig = { 0 };
	struct actor a[PLAN_MAX_PARTS];
	allocate(&j);
	rig_open(&rig, 3);
	rig_join(&rig);
	rig_run(&rig, a, act_leave_or_sum, 0, &j);
	ck_assert_int_eq(a[0].status, ST_UNAVAILABLE);
	ck_assert_int_eq(a[2].status, ST_UNAVAILABLE);
	for (uint64_t i = 0; i < j.n_elements; i += 777) /* its own sum is unchanged */
		ck_assert(((float *)j.half[0][0])[i] == (float)value_of_part(0, i, DTYPE_F32));
	rig_close(&rig);
	for (uint32_t p = 0; p < 3; p++) {
		free(j.half[p][0]);
		free(j.half[p][1]);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("sum_parts");
	TCase *t = tcase_create("sum_parts");
	tcase_add_loop_test(t, a_sum_is_that_of_its_definition_whatever_the_number_of_parts, 0, 2);
	tcase_add_loop_test(t, every_table_of_kernels_gives_the_same_sum, 0, 2);
	tcase_add_loop_test(t, shares_have_the_norm_of_the_whole, 0, 2);
	tcase_add_loop_test(t, groups_have_their_shards_and_the_norm_of_the_whole, 0, 2);
	tcase_add_test(t, a_small_arena_takes_one_operation);
	tcase_add_test(t, a_member_that_aborts_ends_the_sum_of_all);
	suite_add_tcase(s, t);
	return suite_run(s);
}
