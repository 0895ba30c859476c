/* SPDX-License-Identifier: Apache-2.0 */
/* gRPC server: a table of methods, and calls whose handlers all run on the loop thread.
 *
 * One completion-queue thread (the pump) only moves completions to the loop (an inbox and uv_async); so all that is
 * declared here is called on the loop thread and nothing needs a lock. Handlers must not block.
 *
 * Life of a call: on_message (at least once, or on_half_close), then anything in any order, then on_end exactly once
 * and last. `struct rpc_call *` is valid until on_end returns; what lives longer keeps rpc_id and asks rpc_find.
 * A method that answers ends its call with rpc_finish or rpc_fail; on_end follows later. When the client cancels, dies
 * or misses the deadline, on_end comes without an answer. The on_end of unary calls may be 50 ms late. Errors of the
 * layer itself (malformed message, no such method, draining, limits, no identity, missing deadline) are answered here;
 * the handler never sees those calls.
 *
 * Every error carries google.rpc.Status with one gacc.v1.ErrorDetail in the trailer grpc-status-details-bin.
 *
 * The process should raise M_TRIM_THRESHOLD (mallopt, 64 MiB) before its first thread: bulk receive is 1.6 times
 * faster then. Fork only to exec once a server exists.
 */
#ifndef GACC_RPC_RPC_H
#define GACC_RPC_RPC_H

#include "proto/bytes.h"
#include "proto/error_detail.h"
#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct ProtobufCServiceDescriptor;
struct rpc_server;
struct rpc_pool;
struct rpc_call;

enum rpc_kind { RPC_UNARY, RPC_CLIENT_STREAM, RPC_SERVER_STREAM, RPC_BIDI };

enum rpc_flags {
	RPC_NEEDS_DEADLINE = 1 << 0,	/* a call without one is refused: INVALID_ARGUMENT */
	RPC_NEEDS_NO_IDENTITY = 1 << 1, /* health */
	RPC_ENDS_ON_DRAIN = 1 << 2,	/* rpc_server_stop answers open calls of this method with DRAINING */
	/* between gaccds: not in the descriptor set nor in reflection; for callers over TCP whose certificate has the
	 * role of a node, or who have the token, which is as powerful as gaccd itself. Others: PERMISSION_DENIED */
	RPC_INTERNAL = 1 << 3,
	RPC_RELAY = 1 << 4, /* passed on while the server has a relay (rpc/upstream.h) */
};

/* One row. Static storage. Handlers other than on_message may be NULL. */
struct rpc_method {
	const struct ProtobufCServiceDescriptor *service;
	const char *name;
	enum rpc_kind kind;
	unsigned flags;
	uint32_t bulk; /* number of the request's bytes field that is not copied; 0 = none */
	/* Slow work on a request before on_message: runs in the pool (rpc/pool.h) when the message is large, else on
	 * the loop. UNARY without bulk only. rpc_prepared returns its result; NULL is no error. */
	void *(*prepare)(const struct ProtobufCMessage *request);
	void (*discard)(void *prepared); /* required with prepare; not for NULL; where prepare ran, or on the loop */
	/* NULL, or: the call is admitted, and nothing has come of it yet. Must not answer it. */
	void (*on_open)(struct rpc_call *call);
	/* A request, checked. `bulk` is NULL unless the row has a bulk field. Both stay valid until the next rpc_recv
	 * (or, if that is called in here, until this returns) and at most until on_end returns. Streams: the next
	 * message is read only after rpc_recv, which is the back-pressure. */
	void (*on_message)(struct rpc_call *call, const struct ProtobufCMessage *request,
			   const struct bytes_view *bulk);
	/* CLIENT_STREAM, BIDI (required there): the client has sent its last message; comes in answer to rpc_recv. Not
	 * called when the call died. */
	void (*on_half_close)(struct rpc_call *call);
	/* A sent message has left and at most half of max_queued_bytes wait. */
	void (*on_writable)(struct rpc_call *call);
	/* `completed`: the status reached the transport; else cancelled, dead or past the deadline. */
	void (*on_end)(struct rpc_call *call, bool completed);
};

/* What a certificate is for, by its subject alternative name: the URI spiffe://CLUSTER/ROLE/NAME. */
enum rpc_role {
	RPC_ROLE_NONE, /* no certificate, or one without such a URI, which may what an admin may */
	/* a gaccd that dials: may call RPC_INTERNAL rows, RPC_RELAY rows for its users, and those without identity */
	RPC_ROLE_NODE,
	RPC_ROLE_COORDINATOR, /* a gaccd that is dialled: may call only rows that need no identity */
	RPC_ROLE_ADMIN,
};
#define RPC_ROLE_NAME_MAX 64
#define RPC_CLUSTER_MAX 64

struct rpc_peer {
	bool is_unix;	     /* uid and pid come from the kernel (SO_PEERCRED) */
	bool has_token;	     /* over TCP */
	bool relayed;	     /* over TCP, by a node or with the token, for `uid` */
	uid_t uid;	     /* TCP: (uid_t)-1, unless relayed */
	pid_t pid;	     /* TCP: 0 */
	uint64_t start_time; /* of that process, as the listener saw it; 0: it was gone already */
	char name[128];	     /* TCP: the certificate's common name, or "token"; unix: "" */
	enum rpc_role role;
	bool revoked;  /* its calls are refused */
	bool bad_role; /* a certificate with several; its calls are refused */
	/* The certificate's, if it is not that of the server's own, and then its calls are refused; else "" */
	char other_cluster[RPC_CLUSTER_MAX + 1];
	char role_name[RPC_ROLE_NAME_MAX + 1]; /* "" without a role */
	char serial[41];		       /* of the certificate, lower case hex; "" without one */
	char address[64];		       /* for logs: "unix:pid=17", "ipv4:127.0.0.1:40000" */
};

struct rpc_config {
	void *loop; /* uv_loop_t * */
	/* live calls, a quota as in rpc/quota.h, at most 64 for unauthenticated clients. Those that nodes with
	 * certificates pass on are half of them at most, which is a quota of its own, with one in it of each node's
	 * users; and a node has 8 links. More are refused: RESOURCE_EXHAUSTED. 0 = 16384 */
	unsigned max_calls;
	unsigned max_streams;	 /* per connection; more wait in the client. 0 = 1024 */
	size_t max_queued_bytes; /* per call, in rpc_send's queue. 0 = 8 MiB */
	size_t max_queued_all; /* of all calls, replies included, a quota too; each call has RPC_ROOM_MIN. 0 = 1 GiB */
	/* of all requests that handlers still hold, a quota too; more are refused. 0 = 512 MiB */
	size_t max_held_bytes;
	/* of all requests that gRPC has read, or is reading, the held ones included: equal parts for all users with
	 * connections, and one for all callers over TCP; a user that needs more has calls cancelled and connections
	 * closed. 0 = 2 GiB */
	size_t max_unread_bytes;
	/* of a user's calls that gRPC has, and their headers, about; a connection beyond is closed. 0 = 256 MiB */
	size_t max_call_bytes;
	bool relays;	     /* RPC_RELAY rows are only passed on: UNAVAILABLE without rpc_server_set_relay */
	uid_t relay_min_uid; /* calls that a node relays for lower ones are refused. 0 = 1000 */
	int keepalive_ms;    /* ping period and how long to wait for its answer, each. 0 = 10 s */
	int handshake_ms;    /* until a connection over TCP must be able to carry calls, TLS included. 0 = 20 s */
};

/* Server in state "adding rows". UNAVAILABLE, NO_MEMORY. */
enum status rpc_server_new(const struct rpc_config *config, struct rpc_server **out_server);
/* Frees a server that was never started or has stopped. Takes NULL. */
void rpc_server_free(struct rpc_server *server);

/* Adds rows before the start; rpc_context gives `context` to their handlers. INTERNAL when a row names no method of
 * its service. */
enum status rpc_server_add(struct rpc_server *server, const struct rpc_method *rows, size_t n, void *context);

/* How clients over TCP authenticate. Either the three paths (mutual TLS), or token_ok, which is for loopback
 * addresses only: every call carries `authorization: Bearer <token>`, and token_ok compares it in constant time. */
struct rpc_tcp_identity {
	const char *cert_path;
	const char *key_path;
	const char *ca_path;
	bool (*token_ok)(void *context, const char *token, size_t len);
	void *context;
};
/* Listens on "127.0.0.1:7420" or "[::1]:0", before the start. INVALID_CONFIG (no identity, or token off loopback),
 * IO_ERROR (file or port), NO_MEMORY. */
enum status rpc_server_listen_tcp(struct rpc_server *server, const char *address,
				  const struct rpc_tcp_identity *identity, int *out_port);

/* Checks the rows against the descriptor set (INTERNAL, each fault logged: a method without a row, a row without a
 * method, another streaming kind; of RPC_INTERNAL rows, only whether one is double) and starts. */
enum status rpc_server_start(struct rpc_server *server);

/* Reads the serial numbers of certificates that are no longer taken, one a line (rpc/revoked.h has the form), and ends
 * the calls that are made with them, and those to upstreams that have one. One list for the process. IO_ERROR,
 * INVALID_CONFIG, NO_MEMORY: logged, and what was read before holds. */
enum status rpc_server_revoke(struct rpc_server *server, const char *path);

/* Serves a connected stream socket of a unix listener; takes fd, also on failure. UNAVAILABLE once stopping, IO_ERROR,
 * NO_MEMORY. */
enum status rpc_server_add_fd(struct rpc_server *server, int fd, uid_t uid, pid_t pid, uint64_t start_time);

/* A connection of this user that rpc_server_add_fd took has ended. The server frees what it keeps for the user after
 * the last one. */
void rpc_server_fd_gone(struct rpc_server *server, uid_t uid);

/* Drains for drain_ms: new calls are answered DRAINING, and calls of RPC_ENDS_ON_DRAIN rows end so; others go on. Then
 * waits up to grace_ms for the calls to end, then cancels them; on_stopped(context) on the loop when no call, thread or
 * borrowed memory is left and rpc_server_free is allowed. Once, after the start. Without the drain, gRPC answers calls
 * that arrive during the stop with CANCELLED; with it, only a client that goes on calling without a pause can still
 * hear that. */
void rpc_server_stop(struct rpc_server *server, int drain_ms, int grace_ms, void (*on_stopped)(void *context),
		     void *context);

/* Calls. */
uint64_t rpc_id(const struct rpc_call *call);			   /* never 0, never used twice */
struct rpc_call *rpc_find(struct rpc_server *server, uint64_t id); /* NULL when it is over or answered */
struct rpc_server *rpc_server_of(const struct rpc_call *call);
void *rpc_context(const struct rpc_call *call); /* of rpc_server_add */
/* In on_message: what `prepare` has returned; valid like the request. */
void *rpc_prepared(const struct rpc_call *call);
/* In on_message of a row without bulk: the caller owns the request from now on, and frees it with bytes_free. */
struct ProtobufCMessage *rpc_take_request(struct rpc_call *call);
/* For work of this server's users: large messages are decoded in it. */
struct rpc_pool *rpc_server_pool(const struct rpc_server *server);
void rpc_set_data(struct rpc_call *call, void *data); /* the handler's own; NULL at first */
void *rpc_data(const struct rpc_call *call);
void rpc_set_number(struct rpc_call *call, uint32_t number); /* likewise; 0 at first */
uint32_t rpc_number(const struct rpc_call *call);
const struct rpc_peer *rpc_peer(const struct rpc_call *call);
/* INT64_MAX without a deadline; 0 when it has passed. */
int64_t rpc_deadline_left_ns(const struct rpc_call *call);

/* Asks for the next message of a stream. At most one call per message. */
void rpc_recv(struct rpc_call *call);
/* How large a message may be now. At least RPC_ROOM_MIN while nothing waits, whatever other calls have queued. */
#define RPC_ROOM_MIN (64u << 10)
size_t rpc_room(const struct rpc_call *call);
/* Queues a message of a server or bidi stream; packed before it returns. RESOURCE_EXHAUSTED when max_queued_bytes are
 * waiting, or max_queued_all (nothing was queued: the reader is slow; wait for on_writable or rpc_fail), CANCELLED
 * after rpc_finish or rpc_fail, or if the message is larger than rpc_room and nothing waits: that ends the call with
 * RESOURCE_EXHAUSTED. */
enum status rpc_send(struct rpc_call *call, const struct ProtobufCMessage *msg);
/* The same with n bytes by reference as field `bulk`. release(arg) runs on the loop when gRPC no longer reads them, and
 * also when this fails (then before it returns). */
enum status rpc_send_bulk(struct rpc_call *call, const struct ProtobufCMessage *msg, uint32_t bulk, const void *data,
			  size_t n, void (*release)(void *arg), void *arg);

/* Ends the call with OK, after what is queued. `reply` is required for UNARY and CLIENT_STREAM and NULL otherwise. The
 * first of rpc_finish and rpc_fail counts; later ones do nothing. A reply that max_queued_all has no room for becomes
 * RESOURCE_EXHAUSTED. */
void rpc_finish(struct rpc_call *call, const struct ProtobufCMessage *reply);

/* rpc_finish for large replies: make(arg) builds the reply and it is packed in the pool, then release(arg) runs on the
 * loop, whatever became of the call. make may return NULL: NO_MEMORY. Nothing else must answer the call. */
void rpc_finish_made(struct rpc_call *call, const struct ProtobufCMessage *(*make)(void *arg),
		     void (*release)(void *arg), void *arg);

/* Ends the call with an error; messages still queued are dropped. */
void rpc_fail(struct rpc_call *call, const struct rpc_error *error);
/* rpc_fail with a printf message. */
void rpc_failf(struct rpc_call *call, enum status status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Ends the call with a bare gRPC code, for the standard services. */
void rpc_finish_code(struct rpc_call *call, int grpc_code, const char *text);

/* grpc.health.v1. Serving state of a service name; "" is the server as a whole and starts NOT_SERVING; a service that
 * was never set is NOT_FOUND. Watchers hear changes. Add the rows before the start; drop it after the stop. */
struct rpc_health;
enum status rpc_health_new(struct rpc_server *server, struct rpc_health **out_health);
void rpc_health_free(struct rpc_health *health);
enum status rpc_health_set(struct rpc_health *health, const char *name, bool serving);

/* grpc.reflection v1 and v1alpha over the linked descriptor set; lists the services that have rows. */
enum status rpc_reflection_add(struct rpc_server *server);

#endif
