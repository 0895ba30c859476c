/* SPDX-License-Identifier: Apache-2.0 */
/* Packs and unpacks records of the journal that hold a message, for the other files of this room; messages between
 * gaccds are unpacked in the same way. Any thread; no state. */
#include "cluster/record.h"

#include "proto/bytes.h"

#include <endian.h>
#include <protobuf-c/protobuf-c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t record_form(const void *bytes, size_t n)
{
	uint32_t word = 0;
	if (n >= sizeof(word))
		memcpy(&word, bytes, sizeof(word));
	return le32toh(word);
}

void *record_pack(const struct ProtobufCMessage *m, size_t *out_n)
{
	const uint32_t word = htole32(RECORD_MESSAGE);
	size_t n = sizeof(word) + protobuf_c_message_get_packed_size(m);
	uint8_t *bytes = malloc(n);
	if (!bytes)
		return NULL;
	memcpy(bytes, &word, sizeof(word));
	protobuf_c_message_pack(m, bytes + sizeof(word));
	*out_n = n;
	return bytes;
}

enum status message_unpack(const struct ProtobufCMessageDescriptor *d, const void *bytes, size_t n,
			   struct ProtobufCMessage **out, char *why, size_t n_why)
{
	enum status st = bytes_decode(d, bytes, n, out);
	if (!st || st == ST_NO_MEMORY)
		return st;
	if (st == ST_MALFORMED)
		bytes_explain(d, bytes, n, why, n_why);
	else
		snprintf(why, n_why, "%s: %s", d->short_name, status_info(st)->text);
	return ST_VERSION_SKEW;
}

enum status record_unpack(const struct ProtobufCMessageDescriptor *d, const void *bytes, size_t n,
			  struct ProtobufCMessage **out, char *why, size_t n_why)
{
	uint32_t form = record_form(bytes, n);
	if (form == RECORD_MESSAGE)
		return message_unpack(d, (const uint8_t *)bytes + sizeof(form), n - sizeof(form), out, why, n_why);
	snprintf(why, n_why, "it has another form: %u in %zu bytes", form, n);
	return ST_VERSION_SKEW;
}
