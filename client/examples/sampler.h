/* SPDX-License-Identifier: Apache-2.0 */
/* Which samples a micro-batch has: a pure function of (seed, window, rank, micro), so that a restarted trainer computes
 * the same gradients again, and a single process can replay what many ranks did.
 *
 * Each epoch has an order of its own, a permutation drawn from (seed, epoch). It is dealt in micro-batches of `batch`
 * samples: the g-th of an epoch goes to window g / (ranks*micro_size) and there, micro-major and rank-minor, to rank
 * g % ranks. The last window of an epoch may be short: its last micro-batch may be smaller than batch, and the ones
 * after it are empty.
 *
 * After sampler_resize the windows before count as though they had had the new size: every rank, also one that starts
 * later, deals the same, but that epoch may deal samples twice, or not at all. */
#ifndef GACC_EXAMPLES_SAMPLER_H
#define GACC_EXAMPLES_SAMPLER_H

#include <stdint.h>

struct sampler {
	uint64_t seed;
	uint32_t n; /* samples of an epoch */
	uint32_t batch, ranks, micro_size;
	uint64_t epoch;	 /* whose order is in `order`; UINT64_MAX = none yet */
	uint32_t *order; /* [n] */
};

/* All numbers >= 1. 0, or -1 when out of memory. */
int sampler_init(struct sampler *, uint64_t seed, uint32_t n, uint32_t batch, uint32_t ranks, uint32_t micro_size);
void sampler_fini(struct sampler *);
/* Another number of micro-batches in a window, from the window on that is asked for next; >= 1. */
void sampler_resize(struct sampler *, uint32_t micro_size);

/* Windows of one epoch. */
uint64_t sampler_windows(const struct sampler *);

/* The micro-batch's sample numbers, valid until the next call; returns how many, 0 when the epoch has no more. */
uint32_t sampler_micro(struct sampler *, uint64_t window, uint32_t rank, uint32_t micro, const uint32_t **out_ids);

/* Those of all ranks and micro-batches of a window, in the order in which gaccd adds them. */
uint32_t sampler_window(struct sampler *, uint64_t window, const uint32_t **out_ids);

#endif
