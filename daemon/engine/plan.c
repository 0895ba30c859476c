/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the sizes that follow from a plan, and checks a plan. For gaccd, which makes the memory, and the engine,
 * which maps it; no state, any thread. */
#include "engine/plan.h"

#include "engine/touched.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

static bool has_master(const struct plan *p)
{
	for (uint32_t i = 0; p->master && i < p->n_groups; i++)
		if (dtype_size(p->group[i].param_dtype) == 2)
			return true;
	return false;
}

static int n_state(const struct plan *p)
{
	const struct optim_info *info = optim_info(p->optim.type);
	return info ? info->n_state(&p->optim) : 0;
}

static bool is_on_host(const struct plan *p, uint32_t role)
{
	if (p->device == PLAN_HOST || role == SEG_CONTROL || role == SEG_STATUS)
		return true;
	return p->slots_on_host && (role == SEG_PARAMS || role == SEG_SLOT);
}

uint64_t plan_status_slots(const struct plan *p)
{
	return STATUS_PROGRESS_OFFSET + sizeof(struct status_progress) + p->ranks * sizeof(struct status_rank);
}

uint64_t plan_exchange_bytes(const struct plan *p)
{
	return p->device != PLAN_HOST && p->n_parts > 1 ? 2 * p->n_elements * sizeof(float) : 0;
}

uint64_t plan_role_bytes(const struct plan *p, enum segment_role role)
{
	uint64_t from, end;
	plan_own(p, &from, &end);
	const uint64_t f32 = (end - from) * sizeof(float);
	switch (role) {
	case SEG_CONTROL:
		return touched_control_bytes(p->ranks, p->max_micro_size, p->threads, p->n_tensors, p->skip_untouched);
	case SEG_STATUS:
		return plan_status_slots(p) + (is_on_host(p, SEG_SLOT) ? 0 : p->slots * sizeof(struct status_slot));
	case SEG_ACCUM0:
	case SEG_ACCUM1:
		return p->in_slot ? 0 : p->n_elements * dtype_size((enum dtype)p->acc_dtype);
	case SEG_PARAMS:
		return p->param_bytes;
	case SEG_MASTER:
		return has_master(p) ? f32 : 0;
	case SEG_STATE0:
		return n_state(p) > 0 ? f32 : 0;
	case SEG_STATE1:
		return n_state(p) > 1 ? f32 : 0;
	default:
		return 0;
	}
}

void plan_shares(const struct plan *p, uint64_t *out)
{
	const uint64_t units = (p->n_elements + PLAN_SHARE_ALIGN - 1) / PLAN_SHARE_ALIGN;
	for (uint32_t s = 0; s < p->n_parts; s++)
		out[s] = s * units / p->n_parts * PLAN_SHARE_ALIGN;
	out[p->n_parts] = p->n_elements;
}

void plan_shards(const struct plan *p, uint64_t *out)
{
	uint64_t share[PLAN_MAX_PARTS + 1];
	plan_shares(p, share);
	for (uint32_t s = 0; s <= p->n_shards; s++)
		out[s] = share[s * (p->n_parts / p->n_shards)];
}

void plan_own(const struct plan *p, uint64_t *from, uint64_t *end)
{
	uint64_t shard[PLAN_MAX_PARTS + 1];
	plan_shards(p, shard);
	*from = shard[p->part % p->n_shards];
	*end = shard[p->part % p->n_shards + 1];
}

struct segment_list {
	struct plan_segment *out;
	int n, most;
};

static void list(struct segment_list *l, struct plan_segment s)
{
	if (l->n < l->most)
		l->out[l->n] = s;
	l->n++;
}

static bool is_on_device(const struct plan *p, uint32_t role)
{
	return !is_on_host(p, role) || (p->device != PLAN_HOST && role == SEG_PARAMS);
}

static void list_all(const struct plan *p, struct segment_list *l, bool on_device)
{
	bool (*is_there)(const struct plan *, uint32_t) = on_device ? is_on_device : is_on_host;
	for (uint32_t role = SEG_CONTROL; role <= SEG_STATE1; role++) {
		const uint64_t bytes = plan_role_bytes(p, (enum segment_role)role);
		if (bytes && is_there(p, role))
			list(l, (struct plan_segment){ role, 0, bytes, on_device });
	}
	for (uint32_t i = 0; i < p->slots && is_there(p, SEG_SLOT); i++)
		list(l, (struct plan_segment){ SEG_SLOT, i, p->slot_bytes, on_device });
}

int plan_segments(const struct plan *p, struct plan_segment *out, int n)
{
	struct segment_list l = { .out = out, .most = n };
	list_all(p, &l, false);
	if (p->device == PLAN_HOST)
		return l.n;
	list(&l, (struct plan_segment){ SEG_DEVICE, 0, 0, true });
	list_all(p, &l, true);
	list(&l, (struct plan_segment){ SEG_DEVICE_FILE, 0, 0, true });
	return l.n;
}

int plan_host_segments(const struct plan *p)
{
	struct segment_list l = { .out = NULL };
	list_all(p, &l, false);
	return l.n;
}

uint64_t plan_ranges_hash(const struct plan *p)
{
	return XXH3_64bits(plan_ranges(p), p->n_ranges * sizeof(struct plan_range));
}

static bool fits(uint64_t offset, uint64_t n, uint64_t size, uint64_t bytes)
{
	return offset % 8 == 0 && offset <= bytes && n <= (bytes - offset) / size;
}

static bool groups_ok(const struct plan *p)
{
	uint64_t end = 0;
	if (p->n_groups == 0 || p->n_groups > ARENA_MAX_GROUPS)
		return false;
	for (uint32_t i = 0; i < p->n_groups; i++) {
		const struct arena_group *g = &p->group[i];
		uint64_t grad = dtype_size(g->grad_dtype), param = dtype_size(g->param_dtype);
		if (g->start != end || g->count % KERNEL_BLOCK || g->count > p->n_elements - end)
			return false;
		if (grad == 0 || (grad == 8 && p->acc_dtype != DTYPE_F64) || (param != 2 && param != 4))
			return false;
		if (g->slot_offset % 64 || g->param_offset % 64 || g->slot_offset > p->slot_bytes ||
		    g->count > (p->slot_bytes - g->slot_offset) / grad || g->param_offset > p->param_bytes ||
		    g->count > (p->param_bytes - g->param_offset) / param)
			return false;
		end += g->count;
	}
	return end == p->n_elements;
}

/* No chunk of an update has elements of two shares. */
static bool shares_ok(const struct plan *p)
{
	const struct plan_range *r = plan_ranges(p);
	uint64_t share[PLAN_MAX_PARTS + 1];
	uint32_t s = 1;
	if (!plan_is_sharded(p))
		return true;
	plan_shares(p, share);
	for (uint64_t i = 0; i < p->n_ranges; i++)
		for (; s < p->n_parts && share[s] < r[i].start + r[i].count; s++)
			if (share[s] > r[i].start && (share[s] - r[i].start) % KERNEL_BLOCK)
				return false;
	return true;
}

static bool ranges_ok(const struct plan *p)
{
	const struct plan_range *r = plan_ranges(p);
	uint64_t end = 0;
	for (uint64_t i = 0; i < p->n_ranges; i++) {
		if (r[i].dtype_group >= p->n_groups || r[i].optim_group >= p->n_optim_groups)
			return false;
		const struct arena_group *g = &p->group[r[i].dtype_group];
		if (r[i].start != end || r[i].start % ARENA_ALIGN || r[i].count == 0 || r[i].start < g->start ||
		    r[i].count > g->count || r[i].start - g->start > g->count - r[i].count)
			return false;
		end += r[i].count;
	}
	return end == p->n_elements && shares_ok(p) && (p->optim.type != OPTIM_LAMB || p->n_ranges <= p->n_tensors);
}

static bool tensors_ok(const struct plan *p)
{
	const struct plan_tensor *t = plan_tensors(p);
	uint32_t begun = 0; /* groups that begin with a tensor, as all must */
	for (uint64_t i = 0; i < p->n_tensors; i++) {
		if (t[i].dtype_group >= p->n_groups || t[i].alias < -1 || t[i].alias >= (int64_t)i)
			return false;
		const struct arena_group *g = &p->group[t[i].dtype_group];
		if (t[i].start % ARENA_ALIGN || t[i].start < g->start || t[i].count > g->count ||
		    t[i].start - g->start > g->count - t[i].count || t[i].name_offset >= p->names_bytes ||
		    t[i].n_dims > ARENA_MAX_DIMS)
			return false;
		if (t[i].alias < 0 && t[i].start == g->start)
			begun |= 1u << t[i].dtype_group;
	}
	return begun == (1u << p->n_groups) - 1 && !((const char *)p + p->names_offset)[p->names_bytes - 1];
}

/* Limits that keep all later products in 64 bits. */
static const char *scalars_wrong(const struct plan *p)
{
	if (p->ranks == 0 || p->max_micro_size == 0 || p->micro_size == 0 || p->micro_size > p->max_micro_size)
		return "ranks or micro_size";
	if (p->in_slot > 1 || (p->in_slot && (p->ranks > 1 || p->max_micro_size > 1 || p->n_parts > 1 ||
					      p->acc_dtype != DTYPE_F32 || p->optim.type == OPTIM_CLIENT)))
		return "shape, for a sum that stays in its slot,";
	if (control_page_bytes(p->ranks, p->max_micro_size, p->threads, p->n_tensors) == 0)
		return "ranks times max_micro_size, or n_tensors";
	if (p->part >= p->n_parts || p->n_parts > PLAN_MAX_PARTS)
		return "part or n_parts";
	if (!p->n_shards || p->n_parts % p->n_shards ||
	    (plan_is_sharded(p) && (p->optim.type == OPTIM_LAMB || p->optim.type == OPTIM_CLIENT)))
		return "sharding";
	if (p->threads == 0 || p->threads > PLAN_MAX_THREADS || p->slots == 0 || p->slots > PLAN_MAX_SLOTS)
		return "threads or slots";
	if (p->slots_per_rank == 0 || (uint64_t)p->ranks * p->slots_per_rank > p->slots)
		return "slots_per_rank";
	if (p->reduction < REDUCE_WEIGHTED_MEAN || p->reduction > REDUCE_FIXED || p->grad_of < GRAD_OF_MEAN ||
	    p->grad_of > GRAD_OF_SUM)
		return "reduction or grad_of";
	if (p->void_is_error && !p->reject_nonfinite)
		return "void_is_error";
	if (p->device >= PLAN_DEVICES || p->slots_on_host > (p->device != PLAN_HOST) ||
	    !memchr(p->gpu, 0, sizeof(p->gpu)))
		return "device";
	if (p->skip_untouched > (p->optim.type != OPTIM_CLIENT))
		return "skip_untouched";
	if (p->verify_params > (p->optim.type != OPTIM_CLIENT && !plan_is_sharded(p)))
		return "verify_params";
	if (p->acc_dtype != DTYPE_F32 && p->acc_dtype != DTYPE_F64)
		return "acc_dtype";
	if (p->n_elements == 0 || p->n_elements > UINT64_C(1) << 48)
		return "n_elements";
	if (!optim_info(p->optim.type))
		return "optimizer";
	return NULL;
}

enum status plan_check(const struct plan *p, uint64_t bytes, char *why, size_t n_why)
{
	if (bytes < sizeof(*p) || p->version != PLAN_VERSION || p->bytes_of_plan != sizeof(*p) || p->bytes > bytes) {
		snprintf(why, n_why, "the plan's version or size is not this build's (%" PRIu64 " bytes)", bytes);
		return ST_INVALID_ARGUMENT;
	}
	const char *wrong = scalars_wrong(p);
	if (!wrong && (!fits(p->tensors_offset, p->n_tensors, sizeof(struct plan_tensor), p->bytes) ||
		       !fits(p->ranges_offset, p->n_ranges, sizeof(struct plan_range), p->bytes) ||
		       !fits(p->optim_groups_offset, p->n_optim_groups, sizeof(struct optim_group), p->bytes) ||
		       p->names_bytes == 0 || !fits(p->names_offset, p->names_bytes, 1, p->bytes) ||
		       (p->numbers_offset && !fits(p->numbers_offset, p->ranks, sizeof(uint32_t), p->bytes))))
		wrong = "tables";
	if (!wrong && !groups_ok(p))
		wrong = "dtype groups";
	if (!wrong && !ranges_ok(p))
		wrong = "ranges";
	if (!wrong && (p->n_tensors > ARENA_MAX_TENSORS || !tensors_ok(p)))
		wrong = "tensors";
	if (!wrong)
		return ST_OK;
	snprintf(why, n_why, "the plan's %s are out of range", wrong);
	return ST_INVALID_ARGUMENT;
}
