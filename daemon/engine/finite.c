/* SPDX-License-Identifier: Apache-2.0 */
/* Searches the parameters for inf and NaN: the kernels skip blocks without any, the others are searched element by
 * element. For arith_host.c; the engine's main thread, with the workers. */
#include "engine/finite.h"

#define N_PARTS 256
#define ALONE_BELOW 65536 /* elements */

struct part {
	uint64_t count, first; /* first: element of the arena */
};

struct search {
	const struct memory *m;
	const struct kernels *kernels;
	struct part part[N_PARTS];
};

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static bool is_lost16(uint16_t x, enum dtype t)
{
	const uint16_t exponent = t == DTYPE_F16 ? 0x7c00 : 0x7f80;
	return (x & exponent) == exponent;
}

static bool is_lost32(float x)
{
	union {
		float f;
		uint32_t u;
	} bits = { x };
	return (bits.u & 0x7f800000) == 0x7f800000;
}

static bool any_lost16(const uint16_t *x, enum dtype t, size_t n)
{
	bool any = false;
	for (size_t i = 0; i < n; i++)
		any |= is_lost16(x[i], t);
	return any;
}

static bool any_lost32(const struct kernels *k, const float *x, size_t n)
{
	uint32_t count;
	k->inspect(x, DTYPE_F32, n, &(struct kernel_partials){ .nonfinite = &count });
	return count;
}

size_t finite_count(const struct kernel_params *p, size_t n, uint64_t *count)
{
	size_t first = n;
	for (size_t i = 0; i < n; i++) {
		bool lost = (p->p && is_lost32(p->p[i])) ||
			    (p->p16 && is_lost16(((const uint16_t *)p->p16)[i], p->p16_dtype)) ||
			    (p->v && is_lost32(p->v[i]));
		if (lost && first == n)
			first = i;
		*count += lost;
	}
	return first;
}

/* n <= KERNEL_BLOCK elements from `start` on. */
static void search_block(const struct search *s, const struct kernel_params *p, uint64_t start, size_t n,
			 struct part *out)
{
	bool any = (p->p && any_lost32(s->kernels, p->p, n)) || (p->p16 && any_lost16(p->p16, p->p16_dtype, n)) ||
		   (p->v && any_lost32(s->kernels, p->v, n));
	const bool is_first = !out->count;
	if (!any)
		return;
	const size_t first = finite_count(p, n, &out->count);
	if (is_first)
		out->first = start + first;
}

/* First element of a part; they end at whole blocks of the arena. */
static uint64_t part_begin(const struct plan *p, uint32_t part)
{
	return least((p->n_elements / KERNEL_BLOCK + 1) * part / N_PARTS * KERNEL_BLOCK, p->n_elements);
}

static void search_part(void *arg, uint32_t item, uint32_t worker)
{
	struct search *s = arg;
	const struct plan *plan = s->m->plan;
	const struct plan_range *r = plan_ranges(plan);
	const uint64_t begin = part_begin(plan, item), end = part_begin(plan, item + 1);
	struct part out = { 0, 0 };
	for (uint64_t i = 0; i < plan->n_ranges && r[i].start < end; i++) {
		const uint64_t stop = least(r[i].start + r[i].count, end);
		uint64_t at = r[i].start > begin ? r[i].start : begin;
		for (; at < stop && !plan_optim_groups(plan)[r[i].optim_group].frozen; at += KERNEL_BLOCK) {
			struct kernel_params p;
			memory_params(s->m, r[i].dtype_group, at, &p);
			search_block(s, &p, at, least(stop - at, KERNEL_BLOCK), &out);
		}
	}
	s->part[item] = out;
}

uint64_t finite_tensor(const struct plan *p, uint64_t element)
{
	const struct plan_tensor *t = plan_tensors(p);
	uint64_t i = 0;
	while (i < p->n_tensors && (t[i].alias >= 0 || element < t[i].start || element - t[i].start >= t[i].count))
		i++;
	return i;
}

struct nonfinite finite_find(const struct memory *m, const struct kernels *k, struct workers *w)
{
	struct search s = { .m = m, .kernels = k };
	struct nonfinite found = { 0, 0 };
	workers_run(w, search_part, &s, N_PARTS, m->plan->n_elements < ALONE_BELOW);
	for (int i = 0; i < N_PARTS; i++) {
		if (s.part[i].count && !found.count)
			found.tensor = finite_tensor(m->plan, s.part[i].first);
		found.count += s.part[i].count;
	}
	return found;
}
