/* SPDX-License-Identifier: Apache-2.0 */
/* Reader of tests/golden/golden.bin; make_golden.py says how it is written. */
#ifndef GACC_TEST_MATH_GOLDEN_H
#define GACC_TEST_MATH_GOLDEN_H

#include <stddef.h>
#include <stdint.h>

/* Loads the file; aborts with a message when it is missing or malformed. */
void golden_load(const char *path);
void golden_unload(void);

/* Elements of "name", 64-byte aligned: NULL (and *n = 0) when there is no such record. `element_bytes` must be the
 * record's. */
const void *golden_find(const char *name, size_t element_bytes, size_t *n);

#endif
