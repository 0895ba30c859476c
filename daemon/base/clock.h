/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's clocks as one number. Any thread.
 *
 * Which one: CLOCK_BOOTTIME for how long somebody has waited, also while the machine was asleep; CLOCK_MONOTONIC for
 * rates and for pthread_cond_timedwait; CLOCK_REALTIME for what is shown and recorded: it may jump.
 */
#ifndef GACC_BASE_CLOCK_H
#define GACC_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define CLOCK_NS_PER_S INT64_C(1000000000)

static inline int64_t clock_ns(clockid_t id)
{
	struct timespec t;
	clock_gettime(id, &t);
	return (int64_t)t.tv_sec * CLOCK_NS_PER_S + t.tv_nsec;
}

#endif
