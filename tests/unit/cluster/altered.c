/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts and alters bytes for the tests of records and messages. */
#include "unit/cluster/altered.h"

#include "unit/cluster/fields.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static uint8_t *copy_of(const void *bytes, size_t n)
{
	uint8_t *copy = malloc(n ? n : 1);
	ck_assert_ptr_nonnull(copy);
	return memcpy(copy, bytes, n);
}

void altered_try(const void *bytes, size_t n, unsigned copies, unsigned (*read)(const uint8_t *bytes, size_t n))
{
	uint64_t random = n;
	unsigned accepted = 0;
	for (size_t cut = 0; cut < n; cut++) {
		uint8_t *copy = copy_of(bytes, cut);
		accepted += read(copy, cut);
		free(copy);
	}
	for (unsigned round = 0; round < copies; round++) {
		uint8_t *copy = copy_of(bytes, n);
		for (unsigned i = 0; i <= fields_random(&random) % 3; i++)
			copy[fields_random(&random) % n] ^= (uint8_t)(1u << fields_random(&random) % 8);
		accepted += read(copy, n);
		free(copy);
	}
	ck_assert_uint_gt(accepted, 0);
	ck_assert_uint_lt(accepted, copies);
}
