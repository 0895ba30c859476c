/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the engine's plan from a job's specification and its tensor set. For runtime/part_memory.c: the head on the
 * loop thread, the whole plan in the pool. No state. */
#include "control/job.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Names and shapes, with which the tensors are written to files. */
static void fill_names(const struct tensor_spec *t, uint64_t n, struct plan_tensor *out, char *names)
{
	char *at = names;
	for (uint64_t i = 0; i < n; i++) {
		out[i].name_offset = (uint64_t)(at - names);
		out[i].n_dims = (uint32_t)t[i].n_dims;
		memcpy(out[i].shape, t[i].shape, sizeof(out[i].shape));
		at = stpcpy(at, t[i].name) + 1;
	}
}

static uint64_t count_names(const struct tensor_spec *t, uint64_t n)
{
	uint64_t bytes = 1;
	for (uint64_t i = 0; i < n; i++)
		bytes += strlen(t[i].name) + 1;
	return (bytes + 7) / 8 * 8; /* the last one is zero */
}

static void fill_tensors(const struct job_spec *spec, const struct tensor_set *s, struct plan_tensor *out)
{
	for (uint64_t i = 0; i < s->n; i++) {
		const struct arena_tensor *at = &s->arena.tensor[i];
		const struct tensor_spec *t = &s->tensor[i];
		out[i] = (struct plan_tensor){ .start = at->start,
					       .count = at->count,
					       .dtype_group = at->group,
					       .alias = at->alias,
					       .key = XXH3_64bits(t->name, strlen(t->name)) };
		init_fans(t->shape, t->n_dims, &out[i].fan_in, &out[i].fan_out);
		const struct init_rule *rule = at->alias >= 0 ? NULL : spec_match_init(&s->match, spec, i);
		if (rule)
			out[i].init = *rule;
	}
}

/* Group of each arena position: tensors in order of their start, gaps belong to the tensor before. */
struct piece {
	uint64_t start;
	uint32_t dtype_group, optim_group;
};

static int by_start(const void *a, const void *b)
{
	uint64_t x = ((const struct piece *)a)->start, y = ((const struct piece *)b)->start;
	return x < y ? -1 : x > y;
}

/* Ranges cover the arena: each runs from its first tensor to the next of another group, or to the next at all. */
static uint64_t merge(struct piece *p, uint64_t n, uint64_t n_elements, bool per_tensor, struct plan_range *out)
{
	uint64_t k = 0;
	for (uint64_t i = 0; i < n; i++) {
		uint64_t end = i + 1 < n ? p[i + 1].start : n_elements;
		uint64_t start = i ? p[i].start : 0;
		struct plan_range *last = k ? &out[k - 1] : NULL;
		if (last && !per_tensor && last->dtype_group == p[i].dtype_group &&
		    last->optim_group == p[i].optim_group) {
			last->count += end - start;
			continue;
		}
		out[k++] = (struct plan_range){ start, end - start, p[i].dtype_group, p[i].optim_group };
	}
	return k;
}

/* Cuts ranges where a share begins inside a chunk of an update, which would then have two owners. Jobs of several parts
 * have the same ranges whether they are sharded or not, so that digests of parameters are the same. */
static uint64_t cut(const struct plan *p, struct plan_range *r, uint64_t n)
{
	uint64_t share[PLAN_MAX_PARTS + 1];
	plan_shares(p, share);
	for (uint32_t s = p->n_parts; s-- > 1;) { /* from behind: what is before stays where it is */
		uint64_t i = n;
		while (i && r[i - 1].start >= share[s])
			i--;
		if (!i || share[s] >= r[i - 1].start + r[i - 1].count ||
		    (share[s] - r[i - 1].start) % KERNEL_BLOCK == 0)
			continue;
		memmove(&r[i + 1], &r[i], (n - i) * sizeof(*r));
		r[i] = r[i - 1];
		r[i].start = share[s];
		r[i].count -= share[s] - r[i - 1].start;
		r[i - 1].count = share[s] - r[i - 1].start;
		n++;
	}
	return n;
}

static void fill_groups(const struct job_spec *spec, struct optim_group *out)
{
	for (uint32_t i = 0; i <= spec->n_groups; i++)
		out[i] = job_spec_group(spec, i);
}

_Static_assert(PART_MAX == PLAN_MAX_PARTS, "what may be placed can have a plan");

void plan_head(struct plan *p, const struct job_spec *spec, const struct arena *a, const struct plan_place *at)
{
	*p = (struct plan){ .version = PLAN_VERSION,
			    .bytes_of_plan = sizeof(*p),
			    .job_id = at->job_id,
			    .part = at->part,
			    .n_parts = at->n_parts,
			    .n_shards = at->n_parts > 1 ? spec_shards(spec) : 1,
			    .fingerprint = a->fingerprint,
			    .ranks = spec->ranks,
			    .max_micro_size = spec->max_micro_size,
			    .micro_size = spec->micro_size,
			    .slots = at->slots,
			    .slots_per_rank = spec->slots_per_rank,
			    .reduction = spec->reduction,
			    .grad_of = spec->grad_of,
			    .threads = at->threads,
			    .canonical = spec->ordering == ORDER_CANONICAL,
			    .reject_nonfinite = spec->nonfinite != NONFINITE_SKIP_STEP,
			    .void_is_error = spec->nonfinite == NONFINITE_ERROR,
			    .master = spec->master_f32,
			    .in_slot = spec->accumulate == ACCUMULATE_NONE,
			    .device = spec->device == DEVICE_CUDA ? PLAN_CUDA : PLAN_HOST,
			    .slots_on_host = spec->device == DEVICE_CUDA && spec->slots_on == SLOTS_ON_HOST,
			    .skip_untouched = spec->untouched == UNTOUCHED_SKIP,
			    .verify_params = spec->verify_params,
			    .acc_dtype = spec->accumulate_dtype,
			    .n_groups = (uint32_t)a->n_groups,
			    .optim = spec->optim,
			    .loss_scale = spec->loss_scale,
			    .seed = spec->seed,
			    .n_elements = a->n_elements,
			    .slot_bytes = a->slot_bytes,
			    .param_bytes = a->param_bytes,
			    .n_tensors = a->n_tensors };
	memcpy(p->group, a->group, sizeof(p->group));
	_Static_assert(sizeof(spec->gpu) <= sizeof(p->gpu), "a GPU's name fits");
	memcpy(p->gpu, spec->gpu, sizeof(spec->gpu));
	if (at->gpu)
		snprintf(p->gpu, sizeof(p->gpu), "#%" PRIu32, at->gpu - 1);
}

/* The ranges of the update; ST_NO_MEMORY. */
static enum status fill_ranges(const struct job_spec *spec, const struct tensor_set *s, struct plan *p)
{
	const struct arena *a = &s->arena;
	struct piece *piece = calloc(s->n, sizeof(*piece));
	uint64_t n = 0;
	if (!piece)
		return ST_NO_MEMORY;
	for (uint64_t i = 0; i < s->n; i++)
		if (a->tensor[i].alias < 0)
			piece[n++] = (struct piece){ a->tensor[i].start, a->tensor[i].group,
						     (uint32_t)(spec_match_group(&s->match, i) + 1) };
	qsort(piece, n, sizeof(*piece), by_start);
	struct plan_range *r = (struct plan_range *)((char *)p + p->ranges_offset);
	const bool per_tensor = spec->optim.type == OPTIM_LAMB || p->skip_untouched;
	p->n_ranges = merge(piece, n, a->n_elements, per_tensor, r);
	if (spec->optim.type != OPTIM_LAMB) /* its ratios are of whole tensors */
		p->n_ranges = cut(p, r, p->n_ranges);
	free(piece);
	return ST_OK;
}

enum status plan_build(const struct job_spec *spec, const struct tensor_set *s, const struct plan_place *at,
		       struct plan **out)
{
	struct plan head;
	const uint32_t *numbers = at->numbers;
	plan_head(&head, spec, &s->arena, at);
	head.n_optim_groups = spec->n_groups + 1;
	head.tensors_offset = sizeof(struct plan);
	head.ranges_offset = head.tensors_offset + s->n * sizeof(struct plan_tensor);
	head.optim_groups_offset = head.ranges_offset + (s->n + at->n_parts) * sizeof(struct plan_range);
	head.names_offset = (head.optim_groups_offset + head.n_optim_groups * sizeof(struct optim_group) + 7) / 8 * 8;
	head.names_bytes = count_names(s->tensor, s->n);
	head.numbers_offset = numbers ? head.names_offset + head.names_bytes : 0;
	head.bytes = head.names_offset + head.names_bytes + (numbers ? spec->ranks * sizeof(*numbers) : 0);
	struct plan *p = calloc(1, head.bytes);
	if (!p)
		return ST_NO_MEMORY;
	*p = head;
	struct plan_tensor *tensors = (struct plan_tensor *)((char *)p + p->tensors_offset);
	fill_tensors(spec, s, tensors);
	fill_names(s->tensor, s->n, tensors, (char *)p + p->names_offset);
	fill_groups(spec, (struct optim_group *)((char *)p + p->optim_groups_offset));
	if (numbers)
		memcpy((char *)p + p->numbers_offset, numbers, spec->ranks * sizeof(*numbers));
	enum status st = fill_ranges(spec, s, p);
	if (st)
		free(p);
	else
		*out = p;
	return st;
}
