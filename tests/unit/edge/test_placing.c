/* SPDX-License-Identifier: Apache-2.0 */
/* A job whose part is on a node that does not coordinate it, and placements that are wrong. */
#include "pair_rig.h"

#include "cluster/placement_message.h"
#include "edge/hosted_life.h"
#include "edge/hosted_ports.h"
#include "edge/parts.h"
#include "edge/placing.h"
#include "edge/submitting.h"
#include "gacc/v1/common.pb-c.h"
#include "support/suite.h"

#include <stdlib.h>
#include <unistd.h>

Suite *tensors_suite(void);
Suite *restoring_suite(void);
Suite *saving_suite(void);
Suite *views_suite(void);
Suite *ledgers_suite(void);
Suite *parts_suite(void);
Suite *parts_seen_suite(void);

/* ---- a job whose part is elsewhere ---- */

START_TEST(a_job_runs_where_it_is_not_coordinated)
{
	struct session_key key[RANKS];
	uint32_t n;
	placing_send(job, node_now());
	UNTIL(there() && coord_phase(job->coord) == COORD_COLLECT);
	ck_assert_ptr_null(hosted_find(&other, JOB));	/* a part without its coordinator */
	ck_assert_ptr_null(part_find(&d.node, JOB, 0)); /* a coordinator without a part */
	ck_assert_ptr_null(hosted_part_here(job, 0));
	ck_assert_uint_eq(d.node.host_bytes, 0);
	ck_assert_uint_gt(other.node.host_bytes, 0);
	ck_assert(seen.n[LINK_PLACED] && !seen.placed.refused && !seen.placed.status);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		key[rank] = pair_attach(rank);
	pair_push(&key[0], 0, 1);
	UNTIL(coord_ranks(job->coord, &n)[0].counted == 1);
	ck_assert_uint_eq(coord_ranks(job->coord, &n)[1].attached, 1);
	pair_push(&key[1], 0, 2);
	pair_push(&key[0], 1, 3);
	pair_push(&key[1], 1, 4);
	UNTIL(job_window(there()->job) == 1 && coord_applied_step(job->coord) == 1);
	ck_assert_uint_eq(coord_last_commit(job->coord)->micro_count, 4);
	const float *params = part_map(there(), SEG_PARAMS, 0, false);
	ck_assert_float_eq(params[RIG_ELEMENTS - 1], 1 - 0.5F * 2.5F);
	ck_assert_uint_eq(seen.n[LINK_PLACEMENT], 1);
	uint64_t n_events = job->events.n;
	there()->ports.event(there(), false, "Said", -1, "in its second window");
	UNTIL(job->events.n > n_events);
	ck_assert_uint_eq(events_at(&job->events, n_events)->window, 1);
}
END_TEST

START_TEST(its_part_ends_with_it)
{
	placing_send(job, node_now());
	UNTIL(there() && coord_phase(job->coord) == COORD_COLLECT);
	coord_end(job->coord, ST_CANCELLED, "by ana", node_now());
	UNTIL(hosted_ended(job) && there()->mem.released);
	ck_assert_uint_eq(other.node.host_bytes, 0);
	part_hold(there());
	hosted_drop_machines(job);
	UNTIL(there()->dropped);
	for (int i = 0; i < 5; i++)
		pair_turn(time(NULL) + 1, "");
	ck_assert_ptr_nonnull(there()); /* somebody uses it */
	part_drop(there());
	UNTIL(!there());
}
END_TEST

START_TEST(a_lost_placement_is_repeated)
{
	struct now now = node_now();
	seen.lost[LINK_PLACEMENT] = true;
	placing_send(job, now);
	UNTIL(seen.n[LINK_PLACEMENT] == 1);
	seen.lost[LINK_PLACEMENT] = false;
	now.mono_ns += 900000000;
	placing_tick(job, now);
	now.mono_ns += 200000000;
	placing_tick(job, now);
	UNTIL(there());
	ck_assert_uint_eq(seen.n[LINK_PLACEMENT], 2);
	UNTIL(job->part[0].answered);
	now.mono_ns += INT64_C(3000000000);
	placing_tick(job, now);
	UNTIL(coord_phase(job->coord) == COORD_COLLECT);
	ck_assert_uint_eq(seen.n[LINK_PLACEMENT], 2);
	ck_assert_uint_eq(there()->engine.starts, 1);
}
END_TEST

static void with_a_long_label(Gacc__V1__JobSpec *spec)
{
	static char key[] = "long", text[80 << 10];
	static Gacc__V1__Label label, *list[] = { &label };
	gacc__v1__label__init(&label);
	memset(text, 'x', sizeof(text) - 1);
	label.key = key;
	label.value = text;
	spec->labels = list;
	spec->n_labels = 1;
}

START_TEST(a_large_specification_is_read_in_the_pool)
{
	job = rig_job(JOB + 1, getuid(), "ana", with_a_long_label);
	size_t n;
	void *bytes = placing_pack(job, 0, &n);
	const struct link_message m = { LINK_PLACEMENT, JOB + 1, 0, bytes, n, NULL, false, 0 };
	parts_take_placement(&other, &m);
	const struct arriving *first = other.arriving;
	ck_assert_ptr_nonnull(first);
	parts_take_placement(&other, &m); /* it is sent again while it is read, and not read once more */
	ck_assert_ptr_eq(other.arriving, first);
	ck_assert_ptr_null(part_find(&other.node, JOB + 1, 0));
	UNTIL(part_find(&other.node, JOB + 1, 0));
	ck_assert_ptr_null(other.arriving);
	free(bytes);
}
END_TEST

START_TEST(a_drop_overtakes_a_placement_that_is_read)
{
	job = rig_job(JOB + 1, getuid(), "ana", with_a_long_label);
	size_t n, n_drop;
	void *bytes = placing_pack(job, 0, &n),
	     *drop = drop_pack(&(struct drop){ .job_id = JOB + 1, .epoch = 1 }, &n_drop);
	const struct link_message m[] = { { LINK_PLACEMENT, JOB + 1, 0, bytes, n, NULL, false, 0 },
					  { LINK_DROP, JOB + 1, 0, drop, n_drop, NULL, false, 0 } };
	parts_take_placement(&other, &m[0]);
	parts_take_drop(&other, &m[1]);
	UNTIL(!other.arriving);
	ck_assert_uint_eq(other.node.n_parts, 0);
	free(bytes);
	free(drop);
}
END_TEST

static enum status submitted;
static char submitted_why[400];

static void on_submitted(void *arg, struct hosted *h, bool existed, enum status st, const char *why, const char *field)
{
	submitted = st;
	snprintf(submitted_why, sizeof(submitted_why), "%s", why ? why : "");
}

/* The submitter hears what the node says. */
START_TEST(a_node_without_room_says_so)
{
	submitted = ST_INTERNAL;
	ck_assert_ptr_nonnull(submitting_new(&d, job, on_submitted, NULL, INT64_MAX));
	conf->limits.host_memory = 1000;
	placing_send(job, node_now());
	UNTIL(submitted != ST_INTERNAL);
	ck_assert_int_eq(submitted, ST_RESOURCE_EXHAUSTED);
	ck_assert_msg(strstr(submitted_why, "limits.host_memory is 1000 B") != NULL, "%s", submitted_why);
	UNTIL(hosted_ended(job));
	ck_assert_int_gt(hosted_history_when(job, "AllocationFailed"), 0); /* the node's event */
}
END_TEST

START_TEST(a_node_has_room_for_what_fits_exactly)
{
	conf->limits.host_memory = job->place.need;
	placing_send(job, node_now());
	UNTIL(seen.n[LINK_PLACED]);
	ck_assert_msg(!seen.placed.status, "%s", seen.placed.text);
}
END_TEST

static void note(uint64_t window)
{
	struct decided k = { .commit.window = window, .counted = calloc(2, sizeof(uint64_t)), .n_words = 2 };
	ck_assert(placing_note_window(job, &k));
}

/* The last sixteen, behind one that the journal lacks. */
START_TEST(windows_of_a_placement_follow_each_other)
{
	const struct hosted_place *p = &job->place;
	for (uint64_t i = 3; i < 8; i++)
		note(i);
	ck_assert_uint_eq(p->n_windows, 5);
	note(9);
	ck_assert_uint_eq(p->n_windows, 1);
	for (uint64_t i = 10; i < 30; i++)
		note(i);
	ck_assert_uint_eq(p->n_windows, PLACEMENT_MAX_WINDOWS);
	for (uint32_t i = 0; i < PLACEMENT_MAX_WINDOWS; i++)
		ck_assert_uint_eq(p->window[i].commit.window, 14 + i);
	placing_answered(job, 0);
	ck_assert_uint_eq(p->n_windows, 0);
	ck_assert_ptr_null(p->window);
}
END_TEST

/* ---- wrong placements ---- */

static const uint32_t all[RANKS] = { 0, 1 }, one[] = { 1 };
static struct held_placement right;

static struct placement good(void)
{
	return right.placement;
}

/* The node says why, has no part, and goes on. */
static void expect_refused(const struct placement *p, uint64_t sent_for, const char *text)
{
	size_t n;
	void *bytes = placement_pack(p, &n);
	const struct link_message m = { LINK_PLACEMENT, sent_for, 0, bytes, n, p->tensors, false, 0 };
	uint32_t before = seen.n[LINK_PLACED];
	parts_take_placement(&other, &m);
	free(bytes);
	UNTIL(seen.n[LINK_PLACED] > before);
	ck_assert(seen.placed.refused);
	ck_assert_uint_eq(seen.placed.job_id, sent_for);
	ck_assert_int_eq(seen.placed.status, ST_VERSION_SKEW);
	ck_assert_msg(strstr(seen.placed.text, text) != NULL, "%s, not: %s", seen.placed.text, text);
	ck_assert_uint_eq(other.node.n_parts, 0);
}

START_TEST(wrong_placements_are_refused)
{
	static char bytes_of_one_byte[] = "x";
	static struct shared one_byte = { .holders = 1, .n = 1, .data = bytes_of_one_byte };
	char why[320];
	size_t n;
	void *bytes = placing_pack(job, 0, &n);
	ck_assert_int_eq(placement_unpack(bytes, n, NULL, &right, why, sizeof(why)), ST_OK);
	struct placement p = good();
	uint64_t bits[2] = { 0 };
	struct decided window = { .counted = bits, .n_words = 2 };
	const struct part_restore restore = { { .micro_size = 1 }, "/x", 2 };
	seen.lost[LINK_PLACED] = true;
#define REFUSED(change, text) change, expect_refused(&p, JOB, text), p = good()
	expect_refused(&p, JOB + 1, "Placement.job_id is 7, and it was sent for job 8");
	REFUSED(p.job_id = 0, "Placement.job_id is missing");
	REFUSED(p.cluster[15] = 1, "Placement.cluster is set, and this node is in no cluster");
	REFUSED(p.epoch = 0, "Placement.epoch is missing");
	REFUSED(p.term = 0, "Placement.term is missing");
	REFUSED(p.user = "", "Placement.user is missing");
	REFUSED(p.part = 1, "Placement.part is 1 and heal_from 0, and the job has 1 parts");
	REFUSED(p.n_parts = 2, "Placement.part 0 has 2 of 2 ranks, and the job has 2 parts");
	REFUSED(p.node = "elsewhere", "Placement.node is \"elsewhere\", and this is ");
	REFUSED((p.rank = one, p.n_ranks = 1), "has 1 of 2 ranks");
	REFUSED((p.rank = all, p.ranks = 3), "has 2 of 3 ranks");
	REFUSED(p.max_micro_size = 65, "max_micro_size 65, and its specification has 2 and 64");
	REFUSED(p.spec.n = 0, "Placement.spec is missing");
	REFUSED(p.spec.n--, "Placement.spec: ");
	REFUSED(p.tensors = &one_byte, "Placement.tensors has 1 bytes");
	REFUSED(p.begin = PLACEMENT_RESTORE, "Placement.restore is missing");
	REFUSED((p.begin = PLACEMENT_RESTORE, p.restore = &restore),
		"Placement.begin is RESTORE, and its specification names no checkpoint");
	REFUSED(p.begin = PLACEMENT_HEAL, "Placement.begin is HEAL");
	REFUSED(p.begin = 0, "Placement.begin is 0");
	REFUSED(p.heal_from = 1, "heal_from 1");
	REFUSED((p.window = &window, p.n_windows = 1), "Commit");
	placement_release(&right);
	const struct link_message garbage = { LINK_PLACEMENT, JOB, 0, "\xff\xff", 2, NULL, false, 0 };
	parts_take_placement(&other, &garbage);
	ck_assert_uint_eq(other.node.n_parts, 0);
	const struct link_message m = {
		LINK_PLACEMENT, JOB, 0, bytes, n, NULL, false, 0
	}; /* nothing is in the way of a good one */
	parts_take_placement(&other, &m);
	ck_assert_ptr_nonnull(there());
	free(bytes);
}
END_TEST

/* A new job ends with the node's reason; one of an earlier gaccd is set aside, and nothing of it is lost. */
START_TEST(a_refusal_ends_or_sets_aside)
{
	struct placed no = { .job_id = JOB,
			     .epoch = 1,
			     .refused = true,
			     .status = ST_VERSION_SKEW,
			     .text = "Placement.tensors: they are of no use" };
	const char *reason;
	size_t n;
	job->submitted_here = _i;
	job->part[0].wanted = true;
	void *bytes = placed_pack(&no, &n);
	const struct link_message m = { LINK_PLACED, JOB, 0, bytes, n, NULL, false, 0 };
	hosted_take_placed(&d, &m);
	UNTIL(hosted_ended(job));
	ck_assert_int_eq(hosted_state(job, &reason, NULL), JOB_FAILED);
	ck_assert_int_eq(job->aside, !_i);
	ck_assert_msg(strstr(reason, _i ? "Placement.tensors: they are of no use"
					: "cannot read its record TENSORS in the journal: they are of no use") != NULL,
		      "%s", reason);
	hosted_take_placed(&d, &m); /* it is over */
	free(bytes);
}
END_TEST

START_TEST(answers_of_other_epochs_are_dropped)
{
	const struct placed old = { .job_id = JOB, .epoch = 2, .refused = true, .status = ST_INTERNAL };
	size_t n;
	void *bytes = placed_pack(&old, &n);
	const struct link_message m = { LINK_PLACED, JOB, 0, bytes, n, NULL, false, 0 };
	hosted_take_placed(&d, &m);
	ck_assert(!job->part[0].answered && !job->place.refused);
	free(bytes);
}
END_TEST

int main(int argc, char **argv)
{
	PAIR_ENGINE(argc, argv);
	Suite *s = suite_create("placing");
	TCase *t = tcase_create("placing");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, pair_open, pair_close);
	tcase_set_timeout(t, 90);
	tcase_add_test(t, a_job_runs_where_it_is_not_coordinated);
	tcase_add_test(t, its_part_ends_with_it);
	tcase_add_test(t, a_lost_placement_is_repeated);
	tcase_add_test(t, a_large_specification_is_read_in_the_pool);
	tcase_add_test(t, a_drop_overtakes_a_placement_that_is_read);
	tcase_add_test(t, a_node_without_room_says_so);
	tcase_add_test(t, a_node_has_room_for_what_fits_exactly);
	tcase_add_test(t, windows_of_a_placement_follow_each_other);
	tcase_add_test(t, wrong_placements_are_refused);
	tcase_add_loop_test(t, a_refusal_ends_or_sets_aside, 0, 2);
	tcase_add_test(t, answers_of_other_epochs_are_dropped);
	return suite_run(s, tensors_suite(), restoring_suite(), saving_suite(), views_suite(), ledgers_suite(),
			 parts_suite(), parts_seen_suite());
}
