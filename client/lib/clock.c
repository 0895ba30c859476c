/* SPDX-License-Identifier: Apache-2.0 */
/* Monotonic time in nanoseconds and milliseconds, sleeping, and timed waits on
 * conditions by that clock. Any thread. */
#include "lib/clock.h"

int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t now_ms(void)
{
	return now_ns() / 1000000;
}

void sleep_ms(int64_t ms)
{
	nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 }, NULL);
}

void cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t monotonic;

	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &monotonic);
	pthread_condattr_destroy(&monotonic);
}

struct timespec time_in(int64_t ms)
{
	int64_t ns = now_ns() + ms * 1000000;

	return (struct timespec){ .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 };
}
