/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory without an address: a memfd. It lives as long as any process has a descriptor of it, as exported memory
 * of the real driver does. All calls with the driver's lock held. */
#ifndef GACC_FAKE_CUDA_ALLOCATION_H
#define GACC_FAKE_CUDA_ALLOCATION_H

#include "proto/cuda_types.h"

#include <stdbool.h>

#define GRANULARITY ((size_t)2 << 20)

struct allocation {
	struct allocation *next;
	int fd;
	size_t n;
	unsigned on_machine; /* the device it lies on */
	unsigned n_mapped;   /* windows of it */
	unsigned n_handles;  /* the maker's, or imports */
	bool exportable;
};

/* Zeroed memory; OUT_OF_MEMORY when the device has not so much left. */
cu_result allocation_make(unsigned on_machine, size_t n, bool exportable, struct allocation **out);
/* From a descriptor, which stays the caller's. INVALID_VALUE: it is none of a device's memory. INVALID_HANDLE: it was,
 * and the device has been shut down since (node.h). */
cu_result allocation_import(int fd, struct allocation **out);
/* Frees it when there is neither window nor handle. */
void allocation_drop(struct allocation *);
struct allocation *allocation_find(cu_handle); /* NULL: no such handle */
cu_handle allocation_handle(const struct allocation *);
/* Closes all descriptors from 3 on but those of allocations: for ghosts, which keep the memory. */
void allocation_close_others(void);

#endif
