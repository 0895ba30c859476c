/* SPDX-License-Identifier: Apache-2.0 */
/* A node keeps records of the parts that it has of jobs elsewhere: what it writes and when, and how the parts come back
 * by them when the node starts again while its coordinator is silent. */
#include "record_rig.h"

#include "cluster/placement_message.h"
#include "edge/hosted_life.h"
#include "edge/placing.h"
#include "gacc/v1/common.pb-c.h"
#include "runtime/spec_message.h"
#include "support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

Suite *part_records_end_suite(void);

static float parameter(void)
{
	const float *params = part_map(there(), SEG_PARAMS, 0, false);
	return params[RIG_ELEMENTS - 1];
}

static void expect_push(const struct session_key *k, uint64_t window, uint32_t micro, enum status st, uint32_t result)
{
	uint64_t call = pair_push_in(k, window, micro, 1);
	UNTIL(seen.answered[call]);
	ck_assert_msg(seen.reply[call].status == st, "%s", seen.reply[call].text);
	if (!st)
		ck_assert_uint_eq(seen.reply[call].push.result, result);
}

static void expect_step(uint64_t window, enum status st)
{
	uint64_t call = seen.calls++;
	job_wait_step(there()->job, call, &key[0], window, 0, node_now());
	ck_assert(seen.answered[call]);
	ck_assert_msg(seen.reply[call].status == st, "%s", seen.reply[call].text);
}

/* The coordinator knows the windows of the job, and is linked again. */
static void link_again(void)
{
	struct decided k = { .commit = *coord_last_commit(job->coord), .n_words = RANKS };
	silence(false);
	k.counted = calloc(RANKS, sizeof(*k.counted));
	k.counted[0] = k.counted[1] = 3;
	ck_assert(placing_note_window(job, &k));
	placing_linked(job, 0);
}

/* In the middle of the job's second window the node starts again, and its coordinator is not heard. */
START_TEST(trainers_go_on_without_the_coordinator)
{
	run_job();
	whole_window();
	float after_first = parameter();
	pair_push(&key[0], 0, 1);
	silence(true);
	pair_restart();
	ck_assert(there()->away && there()->begun);
	UNTIL(is_up(there()));
	ck_assert_uint_eq(pair_left(), 0);
	ck_assert_uint_eq(job_window(there()->job), 1);
	ck_assert_float_eq(parameter(), after_first);
	expect_push(&key[0], 1, 0, ST_OK, PUSH_DUPLICATE);
	expect_push(&key[0], 0, 0, ST_ENGINE_DOWN, 0);
	expect_step(0, ST_ENGINE_DOWN);
	uint64_t ready = seen.calls++, last[3] = { pair_push_in(&key[1], 1, 0, 2) };
	job_wait_ready(there()->job, ready, &key[0], 0, node_now());
	UNTIL(seen.answered[last[0]]);
	ck_assert(!seen.reply[last[0]].status && !seen.answered[ready]);
	turns(5);
	ck_assert(!seen.answered[ready]);
	link_again();
	UNTIL(seen.answered[ready]);
	ck_assert(!seen.reply[ready].status && seen.reply[ready].ready.window == 1);
	expect_push(&key[0], 0, 0, ST_OK, PUSH_ALREADY_COMMITTED);
	expect_step(0, ST_OK);
	last[1] = pair_push_in(&key[0], 1, 1, 3);
	last[2] = pair_push_in(&key[1], 1, 1, 4);
	UNTIL(job_window(there()->job) == 2 && seen.answered[last[1]] && seen.answered[last[2]]);
	ck_assert_float_eq(parameter(), after_first - 0.5F * 2.5F);
	ck_assert_uint_eq(coord_applied_step(job->coord), 2);
	ck_assert_uint_eq(recorded().n, 1);
}
END_TEST

/* It says so, and does not begin anew in a window that runs. */
START_TEST(a_part_that_has_begun_without_its_memory)
{
	struct pair_kept k;
	const char *reason;
	run_job();
	whole_window();
	pair_stop(&k);
	ck_assert_uint_gt(k.n, 3);
	while (k.n > (_i ? 3 : 0))
		close(k.fd[--k.n].fd);
	pair_start(&k);
	ck_assert(there() && !there()->engine.proc);
	UNTIL(hosted_ended(job));
	ck_assert_int_eq(hosted_state(job, &reason, NULL), JOB_NODE_FAIL);
	ck_assert_msg(strstr(reason, _i ? "the job's memory is gone: 3 of" : "the job's memory is gone: 0 of") != NULL,
		      "%s", reason);
}
END_TEST

/* Nothing was promised yet. */
START_TEST(a_part_that_has_not_begun_gets_new_memory)
{
	struct pair_kept k;
	seen.lost[LINK_ORDER] = true;
	placing_send(job, node_now());
	UNTIL(seen.n[LINK_PLACED]);
	ck_assert(!there()->begun && !recorded().begun);
	pair_stop(&k);
	while (k.n)
		close(k.fd[--k.n].fd);
	pair_start(&k);
	ck_assert(there() && !there()->begun);
	UNTIL(is_up(there()));
	seen.lost[LINK_ORDER] = false;
	UNTIL(coord_phase(job->coord) == COORD_COLLECT && there()->begun);
	uint32_t orders = seen.n[LINK_ORDER];
	UNTIL(seen.n[LINK_ORDER] > orders); /* it is repeated */
	for (uint32_t rank = 0; rank < RANKS; rank++)
		key[rank] = pair_attach(rank);
	whole_window();
}
END_TEST

/* ---- what is durable when ---- */

START_TEST(the_record_comes_first)
{
	placing_send(job, node_now());
	while (!there()) {
		ck_assert_uint_eq(seen.n[LINK_PLACED] + seen.n[LINK_REPORT] + seen.n[LINK_VIEW], 0);
		pair_turn(time(NULL) + 2, "the part");
	}
	struct recorded r = recorded();
	ck_assert(r.n == 1 && !r.begun && r.placement && !r.tensors);
	ck_assert(!there()->mem.kept);
	ck_assert_uint_ge(other.last_job, JOB);
	while (coord_phase(job->coord) != COORD_COLLECT || !there()->begun) {
		ck_assert(!there()->begun || recorded().begun);
		pair_turn(time(NULL) + PATIENCE_S, "the job to run");
	}
	ck_assert_uint_eq(recorded().begun, 1);
}
END_TEST

/* Death behind the record; the coordinator has not heard of the part, and need not send it again. */
START_TEST(death_between_record_and_memory)
{
	struct pair_kept k;
	placing_send(job, node_now());
	UNTIL(there());
	pair_stop(&k);
	ck_assert_uint_eq(k.n, 0);
	ck_assert_uint_eq(seen.n[LINK_PLACED], 0);
	seen.lost[LINK_PLACEMENT] = true;
	pair_start(&k);
	UNTIL(coord_phase(job->coord) == COORD_COLLECT);
	ck_assert_uint_eq(seen.n[LINK_PLACEMENT], 1);
}
END_TEST

/* Death between memory and the answer: the memory is taken again. */
START_TEST(death_between_memory_and_answer)
{
	struct pair_kept k;
	seen.lost[LINK_PLACED] = seen.lost[LINK_ORDER] = true;
	placing_send(job, node_now());
	UNTIL(there() && there()->mem.kept && is_up(there()));
	pair_stop(&k);
	ck_assert_uint_gt(k.n, 0);
	pair_start(&k);
	ck_assert_uint_eq(pair_left(), 0);
	seen.lost[LINK_PLACED] = seen.lost[LINK_ORDER] = false;
	UNTIL(coord_phase(job->coord) == COORD_COLLECT);
	ck_assert(recorded().n == 1);
}
END_TEST

static void without_tensors(Gacc__V1__JobSpec *spec)
{
	spec->n_tensors = 0;
}

/* Ranks declare them, and the coordinator has answered before the node dies. */
START_TEST(tensors_are_in_the_record)
{
	const struct tensor_spec w = { .name = "w", .dtype = DTYPE_F32, .n_dims = 1, .shape = { RIG_ELEMENTS } };
	char why[200];
	job = rig_job(JOB + 1, getuid(), "ana", without_tensors);
	placing_send(job, node_now());
	UNTIL(there() && job->part[0].answered);
	ck_assert(recorded().n == 1 && !recorded().tensors);
	ck_assert_int_eq(job_set_tensors(there()->job, &w, 1, why, sizeof(why)), ST_OK);
	job_allocate(there()->job);
	while (!there()->mem.kept) {
		ck_assert(!there()->tensors.durable || recorded().tensors);
		pair_turn(time(NULL) + PATIENCE_S, "memory");
	}
	ck_assert_uint_eq(recorded().tensors, there()->tensors.packed->n);
	silence(true);
	pair_restart();
	ck_assert(there() && job_has_tensors(there()->job) && there()->tensors.durable);
	UNTIL(is_up(there()));
	ck_assert_uint_eq(pair_left(), 0);
	silence(false);
	UNTIL(coord_phase(job->coord) == COORD_COLLECT);
	ck_assert_uint_eq(seen.n[LINK_TENSORS], 1);
}
END_TEST

/* A set of so many tensors, packed. */
static void *many_tensors(uint64_t n, size_t *out_n)
{
	struct tensor_spec *all = calloc(n, sizeof(*all));
	char *names = malloc(n * 16);
	for (uint64_t i = 0; i < n; i++) {
		snprintf(&names[i * 16], 16, "w%u", (unsigned)i);
		all[i] =
			(struct tensor_spec){ .name = &names[i * 16], .dtype = DTYPE_F32, .n_dims = 1, .shape = { 1 } };
	}
	void *packed = tensors_to_message(all, n, out_n);
	free(names);
	free(all);
	return packed;
}

/* The coordinator's set came with the placement, behind the message. A large one is read when the node serves. */
START_TEST(tensors_of_the_placement_are_in_the_record)
{
	size_t n;
	void *packed = many_tensors(_i ? 6000 : 1, &n);
	job = rig_job(JOB + 1, getuid(), "ana", without_tensors);
	ck_assert(placing_note_tensors(job, packed, n));
	free(packed);
	placing_send(job, node_now());
	UNTIL(there() && job_has_tensors(there()->job) && is_up(there()));
	ck_assert_uint_eq(recorded().tensors, 0);
	silence(true);
	pair_restart();
	ck_assert(there() && there()->tensors.due == _i);
	UNTIL(is_up(there()));
	ck_assert(job_has_tensors(there()->job));
	ck_assert_uint_eq(pair_left(), 0);
}
END_TEST

static void with_a_long_label(Gacc__V1__JobSpec *spec)
{
	static char name[] = "long", text[80 << 10];
	static Gacc__V1__Label label, *list[] = { &label };
	gacc__v1__label__init(&label);
	memset(text, 'x', sizeof(text) - 1);
	label.key = name;
	label.value = text;
	spec->labels = list;
	spec->n_labels = 1;
}

/* It is read in the pool, and its message is gone by then. */
START_TEST(a_large_specification_is_recorded)
{
	job = rig_job(JOB + 1, getuid(), "ana", with_a_long_label);
	placing_send(job, node_now());
	UNTIL(is_up(there()));
	ck_assert_uint_gt(recorded().placement, 80 << 10);
	silence(true);
	pair_restart();
	UNTIL(is_up(there()));
	ck_assert_uint_eq(pair_left(), 0);
}
END_TEST

int main(int argc, char **argv)
{
	PAIR_ENGINE(argc, argv);
	Suite *s = suite_create("part_records");
	TCase *t = tcase_create("part_records");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, pair_open, pair_close);
	tcase_set_timeout(t, 90);
	tcase_add_test(t, trainers_go_on_without_the_coordinator);
	tcase_add_loop_test(t, a_part_that_has_begun_without_its_memory, 0, 2);
	tcase_add_test(t, a_part_that_has_not_begun_gets_new_memory);
	tcase_add_test(t, the_record_comes_first);
	tcase_add_test(t, death_between_record_and_memory);
	tcase_add_test(t, death_between_memory_and_answer);
	tcase_add_test(t, tensors_are_in_the_record);
	tcase_add_loop_test(t, tensors_of_the_placement_are_in_the_record, 0, 2);
	tcase_add_test(t, a_large_specification_is_recorded);
	return suite_run(s, part_records_end_suite());
}
