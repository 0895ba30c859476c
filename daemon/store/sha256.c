/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 by libcrypto, and its text in hexadecimal. For checkpoint.c, manifest.c and the engine's snapshot_restore.c;
 * no shared state, one thread at a time for each context. */
#include "store/sha256.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

/* struct sha256 is libcrypto's context under our name. */
static EVP_MD_CTX *context(struct sha256 *s)
{
	return (EVP_MD_CTX *)s;
}

struct sha256 *sha256_new(void)
{
	EVP_MD_CTX *c = EVP_MD_CTX_new();
	if (c && EVP_DigestInit_ex(c, EVP_sha256(), NULL) == 1)
		return (struct sha256 *)c;
	EVP_MD_CTX_free(c);
	return NULL;
}

void sha256_free(struct sha256 *s)
{
	EVP_MD_CTX_free(context(s));
}

void sha256_add(struct sha256 *s, const void *data, size_t n)
{
	EVP_DigestUpdate(context(s), data, n); /* fails only for a context that was not initialised */
}

void sha256_end(struct sha256 *s, uint8_t out[SHA256_BYTES])
{
	EVP_DigestFinal_ex(context(s), out, NULL);
}

void sha256_to_hex(const uint8_t *in, char out[SHA256_HEX])
{
	for (int i = 0; i < SHA256_BYTES; i++)
		snprintf(out + 2 * i, 3, "%02x", in[i]);
}

bool sha256_from_hex(const char *text, uint8_t out[SHA256_BYTES])
{
	static const char digits[] = "0123456789abcdef";
	if (strlen(text) != 2 * SHA256_BYTES || strspn(text, digits) != 2 * SHA256_BYTES)
		return false;
	for (int i = 0; i < SHA256_BYTES; i++) {
		long high = strchr(digits, text[2 * i]) - digits, low = strchr(digits, text[2 * i + 1]) - digits;
		out[i] = (uint8_t)(high << 4 | low);
	}
	return true;
}
