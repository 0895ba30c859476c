/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of a job whose part is on another node: who asks for the files, who answers, and what is lost between
 * them. */
#include "pair_rig.h"

#include "cluster/save_message.h"
#include "edge/checkpoints_impl.h"
#include "edge/part_ports.h"
#include "edge/links.h"
#include "edge/parts.h"
#include "edge/placing.h"
#include "gacc/v1/common.pb-c.h"
#include "runtime/engine_proc.h"
#include "runtime/part_states.h"
#include "store/checkpoint.h"
#include "support/suite.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

Suite *saving_suite(void);

static const uint8_t request[16] = { 1 }, another[16] = { 2 };
static struct session_key key[RANKS];

static void every_step(Gacc__V1__JobSpec *spec)
{
	static Gacc__V1__CheckpointPolicy policy = GACC__V1__CHECKPOINT_POLICY__INIT;
	policy.every_steps = 1;
	spec->checkpoint = &policy;
}

static void run(void)
{
	placing_send(job, node_now());
	UNTIL(there() && coord_phase(job->coord) == COORD_COLLECT);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		key[rank] = pair_attach(rank);
}

static void step(void)
{
	uint64_t window = coord_window(job->coord);
	for (uint32_t i = 0; i < 4; i++)
		pair_push(&key[i % 2], i / 2, (float)i + 1);
	UNTIL(coord_window(job->coord) == window + 1 && job_window(there()->job) == window + 1);
}

static const struct saved *newest(void)
{
	return job->saved.n ? &job->saved.saved[job->saved.n - 1] : NULL;
}

#define SAVED(state_) (newest() && newest()->state == (state_))

static void passes(int64_t ns)
{
	saving_tick(job, (struct now){ .mono_ns = node_now().mono_ns + ns, .unix_ns = node_now().unix_ns });
}

START_TEST(the_state_after_a_step_is_saved)
{
	struct stat st;
	run();
	step();
	ck_assert_int_eq(saving_request(job, request, false), ST_OK);
	UNTIL(SAVED(SAVED_COMPLETE));
	ck_assert_uint_eq(newest()->window, 1);
	ck_assert_uint_eq(newest()->applied_step, 1);
	ck_assert_uint_eq(newest()->carried, 0);
	ck_assert_uint_ge(newest()->bytes, RIG_ELEMENTS * sizeof(float));
	ck_assert_int_eq(stat(newest()->path, &st), 0);
	ck_assert_uint_eq(seen.n[LINK_SAVE], 1);
	ck_assert_uint_eq(seen.n[LINK_SAVED], 1);
	ck_assert_uint_eq(seen.saved.params_digest, coord_last_commit(job->coord)->params_digest);
}
END_TEST

START_TEST(the_sum_is_saved_inside_a_window)
{
	run();
	pair_push(&key[0], 0, 1);
	ck_assert_int_eq(saving_request(job, request, true), ST_OK);
	UNTIL(SAVED(SAVED_COMPLETE));
	ck_assert_uint_eq(newest()->window, 0);
	ck_assert_uint_eq(newest()->carried, 1);
	ck_assert_uint_eq(seen.saved.count, 1);
	ck_assert_uint_eq(seen.saved.last_rank, 0);
}
END_TEST

START_TEST(the_policy_saves_each_step)
{
	struct hosted *first = job;
	job = rig_job(JOB + 1, getuid(), "ana", every_step);
	run();
	for (uint64_t i = 1; i <= 3; i++) {
		step();
		UNTIL(job->saved.n == i && SAVED(SAVED_COMPLETE));
		ck_assert_uint_eq(newest()->applied_step, i);
	}
	for (int i = 0; i < 20; i++)
		pair_turn(time(NULL) + 1, "");
	ck_assert_uint_eq(job->saved.n, 3);
	ck_assert_uint_eq(seen.n[LINK_SAVE], 3);
	ck_assert_uint_eq(first->saved.n, 0);
}
END_TEST

/* The wish is lost, or the answer. */
START_TEST(it_is_asked_for_until_it_is_answered)
{
	const enum link_kind lost = _i ? LINK_SAVED : LINK_SAVE;
	run();
	step();
	seen.lost[lost] = true;
	ck_assert_int_eq(saving_request(job, request, false), ST_OK);
	UNTIL(seen.n[lost] == 1);
	ck_assert(SAVED(SAVED_WRITING));
	seen.lost[lost] = false;
	for (int i = 0; i < 20; i++)
		pair_turn(time(NULL) + 1, "");
	ck_assert_uint_eq(seen.n[LINK_SAVE], 1); /* a large one takes its time */
	passes(INT64_C(2000000000));
	UNTIL(SAVED(SAVED_COMPLETE));
	ck_assert_uint_eq(seen.n[LINK_SAVE], 2);
	ck_assert_uint_eq(newest()->applied_step, 1);
}
END_TEST

/* The window that was meant is over when the wish comes: the next one is saved, and it is said which. */
START_TEST(a_wish_that_comes_too_late_is_asked_for_again)
{
	run();
	seen.lost[LINK_SAVE] = true;
	ck_assert_int_eq(saving_request(job, request, false), ST_OK);
	UNTIL(seen.n[LINK_SAVE] == 1);
	step();
	seen.lost[LINK_SAVE] = false;
	passes(INT64_C(2000000000));
	UNTIL(SAVED(SAVED_COMPLETE));
	ck_assert_uint_eq(newest()->window, 1);
	ck_assert_uint_eq(newest()->applied_step, 1);
	ck_assert_uint_eq(job->saved.n, 1);
	ck_assert_uint_eq(newest()->id, 1);
}
END_TEST

static void kill_engine(void)
{
	pid_t pid = (pid_t)engine_proc_pid(there()->engine.proc);
	ck_assert_int_eq(kill(pid, SIGKILL), 0);
	UNTIL(!there()->engine.proc || engine_proc_pid(there()->engine.proc) != pid);
}

/* It is stopped before the wish comes, so that it has the command and does not answer. */
START_TEST(an_engine_that_dies_is_tried_once_more)
{
	run();
	step();
	ck_assert_int_eq(kill((pid_t)engine_proc_pid(there()->engine.proc), SIGSTOP), 0);
	ck_assert_int_eq(saving_request(job, request, false), ST_OK);
	UNTIL(there()->save && there()->save->state == PART_SAVE_WRITING);
	seen.lost[LINK_SAVE] = true;
	kill_engine();
	UNTIL(seen.n[LINK_SAVE] == 2 && job_can_checkpoint(there()->job));
	if (_i)
		ck_assert_int_eq(kill((pid_t)engine_proc_pid(there()->engine.proc), SIGSTOP), 0);
	seen.lost[LINK_SAVE] = false;
	passes(INT64_C(2000000000));
	if (_i) {
		UNTIL(there()->save->state == PART_SAVE_WRITING);
		kill_engine();
	}
	UNTIL(SAVED(_i ? SAVED_FAILED : SAVED_COMPLETE));
	ck_assert_uint_eq(seen.n[LINK_SAVED], 2);
	ck_assert_int_eq(seen.saved.status, _i ? ST_ENGINE_DOWN : ST_OK);
	UNTIL(job->saving->saver.state == SAVER_IDLE);
	ck_assert_int_eq(saving_request(job, another, false), ST_OK);
	UNTIL(SAVED(SAVED_COMPLETE));
}
END_TEST

/* It has not heard of the wish, and would find the files that its engine of before had begun. */
START_TEST(a_gaccd_that_started_anew_is_asked_once_more)
{
	run();
	step();
	ck_assert_int_eq(kill((pid_t)engine_proc_pid(there()->engine.proc), SIGSTOP), 0);
	ck_assert_int_eq(saving_request(job, request, false), ST_OK);
	UNTIL(there()->save && there()->save->state == PART_SAVE_WRITING);
	seen.lost[LINK_SAVED] = true;
	kill_engine();
	UNTIL(seen.n[LINK_SAVED] == 1);
	seen.lost[LINK_SAVED] = false;
	saving_part_lost(job, 1); /* there is no such part */
	saving_part_lost(job, 0);
	UNTIL(SAVED(SAVED_COMPLETE));
	ck_assert_uint_eq(seen.n[LINK_SAVE], 2);
	saving_part_lost(job, 0); /* nothing is asked for */
	for (int i = 0; i < 5; i++)
		pair_turn(time(NULL) + 1, "");
	ck_assert(seen.n[LINK_SAVE] == 2 && SAVED(SAVED_COMPLETE));
}
END_TEST

/* The node has lost the part: nobody waits for it. */
START_TEST(a_part_that_is_gone_fails_the_checkpoint)
{
	run();
	step();
	there()->dropped = true;
	UNTIL(!there());
	ck_assert_int_eq(saving_request(job, request, false), ST_OK);
	UNTIL(SAVED(SAVED_FAILED));
	ck_assert_msg(strstr(newest()->message, "does not have part 0") != NULL, "%s", newest()->message);
}
END_TEST

static void without_tensors(Gacc__V1__JobSpec *spec)
{
	spec->n_tensors = 0;
}

/* A job that fails before any node has it, or before it has memory there, has nothing to sweep, and its directory is
 * not looked at. */
START_TEST(a_job_that_never_began_does_not_look_at_the_disk)
{
	if (_i) {
		job = rig_job(JOB + 1, getuid(), "ana", without_tensors);
		placing_send(job, node_now());
		UNTIL(there() && job->part[0].answered && seen.n[LINK_REPORT]);
	}
	ck_assert(!saving_ready(job));
	coord_end(job->coord, ST_CANCELLED, "by a test", node_now());
	ck_assert_uint_eq(job->saving->n_working, 0);
	ck_assert_int_eq(job->saving->saver.state, SAVER_OVER);
}
END_TEST

START_TEST(it_is_ready_when_its_node_has_memory)
{
	seen.lost[LINK_PLACED] = seen.lost[LINK_REPORT] = true;
	placing_send(job, node_now());
	UNTIL(there() && there()->engine.proc && seen.n[LINK_PLACED] && seen.n[LINK_REPORT]);
	ck_assert(!saving_ready(job));
	seen.lost[LINK_PLACED] = seen.lost[LINK_REPORT] = false;
	kill_engine();
	UNTIL(saving_ready(job) && job->saving->save_bytes);
	ck_assert_uint_ge(job->saving->save_bytes, RIG_ELEMENTS * sizeof(float));
	ck_assert_uint_ge(job->saving->carry_bytes, RIG_ELEMENTS * sizeof(float));
}
END_TEST

static void say(const struct part_saved *is)
{
	size_t n;
	void *bytes = saved_pack(is, &n);
	const struct link_message m = { LINK_SAVED, JOB, 0, bytes, n, NULL, false, 0 };
	saving_take_saved(&d, &m);
	free(bytes);
}

/* Of another epoch, part, coordinator or wish; then of a window that was not meant, and one that cannot be read. */
START_TEST(wrong_answers_are_not_taken)
{
	run();
	step();
	seen.lost[LINK_SAVE] = true;
	ck_assert_int_eq(saving_request(job, request, false), ST_OK);
	const struct part_saved good = {
		.job_id = JOB, .epoch = 1, .term = job->saving->asked.term, .number = 1, .window = 0, .status = ST_OK
	};
	struct part_saved is = good;
	is.epoch++;
	say(&is);
	is = good;
	is.part = 1;
	say(&is);
	is = good;
	is.term++;
	say(&is);
	is = good;
	is.number++;
	say(&is);
	is = good;
	is.job_id++;
	say(&is);
	ck_assert(SAVED(SAVED_WRITING));
	if (_i) {
		const struct link_message m = { LINK_SAVED, JOB, 0, "x", 1, NULL, false, 0 };
		saving_take_saved(&d, &m);
	} else {
		say(&good);
	}
	UNTIL(SAVED(SAVED_FAILED));
	ck_assert_msg(_i || strstr(newest()->message, "has saved window 0, and window 1 was to be saved") != NULL, "%s",
		      newest()->message);
	say(&good);
	ck_assert(SAVED(SAVED_FAILED));
	if (_i) { /* the place is swept, and nothing was asked for: a late one harms nobody */
		const struct link_message m = { LINK_SAVED, JOB, 0, "x", 1, NULL, false, 0 };
		job->saving->saver.state = SAVER_WRITING;
		saving_take_saved(&d, &m);
		ck_assert_int_eq(job->saving->saver.state, SAVER_WRITING);
		job->saving->saver.state = SAVER_SWEEPING;
	}
}
END_TEST

START_TEST(a_wish_that_cannot_be_read_is_dropped)
{
	run();
	struct save w = { .job_id = JOB + 1, .epoch = 1, .term = 1, .number = 1, .path = "/tmp" };
	size_t n;
	void *bytes = save_pack(&w, &n);
	const struct link_message other_job = { LINK_SAVE, JOB, 0, bytes, n, NULL, false, 0 },
				  none = { LINK_SAVE, JOB, 0, "x", 1, NULL, false, 0 };
	part_take_save(&other, &other_job);
	part_take_save(&other, &none);
	free(bytes);
	ck_assert_ptr_null(there()->save);
	w.job_id = JOB;
	w.path[0] = '\0'; /* as another version may send it: its sender hears why */
	bytes = save_pack(&w, &n);
	const struct link_message strange = { LINK_SAVE, JOB, 0, bytes, n, NULL, false, 0 };
	part_take_save(&other, &strange);
	free(bytes);
	UNTIL(seen.n[LINK_SAVED]);
	ck_assert_int_eq(seen.saved.status, ST_VERSION_SKEW);
	ck_assert_msg(strstr(seen.saved.text, "Save.path") != NULL, "%s", seen.saved.text);
	seen.n[LINK_SAVED] = 0;
	ck_assert_ptr_null(there()->save);
	strcpy(w.path, "/tmp");
	w.epoch = 2; /* of a later placement */
	part_on_save(there(), &w);
	for (int i = 0; i < 5; i++)
		pair_turn(time(NULL) + 1, "");
	ck_assert_uint_eq(seen.n[LINK_SAVED], 0);
}
END_TEST

/* ---- the trainers' own states ---- */

static const char *const text_of[RANKS] = { "zero", "one" };

static void put_state(uint32_t rank)
{
	const struct state_portion q = { .rank = rank,
					 .window = job_window(there()->job),
					 .total = strlen(text_of[rank]),
					 .data = text_of[rank],
					 .n = strlen(text_of[rank]) };
	const char *hint;
	uint64_t received;
	char why[240] = "";
	other.node.collected.most = 1 << 20;
	ck_assert_msg(!part_put_state(there(), &q, &received, &hint, why, sizeof(why)), "%s", why);
}

/* The node is asked as a coordinator asks it; the answer is seen.saved. */
static struct save asked(uint64_t number)
{
	struct save w = {
		.job_id = JOB, .epoch = 1, .term = d.term + 1, .number = number, .window = job_window(there()->job)
	};
	snprintf(w.path, sizeof(w.path), "%.4000s/of-a-test.partial.p1", job->saving->dir);
	return w;
}

static void ask(const struct save *w)
{
	part_on_save(there(), w);
	UNTIL(seen.saved.number == w->number && seen.saved.term == w->term);
}

/* Of a part without other files: its directory is made if there is something for it, and what an earlier try left there
 * goes. No engine is needed. */
START_TEST(states_alone_are_saved_without_the_engine)
{
	struct stat st;
	run();
	step();
	UNTIL(job->saving->dir[0]);
	ck_assert_int_eq(kill((pid_t)engine_proc_pid(there()->engine.proc), SIGSTOP), 0);
	struct save w = asked(1);
	w.states = w.states_alone = w.own_only = true;
	ask(&w);
	ck_assert(seen.saved.status == ST_OK && !seen.saved.n_states && !seen.saved.dir.ino);
	ck_assert_int_ne(stat(w.path, &st), 0);
	put_state(1);
	for (w.number = 2; w.number <= 3; w.number++) {
		ask(&w);
		ck_assert_int_eq(seen.saved.status, ST_OK);
		ck_assert_uint_eq(seen.saved.n_states, 1);
		ck_assert_uint_eq(seen.saved.window, 1);
		ck_assert_uint_ne(seen.saved.states.bytes, 0);
		ck_assert_int_eq(stat(w.path, &st), 0);
		ck_assert_uint_eq(st.st_ino, seen.saved.dir.ino);
	}
	ck_assert_int_eq(kill((pid_t)engine_proc_pid(there()->engine.proc), SIGCONT), 0);
	step();
	w.number = 4;
	ask(&w);
	ck_assert(seen.saved.passed && !seen.saved.n_states);
}
END_TEST

/* It takes no notice of other parts' states: a checkpoint must not have those of part 0 alone. */
START_TEST(a_coordinator_of_before_gets_none_of_several_parts)
{
	run();
	step();
	UNTIL(job->saving->dir[0]);
	put_state(0);
	struct save w = asked(1);
	there()->n_parts = 2;
	ask(&w);
	ck_assert(seen.saved.status == ST_OK && !seen.saved.n_states && seen.saved.dir.ino);
	w.number = 2;
	w.states = true;
	strcat(w.path, "2");
	ask(&w);
	ck_assert_uint_eq(seen.saved.n_states, 1);
	there()->n_parts = 1;
	w.number = 3;
	w.states = false; /* of one part they go without saying */
	strcat(w.path, "3");
	ask(&w);
	ck_assert_uint_eq(seen.saved.n_states, 1);
}
END_TEST

Suite *saving_suite(void)
{
	Suite *s = suite_create("saving");
	TCase *t = tcase_create("saving");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, pair_open, pair_close);
	tcase_set_timeout(t, 90);
	tcase_add_test(t, the_state_after_a_step_is_saved);
	tcase_add_test(t, the_sum_is_saved_inside_a_window);
	tcase_add_test(t, the_policy_saves_each_step);
	tcase_add_loop_test(t, it_is_asked_for_until_it_is_answered, 0, 2);
	tcase_add_test(t, a_wish_that_comes_too_late_is_asked_for_again);
	tcase_add_loop_test(t, an_engine_that_dies_is_tried_once_more, 0, 2);
	tcase_add_test(t, a_gaccd_that_started_anew_is_asked_once_more);
	tcase_add_test(t, a_part_that_is_gone_fails_the_checkpoint);
	tcase_add_loop_test(t, wrong_answers_are_not_taken, 0, 2);
	tcase_add_test(t, a_wish_that_cannot_be_read_is_dropped);
	tcase_add_loop_test(t, a_job_that_never_began_does_not_look_at_the_disk, 0, 2);
	tcase_add_test(t, it_is_ready_when_its_node_has_memory);
	tcase_add_test(t, states_alone_are_saved_without_the_engine);
	tcase_add_test(t, a_coordinator_of_before_gets_none_of_several_parts);
	return s;
}
