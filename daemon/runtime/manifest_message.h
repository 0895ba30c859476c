/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of a message of gacc.internal.v1 in a manifest: each under the name of its field, "next.scale.scale" where
 * messages are nested. So a new field is in checkpoints without a line of its own, and its name is promised to later
 * versions like its number. Any thread.
 */
#ifndef GACC_RUNTIME_MANIFEST_MESSAGE_H
#define GACC_RUNTIME_MANIFEST_MESSAGE_H

#include "store/manifest.h"

struct ProtobufCMessage;
struct ProtobufCMessageDescriptor;

#define MANIFEST_FIELD_NAME 40
#define MANIFEST_FIELD_DEPTH 3

/* The fields of a message and of those in it that are numbers. */
struct manifest_fields {
	struct manifest_field {
		char name[MANIFEST_FIELD_NAME];
		unsigned path[MANIFEST_FIELD_DEPTH], depth; /* field numbers, the message's own first */
	} field[MANIFEST_MAX_VALUES];
	size_t n;
};

/* All but those of the message itself that are in `but`, which ends with NULL. */
void manifest_fields_of(const struct ProtobufCMessageDescriptor *, const char *const *but, struct manifest_fields *out);
/* Appends the fields that are set, of which there is room for all; a message that is nested must be there. The names
 * are those of *fields, which stays. */
void manifest_put_message(const struct manifest_fields *, const struct ProtobufCMessage *, struct manifest_value *to,
			  size_t *n);
/* Sets one field; false: the value is out of its range. */
bool manifest_take_field(const struct manifest_field *, struct ProtobufCMessage *, const struct manifest_value *);

#endif
