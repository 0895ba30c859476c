/* SPDX-License-Identifier: Apache-2.0 */
/* The definition: every table must give these bits. Written to be read, one element at a time.
 *
 * The formulas are not shared with kernels_body.h: tests compare the two, and a mistake in common code would be in
 * both. Shared is only what works on bits (kernels_scalar.h), which has tests of its own against all 65536 halves and
 * against torch. */
#include "math/kernels_scalar.h"

#include <math.h>

#define N_BLOCKS(n) (((n) + KERNEL_BLOCK - 1) / KERNEL_BLOCK)

/* Key i is the upper half of the (i+1)-th output of splitmix64 from state 0: fixed, well mixed numbers. */
#define K1(i) (uint32_t)(MIX(((uint64_t)(i) + 1) * GOLDEN) >> 32)
#define K8(i) K1(i), K1(i + 1), K1(i + 2), K1(i + 3), K1(i + 4), K1(i + 5), K1(i + 6), K1(i + 7)
#define K64(i) K8(i), K8(i + 8), K8(i + 16), K8(i + 24), K8(i + 32), K8(i + 40), K8(i + 48), K8(i + 56)
#define K512(i) K64(i), K64(i + 64), K64(i + 128), K64(i + 192), K64(i + 256), K64(i + 320), K64(i + 384), K64(i + 448)
const uint32_t digest_key[DIGEST_KEYS] __attribute__((aligned(64))) = { K512(0), K512(512), K512(1024), K512(1536) };

static size_t min_size(size_t a, size_t b)
{
	return a < b ? a : b;
}

static float load_f32(const void *a, enum dtype t, size_t i)
{
	switch (t) {
	case DTYPE_F16:
		return f16_to_f32(((const uint16_t *)a)[i]);
	case DTYPE_BF16:
		return bf16_to_f32(((const uint16_t *)a)[i]);
	default:
		return ((const float *)a)[i];
	}
}

static double load_f64(const void *a, enum dtype t, size_t i)
{
	return t == DTYPE_F64 ? ((const double *)a)[i] : load_f32(a, t, i);
}

static void store_f32(void *a, enum dtype t, size_t i, float x)
{
	if (t == DTYPE_F16)
		((uint16_t *)a)[i] = f16_from_f32(x);
	else if (t == DTYPE_BF16)
		((uint16_t *)a)[i] = bf16_from_f32(x);
	else
		((float *)a)[i] = x;
}

static bool is_nonfinite(double x)
{
	return !isfinite(x);
}

static double sumsq_f32(const float *a, size_t n)
{
	float lane[KERNEL_LANES] = { 0 };
	for (size_t i = 0; i < n; i++)
		lane[i % KERNEL_LANES] += a[i] * a[i];
	for (int half = KERNEL_LANES / 2; half; half /= 2)
		for (int j = 0; j < half; j++)
			lane[j] += lane[j + half];
	return lane[0];
}

static double sumsq_f64(const double *a, size_t n)
{
	double lane[KERNEL_LANES] = { 0 };
	for (size_t i = 0; i < n; i++)
		lane[i % KERNEL_LANES] += a[i] * a[i];
	for (int half = KERNEL_LANES / 2; half; half /= 2)
		for (int j = 0; j < half; j++)
			lane[j] += lane[j + half];
	return lane[0];
}

static void ref_inspect(const void *a, enum dtype t, size_t n, const struct kernel_partials *out)
{
	for (size_t b = 0; b < N_BLOCKS(n); b++) {
		size_t count = min_size(n - b * KERNEL_BLOCK, KERNEL_BLOCK);
		const void *block = (const char *)a + b * KERNEL_BLOCK * dtype_size(t);
		if (out->digest)
			out->digest[b] = digest_pairs(block, count * dtype_size(t), digest_key);
		if (out->sumsq)
			out->sumsq[b] = t == DTYPE_F64 ? sumsq_f64(block, count) : sumsq_f32(block, count);
		if (out->nonfinite) {
			out->nonfinite[b] = 0;
			for (size_t i = 0; i < count; i++)
				out->nonfinite[b] += is_nonfinite(load_f64(block, t, i));
		}
	}
}

static void accumulate_f32(float *dst, const float *src, bool first, const struct kernel_src *s, int k,
			   enum dtype g_dtype, size_t n, uint64_t *src_nonfinite)
{
	for (size_t i = 0; i < n; i++) {
		float sum = first ? 0 : src[i];
		for (int j = 0; j < k; j++) {
			float product = (float)s[j].coef * load_f32(s[j].g, g_dtype, i);
			if (src_nonfinite)
				src_nonfinite[j] += is_nonfinite(product);
			sum += product;
		}
		dst[i] = sum;
	}
}

static void accumulate_f64(double *dst, const double *src, bool first, const struct kernel_src *s, int k,
			   enum dtype g_dtype, size_t n, uint64_t *src_nonfinite)
{
	for (size_t i = 0; i < n; i++) {
		double sum = first ? 0 : src[i];
		for (int j = 0; j < k; j++) {
			double product = s[j].coef * load_f64(s[j].g, g_dtype, i);
			if (src_nonfinite)
				src_nonfinite[j] += is_nonfinite(product);
			sum += product;
		}
		dst[i] = sum;
	}
}

static void ref_accumulate(void *dst, const void *src, bool first, enum dtype acc_dtype, const struct kernel_src *s,
			   int k, enum dtype g_dtype, size_t n, uint64_t *src_nonfinite,
			   const struct kernel_partials *out)
{
	if (acc_dtype == DTYPE_F64)
		accumulate_f64(dst, src, first, s, k, g_dtype, n, src_nonfinite);
	else
		accumulate_f32(dst, src, first, s, k, g_dtype, n, src_nonfinite);
	if (out)
		ref_inspect(dst, acc_dtype, n, out);
}

static void ref_scale(void *dst, const void *src, enum dtype dtype, double scale, float clip_value, size_t n)
{
	double limit = clip_value > 0 ? clip_value : INFINITY;
	for (size_t i = 0; i < n; i++) {
		double x =
			dtype == DTYPE_F64 ? scale * ((const double *)src)[i] : (float)scale * ((const float *)src)[i];
		x = x < -limit ? -limit : x > limit ? limit : x;
		if (dtype == DTYPE_F64)
			((double *)dst)[i] = x;
		else
			((float *)dst)[i] = (float)x;
	}
}

/* Gradient i of an update: unscaled, then clamped; a NaN stays one. */
static float gradient(const void *g, enum dtype acc_dtype, size_t i, const struct kernel_update *u)
{
	float limit = u->clip_value > 0 ? u->clip_value : INFINITY;
	float x = acc_dtype == DTYPE_F64 ? (float)((double)u->scale * ((const double *)g)[i])
					 : u->scale * ((const float *)g)[i];
	return x < -limit ? -limit : x > limit ? limit : x;
}

static float sgd_one(float p, float *m, float g, const struct kernel_update *u)
{
	g += u->weight_decay * p;
	if (m) {
		*m = u->first ? g : u->momentum * *m + u->one_minus_dampening * g;
		g = u->nesterov ? g + u->momentum * *m : *m;
	}
	return p - u->lr * g;
}

static void moments_one(float *m, float *v, float g, const struct kernel_update *u)
{
	*m = *m + u->one_minus_beta1 * (g - *m);
	*v = u->beta2 * *v + u->one_minus_beta2 * g * g;
}

static float adam_one(float p, float *m, float *v, float g, const struct kernel_update *u)
{
	moments_one(m, v, g, u);
	return p - u->step_size * *m / (sqrtf(*v) * u->inv_bias2_sqrt + u->eps);
}

static float direction(float p, float m, float v, const struct kernel_update *u)
{
	return m * u->inv_bias1 / (sqrtf(v) * u->inv_bias2_sqrt + u->eps) + u->weight_decay * p;
}

enum rule { RULE_SGD, RULE_ADAM, RULE_ADAMW, RULE_LAMB };

static float update_one(enum rule rule, const struct kernel_params *a, size_t i, float p, const void *g,
			enum dtype acc_dtype, const struct kernel_update *u)
{
	switch (rule) {
	case RULE_SGD:
		return sgd_one(p, a->m ? a->m + i : NULL, gradient(g, acc_dtype, i, u), u);
	case RULE_ADAM:
		return adam_one(p, a->m + i, a->v + i, gradient(g, acc_dtype, i, u) + u->weight_decay * p, u);
	case RULE_ADAMW:
		return adam_one(p * u->decay, a->m + i, a->v + i, gradient(g, acc_dtype, i, u), u);
	default:
		return p - u->lr * direction(p, a->m[i], a->v[i], u);
	}
}

static void *values_of(const struct kernel_params *a, enum dtype *out)
{
	*out = a->p ? DTYPE_F32 : a->p16_dtype;
	return a->p ? (void *)a->p : a->p16;
}

/* Saves elements i .. i + n - 1, n <= KERNEL_UNIT, i a multiple of it. */
static void save(const struct kernel_undo *undo, const struct kernel_params *a, size_t i, size_t n)
{
	const uint64_t k = i / KERNEL_UNIT, number = undo->first + k;
	enum dtype t;
	const char *p = values_of(a, &t);
	memcpy(undo_place(undo->area, number, 0), p + i * dtype_size(t), n * dtype_size(t));
	if (a->m)
		memcpy(undo_place(undo->area, number, 1), a->m + i, n * sizeof(*a->m));
	if (a->v)
		memcpy(undo_place(undo->area, number, 2), a->v + i, n * sizeof(*a->v));
	undo_hold(undo, k);
}

/* What element i has become is inf or NaN in one of its copies, or in v. */
static bool is_lost(const struct kernel_params *a, size_t i, float p)
{
	return (f32_bits(p) & 0x7fffffffu) >= overflow_bits(a->p16 ? a->p16_dtype : DTYPE_F32) ||
	       (a->v && f32_nonfinite(a->v[i]));
}

static void update(enum rule rule, const struct kernel_params *a, const void *g, enum dtype acc_dtype, size_t n,
		   const struct kernel_update *u, const struct kernel_undo *undo, const struct kernel_partials *out)
{
	enum dtype t;
	void *param = values_of(a, &t);
	uint32_t *nonfinite = out ? out->nonfinite : NULL;
	if (nonfinite)
		memset(nonfinite, 0, N_BLOCKS(n) * sizeof(*nonfinite));
	for (size_t i = 0; i < n; i++) {
		if (undo && i % KERNEL_UNIT == 0)
			save(undo, a, i, min_size(n - i, KERNEL_UNIT));
		float p = update_one(rule, a, i, load_f32(param, t, i), g, acc_dtype, u);
		store_f32(param, t, i, p);
		if (a->p && a->p16)
			store_f32(a->p16, a->p16_dtype, i, p);
		if (nonfinite)
			nonfinite[i / KERNEL_BLOCK] += is_lost(a, i, p);
	}
	if (out && out->digest)
		ref_inspect(param, t, n, &(struct kernel_partials){ .digest = out->digest });
}

static void ref_sgd(const struct kernel_params *a, const void *g, enum dtype acc_dtype, size_t n,
		    const struct kernel_update *u, const struct kernel_undo *undo, const struct kernel_partials *out)
{
	update(RULE_SGD, a, g, acc_dtype, n, u, undo, out);
}

static void ref_adam(const struct kernel_params *a, const void *g, enum dtype acc_dtype, size_t n,
		     const struct kernel_update *u, const struct kernel_undo *undo, const struct kernel_partials *out)
{
	update(RULE_ADAM, a, g, acc_dtype, n, u, undo, out);
}

static void ref_adamw(const struct kernel_params *a, const void *g, enum dtype acc_dtype, size_t n,
		      const struct kernel_update *u, const struct kernel_undo *undo, const struct kernel_partials *out)
{
	update(RULE_ADAMW, a, g, acc_dtype, n, u, undo, out);
}

static void ref_lamb(const struct kernel_params *a, const void *g, enum dtype acc_dtype, size_t n,
		     const struct kernel_update *u, const struct kernel_undo *undo, const struct kernel_partials *out)
{
	update(RULE_LAMB, a, g, acc_dtype, n, u, undo, out);
}

static void ref_lamb_moments(const struct kernel_params *a, const void *g, enum dtype acc_dtype, size_t n,
			     const struct kernel_update *u, const struct kernel_undo *undo,
			     const struct kernel_lamb_norms *out)
{
	enum dtype t;
	const void *param = values_of(a, &t);
	float p[KERNEL_BLOCK], d[KERNEL_BLOCK];
	for (size_t i = 0; i < n; i++) {
		const size_t at = i % KERNEL_BLOCK;
		if (g && undo && i % KERNEL_UNIT == 0)
			save(undo, a, i, min_size(n - i, KERNEL_UNIT));
		if (g)
			moments_one(a->m + i, a->v + i, gradient(g, acc_dtype, i, u), u);
		p[at] = load_f32(param, t, i);
		d[at] = direction(p[at], a->m[i], a->v[i], u);
		if (at + 1 == KERNEL_BLOCK || i + 1 == n) {
			out->param[i / KERNEL_BLOCK] = sumsq_f32(p, at + 1);
			out->direction[i / KERNEL_BLOCK] = sumsq_f32(d, at + 1);
		}
	}
}

static void ref_to_f32(float *dst, const void *src, enum dtype src_dtype, size_t n)
{
	for (size_t i = 0; i < n; i++)
		dst[i] = load_f32(src, src_dtype, i);
}

static void ref_from_f32(void *dst, enum dtype dst_dtype, const float *src, size_t n)
{
	for (size_t i = 0; i < n; i++)
		store_f32(dst, dst_dtype, i, src[i]);
}

const struct kernels kernels_reference = {
	.name = "reference",
	.accumulate = ref_accumulate,
	.accumulate_cached = ref_accumulate,
	.inspect = ref_inspect,
	.scale = ref_scale,
	.sgd = ref_sgd,
	.adam = ref_adam,
	.adamw = ref_adamw,
	.lamb = ref_lamb,
	.lamb_moments = ref_lamb_moments,
	.to_f32 = ref_to_f32,
	.from_f32 = ref_from_f32,
};
