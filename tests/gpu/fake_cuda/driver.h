/* SPDX-License-Identifier: Apache-2.0 */
/* What all calls of the fake driver share: one lock, who may call, and the error that nothing gets rid of.
 *
 * The lock guards every list, queue and counter of the fake. Threads that run operations (stream.h) take it between
 * operations, never during one. Whoever has changed something that others wait for calls driver_notify.
 */
#ifndef GACC_FAKE_CUDA_DRIVER_H
#define GACC_FAKE_CUDA_DRIVER_H

#include "proto/cuda_types.h"

#include <stdbool.h>

void driver_lock(void);
void driver_unlock(void);
void driver_notify(void); /* with the lock held */
void driver_wait(void);	  /* gives the lock back until a driver_notify */

enum needs {
	NEEDS_NOTHING, /* works before cuInit, and in children */
	NEEDS_INIT,
	NEEDS_CONTEXT, /* of the calling thread; fails after an error of a kernel */
};

/* The beginning of every entry point: `function` is its symbol. CUDA_SUCCESS, or what the call has to return without
 * doing anything: NOT_INITIALIZED without cuInit and in a child of the process that called it; what FAKE_CUDA_FAIL
 * says; NOT_PERMITTED in a host function; INVALID_CONTEXT in a thread without one; the sticky error. */
cu_result driver_enter(const char *function, enum needs);
#define ENTER(needs)                                                                                                   \
	do {                                                                                                           \
		cu_result result_ = driver_enter(__func__, needs);                                                     \
		if (result_)                                                                                           \
			return result_;                                                                                \
	} while (0)

void driver_init(void);			 /* cuInit; again is nothing */
bool driver_was_forked(void);		 /* from a process that had called cuInit */
void driver_set_sticky(cu_result);	 /* the first one stays; with or without the lock */
cu_result driver_sticky(void);		 /* CUDA_SUCCESS: none */
void driver_in_host_function(bool here); /* this thread runs one: it may call nothing */

#endif
