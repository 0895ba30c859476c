#include "engine/update.h"

#include "proto/failpoint.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define ALONE_BELOW 65536 /* elements */
#define BLOCKS (UNDO_CHUNK / KERNEL_BLOCK)

_Static_assert(UNDO_CHUNK % KERNEL_BLOCK == 0, "block numbers do not depend on chunks");

struct share_digest {
	_Alignas(64) uint64_t sum;
};

struct update {
	const struct memory *m;
	const struct kernels *kernels;
	struct workers *workers;
	uint64_t *first_chunk;         /* [n_ranges + 1]: number of each range's first chunk */
	uint64_t n_chunks;
	struct kernel_update *scalars; /* [n_optim_groups], of the step at hand */
	struct share_digest *digest;   /* [threads] */
	const unsigned char *sum;
};

/* Chunk `number`: elements [start, start + count) of one range. */
struct chunk {
	uint64_t number, start, count;
	const struct plan_range *range;
};

#if defined(__x86_64__)
#include <xmmintrin.h>
static void drain_stores(void)
{
	_mm_sfence(); /* non-temporal ones, which no atomic store orders */
}
#else
static void drain_stores(void)
{
}
#endif

static void set_stamp(struct undo_stamp *s, uint64_t chunk, uint64_t held)
{
	drain_stores();
	atomic_store_explicit(&s->state, chunk << 1 | held, memory_order_release);
	atomic_signal_fence(memory_order_seq_cst);
}

static uint64_t share_begin(const struct update *u, uint32_t share)
{
	return u->n_chunks * share / u->m->plan->threads;
}

static struct chunk locate(const struct update *u, uint64_t number)
{
	uint64_t low = 0, high = u->m->plan->n_ranges;
	while (high - low > 1) {
		uint64_t mid = low + (high - low) / 2;
		if (u->first_chunk[mid] <= number)
			low = mid;
		else
			high = mid;
	}
	const struct plan_range *r = &plan_ranges(u->m->plan)[low];
	uint64_t at = (number - u->first_chunk[low]) * UNDO_CHUNK, left = r->count - at;
	return (struct chunk){ number, r->start + at, left < UNDO_CHUNK ? left : UNDO_CHUNK, r };
}

enum status update_new(struct update **out, const struct memory *m, const struct kernels *kernels,
		       struct workers *workers)
{
	const struct plan *plan = m->plan;
	const struct plan_range *r = plan_ranges(plan);
	struct update *u = calloc(1, sizeof(*u));
	if (!u)
		return ST_NO_MEMORY;
	u->m = m;
	u->kernels = kernels;
	u->workers = workers;
	u->first_chunk = calloc(plan->n_ranges + 1, sizeof(*u->first_chunk));
	u->scalars = calloc(plan->n_optim_groups, sizeof(*u->scalars));
	u->digest = aligned_alloc(64, plan->threads * sizeof(*u->digest));
	if (!u->first_chunk || !u->scalars || !u->digest)
		goto fail;
	for (uint64_t i = 0; i < plan->n_ranges; i++)
		u->first_chunk[i + 1] = u->first_chunk[i] + (r[i].count + UNDO_CHUNK - 1) / UNDO_CHUNK;
	u->n_chunks = u->first_chunk[plan->n_ranges];
	*out = u;
	return ST_OK;
fail:
	update_free(u);
	return ST_NO_MEMORY;
}

void update_free(struct update *u)
{
	if (!u)
		return;
	free(u->first_chunk);
	free(u->scalars);
	free(u->digest);
	free(u);
}

uint64_t update_ranges_hash(const struct plan *p)
{
	return XXH3_64bits(plan_ranges(p), p->n_ranges * sizeof(struct plan_range));
}

void update_begin(struct update *u, uint64_t window)
{
	for (uint32_t i = 0; i < u->m->plan->threads; i++) {
		struct undo_stamp *s = control_page_stamp(&u->m->page, i);
		s->window = window;
		set_stamp(s, share_begin(u, i), 0);
	}
}

bool update_can_resume(const struct update *u, uint64_t window)
{
	for (uint32_t i = 0; i < u->m->plan->threads; i++) {
		const struct undo_stamp *s = control_page_stamp(&u->m->page, i);
		uint64_t state = atomic_load(&s->state), begin = share_begin(u, i), end = share_begin(u, i + 1);
		if (s->window != window || state >> 1 < begin || (state >> 1) + (state & UNDO_HELD) > end)
			return false;
	}
	return true;
}

/* The three arrays of an undo area and what they save; unused ones have no bytes. */
struct undo {
	struct {
		void *live, *saved;
		size_t bytes;
	} part[3];
};

static struct undo undo_of(const struct update *u, uint32_t share, const struct kernel_params *p, uint64_t count)
{
	unsigned char *area = control_page_undo(&u->m->page, share);
	const size_t f32 = count * sizeof(float), stride = UNDO_CHUNK * sizeof(float);
	enum dtype t;
	void *values = (void *)memory_values(p, &t);
	return (struct undo){ { { values, area, count * dtype_size(t) },
				{ p->m, area + stride, p->m ? f32 : 0 },
				{ p->v, area + 2 * stride, p->v ? f32 : 0 } } };
}

static void save(const struct undo *undo)
{
	for (int i = 0; i < 3; i++)
		if (undo->part[i].bytes)
			memcpy(undo->part[i].saved, undo->part[i].live, undo->part[i].bytes);
}

static void restore(const struct undo *undo)
{
	for (int i = 0; i < 3; i++)
		if (undo->part[i].bytes)
			memcpy(undo->part[i].live, undo->part[i].saved, undo->part[i].bytes);
}

static uint64_t combine(const struct chunk *c, const uint64_t *block)
{
	return kernel_digest_combine(block, (c->count + KERNEL_BLOCK - 1) / KERNEL_BLOCK, c->number * BLOCKS);
}

static uint64_t inspect_chunk(const struct update *u, const struct chunk *c)
{
	uint64_t block[BLOCKS];
	struct kernel_params p;
	enum dtype t;
	memory_params(u->m, c->range->dtype_group, c->start, &p);
	const void *values = memory_values(&p, &t);
	u->kernels->inspect(values, t, c->count, &(struct kernel_partials){ .digest = block });
	return combine(c, block);
}

static uint64_t apply_chunk(const struct update *u, uint32_t share, const struct chunk *c)
{
	const struct plan *plan = u->m->plan;
	struct undo_stamp *stamp = control_page_stamp(&u->m->page, share);
	uint64_t block[BLOCKS];
	struct kernel_params p;
	memory_params(u->m, c->range->dtype_group, c->start, &p);
	struct undo undo = undo_of(u, share, &p, c->count);
	save(&undo);
	FAILPOINT(engine_undo_saved);
	set_stamp(stamp, c->number, UNDO_HELD);
	FAILPOINT(engine_undo_held);
	optim_apply(u->kernels, &plan->optim, &p, u->sum + c->start * dtype_size((enum dtype)plan->acc_dtype),
		    (enum dtype)plan->acc_dtype, c->count, &u->scalars[c->range->optim_group], block);
	FAILPOINT(engine_chunk_updated);
	set_stamp(stamp, c->number + 1, 0);
	FAILPOINT(engine_chunk_done);
	return combine(c, block);
}

static void restore_held(const struct update *u, uint32_t share, struct undo_stamp *stamp, uint64_t number)
{
	struct chunk c = locate(u, number);
	struct kernel_params p;
	memory_params(u->m, c.range->dtype_group, c.start, &p);
	struct undo undo = undo_of(u, share, &p, c.count);
	restore(&undo);
	set_stamp(stamp, number, 0);
}

static void run_share(void *arg, uint32_t share, uint32_t worker)
{
	struct update *u = arg;
	struct undo_stamp *stamp = control_page_stamp(&u->m->page, share);
	uint64_t state = atomic_load(&stamp->state), sum = 0;
	if (state & UNDO_HELD)
		restore_held(u, share, stamp, state >> 1);
	for (uint64_t i = state >> 1; i < share_begin(u, share + 1); i++) {
		struct chunk c = locate(u, i);
		bool frozen = plan_optim_groups(u->m->plan)[c.range->optim_group].frozen;
		sum += frozen ? inspect_chunk(u, &c) : apply_chunk(u, share, &c);
	}
	u->digest[share].sum = sum;
}

static bool has_progress(const struct update *u)
{
	for (uint32_t i = 0; i < u->m->plan->threads; i++)
		if (atomic_load(&control_page_stamp(&u->m->page, i)->state) != share_begin(u, i) << 1)
			return true;
	return false;
}

static uint64_t add_up(const struct update *u)
{
	uint64_t sum = 0;
	for (uint32_t i = 0; i < u->m->plan->threads; i++)
		sum += u->digest[i].sum;
	return sum;
}

uint64_t update_run(struct update *u, const struct control_record *r, const void *sum)
{
	const struct plan *plan = u->m->plan;
	bool resumed = has_progress(u);
	for (uint64_t i = 0; i < plan->n_optim_groups; i++)
		optim_step(&plan->optim, &plan_optim_groups(plan)[i], r->commit_applied_step, r->commit_lr,
			   r->commit_scale, r->commit_clip_value, &u->scalars[i]);
	u->sum = sum;
	workers_run(u->workers, run_share, u, plan->threads, plan->n_elements < ALONE_BELOW);
	return resumed ? update_digest(u) : add_up(u);
}

static void inspect_share(void *arg, uint32_t share, uint32_t worker)
{
	struct update *u = arg;
	uint64_t sum = 0;
	for (uint64_t i = share_begin(u, share); i < share_begin(u, share + 1); i++) {
		struct chunk c = locate(u, i);
		sum += inspect_chunk(u, &c);
	}
	u->digest[share].sum = sum;
}

uint64_t update_digest(struct update *u)
{
	workers_run(u->workers, inspect_share, u, u->m->plan->threads, u->m->plan->n_elements < ALONE_BELOW);
	return add_up(u);
}
