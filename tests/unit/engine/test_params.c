/* SPDX-License-Identifier: Apache-2.0 */
/* The first parameters of a job: uploaded or drawn. */
#include "rig.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

Suite *params_suite(void);

static struct rig rig;

/* Uploads in odd pieces, out of order and twice; masters follow. */
START_TEST(parameters_are_uploaded_through_slots)
{
	struct rig_config c = _i ? rig_large() : rig_small();
	c.no_master = _i == 2;
	c.grad_dtype = DTYPE_F32; /* slots larger than the parameters */
	rig_begin(&rig, c);
	uint64_t n = rig.plan->param_bytes, piece = n / 7 + 3;
	unsigned char *sent = malloc(n), *want = calloc(1, n); /* zeros between tensors, whatever was sent */
	for (uint64_t i = 0; i < n; i++)
		sent[i] = (unsigned char)(rig_mix(i) & 0x3f); /* no NaN in any dtype */
	for (uint64_t i = 0; i < rig.arena.n_tensors; i++) {
		const struct arena_tensor *t = &rig.arena.tensor[i];
		size_t size = dtype_size(rig.arena.group[t->group].param_dtype);
		memcpy(want + t->param_offset, sent + t->param_offset, t->count * size);
	}
	struct engine_answer a;
	for (int k = 7; k-- > 0;) {
		uint64_t at = (uint64_t)k * piece, bytes = at + piece < n ? piece : n - at;
		memcpy(rig_data(&rig, SEG_SLOT, 1), sent + at, bytes);
		struct engine_command put = {
			.op = ENGINE_PUT_PARAMS, .sgen = 1, .slot = 1, .offset = at, .bytes = bytes, .last = k == 0
		};
		a = rig_call(&rig, put);
		ck_assert_uint_eq(a.status, ST_OK);
		ck_assert_uint_eq(a.result, 0);
	}
	ck_assert_mem_eq(rig_data(&rig, SEG_PARAMS, 0), want, n);
	ck_assert_uint_ne(a.digest, 0);
	for (int g = 0; !c.no_master && g < rig.arena.n_groups; g++) {
		const struct arena_group *group = &rig.arena.group[g];
		if (group->param_dtype == DTYPE_F32)
			continue;
		float *f = aligned_alloc(64, group->count * sizeof(float));
		kernels_get("reference")->to_f32(f, want + group->param_offset, group->param_dtype, group->count);
		ck_assert_mem_eq((float *)rig_data(&rig, SEG_MASTER, 0) + group->start, f,
				 group->count * sizeof(float));
		free(f);
	}
	memset(rig_data(&rig, SEG_SLOT, 1), 0, 100);
	a = rig_call(&rig, (struct engine_command){ .op = ENGINE_PUT_PARAMS, .slot = 1, .bytes = 100 });
	ck_assert_uint_eq(a.status, ST_SESSION_FENCED); /* of a session before the one that is stored */
	a = rig_call(&rig, (struct engine_command){ .op = ENGINE_PUT_PARAMS, .sgen = 1, .slot = 1, .bytes = 100 });
	ck_assert_uint_eq(a.status, ST_OK);
	ck_assert_uint_eq(a.result, 1); /* too late: they are ready */
	ck_assert_mem_eq(rig_data(&rig, SEG_PARAMS, 0), want, n);
	rig_kill(&rig);
	rig_start(&rig);
	a = rig_call(&rig, (struct engine_command){ .op = ENGINE_INIT_PARAMS });
	ck_assert_uint_eq(a.result, 1);
	free(sent);
	free(want);
	rig_close(&rig);
}
END_TEST

START_TEST(parameters_are_drawn)
{
	struct rig_config c = rig_small();
	c.init = (struct init_rule){ INIT_UNIFORM, -1, 1 };
	c.no_master = _i;
	rig_begin(&rig, c);
	struct engine_answer a = rig_call(&rig, (struct engine_command){ .op = ENGINE_INIT_PARAMS });
	ck_assert_uint_eq(a.status, ST_OK);
	ck_assert_uint_eq(a.result, 0);
	const struct plan_tensor *t = plan_tensors(rig.plan);
	for (int i = 0; i < c.n_tensors; i++) {
		float *want = malloc(t[i].count * sizeof(float)), rounded;
		uint64_t wrong = 0, source = t[i].alias < 0 ? (uint64_t)i : (uint64_t)t[i].alias;
		init_fill(want, 0, t[i].count, &c.init, t[i].fan_in, t[i].fan_out, rig.plan->seed, t[source].key);
		enum dtype d = rig.arena.group[t[i].dtype_group].param_dtype;
		for (uint64_t k = 0; k < t[i].count; k++) {
			rounded = want[k];
			if (d != DTYPE_F32) {
				uint16_t bits;
				kernels_get("reference")->from_f32(&bits, d, &want[k], 1);
				kernels_get("reference")->to_f32(&rounded, &bits, d, 1);
				if (!c.no_master)
					wrong += ((float *)rig_data(&rig, SEG_MASTER, 0))[t[i].start + k] != want[k];
			}
			wrong += rig_param(&rig, i, k) != rounded;
		}
		ck_assert_uint_eq(wrong, 0);
		free(want);
	}
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.r.params_ready, 1);
	rig_close(&rig);
}
END_TEST

Suite *params_suite(void)
{
	Suite *s = suite_create("params");
	TCase *t = tcase_create("params");
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, parameters_are_uploaded_through_slots, 0, 3);
	tcase_add_loop_test(t, parameters_are_drawn, 0, 2);
	suite_add_tcase(s, t);
	return s;
}
