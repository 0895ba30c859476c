/* SPDX-License-Identifier: Apache-2.0 */
/* Allocates the segments of a job in portions, because much memory takes long and nothing should block for long. Any
 * thread, one at a time. */
#ifndef GACC_ENGINE_PORTIONS_H
#define GACC_ENGINE_PORTIONS_H

#include "engine/plan.h"
#include "engine/segment.h"

/* what making a segment costs besides its pages, as bytes */
#define PORTION_SEGMENT_COST (UINT64_C(64) << 10)

struct portions {
	const struct plan_segment *wanted; /* [n], of the caller */
	/* [n], of the caller, who closes them, also after an error; SEGMENT_NONE at first */
	struct segment *segment;
	int n;
	uint64_t job_id, generation, fingerprint;
	/* 0 at first */
	int at;		/* which is being made */
	uint64_t taken; /* of its bytes */
};

/* Makes segments, or goes on with one, until about `bytes` are taken, never more, or all are there. ST_NO_MEMORY,
 * ST_IO_ERROR with why. */
enum status portions_take(struct portions *, uint64_t bytes, char *why, size_t n_why);
bool portions_done(const struct portions *);

#endif
