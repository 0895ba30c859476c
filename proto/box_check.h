/* SPDX-License-Identifier: Apache-2.0 */
/* The check of a mailbox's requests, answers and step blocks (mailbox.h): CRC-32 as zlib's crc32() computes it, faster
 * where the processor can multiply polynomials. Any thread. */
#ifndef GACC_PROTO_BOX_CHECK_H
#define GACC_PROTO_BOX_CHECK_H

#include <stddef.h>
#include <stdint.h>

uint32_t box_check(const void *p, size_t bytes);

#endif
