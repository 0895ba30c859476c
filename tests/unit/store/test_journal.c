/* SPDX-License-Identifier: Apache-2.0 */
/* What is written is read back, and what does not fit is refused. */
#include "journal_rig.h"

#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

START_TEST(a_job_reads_as_written)
{
	struct journal *j = open_ok();
	uint64_t term = term_of(j);
	struct journal_record r[2] = { job(3), { .kind = JOURNAL_TENSORS } };
	r[1].tensors.job = 3;
	r[1].tensors.set = (struct journal_bytes){ "tensors\0x", 9 };
	ck_assert_int_eq(journal_commit(j, term, r, 2), ST_OK);
	struct journal_record ready = { .kind = JOURNAL_PARAMS_READY };
	ready.params_ready.job = 3;
	ck_assert_int_eq(write1(j, term, ready), ST_OK);
	journal_close(j);

	j = open_ok();
	struct journal_job b[8] = { { 0 } };
	ck_assert_int_eq(journal_each_job(j, false, copy_job, b), ST_OK);
	ck_assert_uint_eq(b[0].id, 1);
	ck_assert_uint_eq(b[1].id, 3);
	ck_assert_uint_eq(b[1].uid, 1000);
	ck_assert_mem_eq(b[1].uuid, r[0].job.uuid, 16);
	ck_assert_mem_eq(b[1].request_id, r[0].job.request_id, 16);
	ck_assert_int_eq(b[1].created_unix_ns, 5);
	ck_assert_uint_eq(b[1].spec.n, 4);
	ck_assert_uint_eq(b[1].tensors.n, 9);
	ck_assert(b[1].params_ready && !b[1].ended);
	ck_assert_uint_eq(b[1].epoch, 1);
	ck_assert_uint_eq(b[1].next_window, 0);
	journal_close(j);
}
END_TEST

static enum status check_texts(void *arg, const struct journal_job *b)
{
	*(int *)arg += 1;
	ck_assert_str_eq(b->user, "ana");
	ck_assert_mem_eq(b->spec.data, "spec", 4);
	ck_assert_str_eq(b->end_reason, b->ended ? "steps reached" : "");
	return b->id == 2 ? ST_CANCELLED : ST_OK;
}

START_TEST(ended_jobs_are_listed_only_on_request)
{
	struct journal *j = open_ok();
	uint64_t term = term_of(j);
	struct journal_record r[] = { job(1), job(2), job(3), end(1) };
	ck_assert_int_eq(journal_commit(j, term, r, 4), ST_OK);
	struct journal_job live[8] = { { 0 } }, all[8] = { { 0 } };
	ck_assert_int_eq(journal_each_job(j, false, copy_job, live), ST_OK);
	ck_assert_int_eq(journal_each_job(j, true, copy_job, all), ST_OK);
	ck_assert_uint_eq(live[0].id, 2);
	ck_assert_uint_eq(live[1].id, 2);
	ck_assert_uint_eq(all[0].id, 3);
	ck_assert(all[1].ended);
	ck_assert_uint_eq(all[1].end_state, 7);
	ck_assert_int_eq(all[1].ended_unix_ns, 99);
	int calls = 0;
	ck_assert_int_eq(journal_each_job(j, true, check_texts, &calls), ST_CANCELLED);
	ck_assert_int_eq(calls, 2);
	journal_close(j);
}
END_TEST

START_TEST(counters_grow_over_restarts)
{
	uint64_t a = 0, b = 0, id = 9;
	struct journal *j = open_ok();
	ck_assert_int_eq(journal_take_incarnation(j, &a), ST_OK);
	ck_assert_uint_eq(term_of(j), 1);
	ck_assert_int_eq(journal_last_job(j, &id), ST_OK);
	ck_assert_uint_eq(id, 0);
	ck_assert_int_eq(write1(j, 1, job(41)), ST_OK);
	ck_assert_int_eq(write1(j, 1, job(7)), ST_OK);
	journal_close(j);
	j = open_ok();
	ck_assert_int_eq(journal_take_incarnation(j, &b), ST_OK);
	ck_assert_uint_eq(b, a + 1);
	ck_assert_uint_eq(term_of(j), 2);
	ck_assert_int_eq(journal_last_job(j, &id), ST_OK);
	ck_assert_uint_eq(id, 41);
	journal_close(j);
}
END_TEST

START_TEST(an_old_coordinator_writes_nothing)
{
	struct journal *j = open_ok();
	uint64_t old = term_of(j), now = term_of(j);
	ck_assert_int_eq(write1(j, old, job(1)), ST_STALE_TERM);
	ck_assert_int_eq(write1(j, now + 1, job(1)), ST_STALE_TERM);
	ck_assert_int_eq(write1(j, now, job(1)), ST_OK);
	ck_assert_int_eq(write1(j, old, commit(1, 1, 0, old)), ST_STALE_TERM);
	ck_assert_int_eq(write1(j, now, commit(1, 1, 0, old)), ST_INVALID_ARGUMENT);
	ck_assert_uint_eq(windows(j, 1, 10).n, 0);
	journal_close(j);
}
END_TEST

START_TEST(a_batch_is_all_or_nothing)
{
	struct journal *j = open_ok();
	uint64_t term = term_of(j);
	struct journal_record r[] = { job(1), commit(1, 1, 0, 1), commit(1, 1, 2, 1) /* not the next */ };
	ck_assert_int_eq(journal_commit(j, term, r, 3), ST_INVALID_ARGUMENT);
	struct journal_job b[8] = { { 0 } };
	ck_assert_int_eq(journal_each_job(j, true, copy_job, b), ST_OK);
	ck_assert_uint_eq(b[0].id, 0);
	ck_assert_int_eq(journal_commit(j, term, r, 2), ST_OK); /* and the journal still works */
	ck_assert_uint_eq(windows(j, 1, 10).n, 1);
	journal_close(j);
}
END_TEST

START_TEST(wrong_records_are_refused)
{
	struct journal *j = open_ok();
	uint64_t term = term_of(j);
	ck_assert_int_eq(write1(j, term, job(1)), ST_OK);
	struct journal_record same_request = job(2);
	memcpy(same_request.job.request_id, job(1).job.request_id, 16);
	ck_assert_int_eq(write1(j, term, same_request), ST_ALREADY_EXISTS);
	struct journal_record of_another_user = same_request;
	of_another_user.job.uid++;
	ck_assert_int_eq(write1(j, term, of_another_user), ST_OK);
	ck_assert_int_eq(write1(j, term, job(1)), ST_ALREADY_EXISTS);
	ck_assert_int_eq(write1(j, term, job(0)), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(write1(j, term, commit(5, 1, 0, term)), ST_JOB_NOT_FOUND);
	ck_assert_int_eq(write1(j, term, commit(1, 2, 0, term)), ST_STALE_EPOCH);
	ck_assert_int_eq(write1(j, term, commit(1, 1, 1, term)), ST_INVALID_ARGUMENT);
	struct journal_record big = commit(1, 1, 0, term);
	big.commit.payload.n = JOURNAL_MAX_BYTES + 1;
	ck_assert_int_eq(write1(j, term, big), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(write1(j, term, end(1)), ST_OK);
	ck_assert_int_eq(write1(j, term, end(1)), ST_JOB_ENDED);
	ck_assert_int_eq(write1(j, term, commit(1, 1, 0, term)), ST_JOB_ENDED);
	journal_close(j);
}
END_TEST

START_TEST(payloads_of_old_windows_go_and_history_stays)
{
	struct journal *j = open_ok();
	uint64_t term = term_of(j);
	ck_assert_int_eq(write1(j, term, job(1)), ST_OK);
	for (uint64_t w = 0; w < 40; w++)
		ck_assert_int_eq(write1(j, term, commit(1, 1, w, term)), ST_OK);
	struct seen_windows all = windows(j, 1, UINT64_MAX), some = windows(j, 1, 5);
	ck_assert_uint_eq(all.n, 40);
	ck_assert_uint_eq(all.with_payload, JOURNAL_KEEP_PAYLOADS);
	ck_assert_uint_eq(some.n, 5);
	ck_assert_uint_eq(some.first, 35);
	ck_assert_uint_eq(some.with_payload, 5);
	journal_close(j);
}
END_TEST

START_TEST(an_ended_job_is_forgotten_in_parts)
{
	struct journal *j = open_ok();
	uint64_t term = term_of(j), n = JOURNAL_FORGET_WINDOWS + 10;
	struct journal_record forget = { .kind = JOURNAL_FORGET, .forget = { 1 } };
	ck_assert_int_eq(write1(j, term, job(1)), ST_OK);
	ck_assert_int_eq(write1(j, term, job(2)), ST_OK);
	for (uint64_t w = 0; w < n; w += 64) {
		struct journal_record r[64];
		uint64_t i = 0;
		for (; i < 64 && w + i < n; i++)
			r[i] = commit(1, 1, w + i, term);
		ck_assert_int_eq(journal_commit(j, term, r, i), ST_OK);
	}
	ck_assert_int_eq(write1(j, term, commit(2, 1, 0, term)), ST_OK);
	ck_assert_int_eq(write1(j, term, forget), ST_NOT_READY);
	ck_assert_int_eq(write1(j, term, end(1)), ST_OK);
	ck_assert_int_eq(write1(j, term, forget), ST_OK);
	ck_assert_uint_eq(windows(j, 1, UINT64_MAX).n, 10);
	ck_assert_int_eq(write1(j, term, forget), ST_OK);
	ck_assert_int_eq(write1(j, term, forget), ST_JOB_NOT_FOUND);
	struct journal_job b[8] = { { 0 } };
	ck_assert_int_eq(journal_each_job(j, true, copy_job, b), ST_OK);
	ck_assert_uint_eq(b[0].id, 1);
	ck_assert_uint_eq(b[1].id, 2);
	ck_assert_uint_eq(windows(j, 2, 10).n, 1);
	uint64_t last;
	ck_assert_int_eq(journal_last_job(j, &last), ST_OK);
	ck_assert_uint_eq(last, 2);
	journal_close(j);
}
END_TEST

START_TEST(a_payload_may_be_megabytes)
{
	struct journal *j = open_ok();
	uint64_t term = term_of(j);
	struct journal_record r[2] = { job(1), { .kind = JOURNAL_TENSORS } };
	r[1].tensors.job = 1;
	char *data = malloc(24 << 20);
	memset(data, 7, 24 << 20);
	r[1].tensors.set = (struct journal_bytes){ data, 24 << 20 };
	for (int i = 0; i < 2; i++) /* longer than CHECKPOINT_PAGES: the log is written back between */
		ck_assert_int_eq(journal_commit(j, term, &r[i], 1), ST_OK);
	struct journal_job b[8] = { { 0 } };
	ck_assert_int_eq(journal_each_job(j, false, copy_job, b), ST_OK);
	ck_assert_uint_eq(b[1].tensors.n, 24 << 20);
	struct stat st;
	ck_assert_int_eq(stat(journal_path, &st), 0);
	ck_assert_int_gt(st.st_size, 24 << 20);
	free(data);
	journal_close(j);
}
END_TEST

static enum status see_update(void *arg, const struct journal_update *u)
{
	uint64_t *n = arg;
	ck_assert_uint_eq(u->job, 1);
	ck_assert_uint_eq(u->window, 10 - *n); /* in the order of writing, not of windows */
	ck_assert_uint_eq(u->payload.n, 2);
	ck_assert_mem_eq(u->payload.data, *n ? "b" : "a", 2);
	++*n;
	return ST_OK;
}

START_TEST(holds_and_updates_read_as_written)
{
	struct journal *j = open_ok();
	uint64_t term = term_of(j), n = 0;
	struct journal_record r[] = { job(1),
				      job(2),
				      hold(1, "by ana"),
				      { .kind = JOURNAL_UPDATE },
				      { .kind = JOURNAL_UPDATE },
				      { .kind = JOURNAL_UPDATE } };
	r[3].update = (struct journal_update){ 1, 10, { "a", 2 } };
	r[4].update = (struct journal_update){ 2, 3, { "of another job", 4 } };
	r[5].update = (struct journal_update){ 1, 9, { "b", 2 } };
	ck_assert_int_eq(journal_commit(j, term, r, 6), ST_OK);
	journal_close(j);
	j = open_ok();
	term = term_of(j);
	ck_assert_int_eq(journal_each_job(j, false, check_hold, (void *)"by ana"), ST_OK);
	ck_assert_int_eq(journal_each_update(j, 1, see_update, &n), ST_OK);
	ck_assert_uint_eq(n, 2);
	ck_assert_int_eq(write1(j, term, hold(1, NULL)), ST_OK);
	ck_assert_int_eq(journal_each_job(j, false, check_hold, NULL), ST_OK);
	ck_assert_int_eq(write1(j, term, hold(5, "x")), ST_JOB_NOT_FOUND);
	r[3].update.payload.n = JOURNAL_MAX_BYTES + 1;
	ck_assert_int_eq(write1(j, term, r[3]), ST_INVALID_ARGUMENT);
	journal_close(j);
}
END_TEST

struct seen_checkpoints {
	int n;
	struct journal_checkpoint last;
	char path[32];
};

static enum status see_checkpoint(void *arg, const struct journal_checkpoint *k)
{
	struct seen_checkpoints *s = arg;
	s->n++;
	s->last = *k;
	snprintf(s->path, sizeof(s->path), "%s", k->path);
	ck_assert(k->sha256.n == 32 && ((const uint8_t *)k->sha256.data)[31] == 9);
	return ST_OK;
}

START_TEST(checkpoints_come_and_go)
{
	uint8_t sum[32] = { [31] = 9 };
	struct journal *j = open_ok();
	uint64_t term = term_of(j);
	struct seen_checkpoints seen = { 0 };
	struct journal_record r[] = { job(1), { .kind = JOURNAL_CHECKPOINT }, { .kind = JOURNAL_CHECKPOINT } };
	for (int i = 1; i < 3; i++)
		r[i].checkpoint = (struct journal_checkpoint){ .job = 1,
							       .id = (uint64_t)i,
							       .path = i == 1 ? "/a" : "/b",
							       .sha256 = { sum, 32 },
							       .window = 5,
							       .applied_step = 4,
							       .carried = 3,
							       .bytes = 2,
							       .started_unix_ns = 1,
							       .ended_unix_ns = 6,
							       .request_id = { 7 } };
	ck_assert_int_eq(journal_commit(j, term, r, 3), ST_OK);
	ck_assert_int_eq(journal_commit(j, term, &r[1], 1), ST_ALREADY_EXISTS);
	ck_assert_int_eq(journal_each_checkpoint(j, 1, see_checkpoint, &seen), ST_OK);
	ck_assert(seen.n == 2 && seen.last.id == 2 && seen.last.window == 5 && seen.last.applied_step == 4 &&
		  seen.last.carried == 3 && seen.last.bytes == 2 && seen.last.started_unix_ns == 1 &&
		  seen.last.ended_unix_ns == 6 && seen.last.request_id[0] == 7);
	ck_assert_str_eq(seen.path, "/b");
	struct journal_record gone = { .kind = JOURNAL_CHECKPOINT_GONE, .gone = { 1, 2 } };
	ck_assert_int_eq(journal_commit(j, term, &gone, 1), ST_OK);
	seen.n = 0;
	ck_assert_int_eq(journal_each_checkpoint(j, 1, see_checkpoint, &seen), ST_OK);
	ck_assert(seen.n == 1 && seen.last.id == 1);
	journal_close(j);
}
END_TEST

static enum status see_base(void *arg, const struct journal_job *b)
{
	ck_assert_uint_eq(b->next_window, 7);
	ck_assert(b->base.n == 4 && !memcmp(b->base.data, "base", 4));
	return ST_OK;
}

START_TEST(a_job_may_begin_with_a_later_window)
{
	struct journal *j = open_ok();
	uint64_t term = term_of(j);
	struct journal_record r[] = { job(1), { .kind = JOURNAL_RESTORED, .restored = { 1, 7, { "base", 4 } } } };
	struct journal_record first = { .kind = JOURNAL_COMMIT, .commit = { .job = 1, .epoch = 1, .term = term } };
	ck_assert_int_eq(journal_commit(j, term, r, 2), ST_OK);
	ck_assert_int_eq(journal_each_job(j, true, see_base, NULL), ST_OK);
	ck_assert_int_eq(journal_commit(j, term, &first, 1), ST_INVALID_ARGUMENT);
	first.commit.window = 7;
	ck_assert_int_eq(journal_commit(j, term, &first, 1), ST_OK);
	/* windows are counted from there now */
	ck_assert_int_eq(journal_commit(j, term, &r[1], 1), ST_INVALID_ARGUMENT);
	journal_close(j);
}
END_TEST

struct wanted_job {
	const char *spec, *view;
	int calls;
};

static enum status see_view(void *arg, const struct journal_job *b)
{
	struct wanted_job *w = arg;
	ck_assert_uint_eq(b->spec.n, strlen(w->spec));
	ck_assert_uint_eq(b->view.n, strlen(w->view));
	ck_assert(!b->view.n || !memcmp(b->view.data, w->view, b->view.n));
	w->calls++;
	return ST_OK;
}

START_TEST(a_view_takes_the_place_of_the_spec_in_the_list)
{
	struct journal *j = open_ok();
	uint64_t term = term_of(j);
	struct journal_record end1 = { .kind = JOURNAL_END, .end = { 1, 8, "rank 0", 99, { "first", 5 } } },
			      end2 = end(2);
	struct journal_record view = { .kind = JOURNAL_VIEW, .view = { 1, { "second", 6 } } };
	struct wanted_job bare = { "spec", "", 0 }, first = { "", "first", 0 }, whole = { "spec", "second", 0 };
	ck_assert_int_eq(write1(j, term, view), ST_JOB_NOT_FOUND);
	ck_assert_int_eq(write1(j, term, job(1)), ST_OK);
	ck_assert_int_eq(journal_each_job(j, true, see_view, &bare), ST_OK);
	ck_assert_int_eq(write1(j, term, end1), ST_OK);
	ck_assert_int_eq(journal_each_job(j, true, see_view, &first), ST_OK);
	ck_assert_int_eq(write1(j, term, view), ST_OK);
	ck_assert_int_eq(journal_read_job(j, 1, see_view, &whole), ST_OK);
	view.view.view.n = JOURNAL_MAX_BYTES + 1;
	ck_assert_int_eq(write1(j, term, view), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(write1(j, term, job(2)), ST_OK);
	end1.end.job = 2;
	end1.end.view.n = JOURNAL_MAX_BYTES + 1;
	ck_assert_int_eq(write1(j, term, end1), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(write1(j, term, end2), ST_OK); /* one without */
	ck_assert_int_eq(journal_read_job(j, 2, see_view, &bare), ST_OK);
	ck_assert_int_eq(journal_read_job(j, 3, see_view, &bare), ST_JOB_NOT_FOUND);
	ck_assert(bare.calls == 2 && first.calls == 1 && whole.calls == 1);
	struct journal_record forget = { .kind = JOURNAL_FORGET, .forget = { 1 } };
	ck_assert_int_eq(write1(j, term, forget), ST_OK);
	ck_assert_int_eq(journal_read_job(j, 1, see_view, &whole), ST_JOB_NOT_FOUND);
	ck_assert_int_eq(write1(j, term, job(1)), ST_OK); /* nothing is left of it */
	journal_close(j);
}
END_TEST

static enum status see_exits(void *arg, const struct journal_job *b)
{
	const char *want = arg;
	ck_assert(b->exits.n == strlen(want) && (!b->exits.n || !memcmp(b->exits.data, want, b->exits.n)));
	return ST_OK;
}

START_TEST(exits_may_come_after_the_end)
{
	struct journal *j = open_ok();
	uint64_t term = term_of(j);
	struct journal_record exits = { .kind = JOURNAL_EXITS, .exits = { 1, { "first", 5 } } };
	struct journal_record end = { .kind = JOURNAL_END,
				      .end = { .job = 1, .state = 8, .reason = "rank 0", .unix_ns = 99 } };
	ck_assert_int_eq(write1(j, term, exits), ST_JOB_NOT_FOUND);
	ck_assert_int_eq(write1(j, term, job(1)), ST_OK);
	ck_assert_int_eq(journal_each_job(j, true, see_exits, (void *)""), ST_OK);
	ck_assert_int_eq(write1(j, term, exits), ST_OK);
	ck_assert_int_eq(write1(j, term, end), ST_OK);
	ck_assert_int_eq(journal_each_job(j, true, see_exits, (void *)"first"), ST_OK);
	exits.exits.exits = (struct journal_bytes){ "last", 4 };
	ck_assert_int_eq(write1(j, term, exits), ST_OK);
	ck_assert_int_eq(write1(j, term, end), ST_JOB_ENDED);
	ck_assert_int_eq(journal_each_job(j, true, see_exits, (void *)"last"), ST_OK);
	exits.exits.exits.n = JOURNAL_MAX_BYTES + 1;
	ck_assert_int_eq(write1(j, term, exits), ST_INVALID_ARGUMENT);
	journal_close(j);
}
END_TEST

START_TEST(an_epoch_voids_the_windows_after_its_base)
{
	struct journal *j = open_ok();
	uint64_t term = term_of(j);
	ck_assert_int_eq(write1(j, term, job(1)), ST_OK);
	for (uint64_t w = 0; w < 6; w++)
		ck_assert_int_eq(write1(j, term, commit(1, 1, w, term)), ST_OK);
	struct journal_record bump = { .kind = JOURNAL_EPOCH };
	bump.epoch.job = 1;
	bump.epoch.epoch = 2;
	bump.epoch.base_window = 7;
	bump.epoch.reason = "node lost";
	ck_assert_int_eq(write1(j, term, bump), ST_INVALID_ARGUMENT); /* not committed yet */
	bump.epoch.base_window = 4;
	ck_assert_int_eq(write1(j, term, bump), ST_OK);
	ck_assert_int_eq(write1(j, term, bump), ST_STALE_EPOCH);
	ck_assert_uint_eq(windows(j, 1, 100).n, 4);
	ck_assert_int_eq(write1(j, term, commit(1, 1, 4, term)), ST_STALE_EPOCH);
	ck_assert_int_eq(write1(j, term, commit(1, 2, 4, term)), ST_OK);
	ck_assert_uint_eq(windows(j, 1, 100).with_payload, 5);
	struct journal_job b[8] = { { 0 } };
	ck_assert_int_eq(journal_each_job(j, false, copy_job, b), ST_OK);
	ck_assert_uint_eq(b[1].epoch, 2);
	ck_assert_uint_eq(b[1].next_window, 5);
	journal_close(j);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("journal");
	TCase *c = tcase_create("journal");
	tcase_add_checked_fixture(c, journal_setup, journal_teardown);
	tcase_set_timeout(c, 60);
	suite_add_tcase(s, c);
	tcase_add_test(c, a_job_reads_as_written);
	tcase_add_test(c, exits_may_come_after_the_end);
	tcase_add_test(c, a_view_takes_the_place_of_the_spec_in_the_list);
	tcase_add_test(c, ended_jobs_are_listed_only_on_request);
	tcase_add_test(c, counters_grow_over_restarts);
	tcase_add_test(c, an_old_coordinator_writes_nothing);
	tcase_add_test(c, a_batch_is_all_or_nothing);
	tcase_add_test(c, wrong_records_are_refused);
	tcase_add_test(c, payloads_of_old_windows_go_and_history_stays);
	tcase_add_test(c, an_ended_job_is_forgotten_in_parts);
	tcase_add_test(c, a_payload_may_be_megabytes);
	tcase_add_test(c, holds_and_updates_read_as_written);
	tcase_add_test(c, checkpoints_come_and_go);
	tcase_add_test(c, a_job_may_begin_with_a_later_window);
	tcase_add_test(c, an_epoch_voids_the_windows_after_its_base);
	return suite_run(s);
}
