/* SPDX-License-Identifier: Apache-2.0 */
/* What is counted in state_dir, and whose it is. */
#include "runtime/state_scan.h"

#include "support/scratch.h"
#include "support/suite.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX 40	    /* files of a user that are counted */
#define OTHER 12345 /* another user, where we may make files of him */

static char dir[SCRATCH_PATH];

static void setup(void)
{
	ck_assert(scratch_make(dir));
}

/* A folder of the state_dir, relative to it. */
static void make_dir(const char *name, uint32_t uid)
{
	char path[200];
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	ck_assert_int_eq(mkdir(path, 0700), 0);
	ck_assert(uid == geteuid() || !chown(path, uid, uid));
}

/* n files of one block each. */
static void make_files(const char *name, int n, uint32_t uid)
{
	char path[200];
	for (int i = 0; i < n; i++) {
		snprintf(path, sizeof(path), "%s/%s/%d", dir, name, i);
		FILE *f = fopen(path, "w");
		ck_assert(f && fprintf(f, "%5000d", i) == 5000 && !fclose(f));
		ck_assert(uid == geteuid() || !chown(path, uid, uid));
	}
}

static struct state_user found(const struct state_scan *s, uint32_t uid)
{
	for (size_t i = 0; i < s->n_users; i++)
		if (s->user[i].uid == uid)
			return s->user[i];
	return (struct state_user){ 0 };
}

static uint32_t other(void)
{
	return geteuid() ? geteuid() : OTHER;
}

/* Thousands of files of one user hide no bytes of another, whichever folder is looked at first. */
START_TEST(too_many_files_of_a_user_hide_nobody_elses)
{
	struct state_scan s = { .state_dir = dir, .max_entries = MAX, .first_new = 100 };
	char name[40];
	make_dir("logs", geteuid());
	make_dir("checkpoints", geteuid());
	for (int i = 1; i <= 6; i++) { /* every second one of the user who has too many */
		snprintf(name, sizeof(name), "checkpoints/%d", i);
		make_dir(name, i % 2 ? other() : geteuid());
		make_files(name, i % 2 ? MAX : 4, i % 2 ? other() : geteuid());
	}
	state_scan_run(&s);
	struct state_user theirs = found(&s, other());
	ck_assert(theirs.cut && theirs.n_entries == MAX);
	if (!geteuid()) {
		struct state_user ours = found(&s, 0);
		ck_assert(!ours.cut);
		ck_assert_uint_eq(ours.n_entries, 12);
		ck_assert_uint_ge(ours.checkpoints, 12 * 5000);
	}
	state_scan_fini(&s);
}
END_TEST

static const uint64_t ids[] = { 10, 9, 7, 3 };
enum { IDS = 4 };

/* A node is not told which jobs its coordinator has forgotten: the logs of the newest ones stay, which has no order in
 * the folder. Others' folders, and what is no job's name, are not among them. */
START_TEST(logs_of_the_newest_jobs_are_kept)
{
	static const struct {
		uint64_t keep, first_new;
		bool left[IDS];
	} c[] = { { 0, 100, { false, false, false, false } }, { 1, 100, { true, false, false, false } },
		  { 2, 100, { true, true, false, false } },   { 4, 100, { true, true, true, true } },
		  { 9, 100, { true, true, true, true } },     { 1, 8, { true, true, false, false } } };
	struct state_scan s = {
		.state_dir = dir, .max_entries = MAX, .keep_newest = c[_i].keep, .first_new = c[_i].first_new
	};
	char name[IDS][80], path[sizeof(dir) + sizeof(name) + 20];
	make_dir("logs", geteuid());
	make_dir("logs/99x", geteuid());
	make_dir("logs/zz", geteuid());
	for (int i = 0; i < IDS; i++) {
		snprintf(name[i], sizeof(name[i]), "logs/%d%s", (int)ids[i],
			 i == 1 ? "" : "-01234567-89ab-cdef-0123-456789abcdef");
		make_dir(name[i], geteuid());
		snprintf(path, sizeof(path), "%s/%s/worker_0.log", dir, name[i]);
		FILE *f = fopen(path, "w");
		ck_assert(f && !fclose(f));
	}
	state_scan_run(&s);
	for (int i = 0; i < IDS; i++) {
		snprintf(path, sizeof(path), "%s/%s/worker_0.log", dir, name[i]);
		ck_assert_msg(!access(path, F_OK) == c[_i].left[i], "%s", name[i]);
	}
	state_scan_fini(&s);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("state_scan");
	TCase *t = tcase_create("state_scan");
	tcase_add_checked_fixture(t, setup, NULL);
	suite_add_tcase(s, t);
	tcase_add_test(t, too_many_files_of_a_user_hide_nobody_elses);
	tcase_add_loop_test(t, logs_of_the_newest_jobs_are_kept, 0, 6);
	return suite_run(s);
}
