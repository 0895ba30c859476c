/* SPDX-License-Identifier: Apache-2.0 */
/* What the addresses of this process are mapped to, from /proc/self/maps. */
#ifndef GACC_FAKE_CUDA_MAPS_H
#define GACC_FAKE_CUDA_MAPS_H

#include <stdbool.h>
#include <stddef.h>

struct maps_range {
	char *at;
	size_t n;
	bool can_read, can_write, is_shared;
};

/* The mappings that cover [at, at + n), cut to it, in order: fills up to `max`, returns how many there are. 0: some of
 * it is not mapped. */
unsigned maps_find(char *at, size_t n, struct maps_range *out, unsigned max);

#endif
