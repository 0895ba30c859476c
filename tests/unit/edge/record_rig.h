/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of a node's records of parts share, around the rig of two gaccds. One thread. */
#ifndef GACC_TESTS_EDGE_RECORD_RIG_H
#define GACC_TESTS_EDGE_RECORD_RIG_H

#include "divided_rig.h"

#include "store/journal.h"

struct recorded {
	uint32_t n, begun;
	size_t placement, tensors; /* bytes */
};
/* What this journal has of parts. */
struct recorded recorded_in(struct journal *);
struct recorded recorded(void); /* the node's */
/* Adds a record while the node does not run. */
void write_record(struct journal_record);

void turns(int n);
bool is_up(const struct part *); /* its engine has its memory */
/* The coordinator and the node do not hear each other, or do again. */
void silence(bool yes);

extern struct session_key key[RANKS];
/* The job runs, with its ranks attached. */
void run_job(void);
/* Four pushes, until both sides are in the next window. */
void whole_window(void);

#endif
