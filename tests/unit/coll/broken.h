/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators that break: one rig for each test, and what must hold after a failure. */
#ifndef GACC_TEST_COLL_BROKEN_H
#define GACC_TEST_COLL_BROKEN_H

#include "rig.h"

#define SOON_NS COLL_ABORT_NS /* who is not told waits for a minute */

extern struct rig r;
extern struct actor a[COLL_MAX_PARTS];
extern pthread_t thread[COLL_MAX_PARTS];

/* Of each test. */
void broken_setup(void);
void broken_teardown(void);

void wait_ms(int64_t ms);

enum { EXCHANGE, GATHER, BROADCAST, BARRIER, SUM_SMALL, JOIN, N_OPERATIONS };
extern const struct shape small; /* of three parts: four pieces of 100 bytes each */
/* The operation whose number `arg` points to. */
void act_operation(struct actor *);
/* Three members: 0 and 1 call the operation and wait for part 2, which does nothing. */
void begin_but_2(int *operation);

/* That the member has failed like this; suspect -1: none. */
void check_failure(uint32_t part, enum status, int suspect, const char *text);
/* A failure is for ever: every call of every member returns it at once. */
void check_unusable(void);
/* Only a new communicator helps, and it does. */
void check_next(void);

#endif
