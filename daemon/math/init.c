/* SPDX-License-Identifier: Apache-2.0 */
/* Draws initial parameter values for a job without a model of its own. Only + - * / and sqrt are used, whose results
 * IEEE 754 fixes, unlike libm's log and cos: the same seed gives the same bits on every machine. Pure; the engine's
 * threads. */
#include "math/init.h"

#include "math/philox.h"

#include <math.h>
#include <stdbool.h>

void init_fans(const int64_t *shape, int n_dims, double *fan_in, double *fan_out)
{
	double elements = 1, receptive = 1;
	for (int i = 0; i < n_dims; i++) {
		elements *= (double)shape[i];
		if (i >= 2)
			receptive *= (double)shape[i];
	}
	*fan_in = n_dims < 2 ? elements : (double)shape[1] * receptive;
	*fan_out = n_dims < 2 ? elements : (double)shape[0] * receptive;
}

/* Natural logarithm of u in (0, 1], to about 1e-15: u = m * 2^e with m near 1, then the series of 2 atanh(s). */
static double log_unit(double u)
{
	int e;
	double m = frexp(u, &e);
	if (m < M_SQRT1_2) {
		m *= 2;
		e--;
	}
	double s = (m - 1) / (m + 1), s2 = s * s, sum = 0;
	for (int k = 21; k >= 1; k -= 2)
		sum = sum * s2 + 1.0 / k;
	return 2 * s * sum + e * M_LN2;
}

/* cos and sin of an angle in [-pi/4, pi/4], Taylor to about 1e-16. */
static void cos_sin_eighth(double x, double *c, double *s)
{
	double x2 = x * x, even = 1, odd = 1;
	for (int k = 16; k >= 2; k -= 2) {
		even = 1 - even * x2 / (k * (k - 1));
		odd = 1 - odd * x2 / (k * (k + 1));
	}
	*c = even;
	*s = x * odd;
}

/* cos and sin of 2 pi u, u in [0, 1): the nearest quarter turn is taken off exactly. */
static void cos_sin_turn(double u, double *c, double *s)
{
	int quarter = (int)(4 * u + 0.5);
	double c0, s0;
	cos_sin_eighth((u - 0.25 * quarter) * (2 * M_PI), &c0, &s0);
	quarter &= 3;
	*c = quarter == 0 ? c0 : quarter == 1 ? -s0 : quarter == 2 ? -c0 : s0;
	*s = quarter == 0 ? s0 : quarter == 1 ? c0 : quarter == 2 ? -s0 : -c0;
}

/* Box-Muller: two words, two independent standard normals. */
static void normal_pair(const uint32_t w[2], double out[2])
{
	double r = sqrt(-2 * log_unit(((double)w[0] + 1) * 0x1p-32));
	cos_sin_turn((double)w[1] * 0x1p-32, &out[0], &out[1]);
	out[0] *= r;
	out[1] *= r;
}

/* In [a, b): rounding to f32 may reach b, the float below it does not. */
static float uniform(uint32_t w, double a, double b)
{
	float x = (float)(a + (b - a) * ((double)w * 0x1p-32));
	return x < b || a == b ? x : nextafterf(x, -INFINITY);
}

/* Every random rule as either N(mean, std) or U[low, high). */
struct draw {
	bool normal;
	double a, b;
};

static struct draw draw_of(const struct init_rule *r, double fan_in, double fan_out)
{
	double kaiming = (r->a ? r->a : M_SQRT2) / sqrt(fan_in);
	double xavier = (r->a ? r->a : 1) * sqrt(2 / (fan_in + fan_out));
	double bound;
	switch (r->type) {
	case INIT_KAIMING_NORMAL:
		return (struct draw){ true, 0, kaiming };
	case INIT_XAVIER_NORMAL:
		return (struct draw){ true, 0, xavier };
	case INIT_KAIMING_UNIFORM:
		bound = sqrt(3) * kaiming;
		return (struct draw){ false, -bound, bound };
	case INIT_XAVIER_UNIFORM:
		bound = sqrt(3) * xavier;
		return (struct draw){ false, -bound, bound };
	default:
		return (struct draw){ r->type == INIT_NORMAL, r->a, r->b };
	}
}

/* Values 4 * quad .. 4 * quad + 3. */
static void fill_quad(const struct draw *d, uint64_t quad, uint64_t seed, uint64_t tensor_key, float out[4])
{
	uint32_t counter[4] = { (uint32_t)quad, (uint32_t)(quad >> 32), (uint32_t)tensor_key,
				(uint32_t)(tensor_key >> 32) };
	uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) }, w[4];
	philox4x32_10(counter, key, w);
	for (int i = 0; i < 4; i += 2) {
		if (d->normal) {
			double z[2];
			normal_pair(w + i, z);
			out[i] = (float)(d->a + d->b * z[0]);
			out[i + 1] = (float)(d->a + d->b * z[1]);
		} else {
			out[i] = uniform(w[i], d->a, d->b);
			out[i + 1] = uniform(w[i + 1], d->a, d->b);
		}
	}
}

void init_fill(float *dst, uint64_t first, size_t n, const struct init_rule *rule, double fan_in, double fan_out,
	       uint64_t seed, uint64_t tensor_key)
{
	if (rule->type == INIT_ZEROS || rule->type == INIT_ONES) {
		for (size_t i = 0; i < n; i++)
			dst[i] = rule->type == INIT_ONES;
		return;
	}
	struct draw d = draw_of(rule, fan_in, fan_out);
	float quad[4];
	for (size_t i = 0; i < n; i++) {
		if (i == 0 || (first + i) % 4 == 0)
			fill_quad(&d, (first + i) / 4, seed, tensor_key, quad);
		dst[i] = quad[(first + i) % 4];
	}
}
