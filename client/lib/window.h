/* SPDX-License-Identifier: Apache-2.0 */
/* What this rank owes to the open window: the micro-batches that gacc_next hands out.
 *
 * Pure; used by the job's thread only. Indexes ascend, as the daemon adds them in that order. `at` is the position in
 * `missing` of the next one to compute; what lies before it was pushed (or is on its way, with asynchronous pushes).
 */
#ifndef GACC_CLIENT_WINDOW_H
#define GACC_CLIENT_WINDOW_H

#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct window {
	uint64_t number; /* windows closed before it */
	uint64_t applied_step;
	uint32_t micro_size;
	double loss_scale; /* 1 = none */
	uint32_t *missing; /* owned, ascending */
	size_t n_missing, at, room;
	bool done; /* no window will follow */
};

/* A new window in which the rank owes micro-batches 0..micro_size-1. ST_NO_MEMORY leaves `w` as it was. */
enum status window_begin(struct window *w, uint64_t number, uint64_t applied_step, uint32_t micro_size,
			 double loss_scale);

/* The daemon's word on where the rank stands, at start or after a new attach. `missing` must ascend below micro_size
 * (else ST_MALFORMED); indexes from `queued` (n of them, on their way already) are left out. */
enum status window_resume(struct window *w, uint64_t number, uint64_t applied_step, uint32_t micro_size,
			  double loss_scale, const uint32_t *missing, size_t n, const uint32_t *queued,
			  size_t n_queued);

/* Index to compute next in *out_micro, and whether it is the last; false: none is left. */
bool window_next(const struct window *w, uint32_t *out_micro, bool *out_last);
/* Micro-batch `micro` is pushed: it and those before it are no longer owed. */
void window_pushed(struct window *w, uint32_t micro);
/* Nothing more is owed: flushed, or the window closed without this rank. */
void window_give_up(struct window *w);
void window_fini(struct window *w);

#endif
