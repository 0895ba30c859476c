/* SPDX-License-Identifier: Apache-2.0 */
/* All memory of one job on one device, as its engine sees it: the plan and the mapped segments.
 *
 * Filled by memory_take, one descriptor after the other as they arrive; complete when memory_missing is 0. From then on
 * the engine is alone: memory_lock holds a lock on the control segment that ends with the process, so that an engine
 * which outlives its gaccd by a pass cannot write beside its successor. Main thread; the arrays are read and written by
 * workers.
 */
#ifndef GACC_ENGINE_MEMORY_H
#define GACC_ENGINE_MEMORY_H

#include "engine/control_page.h"
#include "engine/plan.h"
#include "engine/segment.h"

struct memory {
	const struct plan *plan; /* NULL: not yet taken */
	size_t plan_bytes;
	struct plan_segment *wanted; /* those on the host (plan_host_segments) */
	struct segment *segment;     /* [n_wanted], the first n_taken are mapped */
	int n_wanted, n_taken;
	uint64_t generation; /* of all segments; their headers are not asked again, as trainers can write to those of
				slots */
	int lock_fd;	     /* -1: not locked */
	int *device_fd;	     /* [n_device] of a job on a device: what has come after the segments on the host */
	int n_device, max_device;

	struct control_page page;
	struct status_page *status;
	struct status_progress *progress; /* behind it, in the same segment */
	/* the arenas: only arith_host.c and what it calls use these */
	unsigned char *accum[2];
	unsigned char *params;
	uint64_t own, own_end; /* elements that `master` and `state` are of: plan_own */
	float *master;	       /* NULL: no 16-bit parameters, no master, or nothing is owned */
	float *state[2];       /* NULL: none; m, v */
	unsigned char **slot;  /* [plan->slots] */
};
#define MEMORY_NONE ((struct memory){ .lock_fd = -1 })

/* Takes fd (closed when it is not kept): the plan first, then the segments in plan_segments order. All segments must be
 * of the plan's job, layout and sizes and of this generation. What comes after those on the host is kept as it is, for
 * memory_device. On error `why` names segment and difference. */
enum status memory_take(struct memory *, int fd, uint64_t generation, char *why, size_t n_why);
/* Descriptors that are still to come, those of a device excepted. */
int memory_missing(const struct memory *);
/* The descriptors of a device that have come; they are the caller's to close, and the memory has none any more. */
int memory_device(struct memory *, int **out);
/* Another segment for a slot, complete and of the same generation; fd is taken. On error the slot is as it was. */
enum status memory_exchange_slot(struct memory *, uint32_t slot, int fd, char *why, size_t n_why);
/* Waits until no other process holds the lock. ST_IO_ERROR. */
enum status memory_lock(struct memory *);
void memory_fini(struct memory *); /* MEMORY_NONE or half-built is fine */

/* What an update of elements [start, start + count) reads and writes; they lie in one dtype group. Master and state are
 * NULL if `start` is not this part's own. */
void memory_params(const struct memory *, uint32_t dtype_group, uint64_t start, struct kernel_params *out);
/* The values that count: f32 parameters, the master, or 16-bit parameters without one. */
const void *memory_values(const struct kernel_params *, enum dtype *out_dtype);

#endif
