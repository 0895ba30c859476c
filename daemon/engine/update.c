/* SPDX-License-Identifier: Apache-2.0 */
/* Updates the parameters, share by share, with stamps and undo areas from which a successor can finish an interrupted
 * update. For arith_host.c; the engine's main thread, with the workers. */
#include "engine/update.h"

#include "engine/stepping.h"

#include "proto/failpoint.h"

#include <stdlib.h>
#include <string.h>

#define ALONE_BELOW 65536				/* elements */
#define CALL_CHUNKS 16					/* chunks that one kernel call covers at most */
#define PIECE_MOST ((size_t)CALL_CHUNKS * KERNEL_BLOCK) /* elements */

_Static_assert(UNDO_AREA_BYTES == KERNEL_UNDO_BYTES, "the control segment has room for two units");
_Static_assert(UNDO_HELD == 1, "kernels write stamps, too");

struct share_digest {
	_Alignas(64) uint64_t sum;
	uint64_t nonfinite;
};

/* Chunks [first, first + n). */
struct chunks {
	uint64_t first, n;
};

struct update {
	const struct memory *m;
	const struct kernels *kernels;
	struct workers *workers;
	uint64_t *first_chunk; /* [n_ranges + 1]: number of each range's first chunk */
	uint64_t n_chunks;
	struct chunks own;	     /* that are updated here: all, or those of this part's share */
	struct chunks at;	     /* that the shares at hand are of: `own`, but where others are looked at */
	bool of_trainers;	     /* looks at what trainers see, also where there is a master */
	struct stepping stepping;    /* of the step at hand */
	struct share_digest *digest; /* [shares] */
	const struct sum_view *sum;
	float *scratch; /* for what of the sum is converted: [threads] times [PIECE_MOST]; NULL: nothing is */
	bool resumed;	/* some of it was done in an earlier life */
	bool suspect;
	unsigned phase, n_phases;	/* 2: LAMB */
	struct kernel_lamb_norms norms; /* LAMB: [n_chunks] */
	float *step;			/* LAMB: [n_ranges], lr times trust ratio */
	struct front *front;		/* of a sharded job */
};

/* What one kernel call covers: `count` elements from `start` on, which are units [unit, end), of one range. */
struct piece {
	uint64_t unit, end, start, count;
	const struct plan_range *range;
};

/* After all earlier stores in program order: enough for a successor, which reads the stamp when this process has
 * ended. */
static void set_stamp(struct undo_stamp *s, uint64_t unit)
{
	atomic_signal_fence(memory_order_seq_cst);
	atomic_store_explicit(&s->state, unit << 1, memory_order_relaxed);
	atomic_signal_fence(memory_order_seq_cst);
}

/* First unit of a share; share `shares` begins where the last one ends. */
static uint64_t share_begin(const struct update *u, uint32_t share)
{
	return (u->at.first + u->at.n * share / u->m->page.shares) * UPDATE_UNITS;
}

/* Number of a phase's first unit. A stamp at the end of one phase is not at the beginning of the next. */
static uint64_t phase_begin(const struct update *u, unsigned phase)
{
	return phase * (u->n_chunks * UPDATE_UNITS + 1);
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

/* Of the chunk that begins at this element, which is where a range, a share, or the arena ends. */
static uint64_t chunk_at(const struct update *u, uint64_t element)
{
	const struct plan_range *r = plan_ranges(u->m->plan);
	uint64_t i = 0;
	while (i < u->m->plan->n_ranges && r[i].start + r[i].count <= element)
		i++;
	return u->first_chunk[i] + (i < u->m->plan->n_ranges ? (element - r[i].start) / KERNEL_BLOCK : 0);
}

static enum status lamb_new(struct update *u)
{
	u->n_phases = 2;
	u->norms.param = calloc(u->n_chunks, sizeof(double));
	u->norms.direction = calloc(u->n_chunks, sizeof(double));
	u->step = calloc(u->m->plan->n_ranges, sizeof(*u->step));
	return u->norms.param && u->norms.direction && u->step ? ST_OK : ST_NO_MEMORY;
}

/* Its runs are the shares of an update. */
static enum status make_front(struct update *u)
{
	const uint32_t n = u->m->page.shares;
	uint64_t *bounds = calloc(n + 1, sizeof(*bounds));
	if (!bounds)
		return ST_NO_MEMORY;
	for (uint32_t i = 0; i <= n; i++)
		bounds[i] = i == n || !u->own.n ? u->m->own_end : locate(u, share_begin(u, i), UINT64_MAX).start;
	const enum status st = front_new(&u->front, n, bounds);
	free(bounds);
	return st;
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
	u->digest = aligned_alloc(64, m->page.shares * sizeof(*u->digest));
	if (!u->first_chunk || !u->digest || stepping_init(&u->stepping, plan, &m->page))
		goto fail;
	for (uint64_t i = 0; i < plan->n_ranges; i++)
		u->first_chunk[i + 1] = u->first_chunk[i] + (r[i].count + KERNEL_BLOCK - 1) / KERNEL_BLOCK;
	u->n_chunks = u->first_chunk[plan->n_ranges];
	u->own.first = chunk_at(u, m->own);
	u->own.n = chunk_at(u, m->own_end) - u->own.first;
	u->at = u->own;
	u->n_phases = 1;
	if (plan->optim.type == OPTIM_LAMB && lamb_new(u))
		goto fail;
	if (plan_is_sharded(plan) && make_front(u))
		goto fail;
	if (plan->in_slot)
		u->scratch = aligned_alloc(64, plan->threads * PIECE_MOST * sizeof(*u->scratch));
	if (plan->in_slot && !u->scratch)
		goto fail;
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
	stepping_fini(&u->stepping);
	free(u->digest);
	free(u->norms.param);
	free(u->norms.direction);
	free(u->step);
	front_free(u->front);
	free(u->scratch);
	free(u);
}

void update_begin(struct update *u, uint64_t window)
{
	for (uint32_t i = 0; i < u->m->page.shares; i++) {
		struct undo_stamp *s = control_page_stamp(&u->m->page, i);
		s->window = window;
		set_stamp(s, share_begin(u, i));
	}
	if (u->front)
		front_begin(u->front);
}

static bool stamp_valid(const struct update *u, uint32_t share, uint64_t state)
{
	uint64_t unit = state >> 1, held = state & UNDO_HELD;
	unsigned phase = u->n_phases > 1 && unit >= phase_begin(u, 1);
	uint64_t first = phase_begin(u, phase);
	return unit >= first + share_begin(u, share) && unit + held <= first + share_begin(u, share + 1);
}

bool update_can_resume(const struct update *u, uint64_t window)
{
	for (uint32_t i = 0; i < u->m->page.shares; i++) {
		const struct undo_stamp *s = control_page_stamp(&u->m->page, i);
		if (s->window != window || !stamp_valid(u, i, atomic_load(&s->state)))
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
	if (u->of_trainers && p.p16)
		p.p = NULL;
	const void *values = memory_values(&p, &t);
	u->kernels->inspect(values, t, c->count, &(struct kernel_partials){ .digest = block });
	return combine(c, block);
}

static uint64_t number_of(const struct update *u, const struct piece *c)
{
	return (uint64_t)(c->range - plan_ranges(u->m->plan));
}

static const struct kernel_update *scalars_of(const struct update *u, const struct piece *c)
{
	return &u->stepping.scalars[stepping_row(&u->stepping, number_of(u, c))];
}

static const void *sum_at(const struct update *u, uint32_t worker, const struct piece *c)
{
	return sum_view_at(u->sum, c->range->dtype_group, c->start, c->count,
			   u->scratch ? u->scratch + (size_t)worker * PIECE_MOST : NULL);
}

/* LAMB's first phase. The norms of a resumed one are taken when it is through: a piece may begin inside a chunk. */
static void move_moments(const struct update *u, const struct piece *c, const struct kernel_params *p, const void *sum,
			 const struct kernel_undo *undo)
{
	double unused[2][CALL_CHUNKS];
	uint64_t chunk = c->unit / UPDATE_UNITS;
	struct kernel_lamb_norms out = { u->norms.param + chunk, u->norms.direction + chunk };
	if (u->resumed)
		out = (struct kernel_lamb_norms){ unused[0], unused[1] };
	u->kernels->lamb_moments(p, sum, (enum dtype)u->m->plan->acc_dtype, c->count, scalars_of(u, c), undo, &out);
}

static void move_params(const struct update *u, const struct piece *c, const struct kernel_params *p, const void *sum,
			const struct kernel_undo *undo, const struct kernel_partials *out)
{
	const struct plan *plan = u->m->plan;
	struct kernel_update scalars = *scalars_of(u, c);
	if (u->step)
		scalars.lr = u->step[number_of(u, c)];
	optim_apply(u->kernels, &plan->optim, p, sum, (enum dtype)plan->acc_dtype, c->count, &scalars, undo, out);
}

static bool is_last_phase(const struct update *u)
{
	return u->phase + 1 == u->n_phases;
}

static uint64_t add_counts(const uint32_t *count, uint64_t n)
{
	uint64_t sum = 0;
	for (uint64_t i = 0; i < n; i++)
		sum += count[i];
	return sum;
}

/* Adds digest and non-finite count of what it wrote; nothing when resumed: a piece may then begin inside a chunk. */
static void apply_piece(const struct update *u, uint32_t share, uint32_t worker, const struct piece *c,
			struct share_digest *out)
{
	struct undo_stamp *stamp = control_page_stamp(&u->m->page, share);
	const uint64_t first = phase_begin(u, u->phase);
	const struct kernel_undo undo = { control_page_undo(&u->m->page, share), &stamp->state, first + c->unit };
	const bool wanted = is_last_phase(u) && !u->resumed;
	uint64_t block[CALL_CHUNKS];
	uint32_t nonfinite[CALL_CHUNKS];
	struct kernel_params p;
	const void *sum = sum_at(u, worker, c);
	memory_params(u->m, c->range->dtype_group, c->start, &p);
	if (is_last_phase(u))
		move_params(u, c, &p, sum, &undo,
			    wanted ? &(struct kernel_partials){ .digest = block, .nonfinite = nonfinite } : NULL);
	else
		move_moments(u, c, &p, sum, &undo);
	FAILPOINT(engine_chunk_updated);
	set_stamp(stamp, first + c->end);
	FAILPOINT(engine_chunk_done);
	if (!wanted)
		return;
	out->sum += combine(c, block);
	out->nonfinite += add_counts(nonfinite, (c->count + KERNEL_BLOCK - 1) / KERNEL_BLOCK);
}

/* state: of the share's stamp, in this phase. */
static void restore_held(const struct update *u, uint32_t share, uint64_t state)
{
	uint64_t number = state >> 1, unit = number - phase_begin(u, u->phase);
	struct piece c = locate(u, unit, unit + 1);
	struct kernel_params p;
	memory_params(u->m, c.range->dtype_group, c.start, &p);
	kernel_undo_restore(control_page_undo(&u->m->page, share), number, &p, c.count);
	set_stamp(control_page_stamp(&u->m->page, share), number);
}

static bool is_left_out(const struct update *u, const struct piece *c)
{
	return u->stepping.left_out[number_of(u, c)];
}

static void run_share(void *arg, uint32_t share, uint32_t worker)
{
	struct update *u = arg;
	struct share_digest sum = { 0 };
	uint64_t state = atomic_load(&control_page_stamp(&u->m->page, share)->state);
	if (state & UNDO_HELD)
		restore_held(u, share, state);
	uint64_t unit = (state >> 1) - phase_begin(u, u->phase);
	for (uint64_t end = share_begin(u, share + 1); unit < end;) {
		struct piece c = locate(u, unit, end);
		if (!is_left_out(u, &c))
			apply_piece(u, share, worker, &c, &sum);
		else if (is_last_phase(u) && !u->resumed)
			sum.sum += inspect_piece(u, &c);
		unit = c.end;
		if (u->front)
			front_reach(u->front, share, c.start + c.count);
		workers_note_step(u->workers, worker);
	}
	u->digest[share] = sum;
}

static bool has_progress(const struct update *u)
{
	for (uint32_t i = 0; i < u->m->page.shares; i++)
		if (atomic_load(&control_page_stamp(&u->m->page, i)->state) != share_begin(u, i) << 1)
			return true;
	return false;
}

static void run_on_shares(struct update *u, workers_fn *fn)
{
	workers_run(u->workers, fn, u, u->m->page.shares, u->m->plan->n_elements < ALONE_BELOW);
}

static void run_phase(struct update *u, unsigned phase)
{
	u->phase = phase;
	run_on_shares(u, run_share);
}

static bool second_phase_has_begun(const struct update *u)
{
	for (uint32_t i = 0; i < u->m->page.shares; i++)
		if (atomic_load(&control_page_stamp(&u->m->page, i)->state) >> 1 >= phase_begin(u, 1))
			return true;
	return false;
}

static void begin_second_phase(const struct update *u)
{
	for (uint32_t i = 0; i < u->m->page.shares; i++) {
		struct undo_stamp *s = control_page_stamp(&u->m->page, i);
		if (atomic_load(&s->state) >> 1 < phase_begin(u, 1))
			set_stamp(s, phase_begin(u, 1) + share_begin(u, i));
	}
}

/* The norms of a share whose moments are done. */
static void take_norms(void *arg, uint32_t share, uint32_t worker)
{
	const struct update *u = arg;
	for (uint64_t unit = share_begin(u, share), end = share_begin(u, share + 1); unit < end;) {
		struct piece c = locate(u, unit, end);
		uint64_t chunk = c.unit / UPDATE_UNITS;
		struct kernel_params p;
		memory_params(u->m, c.range->dtype_group, c.start, &p);
		if (!is_left_out(u, &c))
			u->kernels->lamb_moments(
				&p, NULL, DTYPE_F32, c.count, scalars_of(u, &c), NULL,
				&(struct kernel_lamb_norms){ u->norms.param + chunk, u->norms.direction + chunk });
		unit = c.end;
	}
}

static void store_ratios(const struct update *u)
{
	const struct plan *plan = u->m->plan;
	double *trust = control_page_trust(&u->m->page);
	for (uint64_t i = 0; i < plan->n_ranges; i++) {
		const uint64_t first = u->first_chunk[i], n = u->first_chunk[i + 1] - first;
		trust[i] = stepping_trust(&u->stepping, i, kernel_sum(u->norms.param + first, n),
					  kernel_sum(u->norms.direction + first, n));
	}
}

static void run_lamb(struct update *u, double lr)
{
	if (!second_phase_has_begun(u)) {
		run_phase(u, 0);
		if (u->resumed)
			run_on_shares(u, take_norms);
		store_ratios(u);
	}
	begin_second_phase(u);
	for (uint64_t i = 0; i < u->m->plan->n_ranges; i++)
		u->step[i] = stepping_lr(&u->stepping, i, lr, control_page_trust(&u->m->page)[i]);
	run_phase(u, 1);
}

static uint64_t add_up(const struct update *u)
{
	uint64_t sum = 0;
	for (uint32_t i = 0; i < u->m->page.shares; i++)
		sum += u->digest[i].sum;
	return sum;
}

uint64_t update_run(struct update *u, const struct control_record *r, const struct sum_view *sum)
{
	u->resumed = has_progress(u);
	stepping_begin(&u->stepping, r);
	u->sum = sum;
	if (u->n_phases > 1)
		run_lamb(u, r->commit_lr);
	else
		run_phase(u, 0);
	u->suspect = u->resumed;
	for (uint32_t i = 0; i < u->m->page.shares; i++)
		u->suspect |= u->digest[i].nonfinite != 0;
	return u->resumed ? update_own_digest(u, false) : add_up(u);
}

struct front *update_front(struct update *u)
{
	return u->front;
}

bool update_is_suspect(const struct update *u)
{
	return u->suspect;
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

static uint64_t inspect(struct update *u, struct chunks at, bool of_trainers)
{
	u->at = at;
	u->of_trainers = of_trainers;
	run_on_shares(u, inspect_share);
	u->at = u->own;
	u->of_trainers = false;
	return add_up(u);
}

uint64_t update_digest(struct update *u)
{
	const struct chunks all = { 0, u->n_chunks };
	return inspect(u, all, plan_is_sharded(u->m->plan)); /* no part has all masters */
}

uint64_t update_own_digest(struct update *u, bool of_trainers)
{
	return inspect(u, u->own, of_trainers);
}

uint64_t update_others_digest(struct update *u)
{
	const uint64_t end = u->own.first + u->own.n;
	const struct chunks before = { 0, u->own.first }, behind = { end, u->n_chunks - end };
	const uint64_t sum = inspect(u, before, true);
	return sum + inspect(u, behind, true);
}
