/* SPDX-License-Identifier: Apache-2.0 */
/* The only conversion between messages and gRPC byte buffers; both sides use it.
 *
 * Decoding trusts nothing: before protobuf-c sees a message, every tag, varint, length, wire type and string of it is
 * checked against the descriptor (strings are UTF-8 without NUL, which protobuf-c would cut), and what unpacking may
 * allocate is bounded by the size of the message. Unknown fields are allowed.
 *
 * A bulk message is a small envelope and one large `bytes` field (number 15 in gacc.v1) that is never copied: on
 * receive it is a window on the received slices, on send it goes by reference. The envelope is at most
 * BYTES_ENVELOPE_MAX.
 *
 * Foreign types are only named here: pass &msg.base of a generated message. Any thread; no state.
 */
#ifndef GACC_PROTO_BYTES_H
#define GACC_PROTO_BYTES_H

#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ProtobufCMessage;
struct ProtobufCMessageDescriptor;
struct grpc_byte_buffer;

#define BYTES_BULK_FIELD 15u
#define BYTES_ENVELOPE_MAX (64u << 10)
#define BYTES_BULK_MAX (4u << 20)
#define BYTES_MESSAGE_MAX (BYTES_BULK_MAX + BYTES_ENVELOPE_MAX)

/* A window on a received message: `left` bytes from `offset` of slice 0 of `slices`. Valid while the message is held.
 * Copy the struct to walk it more than once. */
struct bytes_view {
	const void *slices;
	size_t offset;
	size_t left;
};

/* Takes the next contiguous piece off the view; false at the end. Pieces have any length and alignment. */
bool bytes_next(struct bytes_view *view, const uint8_t **out_piece, size_t *out_len);
/* Copies the first n bytes of the view and takes them off; n <= view->left. */
void bytes_copy(struct bytes_view *view, void *dst, size_t n);

/* Message from n contiguous bytes, freed with bytes_free. MALFORMED; RESOURCE_EXHAUSTED when it would unpack to more
 * than 64 KiB + 16 n bytes (tiny elements in great number); NO_MEMORY. */
enum status bytes_decode(const struct ProtobufCMessageDescriptor *desc, const void *data, size_t n,
			 struct ProtobufCMessage **out_msg);
/* The same from a byte buffer, which stays the caller's. */
enum status bytes_from_buffer(const struct ProtobufCMessageDescriptor *desc, struct grpc_byte_buffer *buffer,
			      struct ProtobufCMessage **out_msg);
/* The same, with field `bulk` left out of the message and handed out as a view; the view is empty if the field is
 * absent, and of the last one if it is repeated. The view borrows from `buffer`. */
enum status bytes_from_buffer_bulk(const struct ProtobufCMessageDescriptor *desc, uint32_t bulk,
				   struct grpc_byte_buffer *buffer, struct ProtobufCMessage **out_msg,
				   struct bytes_view *out_view);
/* Takes NULL. */
void bytes_free(struct ProtobufCMessage *msg);
/* The packed message in n bytes, malloc'ed; NULL: no memory. */
void *bytes_pack(const struct ProtobufCMessage *msg, size_t *out_n);
/* A message of its own memory, freed with bytes_free; NULL: no memory. */
struct ProtobufCMessage *bytes_clone(const struct ProtobufCMessage *msg);

/* For errors: one sentence on the first thing that makes these bytes malformed: which field, where, and the value. Text
 * for a message that is not malformed says so. */
void bytes_explain(const struct ProtobufCMessageDescriptor *desc, const void *data, size_t n, char *why, size_t n_why);
/* The same of a byte buffer, which stays the caller's. */
void bytes_explain_buffer(const struct ProtobufCMessageDescriptor *desc, const struct grpc_byte_buffer *buffer,
			  char *why, size_t n_why);

/* Byte buffer with the packed message, never NULL; free it with grpc_byte_buffer_destroy. */
struct grpc_byte_buffer *bytes_to_buffer(const struct ProtobufCMessage *msg);
/* The same, followed by field `bulk` with n bytes at `data` by reference. release(arg) runs once, on any thread, when
 * gRPC has let go of the last byte; until then the memory must not change. release NULL: the memory is static.
 * `msg` must not set field `bulk` itself. */
struct grpc_byte_buffer *bytes_to_buffer_bulk(const struct ProtobufCMessage *msg, uint32_t bulk, const void *data,
					      size_t n, void (*release)(void *arg), void *arg);

#endif
