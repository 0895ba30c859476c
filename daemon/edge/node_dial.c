/* SPDX-License-Identifier: Apache-2.0 */
/* Dials the coordinator of the cluster and keeps the link: Hello, Beats, messages both ways, and a new link when the
 * old one breaks or is silent. For daemon.c and links.c. Loop thread. */
#include "edge/node_dial.h"

#include "base/log.h"
#include "edge/node_facts.h"
#include "edge/own_certificate.h"
#include "edge/part_launch.h"
#include "gacc/internal/v1/peer.pb-c.h"
#include "rpc/upstream.h"
#include "runtime/part.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_PAUSE_NS (INT64_C(100) * 1000000)
#define LAST_PAUSE_NS (INT64_C(300) * 1000000)
#define QUEUE_BYTES (8u << 20)

struct node_dial {
	struct rpc_upstream *upstream;
	struct rpc_outgoing *stream; /* NULL: there is none */
	struct peer_link link;	     /* of the stream */
	bool welcomed;		     /* Welcome has come on it */
	bool cancelled;
	uint64_t term; /* the highest of a coordinator that has welcomed this gaccd */
	int64_t pause_ns, next_ns;
	char token[TOKEN_MAX]; /* "": there are certificates */
	char told[1024];       /* why there is no link, as the log has it; "": there is one, or nobody has been told */
};

/* ---- what is said of it ---- */

/* A coordinator that refuses a certificate ends the connection without a word. */
static void add_certificate(const struct daemon *d, char *text, size_t n)
{
	struct rpc_own_certificate own;
	const size_t at = strlen(text);
	own_certificate_look(d->node.conf, &own);
	if (*own.fault)
		snprintf(text + at, n - at, "; the cause may be here: %s", own.fault);
	else if (*own.name)
		snprintf(text + at, n - at, "; if it refuses this node's %s, its own log says why", own.name);
}

static void tell_lost(struct daemon *d, const char *why, enum status st)
{
	struct node_dial *n = d->dial;
	char text[sizeof(n->told) + 400 + RPC_CERTIFICATE_WHY];
	const bool had = n->welcomed;
	if (!had && !strcmp(n->told, why))
		return; /* dialled again in vain, for the same reason */
	snprintf(n->told, sizeof(n->told), "%s", why);
	snprintf(text, sizeof(text), "%s the coordinator at %.250s: %s; pushes go on, and windows wait for the link",
		 had ? "the link is broken to" : "there is no link to", d->node.conf->cluster.coordinator, why);
	/* gRPC's own check of the coordinator's names says no "certificate" */
	const bool is_about_us = !strstr(why, "certificate") && !strcasestr(why, "verification check") &&
				 !strstr(why, "Connection refused");
	if (st == ST_UNAVAILABLE && !had && is_about_us)
		add_certificate(d, text, sizeof(text));
	daemon_event(d, true, "LinkLost", text);
}

/* ---- messages ---- */

static enum status take_welcome(struct daemon *d, const struct peer_welcome *w, char *why, size_t n_why)
{
	struct node_dial *n = d->dial;
	char text[400];
	if (n->welcomed) {
		snprintf(why, n_why, "it has sent Welcome twice");
		return ST_VERSION_SKEW;
	}
	if (w->term < n->term) {
		snprintf(why, n_why,
			 "its term is %" PRIu64 ", and this node has had %" PRIu64 ": its journal is not the newest",
			 w->term, n->term);
		return ST_STALE_TERM;
	}
	n->term = w->term;
	n->welcomed = true;
	n->pause_ns = FIRST_PAUSE_NS;
	n->told[0] = '\0';
	snprintf(text, sizeof(text), "linked to the coordinator, node %s at %.200s (term %" PRIu64 ")", w->coordinator,
		 d->node.conf->cluster.coordinator, w->term);
	daemon_event(d, false, "Linked", text);
	for (uint32_t i = 0; i < d->node.n_parts; i++)
		d->node.part[i]->told.sent_ns = 0; /* views go again with the tick, as reports do each second */
	for (struct part_launch *l = d->part_launch; l; l = l->next)
		l->sent_ns = 0;
	return ST_OK;
}

static enum status take_carried(struct daemon *d, const struct peer_carried *c, char *why, size_t n_why)
{
	struct link_message m;
	bool whole = false;
	if (link_goes_up(c->kind)) {
		snprintf(why, n_why, "Carried.kind is %d, which nodes send", (int)c->kind);
		return ST_VERSION_SKEW;
	}
	enum status st = peer_assembly_take(&d->dial->link.arrived, c, &m, &whole, why, n_why);
	if (st || !whole)
		return st;
	m.away = true;
	d->link_takes[m.kind](d, &m);
	return ST_OK;
}

static enum status take(struct daemon *d, const struct peer_message *m, char *why, size_t n_why)
{
	if (m->kind == PEER_WELCOME)
		return take_welcome(d, &m->welcome, why, n_why);
	if (!d->dial->welcomed || m->kind == PEER_HELLO) {
		snprintf(why, n_why, "it has sent something else than Welcome first");
		return ST_VERSION_SKEW;
	}
	return m->kind == PEER_CARRIED ? take_carried(d, &m->carried, why, n_why) : ST_OK;
}

static void give_up(struct daemon *d, const char *why)
{
	tell_lost(d, why, ST_OK);
	d->dial->cancelled = true;
	rpc_outgoing_cancel(d->dial->stream);
}

static void on_message(void *ctx, const struct ProtobufCMessage *pb)
{
	struct daemon *d = ctx;
	struct peer_message m;
	char why[200];
	if (d->dial->cancelled)
		return;
	d->dial->link.heard_ns = awake_ns(&d->awake);
	enum status st = peer_message_read((const struct Gacc__Internal__V1__PeerMessage *)pb, &m, why, sizeof(why));
	if (!st) {
		st = take(d, &m, why, sizeof(why));
		peer_message_release(&m);
	}
	if (!st)
		rpc_outgoing_recv(d->dial->stream);
	else
		give_up(d, st == ST_NO_MEMORY ? "no memory for its message" : why);
}

static void on_writable(void *ctx)
{
	peer_link_pump(&((struct daemon *)ctx)->dial->link);
}

/* Before the try after the next. */
static void wait_longer(struct node_dial *n)
{
	n->pause_ns = n->pause_ns * 2 < LAST_PAUSE_NS ? n->pause_ns * 2 : LAST_PAUSE_NS;
}

static void on_ended(void *ctx, enum status st, const char *text)
{
	struct daemon *d = ctx;
	struct node_dial *n = d->dial;
	if (!n->cancelled && !d->node.stopping)
		tell_lost(d, *text ? text : status_info(st)->text, st);
	peer_link_fini(&n->link);
	n->stream = NULL;
	n->welcomed = n->cancelled = false;
	n->next_ns = daemon_now(d).mono_ns + n->pause_ns;
	wait_longer(n);
}

/* ---- dialling ---- */

static enum status send_pb(void *ctx, const struct Gacc__Internal__V1__PeerMessage *pb)
{
	struct node_dial *n = ctx;
	return rpc_outgoing_send(n->stream, (const struct ProtobufCMessage *)pb);
}

static size_t room(const void *ctx)
{
	return rpc_outgoing_room(((const struct node_dial *)ctx)->stream);
}

/* The highest of a coordinator that this part has heard of, also before a restart. */
static uint64_t term_of(const struct part *p)
{
	const uint64_t ordered = job_term(p->job);
	return ordered > p->term ? ordered : p->term;
}

static enum status say_hello(struct daemon *d)
{
	struct part_held *held = calloc(d->node.n_parts + 1, sizeof(*held));
	struct peer_message m = { .kind = PEER_HELLO, .hello = { .held = held } };
	if (!held)
		return ST_NO_MEMORY;
	node_facts(d, &m.hello.facts);
	m.hello.facts.term_seen = d->dial->term;
	for (uint32_t i = 0; i < d->node.n_parts && i < PEER_MAX_HELD; i++) {
		const struct part *p = d->node.part[i];
		struct part_held *is = &held[m.hello.n_held++];
		*is = (struct part_held){ .job_id = p->id,
					  .epoch = job_part(p->job)->epoch,
					  .term = job_term(p->job),
					  .window = job_window(p->job),
					  .part = p->number };
		node_uuid_halves(p->uuid, &is->uuid_high, &is->uuid_low);
		if (term_of(p) > m.hello.facts.term_seen)
			m.hello.facts.term_seen = term_of(p);
	}
	enum status st = peer_link_say(&d->dial->link, &m);
	free(held);
	return st;
}

/* Once the server runs. */
static enum status open_upstream(struct daemon *d)
{
	const struct conf *c = d->node.conf;
	const bool tls = *c->tls.cert != '\0';
	const struct rpc_upstream_config config = { .address = c->cluster.coordinator,
						    .cert_path = tls ? c->tls.cert : NULL,
						    .key_path = tls ? c->tls.key : NULL,
						    .ca_path = tls ? c->tls.ca : NULL,
						    .token = tls ? NULL : d->dial->token };
	enum status st = d->dial->upstream ? ST_OK : rpc_upstream_new(d->rpc, &config, &d->dial->upstream);
	if (!st)
		rpc_server_set_relay(d->rpc, d->dial->upstream); /* JobService is the coordinator's */
	if (st)
		tell_lost(d,
			  st == ST_INVALID_CONFIG || st == ST_IO_ERROR
				  ? "its address or the certificates cannot be used, as the log says"
				  : status_info(st)->text,
			  st);
	return st;
}

static void dial(struct daemon *d, struct now now)
{
	struct node_dial *n = d->dial;
	const struct rpc_outgoing_ends ends = {
		.context = d, .message = on_message, .writable = on_writable, .ended = on_ended
	};
	const struct peer_link_stream stream = { .ctx = n, .send = send_pb, .room = room };
	n->next_ns = now.mono_ns + n->pause_ns;
	if (open_upstream(d)) { /* which says so in the log each time */
		wait_longer(n);
		return;
	}
	if (rpc_outgoing_open(n->upstream, &gacc__internal__v1__peer_service__descriptor, "Link", QUEUE_BYTES, &ends,
			      &n->stream)) {
		n->stream = NULL;
		return; /* no memory, or the server stops */
	}
	peer_link_init(&n->link, &stream, awake_ns(&d->awake));
	if (say_hello(d))
		give_up(d, "no memory for Hello");
	else
		rpc_outgoing_recv(n->stream);
}

void node_dial_tick(struct daemon *d, struct now now)
{
	struct node_dial *n = d->dial;
	if (!n)
		return;
	awake_tick(&d->awake, now.mono_ns);
	if (!n->stream) {
		if (now.mono_ns >= n->next_ns)
			dial(d, now);
		return;
	}
	if (n->welcomed && !n->cancelled) {
		const struct member_beat beat = node_beat(d);
		peer_link_beat(&n->link, &beat, now.mono_ns);
	}
	if (!n->cancelled && awake_ns(&d->awake) - n->link.heard_ns > PEER_LINK_SILENT_NS)
		give_up(d, "it has said nothing for 10 s");
}

struct peer_link *node_dial_link(struct daemon *d)
{
	struct node_dial *n = d->dial;
	return n && n->welcomed && !n->cancelled ? &n->link : NULL;
}

enum status node_dial_new(struct daemon *d)
{
	const struct conf *c = d->node.conf;
	enum status st = ST_OK;
	if (!d->away)
		return ST_OK;
	struct node_dial *n = calloc(1, sizeof(*n));
	if (!n)
		return ST_NO_MEMORY;
	if (!*c->tls.cert)
		st = token_file_read("cluster.token_file", c->cluster.token_file, n->token);
	n->pause_ns = FIRST_PAUSE_NS;
	if (st)
		free(n);
	else
		d->dial = n;
	return st;
}

void node_dial_free(struct daemon *d)
{
	struct node_dial *n = d->dial;
	if (!n)
		return;
	rpc_server_set_relay(d->rpc, NULL);
	rpc_upstream_free(n->upstream);
	if (n->stream)
		peer_link_fini(&n->link);
	free(n);
	d->dial = NULL;
}
