/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays that grow by doubling. */
#ifndef GACC_BASE_ARRAY_H
#define GACC_BASE_ARRAY_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define ARRAY_FIRST 8 /* elements */

/* Room for element number n: the array, which may have moved, and its new *capacity. NULL: no memory, and all is as it
 * was. */
static inline void *array_grow(void *array, size_t n, uint32_t *capacity, size_t element_bytes)
{
	if (n < *capacity)
		return array;
	uint32_t more = *capacity ? 2 * *capacity : ARRAY_FIRST;
	void *grown = realloc(array, more * element_bytes);
	if (grown)
		*capacity = more;
	return grown;
}

#endif
