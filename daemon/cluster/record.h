/* SPDX-License-Identifier: Apache-2.0 */
/* A record of the journal that holds a message: one word that says its form, little endian, then the packed message.
 *
 * The word tells it from the records of earlier gaccds, which were memory images and began with a version from 1 to 3
 * (raw_records.h). Those gaccds know no other number and refuse it. A change of a message that a reader must not pass
 * over gets a number of its own here. Any thread; no state.
 */
#ifndef GACC_CLUSTER_RECORD_H
#define GACC_CLUSTER_RECORD_H

#include "proto/status.h"

#include <stddef.h>
#include <stdint.h>

struct ProtobufCMessage;
struct ProtobufCMessageDescriptor;

#define RECORD_MESSAGE 16 /* 4 to 15 are not used */

/* The first word; 0: there is none. */
uint32_t record_form(const void *bytes, size_t n);
/* For free(); NULL: no memory. */
void *record_pack(const struct ProtobufCMessage *, size_t *out_n);
/* The message, for bytes_free. ST_VERSION_SKEW: `why` is one sentence on what is wrong. ST_NO_MEMORY. */
enum status record_unpack(const struct ProtobufCMessageDescriptor *, const void *bytes, size_t n,
			  struct ProtobufCMessage **out, char *why, size_t n_why);
/* The same for a message without the word. */
enum status message_unpack(const struct ProtobufCMessageDescriptor *, const void *bytes, size_t n,
			   struct ProtobufCMessage **out, char *why, size_t n_why);

#endif
