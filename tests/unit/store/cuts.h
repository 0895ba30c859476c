/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts the power of a process that writes files, again and again, and judges what the disk may hold then
 * (support/power.h).
 *
 * A life goes through a script's operations, numbered from 0, and is recorded. It may be killed, and then the next one
 * goes on with the same files. Then come cuts: after any of the recorded operations, each with an image of its own,
 * which is judged in a process of its own. The next life goes on with one of the images.
 */
#ifndef GACC_TESTS_CUTS_H
#define GACC_TESTS_CUTS_H

#include <stdbool.h>

struct cuts {
	const char *name;
	int operations;
	bool each; /* the fixed images are tried after each call, not only after each of the script's operations */
	/* Once, before all; `dir` is empty. NULL: nothing to prepare. */
	void (*prepare)(const char *dir);
	/* Makes in an empty `dir` what the first life finds, all of it synced. NULL: nothing. */
	void (*begin)(const char *dir);
	/* A life: at least `from` operations have been done, and perhaps the next one. Says cuts_begins before each of
	 * its operations, and cuts_done when it was acknowledged; ends behind the last one or sooner. */
	void (*life)(const char *dir, int from);
	/* `dir` is what a power cut has left: at least `low` operations were acknowledged, and `high` were begun. Fails
	 * if one of the first is missing, or one that was under way is there in part; then it goes on as the next life
	 * would. */
	void (*judge)(const char *dir, int low, int high);
};

void cuts_begins(int operation);
void cuts_done(int operation);

/* main: `PROGRAM [-n CUTS] [-s SEED] [-a]`; the seed is drawn from GACC_SAMPLE by default. -a: the fixed images after
 * each call. May be called once for each of several. */
int cuts_main(int argc, char **argv, const struct cuts *);

#endif
