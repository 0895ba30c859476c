/* SPDX-License-Identifier: Apache-2.0 */
/* Who has what of a device, in all processes of the machine. It is read from /proc: memory and contexts are memfds
 * whose names say what they are, so that nothing has to be kept in step when a process dies, and nothing is left behind
 * when the last one ends. FAKE_CUDA_MACHINE is part of the names: tests that run side by side have their own devices.
 *
 * Processes of other users are not seen. A descriptor on its way through a socket is not seen, either.
 */
#ifndef GACC_FAKE_CUDA_HOLDERS_H
#define GACC_FAKE_CUDA_HOLDERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define HOLDERS_NAME 128

void holders_memory_name(unsigned on_machine, char[HOLDERS_NAME]); /* of a memfd for memory of the device */
void holders_context_name(unsigned on_machine,
			  char[HOLDERS_NAME]); /* of a memfd that says: this process has a context */

enum memory_of {
	MEMORY_OF_NOTHING, /* some other descriptor, or another machine's */
	MEMORY_OF_PAST,	   /* of a device that was shut down since (node.h) */
	MEMORY_OF_DEVICE,
};
enum memory_of holders_memory_of(int fd, unsigned *out_on_machine);

uint64_t holders_used(unsigned on_machine); /* bytes of memory that any process has */
uint64_t holders_free(unsigned on_machine);
/* Processes that made the contexts that are there; a context lives on in children of its maker. Fills up to `max` of
 * pids, without duplicates; the return value is how many there are. */
unsigned holders_contexts(unsigned on_machine, pid_t *pids, unsigned max);

/* Between look and use: one process at a time. */
int holders_lock(void);
void holders_unlock(int);

#endif
