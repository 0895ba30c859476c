/* SPDX-License-Identifier: Apache-2.0 */
/* A push at a real engine: who is answered and with which words, what the status page says of each rank meanwhile, and
 * that a successor goes on only from what has been told. */
#include "engine/engine.h"
#include "engine/progress.h"
#include "rig.h"

#include <check.h>
#include <math.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

Suite *push_suite(void);

static struct rig rig;

static struct status_progress *progress(void)
{
	return (struct status_progress *)((char *)rig_data(&rig, SEG_STATUS, 0) + STATUS_PROGRESS_OFFSET);
}

static const struct status_rank *row(uint32_t rank)
{
	return &progress()->rank[rank];
}

/* Of the ADD with this id; others may not come before it. */
static struct engine_answer answer_of(uint64_t id)
{
	struct engine_answer a;
	ck_assert(rig_receive(&rig, &a));
	ck_assert_uint_eq(a.op, ENGINE_ADD);
	ck_assert_uint_eq(a.id, id);
	return a;
}

/* Rank 1's micro-batch 0, which waits for rank 0, and as many repeats as may wait with it. */
static void send_with_repeats(uint64_t id[4])
{
	struct engine_command c = rig_add_command(&rig, 1, 0, 2);
	c.data_key = 7;
	for (int i = 0; i < 4; i++)
		id[i] = rig_send(&rig, c);
}

/* ---- repeats ---- */

START_TEST(repeats_of_a_parked_push_are_answered_with_it)
{
	uint64_t id[4];
	rig_begin(&rig, rig_small());
	rig_fill_all(&rig, 1, true);
	send_with_repeats(id);
	struct engine_command c = rig_add_command(&rig, 1, 0, 2);
	struct engine_answer a = rig_call(&rig, c);
	ck_assert_uint_eq(a.status, ST_DATA_KEY_MISMATCH);
	ck_assert_str_eq(a.hint, "a micro-batch index names one set of samples");
	c.data_key = 7;
	a = rig_call(&rig, c);
	ck_assert_uint_eq(a.status, ST_RESOURCE_EXHAUSTED);
	ck_assert_str_eq(a.text, "micro-batch 0 is parked with 4 calls already");
	ck_assert_str_eq(a.hint, "wait for the earlier calls");
	uint64_t first = rig_send(&rig, rig_add_command(&rig, 0, 0, 1));
	ck_assert_uint_eq(answer_of(first).result, COUNTED);
	for (int i = 0; i < 4; i++) {
		a = answer_of(id[i]);
		ck_assert_uint_eq(a.status, ST_OK);
		ck_assert_uint_eq(a.result, i ? DUPLICATE : COUNTED);
		ck_assert(a.rank == 1 && a.rank_counted == 1 && a.blocked_by == 0 && a.parked_ns > 0);
	}
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.r.count, 2);
	ck_assert_double_eq(rig.state.r.sum_weight, 3);
	rig_close(&rig);
}
END_TEST

START_TEST(repeats_of_a_void_push_are_void)
{
	struct rig_config config = rig_small();
	uint64_t id[4];
	config.reject_nonfinite = true;
	rig_begin(&rig, config);
	rig_fill_all(&rig, 1, true);
	rig_set_gradient(&rig, 2, 0, 0, NAN);
	send_with_repeats(id);
	answer_of(rig_send(&rig, rig_add_command(&rig, 0, 0, 1)));
	for (int i = 0; i < 4; i++) {
		struct engine_answer a = answer_of(id[i]);
		ck_assert_uint_eq(a.result, VOID);
		ck_assert_uint_eq(a.nonfinite_count, !i);
		ck_assert_uint_eq(a.rank_counted, 0);
	}
	rig_close(&rig);
}
END_TEST

START_TEST(all_who_wait_are_told_that_it_is_refused)
{
	uint64_t id[4];
	rig_begin(&rig, rig_small());
	send_with_repeats(id);
	if (_i)
		rig_send(&rig, (struct engine_command){ .op = ENGINE_CLOSE });
	else
		rig_send(&rig, (struct engine_command){ .op = ENGINE_FLUSH, .rank = 1, .sgen = 1 });
	for (int i = 0; i < 4; i++) {
		struct engine_answer a = answer_of(id[i]);
		ck_assert_uint_eq(a.status, _i ? ST_WINDOW_CLOSED : ST_FLUSHED);
		ck_assert_uint_eq(a.result, 0);
		ck_assert_str_eq(a.text,
				 _i ? "rank 1, window 0, micro-batch 0: the window closed without this micro-batch: "
				      "not counted"
				    : "rank 1, window 0, micro-batch 0: this rank has flushed the window");
		ck_assert_str_eq(a.hint, _i ? "go on with the next window" : "");
	}
	ck_assert(!progress_parked(row(1), &(struct progress_parked){ 0 }));
	rig_close(&rig);
}
END_TEST

/* ---- what it adds ---- */

START_TEST(the_plan_says_what_a_weight_is_worth)
{
	static const struct {
		enum reduction reduction;
		enum grad_of of;
		double worth;
	} rows[] = { { REDUCE_WEIGHTED_MEAN, GRAD_OF_MEAN, 4 },
		     { REDUCE_WEIGHTED_MEAN, GRAD_OF_SUM, 1 },
		     { REDUCE_MEAN, GRAD_OF_SUM, 0.25 } };
	struct rig_config config = rig_small();
	config.ranks = 1;
	rig_open(&rig, &config);
	rig.plan->reduction = rows[_i].reduction;
	rig.plan->grad_of = rows[_i].of;
	ck_assert_int_eq(pwrite(rig.plan_fd, rig.plan, rig.plan->bytes, 0), (ssize_t)rig.plan->bytes);
	rig_start(&rig);
	rig_attach_all(&rig);
	rig_set_gradient(&rig, 0, 0, 0, 8);
	ck_assert_uint_eq(rig_add(&rig, 0, 0, 4).result, COUNTED);
	ck_assert_double_eq(rig_sum(&rig, 1, 0, 0), 8 * rows[_i].worth);
	rig_read(&rig);
	ck_assert_double_eq(rig.state.r.sum_weight, 4);
	rig_close(&rig);
}
END_TEST

START_TEST(a_plan_of_other_numbers_is_refused)
{
	struct rig_config config = rig_small();
	char why[200];
	rig_open(&rig, &config);
	struct plan *p = rig.plan;
	const struct plan good = *p;
#define WRONG(change)                                                                                                  \
	do {                                                                                                           \
		*p = good;                                                                                             \
		change;                                                                                                \
		ck_assert_int_eq(plan_check(p, good.bytes, why, sizeof(why)), ST_INVALID_ARGUMENT);                    \
	} while (0)
	WRONG(p->slots_per_rank = 0);
	WRONG(p->slots_per_rank = 3);
	WRONG(p->reduction = 0);
	WRONG(p->reduction = REDUCE_FIXED + 1);
	WRONG(p->grad_of = 0);
	WRONG(p->grad_of = GRAD_OF_SUM + 1);
	WRONG(p->void_is_error = 1);
	WRONG(p->numbers_offset = good.bytes);
	WRONG(p->numbers_offset = good.bytes - 4); /* of two ranks */
	*p = good;
	ck_assert_int_eq(plan_check(p, good.bytes, why, sizeof(why)), ST_OK);
	p->numbers_offset = good.bytes - 8;
	ck_assert_int_eq(plan_check(p, good.bytes, why, sizeof(why)), ST_OK);
	*p = good;
	rig_close(&rig);
}
END_TEST

/* ---- progress ---- */

START_TEST(the_status_page_shows_who_waits)
{
	struct progress_parked p;
	struct engine_command c;
	rig_begin(&rig, rig_small());
	int64_t before = progress_clock();
	c = rig_add_command(&rig, 1, 0, 1);
	c.unix_nanos = 12345;
	uint64_t waits = rig_send(&rig, c);
	c.micro = 1;
	c.slot++;
	c.unix_nanos = 12346;
	uint64_t second = rig_send(&rig, c);
	rig_call(&rig, (struct engine_command){ .op = ENGINE_PING });
	ck_assert(progress_parked(row(1), &p));
	ck_assert(p.since_mono_ns >= before && p.since_mono_ns <= progress_clock());
	ck_assert(p.micro == 0 && p.blocked_by == 0);
	ck_assert_int_eq(row(1)->last_push_unix_ns, 12346);
	ck_assert(!progress_parked(row(0), &p) && !row(0)->last_push_unix_ns && !row(0)->ready_mono_ns);
	uint64_t first = rig_send(&rig, rig_add_command(&rig, 0, 0, 1));
	answer_of(first);
	struct engine_answer a = answer_of(waits);
	ck_assert(a.blocked_by == 0 && a.parked_ns > 0 && a.parked_ns <= progress_clock() - before);
	rig_call(&rig, (struct engine_command){ .op = ENGINE_PING });
	ck_assert(progress_parked(row(1), &p) && p.micro == 1 && p.blocked_by == 0);
	rig_call(&rig, (struct engine_command){ .op = ENGINE_ATTACH, .rank = 0, .sgen = 2 });
	c = (struct engine_command){ .op = ENGINE_ATTACH, .rank = 1, .sgen = 2 };
	rig_send(&rig, c);
	a = answer_of(second);
	ck_assert_uint_eq(a.status, ST_SESSION_FENCED);
	ck_assert_str_eq(a.text, "rank 1, window 0, micro-batch 1: a newer process has attached as this rank");
	ck_assert(rig_receive(&rig, &a));
	ck_assert(!progress_parked(row(1), &p));
	rig_close(&rig);
}
END_TEST

START_TEST(the_status_page_shows_who_has_given_all)
{
	struct rig_config config = rig_small();
	config.reject_nonfinite = true;
	rig_begin(&rig, config);
	rig_zero_params(&rig);
	rig_fill_all(&rig, 1, true);
	rig_set_gradient(&rig, 1, 0, 0, NAN);
	int64_t before = progress_clock();
	rig_add(&rig, 0, 0, 1);
	rig_add(&rig, 1, 0, 1);
	ck_assert(!row(0)->ready_mono_ns && !row(1)->ready_mono_ns);
	ck_assert_uint_eq(rig_add(&rig, 0, 1, 1).result, VOID);
	int64_t ready = row(0)->ready_mono_ns;
	ck_assert(ready >= before && ready <= progress_clock());
	ck_assert(!row(1)->ready_mono_ns);
	ck_assert_uint_eq(rig_flush(&rig, 1, false).status, ST_OK);
	ck_assert_int_ge(row(1)->ready_mono_ns, ready);
	rig_flush(&rig, 0, false);
	rig_kill(&rig);
	rig_start(&rig); /* knows it from its predecessor */
	ck_assert_int_eq(row(0)->ready_mono_ns, ready);
	ck_assert_uint_eq(rig_flush(&rig, 1, true).status, ST_OK); /* is no longer asked */
	ck_assert_int_eq(row(1)->ready_mono_ns, 0);
	rig_step(&rig, APPLIED, 1, 1);
	ck_assert(!row(0)->ready_mono_ns && !row(1)->ready_mono_ns);
	rig_call(&rig, (struct engine_command){ .op = ENGINE_ATTACH, .rank = 1, .sgen = 2 });
	ck_assert(row(1)->ready_mono_ns); /* from the next window on it is asked again */
	rig_close(&rig);
}
END_TEST

/* The predecessor's push died with it. */
START_TEST(a_successor_has_nothing_parked)
{
	struct progress_parked p;
	rig_begin(&rig, rig_small());
	rig_send(&rig, rig_add_command(&rig, 1, 0, 1));
	rig_call(&rig, (struct engine_command){ .op = ENGINE_PING });
	ck_assert(progress_parked(row(1), &p));
	rig_kill(&rig);
	ck_assert(progress_parked(row(1), &p));
	rig_start(&rig);
	ck_assert(!progress_parked(row(1), &p));
	rig_close(&rig);
}
END_TEST

/* ---- what was told ---- */

static void damage_newest(void)
{
	rig.page.base[(rig.state.r.seq & 1) * rig.page.record_bytes + 100] ^= 1;
}

static void expect_refused(const char *words)
{
	int fds[8 + 64];
	for (int i = 0; i < rig.n_segments; i++)
		fds[i] = rig.segment[i].fd;
	const struct engine_answer a = rig_start_with(&rig, fds, rig.n_segments);
	ck_assert_uint_eq(a.status, ST_SEGMENT_CORRUPT);
	ck_assert_msg(strstr(a.text, words), "%s", a.text);
	ck_assert_int_eq(rig_wait(&rig), ENGINE_EXIT_REFUSED);
}

START_TEST(no_engine_goes_on_without_what_was_told)
{
	rig_begin(&rig, rig_small());
	rig_read(&rig);
	ck_assert_uint_eq(progress()->told, rig.state.r.seq);
	uint64_t told = progress()->told;
	rig_add(&rig, 0, 0, 1);
	ck_assert_uint_gt(progress()->told, told);
	rig_kill(&rig);
	rig_read(&rig);
	told = progress()->told;
	ck_assert_uint_eq(told, rig.state.r.seq);
	damage_newest();
	expect_refused("(role 1) is damaged: its last valid record lacks what was acknowledged");
	ck_assert_uint_eq(progress()->told, told);
	expect_refused("lacks what was acknowledged"); /* trying again changes nothing */
	memset(rig.page.base, 0, 2 * rig.page.record_bytes);
	expect_refused("neither control record is valid");
	rig_close(&rig);
}
END_TEST

/* gaccd has read a record and raised it, too. */
START_TEST(an_engine_does_not_lower_what_is_told)
{
	rig_begin(&rig, rig_small());
	rig_read(&rig);
	const uint64_t raised = rig.state.r.seq + 3;
	progress_note_told(progress(), raised);
	rig_add(&rig, 0, 0, 1);
	rig_read(&rig);
	ck_assert_uint_lt(rig.state.r.seq, raised);
	ck_assert_uint_eq(progress()->told, raised);
	while (rig.state.r.seq <= raised) {
		rig_flush(&rig, 0, rig.state.r.seq % 2); /* a record each */
		rig_call(&rig, (struct engine_command){ .op = ENGINE_ATTACH, .rank = 1, .sgen = rig.state.r.seq });
		rig_read(&rig);
	}
	ck_assert_uint_eq(progress()->told, rig.state.r.seq);
	progress_note_told(progress(), 1);
	ck_assert_uint_eq(progress()->told, rig.state.r.seq);
	rig_close(&rig);
}
END_TEST

#define RAISES 200000

static void *raise_told(void *arg)
{
	struct status_progress *p = arg;
	for (uint64_t i = 1; i <= RAISES; i++) {
		progress_note_told(p, i);
		if (atomic_load(&p->told) < i)
			return arg;
	}
	return NULL;
}

START_TEST(two_processes_raise_what_is_told)
{
	struct status_progress p = { 0 };
	pthread_t thread[2];
	void *failed;
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(pthread_create(&thread[i], NULL, raise_told, &p), 0);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(pthread_join(thread[i], &failed), 0);
		ck_assert_ptr_null(failed);
	}
	ck_assert_uint_eq(p.told, RAISES);
}
END_TEST

/* It died between the record and the answer: nobody relies on that record. */
START_TEST(an_untold_record_may_be_lost)
{
	rig_begin(&rig, rig_small());
	rig_add(&rig, 0, 0, 1);
	rig_kill(&rig);
	rig_read(&rig);
	control_page_publish(&rig.page, &rig.state);
	damage_newest();
	rig_start(&rig);
	ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, DUPLICATE);
	rig_close(&rig);
}
END_TEST

Suite *push_suite(void)
{
	Suite *s = suite_create("push");
	TCase *t = tcase_create("push");
	tcase_set_timeout(t, 60);
	tcase_add_test(t, repeats_of_a_parked_push_are_answered_with_it);
	tcase_add_test(t, repeats_of_a_void_push_are_void);
	tcase_add_loop_test(t, all_who_wait_are_told_that_it_is_refused, 0, 2);
	tcase_add_loop_test(t, the_plan_says_what_a_weight_is_worth, 0, 3);
	tcase_add_test(t, a_plan_of_other_numbers_is_refused);
	tcase_add_test(t, the_status_page_shows_who_waits);
	tcase_add_test(t, the_status_page_shows_who_has_given_all);
	tcase_add_test(t, a_successor_has_nothing_parked);
	tcase_add_test(t, no_engine_goes_on_without_what_was_told);
	tcase_add_test(t, an_engine_does_not_lower_what_is_told);
	tcase_add_test(t, two_processes_raise_what_is_told);
	tcase_add_test(t, an_untold_record_may_be_lost);
	suite_add_tcase(s, t);
	return s;
}
