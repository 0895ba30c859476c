/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels for NVIDIA GPUs: what they take, and what they promise to an engine that may die while they run.
 *
 * They compute what kernels.h defines, with the same bits as every other table when subnormals count as zero, as they
 * do in the engine's threads. f64 accumulators are left out. All pointers are device addresses. Each kernel has one
 * argument, a struct by value; it is launched with CUDA_THREADS threads and any number of blocks, where nothing else is
 * said. No kernel waits for another block.
 *
 * The gate. A GPU may go on with a launch after its process has died, and a successor adopts the memory. So every
 * kernel begins with struct cuda_pass: its block adds 1 to begun[generation], then reads the gate, and looks at it
 * again at each tile or unit; if the gate has another generation, it leaves. At its end all that it has stored is
 * visible, and it adds 1 to ended[generation]. A new life launches open_gate with a larger generation, waits for it,
 * and then waits until begun equals ended in each other cell: from then on no older block writes anything but counters.
 * A cell whose life is known to be over otherwise may stay unequal; cells are never reset. `left` counts blocks that
 * left early: to find its own cell of that changed means that there is a younger life.
 *
 * An update. Each share has one block, a stamp and an undo area of two halves. Units have KERNEL_BLOCK elements, the
 * last of a range may be shorter; they are numbered as chunks in engine/update.h, share s of k owning the units [first
 * + n * s / k, first + n * (s + 1) / k). For each unit u, its number including `base`:
 *
 *   load p, m, v        from the arena; from half u & 1 if the stamp was found held at u
 *   save p, m, v        to half u & 1, unless held; every thread's fence, then a barrier
 *   stamp := u, held    by compare and swap from the last value; if it fails, the block leaves. Fence, barrier
 *   overwrite           p, m, v, and the 16-bit copy
 *   after the last      fence, barrier, stamp := end, not held, by compare and swap
 *
 * The fence after saving unit u also covers what was overwritten in unit u - 1. So when a stamp names u, held: all
 * units below are done, the half of u is whole, u may be a mixture and the rest is untouched; and dead before that, u -
 * 1 is held and its values are in the other half. A block of an older life that is still between saving and stamping
 * fails at the stamp, because stamps carry the generation; one that is already overwriting writes the bits that its
 * successor writes. update_begin sets the stamps of a window to its beginning, with a launch of its own.
 */
#ifndef GACC_MATH_KERNELS_CUDA_H
#define GACC_MATH_KERNELS_CUDA_H

#include "math/dtype.h"
#include "math/kernel_sizes.h"

#include <stdint.h>

/* Of what a successor finds in device memory: gate, stamps, undo areas, units. */
#define CUDA_KERNELS_ABI 1
#define CUDA_THREADS 256
#define CUDA_TILE 8	    /* reduction blocks that a block works on together */
#define CUDA_GENERATIONS 64 /* cells of the gate */
#define CUDA_LEAF 8	    /* blocks that kernel_sum adds from left to right */

typedef unsigned long long cuda_word; /* uint64_t, as CUDA's atomic operations want it */

/* Zeroed when the memory is made. */
struct cuda_gate {
	cuda_word generation;
	cuda_word begun[CUDA_GENERATIONS], ended[CUDA_GENERATIONS], left[CUDA_GENERATIONS]; /* [generation % them] */
};

struct cuda_pass {
	struct cuda_gate *gate;
	cuda_word generation; /* of the life that launches */
};

/* open_gate: the gate's generation becomes this one, unless it is larger already. */
struct cuda_open {
	struct cuda_pass pass;
};

/* Per-block results, as struct kernel_partials; NULL: not computed. */
struct cuda_partials {
	double *sumsq;
	cuda_word *digest;
	uint32_t *nonfinite;
};

/* The sources of the elements from `start` on, as bits; runs ascend. */
struct cuda_run {
	uint64_t start;
	uint32_t sources, reserved;
};

/* add_<dtype>_<k> with dtype f32, bf16, f16 and k 1, 2, 4, 8: dst = (src ? src : 0) + coef[0] * g[0] + .. of up to k
 * sources, for n elements, a multiple of KERNEL_BLOCK. add_<dtype>_<k>_norm: and `out`, all of it. */
struct cuda_add {
	struct cuda_pass pass;
	float *dst;
	const float *src; /* NULL: first */
	const void *g[KERNEL_MAX_SLOTS];
	float coef[KERNEL_MAX_SLOTS];
	uint64_t n;
	const struct cuda_run *run; /* the first begins at 0, all at multiples of 4 elements */
	uint32_t n_runs;	    /* 0: all sources everywhere */
	uint32_t n_sources;	    /* 0 to k */
	cuda_word *src_nonfinite;   /* [n_sources] or NULL: non-finite products are added */
	struct cuda_partials out;
	const uint32_t *keys; /* digest_key */
};

/* scale: dst = clamp(scale * src) to +-limit (inf: not), n a multiple of 4. */
struct cuda_scale {
	struct cuda_pass pass;
	float *dst;
	const float *src;
	float scale, limit;
	uint64_t n;
};

/* Elements of an array whose blocks are counted from `start`, a multiple of 4. */
struct cuda_span {
	uint64_t start, count;
	uint64_t first_block; /* of this span in `out`; spans ascend by it without gaps */
};

/* inspect_f32, inspect_bf16, inspect_f16: partials of spans. Digests are of the words as they are, sums of squares and
 * counts of the values as f32. Reads up to 4 elements from each multiple of 4 inside of a span. */
struct cuda_inspect {
	struct cuda_pass pass;
	const void *values;
	const struct cuda_span *span;
	uint64_t n_spans, n_blocks;
	struct cuda_partials out;
	const uint32_t *keys;
};

struct cuda_total {
	double sumsq;
	cuda_word digest, nonfinite;
};

/* collect_blocks: totals of runs of CUDA_LEAF * CUDA_THREADS blocks, the first of which is block 0 of its arena, from
 * `in`; collect_totals: of runs of CUDA_THREADS totals, from `from`. As many as leave one total give kernel_sum and
 * kernel_digest_combine. */
struct cuda_collect {
	struct cuda_pass pass;
	struct cuda_partials in;
	const struct cuda_total *from;
	uint64_t n; /* blocks, or totals */
	struct cuda_total *out;
};

/* copy_bytes: any alignment; `from` may be registered host memory. */
struct cuda_copy {
	struct cuda_pass pass;
	void *to;
	const void *from;
	uint64_t bytes;
};

struct cuda_gap {
	uint64_t from, to; /* bytes, even */
};

/* zero_bytes: `bytes` from base on, both even. zero_gaps: those gaps of base. */
struct cuda_zero {
	struct cuda_pass pass;
	void *base;
	uint64_t bytes;
	const struct cuda_gap *gap;
	uint64_t n_gaps;
};

/* widen_bf16, widen_f16: n elements of 16 bits to f32, a multiple of 4. */
struct cuda_widen {
	struct cuda_pass pass;
	float *dst;
	const void *src;
	uint64_t n;
};

/* struct kernel_update. limit: its clip_value, inf when that is 0. */
struct cuda_scalars {
	float scale, limit, lr, weight_decay;
	float momentum, one_minus_dampening;
	float one_minus_beta1, beta2, one_minus_beta2, eps;
	float step_size, inv_bias2_sqrt, decay, inv_bias1;
	uint32_t nesterov, first;
};

/* Consecutive elements with the same scalars: the plan's range. Pointers are to its first element, as struct
 * kernel_params; all may be loaded by 4 elements. */
struct cuda_range {
	uint64_t first_unit, count; /* ranges ascend by unit without gaps; count is a multiple of 4 */
	float *p, *m, *v;
	void *p16;
	const float *g;
	float lr; /* LAMB: lr * trust ratio */
	uint32_t scalars;
	uint32_t p16_dtype; /* enum dtype */
	uint32_t frozen;    /* nothing is updated; digests are taken */
};

/* Window 16 bits, generation 8, number of the unit 39, held 1. */
#define CUDA_STAMP_UNITS (1ull << 39)
#define CUDA_STAMP(window, generation, unit, held)                                                                     \
	((cuda_word)((window)&0xffff) << 48 | (cuda_word)((generation)&0xff) << 40 | (cuda_word)(unit) << 1 | (held))
#define CUDA_STAMP_WINDOW(stamp) ((stamp) >> 48)
#define CUDA_STAMP_UNIT(stamp) ((stamp) >> 1 & (CUDA_STAMP_UNITS - 1))
#define CUDA_STAMP_HELD(stamp) ((stamp)&1)

#define CUDA_UNDO_HALF (3 * KERNEL_BLOCK) /* floats: p (or 16-bit values in half of the place), m, v */

/* sgd, adam, adamw, lamb: updates, of as many shares as blocks are launched. lamb_moments: LAMB's first phase, with
 * norms. lamb_norms: those norms alone, of moments that are done. update_begin: the stamps of [first, first + n) in
 * n_shares shares are set to their beginning, by one thread each. */
struct cuda_update {
	struct cuda_pass pass;
	cuda_word window;
	cuda_word *stamp;  /* [shares] */
	float *undo;	   /* [shares][2][CUDA_UNDO_HALF] */
	uint64_t first, n; /* units */
	uint64_t base;	   /* added to a unit's number in stamps: where a phase begins */
	uint64_t n_shares; /* update_begin */
	const struct cuda_range *range;
	uint64_t n_ranges;
	const struct cuda_scalars *scalars;
	cuda_word *digest;	   /* [n] or NULL: of the values that count */
	uint32_t *nonfinite;	   /* [n] or NULL: elements with a p, p16 or v that is inf or NaN */
	double *param, *direction; /* [n]: lamb_moments, lamb_norms */
	const uint32_t *keys;
};

#endif
