/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses that only devices may use. A window is PROT_NONE except while an operation of a device that has access
 * runs, so that a host that touches device memory dies of SIGSEGV. While one runs, any thread can reach it: such a bug
 * is found when the device is idle. All calls with the driver's lock held. */
#ifndef GACC_FAKE_CUDA_GATE_H
#define GACC_FAKE_CUDA_GATE_H

#include "options.h"

#include <stdbool.h>
#include <stddef.h>

struct window {
	struct window *next;
	char *at;
	size_t n;
	int access[MAX_DEVICES]; /* of each device of the machine, as for mprotect */
	int now;		 /* what mprotect was told */
};

#define ALL_DEVICES ((1u << MAX_DEVICES) - 1)

void gate_add(struct window *); /* which is mapped, with PROT_NONE, and belongs to the caller; .now = PROT_NONE */
void gate_remove(struct window *);
void gate_refresh(void); /* after a change of access */

/* Around an operation that may use what these devices (bits) may use. */
void gate_open(unsigned devices);
void gate_close(unsigned devices);

/* The window in which the byte lies, or NULL. */
struct window *gate_find(const void *);
/* Do windows without holes between them cover these bytes? */
bool gate_covers(const void *, size_t n);

#endif
