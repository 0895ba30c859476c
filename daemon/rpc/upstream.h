/* SPDX-License-Identifier: Apache-2.0 */
/* A gaccd as the client of another one: a channel to it, and streams on that channel.
 *
 * Everything runs on the loop thread of a server that has started, through the server's own completion queue, and
 * nothing blocks. gRPC connects when the first stream is opened. A stream fails at once while there is no connection;
 * then whoever uses it opens another, and gRPC connects again, at most once a second. Nothing is repeated in here.
 *
 * rpc_server_stop cancels the streams when its drain is over, and waits for them.
 */
#ifndef GACC_RPC_UPSTREAM_H
#define GACC_RPC_UPSTREAM_H

#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>

struct ProtobufCMessage;
struct ProtobufCServiceDescriptor;
struct rpc_outgoing;
struct rpc_server;
struct rpc_upstream;

#define RPC_OUTGOING_MESSAGE_MAX (4u << 20) /* bytes of a message that comes back; a larger one ends the stream */

/* Strings are copied. With TLS, the other side's certificate must have the role of a coordinator (rpc/role.h). */
struct rpc_upstream_config {
	const char *address;			    /* "host:port" */
	const char *cert_path, *key_path, *ca_path; /* mutual TLS; all NULL: a loopback address, in the clear */
	const char *server_name; /* in the certificate of the other side; NULL: the host of `address` */
	const char *token;	 /* `authorization: Bearer` of each call, to a loopback address only; NULL: none */
	int keepalive_ms;	 /* ping period and how long to wait for its answer, each; at least 5 s. 0 = 10 s */
};

/* After rpc_server_start. INVALID_CONFIG (a part of the certificate's paths, or no certificate off loopback, or a token
 * off loopback), IO_ERROR (a file cannot be read or used), NO_MEMORY. */
enum status rpc_upstream_new(struct rpc_server *server, const struct rpc_upstream_config *config,
			     struct rpc_upstream **out_upstream);
/* Streams that are open are cancelled and end unseen. Before rpc_server_free. Takes NULL. */
void rpc_upstream_free(struct rpc_upstream *upstream);

/* Calls of RPC_RELAY rows that begin from now on are passed on to this upstream, with the caller's uid and deadline,
 * instead of to their handlers: requests, answers, the status and its details as they are, one message at a time in
 * each direction. NULL: they are not; also before rpc_upstream_free. */
void rpc_server_set_relay(struct rpc_server *server, struct rpc_upstream *upstream);

struct grpc_byte_buffer;
struct rpc_call;

/* What the upstream has answered to rpc_ask, which is lent. Answers the call. */
typedef void rpc_asked_fn(struct rpc_call *call, struct grpc_byte_buffer *answer);

/* The handler of a unary call asks the relay's upstream something for its caller, with the caller's uid and deadline:
 * `path` is that of a unary RPC_RELAY row, "/package.Service/Method". If the answer is an error, or the upstream cannot
 * be reached, the caller hears that, as if the call had been relayed; else `asked` answers it. The row's on_end comes
 * as ever, on_message and on_writable do not. false: there is no relay, no memory, or a question under way; nothing has
 * happened. */
bool rpc_ask(struct rpc_call *call, const char *path, const struct ProtobufCMessage *question, rpc_asked_fn *asked);

/* What a stream tells its owner; `ended` is required, the others may be NULL. Nothing comes inside of a call of this
 * header, and after rpc_outgoing_cancel only `ended`. */
struct rpc_outgoing_ends {
	void *context;
	/* A message, checked; valid until this returns. */
	void (*message)(void *context, const struct ProtobufCMessage *message);
	/* A sent message has left and at most half of max_queued_bytes wait. */
	void (*writable)(void *context);
	/* Exactly once and last: the stream is gone. OK: the other side has ended it. `text` is valid until this
	 * returns. */
	void (*ended)(void *context, enum status st, const char *text);
};

/* Opens a stream of a bidi method. While it is open, at least one of these holds: a message was asked for, or `message`
 * has come and the owner will ask again; else the end may stay unseen, behind messages that nobody reads.
 * UNIMPLEMENTED: the service has no such method; UNAVAILABLE: the server is stopping; NO_MEMORY; INTERNAL. */
enum status rpc_outgoing_open(struct rpc_upstream *upstream, const struct ProtobufCServiceDescriptor *service,
			      const char *method, size_t max_queued_bytes, const struct rpc_outgoing_ends *ends,
			      struct rpc_outgoing **out_stream);
/* Asks for the next message. At most one call per message; nothing is read before, which is the back-pressure. */
void rpc_outgoing_recv(struct rpc_outgoing *stream);
/* Queues a message; packed before it returns. RESOURCE_EXHAUSTED when max_queued_bytes are waiting (nothing was queued:
 * wait for `writable`), CANCELLED after the end of the stream or rpc_outgoing_cancel, NO_MEMORY. */
enum status rpc_outgoing_send(struct rpc_outgoing *stream, const struct ProtobufCMessage *message);
/* Bytes that may be queued now; the last message may go beyond. */
size_t rpc_outgoing_room(const struct rpc_outgoing *stream);
/* `ended` comes on a later turn of the loop, CANCELLED unless the end was on its way. */
void rpc_outgoing_cancel(struct rpc_outgoing *stream);

#endif
