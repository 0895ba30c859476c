/* SPDX-License-Identifier: Apache-2.0 */
/* The limit of a push through a mailbox: an eventfd there and back between this process and one that does nothing else.
 */
#ifndef GACC_TESTS_ECHO_H
#define GACC_TESTS_ECHO_H

#include <stddef.h>
#include <sys/types.h>

struct echo {
	int there, back;
	pid_t pid; /* ends with its parent */
};

void echo_start(struct echo *);
/* Once there and back. */
void echo_call(const struct echo *);

#endif
