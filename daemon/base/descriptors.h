/* SPDX-License-Identifier: Apache-2.0 */
/* How many descriptors this process may have (RLIMIT_NOFILE).
 *
 * Our processes take all that they may have. Programs of others that they start get back what we were started with: a
 * program that uses select(2) writes beyond its fd_set when it has descriptors above 1023.
 */
#ifndef GACC_BASE_DESCRIPTORS_H
#define GACC_BASE_DESCRIPTORS_H

#include <stdint.h>

/* Raises the soft limit to the hard one; returns what it was before. A failure is logged and changes nothing. */
uint64_t descriptors_raise(void);
/* Lowers the soft limit to what descriptors_raise has returned, here or in the parent; descriptors above it stay open.
 * Calls nothing that is unsafe after fork. */
void descriptors_restore(uint64_t before);
/* The soft limit; UINT64_MAX: none. */
uint64_t descriptors_limit(void);

#endif
