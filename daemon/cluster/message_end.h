/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the room: a message whose last field is large, and is lent instead of copied. On the wire its bytes follow
 * the message's own, which end with the field's number and length; in a process they are the `end` of a link's message
 * (link.h). Any thread; no state.
 */
#ifndef GACC_CLUSTER_MESSAGE_END_H
#define GACC_CLUSTER_MESSAGE_END_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ProtobufCMessage;

/* The packed message with `field`, a bytes field below 16 that it does not have, announced as the n bytes that follow.
 * For free(); NULL: no memory. */
void *message_pack_before(const struct ProtobufCMessage *, uint32_t field, size_t n_end, size_t *out_n);
/* The same bytes without what announces the field; false: they announce something else. */
bool message_cut_end(const void *bytes, size_t *n, uint32_t field, size_t n_end);

#endif
