/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the messages that two gaccds send each other over their link, and checks those that come in. For
 * edge/peer_link.c, on the loop thread; no state. */
#include "cluster/peer_message.h"

#include "cluster/message_text.h"
#include "control/spec.h"
#include "gacc/internal/v1/peer.pb-c.h"
#include "proto/utf8.h"

#include <arpa/inet.h>
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HELLO_FIELDS(X)                                                                                                \
	X(incarnation)                                                                                                 \
	X(protocol_min) X(protocol_max) X(cpus) X(memory_limit) X(memory_used) X(term_seen) X(kernels_revision)
#define HELLO_TEXTS(X) X(node) X(version) X(coll) X(kernels) X(data_address)
#define HELD_FIELDS(X) X(job_id) X(part) X(epoch) X(term) X(window) X(uuid_high) X(uuid_low)
#define WELCOME_FIELDS(X) X(link) X(term) X(lease_ms)
#define BEAT_FIELDS(X) X(memory_limit) X(memory_used)
#define MIN_LEASE_MS 1000 /* as in the configuration, cluster.lease */
#define MAX_LEASE_MS 3600000

typedef Gacc__Internal__V1__PeerMessage Message;

uint64_t peer_most(enum link_kind kind)
{
	return kind == LINK_PLACEMENT || kind == LINK_TENSORS ? UINT64_C(128) << 20 : UINT64_C(16) << 20;
}

/* ---- for sending ---- */

/* A message and what it points to, in one block. */
struct made_hello {
	Message message;
	Gacc__Internal__V1__Hello hello;
	struct member_facts facts;
	Gacc__Internal__V1__PartHeld held[]; /* [n_held], and then so many pointers to them */
};
struct made_welcome {
	Message message;
	Gacc__Internal__V1__Welcome welcome;
	char coordinator[MEMBER_NAME];
};
struct made_beat {
	Message message;
	Gacc__Internal__V1__Beat beat;
};
struct made_carried {
	Message message;
	Gacc__Internal__V1__Carried carried;
};

static Message *make_hello(const struct peer_hello *h)
{
	assert(h->n_held <= PEER_MAX_HELD);
	Gacc__Internal__V1__PartHeld **list;
	struct made_hello *b = malloc(sizeof(*b) + h->n_held * (sizeof(*b->held) + sizeof(*list)));
	if (!b)
		return NULL;
	gacc__internal__v1__peer_message__init(&b->message);
	gacc__internal__v1__hello__init(b->message.hello = &b->hello);
	b->facts = h->facts;
#define X(field) b->hello.field = h->facts.field;
	HELLO_FIELDS(X)
#undef X
#define X(field)                                                                                                       \
	utf8_repair(b->facts.field);                                                                                   \
	b->hello.field = b->facts.field;
	HELLO_TEXTS(X)
#undef X
	b->hello.boot_id = (ProtobufCBinaryData){ sizeof(b->facts.boot_id), b->facts.boot_id };
	list = (Gacc__Internal__V1__PartHeld **)(void *)(b->held + h->n_held);
	for (uint32_t i = 0; i < h->n_held; i++) {
		gacc__internal__v1__part_held__init(list[i] = &b->held[i]);
#define X(field) b->held[i].field = h->held[i].field;
		HELD_FIELDS(X)
#undef X
	}
	b->hello.held = list;
	b->hello.n_held = h->n_held;
	return &b->message;
}

static Message *make_welcome(const struct peer_welcome *w)
{
	struct made_welcome *b = malloc(sizeof(*b));
	if (!b)
		return NULL;
	gacc__internal__v1__peer_message__init(&b->message);
	gacc__internal__v1__welcome__init(b->message.welcome = &b->welcome);
	memcpy(b->coordinator, w->coordinator, sizeof(b->coordinator));
	utf8_repair(b->coordinator);
	b->welcome.coordinator = b->coordinator;
#define X(field) b->welcome.field = w->field;
	WELCOME_FIELDS(X)
#undef X
	return &b->message;
}

static Message *make_beat(const struct member_beat *s)
{
	struct made_beat *b = malloc(sizeof(*b));
	if (!b)
		return NULL;
	gacc__internal__v1__peer_message__init(&b->message);
	gacc__internal__v1__beat__init(b->message.beat = &b->beat);
#define X(field) b->beat.field = s->field;
	BEAT_FIELDS(X)
#undef X
	return &b->message;
}

static Message *make_carried(const struct peer_carried *c)
{
	struct made_carried *b = malloc(sizeof(*b));
	assert(c->kind < LINK_KINDS && c->n && c->n <= PEER_FRAME);
	if (!b)
		return NULL;
	gacc__internal__v1__peer_message__init(&b->message);
	gacc__internal__v1__carried__init(b->message.carried = &b->carried);
	b->carried.kind = c->kind;
	b->carried.job_id = c->job;
	b->carried.part = c->part;
	b->carried.bytes = (ProtobufCBinaryData){ c->n, (uint8_t *)c->bytes };
	b->carried.rest = c->rest;
	return &b->message;
}

Message *peer_message_make(const struct peer_message *p)
{
	switch (p->kind) {
	case PEER_HELLO:
		return make_hello(&p->hello);
	case PEER_WELCOME:
		return make_welcome(&p->welcome);
	case PEER_BEAT:
		return make_beat(&p->beat);
	case PEER_CARRIED:
		break;
	}
	return make_carried(&p->carried);
}

/* ---- of what has come in ---- */

static bool is_ip_address(const char *text)
{
	struct in6_addr to; /* has space for both kinds */
	return inet_pton(AF_INET, text, &to) == 1 || inet_pton(AF_INET6, text, &to) == 1;
}

/* Others' text for a sentence: what may act on a terminal becomes '?'. */
static const char *shown(const char *text, char out[48])
{
	size_t n = 0;
	for (; text[n] && n < 47; n++)
		out[n] = text[n] >= ' ' && text[n] <= '~' && text[n] != '"' ? text[n] : '?';
	out[n] = '\0';
	return out;
}

static enum status check_name(const char *field, const char *name, char *why, size_t n_why)
{
	char text[48];
	if (node_name_ok(name, strlen(name)))
		return ST_OK;
	snprintf(why, n_why, "%s is \"%s\" (%zu bytes), and must be 1 to %d letters, digits and \".-_\"", field,
		 shown(name, text), strlen(name), MEMBER_NAME - 1);
	return ST_VERSION_SKEW;
}

/* That of the fields which can be wrong by themselves. */
static enum status check_hello(const Gacc__Internal__V1__Hello *m, char *why, size_t n_why)
{
	char text[48];
	enum status st = check_name("Hello.node", m->node, why, n_why);
	if (st)
		return st;
	if (m->boot_id.len != 16)
		snprintf(why, n_why, "Hello.boot_id has %zu bytes, and must have 16", m->boot_id.len);
	else if (!m->incarnation || !m->protocol_min)
		snprintf(why, n_why, "Hello.%s is missing", m->incarnation ? "protocol_min" : "incarnation");
	else if (m->protocol_min > m->protocol_max)
		snprintf(why, n_why, "Hello.protocol_min is %u, and protocol_max %u", m->protocol_min, m->protocol_max);
	else if (!is_ip_address(m->data_address))
		snprintf(why, n_why, "Hello.data_address is \"%s\", and must be an IP address",
			 shown(m->data_address, text));
	else if (m->n_held > PEER_MAX_HELD)
		snprintf(why, n_why, "Hello.held has %zu parts, and may have %d", m->n_held, PEER_MAX_HELD);
	else
		return ST_OK;
	return ST_VERSION_SKEW;
}

static enum status read_held(const Gacc__Internal__V1__PartHeld *m, struct part_held *out, char *why, size_t n_why)
{
	if (!m->job_id || !m->epoch) {
		snprintf(why, n_why, "PartHeld.%s is missing", m->job_id ? "epoch" : "job_id");
		return ST_VERSION_SKEW;
	}
	if (m->part >= SPEC_MAX_PARTS) {
		snprintf(why, n_why, "PartHeld.part is %u, and a job has %d parts at most", m->part, SPEC_MAX_PARTS);
		return ST_VERSION_SKEW;
	}
#define X(field) out->field = m->field;
	HELD_FIELDS(X)
#undef X
	return ST_OK;
}

static enum status read_hello(const Gacc__Internal__V1__Hello *m, struct peer_hello *out, char *why, size_t n_why)
{
	enum status st = check_hello(m, why, n_why);
	if (st)
		return st;
	struct part_held *held = calloc(m->n_held ? m->n_held : 1, sizeof(*held));
	if (!held)
		return ST_NO_MEMORY;
	for (size_t i = 0; i < m->n_held && !st; i++)
		st = read_held(m->held[i], &held[i], why, n_why);
	if (st) {
		free(held);
		return st;
	}
	*out = (struct peer_hello){ .held = held, .n_held = (uint32_t)m->n_held };
	memcpy(out->facts.boot_id, m->boot_id.data, sizeof(out->facts.boot_id));
#define X(field) out->facts.field = m->field;
	HELLO_FIELDS(X)
#undef X
#define X(field) message_take_text(out->facts.field, sizeof(out->facts.field), m->field);
	HELLO_TEXTS(X)
#undef X
	if (!m->kernels_revision) /* a gaccd that does not know of revisions yet */
		out->facts.kernels_revision = 1;
	return ST_OK;
}

static enum status read_welcome(const Gacc__Internal__V1__Welcome *m, struct peer_welcome *out, char *why, size_t n_why)
{
	enum status st = check_name("Welcome.coordinator", m->coordinator, why, n_why);
	if (st)
		return st;
	if (!m->link || !m->term) {
		snprintf(why, n_why, "Welcome.%s is missing", m->link ? "term" : "link");
		return ST_VERSION_SKEW;
	}
	if (m->lease_ms < MIN_LEASE_MS || m->lease_ms > MAX_LEASE_MS) {
		snprintf(why, n_why, "Welcome.lease_ms is %u, and must be %d to %d", m->lease_ms, MIN_LEASE_MS,
			 MAX_LEASE_MS);
		return ST_VERSION_SKEW;
	}
	*out = (struct peer_welcome){ .link = m->link };
#define X(field) out->field = m->field;
	WELCOME_FIELDS(X)
#undef X
	message_take_text(out->coordinator, sizeof(out->coordinator), m->coordinator);
	return ST_OK;
}

static enum status read_carried(const Gacc__Internal__V1__Carried *m, struct peer_carried *out, char *why, size_t n_why)
{
	if (m->kind >= LINK_KINDS)
		snprintf(why, n_why, "Carried.kind is %u, and %d is the last that is known", m->kind, LINK_KINDS - 1);
	else if (!m->job_id)
		snprintf(why, n_why, "Carried.job_id is missing");
	else if (m->part >= SPEC_MAX_PARTS)
		snprintf(why, n_why, "Carried.part is %u, and a job has %d parts at most", m->part, SPEC_MAX_PARTS);
	else if (!m->bytes.len || m->bytes.len > PEER_FRAME)
		snprintf(why, n_why, "Carried.bytes has %zu bytes, and must have 1 to %u", m->bytes.len, PEER_FRAME);
	else if (m->rest > peer_most((enum link_kind)m->kind) - m->bytes.len)
		snprintf(why, n_why,
			 "Carried.rest is %" PRIu64 " after %zu bytes, and a message of kind %u has %" PRIu64
			 " at most",
			 m->rest, m->bytes.len, m->kind, peer_most((enum link_kind)m->kind));
	else {
		*out = (struct peer_carried){ (enum link_kind)m->kind, m->job_id,    m->part,
					      m->bytes.data,	       m->bytes.len, m->rest };
		return ST_OK;
	}
	return ST_VERSION_SKEW;
}

enum status peer_message_read(const Message *m, struct peer_message *out, char *why, size_t n_why)
{
	const int n = !!m->hello + !!m->welcome + !!m->beat + !!m->carried;
	if (n != 1) {
		snprintf(why, n_why,
			 "PeerMessage has %d of hello, welcome, beat and carried that are known, and must have one", n);
		return ST_VERSION_SKEW;
	}
	struct peer_message p = { .kind = m->hello     ? PEER_HELLO
					  : m->welcome ? PEER_WELCOME
					  : m->beat    ? PEER_BEAT
						       : PEER_CARRIED };
	enum status st = m->hello     ? read_hello(m->hello, &p.hello, why, n_why)
			 : m->welcome ? read_welcome(m->welcome, &p.welcome, why, n_why)
			 : m->carried ? read_carried(m->carried, &p.carried, why, n_why)
				      : ST_OK;
	if (st)
		return st;
	if (m->beat)
		p.beat = (struct member_beat){ m->beat->memory_limit, m->beat->memory_used };
	*out = p;
	return ST_OK;
}

void peer_message_release(struct peer_message *p)
{
	if (p->kind == PEER_HELLO) {
		free((void *)p->hello.held);
		p->hello.held = NULL;
		p->hello.n_held = 0;
	}
}
