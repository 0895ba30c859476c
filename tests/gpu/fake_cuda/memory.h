/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of device memory: reserved ranges, and what is mapped there. All calls with the driver's lock held. */
#ifndef GACC_FAKE_CUDA_MEMORY_H
#define GACC_FAKE_CUDA_MEMORY_H

#include "allocation.h"

#include <stdbool.h>

cu_result memory_reserve(size_t n, size_t align, char **out);
cu_result memory_unreserve(char *, size_t n); /* INVALID_VALUE while something is mapped there */

/* At addresses that are reserved and free. No device has access at first. */
cu_result memory_map(char *, size_t n, size_t offset, struct allocation *);
/* What lies in this range: whole mappings, without holes between them. */
cu_result memory_unmap(char *, size_t n);
cu_result memory_set_access(char *, size_t n, unsigned on_machine, int access);

/* cuMemAlloc: reserved, mapped, accessible for its own device, with unmapped bytes behind it. */
cu_result memory_alloc(unsigned on_machine, size_t n, char **out);
cu_result memory_free(char *);

bool memory_is_device(const void *, size_t n); /* all of it mapped, and accessible for the device on which it lies */

#endif
