/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that runs one call at a time, for a thread that must not wait: the communication thread of comm.h.
 *
 *   state     event                       next      what happens
 *   IDLE      call_thread_post            POSTED    the thread runs the call
 *   POSTED    the call returns            DONE      the descriptor becomes readable
 *   DONE      call_thread_take            IDLE      its result
 *
 * What a call is given is the thread's until the call has returned. All functions are called by one thread, the owner;
 * none of them waits, except await and free. */
#ifndef GACC_ENGINE_CALL_THREAD_H
#define GACC_ENGINE_CALL_THREAD_H

#include "proto/status.h"

#include <stdbool.h>
#include <stdint.h>

struct call_thread;
typedef enum status call_fn(void *arg); /* on the thread, which takes no signals */

/* ST_NO_MEMORY, ST_IO_ERROR (no eventfd, no thread). */
enum status call_thread_new(struct call_thread **out);
/* Nothing is POSTED; NULL is fine. */
void call_thread_free(struct call_thread *);

int call_thread_fd(const struct call_thread *); /* readable: a call has returned since it was last taken */
/* Only in IDLE. */
void call_thread_post(struct call_thread *, call_fn *, void *arg);
/* true: a call has returned, and this is what. */
bool call_thread_take(struct call_thread *, enum status *result);
bool call_thread_is_idle(struct call_thread *);	   /* nothing is posted, and nothing is to be taken */
bool call_thread_is_running(struct call_thread *); /* POSTED */
/* Until the call that runs has returned; false: it has not, and CLOCK_MONOTONIC has reached this time. */
bool call_thread_await(struct call_thread *, int64_t until_ns);

#endif
