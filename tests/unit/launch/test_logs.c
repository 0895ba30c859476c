/* SPDX-License-Identifier: Apache-2.0 */
/* The logs of ranks when their limit becomes smaller. A real writer, and real files. */
#include "launch/logs.h"

#include "base/log.h"
#include "support/scratch.h"
#include "support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LIMIT ((off_t)LAUNCH_LOG_LEAST)
#define TRIES 10000 /* ms */

static char dir[SCRATCH_PATH];

static void in_child(void *arg)
{
}

static off_t size_of(const char *name)
{
	char path[SCRATCH_PATH + 32];
	struct stat st;
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return stat(path, &st) ? -1 : st.st_size;
}

static void make_older(off_t size)
{
	char path[SCRATCH_PATH + 32];
	snprintf(path, sizeof(path), "%s/worker_0.log.1", dir);
	FILE *f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	ck_assert_int_eq(ftruncate(fileno(f), size), 0);
	fclose(f);
}

static void wait_for_size(const char *name, off_t least, off_t most)
{
	off_t size = -1;
	for (int i = 0; i < TRIES; i++) {
		size = size_of(name);
		if (size >= least && size <= most)
			return;
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	ck_abort_msg("%s has %lld bytes", name, (long long)size);
}

static const struct {
	off_t older;
	bool stays;
} cases[] = { { LIMIT, true }, { LIMIT + 1, false }, { 2 * LIMIT, false } };

/* Both logs keep to it: the older one goes when it is longer, of the newer one the last lines stay. */
START_TEST(a_smaller_limit_holds_for_both_logs)
{
	static char text[3 * LAUNCH_LOG_LEAST];
	struct launch_start start = { .log_dir = dir };
	struct launch_logs *l;
	ck_assert(scratch_make(dir));
	start.order =
		(struct launch_order){ .job_id = 1, .n_ranks = 1, .uid = getuid(), .log_max = 4 * LAUNCH_LOG_LEAST };
	memset(text, '\n', sizeof(text));
	ck_assert_int_eq(launch_logs_new(&start, in_child, NULL, &l), ST_OK);
	make_older(cases[_i].older);
	ck_assert_int_eq(write(launch_logs_end(l, 0), text, sizeof(text)), sizeof(text));
	wait_for_size("worker_0.log", sizeof(text), sizeof(text));
	launch_logs_limit(l, LAUNCH_LOG_LEAST);
	wait_for_size("worker_0.log", 1, LIMIT);
	ck_assert_int_eq(size_of("worker_0.log.1"), cases[_i].stays ? cases[_i].older : -1);
	launch_logs_free(l);
	ck_assert_int_gt(wait(NULL), 0);
}
END_TEST

int main(void)
{
	log_init("test", LOG_TEXT, LOG_ERROR);
	Suite *suite = suite_create("logs");
	TCase *tc = tcase_create("limit");
	tcase_add_loop_test(tc, a_smaller_limit_holds_for_both_logs, 0, sizeof(cases) / sizeof(*cases));
	tcase_set_timeout(tc, 60);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
