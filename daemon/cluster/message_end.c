/* SPDX-License-Identifier: Apache-2.0 */
/* Packs messages up to a last field that is lent, and takes them apart again. For tensors_message.c and
 * placement_message.c. Any thread; no state. */
#include "cluster/message_end.h"

#include <assert.h>
#include <protobuf-c/protobuf-c.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LENGTH 10 /* of a varint */

/* The field's number, that a length follows, and the length. */
static size_t put(uint8_t *at, uint32_t field, uint64_t n)
{
	size_t i = 0;
	at[i++] = (uint8_t)(field << 3 | 2);
	for (; n >= 0x80; n >>= 7)
		at[i++] = (uint8_t)(n | 0x80);
	at[i++] = (uint8_t)n;
	return i;
}

void *message_pack_before(const ProtobufCMessage *m, uint32_t field, size_t n_end, size_t *out_n)
{
	size_t n = protobuf_c_message_get_packed_size(m);
	uint8_t *bytes = malloc(n + 1 + MAX_LENGTH);
	assert(n_end && field < 16);
	if (!bytes)
		return NULL;
	protobuf_c_message_pack(m, bytes);
	*out_n = n + put(bytes + n, field, n_end);
	return bytes;
}

bool message_cut_end(const void *bytes, size_t *n, uint32_t field, size_t n_end)
{
	uint8_t end[1 + MAX_LENGTH];
	size_t n_announced = put(end, field, n_end);
	if (*n < n_announced || memcmp((const uint8_t *)bytes + *n - n_announced, end, n_announced))
		return false;
	*n -= n_announced;
	return true;
}
