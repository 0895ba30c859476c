/* SPDX-License-Identifier: Apache-2.0 */
/* A coordinator of two ranks with one fake node and a fake store, message by message. The state is that of the running
 * test; setup makes it anew. */
#ifndef GACC_TESTS_COORD_RIG_H
#define GACC_TESTS_COORD_RIG_H

#include "control/coordinator.h"

#define SECOND INT64_C(1000000000)

extern struct job_spec spec;
extern struct coord *coord;
extern struct now now;
extern const struct coord_ports ports;
/* what the node says next, by tell() */
extern struct report node;
extern struct rank_progress rank[2];
/* what the coordinator has said last */
extern struct order order;
extern struct commit stored;
extern uint64_t n_stored, norms_window;
extern char last_event[32], last_text[256], end_reason[256];

/* micro_size 2, optimizer SGD; the node has reported its parameters, and both ranks are attached. */
void setup(void);
void teardown(void);
/* The node reports. */
void tell(void);
/* The node has all micro-batches. */
void fill(void);
/* The node does what the order says, the store what it is told, until the next window is open. */
void finish(void);

#endif
