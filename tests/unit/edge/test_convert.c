/* SPDX-License-Identifier: Apache-2.0 */
/* What the API shows of a step, an event and a rank: every field has a value of its own, and a rank goes through all
 * its states. The coordinator is that of tests/unit/control. */
#include "edge/convert.h"

#include "gacc/v1/job.pb-c.h"
#include "store/history.h"
#include "support/suite.h"
#include "unit/control/coord_rig.h"

#include <check.h>
#include <string.h>

static char detail[128];

static Gacc__V1__RankStatus shown(uint32_t number)
{
	Gacc__V1__RankStatus out = GACC__V1__RANK_STATUS__INIT;
	convert_rank(coord, &rank[number], now, &out, detail, sizeof(detail));
	return out;
}

static int state_of(uint32_t number)
{
	return (int)shown(number).state;
}

#define STATE(name) GACC__V1__RANK_STATE__RANK_STATE_##name

/* ---- steps and events ---- */

START_TEST(a_step_is_shown_whole)
{
	Gacc__V1__StepResult o = GACC__V1__STEP_RESULT__INIT;
	struct commit k = { .window = 1, .applied_step = 2, .outcome = OUTCOME_SKIPPED, .skip_reason = SKIP_OUTLIER };
	k.total_weight = 3;
	k.micro_count = 4;
	k.divisor = 5;
	k.grad_norm = 6;
	k.lr = 7;
	k.mean_loss = 8;
	k.last_rank = 9;
	k.last_lag_ns = 10;
	k.params_before = 99; /* of the window before: not to be taken for this one's */
	k.params_digest = 11;
	k.loss_scale = 12;
	k.next.scale.scale = 13;
	k.unix_nanos = 14;
	convert_step(&k, &o);
	ck_assert(o.window == 1 && o.applied_step == 2 && o.total_weight == 3 && o.micro_count == 4);
	ck_assert(o.divisor == 5 && o.grad_norm == 6 && o.lr == 7 && o.mean_loss == 8);
	ck_assert(o.last_rank == 9 && o.last_lag_ns == 10 && o.params_digest == 11);
	ck_assert(o.loss_scale == 12 && o.next_loss_scale == 13 && o.closed_unix_nanos == 14);
	ck_assert_int_eq(o.outcome, GACC__V1__STEP_OUTCOME__STEP_OUTCOME_SKIPPED);
	ck_assert_int_eq(o.skip_reason, GACC__V1__SKIP_REASON__SKIP_REASON_OUTLIER_NORM);
}
END_TEST

START_TEST(an_event_is_shown_whole)
{
	char reason[] = "RankLost", object[] = "rank 1", message[] = "its process is gone";
	const struct history_event e = { .id = 1,
					 .job = 2,
					 .uid = 3,
					 .unix_ns = 4,
					 .warning = true,
					 .window = 5,
					 .reason = reason,
					 .object = object,
					 .message = message };
	Gacc__V1__Event *o = convert_event(&e);
	ck_assert_ptr_nonnull(o);
	*reason = *object = *message = '?'; /* what it was made from may go */
	ck_assert(o->id == 1 && o->job == 2 && o->unix_nanos == 4 && o->warning && o->window == 5);
	ck_assert_str_eq(o->reason, "RankLost");
	ck_assert_str_eq(o->object, "rank 1");
	ck_assert_str_eq(o->message, "its process is gone");
	gacc__v1__event__free_unpacked(o, NULL);
}
END_TEST

/* ---- ranks ---- */

START_TEST(a_rank_is_shown_with_its_numbers)
{
	rank[1].pid = 2;
	rank[1].counted = 3;
	rank[1].voided = 4;
	rank[1].weight = 5;
	rank[1].last_push_unix_ns = 6;
	rank[1].flushed = 1;
	Gacc__V1__RankStatus o = shown(1);
	ck_assert(o.rank == 1 && o.pid == 2 && o.micro_count == 3 && o.void_count == 4 && o.weight == 5);
	ck_assert(o.last_push_unix_nanos == 6 && o.flushed);
	ck_assert_int_eq(o.exit_status, -1);
	ck_assert_str_eq(o.detail, "");
	ck_assert_uint_eq(shown(0).rank, 0);
	ck_assert(!shown(0).flushed);
}
END_TEST

/* Before the job has its parameters. */
START_TEST(states_of_a_rank_at_the_start)
{
	teardown();
	ck_assert_int_eq(coord_new(&coord, 1, &spec, 1, 1, NULL, &ports), ST_OK);
	node.start = START_ALLOCATED;
	rank[1].attached = 0;
	tell();
	ck_assert_int_eq(coord_phase(coord), COORD_START);
	ck_assert_int_eq(state_of(0), STATE(ATTACHED));
	ck_assert_int_eq(state_of(1), STATE(ABSENT));
	rank[1].lost = 1;
	ck_assert_int_eq(state_of(1), STATE(LOST));
	rank[1].flushed = RANK_LEFT; /* it has said good-bye before it went */
	ck_assert_int_eq(state_of(1), STATE(DONE));
}
END_TEST

START_TEST(states_of_a_rank_in_a_window)
{
	ck_assert_int_eq(coord_phase(coord), COORD_COLLECT);
	ck_assert_int_eq(state_of(0), STATE(COMPUTING));
	rank[0].counted = 2;
	rank[0].waiting_ns = rank[0].ready_ns = 1;
	tell();
	ck_assert_int_eq(state_of(0), STATE(WAITING));
	now.mono_ns += spec.stall_warn_ns / 2;
	ck_assert_int_eq(state_of(1), STATE(COMPUTING)); /* others wait for it, and not for long */
	ck_assert_int_eq(shown(1).late_ns, spec.stall_warn_ns / 2 + 1);
	now.mono_ns += spec.stall_warn_ns;
	coord_tick(coord, now);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_STALLED);
	ck_assert_int_eq(state_of(1), STATE(LATE));
	ck_assert_int_eq(state_of(0), STATE(WAITING));
	rank[1].lost = 1;
	ck_assert_int_eq(state_of(1), STATE(LOST));
}
END_TEST

START_TEST(a_late_rank_is_shown_with_what_it_lacks)
{
	ck_assert_str_eq(shown(1).detail, "");
	rank[0].counted = 2;
	rank[0].waiting_ns = rank[0].ready_ns = 1;
	tell();
	now.mono_ns += SECOND * 5 / 2;
	ck_assert_str_eq(shown(1).detail, "others wait for it for 2.5 s");
	ck_assert_str_eq(shown(0).detail, "");
	rank[1].attached = 0;
	ck_assert_str_eq(shown(1).detail, "others wait for it for 2.5 s; it has not attached");
	rank[1].lost = 1;
	ck_assert_str_eq(shown(1).detail, "others wait for it for 2.5 s; its process is gone");
}
END_TEST

int main(void)
{
	Suite *s = suite_create("convert");
	TCase *t = tcase_create("convert");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, a_step_is_shown_whole);
	tcase_add_test(t, an_event_is_shown_whole);
	tcase_add_test(t, a_rank_is_shown_with_its_numbers);
	tcase_add_test(t, states_of_a_rank_at_the_start);
	tcase_add_test(t, states_of_a_rank_in_a_window);
	tcase_add_test(t, a_late_rank_is_shown_with_what_it_lacks);
	return suite_run(s);
}
