/* SPDX-License-Identifier: Apache-2.0 */
/* Records and messages that are cut or altered. For the tests of the room cluster. */
#ifndef GACC_TESTS_CLUSTER_ALTERED_H
#define GACC_TESTS_CLUSTER_ALTERED_H

#include <stddef.h>
#include <stdint.h>

/* Calls `read` with every beginning of the n bytes, and with so many copies in which one to three bits are altered;
 * each lies in memory of exactly its size, so that a sanitizer sees what is read beyond. `read` says how many readers
 * have taken the bytes. Some must have, and not as many as there are copies. The same in every run. */
void altered_try(const void *bytes, size_t n, unsigned copies, unsigned (*read)(const uint8_t *bytes, size_t n));

#endif
