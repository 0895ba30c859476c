/* SPDX-License-Identifier: Apache-2.0 */
/* An armed GO at a real engine: it votes by itself when the window is complete, or is taken back; also across deaths.
 */
#include "boxes_rig.h"

#include <check.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

Suite *boxes_armed_suite(void);

static struct engine_command go_command(uint64_t attempt)
{
	return (struct engine_command){
		.op = ENGINE_GO, .window = boxes_rig.window, .term = 1, .attempt = attempt, .armed = 1
	};
}

static uint64_t arm(uint64_t attempt)
{
	uint64_t id = rig_send(&boxes_rig, go_command(attempt));
	boxes_settle(); /* no answer comes before this one's */
	return id;
}

/* The next message; PROGRESS is set aside. */
static struct engine_answer expect_answer(uint64_t id, enum status st)
{
	struct engine_answer a;
	ck_assert(rig_receive(&boxes_rig, &a));
	ck_assert_uint_eq(a.id, id);
	ck_assert_uint_eq(a.status, st);
	return a;
}

static struct engine_command disarm_command(void)
{
	return (struct engine_command){ .op = ENGINE_DISARM, .window = boxes_rig.window };
}

static void push_all(uint32_t rank)
{
	for (uint32_t m = 0; m < boxes_rig.config.micro_size; m++)
		boxes_publish(rank, m, boxes_request(m, 1));
}

static enum window_phase phase(void)
{
	rig_read(&boxes_rig);
	return (enum window_phase)boxes_rig.state.r.phase;
}

static void commit(uint64_t attempt)
{
	struct engine_command c = rig_commit_command(&boxes_rig, APPLIED, 0.25, 0.5);
	c.attempt = attempt;
	ck_assert_uint_eq(rig_call(&boxes_rig, c).status, ST_OK);
	boxes_rig.window++;
	boxes_rig.applied_step++;
}

/* ---- it votes ---- */

/* One message for the window, and it is what a GO after a CLOSE says. */
START_TEST(a_complete_window_is_voted_for)
{
	struct engine_answer a[2];
	for (int armed = 0; armed < 2; armed++) {
		boxes_begin_with_mailboxes(rig_small());
		uint64_t id = armed ? arm(1) : 0;
		push_all(1);
		push_all(0);
		if (!armed) {
			while (!boxes_rig.n_progress)
				boxes_settle();
			rig_close_window(&boxes_rig);
		}
		a[armed] = armed ? expect_answer(id, ST_OK) : rig_go(&boxes_rig, 1);
		ck_assert_int_eq(phase(), WINDOW_PREPARED);
		ck_assert_uint_eq(boxes_rig.n_progress, !armed);
		for (uint32_t r = 0; r < BOXES_RANKS; r++)
			ck_assert_uint_eq(boxes_await(r, 1, boxes_trainer[r].mem->request[1].seq).result, COUNTED);
		commit(1);
		arm(1);
		boxes_end();
	}
	ck_assert(a[1].op == ENGINE_GO && a[1].attempt == 1 && a[1].count == 4);
	ck_assert(a[0].digest == a[1].digest && a[0].sumsq == a[1].sumsq && a[0].sum_weight == a[1].sum_weight);
}
END_TEST

START_TEST(commands_complete_a_window_too)
{
	struct engine_answer a;
	struct rig_config c = rig_small();
	c.arrival = true;
	boxes_begin(c);
	uint64_t id = arm(1);
	rig_add(&boxes_rig, 0, 0, 1);
	rig_add(&boxes_rig, 0, 1, 1);
	kill(boxes_rig.pid, SIGSTOP); /* it is to find both */
	uint64_t flush = rig_send(&boxes_rig, (struct engine_command){ .op = ENGINE_FLUSH, .rank = 1, .sgen = 1 });
	uint64_t disarm = rig_send(&boxes_rig, disarm_command());
	kill(boxes_rig.pid, SIGCONT);
	expect_answer(flush, ST_OK);
	a = expect_answer(id, ST_OK); /* DISARM comes too late, if only by one command */
	ck_assert_uint_eq(a.count, 2);
	ck_assert_uint_eq(expect_answer(disarm, ST_OK).result, WINDOW_PREPARED);
	commit(1);
	boxes_end();
}
END_TEST

START_TEST(a_go_for_a_complete_window_votes_at_once)
{
	boxes_begin(rig_small());
	rig_add_all(&boxes_rig, NULL);
	ck_assert_uint_eq(rig_call(&boxes_rig, go_command(3)).count, 4);
	ck_assert_uint_eq(rig_call(&boxes_rig, go_command(3)).count, 4); /* again: from the record */
	ck_assert_uint_eq(rig_call(&boxes_rig, go_command(2)).status, ST_STALE_ATTEMPT);
	boxes_end();
}
END_TEST

/* The norms are there when the vote is. */
START_TEST(an_armed_go_takes_norms)
{
	boxes_begin_with_mailboxes(rig_small());
	struct engine_command c = go_command(1);
	c.want_norms = 1;
	uint64_t id = rig_send(&boxes_rig, c);
	push_all(0);
	push_all(1);
	double sumsq = expect_answer(id, ST_OK).sumsq, sum = 0;
	const struct tensor_norm *n = control_page_norms(&boxes_rig.page);
	for (uint64_t t = 0; t < boxes_rig.plan->n_tensors; t++)
		if (plan_tensors(boxes_rig.plan)[t].alias < 0)
			sum += n[t].grad_sumsq;
	ck_assert_double_gt(sumsq, 0);
	ck_assert_double_eq_tol(sum, sumsq, sumsq * 1e-9);
	boxes_end();
}
END_TEST

START_TEST(a_window_in_which_nothing_is_counted_is_gaccds)
{
	boxes_begin_with_mailboxes(rig_small());
	uint64_t id = arm(1);
	ck_assert_uint_eq(rig_flush(&boxes_rig, 0, true).status, ST_OK);
	ck_assert_uint_eq(rig_flush(&boxes_rig, 1, true).status, ST_OK);
	boxes_settle();
	ck_assert_int_eq(phase(), WINDOW_OPEN);
	ck_assert(boxes_rig.n_progress == 1 && boxes_rig.progress[0].result == PROGRESS_COMPLETE);
	uint64_t disarm = rig_send(&boxes_rig, disarm_command());
	expect_answer(id, ST_CANCELLED);
	ck_assert_uint_eq(expect_answer(disarm, ST_OK).result, WINDOW_OPEN);
	boxes_end();
}
END_TEST

/* ---- it is taken back ---- */

START_TEST(a_disarmed_window_does_not_freeze)
{
	boxes_begin_with_mailboxes(rig_small());
	uint64_t id = arm(1);
	push_all(0);
	uint64_t disarm = rig_send(&boxes_rig, disarm_command());
	expect_answer(id, ST_CANCELLED);
	ck_assert_uint_eq(expect_answer(disarm, ST_OK).result, WINDOW_OPEN);
	push_all(1);
	while (!boxes_rig.n_progress) /* which says it again */
		boxes_settle();
	usleep(20000);
	boxes_settle();
	ck_assert_int_eq(phase(), WINDOW_OPEN);
	struct engine_command c = disarm_command();
	ck_assert_uint_eq(rig_call(&boxes_rig, c).result, WINDOW_OPEN); /* nothing is armed */
	ck_assert_uint_eq(rig_call(&boxes_rig, go_command(1)).count, 4);
	ck_assert_uint_eq(rig_call(&boxes_rig, c).result, WINDOW_PREPARED);
	c.window = 1;
	ck_assert_uint_eq(rig_call(&boxes_rig, c).status, ST_NOT_CURRENT_WINDOW);
	boxes_end();
}
END_TEST

START_TEST(a_newer_go_takes_its_place)
{
	struct engine_answer a;
	boxes_begin(rig_small());
	uint64_t id = arm(2);
	ck_assert_uint_eq(rig_call(&boxes_rig, go_command(1)).status, ST_STALE_ATTEMPT); /* the other stays */
	uint64_t newer = rig_send(&boxes_rig, go_command(3));
	expect_answer(id, ST_CANCELLED);
	rig_add(&boxes_rig, 0, 0, 1);
	struct engine_command c = go_command(4);
	c.armed = 0;
	c.close = 1;
	uint64_t now = rig_send(&boxes_rig, c);
	expect_answer(newer, ST_CANCELLED);
	a = expect_answer(now, ST_OK);
	ck_assert(a.attempt == 4 && a.count == 1);
	commit(4);
	boxes_end();
}
END_TEST

START_TEST(whoever_freezes_or_stops_takes_it_back)
{
	boxes_begin(rig_small());
	uint64_t id = arm(1);
	uint64_t close = rig_send(&boxes_rig, (struct engine_command){ .op = ENGINE_CLOSE });
	expect_answer(id, ST_CANCELLED);
	expect_answer(close, ST_OK);
	ck_assert_uint_eq(rig_call(&boxes_rig, disarm_command()).result, WINDOW_CLOSED);
	ck_assert_uint_eq(rig_go(&boxes_rig, 1).status, ST_OK);
	struct engine_command c = rig_commit_command(&boxes_rig, EMPTY, 0, 0);
	ck_assert_uint_eq(rig_call(&boxes_rig, c).status, ST_OK);
	boxes_rig.window++;
	id = arm(1);
	uint64_t stop = rig_send(&boxes_rig, (struct engine_command){ .op = ENGINE_STOP });
	expect_answer(id, ST_ENGINE_DOWN);
	expect_answer(stop, ST_OK);
	boxes_end();
}
END_TEST

/* ---- deaths ---- */

#define WINDOWS 10

static unsigned seed;
static int n_deaths;

static void begin_again(void)
{
	uint64_t window = boxes_rig.window, step = boxes_rig.applied_step;
	rig_kill(&boxes_rig);
	n_deaths++;
	rig_start(&boxes_rig);
	boxes_rig.window = window;
	boxes_rig.applied_step = step;
	for (uint32_t r = 0; r < BOXES_RANKS; r++)
		boxes_give(r, 1);
}

/* gaccd's part: until there is a vote, what was armed is armed again after each death. It reads in the record that its
 * attempt has been voted for; a repeated GO says so, too. */
static struct engine_answer await_vote(uint64_t attempt, bool deaths)
{
	struct engine_answer a;
	uint64_t id = rig_send(&boxes_rig, go_command(attempt));
	for (;;) {
		if (deaths && rand_r(&seed) % 3) {
			usleep((useconds_t)rand_r(&seed) % 1000);
			begin_again();
			id = rig_send(&boxes_rig, go_command(attempt));
			continue;
		}
		ck_assert(rig_receive(&boxes_rig, &a) && a.id == id);
		ck_assert_msg(a.status == ST_OK, "%u %s", a.status, a.text);
		return a;
	}
}

static uint64_t run(bool deaths)
{
	uint64_t digest = 0;
	boxes_begin_with_mailboxes(rig_small());
	for (uint64_t w = 0; w < WINDOWS; w++) {
		for (uint32_t i = 0; i < boxes_rig.plan->slots; i++)
			rig_fill_slot(&boxes_rig, i, 100 * w + i);
		uint64_t id = deaths ? rig_send(&boxes_rig, go_command(w + 1)) : 0;
		push_all(0);
		push_all(1);
		if (deaths)
			begin_again();
		struct engine_answer a = await_vote(w + 1, deaths);
		ck_assert(a.count == 4 && a.attempt == w + 1 && a.id != id);
		ck_assert_int_eq(phase(), WINDOW_PREPARED);
		digest = digest * 31 + a.digest;
		commit(w + 1);
	}
	boxes_end();
	return digest;
}

START_TEST(deaths_of_an_armed_engine_change_no_bit)
{
	seed = 1 + (unsigned)_i;
	n_deaths = 0;
	uint64_t digest = run(false);
	ck_assert(run(true) == digest && digest);
	ck_assert_int_ge(n_deaths, WINDOWS);
}
END_TEST

Suite *boxes_armed_suite(void)
{
	Suite *s = suite_create("boxes, armed");
	TCase *c = tcase_create("armed");
	tcase_set_timeout(c, 60);
	tcase_add_test(c, a_complete_window_is_voted_for);
	tcase_add_test(c, commands_complete_a_window_too);
	tcase_add_test(c, a_go_for_a_complete_window_votes_at_once);
	tcase_add_test(c, an_armed_go_takes_norms);
	tcase_add_test(c, a_window_in_which_nothing_is_counted_is_gaccds);
	tcase_add_test(c, a_disarmed_window_does_not_freeze);
	tcase_add_test(c, a_newer_go_takes_its_place);
	tcase_add_test(c, whoever_freezes_or_stops_takes_it_back);
	tcase_add_loop_test(c, deaths_of_an_armed_engine_change_no_bit, 0, 4);
	suite_add_tcase(s, c);
	return s;
}
