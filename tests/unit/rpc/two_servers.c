/* SPDX-License-Identifier: Apache-2.0 */
#include "two_servers.h"

#include "support/scratch.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define TOKEN_LEN (sizeof(TOKEN) - 1)

uv_loop_t loop;
struct rpc_server *hub, *node;
struct rpc_upstream *upstream;
int hub_port;
unsigned n_stopped;
struct at_hub at_hub;
struct at_node at_node;

/* ---- messages ---- */

struct carried {
	Gacc__Internal__V1__PeerMessage message;
	Gacc__Internal__V1__Carried carried;
};

static const ProtobufCMessage *carry(struct carried *c, uint32_t kind, size_t n)
{
	static uint8_t bytes[8u << 20];
	gacc__internal__v1__peer_message__init(&c->message);
	gacc__internal__v1__carried__init(&c->carried);
	c->carried.kind = kind;
	c->carried.bytes.data = bytes;
	c->carried.bytes.len = n;
	c->message.carried = &c->carried;
	return &c->message.base;
}

/* ---- the hub ---- */

enum status hub_send(uint32_t kind, size_t n)
{
	struct carried c;
	return rpc_send(at_hub.call, carry(&c, kind, n));
}

static void on_link(struct rpc_call *call, const ProtobufCMessage *request, const struct bytes_view *bulk)
{
	const Gacc__Internal__V1__PeerMessage *message = (const void *)request;
	at_hub.call = call;
	at_hub.messages++;
	at_hub.last_kind = message->carried->kind;
	at_hub.bytes += message->carried->bytes.len;
	at_hub.peer = *rpc_peer(call);
	if (at_hub.echo)
		ck_assert_int_eq(rpc_send(call, request), ST_OK);
	if (!at_hub.hold)
		rpc_recv(call);
}

static void on_link_half_closed(struct rpc_call *call)
{
	rpc_finish(call, NULL);
}

static void on_link_end(struct rpc_call *call, bool completed)
{
	at_hub.call = NULL;
	at_hub.ends++;
}

const struct rpc_method link_row = {
	.service = PEER,
	.name = "Link",
	.kind = RPC_BIDI,
	.flags = RPC_INTERNAL,
	.on_message = on_link,
	.on_half_close = on_link_half_closed,
	.on_end = on_link_end,
};

static bool token_ok(void *context, const char *token, size_t n)
{
	return n == TOKEN_LEN && memcmp(token, TOKEN, n) == 0;
}

static const struct rpc_tcp_identity by_token = { .token_ok = token_ok };
const struct rpc_tcp_identity *hub_identity = &by_token;
struct fixture hub_calls, node_calls;
uid_t hub_min_uid;
unsigned hub_max_calls;
bool node_relays;
void (*node_flush)(struct rpc_call *, const ProtobufCMessage *, const struct bytes_view *);
void (*node_flush_end)(struct rpc_call *, bool completed);

struct rpc_server *serve(const struct rpc_method *link, int *out_port)
{
	static struct rpc_method of_hub[FIXTURE_ROWS], of_node[FIXTURE_ROWS]; /* a server does not copy them */
	struct rpc_method *rows = out_port ? of_hub : of_node;
	struct rpc_server *server;
	struct rpc_config config = { .loop = &loop,
				     .relay_min_uid = hub_min_uid,
				     .max_calls = out_port ? hub_max_calls : 0,
				     .relays = node_relays && !out_port };
	fixture_rows(rows);
	for (size_t i = 0; i < FIXTURE_ROWS; i++) {
		rows[i].flags |= RPC_RELAY;
		if (out_port || !node_flush || strcmp(rows[i].name, "Flush") != 0)
			continue;
		rows[i].flags &= ~(unsigned)RPC_RELAY;
		rows[i].on_message = node_flush;
		rows[i].on_end = node_flush_end;
	}
	ck_assert_int_eq(rpc_server_new(&config, &server), ST_OK);
	ck_assert_int_eq(rpc_server_add(server, rows, FIXTURE_ROWS, out_port ? &hub_calls : &node_calls), ST_OK);
	ck_assert_int_eq(rpc_server_add(server, link, 1, NULL), ST_OK);
	ck_assert_int_eq(rpc_reflection_add(server), ST_OK);
	if (out_port)
		ck_assert_int_eq(rpc_server_listen_tcp(server, "127.0.0.1:0", hub_identity, out_port), ST_OK);
	ck_assert_int_eq(rpc_server_start(server), ST_OK);
	return server;
}

/* ---- the loop ---- */

static void on_tick(uv_timer_t *timer)
{
}

bool turn_until(bool (*cond)(void), int ms)
{
	uv_timer_t tick;
	uv_timer_init(&loop, &tick);
	uv_timer_start(&tick, on_tick, 5, 5);
	uint64_t end = uv_hrtime() + (uint64_t)ms * 1000000;
	while (!cond() && uv_hrtime() < end)
		uv_run(&loop, UV_RUN_ONCE);
	uv_close((uv_handle_t *)&tick, NULL);
	uv_run(&loop, UV_RUN_NOWAIT);
	return cond();
}

bool never(void)
{
	return false;
}

bool node_ended(void)
{
	return at_node.ended > 0;
}

bool hub_ended(void)
{
	return at_hub.ends > 0;
}

bool hub_has_one(void)
{
	return at_hub.messages >= 1;
}

atomic_bool thread_done;

static bool is_thread_done(void)
{
	return thread_done;
}

void in_thread(void *(*fn)(void *), void *arg)
{
	pthread_t thread;
	thread_done = false;
	ck_assert_int_eq(pthread_create(&thread, NULL, fn, arg), 0);
	run_until(is_thread_done);
	pthread_join(thread, NULL);
}

/* ---- the node ---- */

static void on_message(void *context, const ProtobufCMessage *base)
{
	struct at_node *w = context;
	const Gacc__Internal__V1__PeerMessage *message = (const void *)base;
	w->late += w->ended > 0;
	w->messages++;
	w->last_kind = message->carried->kind;
	if (w->reads)
		rpc_outgoing_recv(w->stream);
}

static void on_writable(void *context)
{
	struct at_node *w = context;
	w->late += w->ended > 0;
	w->writable++;
}

static void on_ended(void *context, enum status st, const char *text)
{
	struct at_node *w = context;
	w->ended++;
	w->status = st;
	w->stream = NULL;
	snprintf(w->text, sizeof(w->text), "%s", text);
	if (w->on_ended)
		w->on_ended();
}

enum status upstream_with(const char *address, const char *token)
{
	return rpc_upstream_new(node, &(struct rpc_upstream_config){ .address = address, .token = token }, &upstream);
}

void dial(int port, const char *token)
{
	char address[32];
	rpc_upstream_free(upstream);
	snprintf(address, sizeof(address), "127.0.0.1:%d", port);
	ck_assert_int_eq(upstream_with(address, token), ST_OK);
}

enum status try_open(const char *method)
{
	struct rpc_outgoing_ends ends = {
		.context = &at_node, .message = on_message, .writable = on_writable, .ended = on_ended
	};
	return rpc_outgoing_open(upstream, PEER, method, QUEUE, &ends, &at_node.stream);
}

void open_stream(bool reads)
{
	at_node = (struct at_node){ .reads = reads };
	ck_assert_int_eq(try_open("Link"), ST_OK);
	if (reads)
		rpc_outgoing_recv(at_node.stream);
}

enum status node_send(uint32_t kind, size_t n)
{
	struct carried c;
	return rpc_outgoing_send(at_node.stream, carry(&c, kind, n));
}

void connected(bool reads)
{
	open_stream(reads);
	ck_assert_int_eq(node_send(1, 0), ST_OK);
	run_until(hub_has_one);
}

static struct users {
	struct rpc_server *server;
	uid_t uid;
	int listener;
	uv_poll_t poll;
} users;

static void on_user(uv_poll_t *poll, int status, int events)
{
	int fd = accept4(users.listener, NULL, NULL, SOCK_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(rpc_server_add_fd(users.server, fd, users.uid, getpid(), 0), ST_OK);
}

void listen_for_users(struct rpc_server *server, uid_t uid, char out_target[USERS_TARGET])
{
	char dir[SCRATCH_PATH];
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	ck_assert(scratch_make(dir));
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/s", dir);
	snprintf(out_target, USERS_TARGET, "unix:%s", address.sun_path);
	users.server = server;
	users.uid = uid;
	users.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(users.listener, (struct sockaddr *)&address, sizeof(address)), 0);
	ck_assert_int_eq(listen(users.listener, 4), 0);
	uv_poll_init(&loop, &users.poll, users.listener);
	uv_poll_start(&users.poll, UV_READABLE, on_user);
}

void on_stopped(void *context)
{
	n_stopped++;
}

bool one_stopped(void)
{
	return n_stopped >= 1;
}

bool both_stopped(void)
{
	return n_stopped == 2;
}

void set_up(void)
{
	uv_loop_init(&loop);
	hub = serve(&link_row, &hub_port);
	node = serve(&link_row, NULL);
	dial(hub_port, TOKEN);
}

void free_all(void)
{
	if (users.server) {
		uv_close((uv_handle_t *)&users.poll, NULL);
		close(users.listener);
		users.server = NULL;
	}
	rpc_upstream_free(upstream);
	rpc_server_free(node);
	rpc_server_free(hub);
	uv_run(&loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(uv_loop_close(&loop), 0);
	ck_assert_uint_eq(at_node.late, 0);
}

void tear_down(void)
{
	rpc_server_set_relay(node, NULL);
	rpc_server_stop(node, 0, 0, on_stopped, NULL);
	rpc_server_stop(hub, 0, 0, on_stopped, NULL);
	run_until(both_stopped);
	free_all();
}
