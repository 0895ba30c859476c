/* SPDX-License-Identifier: Apache-2.0 */
/* Client half of the RPC layer: a connection to one daemon, blocking calls with deadlines.
 *
 * A channel has one pump thread, which also keeps reconnecting while nobody calls. Any thread may call; a stream
 * belongs to one thread at a time. Nothing is logged, and nothing is repeated: only the caller knows what a repetition
 * would mean (session.c does it for trainers). Do not use a channel in a child of fork().
 */
#ifndef GACC_CLIENT_CHANNEL_H
#define GACC_CLIENT_CHANNEL_H

#include "proto/bytes.h"
#include "proto/error_detail.h"
#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ProtobufCServiceDescriptor;
struct rpc_channel;
struct rpc_stream;

struct rpc_channel_options {
	const char *target;    /* "unix:/run/gacc/gaccd.sock", "ipv4:127.0.0.1:7420", "dns:host:7420" */
	const char *token;     /* sent as `authorization: Bearer <token>`; NULL: none */
	const char *cert_path; /* mutual TLS: all three paths, or none */
	const char *key_path;
	const char *ca_path;
	const char *server_name; /* name in the server's certificate; NULL: the target's host */
};

/* Does not connect yet. INVALID_ARGUMENT (target, or only some of the paths), IO_ERROR (a file), NO_MEMORY. */
enum status rpc_channel_open(const struct rpc_channel_options *options, struct rpc_channel **out_channel);
/* All its streams must be freed, all calls returned. Takes NULL. */
void rpc_channel_close(struct rpc_channel *channel);

/* Unary call. On OK *out_reply is a message of the method's output type, freed with bytes_free. timeout_ms 0: no
 * deadline. *failure (may be NULL) is filled when the status is not OK. */
enum status rpc_channel_call(struct rpc_channel *channel, const struct ProtobufCServiceDescriptor *service,
			     const char *method, const struct ProtobufCMessage *request, int64_t timeout_ms,
			     struct ProtobufCMessage **out_reply, struct rpc_failure *failure);

/* Streams, of any kind. timeout_ms is the deadline of the whole stream; 0 = none. `bulk` is the number of the reply's
 * bytes field that is not copied, 0 = none. */
enum status rpc_stream_open(struct rpc_channel *channel, const struct ProtobufCServiceDescriptor *service,
			    const char *method, int64_t timeout_ms, uint32_t bulk, struct rpc_stream **out_stream);
/* Sends a message, after waiting until the one before has left: this is the back-pressure. UNAVAILABLE when the stream
 * is over; rpc_stream_finish tells why. */
enum status rpc_stream_send(struct rpc_stream *stream, const struct ProtobufCMessage *msg);
/* The same with n bytes by reference as field `field`. release(arg) runs exactly once, on any thread and also on
 * failure; until then the memory must not change. */
enum status rpc_stream_send_bulk(struct rpc_stream *stream, const struct ProtobufCMessage *msg, uint32_t field,
				 const void *data, size_t n, void (*release)(void *arg), void *arg);
/* No more messages from here. */
enum status rpc_stream_close_send(struct rpc_stream *stream);
/* The next message, or OK with *out_msg NULL at the end of the stream (then rpc_stream_finish tells why). STALLED when
 * timeout_ms pass first (the message is not lost: call again); -1 waits for ever. The message and *out_bulk (may be
 * NULL) belong to the stream and live until the next rpc_stream_next or rpc_stream_free. MALFORMED, NO_MEMORY and
 * RESOURCE_EXHAUSTED end the stream. */
enum status rpc_stream_next(struct rpc_stream *stream, int64_t timeout_ms, const struct ProtobufCMessage **out_msg,
			    struct bytes_view *out_bulk);
/* Half-closes, drops messages that were not read, waits for the status and fills *failure when it is not OK. A server
 * that goes on sending is waited for until the stream's deadline: cancel first to leave early. */
enum status rpc_stream_finish(struct rpc_stream *stream, struct rpc_failure *failure);
/* Any thread. */
void rpc_stream_cancel(struct rpc_stream *stream);
/* Cancels when it is not over, and waits for that. Takes NULL. */
void rpc_stream_free(struct rpc_stream *stream);

#endif
