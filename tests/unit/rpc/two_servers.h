/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of calls between two gaccds: a hub that serves PeerService.Link over TCP, and a node with an upstream to
 * it. Both are real servers, on one loop in the test's own thread. */
#ifndef GACC_TESTS_TWO_SERVERS_H
#define GACC_TESTS_TWO_SERVERS_H

#include "gacc/internal/v1/peer.pb-c.h"
#include "rpc/rpc.h"
#include "rpc/upstream.h"
#include "support/rpc_fixture.h"

#include <check.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <protobuf-c/protobuf-c.h>
#include <uv.h>

#define PEER (&gacc__internal__v1__peer_service__descriptor)
#define TOKEN "open sesame"
#define QUEUE (1u << 20) /* bytes that may wait at the node */

extern uv_loop_t loop;
extern struct rpc_server *hub, *node;
extern struct rpc_upstream *upstream;
extern int hub_port;
extern unsigned n_stopped; /* servers, that the test or tear_down has stopped with on_stopped */

/* The hub's side of the newest stream, and what it does with messages. */
extern struct at_hub {
	struct rpc_call *call;
	bool echo, hold; /* hold: does not ask for the next message */
	unsigned messages, ends;
	uint32_t last_kind;
	size_t bytes;
	struct rpc_peer peer;
} at_hub;

/* The node's side. */
extern struct at_node {
	struct rpc_outgoing *stream;
	bool reads; /* asks for the next message */
	unsigned messages, writable, ended, late;
	uint32_t last_kind;
	enum status status;
	char text[512];
	void (*on_ended)(void);
} at_node;

extern struct fixture hub_calls, node_calls; /* only the counts of the calls of gacc.v1 */
extern bool node_relays;		     /* the node serves no call of gacc.v1 itself */
/* NULL, or what handles Flush at the node, where it is no RPC_RELAY row then. For set_up. */
extern void (*node_flush)(struct rpc_call *, const ProtobufCMessage *, const struct bytes_view *);
extern void (*node_flush_end)(struct rpc_call *, bool completed);
extern uid_t hub_min_uid;      /* of rpc_config, for both */
extern unsigned hub_max_calls; /* likewise, for the hub */
extern const struct rpc_method link_row;
/* How the hub knows its clients: by TOKEN, unless set_up is called with another. */
extern const struct rpc_tcp_identity *hub_identity;

/* A server with all rows of gacc.v1 and `link`; out_port NULL: without TCP. */
struct rpc_server *serve(const struct rpc_method *link, int *out_port);

/* Runs the loop until cond() holds; false after ms. */
bool turn_until(bool (*cond)(void), int ms);
#define run_until(cond) ck_assert_msg(turn_until(cond, 20000), #cond)
bool never(void);
bool node_ended(void);
bool hub_ended(void);
bool hub_has_one(void);
bool one_stopped(void);
bool both_stopped(void);

/* Runs fn in a thread of its own, for the client library's calls, which block; it sets thread_done last. */
void in_thread(void *(*fn)(void *arg), void *arg);
extern atomic_bool thread_done;

/* A message of n bytes. */
enum status hub_send(uint32_t kind, size_t n);
enum status node_send(uint32_t kind, size_t n);

enum status upstream_with(const char *address, const char *token);
void dial(int port, const char *token);
enum status try_open(const char *method);
void open_stream(bool reads);
/* An open stream that the hub has seen. */
void connected(bool reads);

/* A unix socket where every caller is this user. Until free_all. */
#define USERS_TARGET 128
void listen_for_users(struct rpc_server *server, uid_t uid, char out_target[USERS_TARGET]);

void on_stopped(void *context);
void set_up(void);
/* After both have stopped. */
void free_all(void);
void tear_down(void);

#endif
