/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that is registered (pinned). What a device uses are the pages that were there at that time: if the
 * addresses later name other memory (mremap, munmap, MAP_FIXED), copies still go to the old pages, as with the real
 * driver. That holds for shared mappings; private ones cannot be mapped twice, so there the addresses themselves count.
 * All calls with the driver's lock held. */
#ifndef GACC_FAKE_CUDA_HOST_MEMORY_H
#define GACC_FAKE_CUDA_HOST_MEMORY_H

#include "proto/cuda_types.h"

#include <stdbool.h>

/* INVALID_VALUE: not all of it is mapped, or it is read-only and `flags` does not say so. */
cu_result host_memory_register(void *, size_t n, unsigned flags);
cu_result host_memory_unregister(void *); /* the address that was registered */
/* Pinned memory of the driver's. */
cu_result host_memory_alloc(size_t n, void **out);
cu_result host_memory_free(void *);

/* The address by which devices use registered memory: the same one if the attribute
 * CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM is 1, otherwise one that the host cannot use. NULL: it is not registered. */
void *host_memory_device_pointer(const void *);

enum pinned { PINNED_NOT, PINNED_PARTLY, PINNED_ALL };
/* Is this range registered, by one registration or several? Both kinds of addresses are understood. If all of it is:
 * *out_pages is where the pages of its first part are, which one registration covers; *out_n bytes. */
enum pinned host_memory_find(void *, size_t n, void **out_pages, size_t *out_n);

#endif
