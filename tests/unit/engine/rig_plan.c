/* SPDX-License-Identifier: Apache-2.0 */
/* The jobs of the rig: configurations that tests start from, and the plan that gaccd would make of one. */
#include "rig.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

uint64_t rig_mix(uint64_t x)
{
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

static struct rig_config base(void)
{
	return (struct rig_config){ .acc_dtype = DTYPE_F32,
				    .ranks = 2,
				    .micro_size = 2,
				    .threads = 2,
				    .optim = { .type = OPTIM_SGD, .lr = 1 } };
}

struct rig_config rig_small(void)
{
	struct rig_config c = base();
	const struct tensor_spec t[] = {
		{ .name = "embed", .dtype = DTYPE_F32, .n_dims = 2, .shape = { 57, 33 } },
		{ .name = "half", .dtype = DTYPE_F16, .n_dims = 1, .shape = { 1500 } },
		{ .name = "bias", .dtype = DTYPE_F32, .n_dims = 0 },
		{ .name = "brain", .dtype = DTYPE_BF16, .n_dims = 1, .shape = { 3001 } },
		{ .name = "head", .dtype = DTYPE_F32, .n_dims = 2, .shape = { 57, 33 }, .alias_of = "embed" },
		{ .name = "wide", .dtype = DTYPE_F32, .n_dims = 1, .shape = { 9999 } },
	};
	memcpy(c.tensor, t, sizeof(t));
	c.n_tensors = (int)(sizeof(t) / sizeof(t[0]));
	return c;
}

struct rig_config rig_large(void)
{
	struct rig_config c = base();
	const struct tensor_spec t[] = {
		{ .name = "a", .dtype = DTYPE_F32, .n_dims = 1, .shape = { 150001 } },
		{ .name = "b", .dtype = DTYPE_BF16, .n_dims = 1, .shape = { 70003 } },
		{ .name = "c", .dtype = DTYPE_F32, .n_dims = 1, .shape = { 17 } },
	};
	memcpy(c.tensor, t, sizeof(t));
	c.n_tensors = (int)(sizeof(t) / sizeof(t[0]));
	return c;
}

static uint32_t optim_group_of(const struct rig_config *c, uint32_t tensor)
{
	return c->frozen >> tensor & 1 ? 1 : c->frozen >> (16 + tensor) & 1 ? 2 : 0;
}

/* Ranges: one per run of tensors of a dtype group that have the same optimizer group; LAMB and
 * skip_untouched: one per tensor. */
static uint64_t list_ranges(const struct rig *r, struct plan_range *out)
{
	uint64_t n = 0;
	for (int g = 0; g < r->arena.n_groups; g++) {
		const struct arena_group *group = &r->arena.group[g];
		for (uint64_t at = group->start, end = group->start + group->count; at < end;) {
			uint64_t next = end;
			uint32_t optim = n ? out[n - 1].optim_group : 0;
			for (uint64_t i = 0; i < r->arena.n_tensors; i++) {
				const struct arena_tensor *t = &r->arena.tensor[i];
				if (t->alias < 0 && t->start == at)
					optim = optim_group_of(&r->config, (uint32_t)i);
				if (t->alias < 0 && t->start > at && t->start < next)
					next = t->start;
			}
			if (n && r->config.optim.type != OPTIM_LAMB && !r->config.skip_untouched &&
			    out[n - 1].dtype_group == (uint32_t)g && out[n - 1].optim_group == optim)
				out[n - 1].count += next - at;
			else
				out[n++] = (struct plan_range){ at, next - at, (uint32_t)g, optim };
			at = next;
		}
	}
	return n;
}

/* Where a share begins inside a range. */
static uint64_t cut_ranges(const struct plan *p, struct plan_range *range, uint64_t n)
{
	uint64_t share[PLAN_MAX_PARTS + 1];
	plan_shares(p, share);
	for (uint32_t s = 1; s < p->n_parts; s++)
		for (uint64_t i = n; i-- > 0;) {
			if (range[i].start >= share[s] || share[s] >= range[i].start + range[i].count)
				continue;
			memmove(&range[i + 1], &range[i], (n++ - i) * sizeof(*range));
			range[i].count = share[s] - range[i].start;
			range[i + 1].start = share[s];
			range[i + 1].count -= range[i].count;
		}
	return n;
}

static void list_tensors(const struct rig *r, struct plan_tensor *out, char *names)
{
	char *name = names;
	for (uint64_t i = 0; i < r->arena.n_tensors; i++) {
		const struct arena_tensor *t = &r->arena.tensor[i];
		out[i] = (struct plan_tensor){ .start = t->start,
					       .count = t->count,
					       .dtype_group = t->group,
					       .alias = t->alias,
					       .init = r->config.init,
					       .key = rig_mix(i) };
		init_fans(r->config.tensor[i].shape, r->config.tensor[i].n_dims, &out[i].fan_in, &out[i].fan_out);
		out[i].name_offset = (uint64_t)(name - names);
		out[i].n_dims = (uint32_t)r->config.tensor[i].n_dims;
		memcpy(out[i].shape, r->config.tensor[i].shape, sizeof(out[i].shape));
		name = stpcpy(name, r->config.tensor[i].name) + 1;
	}
}

void rig_build_plan(struct rig *r)
{
	const struct rig_config *c = &r->config;
	const struct optim_group groups[] = { { 1, c->optim.weight_decay, false }, { 1, 0, true }, { 0.5, 0, false } };
	struct plan_range range[2 * RIG_MAX_TENSORS];
	const struct plan divided = { .n_elements = r->arena.n_elements, .n_parts = c->n_parts ? c->n_parts : 1 };
	uint64_t n_ranges = list_ranges(r, range), n = r->arena.n_tensors;
	if (c->skip_untouched && c->optim.type != OPTIM_LAMB)
		n_ranges = cut_ranges(&divided, range, n_ranges);
	size_t tensors = (sizeof(struct plan) + 7) / 8 * 8, ranges = tensors + n * sizeof(struct plan_tensor);
	size_t optim = ranges + n_ranges * sizeof(struct plan_range), names = optim + sizeof(groups);
	size_t bytes = names + n * (ARENA_MAX_NAME + 1);
	struct plan *p = calloc(1, bytes);
	ck_assert_ptr_nonnull(p);
	*p = (struct plan){ .version = PLAN_VERSION,
			    .bytes_of_plan = sizeof(*p),
			    .bytes = bytes,
			    .job_id = RIG_JOB,
			    .part = c->part,
			    .n_parts = c->n_parts ? c->n_parts : 1,
			    .n_shards = c->n_shards ? c->n_shards : 1,
			    .fingerprint = r->arena.fingerprint,
			    .ranks = c->ranks,
			    .max_micro_size = c->in_slot ? 1 : c->micro_size + 3,
			    .micro_size = c->micro_size,
			    .slots = c->ranks * c->micro_size + c->in_slot,
			    .slots_per_rank = c->micro_size + c->in_slot,
			    .in_slot = c->in_slot,
			    .skip_untouched = c->skip_untouched,
			    .verify_params = c->verify_params,
			    .device = c->device ? PLAN_CUDA : PLAN_HOST,
			    .slots_on_host = c->device && c->slots_on_host,
			    .reduction = REDUCE_WEIGHTED_MEAN,
			    .grad_of = GRAD_OF_MEAN,
			    .threads = c->threads,
			    .canonical = !c->arrival,
			    .reject_nonfinite = c->reject_nonfinite,
			    .void_is_error = c->void_is_error,
			    .master = !c->no_master,
			    .acc_dtype = c->acc_dtype,
			    .n_groups = (uint32_t)r->arena.n_groups,
			    .optim = c->optim,
			    .loss_scale = 1,
			    .seed = 42,
			    .n_elements = r->arena.n_elements,
			    .slot_bytes = r->arena.slot_bytes,
			    .param_bytes = r->arena.param_bytes,
			    .n_tensors = n,
			    .tensors_offset = tensors,
			    .n_ranges = n_ranges,
			    .ranges_offset = ranges,
			    .n_optim_groups = 3,
			    .optim_groups_offset = optim,
			    .names_offset = names,
			    .names_bytes = n * (ARENA_MAX_NAME + 1) };
	memcpy(p->group, r->arena.group, sizeof(p->group));
	list_tensors(r, (struct plan_tensor *)((char *)p + tensors), (char *)p + names);
	memcpy((char *)p + ranges, range, n_ranges * sizeof(struct plan_range));
	memcpy((char *)p + optim, groups, sizeof(groups));
	r->plan = p;
	r->plan_fd = memfd_create("plan", MFD_CLOEXEC);
	ck_assert_int_eq(write(r->plan_fd, p, bytes), (ssize_t)bytes);
}
