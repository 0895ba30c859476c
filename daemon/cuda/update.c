/* SPDX-License-Identifier: Apache-2.0 */
/* Updates the parameters on a GPU, or finishes an update that an earlier life has begun. For arith_cuda.c; the engine's
 * main thread. */
#include "cuda/update.h"

#include "engine/stepping.h"
#include "math/cuda/launches.h"

#include <assert.h>
#include <stdlib.h>

struct cuda_updates {
	const struct cuda_life *life;
	const struct cuda_memory *memory;
	const struct cuda_device *device;
	const struct plan *plan;
	const struct cuda_results *results;
	struct cuda_looks *looks;
	const struct control_page *page;
	uint64_t *first_unit; /* [n_ranges + 1] */
	uint64_t n_units;
	cuda_word *stamp;	  /* [shares], as read */
	struct stepping stepping; /* of the step at hand */
	/* as they are uploaded */
	struct cuda_scalars *scalars; /* [stepping.n_scalars] */
	struct cuda_range *range;     /* [n_ranges] */
	cu_memory scalars_there, range_there;
	double *param, *direction; /* LAMB's sums of squares: [n_units] */
	cu_memory param_there, direction_there;
};

static bool is_lamb(const struct cuda_updates *u)
{
	return u->plan->optim.type == OPTIM_LAMB;
}

/* What LAMB's second phase adds to the numbers of units. A stamp at the end of one phase is not at the beginning of the
 * next. */
static uint64_t second_phase(const struct cuda_updates *u)
{
	return u->n_units + 1;
}

static uint64_t share_begin(const struct cuda_updates *u, uint64_t share)
{
	return u->n_units * share / u->memory->shares;
}

static enum status lamb_new(struct cuda_updates *u)
{
	u->param = calloc(u->n_units, sizeof(*u->param));
	u->direction = calloc(u->n_units, sizeof(*u->direction));
	if (!u->param || !u->direction)
		return ST_NO_MEMORY;
	const enum status st = cuda_private(u->device, u->n_units * sizeof(double), &u->param_there);
	return st ? st : cuda_private(u->device, u->n_units * sizeof(double), &u->direction_there);
}

enum status cuda_updates_new(struct cuda_updates **out, const struct cuda_life *life,
			     const struct cuda_results *results, struct cuda_looks *looks,
			     const struct control_page *page)
{
	const struct plan *plan = life->memory->plan;
	const struct plan_range *r = plan_ranges(plan);
	struct cuda_updates *u = calloc(1, sizeof(*u));
	if (!u)
		return ST_NO_MEMORY;
	*u = (struct cuda_updates){ .life = life,
				    .memory = life->memory,
				    .device = life->memory->device,
				    .plan = plan,
				    .results = results,
				    .looks = looks,
				    .page = page };
	u->first_unit = calloc(plan->n_ranges + 1, sizeof(*u->first_unit));
	u->stamp = calloc(u->memory->shares, sizeof(*u->stamp));
	enum status st = stepping_init(&u->stepping, plan, page);
	u->scalars = st ? NULL : calloc(u->stepping.n_scalars, sizeof(*u->scalars));
	u->range = calloc(plan->n_ranges, sizeof(*u->range));
	if (!u->first_unit || !u->stamp || !u->scalars || !u->range)
		st = ST_NO_MEMORY;
	for (uint64_t i = 0; i < plan->n_ranges && !st; i++)
		u->first_unit[i + 1] = u->first_unit[i] + (r[i].count + KERNEL_BLOCK - 1) / KERNEL_BLOCK;
	if (!st) {
		u->n_units = u->first_unit[plan->n_ranges];
		st = cuda_private(u->device, u->stepping.n_scalars * sizeof(*u->scalars), &u->scalars_there);
	}
	if (!st)
		st = cuda_private(u->device, plan->n_ranges * sizeof(*u->range), &u->range_there);
	if (!st && is_lamb(u))
		st = lamb_new(u);
	if (st)
		cuda_updates_free(u);
	else
		*out = u;
	return st;
}

void cuda_updates_free(struct cuda_updates *u)
{
	if (!u)
		return;
	cuda_private_free(u->device, u->scalars_there);
	cuda_private_free(u->device, u->range_there);
	cuda_private_free(u->device, u->param_there);
	cuda_private_free(u->device, u->direction_there);
	free(u->first_unit);
	free(u->stamp);
	stepping_fini(&u->stepping);
	free(u->scalars);
	free(u->range);
	free(u->param);
	free(u->direction);
	free(u);
}

static struct cuda_update argument(const struct cuda_updates *u, uint64_t window, uint64_t base)
{
	return (struct cuda_update){ .pass = u->life->pass,
				     .window = window,
				     .stamp = cuda_pointer(u->memory->stamp),
				     .undo = cuda_pointer(u->memory->undo),
				     .n = u->n_units,
				     .base = base,
				     .n_shares = u->memory->shares,
				     .range = cuda_pointer(u->range_there),
				     .n_ranges = u->plan->n_ranges,
				     .scalars = cuda_pointer(u->scalars_there),
				     .digest = u->results->at.digest,
				     .nonfinite = u->results->at.nonfinite,
				     .param = cuda_pointer(u->param_there),
				     .direction = cuda_pointer(u->direction_there),
				     .keys = u->results->keys };
}

static enum status launch_begin(const struct cuda_updates *u, uint64_t window, uint64_t base)
{
	const struct cuda_update a = argument(u, window, base);
	return cuda_launch(u->device, "update_begin", &a, cuda_blocks(u->device, u->memory->shares / CUDA_THREADS));
}

enum status cuda_updates_begin(struct cuda_updates *u, uint64_t window)
{
	const enum status st = launch_begin(u, window, 0);
	return st ? st : cuda_life_wait(u->life, 0);
}

/* ---- stamps ---- */

static enum status read_stamps(struct cuda_updates *u)
{
	return cuda_download(u->device, u->stamp, u->memory->stamp, u->memory->shares * sizeof(*u->stamp));
}

static bool is_in_second_phase(const struct cuda_updates *u, cuda_word stamp)
{
	return is_lamb(u) && CUDA_STAMP_UNIT(stamp) >= second_phase(u);
}

static bool stamp_valid(const struct cuda_updates *u, uint32_t share, uint64_t window)
{
	const cuda_word stamp = u->stamp[share];
	const uint64_t unit = CUDA_STAMP_UNIT(stamp), held = CUDA_STAMP_HELD(stamp);
	const uint64_t first = is_in_second_phase(u, stamp) ? second_phase(u) : 0;
	return CUDA_STAMP_WINDOW(stamp) == (window & 0xffff) && unit >= first + share_begin(u, share) &&
	       unit + held <= first + share_begin(u, share + 1);
}

enum status cuda_updates_can_resume(struct cuda_updates *u, uint64_t window, bool *out)
{
	const enum status st = read_stamps(u);
	*out = !st;
	for (uint32_t i = 0; i < u->memory->shares && !st; i++)
		*out = *out && stamp_valid(u, i, window);
	return st;
}

static bool has_progress(const struct cuda_updates *u)
{
	for (uint32_t i = 0; i < u->memory->shares; i++)
		if (CUDA_STAMP_UNIT(u->stamp[i]) != share_begin(u, i) || CUDA_STAMP_HELD(u->stamp[i]))
			return true;
	return false;
}

static bool second_phase_has_begun(const struct cuda_updates *u)
{
	for (uint32_t i = 0; i < u->memory->shares; i++)
		if (is_in_second_phase(u, u->stamp[i]))
			return true;
	return false;
}

/* ---- tables ---- */

static void *of_state(const struct cuda_updates *u, int i, uint64_t start)
{
	return u->memory->state[i] ? cuda_pointer(u->memory->state[i] + start * sizeof(float)) : NULL;
}

static struct cuda_range range_at(const struct cuda_updates *u, uint64_t i, uint32_t half)
{
	const struct plan_range *r = &plan_ranges(u->plan)[i];
	const struct arena_group *g = &u->plan->group[r->dtype_group];
	const uint64_t at = r->start - g->start, wide = r->start * sizeof(float);
	const cu_memory own = cuda_params(u->memory, r->dtype_group) + at * dtype_size(g->param_dtype);
	struct cuda_range out = { .first_unit = u->first_unit[i],
				  .count = r->count,
				  .m = of_state(u, 0, r->start),
				  .v = of_state(u, 1, r->start),
				  .g = cuda_pointer(u->memory->accum[half] + wide),
				  .scalars = (uint32_t)stepping_row(&u->stepping, i),
				  .p16_dtype = g->param_dtype,
				  .frozen = u->stepping.left_out[i] };
	if (g->param_dtype == DTYPE_F32) {
		out.p = cuda_pointer(own);
	} else {
		out.p16 = cuda_pointer(own);
		out.p = u->memory->master ? cuda_pointer(u->memory->master + wide) : NULL;
	}
	return out;
}

static enum status upload_ranges(const struct cuda_updates *u)
{
	return cuda_upload(u->device, u->range_there, u->range, u->plan->n_ranges * sizeof(*u->range));
}

static enum status upload_tables(struct cuda_updates *u, const struct control_record *r, uint32_t half)
{
	stepping_begin(&u->stepping, r);
	for (uint64_t i = 0; i < u->stepping.n_scalars; i++)
		cuda_scalars_of(&u->stepping.scalars[i], &u->scalars[i]);
	for (uint64_t i = 0; i < u->plan->n_ranges; i++)
		u->range[i] = range_at(u, i, half);
	const enum status st =
		cuda_upload(u->device, u->scalars_there, u->scalars, u->stepping.n_scalars * sizeof(*u->scalars));
	return st ? st : upload_ranges(u);
}

/* ---- an update ---- */

static uint64_t bytes_moved(const struct cuda_updates *u)
{
	return u->plan->n_elements * 42; /* and what is saved */
}

/* To the control segment, where a later life finds them when a stamp is in the second phase. */
static void store_ratios(const struct cuda_updates *u)
{
	double *trust = control_page_trust(u->page);
	for (uint64_t i = 0; i < u->plan->n_ranges; i++) {
		const uint64_t first = u->first_unit[i], n = u->first_unit[i + 1] - first;
		trust[i] = stepping_trust(&u->stepping, i, kernel_sum(u->param + first, n),
					  kernel_sum(u->direction + first, n));
	}
}

/* Moments, norms and ratios. resumed: an earlier life has had the norms of some units, which are taken again. */
static enum status first_phase(struct cuda_updates *u, uint64_t window, bool resumed)
{
	const struct cuda_update a = argument(u, window, 0);
	enum status st = cuda_launch(u->device, "lamb_moments", &a, u->memory->shares);
	if (!st && resumed)
		st = cuda_launch(u->device, "lamb_norms", &a, cuda_blocks(u->device, u->n_units));
	if (!st)
		st = cuda_life_wait(u->life, bytes_moved(u));
	if (!st)
		st = cuda_download(u->device, u->param, u->param_there, u->n_units * sizeof(*u->param));
	if (!st)
		st = cuda_download(u->device, u->direction, u->direction_there, u->n_units * sizeof(*u->direction));
	if (!st)
		store_ratios(u);
	return st;
}

static enum status run_lamb(struct cuda_updates *u, const struct control_record *r, bool resumed)
{
	enum status st = second_phase_has_begun(u) ? ST_OK : first_phase(u, r->commit_window, resumed);
	for (uint64_t i = 0; i < u->plan->n_ranges; i++)
		u->range[i].lr = stepping_lr(&u->stepping, i, r->commit_lr, control_page_trust(u->page)[i]);
	if (!st)
		st = upload_ranges(u);
	if (!st)
		st = launch_begin(u, r->commit_window, second_phase(u));
	const struct cuda_update a = argument(u, r->commit_window, second_phase(u));
	return st ? st : cuda_launch(u->device, "lamb", &a, u->memory->shares);
}

static enum status launch(struct cuda_updates *u, const struct control_record *r, bool resumed)
{
	const struct cuda_update a = argument(u, r->commit_window, 0);
	return is_lamb(u) ? run_lamb(u, r, resumed)
			  : cuda_launch(u->device, optim_info(u->plan->optim.type)->name, &a, u->memory->shares);
}

enum status cuda_updates_run(struct cuda_updates *u, const struct control_record *r, uint32_t half,
			     struct arith_params *out)
{
	struct cuda_total total = { 0, 0, 0 };
	*out = (struct arith_params){ 0, { 0, 0 } };
	assert(half < 2 && u->plan->optim.type != OPTIM_CLIENT);
	enum status st = read_stamps(u);
	const bool resumed = !st && has_progress(u);
	if (!st)
		st = upload_tables(u, r, half);
	if (!st)
		st = launch(u, r, resumed);
	if (!st && !resumed)
		st = cuda_total_of(u->results, u->results->at, u->n_units, bytes_moved(u), &total);
	if (!st && resumed)
		st = cuda_life_wait(u->life, bytes_moved(u));
	out->digest = total.digest;
	if (!st && resumed) /* what an earlier life has found is lost */
		st = cuda_looks_digest(u->looks, &out->digest);
	if (!st && (resumed || total.nonfinite))
		st = cuda_looks_nonfinite(u->looks, &out->nonfinite);
	return st;
}
