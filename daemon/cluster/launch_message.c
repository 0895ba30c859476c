/* SPDX-License-Identifier: Apache-2.0 */
/* Packs what a coordinator wants of the ranks that a node launches, and how they are; unpacks and checks both. For
 * edge/launching_far.c and edge/part_launch.c, on the loop thread; no state. */
#include "cluster/launch_message.h"

#include "cluster/message_text.h"
#include "cluster/record.h"
#include "gacc/internal/v1/cluster.pb-c.h"
#include "proto/bytes.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WANTED_FIELDS(X) X(job_id) X(epoch) X(term) X(part) X(number)
#define WISH_FIELDS(X) X(grace_ns) X(allowed) X(final) X(first) X(n_ranks) X(group) X(n_groups) X(master_port) X(fresh)
#define LAUNCHED_FIELDS(X)                                                                                             \
	X(job_id) X(epoch) X(incarnation) X(part) X(number) X(term) X(order) X(over) X(launcher_pid) X(first)
#define SUMMARY_FIELDS(X) X(charged) X(allowed) X(wanted) X(master_port)

static enum status wrong(const char *field, int64_t is, const char *must, char *why, size_t n_why)
{
	snprintf(why, n_why, "%s is %lld, and must be %s", field, (long long)is, must);
	return ST_VERSION_SKEW;
}

static enum status missing(const char *field, char *why, size_t n_why)
{
	snprintf(why, n_why, "%s is missing", field);
	return ST_VERSION_SKEW;
}

/* ---- what is wanted ---- */

void *launch_wanted_pack(const struct launch_wanted *w, size_t *out_n)
{
	Gacc__Internal__V1__LaunchOrder m = GACC__INTERNAL__V1__LAUNCH_ORDER__INIT;
	char mended[LAUNCH_ADDRESS];
#define X(field) m.field = w->field;
	WANTED_FIELDS(X)
#undef X
#define X(field) m.field = w->wish.field;
	WISH_FIELDS(X)
#undef X
	m.want = (Gacc__Internal__V1__LaunchWant)w->wish.want;
	m.uuid = (ProtobufCBinaryData){ sizeof(w->uuid), (uint8_t *)w->uuid }; /* not written to */
	m.master_addr = message_put_text(w->wish.master_addr, mended);
	return bytes_pack(&m.base, out_n);
}

static bool is_ip_address(const char *text)
{
	struct in6_addr room;
	return strlen(text) < LAUNCH_ADDRESS &&
	       (inet_pton(AF_INET, text, &room) == 1 || inet_pton(AF_INET6, text, &room) == 1);
}

static enum status check_block(const char *field, uint32_t first, size_t n, uint32_t ranks, char *why, size_t n_why)
{
	if (n && n <= ranks && first <= ranks - n)
		return ST_OK;
	snprintf(why, n_why, "%s has %zu ranks from %u on, and the job has %u", field, n, first, ranks);
	return ST_VERSION_SKEW;
}

static enum status check_wanted(const Gacc__Internal__V1__LaunchOrder *m, uint32_t ranks, char *why, size_t n_why)
{
	if (!m->epoch || !m->term || !m->number)
		return missing(!m->epoch  ? "LaunchOrder.epoch"
			       : !m->term ? "LaunchOrder.term"
					  : "LaunchOrder.number",
			       why, n_why);
	if ((int)m->want < LAUNCH_WANT_NOTHING || (int)m->want > LAUNCH_WANT_END)
		return wrong("LaunchOrder.want", (int)m->want, "1 to 4", why, n_why);
	if (m->uuid.len != sizeof(((struct launch_wanted *)0)->uuid))
		return wrong("LaunchOrder.uuid", (int64_t)m->uuid.len, "of 16 bytes", why, n_why);
	if (m->grace_ns < 0)
		return wrong("LaunchOrder.grace_ns", m->grace_ns, "0 or more", why, n_why);
	if (m->master_port > UINT16_MAX)
		return wrong("LaunchOrder.master_port", m->master_port, "a port", why, n_why);
	if (m->group >= m->n_groups || m->n_groups > ranks)
		return wrong("LaunchOrder.group", m->group, "below n_groups, and those as many as ranks at most", why,
			     n_why);
	if (!is_ip_address(m->master_addr)) {
		snprintf(why, n_why, "LaunchOrder.master_addr is \"%.60s\", and must be an IP address", m->master_addr);
		return ST_VERSION_SKEW;
	}
	return check_block("LaunchOrder", m->first, m->n_ranks, ranks, why, n_why);
}

enum status launch_wanted_unpack(const void *bytes, size_t n, uint32_t ranks, struct launch_wanted *out, char *why,
				 size_t n_why)
{
	struct ProtobufCMessage *base;
	enum status st = message_unpack(&gacc__internal__v1__launch_order__descriptor, bytes, n, &base, why, n_why);
	if (st)
		return st;
	const Gacc__Internal__V1__LaunchOrder *m = (const Gacc__Internal__V1__LaunchOrder *)base;
	st = check_wanted(m, ranks, why, n_why);
	if (!st) {
		*out = (struct launch_wanted){ .wish = { .want = (enum launch_want)m->want } };
#define X(field) out->field = m->field;
		WANTED_FIELDS(X)
#undef X
#define X(field) out->wish.field = m->field;
		WISH_FIELDS(X)
#undef X
		memcpy(out->uuid, m->uuid.data, sizeof(out->uuid));
		message_take_text(out->wish.master_addr, sizeof(out->wish.master_addr), m->master_addr);
	}
	bytes_free(base);
	return st;
}

/* ---- how they are ---- */

struct columns {
	int64_t *pid;
	uint32_t *state, *restarts;
	int32_t *exit_status;
};

static bool columns_make(struct columns *c, const struct launched *l)
{
	c->pid = malloc(l->n_ranks * (sizeof(*c->pid) + 3 * sizeof(uint32_t)) + 1);
	if (!c->pid)
		return false;
	c->state = (uint32_t *)(c->pid + l->n_ranks);
	c->restarts = c->state + l->n_ranks;
	c->exit_status = (int32_t *)(c->restarts + l->n_ranks);
	for (uint32_t i = 0; i < l->n_ranks; i++) {
		c->state[i] = l->rank[i].state;
		c->pid[i] = l->rank[i].pid;
		c->exit_status[i] = l->rank[i].exit_status;
		c->restarts[i] = l->rank[i].restarts;
	}
	return true;
}

void *launched_pack(const struct launched *l, size_t *out_n)
{
	Gacc__Internal__V1__Launched m = GACC__INTERNAL__V1__LAUNCHED__INIT;
	Gacc__Internal__V1__LaunchCause cause = GACC__INTERNAL__V1__LAUNCH_CAUSE__INIT;
	const struct launch_cause *k = &l->summary.cause;
	char mended[LAUNCHED_FAILURE];
	struct columns c;
	if (!columns_make(&c, l))
		return NULL;
#define X(field) m.field = l->field;
	LAUNCHED_FIELDS(X)
#undef X
#define X(field) m.field = l->summary.field;
	SUMMARY_FIELDS(X)
#undef X
	m.phase = l->summary.phase;
	m.result = l->summary.result;
	cause.rank = k->rank;
	cause.pid = k->pid;
	cause.exit_status = k->exit_status;
	cause.unix_nanos = k->unix_ns;
	m.cause = k->known ? &cause : NULL;
	m.tail.data = (uint8_t *)l->tail; /* not written to */
	m.tail.len = l->n_tail;
	m.failure = message_put_text(l->failure, mended);
	m.n_state = m.n_pid = m.n_exit_status = m.n_restarts = l->n_ranks;
	m.state = c.state;
	m.pid = c.pid;
	m.exit_status = c.exit_status;
	m.restarts = c.restarts;
	void *bytes = bytes_pack(&m.base, out_n);
	free(c.pid);
	return bytes;
}

static enum status check_columns(const Gacc__Internal__V1__Launched *m, char *why, size_t n_why)
{
	if (m->n_pid != m->n_state || m->n_exit_status != m->n_state || m->n_restarts != m->n_state) {
		snprintf(why, n_why, "Launched has columns of %zu, %zu, %zu and %zu ranks", m->n_state, m->n_pid,
			 m->n_exit_status, m->n_restarts);
		return ST_VERSION_SKEW;
	}
	for (size_t i = 0; i < m->n_state; i++) {
		if (m->state[i] > LAUNCH_RANK_EXITED)
			return wrong("Launched.state", m->state[i], "2 at most", why, n_why);
		if (m->pid[i] < 0)
			return wrong("Launched.pid", m->pid[i], "0 or more", why, n_why);
		if (m->exit_status[i] < LAUNCH_NO_STATUS)
			return wrong("Launched.exit_status", m->exit_status[i], "-1 or more", why, n_why);
	}
	return ST_OK;
}

static enum status check_cause(const Gacc__Internal__V1__Launched *m, char *why, size_t n_why)
{
	const Gacc__Internal__V1__LaunchCause *k = m->cause;
	if (!k)
		return m->result == LAUNCH_FAILED ? missing("Launched.cause", why, n_why) : ST_OK;
	if (k->rank < m->first || k->rank - m->first >= m->n_state)
		return wrong("LaunchCause.rank", k->rank, "one of the message's ranks", why, n_why);
	if (k->pid < 0)
		return wrong("LaunchCause.pid", k->pid, "0 or more", why, n_why);
	return ST_OK;
}

/* A node that tells of more than the job has would leave none to the others (control/launch_share.h). */
static enum status check_restarts(const char *field, uint32_t is, uint32_t max_restarts, char *why, size_t n_why)
{
	if (is <= max_restarts)
		return ST_OK;
	snprintf(why, n_why, "%s is %u, and the job has launch.max_restarts %u", field, is, max_restarts);
	return ST_VERSION_SKEW;
}

static enum status check_launched(const Gacc__Internal__V1__Launched *m, uint32_t ranks, uint32_t max_restarts,
				  char *why, size_t n_why)
{
	if (!m->epoch || !m->incarnation || !m->number)
		return missing(!m->epoch	 ? "Launched.epoch"
			       : !m->incarnation ? "Launched.incarnation"
						 : "Launched.number",
			       why, n_why);
	if (m->launcher_pid < 0)
		return wrong("Launched.launcher_pid", m->launcher_pid, "0 or more", why, n_why);
	if (m->phase > LAUNCH_OVER)
		return wrong("Launched.phase", m->phase, "4 at most", why, n_why);
	if (m->result > LAUNCH_STOPPED)
		return wrong("Launched.result", m->result, "3 at most", why, n_why);
	if (m->master_port > UINT16_MAX)
		return wrong("Launched.master_port", m->master_port, "a port", why, n_why);
	if (m->tail.len > LAUNCHED_MAX_TAIL)
		return wrong("Launched.tail", (int64_t)m->tail.len, "8192 bytes at most", why, n_why);
	enum status st = check_columns(m, why, n_why);
	if (!st)
		st = check_block("Launched", m->first, m->n_state, ranks, why, n_why);
	if (!st && m->wanted > m->n_state)
		return wrong("Launched.wanted", m->wanted, "as many as ranks at most", why, n_why);
	if (!st)
		st = check_restarts("Launched.allowed", m->allowed, max_restarts, why, n_why);
	if (!st)
		st = check_restarts("Launched.charged", m->charged, max_restarts, why, n_why);
	return st ? st : check_cause(m, why, n_why);
}

/* With the tail behind the ranks. */
static enum status take_ranks(const Gacc__Internal__V1__Launched *m, struct launched *l)
{
	struct launch_rank *rank = malloc(m->n_state * sizeof(*rank) + m->tail.len + 1);
	if (!rank)
		return ST_NO_MEMORY;
	for (size_t i = 0; i < m->n_state; i++)
		rank[i] = (struct launch_rank){ .state = (enum launch_rank_state)m->state[i],
						.pid = m->pid[i],
						.exit_status = m->exit_status[i],
						.restarts = m->restarts[i] };
	char *tail = (char *)(rank + m->n_state);
	if (m->tail.len)
		memcpy(tail, m->tail.data, m->tail.len);
	l->rank = rank;
	l->n_ranks = (uint32_t)m->n_state;
	l->tail = tail;
	l->n_tail = (uint32_t)m->tail.len;
	return ST_OK;
}

static enum status take_launched(const Gacc__Internal__V1__Launched *m, struct launched *out)
{
	struct launched l = { .summary = { .phase = (enum launch_phase)m->phase,
					   .result = (enum launch_result)m->result } };
	enum status st = take_ranks(m, &l);
	if (st)
		return st;
#define X(field) l.field = m->field;
	LAUNCHED_FIELDS(X)
#undef X
#define X(field) l.summary.field = m->field;
	SUMMARY_FIELDS(X)
#undef X
	if (m->cause)
		l.summary.cause = (struct launch_cause){ true, m->cause->rank, m->cause->pid, m->cause->exit_status,
							 m->cause->unix_nanos };
	message_take_text(l.failure, sizeof(l.failure), m->failure);
	*out = l;
	return ST_OK;
}

enum status launched_unpack(const void *bytes, size_t n, uint32_t ranks, uint32_t max_restarts, struct launched *out,
			    char *why, size_t n_why)
{
	struct ProtobufCMessage *base;
	enum status st = message_unpack(&gacc__internal__v1__launched__descriptor, bytes, n, &base, why, n_why);
	if (st)
		return st;
	const Gacc__Internal__V1__Launched *m = (const Gacc__Internal__V1__Launched *)base;
	st = check_launched(m, ranks, max_restarts, why, n_why);
	if (!st)
		st = take_launched(m, out);
	bytes_free(base);
	return st;
}
