/* SPDX-License-Identifier: Apache-2.0 */
/* Passes over the arena, in chunks that the workers share: adds micro-batches to the sum, inspects or scales a sum,
 * and zeroes slots. For arith_host.c; the engine's main thread, with the workers. */
#include "engine/pass.h"

#include "engine/runs.h"

#include <stdlib.h>
#include <string.h>

#define ZERO_CHUNK (1u << 18) /* bytes */

_Static_assert(PASS_CHUNK % KERNEL_BLOCK == 0, "partials belong to one chunk");

struct worker_count {
	_Alignas(64) uint64_t nonfinite[KERNEL_MAX_SLOTS];
};

/* What the workers need to know of the pass at hand. */
struct task {
	unsigned char *dst;
	const unsigned char *src;
	const struct sum_view *sum;
	bool first, count_nonfinite, want_norm;
	const struct pass_source *source;
	uint32_t n_sources;
	const struct run *run;
	uint32_t n_runs;
	const struct run_owner *owner;
	double scale;
	float clip_value;
	unsigned char *slot;
};

struct pass {
	const struct plan *plan;
	const struct gaps *gaps;
	const struct kernels *kernels;
	struct workers *workers;
	enum dtype acc;
	size_t acc_size;
	bool alone;
	uint32_t n_chunks;
	struct runs *runs;
	struct kernel_partials partials;
	struct worker_count *count; /* [threads] */
	struct task task;
};

struct span {
	uint64_t start, count;
	uint32_t group;
};

/* Chunk number i: chunks do not cross dtype groups. */
static struct span chunk(const struct plan *p, uint32_t i)
{
	uint32_t g = 0;
	for (uint32_t n; i >= (n = (uint32_t)((p->group[g].count + PASS_CHUNK - 1) / PASS_CHUNK)); g++)
		i -= n;
	uint64_t at = (uint64_t)i * PASS_CHUNK, left = p->group[g].count - at;
	return (struct span){ p->group[g].start + at, left < PASS_CHUNK ? left : PASS_CHUNK, g };
}

static uint32_t count_chunks(const struct plan *p)
{
	uint64_t n = 0;
	for (uint32_t g = 0; g < p->n_groups; g++)
		n += (p->group[g].count + PASS_CHUNK - 1) / PASS_CHUNK;
	return (uint32_t)n;
}

static struct kernel_partials partials_at(const struct pass *p, uint64_t start)
{
	uint64_t b = start / KERNEL_BLOCK;
	return (struct kernel_partials){ p->partials.sumsq + b, p->partials.digest + b, p->partials.nonfinite + b };
}

enum status pass_new(struct pass **out, const struct plan *plan, const struct gaps *gaps, const struct kernels *kernels,
		     struct workers *workers)
{
	struct pass *p = calloc(1, sizeof(*p));
	if (!p)
		return ST_NO_MEMORY;
	const size_t blocks = plan->n_elements / KERNEL_BLOCK;
	p->plan = plan;
	p->gaps = gaps;
	p->kernels = kernels;
	p->workers = workers;
	p->acc = (enum dtype)plan->acc_dtype;
	p->acc_size = dtype_size(p->acc);
	p->alone = plan->n_elements < PASS_ALONE_BELOW;
	p->n_chunks = count_chunks(plan);
	p->partials.sumsq = calloc(blocks, sizeof(double));
	p->partials.digest = calloc(blocks, sizeof(uint64_t));
	p->partials.nonfinite = calloc(blocks, sizeof(uint32_t));
	p->count = aligned_alloc(64, plan->threads * sizeof(*p->count));
	if (!p->partials.sumsq || !p->partials.digest || !p->partials.nonfinite || !p->count ||
	    runs_new(&p->runs, plan)) {
		pass_free(p);
		return ST_NO_MEMORY;
	}
	*out = p;
	return ST_OK;
}

void pass_free(struct pass *p)
{
	if (!p)
		return;
	runs_free(p->runs);
	free(p->partials.sumsq);
	free(p->partials.digest);
	free(p->partials.nonfinite);
	free(p->count);
	free(p);
}

static void collect_norm(const struct pass *p, struct arith_norm *out)
{
	size_t blocks = p->plan->n_elements / KERNEL_BLOCK;
	out->sumsq = kernel_sum(p->partials.sumsq, blocks);
	out->digest = kernel_digest_combine(p->partials.digest, blocks, 0);
	out->nonfinite = 0;
	for (size_t b = 0; b < blocks; b++)
		out->nonfinite += p->partials.nonfinite[b];
}

/* One kernel call: elements of one group with one set of sources. */
static void add_span(struct pass *p, struct span at, uint32_t sources, uint32_t worker,
		     const struct kernel_partials *partials)
{
	const struct task *now = &p->task;
	const struct arena_group *g = &p->plan->group[at.group];
	struct kernel_src src[KERNEL_MAX_SLOTS] = { { NULL, 0 } };
	uint64_t nonfinite[KERNEL_MAX_SLOTS] = { 0 };
	uint32_t which[KERNEL_MAX_SLOTS];
	size_t offset = g->slot_offset + (at.start - g->start) * dtype_size(g->grad_dtype);
	int k = 0;
	for (uint32_t i = 0; i < now->n_sources; i++) {
		if (!(sources >> i & 1))
			continue;
		src[k] = (struct kernel_src){ now->source[i].slot + offset, now->source[i].coefficient };
		which[k++] = i;
	}
	/* a small arena stays in the cache between passes: stores that go past it would cost more than they save */
	bool cached = p->plan->n_elements <= KERNEL_CACHED_ELEMENTS;
	(cached ? p->kernels->accumulate_cached : p->kernels->accumulate)(
		now->dst + at.start * p->acc_size, now->first ? NULL : now->src + at.start * p->acc_size, now->first,
		p->acc, src, k, g->grad_dtype, at.count, now->count_nonfinite ? nonfinite : NULL, partials);
	for (int i = 0; i < k; i++)
		p->count[worker].nonfinite[which[i]] += nonfinite[i];
}

/* Kernels run across tensor borders: what lies between tensors must be zero. */
static void zero_gaps(const struct pass *p, struct span c)
{
	const struct arena_group *g = &p->plan->group[c.group];
	size_t size = dtype_size(g->grad_dtype);
	uint64_t from = g->slot_offset + (c.start - g->start) * size;
	for (uint32_t i = 0; i < p->task.n_sources; i++)
		gaps_zero_slot(p->gaps, p->task.source[i].slot, from, from + c.count * size);
}

/* The last run that begins at or before this element. */
static uint32_t find_run(const struct task *now, uint64_t element)
{
	uint32_t low = 0, high = now->n_runs;
	while (high - low > 1) {
		uint32_t mid = low + (high - low) / 2;
		if (now->run[mid].start <= element)
			low = mid;
		else
			high = mid;
	}
	return low;
}

static void add_chunk(void *arg, uint32_t item, uint32_t worker)
{
	struct pass *p = arg;
	const struct task *now = &p->task;
	struct span c = chunk(p->plan, item);
	struct kernel_partials partials = partials_at(p, c.start);
	uint64_t end = c.start + c.count;
	const struct run *r = &now->run[find_run(now, c.start)];
	zero_gaps(p, c);
	if (r->start + r->count >= end) {
		add_span(p, c, r->sources, worker, now->want_norm ? &partials : NULL);
		return;
	}
	/* runs end inside reduction blocks, whose partials must not depend on that: look at the result instead */
	for (uint64_t at = c.start; at < end; r++) {
		uint64_t stop = r->start + r->count < end ? r->start + r->count : end;
		add_span(p, (struct span){ at, stop - at, c.group }, r->sources, worker, NULL);
		at = stop;
	}
	if (now->want_norm)
		p->kernels->inspect(now->dst + c.start * p->acc_size, p->acc, c.count, &partials);
}

void pass_add(struct pass *p, void *dst, const void *src, bool first, const struct pass_source *s, uint32_t n,
	      uint64_t *nonfinite, struct arith_norm *norm)
{
	p->task = (struct task){ .dst = dst,
				 .src = src,
				 .first = first,
				 .count_nonfinite = nonfinite != NULL,
				 .want_norm = norm != NULL,
				 .source = s,
				 .n_sources = n };
	const unsigned char *present[KERNEL_MAX_SLOTS] = { NULL };
	for (uint32_t i = 0; i < n; i++)
		present[i] = s[i].present;
	p->task.run = runs_of(p->runs, present, n, &p->task.n_runs);
	memset(p->count, 0, p->plan->threads * sizeof(*p->count));
	workers_run(p->workers, add_chunk, p, p->n_chunks, p->alone);
	for (uint32_t i = 0; nonfinite && i < n; i++) {
		nonfinite[i] = 0;
		for (uint32_t t = 0; t < p->plan->threads; t++)
			nonfinite[i] += p->count[t].nonfinite[i];
	}
	if (norm)
		collect_norm(p, norm);
}

static void inspect_chunk(void *arg, uint32_t item, uint32_t worker)
{
	struct pass *p = arg;
	const struct sum_view *sum = p->task.sum;
	struct span c = chunk(p->plan, item);
	struct kernel_partials partials = partials_at(p, c.start);
	if (sum->half)
		p->kernels->inspect(sum->half + c.start * p->acc_size, p->acc, c.count, &partials);
	else
		p->count[worker].nonfinite[0] += sum_view_inspect(sum, c.group, c.start, c.count, &partials);
}

void pass_inspect(struct pass *p, const struct sum_view *sum, struct arith_norm *out)
{
	p->task = (struct task){ .sum = sum };
	workers_run(p->workers, inspect_chunk, p, p->n_chunks, p->alone);
	collect_norm(p, out);
}

static void clear_chunk(void *arg, uint32_t item, uint32_t worker)
{
	zero_gaps(arg, chunk(((struct pass *)arg)->plan, item));
}

static void clear_owner(void *arg, uint32_t item, uint32_t worker)
{
	const struct pass *p = arg;
	const struct run_owner *o = &p->task.owner[item];
	const struct arena_group *g = &p->plan->group[o->group];
	size_t size = dtype_size(g->grad_dtype);
	if (!runs_sources(p->runs, o, &p->task.source->present, 1))
		memset(p->task.source->slot + g->slot_offset + (o->start - g->start) * size, 0,
		       plan_tensors(p->plan)[o->tensor].count * size);
}

void pass_take(struct pass *p, const struct pass_source *s, uint64_t *nonfinite, struct arith_norm *norm)
{
	const struct sum_view sum = sum_view_of_slot(p->plan, p->kernels, s->slot, s->coefficient);
	uint64_t n_owners;
	p->task = (struct task){ .source = s, .n_sources = 1, .owner = runs_owners(p->runs, &n_owners) };
	runs_resolve(p->runs, &s->present, 1);
	workers_run(p->workers, clear_chunk, p, p->n_chunks, p->alone);
	workers_run(p->workers, clear_owner, p, (uint32_t)n_owners, p->alone);
	memset(p->count, 0, p->plan->threads * sizeof(*p->count));
	pass_inspect(p, &sum, norm);
	*nonfinite = 0;
	for (uint32_t t = 0; t < p->plan->threads; t++)
		*nonfinite += p->count[t].nonfinite[0];
}

static void scale_chunk(void *arg, uint32_t item, uint32_t worker)
{
	struct pass *p = arg;
	const struct task *now = &p->task;
	struct span c = chunk(p->plan, item);
	size_t offset = c.start * p->acc_size;
	p->kernels->scale(now->dst + offset, now->src + offset, p->acc, now->scale, now->clip_value, c.count);
}

void pass_scale(struct pass *p, void *dst, const void *src, double scale, double clip_value)
{
	p->task = (struct task){ .dst = dst, .src = src, .scale = scale, .clip_value = (float)clip_value };
	workers_run(p->workers, scale_chunk, p, p->n_chunks, p->alone);
}

static void zero_chunk(void *arg, uint32_t item, uint32_t worker)
{
	struct pass *p = arg;
	uint64_t at = (uint64_t)item * ZERO_CHUNK, left = p->plan->slot_bytes - at;
	memset(p->task.slot + at, 0, left < ZERO_CHUNK ? left : ZERO_CHUNK);
}

void pass_zero(struct pass *p, unsigned char *slot)
{
	p->task = (struct task){ .slot = slot };
	uint32_t n = (uint32_t)((p->plan->slot_bytes + ZERO_CHUNK - 1) / ZERO_CHUNK);
	workers_run(p->workers, zero_chunk, p, n, p->alone);
}
