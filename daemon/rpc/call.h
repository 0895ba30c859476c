/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the RPC layer: one call, as six files share it; no other file includes this. It is the only header of this
 * room that includes gRPC's, because a call holds some of gRPC's structs. Loop thread, unless said otherwise.
 *
 * Each file calls only those below it: accept.c (a call comes), relay.c (it is passed on), call_recv.c (the request, or
 * the messages of a stream), call_send.c (what goes back), call.c (its life), call_request.c (the request that it
 * holds).
 */
#ifndef GACC_RPC_CALL_H
#define GACC_RPC_CALL_H

#include "rpc/private.h"
#include "rpc/queue.h"

#include <grpc/grpc.h>
#include <grpc/slice.h>

#define CALL_OF(tag_, member) ((struct rpc_call *)((char *)(tag_)-offsetof(struct rpc_call, member)))

/* What a call that is passed on does in its handler's place (relay.c). */
struct rpc_proxy {
	void (*message)(struct rpc_call *call);	 /* `in` has arrived; NULL: the client has sent its last */
	void (*writable)(struct rpc_call *call); /* the message has left */
	void (*closed)(struct rpc_call *call);
};

struct rpc_call {
	grpc_call *grpc;
	grpc_call_details details; /* deadline: of every call; the rest not of unary ones */
	grpc_metadata_array metadata;
	struct rpc_server *server;
	struct rpc_tenant *tenant; /* its gRPC server accepted the call */
	const struct rpc_row *row; /* NULL: no such method */
	uint64_t id;		   /* 0: refused before it got a slot */
	void *data;
	uint32_t number;
	struct rpc_peer peer;
	int64_t user;		 /* as in rpc/quota.h: its quotas pay for this call */
	int64_t node, node_user; /* the same in server->links, of_nodes and of_node_users; 0: it comes from no node */
	struct rpc_tag accept, close, recv, send, finish, turn;
	unsigned pending; /* batches that gRPC has not completed */
	int cancelled;	  /* written by gRPC when `close` comes back */
	bool read_ahead;  /* unary: gRPC has read the request already, and batches complete on server->reaper */
	bool seen;	  /* by a handler, which is therefore owed on_end */
	bool closed;
	bool answered; /* rpc_finish or rpc_fail */
	bool in_handler;
	bool half_closed;
	bool receiving;
	bool wants_next; /* rpc_recv inside of on_message */
	bool sending;
	bool waits; /* for a turn in which it may send; counted in `pending` */
	bool sent_metadata;
	bool sent_status;

	const struct rpc_proxy *proxy; /* NULL: a handler serves the call */
	struct rpc_relay *relay;       /* its other half; NULL: there is none, or none any longer */

	grpc_byte_buffer *in; /* the message that arrived; kept while the handler may read its bulk */
	size_t held_bytes;    /* of it, in server->held */
	struct ProtobufCMessage *request;
	void *prepared;
	struct bytes_view bulk;
	struct rpc_large *large; /* the request was or is being decoded in the pool; NULL: on the loop */

	struct rpc_queue queue;
	grpc_byte_buffer *reply; /* goes out with the status */
	size_t reply_bytes;
	size_t queued_bytes; /* of both, in server->queued */
	int code;
	grpc_slice text;
	grpc_slice detail;
};

/* ---- call.c ---- */

/* Starts a batch; `tag` runs when it completes. gRPC refuses a batch only if we made a mistake: that is logged, and the
 * call is cancelled. */
void rpc_call_start(struct rpc_call *call, const grpc_op *ops, size_t n, struct rpc_tag *tag);
/* Last in every on_*: frees the call if it is closed and every batch has completed. */
void rpc_call_end_if_over(struct rpc_call *call);
/* Frees a call that gRPC has not accepted. */
void rpc_call_free(struct rpc_call *call);
/* Gives it an id. Its user's quota of calls has counted it; both are returned when the call ends. */
void rpc_call_take_slot(struct rpc_call *call);
void rpc_call_on_close(struct rpc_tag *tag, bool ok);
bool rpc_call_has_deadline(const struct rpc_call *call);
/* rpc_quota_take. Calls that have ended count until the reaper runs, so this runs it before it refuses. */
bool rpc_call_take_quota(struct rpc_server *server, struct rpc_quota *shares, int64_t user, size_t n);

/* Drops what waits to be sent; a message in flight stays. */
void rpc_call_drop_queue(struct rpc_call *call);
/* Drops the reply that would go with the status. */
void rpc_call_drop_reply(struct rpc_call *call);
/* Returns to the quota what is counted in `queued_bytes`, but neither queued nor the reply any longer. */
void rpc_call_give_queued(struct rpc_call *call);

/* ---- call_request.c ---- */

/* Unpacks `in`, and runs the method's `prepare`. Else `why` says what is wrong with it. Any thread. */
enum status rpc_call_decode(struct rpc_call *call, char *why, size_t n_why);
/* Is a message of n bytes decoded in the pool? */
bool rpc_call_is_large(const struct rpc_call *call, size_t n);
/* rpc_call_decode in the pool; then decoded(), which must call rpc_call_end_if_over. `why` lives as long as the
 * message. false: out of memory. */
bool rpc_call_decode_large(struct rpc_call *call,
			   void (*decoded)(struct rpc_call *call, enum status st, const char *why));
/* Frees the message that the call holds, in any form, and returns its quota. */
void rpc_call_drop_message(struct rpc_call *call);
/* Frees `in` alone. */
void rpc_call_drop_in(struct rpc_call *call);

/* ---- call_recv.c ---- */

/* Asks for the next message, or the first. */
void rpc_call_recv(struct rpc_call *call);
void rpc_call_on_recv(struct rpc_tag *tag, bool ok);
/* Handles `in`, the message that arrived; NULL: the client has sent its last. */
void rpc_call_take_message(struct rpc_call *call);

/* ---- call_send.c ---- */

void rpc_call_on_turn(struct rpc_tag *tag, bool ok);
void rpc_call_on_sent(struct rpc_tag *tag, bool ok);
void rpc_call_on_finish(struct rpc_tag *tag, bool ok);
/* What another server has answered. The buffers are taken. A message that has no room ends the call: CANCELLED. */
enum status rpc_call_pass_message(struct rpc_call *call, grpc_byte_buffer *message);
/* The reply that goes with the status OK; false: it has no room, and the call has ended for that. */
bool rpc_call_pass_reply(struct rpc_call *call, grpc_byte_buffer *reply);
/* Ends the call after the message that is on its way; both slices stay the caller's. */
void rpc_call_pass_status(struct rpc_call *call, int code, grpc_slice text, grpc_slice detail);

/* ---- relay.c ---- */

/* Passes a call that has its slot on to server->relay. */
void rpc_relay_begin(struct rpc_call *call);

#endif
