/* SPDX-License-Identifier: Apache-2.0 */
/* Deals the samples of each micro-batch from (seed, window, rank, micro) alone, so that a restarted trainer repeats
 * the same gradients. Pure after its initialisation; one thread. */
#include "sampler.h"

#include "random.h"

#include <stdlib.h>

int sampler_init(struct sampler *s, uint64_t seed, uint32_t n, uint32_t batch, uint32_t ranks, uint32_t micro_size)
{
	*s = (struct sampler){
		.seed = seed, .n = n, .batch = batch, .ranks = ranks, .micro_size = micro_size, .epoch = UINT64_MAX
	};
	s->order = malloc(n * sizeof(*s->order));
	return s->order ? 0 : -1;
}

void sampler_fini(struct sampler *s)
{
	free(s->order);
	s->order = NULL;
}

void sampler_resize(struct sampler *s, uint32_t micro_size)
{
	s->micro_size = micro_size;
}

static uint64_t window_samples(const struct sampler *s)
{
	return (uint64_t)s->batch * s->ranks * s->micro_size;
}

uint64_t sampler_windows(const struct sampler *s)
{
	return (s->n + window_samples(s) - 1) / window_samples(s);
}

/* Fisher and Yates. A 64-bit draw scaled to the range is biased by less than n / 2^64. */
static void shuffle(struct sampler *s, uint64_t epoch)
{
	uint64_t key = random_mix(s->seed ^ random_mix(epoch));

	for (uint32_t i = 0; i < s->n; i++)
		s->order[i] = i;
	for (uint32_t i = s->n - 1; i > 0; i--) {
		uint32_t j = (uint32_t)(((unsigned __int128)random_at(key, i) * (i + 1)) >> 64);
		uint32_t held = s->order[i];
		s->order[i] = s->order[j];
		s->order[j] = held;
	}
	s->epoch = epoch;
}

/* Samples first..first+count of the window's epoch, as far as there are any. */
static uint32_t deal(struct sampler *s, uint64_t window, uint64_t first, uint64_t count, const uint32_t **out_ids)
{
	uint64_t epoch = window / sampler_windows(s);

	if (epoch != s->epoch)
		shuffle(s, epoch);
	first += window % sampler_windows(s) * window_samples(s);
	if (first >= s->n)
		return 0;
	*out_ids = s->order + first;
	return (uint32_t)(count < s->n - first ? count : s->n - first);
}

uint32_t sampler_micro(struct sampler *s, uint64_t window, uint32_t rank, uint32_t micro, const uint32_t **out_ids)
{
	return deal(s, window, ((uint64_t)micro * s->ranks + rank) * s->batch, s->batch, out_ids);
}

uint32_t sampler_window(struct sampler *s, uint64_t window, const uint32_t **out_ids)
{
	return deal(s, window, 0, window_samples(s), out_ids);
}
