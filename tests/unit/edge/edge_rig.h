/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon for unit tests of the edge: its loop, configuration, journal, history, pool and its link to itself are real;
 * it has no RPC server, no sockets and no service manager, and nobody ticks it. One thread.
 */
#ifndef GACC_TESTS_EDGE_RIG_H
#define GACC_TESTS_EDGE_RIG_H

#include "edge/hosted.h"
#include "support/scratch.h"

struct Gacc__V1__JobSpec;

extern struct daemon d;
extern struct conf *conf; /* d's; a test may change its limits at any time */
extern char rig_state[SCRATCH_PATH + 16], rig_runtime[SCRATCH_PATH + 16]; /* state_dir, runtime_dir */

/* A fixture. The configuration is the default one in a folder of its own, with a journal's reserve of 1 MiB. */
void rig_open(void);
void rig_close(void);
/* Runs the loop until nothing is left to do. */
void rig_run(void);
/* A job of `uid` with this name that is coordinated here, is in the journal and has no part anywhere: two ranks, one
 * tensor of RIG_ELEMENTS. `change` may be NULL. */
struct hosted *rig_job(uint64_t id, uint32_t uid, const char *user, void (*change)(struct Gacc__V1__JobSpec *));
#define RIG_ELEMENTS 1024
/* Its part on this node, made from its placement; it has no memory yet. Of several parts: one. */
struct part *rig_part(struct hosted *);
struct part *rig_part_of(struct hosted *, uint32_t part);

#endif
