/* SPDX-License-Identifier: Apache-2.0 */
/* Every table against the reference, bit for bit, with subnormals and with FTZ and DAZ as in the engine's threads. */
#include "sample.h"

#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#define N_MAX (3 * KERNEL_BLOCK + 77)
static const size_t sizes[] = { 0, 1, 15, 32, 63, 64, 65, 127, 992, 1023, 1024, 1025, 2048, 2080, N_MAX };
#define N_SIZES (sizeof(sizes) / sizeof(sizes[0]))
#define MAX_BLOCKS (N_MAX / KERNEL_BLOCK + 1)
static const enum sample samples[] = { SAMPLE_NORMAL, SAMPLE_SUBNORMAL, SAMPLE_SPECIAL };
#define N_SAMPLES 3
static const enum dtype grad_dtypes[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16 };

/* The tables after the reference. */
static const struct kernels *fast[8];
static int n_fast;
static const struct kernels *reference;

static void find_tables(void)
{
	const struct kernels *const *table;
	n_fast = kernels_list(&table) - 1;
	reference = table[0];
	for (int i = 0; i < n_fast; i++)
		fast[i] = table[i + 1];
}

/* Table of loop test i, of 2 * n_fast: the second round of tables is without subnormals. Tests run in their own
 * process. */
static const struct kernels *table_of(int i)
{
#ifdef __x86_64__
	if (i >= n_fast)
		_mm_setcsr(_mm_getcsr() | 0x8040);
#endif
	return fast[i % n_fast];
}

/* Partials with room for N_MAX elements, poisoned. */
struct partials {
	double sumsq[MAX_BLOCKS];
	uint64_t digest[MAX_BLOCKS];
	uint32_t nonfinite[MAX_BLOCKS];
};

static struct kernel_partials wanted(struct partials *p, int mask)
{
	memset(p, 0x5a, sizeof(*p));
	return (struct kernel_partials){ .sumsq = mask & 1 ? p->sumsq : NULL,
					 .digest = mask & 2 ? p->digest : NULL,
					 .nonfinite = mask & 4 ? p->nonfinite : NULL };
}

/* `nan`: the values hashed hold NaNs, whose payload may differ. */
static void assert_partials_equal(const struct partials *a, const struct partials *b, bool nan)
{
	ck_assert_uint_eq(sample_differs(a->sumsq, b->sumsq, DTYPE_F64, MAX_BLOCKS), MAX_BLOCKS);
	ck_assert_mem_eq(a->nonfinite, b->nonfinite, sizeof(a->nonfinite));
	if (!nan)
		ck_assert_mem_eq(a->digest, b->digest, sizeof(a->digest));
}

/* One accumulate call by both tables. */
struct accumulate_case {
	bool first;
	enum dtype acc, grad;
	int k;
	size_t n;
	int partials;	/* mask of wanted(); -1: NULL */
	bool count;	/* src_nonfinite */
	bool cached;	/* by accumulate_cached */
	size_t g_shift; /* elements by which g is off its alignment */
	enum sample sample;
};

static void check_accumulate(const struct kernels *table, const struct accumulate_case *c, struct rng *rng)
{
	void *src = sample_alloc(c->acc, c->n), *want = sample_alloc(c->acc, c->n), *got = sample_alloc(c->acc, c->n);
	struct kernel_src s[KERNEL_MAX_SLOTS];
	void *g[KERNEL_MAX_SLOTS];
	uint64_t want_count[KERNEL_MAX_SLOTS] = { 1, 2, 3 }, got_count[KERNEL_MAX_SLOTS] = { 1, 2, 3 };
	struct partials want_p, got_p;
	sample_fill(src, c->acc, c->n, c->sample, rng);
	for (int j = 0; j < c->k; j++) {
		g[j] = sample_alloc(c->grad, c->n + c->g_shift);
		sample_fill(g[j], c->grad, c->n + c->g_shift, c->sample, rng);
		s[j] = (struct kernel_src){ (char *)g[j] + c->g_shift * dtype_size(c->grad), 4 * rng_unit(rng) - 1 };
	}
	struct kernel_partials want_out = wanted(&want_p, c->partials), got_out = wanted(&got_p, c->partials);
	reference->accumulate(want, c->first ? NULL : src, c->first, c->acc, s, c->k, c->grad, c->n,
			      c->count ? want_count : NULL, c->partials < 0 ? NULL : &want_out);
	kernel_accumulate_fn *accumulate = c->cached ? table->accumulate_cached : table->accumulate;
	accumulate(got, c->first ? NULL : src, c->first, c->acc, s, c->k, c->grad, c->n, c->count ? got_count : NULL,
		   c->partials < 0 ? NULL : &got_out);
	ck_assert_msg(sample_differs(want, got, c->acc, c->n) == c->n,
		      "%s: acc %s grad %s k %d n %zu first %d sample %d: element %zu", table->name, dtype_name(c->acc),
		      dtype_name(c->grad), c->k, c->n, c->first, c->sample, sample_differs(want, got, c->acc, c->n));
	ck_assert_mem_eq(want_count, got_count, sizeof(want_count));
	assert_partials_equal(&want_p, &got_p, sample_has_nan(want, c->acc, c->n));
	for (int j = 0; j < c->k; j++)
		free(g[j]);
	free(src);
	free(want);
	free(got);
}

START_TEST(accumulate_matches_the_reference)
{
	const struct kernels *table = table_of(_i);
	struct rng rng = { 1 };
	for (size_t a = 0; a < N_SIZES; a++)
		for (size_t t = 0; t < 3; t++)
			for (int k = 0; k <= KERNEL_MAX_SLOTS; k++)
				for (int first = 0; first < 2; first++)
					for (int s = 0; s < N_SAMPLES; s++)
						check_accumulate(table,
								 &(struct accumulate_case){
									 .first = first,
									 .acc = DTYPE_F32,
									 .grad = grad_dtypes[t],
									 .k = k,
									 .n = sizes[a],
									 .partials = (int)(rng_next(&rng) % 9) - 1,
									 .count = rng_next(&rng) & 1,
									 .cached = rng_next(&rng) & 1,
									 .g_shift = rng_next(&rng) % 3,
									 .sample = samples[s] },
								 &rng);
}
END_TEST

START_TEST(accumulate_into_f64_matches_the_reference)
{
	const struct kernels *table = table_of(_i);
	static const enum dtype grad[] = { DTYPE_F64, DTYPE_F32, DTYPE_BF16, DTYPE_F16 };
	struct rng rng = { 2 };
	for (size_t a = 0; a < N_SIZES; a++)
		for (int t = 0; t < 4; t++)
			check_accumulate(table,
					 &(struct accumulate_case){ .acc = DTYPE_F64,
								    .grad = grad[t],
								    .k = 3,
								    .n = sizes[a],
								    .partials = 7,
								    .count = true,
								    .sample = samples[a % N_SAMPLES] },
					 &rng);
}
END_TEST

START_TEST(inspect_matches_the_reference)
{
	const struct kernels *table = table_of(_i);
	static const enum dtype dtypes[] = { DTYPE_F32, DTYPE_F64, DTYPE_BF16, DTYPE_F16 };
	struct rng rng = { 3 };
	for (size_t a = 0; a < N_SIZES; a++)
		for (int t = 0; t < 4; t++)
			for (int mask = 0; mask < 8; mask++) {
				struct partials want_p, got_p;
				void *x = sample_alloc(dtypes[t], sizes[a]);
				int wants = dtype_size(dtypes[t]) == 2 ? mask & 2 : mask;
				sample_fill(x, dtypes[t], sizes[a], samples[mask % N_SAMPLES], &rng);
				struct kernel_partials want = wanted(&want_p, wants), got = wanted(&got_p, wants);
				reference->inspect(x, dtypes[t], sizes[a], &want);
				table->inspect(x, dtypes[t], sizes[a], &got);
				assert_partials_equal(&want_p, &got_p, false);
				free(x);
			}
}
END_TEST

START_TEST(scale_matches_the_reference)
{
	const struct kernels *table = table_of(_i);
	static const enum dtype dtypes[] = { DTYPE_F32, DTYPE_F64 };
	static const float clip[] = { 0, 0.5f };
	struct rng rng = { 4 };
	for (size_t a = 0; a < N_SIZES; a++)
		for (int mode = 0; mode < 12; mode++) {
			enum dtype t = dtypes[mode & 1];
			void *src = sample_alloc(t, sizes[a]), *want = sample_alloc(t, sizes[a]),
			     *got = sample_alloc(t, sizes[a]);
			sample_fill(src, t, sizes[a], samples[mode / 4], &rng);
			reference->scale(want, src, t, 0.3, clip[mode >> 1 & 1], sizes[a]);
			table->scale(got, src, t, 0.3, clip[mode >> 1 & 1], sizes[a]);
			ck_assert_uint_eq(sample_differs(want, got, t, sizes[a]), sizes[a]);
			free(src);
			free(want);
			free(got);
		}
}
END_TEST

static kernel_update_fn *rule_of(const struct kernels *k, int rule)
{
	return rule == 0 ? k->sgd : rule == 1 ? k->adam : rule == 2 ? k->adamw : k->lamb;
}

/* Which copies of the parameters exist. */
enum copies { F32_ONLY, F32_AND_16, ONLY_16 };

struct update_case {
	int rule;
	enum copies copies;
	enum dtype p16, acc;
	bool momentum, digest, undo;
	size_t n;
	enum sample sample;
	struct kernel_update u;
};

static void run_update(const struct kernels *table, const struct update_case *c, uint64_t seed,
		       struct kernel_params *out, struct partials *digests)
{
	struct rng rng = { seed };
	bool f32 = c->copies != ONLY_16, p16 = c->copies != F32_ONLY;
	void *g = sample_alloc(c->acc, c->n);
	*out = (struct kernel_params){ .p = f32 ? sample_alloc(DTYPE_F32, c->n) : NULL,
				       .p16 = p16 ? sample_alloc(c->p16, c->n) : NULL,
				       .p16_dtype = c->p16,
				       .m = c->momentum ? sample_alloc(DTYPE_F32, c->n) : NULL,
				       .v = c->rule ? sample_alloc(DTYPE_F32, c->n) : NULL };
	sample_fill(g, c->acc, c->n, c->sample, &rng);
	if (f32)
		sample_fill(out->p, DTYPE_F32, c->n, c->sample, &rng);
	else
		sample_fill(out->p16, c->p16, c->n, c->sample, &rng);
	if (out->m)
		sample_fill(out->m, DTYPE_F32, c->n, c->sample, &rng);
	if (out->v)
		sample_fill(out->v, DTYPE_F32, c->n, c->sample, &rng);
	struct kernel_partials p = wanted(digests, c->digest ? 2 | 4 : 0);
	_Alignas(64) unsigned char area[KERNEL_UNDO_BYTES];
	_Atomic uint64_t stamp = 0;
	const struct kernel_undo undo = { area, &stamp, 5 };
	rule_of(table, c->rule)(out, g, c->acc, c->n, &c->u, c->undo ? &undo : NULL, &p);
	ck_assert_uint_eq(stamp, c->undo && c->n ? (5 + (c->n - 1) / KERNEL_UNIT) << 1 | 1 : 0);
	free(g);
}

static void assert_arrays_equal(const struct update_case *c, const char *table, const char *what, const void *want,
				const void *got, enum dtype t)
{
	if (want)
		ck_assert_msg(sample_differs(want, got, t, c->n) == c->n,
			      "%s: rule %d copies %d n %zu sample %d: %s element %zu", table, c->rule, c->copies, c->n,
			      c->sample, what, sample_differs(want, got, t, c->n));
}

static void free_params(struct kernel_params *p)
{
	free(p->p);
	free(p->p16);
	free(p->m);
	free(p->v);
}

/* Elements of a block that the update has left inf or NaN in a parameter, its 16-bit copy, or v: counted by what lies
 * there. */
static uint32_t count_lost(const struct update_case *c, const struct kernel_params *p, size_t block)
{
	uint32_t n = 0, v;
	uint16_t h, exponent = c->p16 == DTYPE_F16 ? 0x7c00 : 0x7f80;
	for (size_t i = block * KERNEL_BLOCK; i < c->n && i < (block + 1) * KERNEL_BLOCK; i++) {
		bool lost = p->p && !isfinite(p->p[i]);
		if (p->v) {
			memcpy(&v, p->v + i, sizeof(v));
			lost |= (v & 0x7f800000) == 0x7f800000;
		}
		if (p->p16) {
			memcpy(&h, (const uint16_t *)p->p16 + i, sizeof(h));
			lost |= (h & exponent) == exponent;
		}
		n += lost;
	}
	return n;
}

static void check_update(const struct kernels *table, const struct update_case *c, uint64_t seed)
{
	struct kernel_params want, got;
	struct partials want_d, got_d;
	run_update(reference, c, seed, &want, &want_d);
	run_update(table, c, seed, &got, &got_d);
	assert_arrays_equal(c, table->name, "p", want.p, got.p, DTYPE_F32);
	assert_arrays_equal(c, table->name, "p16", want.p16, got.p16, c->p16);
	assert_arrays_equal(c, table->name, "m", want.m, got.m, DTYPE_F32);
	assert_arrays_equal(c, table->name, "v", want.v, got.v, DTYPE_F32);
	bool nan = want.p ? sample_has_nan(want.p, DTYPE_F32, c->n) : sample_has_nan(want.p16, c->p16, c->n);
	assert_partials_equal(&want_d, &got_d, nan);
	for (size_t b = 0; c->digest && b * KERNEL_BLOCK < c->n; b++)
		ck_assert_uint_eq(want_d.nonfinite[b], count_lost(c, &want, b));
	free_params(&want);
	free_params(&got);
}

static struct kernel_update some_update(struct rng *rng, uint64_t mode)
{
	return (struct kernel_update){ .scale = (float)rng_unit(rng),
				       .clip_value = mode & 1 ? 0.25f : 0,
				       .lr = 0.1f,
				       .weight_decay = mode & 2 ? 0.01f : 0,
				       .momentum = 0.9f,
				       .one_minus_dampening = 0.8f,
				       .nesterov = mode & 4,
				       .first = mode & 8,
				       .one_minus_beta1 = 0.1f,
				       .beta2 = 0.999f,
				       .one_minus_beta2 = 0.001f,
				       .eps = 1e-8f,
				       .step_size = 0.003f,
				       .inv_bias2_sqrt = 3.7f,
				       .inv_bias1 = 1.9f,
				       .decay = 0.999f };
}

START_TEST(updates_match_the_reference)
{
	const struct kernels *table = table_of(_i);
	struct rng rng = { 5 };
	for (size_t a = 0; a < N_SIZES; a++)
		for (int rule = 0; rule < 4; rule++)
			for (enum copies copies = F32_ONLY; copies <= ONLY_16; copies++)
				for (uint64_t mode = 0; mode < 32; mode++)
					check_update(table,
						     &(struct update_case){ .rule = rule,
									    .copies = copies,
									    .p16 = mode & 1 ? DTYPE_F16 : DTYPE_BF16,
									    .acc = mode == 31 ? DTYPE_F64 : DTYPE_F32,
									    .momentum = rule || mode & 16,
									    .digest = mode & 2,
									    .undo = mode & 4,
									    .n = sizes[a],
									    .sample = samples[mode % N_SAMPLES],
									    .u = some_update(&rng, mode) },
						     rng_next(&rng));
}
END_TEST

/* Both tables' first phase of LAMB on the same values; g_at NULL: norms only. */
static void check_lamb_moments(const struct kernels *table, const struct update_case *c, bool with_g, uint64_t seed)
{
	const struct kernels *both[] = { reference, table };
	struct kernel_params after[2];
	struct partials param[2], direction[2], digests;
	struct update_case none = *c;
	void *g = sample_alloc(c->acc, c->n);
	none.rule = 3;
	none.u.lr = 0; /* fills, and leaves as it is */
	sample_fill(g, c->acc, c->n, c->sample, &(struct rng){ seed + 1 });
	for (int i = 0; i < 2; i++) {
		memset(&param[i], 0x5a, sizeof(param[i]));
		memset(&direction[i], 0x5a, sizeof(direction[i]));
		run_update(reference, &none, seed, &after[i], &digests);
		both[i]->lamb_moments(&after[i], with_g ? g : NULL, c->acc, c->n, &c->u, NULL,
				      &(struct kernel_lamb_norms){ param[i].sumsq, direction[i].sumsq });
	}
	assert_arrays_equal(c, table->name, "m", after[0].m, after[1].m, DTYPE_F32);
	assert_arrays_equal(c, table->name, "v", after[0].v, after[1].v, DTYPE_F32);
	ck_assert_uint_eq(sample_differs(param[0].sumsq, param[1].sumsq, DTYPE_F64, MAX_BLOCKS), MAX_BLOCKS);
	ck_assert_uint_eq(sample_differs(direction[0].sumsq, direction[1].sumsq, DTYPE_F64, MAX_BLOCKS), MAX_BLOCKS);
	for (int i = 0; i < 2; i++)
		free_params(&after[i]);
	free(g);
}

START_TEST(lamb_moments_match_the_reference)
{
	const struct kernels *table = table_of(_i);
	struct rng rng = { 7 };
	for (size_t a = 0; a < N_SIZES; a++)
		for (uint64_t mode = 0; mode < 36; mode++)
			check_lamb_moments(table,
					   &(struct update_case){ .copies = (enum copies)(mode % 3),
								  .p16 = mode & 1 ? DTYPE_F16 : DTYPE_BF16,
								  .acc = mode == 35 ? DTYPE_F64 : DTYPE_F32,
								  .momentum = true,
								  .n = sizes[a],
								  .sample = samples[mode / 3 % N_SAMPLES],
								  .u = some_update(&rng, mode) },
					   mode % 4 != 0, rng_next(&rng));
}
END_TEST

START_TEST(conversions_match_the_reference)
{
	const struct kernels *table = table_of(_i);
	struct rng rng = { 6 };
	for (int t = 1; t < 3; t++) {
		uint16_t *all = sample_alloc(DTYPE_F16, 65536), *want16 = sample_alloc(DTYPE_F16, 65536),
			 *got16 = sample_alloc(DTYPE_F16, 65536);
		float *want = sample_alloc(DTYPE_F32, 65536), *got = sample_alloc(DTYPE_F32, 65536);
		for (int i = 0; i < 65536; i++)
			all[i] = (uint16_t)i;
		for (size_t n = 65535; n <= 65536; n++) {
			reference->to_f32(want, all, grad_dtypes[t], n);
			table->to_f32(got, all, grad_dtypes[t], n);
			ck_assert_uint_eq(sample_differs(want, got, DTYPE_F32, n), n);
		}
		for (int s = 0; s < 100; s++) {
			/* bits near every f16 and bf16, then specials */
			sample_fill(want, DTYPE_F32, 65536, samples[s % N_SAMPLES], &rng);
			for (uint32_t i = 0; s < 8 && i < 65536; i++) {
				float x;
				uint32_t u;
				reference->to_f32(&x, all + i, grad_dtypes[t], 1);
				memcpy(&u, &x, sizeof(u));
				u += (uint32_t)(s / 2 * (t == 1 ? 0x4000 : 0x800)) + (uint32_t)s % 2;
				memcpy(&want[i], &u, sizeof(u));
			}
			reference->from_f32(want16, grad_dtypes[t], want, 65536);
			table->from_f32(got16, grad_dtypes[t], want, 65536);
			ck_assert_uint_eq(sample_differs(want16, got16, grad_dtypes[t], 65536), 65536);
		}
		free(all);
		free(want16);
		free(got16);
		free(want);
		free(got);
	}
}
END_TEST

START_TEST(tables_are_found_by_name)
{
	ck_assert_ptr_eq(kernels_get("reference"), reference);
	ck_assert_ptr_null(kernels_get("altivec"));
	for (int i = 0; i < n_fast; i++)
		ck_assert_ptr_eq(kernels_get(fast[i]->name), fast[i]);
	ck_assert_ptr_eq(kernels_get(NULL), n_fast ? fast[n_fast - 1] : reference);
}
END_TEST

int main(void)
{
	find_tables();
	Suite *suite = suite_create("kernels");
	TCase *tc = tcase_create("equal bits");
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, accumulate_matches_the_reference, 0, 2 * n_fast);
	tcase_add_loop_test(tc, accumulate_into_f64_matches_the_reference, 0, 2 * n_fast);
	tcase_add_loop_test(tc, inspect_matches_the_reference, 0, 2 * n_fast);
	tcase_add_loop_test(tc, scale_matches_the_reference, 0, 2 * n_fast);
	tcase_add_loop_test(tc, updates_match_the_reference, 0, 2 * n_fast);
	tcase_add_loop_test(tc, lamb_moments_match_the_reference, 0, 2 * n_fast);
	tcase_add_loop_test(tc, conversions_match_the_reference, 0, 2 * n_fast);
	tcase_add_test(tc, tables_are_found_by_name);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
