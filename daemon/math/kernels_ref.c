/* The definition: every table must give these bits. Written to be read, one element at a time. */
#include "math/kernels_scalar.h"

#include <math.h>

#define N_BLOCKS(n) (((n) + KERNEL_BLOCK - 1) / KERNEL_BLOCK)

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

static void accumulate_f32(float *dst, const float *src, bool first, const struct kernel_src *s, int k, enum dtype g_dtype,
			   size_t n, uint64_t *src_nonfinite)
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
		double x = dtype == DTYPE_F64 ? scale * ((const double *)src)[i]
					      : (float)scale * ((const float *)src)[i];
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

static float adam_one(float p, float *m, float *v, float g, const struct kernel_update *u)
{
	*m = *m + u->one_minus_beta1 * (g - *m);
	*v = u->beta2 * *v + u->one_minus_beta2 * g * g;
	return p - u->step_size * *m / (sqrtf(*v) * u->inv_bias2_sqrt + u->eps);
}

enum rule { RULE_SGD, RULE_ADAM, RULE_ADAMW };

static void update(enum rule rule, const struct kernel_params *a, const void *g, enum dtype acc_dtype, size_t n,
		   const struct kernel_update *u, uint64_t *digest)
{
	void *param = a->p ? (void *)a->p : a->p16;
	enum dtype dtype = a->p ? DTYPE_F32 : a->p16_dtype;
	for (size_t i = 0; i < n; i++) {
		float p = load_f32(param, dtype, i), x = gradient(g, acc_dtype, i, u);
		if (rule == RULE_SGD)
			p = sgd_one(p, a->m ? a->m + i : NULL, x, u);
		else if (rule == RULE_ADAM)
			p = adam_one(p, a->m + i, a->v + i, x + u->weight_decay * p, u);
		else
			p = adam_one(p * u->decay, a->m + i, a->v + i, x, u);
		store_f32(param, dtype, i, p);
		if (a->p && a->p16)
			store_f32(a->p16, a->p16_dtype, i, p);
	}
	if (digest)
		ref_inspect(param, dtype, n, &(struct kernel_partials){ .digest = digest });
}

static void ref_sgd(const struct kernel_params *a, const void *g, enum dtype acc_dtype, size_t n,
		    const struct kernel_update *u, uint64_t *digest)
{
	update(RULE_SGD, a, g, acc_dtype, n, u, digest);
}

static void ref_adam(const struct kernel_params *a, const void *g, enum dtype acc_dtype, size_t n,
		     const struct kernel_update *u, uint64_t *digest)
{
	update(RULE_ADAM, a, g, acc_dtype, n, u, digest);
}

static void ref_adamw(const struct kernel_params *a, const void *g, enum dtype acc_dtype, size_t n,
		      const struct kernel_update *u, uint64_t *digest)
{
	update(RULE_ADAMW, a, g, acc_dtype, n, u, digest);
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
	.to_f32 = ref_to_f32,
	.from_f32 = ref_from_f32,
};
