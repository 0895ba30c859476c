/* SPDX-License-Identifier: Apache-2.0 */
/* Monotonic time, and waiting by it. Any thread. */
#ifndef GACC_CLIENT_CLOCK_H
#define GACC_CLIENT_CLOCK_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

int64_t now_ns(void);
int64_t now_ms(void);
void sleep_ms(int64_t ms);

/* A condition whose timed waits go by this clock, and the moment `ms` from now as they want it. */
void cond_init(pthread_cond_t *cond);
struct timespec time_in(int64_t ms);

#endif
