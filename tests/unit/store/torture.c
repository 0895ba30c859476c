/* SPDX-License-Identifier: Apache-2.0 */
#include "torture.h"

#include "script.h"
#include "base/log.h"
#include "support/nth.h"
#include "support/sample.h"
#include "support/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define HANG_S 120

static const char *const kind_name[NTH_KINDS] = { "eio", "enospc", "short", "alloc" };

void torture_note(struct torture_log *log, enum status st)
{
	if (log->n == TORTURE_MAX_STEPS)
		script_fail("more than %d operations", TORTURE_MAX_STEPS);
	if (!log->lost[0])
		log->lost_at = log->n;
	log->status[log->n++] = st;
	snprintf(log->lost, sizeof(log->lost), "%s", nth_io_lost()); /* what fails later, on closing, is nobody's */
}

static void make_dir(char dir[SCRATCH_PATH])
{
	if (!scratch_make(dir))
		script_fail("mkdtemp");
}

static void remove_dir(const char *dir)
{
	char command[96];
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	if (system(command))
		script_fail("%s", command);
}

static void prepare(const struct torture *t)
{
	char dir[SCRATCH_PATH];
	make_dir(dir);
	nth_io_arm(dir, NTH_EIO, 0);
	t->prepare(dir);
	nth_io_disarm();
	remove_dir(dir);
}

static void check_told(const struct torture *t, const struct torture_log *log)
{
	bool told = log->lost_at == 0 && t->may_lose && strstr(log->lost, t->may_lose);
	for (int i = 0; i < log->n; i++)
		told |= log->status[i] != ST_OK;
	if (log->lost[0] && !told)
		script_fail("%s could not be synced, and all operations were fine", log->lost);
}

static void arm(const char *dir, enum nth_kind kind, unsigned n)
{
	nth_io_arm(dir, kind, kind == NTH_ALLOC ? 0 : n);
	if (kind == NTH_ALLOC)
		nth_alloc_arm(n, false);
}

/* Exit status of a child that does one of the two. */
static int in_child(const struct torture *t, bool judge, const char *dir, struct torture_log *log, enum nth_kind kind,
		    unsigned n)
{
	int ws = 0;
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		alarm(HANG_S);
		if (judge) {
			nth_io_arm(dir, NTH_EIO, 0);
			check_told(t, log);
			t->judge(dir, log);
			_exit(0);
		}
		log_init(t->name, LOG_TEXT, LOG_ERROR - 1); /* its complaints are expected */
		arm(dir, kind, n);
		t->script(dir, log);
		log->calls = kind == NTH_ALLOC ? nth_alloc_disarm() : nth_io_disarm();
		log->fired = n && log->calls >= n;
		_exit(0);
	}
	return waitpid(pid, &ws, 0) == pid ? ws : -1;
}

/* One run; false: a failure, which is printed. */
static bool once(const struct torture *t, enum nth_kind kind, unsigned n, struct torture_log *log)
{
	char dir[SCRATCH_PATH];
	memset(log, 0, sizeof(*log));
	make_dir(dir);
	int ran = in_child(t, false, dir, log, kind, n), judged = ran ? 0 : in_child(t, true, dir, log, kind, n);
	remove_dir(dir);
	if (ran)
		fprintf(stderr, "%s: %s %u: the script died (%#x) after %d operations\n", t->name, kind_name[kind], n,
			(unsigned)ran, log->n);
	if (judged)
		fprintf(stderr, "%s: %s %u: judged wrong (%#x) after %d operations\n", t->name, kind_name[kind], n,
			(unsigned)judged, log->n);
	return !ran && !judged;
}

/* All n of a kind, or every `every`-th, the first one drawn; how many runs failed. */
static int sweep(const struct torture *t, enum nth_kind kind, unsigned every, struct torture_log *log)
{
	unsigned runs = 0, total;
	int bad = !once(t, kind, 0, log);
	total = log->calls;
	for (unsigned n = 1 + (unsigned)sample_seed() % every; n <= total && bad < 20; n += every, runs++) {
		bad += !once(t, kind, n, log);
		/* Threads differ in what they meet: the run that was counted may have had some allocations more. */
		if (!log->fired && log->n && (kind != NTH_ALLOC || n + total / 1000 < total))
			script_fail("%s: %s %u of %u did not fire", t->name, kind_name[kind], n, total);
	}
	printf("%s: %s: %u of %u calls failed, one at a time: %d runs went wrong\n", t->name, kind_name[kind], runs,
	       total, bad);
	return bad + !total;
}

static int run_all(int argc, char **argv, const struct torture *t, int every_io, int every_alloc)
{
	struct torture_log *log = mmap(NULL, sizeof(*log), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	const char *every = getenv("TORTURE_EVERY");
	int bad = 0;
	if (log == MAP_FAILED)
		script_fail("mmap");
	prepare(t);
	for (int k = 0; k < NTH_KINDS; k++) {
		if (argc > 1 && strcmp(argv[1], kind_name[k]) != 0)
			continue;
		if (argc > 2)
			bad += !once(t, (enum nth_kind)k, (unsigned)atoi(argv[2]), log);
		else
			bad += sweep(t, (enum nth_kind)k,
				     every	      ? (unsigned)atoi(every)
				     : k == NTH_ALLOC ? (unsigned)every_alloc
						      : (unsigned)every_io,
				     log);
	}
	return bad ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* In a child, so that its files are removed wherever script_fail ends it. */
int torture_main(int argc, char **argv, const struct torture *t, int every_io, int every_alloc)
{
	int ws = 0;
	if (!scratch_begin())
		script_fail("no folder for the files");
	pid_t pid = fork();
	if (pid == 0)
		exit(run_all(argc, argv, t, every_io, every_alloc));
	bool ended = waitpid(pid, &ws, 0) == pid;
	scratch_end();
	return ended && ws == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
