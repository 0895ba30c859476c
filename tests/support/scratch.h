/* SPDX-License-Identifier: Apache-2.0 */
/* Folders for the files of tests: in memory where there is room, for some tests sync them thousands of times and none
 * cuts the power; else in TMPDIR. All lie in one of the program, which the process that runs the tests removes.
 * GACC_TEST_SCRATCH names another place (a short path): tests/mutants/run.py removes it, since a mutant that hangs is
 * killed. */
#ifndef GACC_TESTS_SCRATCH_H
#define GACC_TESTS_SCRATCH_H

#include <stdbool.h>

#define SCRATCH_PATH 64

/* Before the first test, in the process that outlives them all; false when no folder can be made. */
bool scratch_begin(void);
/* A new folder, for one test; false when it cannot be made. */
bool scratch_make(char out_dir[SCRATCH_PATH]);
/* Removes what scratch_make has given to this process and its children, and all that is in there. */
void scratch_end(void);

#endif
