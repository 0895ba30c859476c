/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the states of a cluster's nodes: their links, their leases, and what operators are told of them. The table of
 * states is in members.h. For edge/node_serve.c, on the loop thread. */
#include "control/members.h"

#include "control/messages.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECOND INT64_C(1000000000)
#define MINUTE (60 * SECOND)
#define MAX_EVENTS 10	      /* in a minute, of one node or one kind */
#define TWICE_NS (6 * SECOND) /* a name that is refused for longer is two nodes', and no link that broke unseen */
#define NONE UINT32_MAX

/* Events are told while fewer than MAX_EVENTS were, in each minute. */
struct limit {
	int64_t from_ns; /* of the minute */
	uint32_t told;
	uint32_t untold; /* in a row */
};

enum told { TOLD_NOTHING, TOLD_UP, TOLD_SUSPECT, TOLD_DOWN };

struct watched {
	struct member member;
	enum told told; /* the state that an operator knows */
	struct limit limit;
	int64_t twice_from_ns, twice_last_ns; /* others have said Hello under its name; 0: not */
};

enum refusal { REFUSAL_TWICE, REFUSAL_AHEAD, REFUSAL_OTHER, REFUSALS };

struct members {
	struct members_ports ports;
	char own_name[MEMBER_NAME];
	int64_t lease_ns;
	uint64_t term;
	uint32_t n_links; /* of this term */
	int64_t ticked_ns;
	bool ticked, isolated;
	struct limit refusal[REFUSALS], isolation;
	uint32_t n;
	uint64_t link[MEMBERS_MAX]; /* as in member: what every message is looked up in */
	struct watched at[MEMBERS_MAX];
};

/* ---- names, links, numbers ---- */

const char *member_state_name(enum member_state s)
{
	static const char *const names[] = { "UP", "SUSPECT", "DOWN" };
	return names[s];
}

struct members *members_new(const struct members_ports *ports, const char *own_name, int64_t lease_ns, uint64_t term)
{
	assert(term && term <= UINT32_MAX);
	struct members *m = calloc(1, sizeof(*m));
	if (!m)
		return NULL;
	m->ports = *ports;
	snprintf(m->own_name, sizeof(m->own_name), "%s", own_name);
	m->lease_ns = lease_ns > MEMBERS_SUSPECT_NS ? lease_ns : MEMBERS_SUSPECT_NS;
	m->term = term;
	return m;
}

void members_free(struct members *m)
{
	free(m);
}

static uint32_t index_of(const struct members *m, const char *name)
{
	for (uint32_t i = 0; i < m->n; i++)
		if (!strcmp(m->at[i].member.facts.node, name))
			return i;
	return NONE;
}

static uint32_t index_of_link(const struct members *m, uint64_t link)
{
	for (uint32_t i = 0; link && i < m->n; i++)
		if (m->link[i] == link)
			return i;
	return NONE;
}

uint32_t members_n(const struct members *m)
{
	return m->n;
}

const struct member *members_at(const struct members *m, uint32_t index)
{
	assert(index < m->n && m->link[index] == m->at[index].member.link);
	return &m->at[index].member;
}

const struct member *members_find(const struct members *m, const char *name)
{
	uint32_t i = index_of(m, name);
	return i == NONE ? NULL : members_at(m, i);
}

const struct member *members_of_link(const struct members *m, uint64_t link)
{
	uint32_t i = index_of_link(m, link);
	return i == NONE ? NULL : members_at(m, i);
}

bool members_isolated(const struct members *m)
{
	return m->isolated;
}

static void set_link(struct members *m, uint32_t i, uint64_t link)
{
	m->link[i] = m->at[i].member.link = link;
}

/* ---- what operators are told ---- */

/* Whether one more event may be told. */
static bool may_tell(struct limit *l, struct now now)
{
	if (!l->told || now.mono_ns - l->from_ns >= MINUTE) {
		l->from_ns = now.mono_ns;
		l->told = 0;
	}
	return l->told < MAX_EVENTS;
}

__attribute__((format(printf, 6, 7))) static void tell(struct members *m, struct limit *l, struct now now, bool warning,
						       const char *reason, const char *format, ...)
{
	char text[400];
	va_list list;
	if (!may_tell(l, now)) {
		l->untold++;
		return;
	}
	va_start(list, format);
	int n = vsnprintf(text, sizeof(text), format, list);
	va_end(list);
	if (l->untold && n > 0 && (size_t)n < sizeof(text))
		snprintf(text + n, sizeof(text) - (size_t)n, " (%u more were not told)", l->untold);
	l->told++;
	l->untold = 0;
	m->ports.event(m->ports.ctx, warning, reason, text);
}

static void tell_up(struct members *m, struct watched *w, struct now now)
{
	const struct member_facts *f = &w->member.facts;
	if (w->told == TOLD_NOTHING)
		tell(m, &w->limit, now, false, "NodeUp", "node %s is up: %s, incarnation %" PRIu64, f->node,
		     f->data_address, f->incarnation);
	else
		tell(m, &w->limit, now, false, "NodeBack", "node %s is back", f->node);
}

void members_reason(const struct members *m, const struct member *s, char out[MEMBER_REASON])
{
	const size_t n = MEMBER_REASON;
	const int64_t seconds = s->silent_ns / SECOND;
	if (s->state == MEMBER_UP)
		snprintf(out, n, "%s", "");
	else if (!s->known)
		snprintf(out, n, "it has not come since this coordinator began");
	else if (!s->link && *s->end)
		snprintf(out, n, "its link has ended: %s", s->end);
	else if (!s->link)
		snprintf(out, n, "its link has ended");
	else
		snprintf(out, n, "no word for %" PRId64 " s", seconds);
}

static void tell_silent(struct members *m, struct watched *w, struct now now)
{
	const struct member *s = &w->member;
	char why[MEMBER_REASON];
	const char *node = s->facts.node;
	const int64_t seconds = s->silent_ns / SECOND;
	if (s->state == MEMBER_DOWN && s->known)
		tell(m, &w->limit, now, true, "NodeDown", "node %s is down: no word for %" PRId64 " s; its jobs wait",
		     node, seconds);
	else if (s->state == MEMBER_DOWN)
		tell(m, &w->limit, now, true, "NodeDown",
		     "node %s is down: it has not come in the %" PRId64
		     " s since this coordinator began; its jobs wait",
		     node, seconds);
	else {
		members_reason(m, s, why);
		tell(m, &w->limit, now, true, "NodeSuspect", "node %s: %s; its jobs wait", node, why);
	}
}

/* Tells the state of a node that an operator does not know yet, or leaves it for a later tick: of a node that changes
 * all the time the last state alone matters. In isolation one event stands for all that are silent; and a node that is
 * only expected may come at any moment. */
static void tell_state(struct members *m, uint32_t i, struct now now)
{
	struct watched *w = &m->at[i];
	const struct member *s = &w->member;
	const enum told is = s->state == MEMBER_UP ? TOLD_UP : s->state == MEMBER_DOWN ? TOLD_DOWN : TOLD_SUSPECT;
	if (w->told == is || (is == TOLD_SUSPECT && (m->isolated || !s->known)) || !may_tell(&w->limit, now))
		return;
	if (is == TOLD_UP)
		tell_up(m, w, now);
	else
		tell_silent(m, w, now);
	w->told = is;
}

static void set_state(struct members *m, uint32_t i, enum member_state state, struct now now)
{
	struct member *s = &m->at[i].member;
	if (s->state == state)
		return;
	s->state = state;
	s->since_ns = now.mono_ns;
	s->since_unix_ns = now.unix_ns;
	m->ports.changed(m->ports.ctx, i);
}

/* ---- the table of members ---- */

/* The one that has been DOWN for longest, of those that nobody would miss. */
static uint32_t find_forgettable(const struct members *m)
{
	uint32_t best = NONE;
	for (uint32_t i = 0; i < m->n; i++) {
		const struct member *s = &m->at[i].member;
		if (s->state != MEMBER_DOWN || s->expected || s->drained || s->link)
			continue;
		if (best == NONE || s->since_ns < m->at[best].member.since_ns)
			best = i;
	}
	return best;
}

/* A new member, SUSPECT and without a link; NONE: there are too many. */
static uint32_t add(struct members *m, const char *name, struct now now)
{
	uint32_t i = m->n < MEMBERS_MAX ? m->n : find_forgettable(m);
	if (i == NONE)
		return NONE;
	if (i == m->n)
		m->n++;
	m->at[i] = (struct watched){ .member = { .state = MEMBER_SUSPECT } };
	struct member *s = &m->at[i].member;
	snprintf(s->facts.node, sizeof(s->facts.node), "%s", name);
	s->since_ns = now.mono_ns;
	s->since_unix_ns = now.unix_ns;
	set_link(m, i, 0);
	return i;
}

enum status members_expect(struct members *m, const char *name, bool expected, struct now now)
{
	if (!node_name_ok(name, strlen(name)))
		return ST_INVALID_ARGUMENT;
	uint32_t i = index_of(m, name);
	if (!strcmp(name, m->own_name) || (i == NONE && !expected))
		return ST_OK;
	if (i == NONE)
		i = add(m, name, now);
	if (i == NONE)
		return ST_RESOURCE_EXHAUSTED;
	m->at[i].member.expected = expected;
	m->ports.changed(m->ports.ctx, i);
	return ST_OK;
}

enum status members_drain(struct members *m, const char *name, bool drained)
{
	uint32_t i = index_of(m, name);
	if (i == NONE)
		return ST_INVALID_ARGUMENT;
	if (m->at[i].member.drained != drained) {
		m->at[i].member.drained = drained;
		m->ports.changed(m->ports.ctx, i);
	}
	return ST_OK;
}

/* ---- Hello ---- */

static bool is_same_life(const struct member_facts *a, const struct member_facts *b)
{
	return !memcmp(a->boot_id, b->boot_id, sizeof(a->boot_id)) && a->incarnation == b->incarnation;
}

/* Whether `f` is the same node as `before`, started anew: its old link may still look alive. */
static bool is_later_life(const struct member_facts *f, const struct member_facts *before)
{
	return !memcmp(f->boot_id, before->boot_id, sizeof(f->boot_id)) && f->incarnation > before->incarnation;
}

/* A second gaccd under a name that is UP. It may be the first one, whose link broke unseen: an operator is told only
 * when it goes on for longer than that lasts. */
static enum status refuse_twice(struct members *m, struct watched *w, const struct member_facts *f, struct now now,
				char *why, size_t n_why)
{
	const struct member_facts *is = &w->member.facts;
	if (!w->twice_last_ns || now.mono_ns - w->twice_last_ns > MINUTE)
		w->twice_from_ns = now.mono_ns;
	w->twice_last_ns = now.mono_ns;
	snprintf(why, n_why,
		 "a node with the name %s is up: %s, incarnation %" PRIu64 "; this one is %s, incarnation %" PRIu64,
		 is->node, is->data_address, is->incarnation, f->data_address, f->incarnation);
	if (now.mono_ns - w->twice_from_ns >= TWICE_NS)
		tell(m, &m->refusal[REFUSAL_TWICE], now, true, "NodeNameTwice", "%s", why);
	return ST_ALREADY_EXISTS;
}

static enum status refuse_ahead(struct members *m, const struct member_facts *f, struct now now, char *why,
				size_t n_why)
{
	snprintf(why, n_why,
		 "node %s has seen term %" PRIu64 " of a coordinator, and this one, %s, has %" PRIu64
		 ": its journal is not the newest, or the node belongs to another cluster",
		 f->node, f->term_seen, m->own_name, m->term);
	tell(m, &m->refusal[REFUSAL_AHEAD], now, true, "NodeAhead", "%s", why);
	return ST_STALE_TERM;
}

static enum status check_hello(struct members *m, uint32_t i, const struct member_facts *f, struct now now, char *why,
			       size_t n_why)
{
	enum status st = ST_OK;
	if (f->protocol_min > MEMBERS_PROTOCOL_MAX || f->protocol_max < MEMBERS_PROTOCOL_MIN) {
		snprintf(why, n_why, "node %s speaks protocol %u to %u, and coordinator %s %d to %d: update the older",
			 f->node, f->protocol_min, f->protocol_max, m->own_name, MEMBERS_PROTOCOL_MIN,
			 MEMBERS_PROTOCOL_MAX);
		st = ST_VERSION_SKEW;
	} else if (!strcmp(f->node, m->own_name)) {
		snprintf(why, n_why, "%s is the coordinator's own name; give the node at %s another node.name", f->node,
			 f->data_address);
		st = ST_ALREADY_EXISTS;
	}
	if (st) {
		tell(m, &m->refusal[REFUSAL_OTHER], now, true, "NodeRefused", "%s", why);
		return st;
	}
	if (f->term_seen > m->term)
		return refuse_ahead(m, f, now, why, n_why);
	if (i != NONE && m->at[i].member.state == MEMBER_UP && !is_later_life(f, &m->at[i].member.facts))
		return refuse_twice(m, &m->at[i], f, now, why, n_why);
	return ST_OK;
}

/* A word of this node. */
static void hear(struct members *m, uint32_t i, struct now now)
{
	struct member *s = &m->at[i].member;
	assert(s->link && s->known);
	s->heard_ns = now.mono_ns;
	s->heard_unix_ns = now.unix_ns;
	s->silent_ns = 0;
	if (s->state == MEMBER_UP)
		return;
	set_state(m, i, MEMBER_UP, now);
	tell_state(m, i, now);
}

enum status members_hello(struct members *m, const struct member_facts *f, struct now now, uint64_t *out_link,
			  uint32_t *out_index, char *why, size_t n_why)
{
	assert(node_name_ok(f->node, strlen(f->node)) && f->protocol_min && f->protocol_min <= f->protocol_max);
	uint32_t i = index_of(m, f->node);
	enum status st = check_hello(m, i, f, now, why, n_why);
	if (st)
		return st;
	if (i == NONE)
		i = add(m, f->node, now);
	if (i == NONE || m->n_links == UINT32_MAX) {
		snprintf(why, n_why, "this coordinator knows %d nodes, or has had 2^32 links: it takes no more",
			 MEMBERS_MAX);
		tell(m, &m->refusal[REFUSAL_OTHER], now, true, "NodeRefused", "node %s: %s", f->node, why);
		return ST_RESOURCE_EXHAUSTED;
	}
	struct watched *w = &m->at[i];
	const uint64_t old = w->member.link;
	if (!w->member.known || !is_same_life(f, &w->member.facts))
		w->told = TOLD_NOTHING; /* another life is news */
	w->member.facts = *f;
	w->member.known = true;
	w->twice_last_ns = 0;
	set_link(m, i, m->term << 32 | ++m->n_links);
	if (old)
		m->ports.close_link(m->ports.ctx, old);
	hear(m, i, now);
	tell_state(m, i, now); /* of one that was UP */
	m->ports.changed(m->ports.ctx, i);
	*out_link = w->member.link;
	*out_index = i;
	return ST_OK;
}

/* ---- words, ends, time ---- */

bool members_heard(struct members *m, uint64_t link, struct now now, const struct member_beat *b)
{
	uint32_t i = index_of_link(m, link);
	if (i == NONE)
		return false;
	if (b) {
		m->at[i].member.facts.memory_limit = b->memory_limit;
		m->at[i].member.facts.memory_used = b->memory_used;
	}
	hear(m, i, now);
	return true;
}

bool members_link_gone(struct members *m, uint64_t link, const char *why, struct now now)
{
	uint32_t i = index_of_link(m, link);
	if (i == NONE)
		return false;
	snprintf(m->at[i].member.end, sizeof(m->at[i].member.end), "%s", why);
	set_link(m, i, 0);
	if (m->at[i].member.state == MEMBER_UP)
		set_state(m, i, MEMBER_SUSPECT, now); /* which the next tick tells: it may be that of all nodes */
	else
		m->ports.changed(m->ports.ctx, i);
	return true;
}

/* The time since the last tick that counts. */
static int64_t counted(struct members *m, struct now now)
{
	const int64_t gap = m->ticked ? now.mono_ns - m->ticked_ns : 0;
	m->ticked = true;
	m->ticked_ns = now.mono_ns;
	return gap < 0 ? 0 : gap < MEMBERS_TICK_NS ? gap : MEMBERS_TICK_NS;
}

static void judge_isolation(struct members *m, struct now now)
{
	uint32_t up = 0, silent = 0;
	for (uint32_t i = 0; i < m->n; i++) {
		up += m->at[i].member.state == MEMBER_UP;
		silent += m->at[i].member.state == MEMBER_SUSPECT;
	}
	const bool was = m->isolated;
	m->isolated = silent >= 2 && silent >= up;
	if (m->isolated && !was)
		tell(m, &m->isolation, now, true, "CoordinatorIsolated",
		     "%u of %u nodes are silent: more likely by the coordinator's own network; none counts as down by "
		     "it",
		     silent, silent + up);
	else if (was && !m->isolated)
		tell(m, &m->isolation, now, false, "CoordinatorIsolated", "it is over: %u of %u nodes are up", up,
		     silent + up);
}

void members_tick(struct members *m, struct now now)
{
	const int64_t more = counted(m, now);
	for (uint32_t i = 0; i < m->n; i++) {
		struct member *s = &m->at[i].member;
		if (s->state == MEMBER_UP || (s->state == MEMBER_SUSPECT && !m->isolated))
			s->silent_ns += more;
		if (s->state == MEMBER_UP && s->silent_ns >= MEMBERS_SUSPECT_NS)
			set_state(m, i, MEMBER_SUSPECT, now);
	}
	judge_isolation(m, now);
	for (uint32_t i = 0; i < m->n; i++) {
		const struct member *s = &m->at[i].member;
		if (s->state == MEMBER_SUSPECT && s->silent_ns >= m->lease_ns && !m->isolated)
			set_state(m, i, MEMBER_DOWN, now);
		tell_state(m, i, now);
	}
}
