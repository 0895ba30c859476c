/* SPDX-License-Identifier: Apache-2.0 */
/* A part of a job: one engine with a fixed, ascending list of the job's ranks.
 *
 * Two numberings of ranks: people, trainers, orders and the ranks of reports use the job's, 0..world-1; a struct job,
 * its engine and its bitmaps use the part's, 0..n-1, in the same order. This is the one place that translates. All
 * functions are pure.
 */
#ifndef GACC_CONTROL_PART_H
#define GACC_CONTROL_PART_H

#include "control/spec.h"

#include <stddef.h>

#define PART_NO_RANK UINT32_MAX
#define PART_MAX SPEC_MAX_PARTS

/* Part i of n_parts has the job's ranks from part_block(.., i) on, up to before part_block(.., i + 1): equal blocks, or
 * blocks whose sizes differ by one. */
static inline uint32_t part_block(uint32_t ranks, uint32_t n_parts, uint32_t i)
{
	return (uint32_t)((uint64_t)ranks * i / n_parts);
}

/* The job's numbers of a part's ranks. */
struct part_ranks {
	uint32_t n;
	const uint32_t *rank; /* [n], ascending; NULL: 0..n-1 */
};

/* All that a struct job has to know of its part. Everything that is pointed to is borrowed. */
struct part_spec {
	uint32_t number;	     /* of the part in its job, from 0 */
	uint32_t n_parts;	     /* of the job */
	uint32_t world;		     /* ranks of the whole job */
	uint64_t epoch;		     /* in which the part was placed here, from 1 */
	const struct job_spec *spec; /* the job's, but `ranks` is the number of this part's */
	const uint32_t *global;	     /* [spec->ranks]: as in part_ranks */
};

/* The one part of a job that is not divided. */
static inline struct part_spec part_whole(const struct job_spec *spec)
{
	return (struct part_spec){ .n_parts = 1, .world = spec->ranks, .epoch = 1, .spec = spec };
}

/* The job's number of the part's rank `local`. */
static inline uint32_t part_global(const struct part_spec *p, uint32_t local)
{
	return p->global ? p->global[local] : local;
}

/* The part's number of the job's rank; PART_NO_RANK: it is not in this part. */
uint32_t part_local(const struct part_spec *, uint32_t global);
/* Its ranks as people read them: "0-3, 7"; cut off with "..." when they are too many. */
void part_describe_ranks(const struct part_spec *, char *text, size_t n);

/* Bits of a part's ranks in its numbering (max_micro_size bits a rank) are added to those of the whole job, and the
 * other way round; both maps have control_words() words. part_pick_bits also clears what it does not pick. */
void part_place_bits(const struct part_ranks *, uint32_t max_micro_size, const uint64_t *of_part, uint64_t *of_job);
void part_pick_bits(const struct part_ranks *, uint32_t max_micro_size, const uint64_t *of_job, uint64_t *of_part);

#endif
