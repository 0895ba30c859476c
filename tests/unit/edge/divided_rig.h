/* SPDX-License-Identifier: Apache-2.0 */
/* A job of two parts in the rig of two gaccds: both are at the node, five ranks. One thread. */
#ifndef GACC_TESTS_EDGE_DIVIDED_RIG_H
#define GACC_TESTS_EDGE_DIVIDED_RIG_H

#include "pair_rig.h"

enum { DIVIDED = JOB + 1, WORLD = 5, PARTS = 2 };

/* Ranks 0 and 1 are in part 0, the other three in part 1. */
extern const uint32_t first_rank[PARTS + 1];

/* A fixture, to be closed by pair_close: `job` is DIVIDED. */
void divided_open(void);
/* Makes a specification one of such a job. */
void with_two_parts(struct Gacc__V1__JobSpec *);
/* Its part at the node, or NULL. */
struct part *there_of(uint32_t part);

#endif
