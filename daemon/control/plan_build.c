/* From a spec and a tensor set to the engine's plan. */
#include "control/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Names and shapes: what files of the tensors are written with. */
static void fill_names(const struct tensor_spec *t, uint64_t n, struct plan_tensor *out, char *names)
{
	char *at = names;
	for (uint64_t i = 0; i < n; i++) {
		out[i].name_offset = (uint64_t)(at - names);
		out[i].n_dims = (uint32_t)t[i].n_dims;
		memcpy(out[i].shape, t[i].shape, sizeof out[i].shape);
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

static enum status fill_tensors(const struct job_spec *spec, const struct arena *a, const struct tensor_spec *t,
				struct plan_tensor *out, char *why, size_t n_why)
{
	for (uint64_t i = 0; i < a->n_tensors; i++) {
		const struct arena_tensor *at = &a->tensor[i];
		out[i] = (struct plan_tensor){ .start = at->start, .count = at->count, .dtype_group = at->group,
					       .alias = at->alias, .key = XXH3_64bits(t[i].name, strlen(t[i].name)) };
		init_fans(t[i].shape, t[i].n_dims, &out[i].fan_in, &out[i].fan_out);
		if (!spec->n_init || at->alias >= 0)
			continue;
		const struct init_rule *rule = job_spec_init(spec, t[i].name);
		if (!rule) {
			snprintf(why, n_why, "no init rule matches tensor \"%s\": add one with pattern \"*\"", t[i].name);
			return ST_INVALID_SPEC;
		}
		out[i].init = *rule;
	}
	return ST_OK;
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

static void fill_groups(const struct job_spec *spec, struct optim_group *out)
{
	out[0] = (struct optim_group){ .lr_scale = 1, .weight_decay = spec->optim.weight_decay };
	for (uint32_t i = 0; i < spec->n_groups; i++) {
		out[i + 1] = spec->group[i].values;
		if (!spec->group[i].override_weight_decay)
			out[i + 1].weight_decay = spec->optim.weight_decay;
	}
}

static void fill_head(struct plan *p, const struct job_spec *spec, const struct arena *a, uint64_t job_id,
		      uint32_t slots, uint32_t threads)
{
	p->version = PLAN_VERSION;
	p->bytes_of_plan = sizeof *p;
	p->job_id = job_id;
	p->fingerprint = a->fingerprint;
	p->ranks = spec->ranks;
	p->max_micro_size = spec->max_micro_size;
	p->micro_size = spec->micro_size;
	p->slots = slots;
	p->threads = threads;
	p->canonical = spec->ordering == ORDER_CANONICAL;
	p->reject_nonfinite = spec->nonfinite != NONFINITE_SKIP_STEP;
	p->master = spec->master_f32;
	p->acc_dtype = spec->accumulate_dtype;
	p->n_groups = (uint32_t)a->n_groups;
	memcpy(p->group, a->group, sizeof p->group);
	p->optim = spec->optim;
	p->loss_scale = spec->loss_scale;
	p->seed = spec->seed;
	p->n_elements = a->n_elements;
	p->slot_bytes = a->slot_bytes;
	p->param_bytes = a->param_bytes;
}

enum status plan_build(const struct job_spec *spec, const struct arena *a, const struct tensor_spec *t, uint64_t job_id,
		       uint32_t slots, uint32_t threads, struct plan **out, char *why, size_t n_why)
{
	uint64_t n = a->n_tensors, n_optim = spec->n_groups + 1;
	uint64_t tensors_at = sizeof(struct plan);
	uint64_t ranges_at = tensors_at + n * sizeof(struct plan_tensor);
	uint64_t groups_at = ranges_at + n * sizeof(struct plan_range);
	uint64_t names_at = (groups_at + n_optim * sizeof(struct optim_group) + 7) / 8 * 8;
	uint64_t names_bytes = count_names(t, n), bytes = names_at + names_bytes;
	struct plan *p = calloc(1, bytes);
	struct piece *piece = calloc(n, sizeof *piece);
	enum status st = p && piece ? ST_OK : ST_NO_MEMORY;
	if (st)
		goto done;
	fill_head(p, spec, a, job_id, slots, threads);
	p->bytes = bytes;
	p->n_tensors = n;
	p->tensors_offset = tensors_at;
	p->ranges_offset = ranges_at;
	p->n_optim_groups = n_optim;
	p->optim_groups_offset = groups_at;
	p->names_offset = names_at;
	p->names_bytes = names_bytes;
	st = fill_tensors(spec, a, t, (struct plan_tensor *)((char *)p + tensors_at), why, n_why);
	if (st)
		goto done;
	fill_names(t, n, (struct plan_tensor *)((char *)p + tensors_at), (char *)p + names_at);
	fill_groups(spec, (struct optim_group *)((char *)p + groups_at));
	uint64_t n_pieces = 0;
	for (uint64_t i = 0; i < n; i++)
		if (a->tensor[i].alias < 0)
			piece[n_pieces++] = (struct piece){ a->tensor[i].start, a->tensor[i].group,
							    (uint32_t)(job_spec_group(spec, t[i].name) + 1) };
	qsort(piece, n_pieces, sizeof *piece, by_start);
	p->n_ranges = merge(piece, n_pieces, a->n_elements, spec->optim.type == OPTIM_LAMB,
			    (struct plan_range *)((char *)p + ranges_at));
	*out = p;
	p = NULL;
done:
	free(piece);
	free(p);
	return st;
}
