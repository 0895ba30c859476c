/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the RPC layer: the server, as the files of this room share it. Loop thread. */
#ifndef GACC_RPC_PRIVATE_H
#define GACC_RPC_PRIVATE_H

#include "rpc/rpc.h"
#include "rpc/guard.h"
#include "rpc/pool.h"
#include "rpc/pump.h"
#include "rpc/shares.h"
#include "rpc/turns.h"

struct ProtobufCMessageDescriptor;
struct grpc_call;
struct grpc_completion_queue;
struct rpc_stop;
struct rpc_tenant;

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
	struct rpc_tenant *tenants; /* all, the newest first; NULL only after the stop */
	struct rpc_tenant *common;  /* one of them */
	struct rpc_shares guests;   /* connections in `common` that have a user */
	struct rpc_guards guards;
	struct rpc_pump *pump;	 /* from the start to the stop */
	struct rpc_ends *ends;	 /* likewise */
	struct rpc_turns *sends; /* likewise: answers and messages that many calls get at once */
	struct rpc_pool *pool;
	struct rpc_row *rows;
	size_t n_rows;
	struct rpc_slot *slots; /* config.max_calls */
	uint32_t first_free;	/* == max_calls: none */
	struct rpc_peer *peers; /* by descriptor number */
	size_t n_peers;
	bool (*token_ok)(void *context, const char *token, size_t len);
	void *token_context;
	bool draining;
	bool stopping;		  /* gRPC accepts no more calls */
	struct rpc_shares calls;  /* those that have slots */
	struct rpc_shares held;	  /* bytes of requests in the hands of handlers */
	struct rpc_shares queued; /* bytes that clients have not taken yet */
	unsigned borrowed;	  /* releases of rpc_send_bulk that are out, and work in libuv's pool */
	struct rpc_stop *stop;
};

/* NULL if there is none. */
const struct rpc_row *rpc_row_find(const struct rpc_server *server, const char *path, size_t len);

/* Accepts one more call of this tenant, of this method (UNARY) or of any of the others (NULL). */
void rpc_call_arm(struct rpc_tenant *tenant, const struct rpc_row *row);
/* Ends the call with DRAINING if its row asks for that. */
void rpc_call_drain(struct rpc_call *call);
/* Goes on with the stop when nothing is out any more. */
void rpc_server_check_idle(struct rpc_server *server);

/* The completions of unary calls after their requests have come: answers sent, and calls that are over. Nobody waits
 * for them with a thread, because waking one costs more than the call. The loop looks when it was woken for something
 * else, and every few ten milliseconds while calls are open. */
enum status rpc_ends_start(void *loop, struct rpc_ends **out_ends);
struct grpc_completion_queue *rpc_ends_queue(struct rpc_ends *ends);
/* One more call, one call less. */
void rpc_ends_expect(struct rpc_ends *ends, int calls);
/* Runs the tags that are there. */
void rpc_ends_look(struct rpc_ends *ends);
/* No call is open. on_stopped(context) on the loop, after which it is gone. */
void rpc_ends_stop(struct rpc_ends *ends, void (*on_stopped)(void *context), void *context);

/* Memory that gRPC may read until rpc_loan_end(loan), which any thread may call; then release(arg) runs on the loop.
 * NULL without memory. */
void *rpc_loan_new(struct rpc_server *server, void (*release)(void *arg), void *arg);
void rpc_loan_end(void *loan);

/* Who made this call: by descriptor, certificate or token. UNAUTHENTICATED. */
enum status rpc_peer_find(const struct rpc_server *server, struct grpc_call *call, const char *authorization,
			  size_t authorization_len, struct rpc_peer *out_peer);

/* gRPC's log lines come into ours, of which it cannot make many. */
void rpc_words_take(void);

/* INTERNAL, each difference between rows and descriptor set logged. */
enum status rpc_check_rows(const struct rpc_server *server);

/* Why a request cannot be unpacked; its bytes are still there. */
void rpc_why_unpack(const struct rpc_row *row, struct grpc_byte_buffer *in, enum status st, char *why, size_t n_why);
/* Why `what` ("requests under way") of n bytes more is too much for this user. */
void rpc_why_no_room(const struct rpc_shares *shares, const char *what, int64_t who, size_t n, char *why, size_t n_why);
/* Why the layer refuses a call, by the name of its row, or by its path when there is none; the hint, or NULL: the
 * status's own. */
const char *rpc_why_refused(const struct rpc_server *server, const struct rpc_row *row, const char *path, size_t n_path,
			    int64_t who, enum status st, char *why, size_t n_why);

#endif
