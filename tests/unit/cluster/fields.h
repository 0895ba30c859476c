/* SPDX-License-Identifier: Apache-2.0 */
/* Structs in which every member has a value of its own, so that a member which a message leaves out is noticed; and
 * numbers to alter bytes by. For the tests of the room cluster. */
#ifndef GACC_TESTS_CLUSTER_FIELDS_H
#define GACC_TESTS_CLUSTER_FIELDS_H

#include <stddef.h>
#include <stdint.h>

/* Fills n bytes with small numbers that differ from word to word; as doubles they are finite and > 0. */
static inline void fields_fill(void *to, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++)
		((uint8_t *)to)[i] = (uint8_t)(1 + (i / 4 * 7 + i + seed) % 59);
}

/* Pseudo-random numbers that are the same in every run. */
static inline uint32_t fields_random(uint64_t *state)
{
	*state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(*state >> 33);
}

#endif
