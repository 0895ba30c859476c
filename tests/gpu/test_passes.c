/* SPDX-License-Identifier: Apache-2.0 */
/* Passes of the kernels for GPUs against the CPU's tables, bit for bit: random sizes, sources, runs and orders of
 * threads, with all kinds of values. */
#include "gpu.h"
#include "unit/math/sample.h"

#include "math/cuda/launches.h"
#include "math/kernels_scalar.h"
#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BLOCKS 40
#define MAX_ELEMENTS (MAX_BLOCKS * KERNEL_BLOCK)
#define ROUNDS 40

static const enum dtype dtypes[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16 };
static struct cuda_gate gate;
static struct rng rng;

static uint64_t below(uint64_t n)
{
	return rng_next(&rng) % n;
}

/* Of the loop test's round: what follows is drawn anew for each. */
static struct cuda_pass round_begin(int round)
{
	gpu_open();
	rng.state = (uint64_t)round * 1000003 + 17;
	gpu_order(round % 5 ? rng_next(&rng) : 0, round % 3 != 0);
	memset(&gate, 0, sizeof(gate));
	gate.generation = 3;
	return (struct cuda_pass){ &gate, 3 };
}

/* Every block has counted itself in and out. */
static void round_end(uint64_t blocks)
{
	ck_assert_uint_eq(gate.begun[3], blocks);
	ck_assert_uint_eq(gate.ended[3], blocks);
	ck_assert_uint_eq(gate.left[3], 0);
}

static enum sample kind_of(int round)
{
#ifndef __x86_64__
	return SAMPLE_NORMAL; /* subnormals do not count as zero here */
#endif
	return (enum sample)(round % 3);
}

/* All tables of this CPU in turn. */
static const struct kernels *table_of(int round)
{
	const struct kernels *const *table;
	int n = kernels_list(&table);
	return table[round % n];
}

struct results {
	double sumsq[MAX_BLOCKS];
	uint64_t digest[MAX_BLOCKS];
	uint32_t nonfinite[MAX_BLOCKS];
};

static struct kernel_partials want_of(struct results *r)
{
	return (struct kernel_partials){ r->sumsq, r->digest, r->nonfinite };
}

static struct cuda_partials got_of(struct results *r)
{
	memset(r, 0x77, sizeof(*r));
	return (struct cuda_partials){ r->sumsq, (cuda_word *)r->digest, r->nonfinite };
}

/* `sum`: what they describe; digests of NaNs may differ. */
static void same_results(const struct results *want, const struct results *got, const float *sum, size_t blocks)
{
	ck_assert_uint_eq(sample_differs(want->sumsq, got->sumsq, DTYPE_F64, blocks), blocks);
	for (size_t b = 0; b < blocks; b++) {
		ck_assert_uint_eq(want->nonfinite[b], got->nonfinite[b]);
		if (!sample_has_nan(sum + b * KERNEL_BLOCK, DTYPE_F32, KERNEL_BLOCK))
			ck_assert_uint_eq(want->digest[b], got->digest[b]);
	}
}

/* One pass: what to add to what. */
struct pass {
	enum dtype t;
	size_t n;
	int k;
	bool first;
	float *src, *want, *got;
	void *g[KERNEL_MAX_SLOTS];
	double coef[KERNEL_MAX_SLOTS];
	struct cuda_run run[16];
	uint32_t n_runs;
	uint64_t bad_want[KERNEL_MAX_SLOTS], bad_got[KERNEL_MAX_SLOTS];
};

static void draw_runs(struct pass *p)
{
	uint64_t at = 0;
	p->n_runs = (uint32_t)below(4) ? 1 + (uint32_t)below(12) : 0;
	for (uint32_t i = 0; i < p->n_runs; i++) {
		p->run[i] = (struct cuda_run){ at, (uint32_t)below(1u << p->k), 0 };
		at += 32 * (1 + below(p->n / 32 / p->n_runs));
	}
	for (uint32_t i = 0; i < p->n_runs; i++) /* a short arena may have fewer */
		if (p->run[i].start >= p->n)
			p->n_runs = i;
}

static struct pass draw_pass(int round)
{
	struct pass p = { .t = dtypes[below(3)], .first = below(3) == 0, .k = (int)below(KERNEL_MAX_SLOTS + 1) };
	p.n = KERNEL_BLOCK * (round % 4 ? 1 + below(MAX_BLOCKS) : 7 + below(3));
	p.src = sample_alloc(DTYPE_F32, p.n);
	p.want = sample_alloc(DTYPE_F32, p.n);
	p.got = sample_alloc(DTYPE_F32, p.n);
	sample_fill(p.src, DTYPE_F32, p.n, kind_of(round), &rng);
	for (int j = 0; j < p.k; j++) {
		p.g[j] = sample_alloc(p.t, p.n);
		p.coef[j] = rng_unit(&rng) * 3;
		sample_fill(p.g[j], p.t, p.n, kind_of(round), &rng);
	}
	draw_runs(&p);
	return p;
}

static void free_pass(struct pass *p)
{
	free(p->src);
	free(p->want);
	free(p->got);
	for (int j = 0; j < p->k; j++)
		free(p->g[j]);
}

/* Elements [from, to), which have these sources. */
static void add_run(struct pass *p, const struct kernels *table, uint64_t from, uint64_t to, uint32_t sources)
{
	struct kernel_src s[KERNEL_MAX_SLOTS] = { { NULL, 0 } };
	uint64_t bad[KERNEL_MAX_SLOTS] = { 0 };
	int which[KERNEL_MAX_SLOTS], k = 0;
	for (int j = 0; j < p->k; j++)
		if (sources >> j & 1) {
			s[k] = (struct kernel_src){ (char *)p->g[j] + from * dtype_size(p->t), p->coef[j] };
			which[k++] = j;
		}
	table->accumulate(p->want + from, p->src + from, p->first, DTYPE_F32, s, k, p->t, to - from, bad, NULL);
	for (int j = 0; j < k; j++)
		p->bad_want[which[j]] += bad[j];
}

static void add_on_cpu(struct pass *p, const struct kernels *table, struct results *out)
{
	const struct kernel_partials partials = want_of(out);
	if (!p->n_runs)
		add_run(p, table, 0, p->n, (1u << p->k) - 1);
	for (uint32_t i = 0; i < p->n_runs; i++)
		add_run(p, table, p->run[i].start, i + 1 < p->n_runs ? p->run[i + 1].start : p->n, p->run[i].sources);
	table->inspect(p->want, DTYPE_F32, p->n, &partials);
}

static void add_on_gpu(struct pass *p, struct cuda_pass pass, bool norm, unsigned grid, struct results *out)
{
	char name[CUDA_NAME_MAX];
	struct cuda_add a = { .pass = pass,
			      .dst = p->got,
			      .src = p->first ? NULL : p->src,
			      .n = p->n,
			      .run = p->run,
			      .n_runs = p->n_runs,
			      .n_sources = (uint32_t)p->k,
			      .src_nonfinite = (cuda_word *)p->bad_got,
			      .out = got_of(out),
			      .keys = digest_key };
	for (int j = 0; j < p->k; j++) {
		a.g[j] = p->g[j];
		a.coef[j] = (float)p->coef[j];
	}
	memset(p->got, 0x66, p->n * sizeof(float));
	memset(p->bad_got, 0, sizeof(p->bad_got));
	cuda_add_name(p->t, a.n_sources, norm, name);
	gpu_launch(name, &a, grid);
}

START_TEST(add_gives_the_bits_of_the_cpu)
{
	const struct cuda_pass pass = round_begin(_i);
	struct pass p = draw_pass(_i);
	struct results want, got;
	const unsigned grid = 1 + (unsigned)below(6);
	add_on_cpu(&p, table_of(_i), &want);
	add_on_gpu(&p, pass, true, grid, &got);
	ck_assert_uint_eq(sample_differs(p.want, p.got, DTYPE_F32, p.n), p.n);
	same_results(&want, &got, p.want, p.n / KERNEL_BLOCK);
	ck_assert_mem_eq(p.bad_want, p.bad_got, sizeof(p.bad_got));
	add_on_gpu(&p, pass, false, grid, &got);
	ck_assert_uint_eq(sample_differs(p.want, p.got, DTYPE_F32, p.n), p.n);
	ck_assert_mem_eq(p.bad_want, p.bad_got, sizeof(p.bad_got));
	round_end(2 * grid);
	free_pass(&p);
}
END_TEST

START_TEST(scale_gives_the_bits_of_the_cpu)
{
	const struct cuda_pass pass = round_begin(_i);
	const size_t n = 4 * (1 + below(3000));
	float *src = sample_alloc(DTYPE_F32, n), *want = sample_alloc(DTYPE_F32, n), *got = sample_alloc(DTYPE_F32, n);
	const float scale = (float)rng_unit(&rng), clip = _i % 2 ? 0.25f : 0;
	const struct cuda_scale a = { pass, got, src, scale, clip > 0 ? clip : INFINITY, n };
	sample_fill(src, DTYPE_F32, n, kind_of(_i), &rng);
	table_of(_i)->scale(want, src, DTYPE_F32, (double)scale, clip, n);
	gpu_launch("scale", &a, 3);
	ck_assert_uint_eq(sample_differs(want, got, DTYPE_F32, n), n);
	round_end(3);
	free(src);
	free(want);
	free(got);
}
END_TEST

/* Tensors with gaps behind them, each with blocks of its own. */
static uint64_t draw_spans(struct cuda_span *span, uint64_t n_spans)
{
	uint64_t at = 0, block = 0;
	for (uint64_t i = 0; i < n_spans; i++) {
		span[i] = (struct cuda_span){ at, 1 + below(below(2) ? 70 : 5000), block };
		block += (span[i].count + KERNEL_BLOCK - 1) / KERNEL_BLOCK;
		at += (span[i].count + 31) / 32 * 32;
	}
	return block;
}

static void inspect_on_cpu(const struct kernels *table, const void *values, enum dtype t, const struct cuda_span *s,
			   struct results *out)
{
	_Alignas(64) static float wide[8 * KERNEL_BLOCK];
	const void *from = (const char *)values + s->start * dtype_size(t);
	table->to_f32(wide, from, t, s->count);
	table->inspect(wide, DTYPE_F32, s->count,
		       &(struct kernel_partials){ .sumsq = out->sumsq + s->first_block,
						  .nonfinite = out->nonfinite + s->first_block });
	table->inspect(from, t, s->count, &(struct kernel_partials){ .digest = out->digest + s->first_block });
}

START_TEST(inspect_gives_the_bits_of_the_cpu)
{
	static const char *const names[] = { "inspect_f32", "inspect_bf16", "inspect_f16" };
	const struct cuda_pass pass = round_begin(_i);
	const uint64_t which = below(3), n_spans = 1 + below(6);
	struct cuda_span span[8];
	struct results want, got;
	const uint64_t blocks = draw_spans(span, n_spans);
	const size_t n = 32 * KERNEL_BLOCK;
	void *values = sample_alloc(dtypes[which], n);
	const struct cuda_inspect a = { pass, values, span, n_spans, blocks, got_of(&got), digest_key };
	sample_fill(values, dtypes[which], n, kind_of(_i), &rng);
	for (uint64_t i = 0; i < n_spans; i++)
		inspect_on_cpu(table_of(_i), values, dtypes[which], &span[i], &want);
	gpu_launch(names[which], &a, 1 + (unsigned)below(4));
	ck_assert_uint_eq(sample_differs(want.sumsq, got.sumsq, DTYPE_F64, blocks), blocks);
	ck_assert_mem_eq(want.nonfinite, got.nonfinite, blocks * sizeof(*got.nonfinite));
	ck_assert_mem_eq(want.digest, got.digest, blocks * sizeof(*got.digest));
	free(values);
}
END_TEST

/* Total of n blocks, by as many launches as it takes. */
static struct cuda_total collect(struct cuda_pass pass, struct cuda_partials in, uint64_t n)
{
	static struct cuda_total total[2][1024];
	struct cuda_collect a = { .pass = pass, .in = in, .n = n, .out = total[0] };
	const char *kernel = "collect_blocks";
	uint64_t left = (n + CUDA_LEAF - 1) / CUDA_LEAF;
	for (unsigned turn = 1;; turn++) {
		gpu_launch(kernel, &a, 1 + (unsigned)below(5));
		left = (left + CUDA_THREADS - 1) / CUDA_THREADS;
		if (left == 1)
			return a.out[0];
		a.from = a.out;
		a.out = total[turn % 2];
		a.n = left;
		kernel = "collect_totals";
	}
}

START_TEST(totals_are_those_of_the_cpu)
{
	static const uint64_t sizes[] = { 1, 2, 7, 8, 9, 17, 100, 2047, 2048, 2049, 5000, 524288, 524289, 700001 };
	const struct cuda_pass pass = round_begin(_i);
	const uint64_t n = sizes[_i];
	double *sumsq = sample_alloc(DTYPE_F64, n);
	uint64_t *digest = sample_alloc(DTYPE_F64, n), bad = 0;
	uint32_t *nonfinite = sample_alloc(DTYPE_F32, n);
	for (uint64_t i = 0; i < n; i++) {
		sumsq[i] = rng_unit(&rng) * (below(9) ? 1 : 1e30);
		digest[i] = rng_next(&rng);
		nonfinite[i] = (uint32_t)below(3);
		bad += nonfinite[i];
	}
	const struct cuda_total got = collect(pass, (struct cuda_partials){ sumsq, (cuda_word *)digest, nonfinite }, n);
	const double want = kernel_sum(sumsq, n);
	ck_assert_mem_eq(&got.sumsq, &want, sizeof(want));
	ck_assert_uint_eq(got.digest, kernel_digest_combine(digest, n, 0));
	ck_assert_uint_eq(got.nonfinite, bad);
	free(sumsq);
	free(digest);
	free(nonfinite);
}
END_TEST

START_TEST(bytes_are_copied)
{
	static unsigned char from[5000], to[5000], want[5000];
	const struct cuda_pass pass = round_begin(_i);
	const uint64_t bytes = below(4000), skip = _i % 2 ? 16 * below(20) : below(500);
	const struct cuda_copy a = { pass, to + 160, from + (_i % 3 ? 0 : 1) + skip, bytes };
	for (size_t i = 0; i < sizeof(from); i++)
		from[i] = (unsigned char)rng_next(&rng);
	memcpy(want + 160, a.from, bytes);
	gpu_launch("copy_bytes", &a, 2);
	ck_assert_mem_eq(to, want, sizeof(to));
	round_end(2);
}
END_TEST

START_TEST(only_gaps_are_zeroed)
{
	_Alignas(16) static unsigned char got[20000], want[20000];
	const struct cuda_pass pass = round_begin(_i);
	struct cuda_gap gap[20];
	uint64_t at = 0, n = 0;
	for (; n < 20; n++) {
		const uint64_t from = at + 2 * below(300), to = from + 2 * below(n % 5 ? 31 : 200);
		gap[n] = (struct cuda_gap){ from, to };
		at = to;
	}
	memset(got, 0x55, sizeof(got));
	memset(want, 0x55, sizeof(want));
	for (uint64_t i = 0; i < n; i++)
		memset(want + gap[i].from, 0, gap[i].to - gap[i].from);
	gpu_launch("zero_gaps", &(struct cuda_zero){ .pass = pass, .base = got, .gap = gap, .n_gaps = n }, 2);
	ck_assert_mem_eq(got, want, sizeof(got));
	const uint64_t skip = _i % 2 ? 16 * below(50) : 2 * below(50), bytes = 2 * below(4000);
	memset(want + skip, 0, bytes);
	gpu_launch("zero_bytes", &(struct cuda_zero){ .pass = pass, .base = got + skip, .bytes = bytes }, 3);
	ck_assert_mem_eq(got, want, sizeof(got));
	round_end(5);
}
END_TEST

START_TEST(all_halves_are_widened)
{
	static uint16_t half[65536];
	_Alignas(64) static float want[65536], got[65536];
	const struct cuda_pass pass = round_begin(1);
	const enum dtype t = _i ? DTYPE_F16 : DTYPE_BF16;
	for (unsigned i = 0; i < 65536; i++)
		half[i] = (uint16_t)i;
	kernels_get("reference")->to_f32(want, half, t, 65536);
	gpu_launch(_i ? "widen_f16" : "widen_bf16", &(struct cuda_widen){ pass, got, half, 65536 }, 4);
	ck_assert_uint_eq(sample_differs(want, got, DTYPE_F32, 65536), 65536);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("gpu_passes");
	TCase *t = tcase_create("passes");
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, add_gives_the_bits_of_the_cpu, 0, 3 * ROUNDS);
	tcase_add_loop_test(t, scale_gives_the_bits_of_the_cpu, 0, 6);
	tcase_add_loop_test(t, inspect_gives_the_bits_of_the_cpu, 0, ROUNDS);
	tcase_add_loop_test(t, totals_are_those_of_the_cpu, 0, 14);
	tcase_add_loop_test(t, bytes_are_copied, 0, 12);
	tcase_add_loop_test(t, only_gaps_are_zeroed, 0, 8);
	tcase_add_loop_test(t, all_halves_are_widened, 0, 2);
	suite_add_tcase(s, t);
	return suite_run(s);
}
