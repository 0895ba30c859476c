/* SPDX-License-Identifier: Apache-2.0 */
/* An engine without gaccd, for measurements: a job of one rank with AdamW, its plan and memory, and `gaccd --engine` of
 * any build on it, one after the other. Failures end the program. */
#ifndef GACC_TESTS_ENGINE_ALONE_H
#define GACC_TESTS_ENGINE_ALONE_H

#include "engine/channel.h"
#include "engine/plan.h"
#include "engine/segment.h"

#include <stddef.h>
#include <sys/types.h>
#include <time.h>

#define ALONE_SLOTS 4 /* micro-batches of a window, one slot each */
#define ALONE_SEGMENTS 16

struct alone {
	struct plan *plan;
	int plan_fd;
	struct segment segment[ALONE_SEGMENTS];
	int n_segments;
	/* the engine */
	pid_t pid; /* 0: none */
	int fd;
	clockid_t cpu; /* its CPU clock */
	uint64_t window, applied_step, next_id;
};

/* New memory for n f32 parameters in some tensors; gradients are in the slots, parameters zero. */
void alone_open(struct alone *, size_t n_elements, uint32_t threads);
void alone_close(struct alone *);
/* Starts an engine of the build that `gaccd` is of; it adopts the memory as the one before has left it. */
void alone_start(struct alone *, const char *gaccd);
/* Ends it; it must not be inside of a window. */
void alone_stop(struct alone *);

/* Sends a command and waits for its answer, which must be ST_OK. */
struct engine_answer alone_call(struct alone *, struct engine_command);
/* The commands of a window, in this order: ADD of each slot, GO, COMMIT. */
void alone_add(struct alone *, uint32_t slot);
void alone_go(struct alone *, uint64_t attempt);
uint64_t alone_commit(struct alone *, uint64_t attempt); /* digest of the parameters */

/* CPU seconds that the engine has used, all its threads. */
double alone_cpu(const struct alone *);

#endif
