/* SPDX-License-Identifier: Apache-2.0 */
/* The limit of a push through a mailbox: an eventfd there and back between this process and a server that does what any
 * service has to do for a push, and nothing else.
 *
 * ECHO_PASS has in it: two eventfds, which block, and between them the engine's own kernel, which adds the gradient
 * from memory that both processes map into the half of the sum that is not in force, and counts what is not finite; the
 * first pass of a window stores. It is what goal C4 names. Not in it: request, answer and their checks, whether the
 * push may count, ledger and record, epoll, the norm of a window's last pass. The slot is not zeroed, as the pushes of
 * the benchmarks do not ask for it.
 *
 * ECHO_RECORD also publishes a control record, so that the push outlives its server. It is ours, not part of the
 * goal's limit, but of that against which the prototype of mailboxes was measured when the goal was set.
 */
#ifndef GACC_TESTS_ECHO_H
#define GACC_TESTS_ECHO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define ECHO_ELEMENTS 1024

enum echo_work { ECHO_BELL, ECHO_PASS, ECHO_RECORD };

struct echo {
	int there, back;
	pid_t pid; /* ends with its parent */
	enum echo_work work;
	uint32_t window; /* calls of one */
	uint64_t calls;
	float *slot, *sum[2]; /* ECHO_ELEMENTS each, shared with the server; ECHO_BELL: none */
};

/* `window`: pushes of one, 1 or more; ECHO_BELL has none, 0. */
void echo_start(struct echo *, enum echo_work, uint32_t window);
/* Once there and back. */
void echo_call(struct echo *);
/* Ends the program when the sum is not that of the window's calls so far. */
void echo_check(const struct echo *);

#endif
