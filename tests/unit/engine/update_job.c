/* SPDX-License-Identifier: Apache-2.0 */
/* A job right before an update, for the tests that let it die. */
#include "update_job.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct rig rig;
struct memory mem;
struct workers *workers;
struct update *update;
struct control_record record;
struct sum_view sum;

const uint32_t roles[N_ROLES] = { SEG_PARAMS, SEG_MASTER, SEG_STATE0, SEG_STATE1 };

static bool has_role(uint32_t role)
{
	struct plan_segment s[64];
	int n = plan_segments(rig.plan, s, 64);
	for (int i = 0; i < n; i++)
		if (s[i].role == role)
			return true;
	return false;
}

struct image save_image(void)
{
	struct image image = { { NULL } };
	for (int i = 0; i < N_ROLES; i++)
		if (has_role(roles[i])) {
			image.data[i] = malloc(rig_bytes(&rig, roles[i], 0));
			memcpy(image.data[i], rig_data(&rig, roles[i], 0), rig_bytes(&rig, roles[i], 0));
		}
	return image;
}

void load_image(const struct image *image)
{
	for (int i = 0; i < N_ROLES; i++)
		if (image->data[i])
			memcpy(rig_data(&rig, roles[i], 0), image->data[i], rig_bytes(&rig, roles[i], 0));
}

bool equals_image(const struct image *image)
{
	for (int i = 0; i < N_ROLES; i++)
		if (image->data[i] && memcmp(rig_data(&rig, roles[i], 0), image->data[i], rig_bytes(&rig, roles[i], 0)))
			return false;
	return true;
}

void free_image(struct image *image)
{
	for (int i = 0; i < N_ROLES; i++)
		free(image->data[i]);
}

static void fill_floats(float *at, uint64_t n, uint64_t seed, bool positive)
{
	for (uint64_t i = 0; at && i < n; i++) {
		float v = (float)(int32_t)rig_mix(seed + i) * 0x1p-31f;
		at[i] = positive ? fabsf(v) : v;
	}
}

struct optim_config optimizer(int i)
{
	static const struct optim_config all[] = {
		{ .type = OPTIM_SGD, .lr = 0.1, .weight_decay = 0.01 },
		{ .type = OPTIM_SGD, .lr = 0.1, .momentum = 0.9, .nesterov = true },
		{ .type = OPTIM_ADAM, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1 },
		{ .type = OPTIM_ADAMW, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1 },
		{ .type = OPTIM_LAMB, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.1 },
	};
	return all[i];
}

void open_update(struct rig_config c, uint32_t n)
{
	char why[200];
	rig_open(&rig, &c);
	mem = MEMORY_NONE;
	ck_assert_int_eq(memory_take(&mem, dup(rig.plan_fd), RIG_GENERATION, why, sizeof(why)), ST_OK);
	for (int i = 0; i < rig.n_segments; i++)
		ck_assert_int_eq(memory_take(&mem, dup(rig.segment[i].fd), RIG_GENERATION, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(memory_missing(&mem), 0);
	ck_assert_int_eq(workers_new(&workers, n), ST_OK);
	ck_assert_int_eq(update_new(&update, &mem, kernels_get(NULL), workers), ST_OK);
	sum = sum_view_of_half(rig.plan, kernels_get(NULL), mem.accum[0]);
	uint64_t size = rig.plan->n_elements;
	fill_floats((float *)mem.accum[0], size, 1, false);
	fill_floats(mem.master, size, 2, false);
	fill_floats(mem.state[0], size, 3, false);
	fill_floats(mem.state[1], size, 4, true);
	for (uint32_t g = 0; g < rig.plan->n_groups; g++) {
		const struct arena_group *group = &rig.plan->group[g];
		float *value = malloc(group->count * sizeof(float));
		fill_floats(value, group->count, 5 + g, false);
		if (group->param_dtype == DTYPE_F32)
			memcpy(mem.params + group->param_offset, value, group->count * sizeof(float));
		else
			kernels_get(NULL)->from_f32(mem.params + group->param_offset, group->param_dtype, value,
						    group->count);
		free(value);
	}
	record = (struct control_record){ .window = WINDOW,
					  .commit_window = WINDOW,
					  .commit_applied_step = 3,
					  .commit_scale = 0.25,
					  .commit_lr = 0.1,
					  .commit_clip_value = 0.2 };
}

void close_update(void)
{
	update_free(update);
	workers_free(workers);
	memory_fini(&mem);
	rig_close(&rig);
}

void begin_again(const struct image *before)
{
	load_image(before);
	update_begin(update, WINDOW);
	memset(control_page_trust(&mem.page), 0x5a, rig.plan->n_tensors * sizeof(double));
	for (uint32_t i = 0; i < rig.page.shares; i++)
		memset(control_page_undo(&mem.page, i), 0x5a, UNDO_AREA_BYTES);
}
