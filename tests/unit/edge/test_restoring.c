/* SPDX-License-Identifier: Apache-2.0 */
/* A job that begins with a checkpoint, coordinated here and placed elsewhere: its coordinator reads the manifest, its
 * node the files. */
#include "pair_rig.h"

#include "edge/placing.h"
#include "edge/restoring.h"
#include "edge/submitting.h"
#include "gacc/v1/common.pb-c.h"
#include "runtime/manifest_commit.h"
#include "store/checkpoint.h"
#include "store/journal.h"
#include "support/suite.h"

#include <stdlib.h>
#include <unistd.h>

Suite *restoring_suite(void);

enum { AGAIN = JOB + 1 };

static char from[SCRATCH_PATH + 32]; /* restore_from */

static void with_checkpoint(Gacc__V1__JobSpec *spec)
{
	static Gacc__V1__CheckpointPolicy policy = GACC__V1__CHECKPOINT_POLICY__INIT;
	policy.every_steps = 1;
	spec->checkpoint = &policy;
	spec->restore_from = from;
}

static void with_checkpoint_alone(Gacc__V1__JobSpec *spec)
{
	with_checkpoint(spec);
	spec->n_tensors = 0;
}

static void with_momentum(Gacc__V1__JobSpec *spec)
{
	with_checkpoint(spec);
	spec->optimizer->momentum = 0.9;
}

/* ---- the checkpoint of JOB, which has made a step ---- */

static void run_step(void)
{
	struct session_key key[RANKS];
	placing_send(job, node_now());
	UNTIL(there() && coord_phase(job->coord) == COORD_COLLECT);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		key[rank] = pair_attach(rank);
	for (uint32_t i = 0; i < 4; i++)
		pair_push(&key[i % 2], i / 2, (float)i + 1);
	UNTIL(job_window(there()->job) == 1 && coord_applied_step(job->coord) == 1);
}

static void seal(const char *partial)
{
	const struct part_saved *a = &seen.saved;
	struct manifest m = { .id = 1,
			      .job = JOB,
			      .name = "rig",
			      .uid = getuid(),
			      .window = a->window,
			      .applied_step = a->applied_step,
			      .ranks = RANKS,
			      .micro_size = a->micro_size,
			      .optimizer = "sgd",
			      .accumulate_dtype = "f32",
			      .loss_scale = a->loss_scale,
			      .params_digest = a->params_digest };
	const struct checkpoint_dir made = { a->dir.dev, a->dir.ino };
	uint8_t sum[SHA256_BYTES];
	char why[300] = "";
	void *spec = specification_pack(job->text, &m.n_spec);
	m.spec = spec;
	manifest_put_commit(&m, coord_last_commit(job->coord));
	for (int i = 0; i < ENGINE_FILES; i++) {
		m.file[i].bytes = a->file[i].bytes;
		memcpy(m.file[i].sha256, a->file[i].sha256, SHA256_BYTES);
	}
	ck_assert_msg(!checkpoint_seal(partial, &made, from, &m, getuid(), getgid(), sum, why, sizeof(why)), "%s", why);
	free(spec);
}

static void save(void)
{
	char partial[SCRATCH_PATH + 32];
	snprintf(partial, sizeof(partial), "%s/partial", rig_state);
	snprintf(from, sizeof(from), "%s/saved", rig_state);
	struct save w = { .job_id = JOB, .epoch = 1, .term = 1, .number = 1, .window = 1 };
	snprintf(w.path, sizeof(w.path), "%s", partial);
	run_step();
	part_on_save(there(), &w);
	UNTIL(seen.saved.number == 1);
	ck_assert_msg(!seen.saved.status, "%s", seen.saved.text);
	seal(partial);
	memset(seen.n, 0, sizeof(seen.n));
}

/* ---- the job that begins with it ---- */

static enum status submitted;
static char submitted_why[400], submitted_field[32];

static void on_submitted(void *arg, struct hosted *h, bool existed, enum status st, const char *why, const char *field)
{
	submitted = st;
	snprintf(submitted_why, sizeof(submitted_why), "%s", why ? why : "");
	snprintf(submitted_field, sizeof(submitted_field), "%s", field ? field : "");
}

static void submit(void (*change)(Gacc__V1__JobSpec *))
{
	job = rig_job(AGAIN, getuid(), "ana", change);
	submitted = ST_INTERNAL;
	ck_assert_ptr_nonnull(submitting_new(&d, job, on_submitted, NULL, INT64_MAX));
	restoring_place(job, node_now());
	ck_assert(!job->part[0].wanted); /* the manifest comes first */
}

static size_t n_tensors, n_base;

static enum status look(void *arg, const struct journal_job *j)
{
	if (j->id == AGAIN) {
		n_tensors = j->tensors.n;
		n_base = j->base.n;
	}
	return ST_OK;
}

START_TEST(a_job_is_restored_where_it_is_not_coordinated)
{
	save();
	submit(_i ? with_checkpoint_alone : with_checkpoint);
	UNTIL(there() && coord_phase(job->coord) == COORD_COLLECT);
	ck_assert_ptr_null(hosted_part_here(job, 0));
	ck_assert_int_eq(submitted, ST_OK);
	ck_assert_uint_eq(coord_window(job->coord), 1);
	ck_assert_uint_eq(coord_applied_step(job->coord), 1);
	ck_assert_uint_eq(job_window(there()->job), 1);
	const float *params = part_map(there(), SEG_PARAMS, 0, false);
	ck_assert_float_eq(params[RIG_ELEMENTS - 1], 1 - 0.5F * 2.5F);
	UNTIL(hosted_history_when(job, "Restored"));
	ck_assert_uint_eq(seen.n[LINK_PLACEMENT], 1);
	ck_assert_uint_eq(seen.n[LINK_TENSORS], 0);
	ck_assert_ptr_null(job->place.restore); /* the node has it */
	ck_assert_int_eq(journal_each_job(d.journal, true, look, NULL), ST_OK);
	ck_assert_uint_gt(n_base, 0);
	ck_assert_int_eq(n_tensors > 0, _i); /* those of the checkpoint */
	for (int i = 0; i < 10; i++)
		pair_turn(time(NULL) + 1, "");
	ck_assert_uint_eq(job->saved.n, 0); /* the step that it began with is on a disk already */
}
END_TEST

/* It is lost on its way: what the job begins with is still there. */
START_TEST(a_lost_placement_is_repeated_with_its_checkpoint)
{
	save();
	seen.lost[LINK_PLACEMENT] = true;
	submit(with_checkpoint_alone);
	UNTIL(seen.n[LINK_PLACEMENT] == 1);
	seen.lost[LINK_PLACEMENT] = false;
	UNTIL(there() && coord_phase(job->coord) == COORD_COLLECT);
	ck_assert_uint_eq(seen.n[LINK_PLACEMENT], 2);
	ck_assert_uint_eq(job_window(there()->job), 1);
}
END_TEST

/* No node hears of a job that cannot begin. */
START_TEST(a_checkpoint_that_does_not_fit_ends_the_job)
{
	const char *reason;
	save();
	if (!_i)
		snprintf(from, sizeof(from), "%s/nowhere", rig_state);
	submit(_i ? with_momentum : with_checkpoint);
	UNTIL(hosted_ended(job));
	ck_assert_int_eq(submitted, _i ? ST_INVALID_SPEC : ST_INVALID_ARGUMENT);
	ck_assert_str_eq(submitted_field, "restore_from");
	ck_assert_msg(strstr(submitted_why, _i ? "optimizer sgd with 0 states" : "nowhere") != NULL, "%s",
		      submitted_why);
	ck_assert_int_eq(hosted_state(job, &reason, NULL), JOB_FAILED);
	ck_assert_str_eq(reason, submitted_why);
	ck_assert_int_gt(hosted_history_when(job, "RestoreFailed"), 0);
	ck_assert_uint_eq(seen.n[LINK_PLACEMENT], 0);
}
END_TEST

START_TEST(a_job_that_is_cancelled_meanwhile_is_not_placed)
{
	save();
	submit(with_checkpoint_alone);
	coord_end(job->coord, ST_CANCELLED, "by ana", node_now());
	UNTIL(hosted_ended(job) && !job->n_holders);
	ck_assert_uint_eq(seen.n[LINK_PLACEMENT], 0);
	ck_assert_int_eq(hosted_history_when(job, "RestoreFailed"), 0);
	ck_assert(!job->has_base);
}
END_TEST

/* The parameters are there: what they once were is of no interest, even if it has been deleted. */
START_TEST(a_job_that_has_begun_is_placed_at_once)
{
	snprintf(from, sizeof(from), "%s/nowhere", rig_state);
	job = rig_job(AGAIN, getuid(), "ana", with_checkpoint);
	job->params_durable = true;
	restoring_place(job, node_now());
	ck_assert(job->part[0].wanted);
	UNTIL(there());
	ck_assert(there()->begun);
	ck_assert_ptr_null(there()->restore_path);
}
END_TEST

Suite *restoring_suite(void)
{
	Suite *s = suite_create("restoring");
	TCase *t = tcase_create("restoring");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, pair_open, pair_close);
	tcase_set_timeout(t, 90);
	tcase_add_loop_test(t, a_job_is_restored_where_it_is_not_coordinated, 0, 2);
	tcase_add_test(t, a_lost_placement_is_repeated_with_its_checkpoint);
	tcase_add_loop_test(t, a_checkpoint_that_does_not_fit_ends_the_job, 0, 2);
	tcase_add_test(t, a_job_that_is_cancelled_meanwhile_is_not_placed);
	tcase_add_test(t, a_job_that_has_begun_is_placed_at_once);
	return s;
}
