/* SPDX-License-Identifier: Apache-2.0 */
/* The journal's thread: order, errors of one record, and what becomes of callbacks when gaccd ends. */
#include "runtime/persist.h"

#include "support/scratch.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

static char dir[SCRATCH_PATH], path[96];
static uv_loop_t loop;
static struct journal *journal;
static struct persist *persist;

static void setup(void)
{
	uint64_t term;
	ck_assert(scratch_make(dir));
	snprintf(path, sizeof(path), "%s/journal.sqlite", dir);
	ck_assert_int_eq(uv_loop_init(&loop), 0);
	ck_assert_int_eq(journal_open(path, &journal), ST_OK);
	ck_assert_int_eq(journal_take_term(journal, &term), ST_OK);
	ck_assert_int_eq(persist_new(&loop, journal, term, &persist), ST_OK);
}

static void teardown(void)
{
	persist_free(persist);
	journal_close(journal);
	ck_assert_int_eq(uv_loop_close(&loop), 0);
}

static struct journal_record job(uint64_t id)
{
	struct journal_record r = { .kind = JOURNAL_JOB, .job = { .id = id, .user = "ana", .spec = { "spec", 4 } } };
	memcpy(r.job.request_id, &id, sizeof(id));
	return r;
}

static struct journal_record params(uint64_t id)
{
	return (struct journal_record){ .kind = JOURNAL_PARAMS_READY, .params_ready = { id } };
}

static enum status heard[8];
static int n_heard;

static void hear(void *arg, enum status st)
{
	ck_assert_int_eq(*(int *)arg, n_heard);
	heard[n_heard++] = st;
}

static void *number(int i)
{
	int *n = malloc(sizeof(*n));
	*n = i;
	return n;
}

static void put(int i, struct journal_record r)
{
	ck_assert_int_eq(persist_put_own(persist, &r, hear, number(i)), ST_OK);
}

/* The first is under way when the others come, which are one batch: the bad one does not take the good ones with it. */
START_TEST(callbacks_come_in_order_with_their_own_outcome)
{
	n_heard = 0;
	put(0, job(1));
	put(1, job(2));
	put(2, params(77));
	put(3, params(2));
	uv_run(&loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(n_heard, 4);
	ck_assert(heard[0] == ST_OK && heard[1] == ST_OK && heard[2] == ST_JOB_NOT_FOUND && heard[3] == ST_OK);
}
END_TEST

static enum status count_job(void *arg, const struct journal_job *j)
{
	(*(int *)arg)++;
	return ST_OK;
}

/* Under way, queued, and put afterwards: nobody hears, no argument is lost (LeakSanitizer), all is written. */
/* A reader of a job's state, which it has in its own. */
struct look {
	struct persist_read read; /* first */
	enum status found;
	bool ready;
	int order;
	bool muted;
};
static int n_done;

static enum status see(void *arg, const struct journal_job *b)
{
	((struct look *)arg)->ready = b->params_ready;
	return ST_OK;
}

static void look(struct persist_read *r, struct journal *j)
{
	((struct look *)r)->found = journal_read_job(j, 1, see, r);
}

static void looked(struct persist_read *r, bool muted)
{
	struct look *l = (struct look *)r;
	l->order = ++n_done;
	l->muted = muted;
}

START_TEST(reads_see_what_was_put_before)
{
	struct look a = { .read = { .read = look, .done = looked } }, b = a, c = a;
	n_heard = n_done = 0;
	persist_read(persist, &a.read);
	put(0, job(1));
	persist_read(persist, &b.read);
	put(1, params(1));
	persist_read(persist, &c.read);
	uv_run(&loop, UV_RUN_DEFAULT);
	ck_assert(n_heard == 2 && a.order == 1 && b.order == 2 && c.order == 3);
	ck_assert_int_eq(a.found, ST_JOB_NOT_FOUND);
	ck_assert(!b.found && !c.found && c.ready && !c.muted);
}
END_TEST

START_TEST(reads_come_back_from_a_muted_queue)
{
	struct look a = { .read = { .read = look, .done = looked } }, b = a;
	n_done = 0;
	persist_read(persist, &a.read);
	persist_mute(persist);
	persist_read(persist, &b.read);
	persist_free(persist);
	persist = NULL;
	ck_assert(n_done == 2 && a.muted && b.muted);
}
END_TEST

START_TEST(a_muted_queue_writes_and_frees_what_it_was_given)
{
	int n = 0;
	n_heard = 0;
	put(0, job(1));
	put(1, job(2));
	persist_mute(persist);
	put(2, job(3));
	persist_free(persist);
	persist = NULL;
	ck_assert_int_eq(n_heard, 0);
	ck_assert_int_eq(journal_each_job(journal, true, count_job, &n), ST_OK);
	ck_assert_int_eq(n, 3);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("persist");
	TCase *c = tcase_create("persist");
	suite_add_tcase(s, c);
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, callbacks_come_in_order_with_their_own_outcome);
	tcase_add_test(c, reads_see_what_was_put_before);
	tcase_add_test(c, reads_come_back_from_a_muted_queue);
	tcase_add_test(c, a_muted_queue_writes_and_frees_what_it_was_given);
	return suite_run(s);
}
