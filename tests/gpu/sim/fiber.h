/* SPDX-License-Identifier: Apache-2.0 */
/* Stacks that change places: a few instructions on x86-64, ucontext elsewhere or with SIM_UCONTEXT. AddressSanitizer is
 * told. All fibers of a launch belong to one thread of the process. */
#ifndef GACC_TESTS_FIBER_H
#define GACC_TESTS_FIBER_H

#include <cstddef>

#if !defined(__x86_64__) && !defined(SIM_UCONTEXT)
#define SIM_UCONTEXT
#endif
#ifdef SIM_UCONTEXT
#include <ucontext.h>
#endif

struct fiber {
#ifdef SIM_UCONTEXT
	ucontext_t context;
#else
	void *sp;
#endif
	const void *stack; /* lowest address */
	size_t bytes;
	void *fake_stack; /* AddressSanitizer's */
};

/* A fiber that will call `entry`, which never returns, on this stack. */
void fiber_make(fiber *, void *stack, size_t bytes, void (*entry)());
/* Leaves `from`, which is running, for `to`. last: `from` is never entered again but through fiber_make. `from` may be
 * the thread's own stack. */
void fiber_switch(fiber *from, fiber *to, bool last);

#endif
