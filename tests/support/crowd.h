/* SPDX-License-Identifier: Apache-2.0 */
/* A job with many ranks in one process: the real state machines of gaccd, an engine that answers in canonical order,
 * and trainers that push windows through it. For what control costs: nothing here waits, sleeps or depends on the
 * clock. Not for wrong inputs: those end the program.
 */
#ifndef TESTS_SUPPORT_CROWD_H
#define TESTS_SUPPORT_CROWD_H

#include "control/coordinator.h"
#include "control/job.h"

/* How the ranks of a window come: `pushed` is the rank that pushes as number i. */
enum crowd_order { CROWD_IN_TURN, CROWD_BACKWARDS };

struct crowd;

/* All ranks have attached and the job runs. */
struct crowd *crowd_new(uint32_t ranks, uint32_t micro_size);
void crowd_free(struct crowd *);
struct job *crowd_job(struct crowd *);
struct coord *crowd_coord(struct crowd *);
/* One window: every rank pushes micro_size micro-batches, then calls WaitStep; it returns when all have their outcome.
 * Every call and every answer of the engine is a turn of its own: what the job and the coordinator say to each other is
 * delivered at its end. */
void crowd_window(struct crowd *, enum crowd_order);
/* One rank's part of that: it pushes `micro`; nothing is answered. */
void crowd_push(struct crowd *, uint32_t rank, uint32_t micro);
/* The client of that call is gone. */
void crowd_gone(struct crowd *, uint32_t rank);
/* The rank's lifeline comes, or breaks. */
void crowd_link(struct crowd *, uint32_t rank, bool up);
bool crowd_waits(const struct crowd *, uint32_t rank); /* for the answer of its push */
/* The engine answers all pushes whose turn has come. */
void crowd_answer(struct crowd *);
uint64_t crowd_reports(const struct crowd *); /* that the job has sent */

#endif
