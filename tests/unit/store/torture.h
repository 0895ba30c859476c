/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a script of operations again and again, each time in a process and a directory of its own, in which the n-th
 * system call or allocation fails, n = 1, 2, ... until none fails; after each run it looks at what is left in the
 * directory.
 */
#ifndef GACC_TESTS_TORTURE_H
#define GACC_TESTS_TORTURE_H

#include "proto/status.h"

#include <stdbool.h>

#define TORTURE_MAX_STEPS 64

/* Shared by script and judge. */
struct torture_log {
	int n; /* operations that have returned */
	enum status status[TORTURE_MAX_STEPS];
	unsigned calls; /* that could have failed */
	bool fired;
	char lost[128]; /* the file that was not synced: some operation must have failed */
	int lost_at;	/* in which operation */
};

struct torture {
	const char *name;
	/* Once, before all: what is to be expected. `dir` is empty. */
	void (*prepare)(const char *dir);
	/* In a child, with faults: calls torture_note after each operation. */
	void (*script)(const char *dir, struct torture_log *);
	/* A file whose sync may fail in the first operation without anybody being told; NULL: none. */
	const char *may_lose;
	/* In another child, without faults: exits (script_fail) unless `dir` is as the log says. */
	void (*judge)(const char *dir, const struct torture_log *);
};

void torture_note(struct torture_log *, enum status);

/* main: `PROGRAM [KIND [N]]` with KIND eio, enospc, short or alloc runs that alone. TORTURE_EVERY=k in the environment:
 * every k-th n. GACC_SAMPLE draws the first one. */
int torture_main(int argc, char **argv, const struct torture *, int every_io, int every_alloc);

#endif
