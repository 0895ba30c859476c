/* SPDX-License-Identifier: Apache-2.0 */
#include "journal_rig.h"

#include "support/scratch.h"

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

char journal_path[96];
static char dir[SCRATCH_PATH];

void journal_setup(void)
{
	ck_assert(scratch_make(dir));
	snprintf(journal_path, sizeof(journal_path), "%s/journal", dir);
}

void journal_remove_files(void)
{
	static const char *const names[] = { "", "-wal", "-shm", "-journal", ".anchor" };
	char file[128];
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		snprintf(file, sizeof(file), "%s%s", journal_path, names[i]);
		unlink(file);
	}
}

void journal_remove_anchor(void)
{
	char file[128];
	snprintf(file, sizeof(file), "%s.anchor", journal_path);
	unlink(file);
}

void journal_teardown(void)
{
	journal_remove_files();
	rmdir(dir);
}

struct journal *open_ok(void)
{
	struct journal *j = NULL;
	ck_assert_int_eq(journal_open(journal_path, &j), ST_OK);
	return j;
}

uint64_t term_of(struct journal *j)
{
	uint64_t term = 0;
	ck_assert_int_eq(journal_take_term(j, &term), ST_OK);
	return term;
}

struct journal_record job(uint64_t id)
{
	struct journal_record r = { .kind = JOURNAL_JOB };
	r.job = (struct journal_job){
		.id = id, .uid = 1000, .user = "ana", .created_unix_ns = 5, .spec = { "spec", 4 }
	};
	memset(r.job.uuid, (int)id, 16);
	memset(r.job.request_id, (int)id + 100, 16);
	return r;
}

/* The payload of a window tells its number, so that a mix-up shows. */
struct journal_record commit(uint64_t id, uint64_t epoch, uint64_t window, uint64_t term)
{
	static uint64_t payload[64];
	uint64_t *at = &payload[window % 64];
	*at = window * 1000003;
	struct journal_record r = { .kind = JOURNAL_COMMIT };
	r.commit = (struct journal_window){ id,		epoch, window, window + 1,	   term,
					    window + 7, 1,     1234,   { at, sizeof(*at) } };
	return r;
}

struct journal_record end(uint64_t id)
{
	struct journal_record r = { .kind = JOURNAL_END };
	r.end.job = id;
	r.end.state = 7;
	r.end.reason = "steps reached";
	r.end.unix_ns = 99;
	return r;
}

enum status write1(struct journal *j, uint64_t term, struct journal_record r)
{
	return journal_commit(j, term, &r, 1);
}

static enum status see_window(void *arg, const struct journal_window *w)
{
	struct seen_windows *s = arg;
	ck_assert_msg(s->n == 0 || w->window == s->last + 1, "window %d follows %d", (int)w->window, (int)s->last);
	if (s->n++ == 0)
		s->first = w->window;
	s->last = w->window;
	ck_assert_uint_eq(w->applied_step, w->window + 1);
	ck_assert_uint_eq(w->attempt, w->window + 7);
	ck_assert_uint_eq(w->outcome, 1);
	ck_assert_int_eq(w->unix_ns, 1234);
	if (w->payload.n) {
		uint64_t want = w->window * 1000003;
		ck_assert_uint_eq(w->payload.n, sizeof(want));
		ck_assert_mem_eq(w->payload.data, &want, sizeof(want));
		s->with_payload++;
	}
	return ST_OK;
}

struct seen_windows windows(struct journal *j, uint64_t id, uint64_t last)
{
	struct seen_windows s = { 0 };
	ck_assert_int_eq(journal_each_window(j, id, last, see_window, &s), ST_OK);
	return s;
}

enum status copy_job(void *arg, const struct journal_job *b)
{
	struct journal_job *jobs = arg; /* [0].id counts */
	ck_assert_uint_lt(jobs[0].id, 7);
	jobs[++jobs[0].id] = *b;
	return ST_OK;
}

enum status check_hold(void *arg, const struct journal_job *b)
{
	const char *want = arg;
	if (b->id == 1 && want)
		ck_assert_str_eq(b->hold_reason, want);
	else
		ck_assert_ptr_null(b->hold_reason);
	return ST_OK;
}

struct journal_record hold(uint64_t id, const char *reason)
{
	struct journal_record r = { .kind = JOURNAL_HOLD };
	r.hold.job = id;
	r.hold.reason = reason;
	return r;
}
