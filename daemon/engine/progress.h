/* SPDX-License-Identifier: Apache-2.0 */
/* struct status_progress: where each rank stands in the open window, as its engine sees it, and `told`.
 *
 * `told` is raised by the engine and by gaccd. The rows have one writer, the engine's main thread; readers on any
 * thread of any process that maps the segment, at any time. Each field is one word; what belongs to a queued push is
 * read together by progress_parked. The rows outlive the engine: its successor goes on with them.
 */
#ifndef GACC_ENGINE_PROGRESS_H
#define GACC_ENGINE_PROGRESS_H

#include "proto/segment_layout.h"

#include <stdbool.h>

/* A push that waits in the engine's queue. */
struct progress_parked {
	int64_t since_mono_ns;
	uint32_t micro, blocked_by; /* of struct status_rank */
};

/* The rank's oldest queued push; false: none is queued. */
bool progress_parked(const struct status_rank *, struct progress_parked *out);
/* NULL: none is queued any more. */
void progress_park(struct status_rank *, const struct progress_parked *);
/* Whether it has given all that it owes: the time of that is kept, or taken now. */
void progress_ready(struct status_rank *, bool has_given_all);
/* An answer is about to rely on the record of this seq, which the caller has read or written. Never lowers it, whoever
 * else raises it meanwhile. */
void progress_note_told(struct status_progress *, uint64_t seq);
/* The device that has the job's memory; "": none. The engine's main thread, before it says that the memory is there. */
void progress_note_gpu(struct status_progress *, const char *name);
void progress_gpu(const struct status_progress *, char out[STATUS_GPU_BYTES + 1]);
/* CLOCK_BOOTTIME, as gaccd's. */
int64_t progress_clock(void);

#endif
