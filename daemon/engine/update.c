#include "engine/update.h"

#include "proto/failpoint.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define ALONE_BELOW 65536 /* elements */
#define CALL_CHUNKS 16    /* chunks that one kernel call covers at most */

_Static_assert(UNDO_AREA_BYTES == KERNEL_UNDO_BYTES, "the control segment has room for two units");
_Static_assert(UNDO_HELD == 1, "kernels write stamps, too");

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
	bool resumed;                  /* some of it was done in an earlier life */
};

/* What one kernel call covers: `count` elements from `start` on, which are units [unit, end), of one range. */
struct piece {
	uint64_t unit, end, start, count;
	const struct plan_range *range;
};

/* Behind all stores so far: for a successor, not for other processors. */
static void set_stamp(struct undo_stamp *s, uint64_t unit)
{
	atomic_signal_fence(memory_order_seq_cst);
	atomic_store_explicit(&s->state, unit << 1, memory_order_relaxed);
	atomic_signal_fence(memory_order_seq_cst);
}

/* First unit of a share; share threads begins where the last one ends. */
static uint64_t share_begin(const struct update *u, uint32_t share)
{
	return u->n_chunks * share / u->m->plan->threads * UPDATE_UNITS;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* The units from `unit` on that one call may cover, none of them at or behind `end`. */
static struct piece locate(const struct update *u, uint64_t unit, uint64_t end)
{
	uint64_t low = 0, high = u->m->plan->n_ranges;
	while (high - low > 1) {
		uint64_t mid = low + (high - low) / 2;
		if (u->first_chunk[mid] * UPDATE_UNITS <= unit)
			low = mid;
		else
			high = mid;
	}
	const struct plan_range *r = &plan_ranges(u->m->plan)[low];
	uint64_t at = (unit - u->first_chunk[low] * UPDATE_UNITS) * KERNEL_UNIT;
	end = least(end, u->first_chunk[low + 1] * UPDATE_UNITS);
	end = least(end, unit / UPDATE_UNITS * UPDATE_UNITS + CALL_CHUNKS * UPDATE_UNITS);
	return (struct piece){ unit, end, r->start + at, least((end - unit) * KERNEL_UNIT, r->count - at), r };
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
		u->first_chunk[i + 1] = u->first_chunk[i] + (r[i].count + KERNEL_BLOCK - 1) / KERNEL_BLOCK;
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
		set_stamp(s, share_begin(u, i));
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

/* Of whole chunks; the piece begins with one. */
static uint64_t combine(const struct piece *c, const uint64_t *block)
{
	return kernel_digest_combine(block, (c->end - c->unit) / UPDATE_UNITS, c->unit / UPDATE_UNITS);
}

static uint64_t inspect_piece(const struct update *u, const struct piece *c)
{
	uint64_t block[CALL_CHUNKS];
	struct kernel_params p;
	enum dtype t;
	memory_params(u->m, c->range->dtype_group, c->start, &p);
	const void *values = memory_values(&p, &t);
	u->kernels->inspect(values, t, c->count, &(struct kernel_partials){ .digest = block });
	return combine(c, block);
}

/* Digest of what it wrote; 0 when resumed: a piece may then begin inside a chunk. */
static uint64_t apply_piece(const struct update *u, uint32_t share, const struct piece *c)
{
	const struct plan *plan = u->m->plan;
	struct undo_stamp *stamp = control_page_stamp(&u->m->page, share);
	struct kernel_undo undo = { control_page_undo(&u->m->page, share), &stamp->state, c->unit };
	uint64_t block[CALL_CHUNKS];
	struct kernel_params p;
	memory_params(u->m, c->range->dtype_group, c->start, &p);
	optim_apply(u->kernels, &plan->optim, &p, u->sum + c->start * dtype_size((enum dtype)plan->acc_dtype),
		    (enum dtype)plan->acc_dtype, c->count, &u->scalars[c->range->optim_group], &undo,
		    u->resumed ? NULL : block);
	FAILPOINT(engine_chunk_updated);
	set_stamp(stamp, c->end);
	FAILPOINT(engine_chunk_done);
	return u->resumed ? 0 : combine(c, block);
}

static void restore_held(const struct update *u, uint32_t share, struct undo_stamp *stamp, uint64_t unit)
{
	struct piece c = locate(u, unit, unit + 1);
	struct kernel_params p;
	memory_params(u->m, c.range->dtype_group, c.start, &p);
	kernel_undo_restore(control_page_undo(&u->m->page, share), unit, &p, c.count);
	set_stamp(stamp, unit);
}

static void run_share(void *arg, uint32_t share, uint32_t worker)
{
	struct update *u = arg;
	struct undo_stamp *stamp = control_page_stamp(&u->m->page, share);
	uint64_t state = atomic_load(&stamp->state), end = share_begin(u, share + 1), sum = 0;
	if (state & UNDO_HELD)
		restore_held(u, share, stamp, state >> 1);
	for (uint64_t unit = state >> 1; unit < end;) {
		struct piece c = locate(u, unit, end);
		bool frozen = plan_optim_groups(u->m->plan)[c.range->optim_group].frozen;
		if (!frozen)
			sum += apply_piece(u, share, &c);
		else if (!u->resumed)
			sum += inspect_piece(u, &c);
		unit = c.end;
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
	u->resumed = has_progress(u);
	for (uint64_t i = 0; i < plan->n_optim_groups; i++)
		optim_step(&plan->optim, &plan_optim_groups(plan)[i], r->commit_applied_step, r->commit_lr,
			   r->commit_scale, r->commit_clip_value, &u->scalars[i]);
	u->sum = sum;
	workers_run(u->workers, run_share, u, plan->threads, plan->n_elements < ALONE_BELOW);
	return u->resumed ? update_digest(u) : add_up(u);
}

static void inspect_share(void *arg, uint32_t share, uint32_t worker)
{
	struct update *u = arg;
	uint64_t sum = 0;
	for (uint64_t unit = share_begin(u, share), end = share_begin(u, share + 1); unit < end;) {
		struct piece c = locate(u, unit, end);
		sum += inspect_piece(u, &c);
		unit = c.end;
	}
	u->digest[share].sum = sum;
}

uint64_t update_digest(struct update *u)
{
	workers_run(u->workers, inspect_share, u, u->m->plan->threads, u->m->plan->n_elements < ALONE_BELOW);
	return add_up(u);
}
