/* What operators change: a coordinator with one fake node, message by message. */
#include "control/coordinator.h"

#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

#define SECOND INT64_C(1000000000)

static struct job_spec spec;
static struct coord *coord;
static struct now now;
/* the fake node and store */
static struct report node;
static struct rank_progress rank[2];
static struct order order;
static struct commit stored;
static uint64_t n_stored, norms_window;
static char last_event[32], last_text[256], end_reason[256];

static void on_order(void *ctx, uint32_t n, const struct order *o)
{
	order = *o;
}
static void on_persist(void *ctx, const struct commit *k, const uint64_t *counted, uint32_t n)
{
	stored = *k;
	n_stored++;
}
static void on_end(void *ctx, uint64_t job, enum status st, const char *reason)
{
	snprintf(end_reason, sizeof end_reason, "%s: %s", status_info(st)->name, reason);
}
static void on_event(void *ctx, uint64_t job, bool warning, const char *reason, int64_t r, const char *text)
{
	snprintf(last_event, sizeof last_event, "%s", reason);
	snprintf(last_text, sizeof last_text, "%s", text);
}
static void on_changed(void *ctx, uint64_t job)
{
}
static void on_norms(void *ctx, const struct commit *k)
{
	norms_window = k->window;
}

static const struct coord_ports ports = { .order = on_order, .persist_commit = on_persist, .persist_end = on_end,
					  .event = on_event, .changed = on_changed, .norms = on_norms };

static void tell(void)
{
	node.rank = rank;
	node.n_ranks = 2;
	coord_on_report(coord, 0, &node, now);
}

static void setup(void)
{
	const char *field;
	char why[200];
	spec = (struct job_spec){ .name = "t", .ranks = 2, .micro_size = 2, .master_f32 = true };
	spec.optim = (struct optim_config){ .type = OPTIM_SGD, .lr = 0.1 };
	ck_assert_int_eq(job_spec_check(&spec, &field, why, sizeof why), ST_OK);
	now = (struct now){ 1000 * SECOND, 5000 * SECOND };
	n_stored = norms_window = 0;
	last_event[0] = end_reason[0] = '\0';
	node = (struct report){ .job_id = 1, .epoch = 1, .incarnation = 1, .start = START_PARAMS };
	for (uint32_t i = 0; i < 2; i++)
		rank[i] = (struct rank_progress){ .rank = i, .attached = 1 };
	ck_assert_int_eq(coord_new(&coord, 1, &spec, 1, 1, &ports), ST_OK);
	tell();
}

static void teardown(void)
{
	coord_free(coord);
}

/* The node has all micro-batches. */
static void fill(void)
{
	uint32_t size = coord_values(coord)->micro_size;
	for (int i = 0; i < 2; i++) {
		rank[i].counted = size;
		rank[i].ready_ns = rank[i].waiting_ns = now.mono_ns;
	}
	node.complete = true;
	tell();
}

/* The node does what the order says, the store what it is told, until the next window is open. */
static void finish(void)
{
	static uint64_t bits[2];
	uint64_t window = node.window;
	for (int i = 0; i < 8 && node.window == window; i++) {
		if (order.want == WANT_GO && node.phase < WINDOW_PREPARED) {
			uint32_t size = coord_values(coord)->micro_size;
			node.count = 2 * size;
			node.sum_weight = 2 * size;
			bits[0] = (1u << size) - 1;
			bits[1] = bits[0];
			node.counted = bits;
			node.n_words = 2; /* 2 ranks * 64 */
			node.phase = WINDOW_PREPARED;
			node.vote_term = order.term;
			node.vote_attempt = order.attempt;
			node.sumsq = 16;
		} else if (coord_phase(coord) == COORD_PERSIST) {
			coord_on_persisted(coord, window, ST_OK, now);
			continue;
		} else if (order.want == WANT_COMMIT) {
			node = (struct report){ .job_id = 1, .epoch = 1, .incarnation = 1, .start = START_PARAMS,
						.window = window + 1 };
			rank[0].counted = rank[1].counted = 0;
			rank[0].waiting_ns = rank[1].waiting_ns = rank[0].ready_ns = rank[1].ready_ns = 0;
		}
		tell();
	}
}

/* The engine of the node does not come up: the ranks are not to blame, however long that takes. */
START_TEST(an_engine_that_does_not_come_up_stalls_the_job_and_nobody_is_late)
{
	const char *reason;
	rank[0].counted = 2;
	rank[0].waiting_ns = rank[0].ready_ns = now.mono_ns; /* it waits for rank 1 */
	tell();
	coord_hinder(coord, "no room", now);
	ck_assert_int_eq(coord_state(coord, &reason, NULL), JOB_STALLED);
	ck_assert_str_eq(reason, "no room");
	ck_assert_str_eq(last_event, "EngineFailing");
	last_event[0] = '\0';
	for (int i = 0; i < 2; i++) {
		now.mono_ns += 2 * spec.stall_abort_ns;
		coord_hinder(coord, "no room", now);
		coord_tick(coord, now);
	}
	ck_assert_str_eq(last_event, ""); /* once */
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_STALLED);
	coord_hinder(coord, "no memory", now);
	ck_assert_str_eq(last_text, "no memory");
	coord_pause(coord, "by me", now);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_PAUSED);
	coord_resume(coord, "by me", now);
	ck_assert_int_eq(coord_state(coord, &reason, NULL), JOB_STALLED);
	ck_assert_str_eq(reason, "no memory");
	coord_hinder(coord, "", now);
	ck_assert_str_eq(last_event, "EngineBack");
	coord_tick(coord, now);
	ck_assert_int_eq(coord_state(coord, &reason, NULL), JOB_RUNNING);
	ck_assert_str_eq(reason, "");
	now.mono_ns += spec.stall_warn_ns; /* from here on somebody is */
	coord_tick(coord, now);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_STALLED);
	ck_assert_str_eq(last_event, "RankLate");
}
END_TEST

START_TEST(an_attempt_does_not_time_out_without_an_engine)
{
	fill();
	ck_assert_int_eq(coord_phase(coord), COORD_GO);
	uint64_t attempt = order.attempt;
	coord_hinder(coord, "no room", now);
	now.mono_ns += 3600 * SECOND;
	coord_tick(coord, now);
	ck_assert_uint_eq(order.attempt, attempt);
	coord_hinder(coord, "", now);
	now.mono_ns += 59 * SECOND;
	coord_tick(coord, now);
	ck_assert_uint_eq(order.attempt, attempt);
	finish();
	ck_assert_uint_eq(coord_window(coord), 1);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_RUNNING);
}
END_TEST

START_TEST(an_engine_that_never_came_up_is_the_reason_of_starting)
{
	const char *reason;
	coord_free(coord);
	ck_assert_int_eq(coord_new(&coord, 1, &spec, 1, 1, &ports), ST_OK);
	node.start = START_ALLOCATED;
	tell();
	coord_hinder(coord, "no room", now);
	ck_assert_int_eq(coord_state(coord, &reason, NULL), JOB_STARTING);
	ck_assert_str_eq(reason, "no room");
	now.mono_ns += 2 * spec.stall_abort_ns;
	coord_tick(coord, now);
	ck_assert_int_eq(coord_phase(coord), COORD_START); /* ranks have their time afterwards */
	coord_hinder(coord, "", now);
	coord_end(coord, ST_ENGINE_FAILED, "no room", now);
	coord_on_ended(coord, ST_OK, now);
	ck_assert_int_eq(coord_state(coord, &reason, NULL), JOB_NODE_FAIL);
	ck_assert_str_eq(reason, "no room");
	coord_hinder(coord, "too late", now);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_NODE_FAIL);
}
END_TEST

/* Nobody needs to come for that: PENDING is who waits for its turn, or for its tensors. */
START_TEST(a_job_with_memory_is_starting)
{
	coord_free(coord);
	ck_assert_int_eq(coord_new(&coord, 1, &spec, 1, 1, &ports), ST_OK);
	coord_enqueue(coord, "2 jobs before it", now);
	node.start = START_DECLARED;
	tell();
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_PENDING);
	node.start = START_ALLOCATED;
	tell();
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_PENDING);
	coord_free(coord);
	ck_assert_int_eq(coord_new(&coord, 1, &spec, 1, 1, &ports), ST_OK);
	node.start = START_DECLARED;
	tell();
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_PENDING);
	node.start = START_ALLOCATED;
	tell();
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_STARTING);
	node.start = START_PARAMS;
	tell();
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_RUNNING);
}
END_TEST

START_TEST(who_never_comes_is_named)
{
	coord_free(coord);
	spec.stall_abort_ns = 3 * SECOND / 2;
	ck_assert_int_eq(coord_new(&coord, 1, &spec, 1, 1, &ports), ST_OK);
	node.start = START_ALLOCATED;
	rank[1].attached = _i;
	tell();
	coord_tick(coord, now);
	now.mono_ns += SECOND;
	coord_tick(coord, now);
	ck_assert_str_eq(end_reason, "");
	now.mono_ns += SECOND / 2;
	coord_tick(coord, now);
	ck_assert_str_eq(end_reason,
			 _i ? "STALLED: did not start within 1.5 s: no rank gave the initial parameters" :
			      "STALLED: did not start within 1.5 s: 1 of 2 ranks attached, rank 1 did not");
}
END_TEST

START_TEST(a_held_window_fills_but_does_not_close)
{
	ck_assert_int_eq(coord_pause(coord, "paused by ana", now), ST_OK);
	const char *reason;
	ck_assert_int_eq(coord_state(coord, &reason, NULL), JOB_PAUSED);
	ck_assert_str_eq(reason, "paused by ana");
	ck_assert(order.paused);
	fill();
	finish();
	ck_assert_int_eq(coord_phase(coord), COORD_COLLECT);
	uint64_t w;
	ck_assert_int_eq(coord_flush(coord, &w, now), ST_PAUSED);
	ck_assert_uint_eq(n_stored, 0);
	ck_assert_int_eq(coord_resume(coord, "resumed by ana", now), ST_OK);
	ck_assert_int_eq(coord_phase(coord), COORD_GO);
	finish();
	ck_assert_uint_eq(n_stored, 1);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_RUNNING);
	ck_assert_int_eq(coord_resume(coord, "resumed by ana", now), ST_OK);
}
END_TEST

START_TEST(a_window_that_is_closing_commits_first)
{
	fill();
	ck_assert_int_eq(coord_phase(coord), COORD_GO);
	ck_assert_int_eq(coord_pause(coord, "paused by ana", now), ST_OK);
	finish();
	ck_assert_uint_eq(n_stored, 1);
	ck_assert_uint_eq(coord_window(coord), 1);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_PAUSED);
	fill();
	ck_assert_int_eq(coord_phase(coord), COORD_COLLECT);
}
END_TEST

/* Where there are two, neither begins to reduce before both are frozen. */
START_TEST(two_nodes_are_closed_before_they_vote)
{
	struct rank_progress full[2] = { { .rank = 0, .attached = 1, .counted = 2 }, { .rank = 1, .attached = 1, .counted = 2 } };
	uint64_t bits[2][2] = { { 3, 0 }, { 0, 3 } };
	struct report two[2];
	coord_free(coord);
	ck_assert_int_eq(coord_new(&coord, 1, &spec, 1, 2, &ports), ST_OK);
	for (uint32_t i = 0; i < 2; i++) {
		two[i] = (struct report){ .job_id = 1, .epoch = 1, .incarnation = 1, .start = START_PARAMS, .rank = &full[i], .n_ranks = 1,
					  .complete = true };
		coord_on_report(coord, i, &two[i], now);
	}
	ck_assert_int_eq(coord_phase(coord), COORD_CLOSE);
	for (uint32_t i = 0; i < 2; i++) {
		ck_assert_int_eq(order.want, WANT_CLOSE);
		two[i].phase = WINDOW_CLOSED;
		two[i].count = 2;
		two[i].sum_weight = 2;
		two[i].counted = bits[i];
		two[i].n_words = 2;
		coord_on_report(coord, i, &two[i], now);
	}
	ck_assert_int_eq(order.want, WANT_GO);
	for (uint32_t i = 0; i < 2; i++) {
		ck_assert_int_eq(coord_phase(coord), COORD_GO);
		two[i].phase = WINDOW_PREPARED;
		two[i].vote_term = order.term;
		two[i].vote_attempt = order.attempt;
		coord_on_report(coord, i, &two[i], now);
	}
	ck_assert_int_eq(coord_phase(coord), COORD_PERSIST);
	ck_assert_uint_eq(stored.micro_count, 4);
}
END_TEST

START_TEST(who_is_late_is_named)
{
	static const struct {
		int64_t pid;
		uint8_t known;
		const char *who;
	} cases[] = { { 77, 1, "pid 77" }, { 0, 1, "inline" }, { 0, 0, "never attached, pid 0" } };
	const char *reason;
	char want[100];
	rank[0].counted = 2;
	rank[0].waiting_ns = now.mono_ns;
	rank[1].pid = cases[_i].pid;
	rank[1].attached = rank[1].known = cases[_i].known;
	tell();
	now.mono_ns += 61 * SECOND;
	coord_tick(coord, now);
	ck_assert_int_eq(coord_state(coord, &reason, NULL), JOB_STALLED);
	snprintf(want, sizeof want, "window 0: waiting for rank 1 (%s) at 0/2 for 61 s", cases[_i].who);
	ck_assert_str_eq(reason, want);
}
END_TEST

START_TEST(nobody_is_late_while_it_is_held)
{
	rank[0].counted = 2;
	rank[0].waiting_ns = now.mono_ns;
	tell();
	now.mono_ns += 30 * SECOND;
	ck_assert_int_eq(coord_rank_late_ns(coord, 1, now), 30 * SECOND);
	coord_pause(coord, "x", now);
	now.mono_ns += 3600 * SECOND; /* six times stall_abort */
	coord_tick(coord, now);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_PAUSED);
	ck_assert_int_eq(coord_rank_late_ns(coord, 1, now), 0);
	coord_resume(coord, "resumed by ana", now);
	now.mono_ns += 59 * SECOND;
	coord_tick(coord, now);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_RUNNING);
	ck_assert_int_eq(coord_rank_late_ns(coord, 1, now), 59 * SECOND);
	now.mono_ns += 2 * SECOND;
	coord_tick(coord, now);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_STALLED);
}
END_TEST

static void pass(int64_t seconds)
{
	now.mono_ns += seconds * SECOND;
	now.unix_ns += seconds * SECOND;
}

START_TEST(a_pause_is_nobodys_waiting)
{
	pass(4);
	rank[0].counted = 2;
	rank[0].ready_ns = now.mono_ns;
	tell();
	pass(2);
	coord_pause(coord, "x", now);
	pass(50);
	coord_pause(coord, "once more", now);
	pass(50);
	coord_resume(coord, "resumed by ana", now);
	pass(2);
	rank[1].counted = 2;
	rank[1].ready_ns = now.mono_ns;
	node.complete = true;
	tell();
	finish(); /* 8 s, of which one of two ranks has waited 4 */
	ck_assert_uint_eq(n_stored, 1);
	ck_assert_double_eq(stored.wait_fraction, 0.25);
	ck_assert_uint_eq(stored.last_rank, 1);
	ck_assert_int_eq(stored.last_lag_ns, 4 * SECOND);
}
END_TEST

START_TEST(ranks_that_get_ready_in_a_pause_wait_from_its_end)
{
	pass(1);
	coord_pause(coord, "x", now);
	pass(30);
	fill();
	pass(20);
	coord_resume(coord, "resumed by ana", now);
	pass(3); /* until the engine has closed the window */
	finish();
	ck_assert_uint_eq(n_stored, 1);
	ck_assert_double_eq(stored.wait_fraction, 0.75);
	ck_assert_int_eq(stored.last_lag_ns, 0);
}
END_TEST

START_TEST(a_restart_keeps_the_hold)
{
	fill();
	finish();
	struct commit last = stored;
	coord_free(coord);
	ck_assert_int_eq(coord_new(&coord, 1, &spec, 2, 1, &ports), ST_OK);
	coord_restore_hold(coord, "paused by ana");
	coord_restore(coord, &last);
	node.incarnation = 2;
	tell();
	ck_assert_uint_eq(coord_window(coord), 1);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_PAUSED);
	fill();
	ck_assert_int_eq(coord_phase(coord), COORD_COLLECT);
	pass(100);
	coord_resume(coord, "resumed by ana", now);
	pass(3);
	finish();
	ck_assert_uint_eq(stored.window, 1);
	ck_assert_double_eq(stored.wait_fraction, 1); /* of the time since the resume */
}
END_TEST

static enum status update(struct update *u)
{
	const char *field;
	char why[256] = "";
	enum status st = coord_prepare_update(coord, u, &field, why, sizeof why);
	if (!st)
		coord_take_update(coord, u);
	else
		snprintf(last_text, sizeof last_text, "%s", why);
	return st;
}

START_TEST(an_update_holds_from_exactly_its_window)
{
	struct update lr = { 2, VALUE_LR, { .lr = 0.5 } }, size = { 0, VALUE_MICRO_SIZE, { .micro_size = 3 } };
	ck_assert_int_eq(update(&lr), ST_OK);
	ck_assert_str_eq(last_event, "Updated");
	ck_assert_str_eq(last_text, "from window 2 on: lr 0.1 -> 0.5");
	ck_assert_int_eq(update(&size), ST_OK);
	ck_assert_uint_eq(size.window, 1); /* the earliest */
	ck_assert_uint_eq(coord_updates(coord)->n, 2);
	for (uint64_t w = 0; w < 4; w++) {
		ck_assert_uint_eq(coord_values(coord)->micro_size, w < 1 ? 2 : 3);
		fill();
		finish();
		ck_assert_uint_eq(stored.window, w);
		ck_assert_uint_eq(stored.micro_size, w < 1 ? 2 : 3);
		ck_assert_uint_eq(stored.next_micro_size, 3);
		ck_assert_uint_eq(stored.micro_count, w < 1 ? 4 : 6);
		ck_assert_double_eq(stored.lr, w < 2 ? 0.1 : 0.5);
	}
	ck_assert_uint_eq(coord_updates(coord)->n, 0);
	ck_assert_str_eq(last_text, "in force with window 2: lr 0.1 -> 0.5");
}
END_TEST

START_TEST(a_window_that_has_begun_is_refused)
{
	struct update u = { 1, VALUE_LR, { .lr = 1 } };
	fill();
	finish();
	ck_assert_int_eq(update(&u), ST_WINDOW_BEGUN);
	ck_assert_str_eq(last_text, "window 1 has begun: the earliest that values can change for is window 2");
	fill();
	while (coord_phase(coord) != COORD_PERSIST) { /* the size of window 2 is in the commit that is being written */
		node.phase = WINDOW_PREPARED;
		node.count = 4;
		node.sum_weight = 4;
		uint64_t bits[2] = { 3, 3 };
		node.counted = bits;
		node.n_words = 2;
		node.vote_term = order.term;
		node.vote_attempt = order.attempt;
		tell();
	}
	u.window = 2;
	ck_assert_int_eq(update(&u), ST_WINDOW_BEGUN);
	u.window = 0;
	ck_assert_int_eq(update(&u), ST_OK);
	ck_assert_uint_eq(u.window, 3);
	for (int i = 1; i < UPDATES_MAX_PENDING; i++)
		ck_assert_int_eq(update(&u), ST_OK);
	ck_assert_int_eq(update(&u), ST_RESOURCE_EXHAUSTED);
}
END_TEST

START_TEST(a_start_from_a_checkpoint_has_its_updates)
{
	struct update made[] = { { 7, VALUE_LR, { .lr = 0.3 } }, { 8, VALUE_LR, { .lr = 0.4 } }, { 0, VALUE_LR, { .lr = 0.5 } } };
	struct commit before = { .window = 6, .applied_step = 5, .outcome = OUTCOME_APPLIED, .next = *coord_carry(coord) };
	coord_free(coord);
	ck_assert_int_eq(coord_new(&coord, 1, &spec, 1, 1, &ports), ST_OK);
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(coord_restore_update(coord, &made[i]), ST_OK);
	coord_start_at(coord, 7, 5, &before);
	ck_assert_double_eq(coord_values(coord)->lr, 0.3); /* also before it runs */
	ck_assert_int_eq(update(&made[2]), ST_OK);
	ck_assert_uint_eq(made[2].window, 8);
	ck_assert_uint_eq(coord_updates(coord)->n, 2);
	ck_assert_double_eq(updates_at(coord_updates(coord), *coord_values(coord), 8).lr, 0.5); /* the later of two for one window */
}
END_TEST

START_TEST(a_restart_keeps_the_updates)
{
	fill();
	finish();
	fill();
	finish();
	struct commit last = stored; /* of window 1 */
	coord_free(coord);
	ck_assert_int_eq(coord_new(&coord, 1, &spec, 2, 1, &ports), ST_OK);
	struct update made[] = { { 3, VALUE_LR, { .lr = 0.3 } }, { 1, VALUE_LR | VALUE_CLIP_NORM, { .lr = 0.2, .clip_norm = 9 } } };
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(coord_restore_update(coord, &made[i]), ST_OK);
	coord_restore(coord, &last);
	node.incarnation = 2;
	tell();
	ck_assert_uint_eq(coord_window(coord), 2);
	ck_assert_double_eq(coord_values(coord)->lr, 0.2);
	ck_assert_double_eq(coord_values(coord)->clip_norm, 9);
	ck_assert_uint_eq(coord_updates(coord)->n, 1);
}
END_TEST

START_TEST(norms_are_asked_of_one_window)
{
	norms_window = UINT64_MAX;
	fill();
	finish();
	ck_assert(!order.norms && norms_window == UINT64_MAX);
	ck_assert_int_eq(coord_want_norms(coord), ST_OK);
	fill();
	finish();
	ck_assert_uint_eq(norms_window, 1);
	fill();
	finish(); /* and not again */
	ck_assert_uint_eq(stored.window, 2);
	ck_assert_uint_eq(norms_window, 1);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("coord");
	TCase *c = tcase_create("coord");
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, a_job_with_memory_is_starting);
	tcase_add_test(c, an_engine_that_does_not_come_up_stalls_the_job_and_nobody_is_late);
	tcase_add_test(c, an_attempt_does_not_time_out_without_an_engine);
	tcase_add_test(c, an_engine_that_never_came_up_is_the_reason_of_starting);
	tcase_add_loop_test(c, who_never_comes_is_named, 0, 2);
	tcase_add_test(c, a_held_window_fills_but_does_not_close);
	tcase_add_test(c, a_window_that_is_closing_commits_first);
	tcase_add_test(c, two_nodes_are_closed_before_they_vote);
	tcase_add_loop_test(c, who_is_late_is_named, 0, 3);
	tcase_add_test(c, nobody_is_late_while_it_is_held);
	tcase_add_test(c, a_pause_is_nobodys_waiting);
	tcase_add_test(c, ranks_that_get_ready_in_a_pause_wait_from_its_end);
	tcase_add_test(c, a_restart_keeps_the_hold);
	tcase_add_test(c, an_update_holds_from_exactly_its_window);
	tcase_add_test(c, a_window_that_has_begun_is_refused);
	tcase_add_test(c, a_restart_keeps_the_updates);
	tcase_add_test(c, a_start_from_a_checkpoint_has_its_updates);
	tcase_add_test(c, norms_are_asked_of_one_window);
	suite_add_tcase(s, c);
	return s;
}

int main(void)
{
	return suite_run(suite());
}
