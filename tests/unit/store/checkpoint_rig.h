/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of checkpoints share: a directory, and a checkpoint in it. */
#ifndef GACC_TEST_CHECKPOINT_RIG_H
#define GACC_TEST_CHECKPOINT_RIG_H

#include "store/checkpoint.h"
#include "support/scratch.h"

/* A test's own directory, and paths in it: of a checkpoint that is being written, and of the one that it becomes. */
extern char dir[SCRATCH_PATH], partial[CHECKPOINT_MAX_PATH], final[CHECKPOINT_MAX_PATH];
extern char why[512];
extern const uint8_t uuid[16];	   /* of the job */
extern struct checkpoint_dir made; /* by write_parts */

void checkpoint_setup(void);
void checkpoint_teardown(void);
/* Makes the directory and writes "abc" into each of the first n_parts parts; *out: what a manifest has of them. */
void write_parts(const char *path, int n_parts, struct checkpoint_file *out);
struct manifest example(void);
/* Writes and seals a checkpoint of the example. */
void seal(int n_parts, bool inside);

#endif
