/* SPDX-License-Identifier: Apache-2.0 */
/* Parts that are made from a packed placement and nothing else, with a real engine; and placements that are wrong. */
#include "part_rig.h"

#include "gacc/v1/common.pb-c.h"
#include "runtime/part_place.h"
#include "support/scratch.h"

#include <stdlib.h>
#include <string.h>

Suite *place_suite(void);

static const uint32_t all[RIG_RANKS] = { 0, 1 };
static void *spec;
static size_t n_spec;
static struct part_ports ports;
static char why[320];

/* The specification and the ports of the rig's parts. */
static void learn(void)
{
	struct part *p = rig_part(RIG_JOB + 9);
	spec = specification_pack(p->text, &n_spec);
	ports = p->ports;
	part_free(p);
}

/* A placement of the rig's job as a coordinator would send it. */
static struct placement of_job(void)
{
	if (!spec)
		learn();
	struct placement p = { .job_id = RIG_JOB,
			       .epoch = 1,
			       .term = 3,
			       .uid = getuid(),
			       .n_parts = 1,
			       .ranks = RIG_RANKS,
			       .max_micro_size = 64,
			       .begin = PLACEMENT_NEW,
			       .user = "ana",
			       .node = conf->node.name,
			       .rank = all,
			       .n_ranks = RIG_RANKS,
			       .spec = { spec, n_spec } };
	memcpy(p.uuid, "of the rig's job", 16);
	return p;
}

static void open_here(void)
{
	rig_open();
	spec = NULL;
	why[0] = '\0';
}

static void open_managed(void)
{
	rig_open_managed();
	spec = NULL;
	why[0] = '\0';
}

static void close_here(void)
{
	rig_change_spec(NULL);
	rig_close();
	free(spec);
}

static struct shared one_byte = { .holders = 1, .n = 1, .data = (char[]){ "x" } },
		     no_set = { .holders = 1, .n = 2, .data = (char[]){ "\xff\xff" } };

/* Through its bytes. */
static enum status place(const struct placement *p, struct part **out)
{
	struct placing read = { .status = ST_OK };
	size_t n;
	void *bytes = placement_pack(p, &n);
	ck_assert_ptr_nonnull(bytes);
	placing_open(&read, &node, bytes, n, p->tensors);
	memset(bytes, 0xee, n); /* nothing points there */
	if (!read.status)
		placing_read(&read);
	free(bytes);
	enum status st = read.status;
	snprintf(why, sizeof(why), "%s", read.why);
	if (!st)
		st = part_place(&node, &read, &ports, out, why, sizeof(why));
	placing_fini(&read);
	return st;
}

static struct part *placed(const struct placement *p)
{
	struct part *out = NULL;
	ck_assert_msg(place(p, &out) == ST_OK, "%s", why);
	ck_assert_ptr_eq(part_find(&node, RIG_JOB, p->part), out);
	return out;
}

/* ---- made ---- */

START_TEST(a_placement_is_enough_for_a_step)
{
	struct placement pm = of_job();
	struct part *p = placed(&pm);
	ck_assert(p->tensors.durable);
	ck_assert(!p->begun);
	ck_assert_str_eq(p->user, "ana");
	part_begin(p, false);
	rig_run_part(p);
	ck_assert_uint_eq(said.asked_keep, 0); /* the coordinator has the tensors */
	rig_push_all(p);
	ck_assert_uint_eq(said.report.job_id, RIG_JOB);
	ck_assert_uint_eq(said.rank[1].counted, 2);
	rig_go(p);
	ck_assert_double_eq(said.report.sumsq, 100.0 * RIG_ELEMENTS);
	struct order o = rig_commit(p, 0);
	part_on_order(p, &o);
	UNTIL(said.report.window == 1);
	rig_expect_params(p, 1 - 0.5F * 2.5F);
}
END_TEST

START_TEST(a_repeated_placement_is_the_same_part)
{
	struct placement pm = of_job();
	struct part *p = placed(&pm);
	ck_assert_ptr_eq(placed(&pm), p);
	ck_assert_uint_eq(node.n_parts, 1);
	pm.uuid[3] ^= 1;
	ck_assert_int_eq(place(&pm, &p), ST_ALREADY_EXISTS);
	ck_assert_str_eq(why, "Placement.uuid is 6f662075-6865-2072-6967-2773206a6f62, and the job 7 that has a part "
			      "here has uuid 6f662074-6865-2072-6967-2773206a6f62");
	pm = of_job();
	pm.epoch = 2;
	ck_assert_int_eq(place(&pm, &p), ST_ALREADY_EXISTS);
	ck_assert_str_eq(why, "Placement.epoch is 2, and the part that is here is of epoch 1");
	ck_assert_uint_eq(node.n_parts, 1);
}
END_TEST

START_TEST(the_epoch_is_in_every_report)
{
	struct placement pm = of_job();
	pm.epoch = 9;
	struct part *p = placed(&pm);
	ck_assert_uint_eq(job_epoch(p->job), 9);
	part_begin(p, false);
	UNTIL(said.report.start == START_PARAMS);
	ck_assert_uint_eq(said.report.epoch, 9);
}
END_TEST

/* A gaccd is gone after a step; its successor has nothing but the placement and the memory that was kept. */
START_TEST(a_successor_knows_the_last_windows)
{
	uint64_t bits[2] = { 3, 0 };
	struct decided window = { .counted = bits, .n_words = 2 };
	struct placement pm = of_job();
	struct part *p = placed(&pm);
	part_begin(p, false);
	rig_run_part(p);
	rig_push_all(p);
	rig_go(p);
	struct order o = rig_commit(p, 0);
	part_on_order(p, &o);
	UNTIL(said.report.window == 1);
	rig_restart();
	window.commit = o.commit;
	pm.window = &window;
	pm.n_windows = 1;
	pm.begun = true;
	p = placed(&pm);
	part_begin(p, true);
	UNTIL(said.report.start == START_PARAMS);
	ck_assert_uint_eq(job_window(p->job), 1);
	o = rig_order(p, WANT_NOTHING);
	part_on_order(p, &o);
	rig_attach(p, 0);
	uint64_t call = rig_wait_step(p, 0, 0);
	ck_assert(said.answered[call]);
	ck_assert_msg(said.reply[call].status == ST_OK, "%s", said.reply[call].text);
	ck_assert_double_eq(said.reply[call].step.commit.total_weight, 4);
	ck_assert_uint_eq(said.reply[call].step.commit.applied_step, 1);
}
END_TEST

/* ---- from a checkpoint ---- */

static void with_checkpoint(Gacc__V1__JobSpec *s)
{
	s->restore_from = (char *)"/somewhere";
}

static void with_checkpoint_alone(Gacc__V1__JobSpec *s)
{
	with_checkpoint(s);
	s->n_tensors = 0;
}

/* A checkpoint of a part that has made a step. */
static struct part_restore saved_in(const char *dir, struct part *p)
{
	struct save w = { .job_id = RIG_JOB, .epoch = 1, .term = 1, .number = 1, .window = 1 };
	snprintf(w.path, sizeof(w.path), "%s", dir);
	rig_push_all(p);
	rig_go(p);
	struct order o = rig_commit(p, 0);
	part_on_order(p, &o);
	UNTIL(said.report.window == 1);
	part_on_save(p, &w);
	UNTIL(said.n_saved);
	const struct part_saved *a = &said.saved;
	ck_assert_msg(!a->status, "%s", a->text);
	struct part_restore r = { .from = { .window = a->window,
					    .applied_step = a->applied_step,
					    .count = a->count,
					    .params_digest = a->params_digest,
					    .loss_scale = a->loss_scale,
					    .sum_weight = a->sum_weight,
					    .sum_loss = a->sum_loss,
					    .micro_size = a->micro_size,
					    .last_rank = a->last_rank,
					    .owner = geteuid(),
					    .same_ranges = 1 },
				  .path = dir,
				  .n_path = strlen(dir) };
	memcpy(r.from.file, a->file, sizeof(r.from.file));
	return r;
}

/* Nothing but the placement says where to begin, and with which tensors. */
START_TEST(a_placement_is_enough_for_a_restore)
{
	char scratch[SCRATCH_PATH], dir[SCRATCH_PATH + 8], command[SCRATCH_PATH + 16];
	ck_assert(scratch_make(scratch));
	snprintf(dir, sizeof(dir), "%s/saved", scratch);
	struct placement pm = of_job();
	struct part *p = placed(&pm);
	part_begin(p, false);
	rig_run_part(p);
	const struct part_restore r = saved_in(dir, p);
	ck_assert_int_eq(part_pack_tensors(p), ST_OK);
	struct shared *set = shared_hold(p->tensors.packed);
	part_free(p);
	free(spec);
	spec = NULL;
	rig_change_spec(_i ? with_checkpoint_alone : with_checkpoint);
	pm = of_job();
	pm.begin = PLACEMENT_RESTORE;
	pm.restore = &r;
	if (_i)
		pm.tensors = set;
	p = placed(&pm);
	memset(dir, 'x', sizeof(dir)); /* it has been copied */
	ck_assert(job_has_tensors(p->job) && p->tensors.durable && !p->tensors.due);
	ck_assert_int_eq(p->tensors.packed != NULL, _i);
	shared_drop(set);
	part_begin(p, false);
	said.report.start = 0; /* what the first one has said */
	UNTIL(said.report.start == START_PARAMS);
	ck_assert_uint_eq(said.report.window, 1);
	ck_assert_str_eq(said.event, "Restored");
	ck_assert_msg(!strncmp(said.event_text, "step 1, window 1 with 0 micro-batches, from ", 44), "%s",
		      said.event_text);
	rig_expect_params(p, 1 - 0.5F * 2.5F);
	snprintf(command, sizeof(command), "rm -rf %s", scratch);
	ck_assert_int_eq(system(command), 0);
}
END_TEST

/* Its ranks may come as soon as the part is there, so the set is read before that. */
START_TEST(tensors_of_a_checkpoint_are_read_with_the_placement)
{
	const struct part_restore r = { { .micro_size = 1 }, "/x", 2 };
	struct part *other = rig_part(RIG_JOB + 1);
	ck_assert_int_eq(part_pack_tensors(other), ST_OK);
	rig_change_spec(with_checkpoint_alone);
	struct placement pm = of_job();
	pm.begin = PLACEMENT_RESTORE;
	pm.tensors = other->tensors.packed;
	for (int begun = 0; begun < 2; begun++) {
		struct placing read = { .status = ST_OK };
		size_t n;
		pm.begun = begun;
		pm.restore = begun ? NULL : &r;
		void *bytes = placement_pack(&pm, &n);
		placing_open(&read, &node, bytes, n, pm.tensors);
		placing_read(&read);
		free(bytes);
		ck_assert_msg(read.status == ST_OK, "%s", read.why);
		ck_assert_uint_eq(read.set.n, begun ? 0 : 2); /* of a job that has begun: when gaccd serves */
		placing_fini(&read);
	}
}
END_TEST

/* The engine says what is wrong with it, and the part cannot go on. */
START_TEST(a_restore_that_fails_fails_the_part)
{
	static const char path[] = "/nowhere/at/all";
	const struct part_restore r = { { .micro_size = 1, .loss_scale = 1 }, path, sizeof(path) - 1 };
	rig_change_spec(with_checkpoint);
	struct placement pm = of_job();
	pm.begin = PLACEMENT_RESTORE;
	pm.restore = &r;
	part_begin(placed(&pm), false);
	UNTIL(said.report.failed.status);
	ck_assert_str_eq(said.event, "RestoreFailed");
	ck_assert_msg(strstr(said.report.failed.text, "restore_from /nowhere/at/all: ") != NULL, "%s",
		      said.report.failed.text);
}
END_TEST

static void without_tensors(Gacc__V1__JobSpec *s)
{
	s->n_tensors = 0;
}

START_TEST(tensors_come_beside_the_specification)
{
	struct part *other = rig_part(RIG_JOB + 1);
	ck_assert_int_eq(part_pack_tensors(other), ST_OK);
	rig_change_spec(without_tensors);
	struct placement pm = of_job();
	struct part *p = placed(&pm);
	ck_assert(!job_has_tensors(p->job));
	part_begin(p, false); /* nothing is known to make memory for */
	ck_assert(!p->mem.allocating);
	part_free(p);
	pm.tensors = other->tensors.packed;
	p = placed(&pm);
	ck_assert(p->tensors.durable);
	ck_assert_uint_eq(job_arena(p->job)->fingerprint, job_arena(other->job)->fingerprint);
}
END_TEST

/* Its memory is gone: what was counted must not be taken for never given. */
START_TEST(a_job_that_has_begun_is_not_begun_anew)
{
	struct placement pm = of_job();
	pm.begun = true;
	part_begin(placed(&pm), true);
	UNTIL(said.report.failed.status);
	ck_assert_int_eq(said.report.failed.status, ST_SEGMENT_CORRUPT);
	ck_assert_uint_eq(said.asked_fits, 0);
}
END_TEST

/* ---- wrong ---- */

static void expect_refused(const struct placement *p, const char *text)
{
	struct part *out = NULL;
	ck_assert_int_eq(place(p, &out), ST_VERSION_SKEW);
	ck_assert_msg(strstr(why, text) != NULL, "%s, not: %s", why, text);
	ck_assert_uint_eq(node.n_parts, 0);
}

START_TEST(wrong_placements_are_refused)
{
	const struct part_restore restore = { { .micro_size = 1 }, "/x", 2 };
	struct placement p = of_job();
	p.cluster[0] = 1, expect_refused(&p, "Placement.cluster is set"), p = of_job();
	p.node = "x", expect_refused(&p, "Placement.node is \"x\", and this is"), p = of_job();
	p.n_parts = 2, expect_refused(&p, "Placement.part 0 has 2 of 2 ranks, and the job has 2 parts"), p = of_job();
	p.n_ranks = 1, expect_refused(&p, "Placement.part 0 has 1 of 2 ranks"), p = of_job();
	p.begin = PLACEMENT_HEAL, expect_refused(&p, "Placement.begin is HEAL"), p = of_job();
	p.job_id = 0, expect_refused(&p, "Placement.job_id is missing"), p = of_job();
	p.term = 0, expect_refused(&p, "Placement.term is missing"), p = of_job();
	p.user = "", expect_refused(&p, "Placement.user is missing"), p = of_job();
	p.epoch = 0, expect_refused(&p, "Placement.epoch is missing"), p = of_job();
	p.spec.n--, expect_refused(&p, "Placement.spec: "), p = of_job();
	p.max_micro_size = 63, expect_refused(&p, "max_micro_size 63, and its specification has 2 and 64"),
	p = of_job();
	p.begin = PLACEMENT_RESTORE, p.restore = &restore,
	expect_refused(&p, "begin is RESTORE, and its specification names no"), p = of_job();
	p.tensors = &one_byte, expect_refused(&p, "and its specification has tensors, too");
	struct part *out;
	ck_assert_int_eq(place(&(struct placement){ .user = "", .node = "" }, &out), ST_VERSION_SKEW);
}
END_TEST

static void with_wrong_tensor(Gacc__V1__JobSpec *s)
{
	s->n_tensors = 0;
	s->tensors = NULL;
}

START_TEST(wrong_tensors_are_refused)
{
	rig_change_spec(with_wrong_tensor);
	struct placement p = of_job();
	p.tensors = &no_set;
	expect_refused(&p, "Placement.tensors: it is no tensor set");
	free(spec);
	spec = NULL;
	rig_change_spec(with_checkpoint_alone);
	const struct part_restore restore = { { .micro_size = 1 }, "/x", 2 };
	p = of_job();
	p.begin = PLACEMENT_RESTORE;
	p.restore = &restore;
	p.tensors = &no_set;
	expect_refused(&p, "Placement.tensors: it is no tensor set");
}
END_TEST

Suite *place_suite(void)
{
	Suite *s = suite_create("place");
	TCase *t = tcase_create("place");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, open_here, close_here);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, a_placement_is_enough_for_a_step);
	tcase_add_test(t, a_repeated_placement_is_the_same_part);
	tcase_add_test(t, the_epoch_is_in_every_report);
	tcase_add_test(t, tensors_come_beside_the_specification);
	tcase_add_test(t, a_job_that_has_begun_is_not_begun_anew);
	tcase_add_loop_test(t, a_placement_is_enough_for_a_restore, 0, 2);
	tcase_add_test(t, tensors_of_a_checkpoint_are_read_with_the_placement);
	tcase_add_test(t, a_restore_that_fails_fails_the_part);
	tcase_add_test(t, wrong_placements_are_refused);
	tcase_add_test(t, wrong_tensors_are_refused);
	TCase *managed = tcase_create("kept");
	suite_add_tcase(s, managed);
	tcase_add_checked_fixture(managed, open_managed, close_here);
	tcase_set_timeout(managed, 60);
	tcase_add_test(managed, a_successor_knows_the_last_windows);
	return s;
}
