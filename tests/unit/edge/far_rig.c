/* SPDX-License-Identifier: Apache-2.0 */
/* The other end of a link between two gaccds, for unit tests; see the header. One thread. */
#include "far_rig.h"

#include "../rpc/certificates.h"
#include "../rpc/two_servers.h"

#include "edge/daemon.h"
#include "edge/node_dial.h"
#include "edge/node_serve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct far far[3];

static bool token_ok(void *context, const char *token, size_t n)
{
	return n == strlen(FAR_TOKEN) && !memcmp(token, FAR_TOKEN, n);
}

static const struct rpc_tcp_identity by_far_token = { .token_ok = token_ok };

/* ---- what it hears ---- */

static void note(struct far *f, const struct ProtobufCMessage *pb)
{
	struct peer_message m;
	char why[200];
	ck_assert_msg(!peer_message_read((const Gacc__Internal__V1__PeerMessage *)pb, &m, why, sizeof(why)), "%s", why);
	f->n[m.kind]++;
	if (m.kind == PEER_WELCOME)
		f->welcome = m.welcome;
	if (m.kind == PEER_HELLO) {
		f->facts = m.hello.facts;
		f->n_held = m.hello.n_held;
		if (f->n_held)
			f->held = m.hello.held[0];
	}
	if (m.kind == PEER_CARRIED && !m.carried.rest) {
		f->carried[m.carried.kind]++;
		f->job = m.carried.job;
		f->part = m.carried.part;
	}
	peer_message_release(&m);
}

static void on_message(void *context, const struct ProtobufCMessage *pb)
{
	note(context, pb);
	rpc_outgoing_recv(((struct far *)context)->stream);
}

static void on_ended(void *context, enum status st, const char *text)
{
	struct far *f = context;
	f->ended++;
	f->status = st;
	f->stream = NULL;
	snprintf(f->text, sizeof(f->text), "%s", text);
}

static void on_call(struct rpc_call *call, const struct ProtobufCMessage *pb, const struct bytes_view *bulk)
{
	if (far[0].call != call) {
		far[0].call = call;
		far[0].begun++;
	}
	note(&far[0], pb);
	rpc_recv(call);
}

static void on_call_half_closed(struct rpc_call *call)
{
	rpc_finish(call, NULL);
}

static void on_call_end(struct rpc_call *call, bool completed)
{
	far[0].ended++;
	if (far[0].call == call)
		far[0].call = NULL;
}

static const struct rpc_method far_row = {
	.service = PEER,
	.name = "Link",
	.kind = RPC_BIDI,
	.flags = RPC_INTERNAL,
	.on_message = on_call,
	.on_half_close = on_call_half_closed,
	.on_end = on_call_end,
};

/* ---- servers ---- */

static void open_server(const struct rpc_tcp_identity *identity)
{
	const struct rpc_config c = { .loop = &d.node.loop, .relays = d.away };
	ck_assert_int_eq(rpc_server_new(&c, &d.rpc), ST_OK);
	ck_assert_int_eq(methods_add(&d), ST_OK);
	ck_assert_int_eq(rpc_reflection_add(d.rpc), ST_OK);
	if (identity)
		ck_assert_int_eq(rpc_server_listen_tcp(d.rpc, "127.0.0.1:0", identity, &hub_port), ST_OK);
	ck_assert_int_eq(rpc_server_start(d.rpc), ST_OK);
}

void far_serve(bool certificates)
{
	const struct rpc_tcp_identity by_certificate = { .cert_path = certificates ? path_of(0, "hub", "pem") : NULL,
							 .key_path = certificates ? path_of(1, "hub", "key") : NULL,
							 .ca_path = certificates ? path_of(2, "ca", "pem") : NULL };
	memset(far, 0, sizeof(far));
	n_stopped = 0;
	uv_loop_init(&loop);
	open_server(certificates ? &by_certificate : &by_far_token);
	node = serve(&far_row, NULL);
}

void far_link(struct far *f, const char *who)
{
	const struct rpc_outgoing_ends ends = { .context = f, .message = on_message, .ended = on_ended };
	memset(f, 0, sizeof(*f));
	if (who)
		dial_as(who, NULL);
	else if (!upstream)
		dial(hub_port, FAR_TOKEN);
	ck_assert_int_eq(rpc_outgoing_open(upstream, PEER, "Link", QUEUE, &ends, &f->stream), ST_OK);
	rpc_outgoing_recv(f->stream);
}

static void set_text(char **at, const char *text)
{
	free(*at);
	*at = strdup(text);
	ck_assert_ptr_nonnull(*at);
}

void far_coordinate(void)
{
	char text[SCRATCH_PATH + 64];
	memset(far, 0, sizeof(far));
	n_stopped = 0;
	uv_loop_init(&loop);
	hub_identity = &by_far_token;
	node = serve(&far_row, &hub_port);
	snprintf(text, sizeof(text), "%s/token", rig_state);
	FILE *f = fopen(text, "we");
	ck_assert_ptr_nonnull(f);
	ck_assert_int_ge(fputs(FAR_TOKEN, f), 0);
	ck_assert(!fclose(f) && !chmod(text, 0600));
	set_text(&conf->cluster.token_file, text);
	snprintf(text, sizeof(text), "127.0.0.1:%d", hub_port);
	set_text(&conf->cluster.coordinator, text);
	d.away = true;
	open_server(NULL);
	ck_assert_int_eq(node_dial_new(&d), ST_OK);
}

void far_turn(void)
{
	uv_run(&d.node.loop, UV_RUN_NOWAIT);
	uv_run(&loop, UV_RUN_NOWAIT);
	usleep(200);
}

void far_close(void)
{
	d.node.stopping = true;
	if (node)
		rpc_server_set_relay(node, NULL);
	rpc_server_stop(node, 0, 0, on_stopped, NULL);
	rpc_server_stop(d.rpc, 0, 0, on_stopped, NULL);
	FAR_UNTIL(n_stopped == 2);
	node_dial_free(&d);
	rpc_server_free(d.rpc);
	d.rpc = NULL;
	free_all();
	upstream = NULL;
	d.node.stopping = false;
}

/* ---- what it says ---- */

static enum status send_one(struct far *f, const Gacc__Internal__V1__PeerMessage *pb)
{
	return f->stream ? rpc_outgoing_send(f->stream, &pb->base) : rpc_send(f->call, &pb->base);
}

void far_say(struct far *f, const struct peer_message *m)
{
	Gacc__Internal__V1__PeerMessage *pb = peer_message_make(m);
	const uint64_t end = uv_hrtime() + UINT64_C(10000000000);
	ck_assert_ptr_nonnull(pb);
	enum status st = send_one(f, pb);
	while (st == ST_RESOURCE_EXHAUSTED &&
	       uv_hrtime() < end) { /* a large one has come there, and is not over here */
		far_turn();
		st = send_one(f, pb);
	}
	ck_assert_int_eq(st, ST_OK);
	free(pb);
}

void far_hello(struct far *f, const char *name, uint64_t incarnation, uint64_t job)
{
	const struct part_held held = { .job_id = job, .epoch = 1 };
	struct peer_message m = { .kind = PEER_HELLO, .hello = { .held = &held, .n_held = job != 0 } };
	m.hello.facts = (struct member_facts){
		.boot_id = { 1 }, .incarnation = incarnation, .protocol_min = 1, .protocol_max = 1, .cpus = 1
	};
	snprintf(m.hello.facts.node, sizeof(m.hello.facts.node), "%s", name);
	snprintf(m.hello.facts.data_address, sizeof(m.hello.facts.data_address), "127.0.0.1");
	snprintf(m.hello.facts.coll, sizeof(m.hello.facts.coll), "gloo/1");
	far_say(f, &m);
}

void far_carry(struct far *f, enum link_kind kind, uint64_t job, uint32_t part, const void *bytes, size_t n)
{
	const struct peer_message m = { .kind = PEER_CARRIED,
					.carried = { .kind = kind, .job = job, .part = part, .bytes = bytes, .n = n } };
	far_say(f, &m);
}
