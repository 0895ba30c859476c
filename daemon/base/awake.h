/* SPDX-License-Identifier: Apache-2.0 */
/* The time in which a loop has run, for limits on how long somebody else may be silent. A process that was stopped, or
 * whose machine stood still, has not read what was sent meanwhile: of the time between two ticks of its loop one second
 * counts at most.
 *
 * What happens between two ticks has the time of the earlier one. One thread, the loop's.
 */
#ifndef GACC_BASE_AWAKE_H
#define GACC_BASE_AWAKE_H

#include <stdint.h>

#define AWAKE_GAP_NS INT64_C(1000000000)

/* Zeros: no tick yet. */
struct awake {
	int64_t counted_ns, ticked_ns;
};

/* mono_ns: CLOCK_MONOTONIC, no earlier than before. The same time again counts nothing. */
static inline void awake_tick(struct awake *a, int64_t mono_ns)
{
	const int64_t gap = a->ticked_ns ? mono_ns - a->ticked_ns : 0;
	a->counted_ns += gap < AWAKE_GAP_NS ? gap : AWAKE_GAP_NS;
	a->ticked_ns = mono_ns;
}

/* Never 0. */
static inline int64_t awake_ns(const struct awake *a)
{
	return a->counted_ns + 1;
}

#endif
