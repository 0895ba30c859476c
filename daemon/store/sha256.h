/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 of bytes that come in pieces (FIPS 180-4, by libcrypto). One thread at a time. */
#ifndef GACC_STORE_SHA256_H
#define GACC_STORE_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHA256_BYTES 32
#define SHA256_HEX (2 * SHA256_BYTES + 1)

struct sha256;

struct sha256 *sha256_new(void);   /* NULL: no memory */
void sha256_free(struct sha256 *); /* NULL is fine */
void sha256_add(struct sha256 *, const void *, size_t n);
void sha256_end(struct sha256 *, uint8_t out[SHA256_BYTES]); /* once, and last */

void sha256_to_hex(const uint8_t *, char out[SHA256_HEX]);
bool sha256_from_hex(const char *, uint8_t out[SHA256_BYTES]); /* exactly 64 digits */

#endif
