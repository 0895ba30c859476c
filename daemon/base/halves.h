/* SPDX-License-Identifier: Apache-2.0 */
/* A record in shared memory that a reader gets whole or not at all, although its writer may be killed at any moment.
 *
 * It has two halves of the same size. A record with number n (from 1) is in half n & 1, so the one before stays valid
 * until the next is published:
 *
 *     0          number, 8 bytes: stored last, with release
 *     8          what the record says
 *     bytes - 8  XXH3-64 of what it says, with the number as its seed
 *
 * One writer; readers may be on any thread and in any process.
 */
#ifndef GACC_BASE_HALVES_H
#define GACC_BASE_HALVES_H

#include <stdbool.h>
#include <stdint.h>

struct halves {
	unsigned char *base; /* 2 * bytes, aligned to 8 */
	uint64_t bytes;	     /* of one half, a multiple of 8 */
};

/* Publishes `image` (halves.bytes) as record number `seq`, one above the newest. Number and checksum of the image are
 * filled in. */
void halves_publish(const struct halves *, unsigned char *image, uint64_t seq);
/* The number in a half, whether its record is valid or not; 0: none was ever there. */
uint64_t halves_number(const struct halves *, unsigned half);
/* Copies a half, and judges the copy, so that the writer may go on meanwhile. False: no valid record of this half. */
bool halves_copy(const struct halves *, unsigned char *image, unsigned half);

#endif
