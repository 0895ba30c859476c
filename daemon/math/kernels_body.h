/* SPDX-License-Identifier: Apache-2.0 */
/* The fast kernels, once for every instruction set: bit for bit what kernels_ref.c defines. Included by
 * kernels_<isa>.c after VBYTES, KERNELS_TABLE, KERNELS_NAME and the v_* operations. Private to math.
 *
 * All loops go by units of 64 elements, in which every stream moves whole cache lines: one unit reads, computes,
 * tallies and writes before the next begins, so nothing is read twice and the partials ride along in registers. What is
 * left of a range after its last whole unit goes through the reference.
 */
#define UNIT KERNEL_UNIT
#define UNIT_ROWS (UNIT / ROW)
#define LANE_ROWS (KERNEL_LANES / ROW)
#define UNROLL _Pragma("GCC unroll 16")
/* How far ahead of the loads the next lines are asked for. Worth up to a tenth with few streams of f32, and a twentieth
 * in passes that read one stream of 16 bits and nothing else. Beside non-temporal stores it costs as much with other
 * 16-bit sources, and up to a third with more than PREFETCH_SOURCES (Zen 5). */
#define AHEAD_BYTES 2048
#define PREFETCH_SOURCES 2
_Static_assert(KERNEL_BLOCK % UNIT == 0 && UNIT % KERNEL_LANES == 0, "units tile blocks, lanes tile units");

INLINE size_t min_size(size_t a, size_t b)
{
	return a < b ? a : b;
}

INLINE void prefetch(const void *p, size_t bytes)
{
	UNROLL for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch((const char *)p + at + AHEAD_BYTES);
}

/* Partials of the block in work. */
struct tally {
	vf sumsq[LANE_ROWS];
	vu64 digest;
	vi nonfinite;
};

/* All ones in the lanes that are inf or NaN. */
INLINE vi v_nonfinite(vf x)
{
	return (vi)(((vu)x & 0x7f800000) == 0x7f800000);
}

INLINE vu64 digest_row(vu words, const uint32_t *key)
{
	vu sum = words + (vu)v_load((const float *)key);
	return v_mul32(sum, (vu)((vu64)sum >> 32));
}

INLINE uint64_t add_lanes64(vu64 x)
{
	uint64_t sum = 0;
	for (size_t i = 0; i < VBYTES / 8; i++)
		sum += x[i];
	return sum;
}

INLINE uint32_t add_lanes(vi x)
{
	uint32_t sum = 0;
	for (size_t i = 0; i < ROW; i++)
		sum += (uint32_t)x[i];
	return sum;
}

/* Adds one unit; `at` is its place in the block. */
INLINE void tally_unit(struct tally *t, const vf x[UNIT_ROWS], size_t at, const struct kernel_partials *out)
{
	if (out->sumsq)
		UNROLL for (int r = 0; r < UNIT_ROWS; r++) t->sumsq[r % LANE_ROWS] += x[r] * x[r];
	if (out->nonfinite)
		UNROLL for (int r = 0; r < UNIT_ROWS; r++) t->nonfinite -= v_nonfinite(x[r]);
	if (out->digest)
		UNROLL for (int r = 0; r < UNIT_ROWS; r++) t->digest +=
			digest_row((vu)x[r], digest_key + at + (size_t)r * ROW);
}

/* Adds the last n < UNIT elements of a range. */
static struct tally tally_rest(struct tally t, const float *a, size_t n, size_t at, const struct kernel_partials *out)
{
	float padded[UNIT] = { 0 };
	vf x[UNIT_ROWS];
	memcpy(padded, a, n * sizeof(*a));
	for (int r = 0; r < UNIT_ROWS; r++)
		x[r] = v_load(padded + r * ROW);
	tally_unit(&t, x, at, &(struct kernel_partials){ .sumsq = out->sumsq, .nonfinite = out->nonfinite });
	t.digest[0] += digest_pairs(a, n * sizeof(*a), digest_key + at);
	return t;
}

INLINE void tally_finish(const struct tally *t, size_t block, const struct kernel_partials *out)
{
	if (out->sumsq) {
		float lane[KERNEL_LANES];
		memcpy(lane, t->sumsq, sizeof(lane));
		for (int half = KERNEL_LANES / 2; half; half /= 2)
			for (int j = 0; j < half; j++)
				lane[j] += lane[j + half];
		out->sumsq[block] = lane[0];
	}
	if (out->nonfinite)
		out->nonfinite[block] = add_lanes(t->nonfinite);
	if (out->digest)
		out->digest[block] = add_lanes64(t->digest);
}

static const struct kernel_partials no_partials;

/* ---- accumulate ---- */

/* The sources of a pass, coefficients rounded, and the non-finite products of the block in work. */
struct sources {
	const char *g[KERNEL_MAX_SLOTS];
	float coef[KERNEL_MAX_SLOTS];
	vi nonfinite[KERNEL_MAX_SLOTS];
	int k;
	bool stream; /* past the cache */
};

INLINE vf load_row(const void *p, enum dtype t)
{
	return t == DTYPE_F32 ? v_load(p) : t == DTYPE_BF16 ? v_load_bf16(p) : v_load_f16(p);
}

/* Elements i .. i + UNIT - 1 of dst. */
INLINE void accumulate_unit(float *dst, const float *src, struct sources *s, enum dtype t, size_t i, bool count,
			    vf x[UNIT_ROWS])
{
	bool ahead = t == DTYPE_F32 ? s->k <= PREFETCH_SOURCES : s->k == 1 && !src;
	if (src && ahead)
		prefetch(src + i, UNIT * sizeof(*src));
	UNROLL for (int r = 0; r < UNIT_ROWS; r++) x[r] = src ? v_load(src + i + (size_t)r * ROW) : (vf){ 0 };
	for (int j = 0; j < s->k; j++) {
		const char *g = s->g[j] + i * dtype_size(t);
		vi bad = { 0 };
		if (ahead)
			prefetch(g, UNIT * dtype_size(t));
		UNROLL for (int r = 0; r < UNIT_ROWS; r++)
		{
			vf product = s->coef[j] * load_row(g + (size_t)r * ROW * dtype_size(t), t);
			if (count)
				bad -= v_nonfinite(product);
			x[r] += product;
		}
		if (count)
			s->nonfinite[j] += bad;
	}
	UNROLL for (int r = 0; r < UNIT_ROWS; r++) if (s->stream) v_stream(dst + i + (size_t)r * ROW, x[r]);
	else v_store(dst + i + (size_t)r * ROW, x[r]);
}

/* The last n < UNIT elements of a range, from element i on. */
static void accumulate_rest(float *dst, const float *src, const struct sources *s, enum dtype t, size_t i, size_t n,
			    uint64_t *src_nonfinite)
{
	struct kernel_src rest[KERNEL_MAX_SLOTS];
	for (int j = 0; j < s->k; j++)
		rest[j] = (struct kernel_src){ s->g[j] + i * dtype_size(t), s->coef[j] };
	kernels_reference.accumulate(dst + i, src ? src + i : NULL, !src, DTYPE_F32, rest, s->k, t, n, src_nonfinite,
				     NULL);
}

INLINE void accumulate_range(float *dst, const float *src, struct sources *s, enum dtype t, size_t n,
			     uint64_t *src_nonfinite, const struct kernel_partials *out)
{
	for (size_t start = 0; start < n; start += KERNEL_BLOCK) {
		struct tally tally = { 0 };
		size_t end = start + min_size(n - start, KERNEL_BLOCK), i = start;
		for (; end - i >= UNIT; i += UNIT) {
			vf x[UNIT_ROWS];
			accumulate_unit(dst, src, s, t, i, src_nonfinite, x);
			tally_unit(&tally, x, i - start, out);
		}
		if (i < end) {
			accumulate_rest(dst, src, s, t, i, end - i, src_nonfinite);
			tally = tally_rest(tally, dst + i, end - i, i - start, out);
		}
		tally_finish(&tally, start / KERNEL_BLOCK, out);
		for (int j = 0; src_nonfinite && j < s->k; j++) {
			src_nonfinite[j] += add_lanes(s->nonfinite[j]);
			s->nonfinite[j] = (vi){ 0 };
		}
	}
}

static void accumulate(void *dst, const void *src, bool first, enum dtype acc_dtype, const struct kernel_src *src_g,
		       int k, enum dtype g_dtype, size_t n, uint64_t *src_nonfinite, const struct kernel_partials *out,
		       bool stream)
{
	if (acc_dtype == DTYPE_F64) {
		kernels_reference.accumulate(dst, src, first, acc_dtype, src_g, k, g_dtype, n, src_nonfinite, out);
		return;
	}
	struct sources s = { .k = k, .stream = stream };
	for (int j = 0; j < k; j++) {
		s.g[j] = src_g[j].g;
		s.coef[j] = (float)src_g[j].coef;
	}
	const float *from = first ? NULL : src;
	if (!out)
		out = &no_partials;
	if (g_dtype == DTYPE_BF16)
		accumulate_range(dst, from, &s, DTYPE_BF16, n, src_nonfinite, out);
	else if (g_dtype == DTYPE_F16)
		accumulate_range(dst, from, &s, DTYPE_F16, n, src_nonfinite, out);
	else
		accumulate_range(dst, from, &s, DTYPE_F32, n, src_nonfinite, out);
	_mm_sfence();
}

static void fast_accumulate(void *dst, const void *src, bool first, enum dtype acc_dtype, const struct kernel_src *s,
			    int k, enum dtype g_dtype, size_t n, uint64_t *src_nonfinite,
			    const struct kernel_partials *out)
{
	accumulate(dst, src, first, acc_dtype, s, k, g_dtype, n, src_nonfinite, out, true);
}

static void fast_accumulate_cached(void *dst, const void *src, bool first, enum dtype acc_dtype,
				   const struct kernel_src *s, int k, enum dtype g_dtype, size_t n,
				   uint64_t *src_nonfinite, const struct kernel_partials *out)
{
	accumulate(dst, src, first, acc_dtype, s, k, g_dtype, n, src_nonfinite, out, false);
}

/* ---- inspect, scale, conversions ---- */

/* Digest of n 16-bit elements, n <= KERNEL_BLOCK. */
static uint64_t digest16(const uint16_t *a, size_t n)
{
	vu64 sum = { 0 };
	size_t i = 0;
	for (; n - i >= 2 * ROW; i += 2 * ROW)
		sum += digest_row((vu)v_load((const void *)(a + i)), digest_key + i / 2);
	return add_lanes64(sum) + digest_pairs(a + i, (n - i) * sizeof(*a), digest_key + i / 2);
}

static void inspect_f32(const float *a, size_t n, const struct kernel_partials *out)
{
	for (size_t start = 0; start < n; start += KERNEL_BLOCK) {
		struct tally tally = { 0 };
		size_t end = start + min_size(n - start, KERNEL_BLOCK), i = start;
		for (; end - i >= UNIT; i += UNIT) {
			vf x[UNIT_ROWS];
			prefetch(a + i, UNIT * sizeof(*a));
			UNROLL for (int r = 0; r < UNIT_ROWS; r++) x[r] = v_load(a + i + (size_t)r * ROW);
			tally_unit(&tally, x, i - start, out);
		}
		if (i < end)
			tally = tally_rest(tally, a + i, end - i, i - start, out);
		tally_finish(&tally, start / KERNEL_BLOCK, out);
	}
}

static void fast_inspect(const void *a, enum dtype t, size_t n, const struct kernel_partials *out)
{
	if (t == DTYPE_F32)
		inspect_f32(a, n, out);
	else if (t == DTYPE_F64 || out->sumsq || out->nonfinite)
		kernels_reference.inspect(a, t, n, out);
	else if (out->digest)
		for (size_t i = 0; i < n; i += KERNEL_BLOCK)
			out->digest[i / KERNEL_BLOCK] =
				digest16((const uint16_t *)a + i, min_size(n - i, KERNEL_BLOCK));
}

/* scale * g, clamped to +-limit; a NaN stays one (v_min and v_max return their second argument then). */
INLINE vf v_gradient(vf g, float scale, float limit)
{
	return v_max((vf){ 0 } - limit, v_min((vf){ 0 } + limit, scale * g));
}

static void fast_scale(void *dst, const void *src, enum dtype dtype, double scale, float clip_value, size_t n)
{
	float limit = clip_value > 0 ? clip_value : __builtin_inff();
	size_t i = 0;
	for (; dtype == DTYPE_F32 && n - i >= UNIT; i += UNIT) {
		const float *from = (const float *)src + i;
		prefetch(from, UNIT * sizeof(*from));
		UNROLL for (size_t r = 0; r < UNIT; r += ROW)
			v_stream((float *)dst + i + r, v_gradient(v_load(from + r), (float)scale, limit));
	}
	_mm_sfence();
	size_t done = i * dtype_size(dtype);
	kernels_reference.scale((char *)dst + done, (const char *)src + done, dtype, scale, clip_value, n - i);
}

static void fast_to_f32(float *dst, const void *src, enum dtype t, size_t n)
{
	size_t i = 0;
	for (; n - i >= ROW; i += ROW)
		v_store(dst + i, load_row((const char *)src + i * dtype_size(t), t));
	kernels_reference.to_f32(dst + i, (const char *)src + i * dtype_size(t), t, n - i);
}

INLINE vu16 to_row16(enum dtype t, vf x)
{
	return t == DTYPE_BF16 ? v_to_bf16(x) : v_to_f16(x);
}

static void fast_from_f32(void *dst, enum dtype t, const float *src, size_t n)
{
	size_t i = 0;
	for (; t != DTYPE_F32 && n - i >= ROW; i += ROW) {
		vu16 h = to_row16(t, v_load(src + i));
		memcpy((uint16_t *)dst + i, &h, sizeof(h));
	}
	kernels_reference.from_f32((char *)dst + i * dtype_size(t), t, src + i, n - i);
}

#include "math/kernels_update.h"

const struct kernels KERNELS_TABLE = {
	.name = KERNELS_NAME,
	.accumulate = fast_accumulate,
	.accumulate_cached = fast_accumulate_cached,
	.inspect = fast_inspect,
	.scale = fast_scale,
	.sgd = fast_sgd,
	.adam = fast_adam,
	.adamw = fast_adamw,
	.lamb = fast_lamb,
	.lamb_moments = fast_lamb_moments,
	.to_f32 = fast_to_f32,
	.from_f32 = fast_from_f32,
};
