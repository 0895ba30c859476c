/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the RPC layer: the server, as the files of this room share it. Loop thread. */
#ifndef GACC_RPC_PRIVATE_H
#define GACC_RPC_PRIVATE_H

#include "rpc/rpc.h"
#include "rpc/guard.h"
#include "rpc/pool.h"
#include "rpc/pump.h"
#include "rpc/quota.h"
#include "rpc/turns.h"

struct ProtobufCMessageDescriptor;
struct grpc_call;
struct grpc_completion_queue;
struct rpc_stop;
struct rpc_tenant;
struct rpc_upstream;

struct rpc_row {
	const struct rpc_method *method;
	const struct ProtobufCMessageDescriptor *input;
	const struct ProtobufCMessageDescriptor *output;
	void *context;
	char path[128]; /* "/package.Service/Method" */
};

/* Ids of calls: generation in the upper half, slot in the lower. */
struct rpc_slot {
	struct rpc_call *call; /* NULL: free */
	uint32_t generation;   /* of the current or the next call; never 0 */
	uint32_t next_free;
};

struct rpc_server {
	struct rpc_config config;
	struct rpc_tenant *tenants;	 /* all, the newest first; NULL only after the stop */
	struct rpc_tenant *overflow;	 /* one of them */
	struct rpc_quota overflow_users; /* connections of users whom `overflow` serves */
	struct rpc_guards guards;
	struct rpc_pump *pump;	   /* from the start to the stop */
	struct rpc_reaper *reaper; /* likewise */
	struct rpc_turns *sends;   /* likewise: answers and messages that many calls get at once */
	struct rpc_pool *pool;
	struct rpc_row *rows;
	size_t n_rows;
	struct rpc_slot *slots; /* config.max_calls */
	uint32_t first_free;	/* == max_calls: none */
	struct rpc_peer *peers; /* by descriptor number */
	size_t n_peers;
	bool (*token_ok)(void *context, const char *token, size_t len);
	void *token_context;
	char cluster[RPC_CLUSTER_MAX + 1]; /* of the certificate that it listens with; "": none is named */
	bool draining;
	bool stopping;		/* gRPC accepts no more calls */
	struct rpc_quota calls; /* those that have slots */
	/* calls of nodes, as well: */
	struct rpc_quota links;		/* of each node */
	struct rpc_quota of_nodes;	/* those that they pass on */
	struct rpc_quota of_node_users; /* and of these each user's: only counted */
	struct rpc_quota held;		/* bytes of requests in the hands of handlers */
	struct rpc_quota queued;	/* bytes that clients have not taken yet */
	struct rpc_upstream *upstreams;
	struct rpc_upstream *relay; /* one of them, or NULL */
	/* buffers that gRPC has not returned (borrowed.c), work in libuv's pool, and streams to upstreams */
	unsigned borrowed;
	struct rpc_stop *stop;
};

/* NULL if there is none. */
const struct rpc_row *rpc_row_find(const struct rpc_server *server, const char *path, size_t len);

/* Accepts one more call of this tenant, of this method (UNARY) or of any of the others (NULL). */
void rpc_call_arm(struct rpc_tenant *tenant, const struct rpc_row *row);
/* Ends the call with DRAINING if its row asks for that. */
void rpc_call_drain(struct rpc_call *call);
/* Ends the call if its peer's certificate is revoked. */
void rpc_call_end_revoked(struct rpc_call *call);
/* Ends all calls that were passed on, UNAVAILABLE with this text. */
void rpc_relay_end_all(struct rpc_server *server, const char *why);
/* State of the stop, for server->stop; free() frees it. NULL: out of memory. */
struct rpc_stop *rpc_stop_new(void);
/* Continues a stop that waits, if nothing is out any longer. */
void rpc_server_check_idle(struct rpc_server *server);

/* The reaper: a completion queue for what unary calls complete after their requests have arrived (answers sent, calls
 * that have ended). No thread waits on it, because waking one costs more than the call; the loop polls it after every
 * 64 calls, and every 50 ms while calls are open. */
enum status rpc_reaper_start(void *loop, struct rpc_reaper **out_reaper);
struct grpc_completion_queue *rpc_reaper_queue(struct rpc_reaper *reaper);
/* calls: +1 when a unary call begins, -1 when it is freed. */
void rpc_reaper_expect(struct rpc_reaper *reaper, int calls);
/* Runs the tags of all completions that have arrived. */
void rpc_reaper_run(struct rpc_reaper *reaper);
/* When no call is open: stops the reaper and frees it; then on_stopped(context) runs on the loop. */
void rpc_reaper_stop(struct rpc_reaper *reaper, void (*on_stopped)(void *context), void *context);

/* Memory that gRPC borrows until rpc_borrowed_end, which any thread may call; then release(arg) runs on the loop.
 * NULL: out of memory. */
void *rpc_borrowed_new(struct rpc_server *server, void (*release)(void *arg), void *arg);
void rpc_borrowed_end(void *borrowed);

/* The client that made this call: known by descriptor, certificate or token. UNAUTHENTICATED. */
#define RPC_RELAYED_UID "gacc-uid" /* header of a relayed call: whom it is for */
enum status rpc_peer_find(const struct rpc_server *server, struct grpc_call *call, const char *authorization,
			  size_t authorization_len, struct rpc_peer *out_peer);

/* Cancels the streams to all upstreams. */
/* Ends the streams over connections to gaccds whose certificate is revoked. true: that to which calls are passed on is
 * one of them; `why` says it, without its subject. */
bool rpc_upstreams_check_revoked(struct rpc_server *server, char *why, size_t n_why);
void rpc_upstreams_stop(struct rpc_server *server);

/* From now on gRPC logs through base/log.h, a limited number of lines. */
void rpc_log_hook_install(void);

/* Compares the rows with the descriptor set. INTERNAL; each difference is logged. */
enum status rpc_check_rows(const struct rpc_server *server);

/* Error text for a request that cannot be unpacked. `in` must still hold its bytes. */
void rpc_error_text_unpack(const struct rpc_row *row, struct grpc_byte_buffer *in, enum status st, char *out_text,
			   size_t n_text);
/* Error text: n more bytes of `what` ("requests under way") exceed the quota of this user. */
void rpc_error_text_quota(const struct rpc_quota *shares, const char *what, int64_t user, size_t n, char *out_text,
			  size_t n_text);
/* Error text for a call that the RPC layer refuses; row NULL: no such method, named by `path`. Returns the hint, or
 * NULL: the hint of the status. */
const char *rpc_error_text_refused(const struct rpc_server *server, const struct rpc_row *row, const char *path,
				   size_t n_path, int64_t user, enum status st, char *out_text, size_t n_text);
/* The same for one more call than this node, or the user for whom it calls, may have; both as in struct rpc_call. */
const char *rpc_error_text_node(const struct rpc_server *server, const struct rpc_row *row, int64_t node,
				int64_t node_user, const char *name, char *out_text, size_t n_text);
/* Error text for a call that this peer may not make; returns the hint. */
const char *rpc_error_text_peer(const struct rpc_row *row, const struct rpc_peer *peer, char *out_text, size_t n_text);

#endif
