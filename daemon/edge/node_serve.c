/* SPDX-License-Identifier: Apache-2.0 */
/* Serves PeerService.Link to the nodes of the cluster: their Hello, their messages, and what they have missed. For the
 * RPC server and the tick. Loop thread. */
#include "edge/node_serve.h"

#include "base/array.h"
#include "base/log.h"
#include "cluster/order_message.h"
#include "cluster/placed_message.h"
#include "control/members.h"
#include "edge/caller.h"
#include "edge/checkpoints.h"
#include "edge/hosted_nodes.h"
#include "edge/launching.h"
#include "edge/node_facts.h"
#include "edge/peer_link.h"
#include "edge/placing.h"
#include "gacc/internal/v1/peer.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SILENT_NS (INT64_C(3) * 1000000000) /* shorter silence is a restart, which nobody needs to see */

/* A call of a node. */
struct served {
	struct served *next;
	struct daemon *d;
	struct rpc_call *call;
	struct peer_link link;
	uint64_t number;      /* 0: it has not said Hello */
	uint32_t node;	      /* as in struct link_message */
	int64_t opened_ns;    /* of d->awake */
	char end[MEMBER_END]; /* why this gaccd ends it; "": it has not */
};

/* ---- the stream ---- */

static enum status send_pb(void *ctx, const struct Gacc__Internal__V1__PeerMessage *pb)
{
	return rpc_send(((struct served *)ctx)->call, (const struct ProtobufCMessage *)pb);
}

static size_t room(const void *ctx)
{
	return rpc_room(((const struct served *)ctx)->call);
}

/* Without memory the first message is answered so. */
static void on_open(struct rpc_call *call)
{
	struct served *s = calloc(1, sizeof(*s));
	if (!s)
		return;
	const struct peer_link_stream stream = { .ctx = s, .send = send_pb, .room = room };
	s->d = daemon_of(call);
	s->call = call;
	s->opened_ns = awake_ns(&s->d->awake);
	s->next = s->d->served;
	s->d->served = s;
	peer_link_init(&s->link, &stream, s->opened_ns);
	rpc_set_data(call, s);
}

/* ---- Hello ---- */

/* A node whose state_dir was lost counts its starts from 1 again. */
static void link_anew(struct hosted *h, uint32_t part, uint64_t incarnation)
{
	struct hosted_part *p = &h->part[part];
	const bool anew = p->seen && p->seen->view.incarnation > incarnation;
	launching_linked(h, part, anew);
	if (p->seen && p->seen->view.incarnation && p->seen->view.incarnation != incarnation)
		saving_part_lost(h, part);
	if (anew) {
		coord_part_anew(h->coord, part);
		p->seen->view.incarnation = p->ledger.incarnation = 0;
	}
	placing_linked(h, part);
}

/* The node may have missed that a part is wanted, and what it answered may be lost: parts that it has answer again. */
static void place_again(struct daemon *d, uint32_t node, uint64_t incarnation)
{
	for (uint32_t k = 0; k < d->n_jobs; k++) {
		struct hosted *h = d->job[k];
		for (uint32_t i = 0; h->coord && i < h->n_parts; i++)
			if (h->part[i].node == node)
				link_anew(h, i, incarnation);
	}
}

/* The end of a job that its ranks there have not heard of. */
static void send_end(struct served *s, const struct hosted *h, const struct part_held *p)
{
	const char *reason = "";
	enum job_state state = hosted_state(h, &reason, NULL);
	struct order o = { .job_id = h->id,
			   .epoch = p->epoch,
			   .term = s->d->term,
			   .window = p->window,
			   .number = INT64_MAX, /* after all orders of this term */
			   .want = WANT_END };
	node_uuid_halves(h->uuid, &o.uuid_high, &o.uuid_low);
	o.end_status = state == JOB_COMPLETED ? ST_OK : state == JOB_CANCELLED ? ST_CANCELLED : ST_JOB_ENDED;
	snprintf(o.end_reason, sizeof(o.end_reason), "%s", reason);
	size_t n = 0;
	void *bytes = order_pack(&o, &n);
	peer_link_post(&s->link, LINK_ORDER, h->id, p->part, bytes, n, NULL);
}

/* Has a job here this part there, or had it? NULL: it is another coordinator's, or this journal is not the newest. */
static const struct hosted *job_of_held(const struct daemon *d, const struct part_held *p)
{
	const struct hosted *h = hosted_find(d, p->job_id);
	uint64_t high = 0, low = 0;
	if (h)
		node_uuid_halves(h->uuid, &high, &low);
	return h && high == p->uuid_high && low == p->uuid_low ? h : NULL;
}

/* Parts of jobs that are over, or have no part there: their end was lost. What no job here knows is left alone. */
static void drop_strange(struct served *s, const struct peer_hello *hello)
{
	const struct part_held *unknown = NULL;
	uint32_t n_unknown = 0;
	for (uint32_t k = 0; k < hello->n_held; k++) {
		const struct part_held *p = &hello->held[k];
		const struct hosted *h = job_of_held(s->d, p);
		if (!h) {
			unknown = p;
			n_unknown++;
			continue;
		}
		const bool has = h->coord && p->part < h->n_parts && h->part[p->part].node == s->node;
		if (h->aside || (has && h->part[p->part].wanted))
			continue;
		if (hosted_ended(h))
			send_end(s, h, p);
		const struct drop drop = { .job_id = p->job_id,
					   .epoch = p->epoch,
					   .part = p->part,
					   .uuid_high = p->uuid_high,
					   .uuid_low = p->uuid_low };
		size_t n = 0;
		void *bytes = drop_pack(&drop, &n);
		peer_link_post(&s->link, LINK_DROP, p->job_id, p->part, bytes, n, NULL);
	}
	if (unknown)
		log_job(unknown->job_id, LOG_WARN, "PartUnknown",
			"node %s has %u parts of jobs that were never this gaccd's (one is part %u of a job with this "
			"id): they are left there",
			hello->facts.node, n_unknown, unknown->part);
}

static enum status make_place(struct daemon *d, uint32_t node)
{
	while (d->n_node_links <= node) {
		struct peer_link **l = array_grow(d->node_link, d->n_node_links, &d->node_links_capacity, sizeof(*l));
		if (!l)
			return ST_NO_MEMORY;
		d->node_link = l;
		d->node_link[d->n_node_links++] = NULL;
	}
	return ST_OK;
}

static enum status welcome(struct served *s)
{
	const struct daemon *d = s->d;
	struct peer_message m = {
		.kind = PEER_WELCOME,
		.welcome = { .link = s->number, .term = d->term, .lease_ms = (uint32_t)d->node.conf->cluster.lease_ms }
	};
	snprintf(m.welcome.coordinator, sizeof(m.welcome.coordinator), "%.64s", d->node.conf->node.name);
	return peer_link_say(&s->link, &m);
}

static enum status take_hello(struct served *s, const struct peer_hello *hello, char *why, size_t n_why)
{
	struct daemon *d = s->d;
	if (s->number) {
		snprintf(why, n_why, "Hello has come twice");
		return ST_VERSION_SKEW;
	}
	const struct rpc_peer *peer = rpc_peer(s->call);
	if (peer->role == RPC_ROLE_NODE && strcmp(peer->role_name, hello->facts.node)) {
		snprintf(why, n_why, "the certificate is of node %.64s, and Hello.node is %s", peer->role_name,
			 hello->facts.node);
		return ST_PERMISSION_DENIED;
	}
	uint32_t index = 0;
	enum status st = members_hello(d->members, &hello->facts, daemon_now(d), &s->number, &index, why, n_why);
	s->node = index + 1;
	if (!st)
		st = make_place(d, s->node);
	if (!st)
		st = welcome(s);
	if (st)
		return st;
	d->node_link[s->node] = &s->link;
	drop_strange(s, hello);
	place_again(d, s->node, hello->facts.incarnation);
	return ST_OK;
}

/* ---- messages ---- */

static enum status take_carried(struct served *s, const struct peer_carried *c, char *why, size_t n_why)
{
	struct link_message m;
	bool whole = false;
	if (!link_goes_up(c->kind)) {
		snprintf(why, n_why, "Carried.kind is %d, which coordinators send", (int)c->kind);
		return ST_VERSION_SKEW;
	}
	enum status st = peer_assembly_take(&s->link.arrived, c, &m, &whole, why, n_why);
	s->link.frame_ns = awake_ns(&s->d->awake);
	s->link.begun_ns = whole ? 0 : s->link.begun_ns ? s->link.begun_ns : s->link.frame_ns;
	if (st || !whole)
		return st;
	m.node = s->node;
	s->d->link_takes[m.kind](s->d, &m);
	return ST_OK;
}

static enum status take(struct served *s, const struct peer_message *m, char *why, size_t n_why)
{
	if (m->kind == PEER_HELLO)
		return take_hello(s, &m->hello, why, n_why);
	if (!s->number) {
		snprintf(why, n_why, "something else than Hello has come first");
		return ST_VERSION_SKEW;
	}
	if (!members_heard(s->d->members, s->number, daemon_now(s->d), m->kind == PEER_BEAT ? &m->beat : NULL)) {
		snprintf(why, n_why, "a newer link of node %s has taken its place",
			 members_at(s->d->members, s->node - 1)->facts.node);
		return ST_SESSION_FENCED;
	}
	if (m->kind == PEER_WELCOME) {
		snprintf(why, n_why, "Welcome has come from a node");
		return ST_VERSION_SKEW;
	}
	return m->kind == PEER_CARRIED ? take_carried(s, &m->carried, why, n_why) : ST_OK;
}

static void end_link(struct served *s, enum status st, const char *why)
{
	snprintf(s->end, sizeof(s->end), "%.*s", MEMBER_END - 1, why);
	rpc_failf(s->call, st, "%s", why);
}

static void on_message(struct rpc_call *call, const struct ProtobufCMessage *pb, const struct bytes_view *bulk)
{
	struct served *s = rpc_data(call);
	struct peer_message m;
	char why[256] = "";
	if (daemon_of(call)->away) {
		rpc_failf(call, ST_NOT_SUPPORTED, "this gaccd coordinates nothing: its coordinator is %.200s",
			  daemon_of(call)->node.conf->cluster.coordinator);
		return;
	}
	if (!s) {
		no_memory(call);
		return;
	}
	enum status st = peer_message_read((const struct Gacc__Internal__V1__PeerMessage *)pb, &m, why, sizeof(why));
	if (!st) {
		st = take(s, &m, why, sizeof(why));
		peer_message_release(&m);
	}
	if (!st)
		rpc_recv(call);
	else
		end_link(s, st, why[0] ? why : status_info(st)->text);
}

static void on_writable(struct rpc_call *call)
{
	struct served *s = rpc_data(call);
	if (s)
		peer_link_pump(&s->link);
}

static void on_half_close(struct rpc_call *call)
{
	struct served *s = rpc_data(call);
	if (s)
		snprintf(s->end, sizeof(s->end), "its gaccd has hung up");
	rpc_finish(call, NULL);
}

/* From here on nothing is sent to the node over this link. */
static void forget_link(struct served *s)
{
	struct daemon *d = s->d;
	if (s->number && s->node < d->n_node_links && d->node_link[s->node] == &s->link)
		d->node_link[s->node] = NULL;
}

static void on_end(struct rpc_call *call, bool completed)
{
	struct served *s = rpc_data(call);
	if (!s)
		return;
	forget_link(s);
	if (rpc_peer(call)->revoked)
		snprintf(s->end, sizeof(s->end), "its certificate (serial %s) is revoked", rpc_peer(call)->serial);
	if (s->number)
		members_link_gone(s->d->members, s->number,
				  *s->end ? s->end : "its gaccd has ended, or the connection was lost",
				  daemon_now(s->d));
	peer_link_fini(&s->link);
	struct served **at = &s->d->served;
	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	free(s);
}

/* ---- the members ---- */

static void on_event(void *ctx, bool warning, const char *reason, const char *text)
{
	daemon_event(ctx, warning, reason, text);
}

/* What waits for a node that is silent says so by itself; nothing else follows from a state. */
static void on_changed(void *ctx, uint32_t index)
{
}

static void on_close_link(void *ctx, uint64_t number)
{
	struct daemon *d = ctx;
	for (uint32_t i = 0; i < d->n_node_links; i++) {
		struct peer_link *l = d->node_link[i];
		struct served *s = l ? (struct served *)((char *)l - offsetof(struct served, link)) : NULL;
		if (!s || s->number != number)
			continue;
		forget_link(s);
		rpc_failf(s->call, ST_SESSION_FENCED, "a newer link of this node has taken its place");
	}
}

enum status node_serve_new(struct daemon *d)
{
	const struct members_ports ports = {
		.ctx = d, .event = on_event, .changed = on_changed, .close_link = on_close_link
	};
	d->members = members_new(&ports, d->node.conf->node.name, (int64_t)d->node.conf->cluster.lease_ms * 1000000,
				 d->term);
	return d->members ? ST_OK : ST_NO_MEMORY;
}

void node_serve_free(struct daemon *d)
{
	members_free(d->members);
	d->members = NULL;
	free(d->node_link);
	d->node_link = NULL;
	d->n_node_links = d->node_links_capacity = 0;
}

/* Nothing times out in a job while one of its nodes is silent: its memory is there when it comes back. */
static void tell_silence(struct daemon *d, struct now now)
{
	for (uint32_t k = 0; k < d->n_jobs; k++) {
		struct hosted *h = d->job[k];
		for (uint32_t i = 0; h->coord && i < h->n_parts; i++) {
			if (!h->part[i].node)
				continue;
			const struct member *m = members_at(d->members, h->part[i].node - 1);
			char text[128] = "";
			if (m->state != MEMBER_UP && m->silent_ns >= SILENT_NS)
				snprintf(text, sizeof(text), "node %s is silent; what it has is kept there",
					 m->facts.node);
			else if (h->part[i].refusal)
				snprintf(text, sizeof(text), "%s", h->part[i].refusal);
			coord_part_away(h->coord, i, text, now);
		}
	}
}

/* Why a call is to end: it takes one of a node's links and says nothing, or it takes memory and does not get on. A
 * message must come as fast as NODE_SERVE_BYTES_S. false: it is not. */
static bool is_late(const struct served *s, char *why, size_t n_why)
{
	const int64_t now_ns = awake_ns(&s->d->awake);
	const int64_t second = INT64_C(1000000000);
	const int64_t may_take_ns = (int64_t)(s->link.arrived.n / NODE_SERVE_BYTES_S) * second + NODE_SERVE_LATE_NS;
	if (!s->number && now_ns - s->opened_ns >= NODE_SERVE_LATE_NS)
		snprintf(why, n_why, "no Hello has come for %lld s: a link begins with it; dial anew",
			 (long long)(NODE_SERVE_LATE_NS / second));
	else if (s->link.begun_ns && now_ns - s->link.frame_ns >= NODE_SERVE_LATE_NS)
		snprintf(why, n_why, "a message has stopped after %zu bytes: dial anew and send it again",
			 s->link.arrived.n);
	else if (s->link.begun_ns && now_ns - s->link.begun_ns >= may_take_ns)
		snprintf(why, n_why, "a message has come too slowly: %zu bytes in %lld s; dial anew and send it again",
			 s->link.arrived.n, (long long)((now_ns - s->link.begun_ns) / second));
	else
		return false;
	return true;
}

static void end_late(struct daemon *d, struct now now)
{
	char why[200];
	awake_tick(&d->awake, now.mono_ns);
	for (struct served *s = d->served, *next; s; s = next) {
		next = s->next;
		if (!is_late(s, why, sizeof(why)))
			continue;
		forget_link(s);
		peer_assembly_clear(&s->link.arrived);
		s->link.begun_ns = 0;
		s->opened_ns = INT64_MAX; /* once */
		log_warn("a link of node %s is ended: %s",
			 s->number ? members_at(d->members, s->node - 1)->facts.node : "(no Hello)", why);
		end_link(s, ST_DEADLINE, why);
	}
}

void node_serve_tick(struct daemon *d, struct now now)
{
	const struct member_beat beat = node_beat(d);
	end_late(d, now);
	members_tick(d->members, now);
	tell_silence(d, now);
	for (uint32_t k = 0; k < d->n_jobs; k++)
		hosted_nodes_compare(d->job[k], now);
	for (uint32_t i = 0; i < d->n_node_links; i++)
		if (d->node_link[i])
			peer_link_beat(d->node_link[i], &beat, now.mono_ns);
}

const struct rpc_method peer_methods[] = {
	{ .service = &gacc__internal__v1__peer_service__descriptor,
	  .name = "Link",
	  .kind = RPC_BIDI,
	  .flags = RPC_INTERNAL | RPC_ENDS_ON_DRAIN,
	  .on_open = on_open,
	  .on_message = on_message,
	  .on_half_close = on_half_close,
	  .on_writable = on_writable,
	  .on_end = on_end },
};
const size_t n_peer_methods = sizeof(peer_methods) / sizeof(*peer_methods);
