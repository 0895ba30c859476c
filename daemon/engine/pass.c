/* SPDX-License-Identifier: Apache-2.0 */
/* Passes over the arena, in chunks that the workers share: adds micro-batches to the sum, inspects or scales a sum,
 * and zeroes slots. For arith_host.c; the engine's main thread, with the workers. */
#include "engine/pass.h"

#include <stdlib.h>
#include <string.h>

#define ALL_SOURCES ((1u << KERNEL_MAX_SLOTS) - 1)
#define ZERO_CHUNK (1u << 18) /* bytes */

_Static_assert(PASS_CHUNK % KERNEL_BLOCK == 0, "partials belong to one chunk");

/* A tensor with storage of its own, in the order of the arena. */
struct owner {
	uint64_t start;
	uint32_t tensor, group;
	bool frozen;
};

/* Neighbours that have the same sources. Runs cover the arena in ascending order without gaps. */
struct run {
	uint64_t start, count;
	uint32_t group;
	uint32_t sources; /* bit i: source i is present */
};

struct worker_count {
	_Alignas(64) uint64_t nonfinite[KERNEL_MAX_SLOTS];
};

/* What the workers need to know of the pass at hand. */
struct task {
	unsigned char *dst;
	const unsigned char *src;
	bool first, count_nonfinite, want_norm;
	const struct pass_source *source;
	uint32_t n_sources;
	const struct run *run;
	uint32_t n_runs;
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
	struct owner *owner;
	uint32_t n_owners;
	struct run *whole, *mixed; /* runs with all tensors present; scratch for passes where some are absent */
	uint32_t n_whole;
	unsigned char *bits; /* scratch: KERNEL_MAX_SLOTS bitmaps with aliases resolved */
	size_t bits_bytes;
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

static int by_start(const void *a, const void *b)
{
	const struct owner *x = a, *y = b;
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

static void list_owners(struct pass *p)
{
	const struct plan_tensor *t = plan_tensors(p->plan);
	for (uint64_t i = 0; i < p->plan->n_tensors; i++)
		if (t[i].alias < 0)
			p->owner[p->n_owners++] = (struct owner){ t[i].start, (uint32_t)i, t[i].dtype_group,
								  is_frozen(p->plan, t[i].start) };
	qsort(p->owner, p->n_owners, sizeof(*p->owner), by_start);
}

static uint32_t sources_of(const struct pass *p, const struct owner *o, const struct pass_source *s, uint32_t n)
{
	uint32_t set = 0;
	if (o->frozen)
		return 0;
	for (uint32_t i = 0; i < n; i++) {
		const unsigned char *bits = p->bits + i * p->bits_bytes;
		if (!s[i].present || bits[o->tensor / 8] >> (o->tensor % 8) & 1)
			set |= 1u << i;
	}
	return set;
}

/* A run ends where the dtype group or the sources change; gaps between tensors belong to the tensor before them. */
static uint32_t list_runs(const struct pass *p, const struct pass_source *s, uint32_t n, struct run *out)
{
	uint32_t n_runs = 0;
	for (uint32_t i = 0; i < p->n_owners; i++) {
		const struct owner *o = &p->owner[i];
		const struct arena_group *g = &p->plan->group[o->group];
		bool last = i + 1 == p->n_owners || p->owner[i + 1].group != o->group;
		uint64_t end = last ? g->start + g->count : p->owner[i + 1].start;
		uint32_t sources = s ? sources_of(p, o, s, n) : o->frozen ? 0 : ALL_SOURCES;
		struct run *r = n_runs ? &out[n_runs - 1] : NULL;
		if (r && r->group == o->group && r->sources == sources)
			r->count = end - r->start;
		else
			out[n_runs++] = (struct run){ o->start, end - o->start, o->group, sources };
	}
	return n_runs;
}

/* Copies the bitmaps; a tensor whose gradient came under an alias is present. */
static void resolve_aliases(struct pass *p, const struct pass_source *s, uint32_t n)
{
	const struct plan_tensor *t = plan_tensors(p->plan);
	for (uint32_t i = 0; i < n; i++) {
		unsigned char *bits = p->bits + i * p->bits_bytes;
		if (!s[i].present)
			continue;
		memcpy(bits, s[i].present, p->bits_bytes);
		for (uint64_t k = p->plan->n_tensors; k-- > 0;) /* an alias comes after its target */
			if (t[k].alias >= 0 && bits[k / 8] >> (k % 8) & 1)
				bits[t[k].alias / 8] |= (unsigned char)(1u << (t[k].alias % 8));
	}
}

static void choose_runs(struct pass *p, const struct pass_source *s, uint32_t n)
{
	bool all = true;
	for (uint32_t i = 0; i < n; i++)
		all = all && !s[i].present;
	p->task.run = p->whole;
	p->task.n_runs = p->n_whole;
	if (all)
		return;
	resolve_aliases(p, s, n);
	p->task.run = p->mixed;
	p->task.n_runs = list_runs(p, s, n, p->mixed);
}

enum status pass_new(struct pass **out, const struct plan *plan, const struct gaps *gaps, const struct kernels *kernels,
		     struct workers *workers)
{
	struct pass *p = calloc(1, sizeof(*p));
	if (!p)
		return ST_NO_MEMORY;
	size_t tensors = plan->n_tensors ? plan->n_tensors : 1, blocks = plan->n_elements / KERNEL_BLOCK;
	p->plan = plan;
	p->gaps = gaps;
	p->kernels = kernels;
	p->workers = workers;
	p->acc = (enum dtype)plan->acc_dtype;
	p->acc_size = dtype_size(p->acc);
	p->alone = plan->n_elements < PASS_ALONE_BELOW;
	p->n_chunks = count_chunks(plan);
	p->bits_bytes = (plan->n_tensors + 7) / 8;
	p->owner = calloc(tensors, sizeof(*p->owner));
	p->whole = calloc(tensors, sizeof(*p->whole));
	p->mixed = calloc(tensors, sizeof(*p->mixed));
	p->bits = calloc(KERNEL_MAX_SLOTS, p->bits_bytes + 1);
	p->partials.sumsq = calloc(blocks, sizeof(double));
	p->partials.digest = calloc(blocks, sizeof(uint64_t));
	p->partials.nonfinite = calloc(blocks, sizeof(uint32_t));
	p->count = aligned_alloc(64, plan->threads * sizeof(*p->count));
	if (!p->owner || !p->whole || !p->mixed || !p->bits || !p->partials.sumsq || !p->partials.digest ||
	    !p->partials.nonfinite || !p->count)
		goto fail;
	list_owners(p);
	p->n_whole = list_runs(p, NULL, 0, p->whole);
	*out = p;
	return ST_OK;
fail:
	pass_free(p);
	return ST_NO_MEMORY;
}

void pass_free(struct pass *p)
{
	if (!p)
		return;
	free(p->owner);
	free(p->whole);
	free(p->mixed);
	free(p->bits);
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
	choose_runs(p, s, n);
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
	struct span c = chunk(p->plan, item);
	struct kernel_partials partials = partials_at(p, c.start);
	p->kernels->inspect(p->task.src + c.start * p->acc_size, p->acc, c.count, &partials);
}

void pass_inspect(struct pass *p, const void *sum, struct arith_norm *out)
{
	p->task = (struct task){ .src = sum };
	workers_run(p->workers, inspect_chunk, p, p->n_chunks, p->alone);
	collect_norm(p, out);
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
