/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts the arena into runs of tensors that have the same sources in a pass. For pass.c and for devices; the engine's
 * main thread, runs_sources also its workers. */
#include "engine/runs.h"

#include <stdlib.h>
#include <string.h>

#define ALL_SOURCES ((1u << KERNEL_MAX_SLOTS) - 1)

struct runs {
	const struct plan *plan;
	struct run_owner *owner;
	uint32_t n_owners;
	struct run *whole, *mixed; /* runs with all tensors present; scratch for passes where some are absent */
	uint32_t n_whole;
	unsigned char *bits; /* scratch: KERNEL_MAX_SLOTS bitmaps with aliases resolved */
	size_t bits_bytes;
};

static int by_start(const void *a, const void *b)
{
	const struct run_owner *x = a, *y = b;
	return (x->start > y->start) - (x->start < y->start);
}

static bool is_frozen(const struct plan *p, uint64_t element)
{
	const struct plan_range *r = plan_ranges(p);
	uint64_t low = 0, high = p->n_ranges;
	while (high - low > 1) {
		uint64_t mid = low + (high - low) / 2;
		if (r[mid].start <= element)
			low = mid;
		else
			high = mid;
	}
	return plan_optim_groups(p)[r[low].optim_group].frozen;
}

static void list_owners(struct runs *p)
{
	const struct plan_tensor *t = plan_tensors(p->plan);
	for (uint64_t i = 0; i < p->plan->n_tensors; i++)
		if (t[i].alias < 0)
			p->owner[p->n_owners++] = (struct run_owner){ t[i].start, (uint32_t)i, t[i].dtype_group,
								      is_frozen(p->plan, t[i].start) };
	qsort(p->owner, p->n_owners, sizeof(*p->owner), by_start);
}

uint32_t runs_sources(const struct runs *p, const struct run_owner *o, const unsigned char *const *present, uint32_t n)
{
	uint32_t set = 0;
	if (o->frozen)
		return 0;
	for (uint32_t i = 0; i < n; i++) {
		const unsigned char *bits = p->bits + i * p->bits_bytes;
		if (!present[i] || bits[o->tensor / 8] >> (o->tensor % 8) & 1)
			set |= 1u << i;
	}
	return set;
}

/* A run ends where the dtype group or the sources change; gaps between tensors belong to the tensor before them. */
static uint32_t list_runs(const struct runs *p, const unsigned char *const *present, uint32_t n, struct run *out)
{
	uint32_t n_runs = 0;
	for (uint32_t i = 0; i < p->n_owners; i++) {
		const struct run_owner *o = &p->owner[i];
		const struct arena_group *g = &p->plan->group[o->group];
		bool last = i + 1 == p->n_owners || p->owner[i + 1].group != o->group;
		uint64_t end = last ? g->start + g->count : p->owner[i + 1].start;
		uint32_t sources = present ? runs_sources(p, o, present, n) : o->frozen ? 0 : ALL_SOURCES;
		struct run *r = n_runs ? &out[n_runs - 1] : NULL;
		if (r && r->group == o->group && r->sources == sources)
			r->count = end - r->start;
		else
			out[n_runs++] = (struct run){ o->start, end - o->start, o->group, sources };
	}
	return n_runs;
}

/* Copies the bitmaps; a tensor whose gradient came under an alias is present. */
void runs_resolve(struct runs *p, const unsigned char *const *present, uint32_t n)
{
	const struct plan_tensor *t = plan_tensors(p->plan);
	for (uint32_t i = 0; i < n; i++) {
		unsigned char *bits = p->bits + i * p->bits_bytes;
		if (!present[i])
			continue;
		memcpy(bits, present[i], p->bits_bytes);
		for (uint64_t k = p->plan->n_tensors; k-- > 0;) /* an alias comes after its target */
			if (t[k].alias >= 0 && bits[k / 8] >> (k % 8) & 1)
				bits[t[k].alias / 8] |= (unsigned char)(1u << (t[k].alias % 8));
	}
}

const struct run *runs_of(struct runs *p, const unsigned char *const *present, uint32_t n, uint32_t *n_runs)
{
	bool all = true;
	for (uint32_t i = 0; i < n; i++)
		all = all && !present[i];
	*n_runs = p->n_whole;
	if (all)
		return p->whole;
	runs_resolve(p, present, n);
	*n_runs = list_runs(p, present, n, p->mixed);
	return p->mixed;
}

const struct run_owner *runs_owners(const struct runs *p, uint64_t *n)
{
	*n = p->n_owners;
	return p->owner;
}

enum status runs_new(struct runs **out, const struct plan *plan)
{
	const size_t tensors = plan->n_tensors ? plan->n_tensors : 1;
	struct runs *p = calloc(1, sizeof(*p));
	if (!p)
		return ST_NO_MEMORY;
	p->plan = plan;
	p->bits_bytes = (plan->n_tensors + 7) / 8;
	p->owner = calloc(tensors, sizeof(*p->owner));
	p->whole = calloc(tensors, sizeof(*p->whole));
	p->mixed = calloc(tensors, sizeof(*p->mixed));
	p->bits = calloc(KERNEL_MAX_SLOTS, p->bits_bytes + 1);
	if (!p->owner || !p->whole || !p->mixed || !p->bits) {
		runs_free(p);
		return ST_NO_MEMORY;
	}
	list_owners(p);
	p->n_whole = list_runs(p, NULL, 0, p->whole);
	*out = p;
	return ST_OK;
}

void runs_free(struct runs *p)
{
	if (!p)
		return;
	free(p->owner);
	free(p->whole);
	free(p->mixed);
	free(p->bits);
	free(p);
}
