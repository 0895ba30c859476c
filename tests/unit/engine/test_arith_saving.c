/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints through the seam: what is read and written, by role and offset, and what a failure does. */
#include "seam.h"

#include "engine/engine.h"
#include "store/manifest.h"
#include "support/scratch.h"

#include <check.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

Suite *arith_saving_suite(void);

static char dir[SCRATCH_PATH], path[96];

static void save(void)
{
	recorder_command(&rec,
			 (struct engine_command){
				 .op = ENGINE_CHECKPOINT, .inside_window = 1, .n_present = (uint32_t)strlen(path) },
			 path);
}

static struct engine_answer saved(void)
{
	struct pollfd p = { .fd = snapshot_fd(rec.e.snapshot), .events = POLLIN };
	ck_assert_int_eq(poll(&p, 1, 30000), 1);
	saving_end(&rec.e);
	return recorder_answer(&rec);
}

static uint64_t tensor_bytes(enum segment_role role)
{
	uint64_t n = 0;
	for (uint64_t i = 0; i < rig.plan->n_tensors; i++) {
		const struct plan_tensor *t = &plan_tensors(rig.plan)[i];
		const enum dtype d = rig.plan->group[t->dtype_group].param_dtype;
		if (t->alias < 0 && (role != SEG_MASTER || dtype_size(d) == 2))
			n += t->count * (role == SEG_PARAMS ? dtype_size(d) : sizeof(float));
	}
	return n;
}

/* The bytes that were read, or written, of a role, none of them twice. */
static uint64_t moved_bytes(bool write, enum segment_role role)
{
	uint64_t n = 0, all = plan_role_bytes(rig.plan, role);
	unsigned char *seen = calloc(1, all);
	for (uint32_t i = 0; i < rec.n_io; i++) {
		const struct recorded_io *io = &rec.io[i];
		ck_assert(io->write == write);
		if (io->role != role)
			continue;
		ck_assert(io->offset <= all && io->n <= all - io->offset);
		ck_assert_ptr_null(memchr(seen + io->offset, 1, io->n));
		memset(seen + io->offset, 1, io->n);
		n += io->n;
	}
	free(seen);
	return n;
}

static struct engine_restore restore_of(const struct engine_answer *a)
{
	struct engine_restore r = { .window = a->window,
				    .applied_step = a->applied_step,
				    .count = a->count,
				    .params_digest = a->digest,
				    .loss_scale = a->loss_scale,
				    .sum_weight = a->sum_weight,
				    .sum_loss = a->sum_loss,
				    .micro_size = a->micro_size,
				    .last_rank = a->last_rank,
				    .carry = 1,
				    .owner = geteuid(),
				    .same_ranges = 1 };
	memcpy(r.file, a->file, sizeof(r.file));
	return r;
}

static void restore(const struct engine_restore *r)
{
	char tail[sizeof(*r) + sizeof(path)];
	memcpy(tail, r, sizeof(*r));
	memcpy(tail + sizeof(*r), path, strlen(path));
	recorder_command(
		&rec,
		(struct engine_command){ .op = ENGINE_RESTORE, .n_present = (uint32_t)(sizeof(*r) + strlen(path)) },
		tail);
}

/* A step, and two micro-batches of the next window. */
static void train(void)
{
	seam_command(seam_put());
	seam_fill_window();
	seam_command(seam_go(1, false));
	seam_command(seam_commit(1));
	rig.window++;
	seam_push(0, 0);
	seam_push(1, 0);
	push_pass(&rec.e);
	seam_drain(2);
	rec.said[0] = '\0';
}

static const enum segment_role kept[] = { SEG_PARAMS, SEG_MASTER, SEG_STATE0, SEG_STATE1, SEG_ACCUM1 };
#define N_KEPT 5

/* Every byte of what a checkpoint holds is read once, whether the writer comes first or an update; and written once
 * into another job's memory, wherever that lies. The second time with a tensor that takes several reads. */
START_TEST(a_checkpoint_reads_and_a_restore_writes_by_role)
{
	struct engine_restore r;
	void *before[N_KEPT];
	struct rig_config c = seam_config();
	if (_i)
		c.tensor[5].shape[0] = 3000000;
	seam_begin(c);
	train();
	ck_assert_uint_eq(rec.e.state.r.x, 1);
	for (int i = 0; i < N_KEPT; i++)
		before[i] = memcpy(malloc(rig_bytes(&rig, kept[i], 0)), rig_data(&rig, kept[i], 0),
				   rig_bytes(&rig, kept[i], 0));
	save();
	if (_i) {
		seam_push(0, 1);
		seam_push(1, 1);
		push_pass(&rec.e);
		seam_drain(2);
		seam_command(seam_go(1, false));
		struct engine_command commit = seam_commit(1);
		commit.applied_step = 2;
		ck_assert_uint_eq(seam_command(commit).status, ST_OK);
	}
	struct engine_answer a = saved();
	ck_assert_msg(a.status == ST_OK, "%s", a.text);
	const uint64_t skipped = rig.plan->group[0].count * sizeof(float); /* f32 parameters have no master */
	for (int i = 0; i < N_KEPT; i++)
		ck_assert_uint_eq(moved_bytes(false, kept[i]),
				  plan_role_bytes(rig.plan, kept[i]) - (kept[i] == SEG_MASTER ? skipped : 0));
	ck_assert_uint_eq(moved_bytes(false, SEG_ACCUM0), 0);
	r = restore_of(&a);
	seam_end();
	seam_begin(c);
	restore(&r);
	a = recorder_answer(&rec);
	ck_assert_msg(a.status == ST_OK, "%s", a.text);
	recorder_expect(&rec, "inspect_params; ");
	for (int i = 0; i < N_KEPT; i++) {
		enum segment_role now = kept[i] == SEG_ACCUM1 ? SEG_ACCUM0 : kept[i];
		ck_assert_uint_eq(moved_bytes(true, now), tensor_bytes(now));
		ck_assert_mem_eq(rig_data(&rig, now, 0), before[i], rig_bytes(&rig, now, 0));
		free(before[i]);
	}
	seam_end();
}
END_TEST

/* A part of a sharded job: of each array its own elements, of the masters those that lie in its share behind the f32
 * parameters, which have none. Nothing is read for chunks that no file has. */
START_TEST(a_share_reads_what_it_has)
{
	struct rig_config c = seam_config();
	struct engine_file files[ENGINE_FILES];
	struct engine_dir made;
	char why[256];
	uint64_t from, end;
	c.tensor[5].shape[0] = 30000;
	c.n_shards = 3;
	c.n_parts = 3;
	c.part = (uint32_t)_i;
	seam_begin(c);
	plan_own(rig.plan, &from, &end);
	const uint64_t f32 = rig.plan->group[0].count, masters = f32 > from ? f32 : from;
	ck_assert((_i == 2) == (masters < end)); /* the last one begins before the masters */
	ck_assert_uint_lt(from, f32);
	ck_assert_int_eq(snapshot_begin(rec.e.snapshot, &rec.e.state, path, (struct snapshot_what){ .state = true },
					why, sizeof(why)),
			 ST_OK);
	ck_assert_int_eq(poll(&(struct pollfd){ .fd = snapshot_fd(rec.e.snapshot), .events = POLLIN }, 1, 30000), 1);
	ck_assert_msg(!snapshot_end(rec.e.snapshot, files, &made, why, sizeof(why)), "%s", why);
	ck_assert_uint_eq(moved_bytes(false, SEG_STATE0), (end - from) * sizeof(float));
	ck_assert_uint_eq(moved_bytes(false, SEG_STATE1), (end - from) * sizeof(float));
	ck_assert_uint_eq(moved_bytes(false, SEG_MASTER), masters < end ? (end - masters) * sizeof(float) : 0);
	ck_assert_uint_eq(moved_bytes(false, SEG_PARAMS), 0);
	seam_end();
}
END_TEST

static void save_in_vain(const char *op)
{
	seam_attach();
	train();
	save();
	saved();
}

static struct engine_restore from;

static void restore_in_vain(const char *op)
{
	restore(&from);
}

/* In the writer's thread, and in the middle of a restore. */
START_TEST(a_checkpoint_that_cannot_be_read_or_written_ends_the_engine)
{
	struct rig_config c = seam_config();
	rig_open(&rig, &c);
	rig_fill_all(&rig, 1, true);
	ck_assert_int_eq(seam_run_to_failure("read", save_in_vain), ENGINE_EXIT_LOST);
	rig_close(&rig);
	strcat(path, "2"); /* the first one is left to gaccd */
	seam_begin(seam_config());
	train();
	save();
	struct engine_answer a = saved();
	ck_assert_uint_eq(a.status, ST_OK);
	from = restore_of(&a);
	seam_end();
	rig_open(&rig, &c);
	ck_assert_int_eq(seam_run_to_failure("write", restore_in_vain), ENGINE_EXIT_LOST);
	recorder_prepare(&rec);
	recorder_open(&rec, &rig);
	restore(&from);
	ck_assert_uint_eq(recorder_answer(&rec).status, ST_OK);
	seam_end();
}
END_TEST

static void setup(void)
{
	ck_assert(scratch_make(dir));
	snprintf(path, sizeof(path), "%s/saved", dir);
}

Suite *arith_saving_suite(void)
{
	Suite *s = suite_create("arith_saving");
	TCase *t = tcase_create("arith_saving");
	tcase_add_checked_fixture(t, setup, NULL);
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, a_checkpoint_reads_and_a_restore_writes_by_role, 0, 2);
	tcase_add_loop_test(t, a_share_reads_what_it_has, 0, 3);
	tcase_add_test(t, a_checkpoint_that_cannot_be_read_or_written_ends_the_engine);
	suite_add_tcase(s, t);
	return s;
}
