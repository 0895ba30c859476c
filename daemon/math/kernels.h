/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of gacc on flat arrays: one table of operations per instruction set, all with the same bits.
 *
 * Rules that make the bits equal on every path (SSE2, AVX2, AVX-512, and the plain reference): no contraction into
 * fma (-ffp-contract=off), elementwise operations in the written order, reductions over KERNEL_BLOCK-element blocks
 * with KERNEL_LANES virtual lanes whose partial results are combined in a fixed tree. A call works on one contiguous
 * range of elements; the caller splits arenas into ranges at multiples of KERNEL_BLOCK so that block partials do not
 * depend on how many threads share the work.
 *
 * No allocation, no locks, no logging; any thread; pointers must be 64-byte aligned unless said otherwise; n counts
 * elements. Source and destination may only be the same array, never overlap partly. The engine sets FTZ|DAZ in its
 * threads (docs/gradient.md says what that means for subnormals); the kernels do not depend on it. Only the payload
 * and sign of a NaN may differ between tables, and with them the digest of a block that holds one.
 */
#ifndef GACC_MATH_KERNELS_H
#define GACC_MATH_KERNELS_H

#include "math/dtype.h"
#include "math/kernel_sizes.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* What they compute. Whoever changes a bit of any result, in all tables, adds one: gaccds with other revisions do not
 * train one job together (control/alike.h). */
#define KERNELS_REVISION 1
/* elements that an update reads, saves, and overwrites before it goes on */
#define KERNEL_UNIT 64
#define KERNEL_CACHED_ELEMENTS (1u << 21) /* arenas up to this size had better stay in the cache */

/* One contribution to a pass. */
struct kernel_src {
	const void *g; /* n elements of `dtype`, any alignment of the element size */
	double coef;   /* multiplies every element, rounded to the accumulator's dtype first */
};

/* Per-block results, one per KERNEL_BLOCK elements of the range (the last may be short).
 * Either pointer may be NULL: not computed. */
struct kernel_partials {
	/* sum of squares of the values written: f32 lanes in the block (f64 for f64 arrays), widened */
	double *sumsq;
	/* of the block's 32-bit words w with fixed keys k: sum over pairs of (w0 + k0) * (w1 + k1) mod 2^64; combine
	 * with kernel_digest_combine. Finds accidents, not adversaries */
	uint64_t *digest;
	uint32_t *nonfinite; /* number of values written that are inf or NaN */
};

/* Scalars of one optimizer update; one struct per parameter group, computed in f64 by optim.h and rounded once. */
struct kernel_update {
	float scale;	  /* gradient = scale * sum: clip / (divisor * loss_scale) */
	float clip_value; /* then clamped to +-clip_value; 0 = off */
	float lr;
	float weight_decay;
	float momentum, one_minus_dampening; /* SGD */
	bool nesterov;
	bool first; /* SGD: first applied step, the momentum buffer becomes the gradient */
	float beta1, one_minus_beta1, beta2, one_minus_beta2, eps; /* Adam */
	float step_size;					   /* lr / (1 - beta1^t) */
	float inv_bias2_sqrt;					   /* 1 / sqrt(1 - beta2^t) */
	float decay;						   /* AdamW: 1 - lr * weight_decay */
	float inv_bias1;					   /* LAMB: 1 / (1 - beta1^t) */
};

/* What an update reads and writes; unused pointers are NULL. */
struct kernel_params {
	float *p;  /* f32 parameters or master, n elements; NULL when p16 is the only copy */
	void *p16; /* 16-bit copy (with p) or only copy (without) */
	enum dtype p16_dtype;
	float *m, *v; /* state: SGD with momentum uses m */
};

/* Makes an update repeatable after a death between any two instructions. Units of KERNEL_UNIT elements of a call (the
 * last may be short) are numbered from `first`. Before anything of unit u is overwritten, its old p, m, v are in half u
 * & 1 of the area, and *stamp is u << 1 | 1. All in program order, which is all that a killed thread leaves behind;
 * nothing is ordered for other processors. The other half holds unit u - 1 until *stamp has left it. After the call
 * *stamp names the last unit. */
struct kernel_undo {
	void *area; /* KERNEL_UNDO_BYTES, 64-byte aligned */
	_Atomic uint64_t *stamp;
	uint64_t first;
};
#define KERNEL_UNDO_HALF (KERNEL_UNIT * 3 * 4)
#define KERNEL_UNDO_BYTES (2 * KERNEL_UNDO_HALF)

/* Per-block results of LAMB's first phase, as kernel_partials.sumsq: of the parameters and of the directions. */
struct kernel_lamb_norms {
	double *param, *direction;
};

typedef void kernel_accumulate_fn(void *dst, const void *src, bool first, enum dtype acc_dtype,
				  const struct kernel_src *s, int k, enum dtype g_dtype, size_t n,
				  uint64_t *src_nonfinite, const struct kernel_partials *out);
typedef void kernel_update_fn(const struct kernel_params *, const void *g, enum dtype acc_dtype, size_t n,
			      const struct kernel_update *, const struct kernel_undo *,
			      const struct kernel_partials *out);

struct kernels {
	const char *name; /* "reference", "sse2", "avx2", "avx512" */

	/* dst = (first ? 0 : src) + coef[0]*g[0] + coef[1]*g[1] + ..., added left to right, so that k sources in one
	 * pass give the bits of k passes (and first with k = 1 stores coef*g + 0, i.e. -0 becomes +0 like every
	 * other sum). dst and src are accumulators of acc_dtype (F32 or F64), different arrays; stores are
	 * non-temporal, fenced before return. k may be 0: a copy, or zeros when first.
	 * src_nonfinite: NULL, or one counter per source to which the number of its non-finite products is added.
	 * `out` describes the values written. g_dtype: F32, F16, BF16 (F64 only into F64). */
	kernel_accumulate_fn *accumulate;
	/* The same with plain stores, for arenas of up to KERNEL_CACHED_ELEMENTS: they stay in the cache. */
	kernel_accumulate_fn *accumulate_cached;

	/* Partials of an array as it is. dtype F32, F64, F16 or BF16 (16-bit: digest only). */
	void (*inspect)(const void *a, enum dtype dtype, size_t n, const struct kernel_partials *out);

	/* dst(f32 or f64, same dtype) = scale * src, out of place; reduced gradients for the client optimizer. */
	void (*scale)(void *dst, const void *src, enum dtype dtype, double scale, float clip_value, size_t n);

	/* Optimizer updates in place. g: the summed gradients (acc_dtype). undo: NULL, or where to save. out: NULL, or
	 * digests of the parameters written (of p16 where it is the only copy, else of p), and how many elements have a
	 * p, p16 or v that is inf or NaN after it; no sumsq. (m is not looked at: no finite p comes from an m that is
	 * not.) Formulas: optim.h, with the weight decay always added, also when it is 0. A p16 beside p is written
	 * past the cache, and not saved. */
	kernel_update_fn *sgd;
	kernel_update_fn *adam;	 /* L2 weight decay in the gradient */
	kernel_update_fn *adamw; /* decoupled weight decay */
	/* LAMB's second phase: p -= lr * direction(p, m, v); g is not used, m and v stay. */
	kernel_update_fn *lamb;
	/* LAMB's first phase: m and v take the gradient (g NULL: they have it), then the norms. p stays. */
	void (*lamb_moments)(const struct kernel_params *, const void *g, enum dtype acc_dtype, size_t n,
			     const struct kernel_update *, const struct kernel_undo *,
			     const struct kernel_lamb_norms *out);

	/* Conversions, round to nearest even. 16-bit dtypes only on the 16-bit side. */
	void (*to_f32)(float *dst, const void *src, enum dtype src_dtype, size_t n);
	void (*from_f32)(void *dst, enum dtype dst_dtype, const float *src, size_t n);
};

/* Best table for this CPU, or the one named ("reference", "sse2", ...); NULL when the CPU cannot run it. */
const struct kernels *kernels_get(const char *name_or_null);
/* All tables that this CPU can run, reference first; returns how many. */
int kernels_list(const struct kernels *const **out);

/* Puts the n elements of unit `number` back: params points at its first. */
void kernel_undo_restore(const void *area, uint64_t number, const struct kernel_params *a, size_t n);

/* Sum of the block partials in a fixed pairwise tree. */
double kernel_sum(const double *block_sumsq, size_t n_blocks);
/* Digest of an arena from its block digests; block numbers count from `first_block`. Sums mod 2^64, so that
 * ranges may be combined in any order: total = sum over ranges. */
uint64_t kernel_digest_combine(const uint64_t *block_digest, size_t n_blocks, uint64_t first_block);

#endif
