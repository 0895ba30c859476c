/* SPDX-License-Identifier: Apache-2.0 */
/* NodeService.ListNodes, DrainNode and ListBuffers: the nodes of the cluster that this gaccd coordinates, or this one
 * alone, and what jobs have there. Called by the RPC server. Loop thread. */
#include "edge/methods.h"

#include "control/members.h"
#include "edge/caller.h"
#include "edge/hosted_nodes.h"
#include "edge/hosted_view.h"
#include "edge/node_facts.h"
#include "gacc/v1/node.pb-c.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What an answer is made of. Node i of the messages is `node` of struct hosted_part: 0 is this one. */
struct node_list {
	Gacc__V1__ClusterNode *node, **list;
	struct member_facts own; /* the texts of the first */
	char (*reason)[MEMBER_REASON];
	uint32_t n;
};

static Gacc__V1__NodeState state_of(enum member_state s)
{
	switch (s) {
	case MEMBER_UP:
		return GACC__V1__NODE_STATE__NODE_STATE_UP;
	case MEMBER_SUSPECT:
		return GACC__V1__NODE_STATE__NODE_STATE_SUSPECT;
	case MEMBER_DOWN:
		return GACC__V1__NODE_STATE__NODE_STATE_DOWN;
	}
	return GACC__V1__NODE_STATE__NODE_STATE_UNSPECIFIED;
}

static void fill_facts(const struct member_facts *f, Gacc__V1__ClusterNode *out)
{
	out->name = (char *)f->node;
	out->incarnation = f->incarnation;
	out->version = (char *)f->version;
	out->kernels = (char *)f->kernels;
	out->kernels_revision = f->kernels_revision;
	out->collectives = (char *)f->coll;
	out->cpus = f->cpus;
	out->host_bytes_used = f->memory_used;
	out->host_bytes_limit = f->memory_limit;
	out->data_address = (char *)f->data_address;
}

static void fill_own(const struct daemon *d, const struct member_facts *f, struct now now, Gacc__V1__ClusterNode *out)
{
	fill_facts(f, out);
	out->name = d->node.conf->node.name; /* of one alone it may be longer than that of a member */
	out->state = GACC__V1__NODE_STATE__NODE_STATE_UP;
	out->coordinates = !d->away;
	out->state_since_unix_nanos = d->started_unix_ns;
	out->heard_unix_nanos = now.unix_ns;
}

/* The message points to `reason`. */
static void fill_member(const struct daemon *d, uint32_t i, struct now now, char reason[MEMBER_REASON],
			Gacc__V1__ClusterNode *out)
{
	const struct member *m = members_at(d->members, i);
	fill_facts(&m->facts, out);
	members_reason(d->members, m, reason);
	out->reason = reason;
	out->state = state_of(m->state);
	out->drained = m->drained;
	out->state_since_unix_nanos = m->since_unix_ns;
	out->heard_unix_nanos = m->heard_unix_ns;
	out->silent_ns = m->heard_ns ? now.mono_ns - m->heard_ns : 0;
}

static uint32_t parts_on(const struct daemon *d, uint32_t node)
{
	uint32_t n = 0;
	for (uint32_t k = 0; k < d->n_jobs; k++)
		for (uint32_t i = 0; i < d->job[k]->n_parts && !hosted_ended(d->job[k]); i++)
			n += d->job[k]->part[i].node == node;
	return n;
}

static void nodes_free(struct node_list *l)
{
	free(l->reason);
	free(l->list);
	free(l->node);
}

/* For nodes_free, also with false: no memory. */
static bool nodes_fill(const struct daemon *d, struct now now, struct node_list *l)
{
	l->n = 1 + (d->members && !d->away ? members_n(d->members) : 0);
	l->node = calloc(l->n, sizeof(*l->node));
	l->list = calloc(l->n, sizeof(Gacc__V1__ClusterNode *));
	l->reason = calloc(l->n, sizeof(*l->reason));
	if (!l->node || !l->list || !l->reason)
		return false;
	node_facts(d, &l->own);
	for (uint32_t i = 0; i < l->n; i++) {
		gacc__v1__cluster_node__init(&l->node[i]);
		l->list[i] = &l->node[i];
		if (i)
			fill_member(d, i - 1, now, l->reason[i], &l->node[i]);
		else
			fill_own(d, &l->own, now, &l->node[0]);
		l->node[i].parts = parts_on(d, i);
	}
	return true;
}

static void list_nodes(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const struct daemon *d = daemon_of(call);
	struct node_list l = { .n = 0 };
	Gacc__V1__ListNodesResponse r = GACC__V1__LIST_NODES_RESPONSE__INIT;
	if (nodes_fill(d, now_of(call), &l)) {
		r.nodes = l.list;
		r.n_nodes = l.n;
		rpc_finish(call, &r.base);
	} else {
		no_memory(call);
	}
	nodes_free(&l);
}

static void drain_node(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__DrainNodeRequest *q = (const Gacc__V1__DrainNodeRequest *)m;
	const struct daemon *d = daemon_of(call);
	Gacc__V1__DrainNodeResponse r = GACC__V1__DRAIN_NODE_RESPONSE__INIT;
	Gacc__V1__ClusterNode node = GACC__V1__CLUSTER_NODE__INIT;
	char reason[MEMBER_REASON];
	const uint32_t uid = caller_uid(call);
	if (uid && uid != geteuid()) {
		rpc_failf(call, ST_PERMISSION_DENIED, "only root and gaccd's own user may drain nodes");
		return;
	}
	if (!strcmp(q->name, d->node.conf->node.name)) {
		rpc_failf(call, ST_INVALID_ARGUMENT, "node %.64s coordinates: it cannot be drained", q->name);
		return;
	}
	uint32_t i = 0;
	while (i < members_n(d->members) && strcmp(members_at(d->members, i)->facts.node, q->name) != 0)
		i++;
	if (i == members_n(d->members)) {
		rpc_failf(call, ST_INVALID_ARGUMENT, "the cluster has no node \"%.64s\"", q->name);
		return;
	}
	members_drain(d->members, q->name, q->drained); /* there is such a member */
	fill_member(d, i, now_of(call), reason, &node);
	node.parts = parts_on(d, i + 1);
	r.node = &node;
	rpc_finish(call, &r.base);
}

/* ---- ListBuffers ---- */

#define ROWS_MAX ((size_t)10000) /* about 1 MiB: far below the 4 MiB that clients take */

/* An answer, and what it is made of. */
struct memory {
	uint32_t uid; /* of the caller */
	struct node_list list;
	Gacc__V1__NodeMemory *node;
	Gacc__V1__Buffer *buffer;
	Gacc__V1__ListBuffersResponse r;
};

static size_t most_rows(const struct hosted *h)
{
	return (size_t)h->n_parts * PART_VIEW_BUFFERS;
}

/* false: no memory. */
static bool make_room(const struct daemon *d, struct now now, struct memory *m)
{
	size_t each = 0;
	for (uint32_t i = 0; i < d->n_jobs; i++)
		each += most_rows(d->job[i]);
	const size_t n = (each < ROWS_MAX ? each : ROWS_MAX) + (size_t)d->n_jobs * PART_VIEW_BUFFERS + 1;
	m->buffer = calloc(n, sizeof(*m->buffer));
	m->r.buffers = calloc(n, sizeof(*m->r.buffers));
	if (!m->buffer || !m->r.buffers || !nodes_fill(d, now, &m->list))
		return false;
	m->node = calloc(m->list.n, sizeof(*m->node));
	m->r.nodes = calloc(m->list.n, sizeof(*m->r.nodes));
	return m->node && m->r.nodes;
}

static void add_job(const struct hosted *h, struct memory *m)
{
	Gacc__V1__Buffer *row = &m->buffer[m->r.n_buffers];
	const size_t n = hosted_buffers(h, m->r.n_buffers + most_rows(h) > ROWS_MAX, row);
	for (size_t i = 0; i < n; i++)
		m->r.buffers[m->r.n_buffers++] = &row[i];
}

/* What the caller has on each node, in node[].user_bytes_used. */
static void count_user(const struct daemon *d, struct memory *m)
{
	for (uint32_t k = 0; k < d->n_jobs; k++) {
		const struct hosted *h = d->job[k];
		if (h->uid != m->uid)
			continue;
		m->node[0].user_bytes_used += h->kept_bytes;
		for (uint32_t i = 0; i < h->n_parts; i++)
			m->node[h->part[i].node].user_bytes_used += h->part[i].seen ? h->part[i].seen->view.bytes : 0;
	}
}

static void fill_node(const Gacc__V1__ClusterNode *from, Gacc__V1__NodeMemory *out)
{
	const uint64_t user = out->user_bytes_used;
	gacc__v1__node_memory__init(out);
	out->name = from->name;
	out->heard = from->heard_unix_nanos != 0;
	out->host_bytes_used = from->host_bytes_used;
	out->host_bytes_limit = from->host_bytes_limit;
	out->user_bytes_used = user;
}

/* only: of this job; NULL: of all that the caller may see. */
static void memory_fill(const struct daemon *d, const struct hosted *only, struct memory *m)
{
	for (uint32_t i = 0; i < d->n_jobs; i++)
		if (hosted_is_of(d->job[i], m->uid) && (!only || d->job[i] == only))
			add_job(d->job[i], m);
	count_user(d, m);
	for (uint32_t i = 0; i < m->list.n; i++) {
		fill_node(m->list.list[i], &m->node[i]);
		if (!only || hosted_has_part_on(only, i))
			m->r.nodes[m->r.n_nodes++] = &m->node[i];
	}
	const uint64_t of_user = d->node.conf->limits.host_memory_per_user;
	m->node[0].user_bytes_limit = of_user ? of_user : m->node[0].host_bytes_limit;
	m->r.host_bytes_used = m->node[0].host_bytes_used;
	m->r.host_bytes_limit = m->node[0].host_bytes_limit;
	m->r.user_bytes_used = m->node[0].user_bytes_used;
	m->r.user_bytes_limit = m->node[0].user_bytes_limit;
}

static void list_buffers(struct rpc_call *call, const struct ProtobufCMessage *request, const struct bytes_view *bulk)
{
	const Gacc__V1__ListBuffersRequest *q = (const Gacc__V1__ListBuffersRequest *)request;
	const struct daemon *d = daemon_of(call);
	const struct hosted *only = *q->job ? named_job(call, q->job) : NULL;
	struct memory m = { .uid = caller_uid(call), .r = GACC__V1__LIST_BUFFERS_RESPONSE__INIT };
	if (*q->job && !only)
		return;
	if (make_room(d, now_of(call), &m)) {
		memory_fill(d, only, &m);
		rpc_finish(call, &m.r.base);
	} else {
		no_memory(call);
	}
	nodes_free(&m.list);
	free(m.node);
	free(m.buffer);
	free(m.r.nodes);
	free(m.r.buffers);
}

#define NODE(name_, handler)                                                                                           \
	{                                                                                                              \
		.service = &gacc__v1__node_service__descriptor, .name = name_, .kind = RPC_UNARY, .flags = RPC_RELAY,  \
		.on_message = handler                                                                                  \
	}

const struct rpc_method nodes_methods[] = {
	NODE("ListNodes", list_nodes),
	NODE("DrainNode", drain_node),
	NODE("ListBuffers", list_buffers),
};
const size_t n_nodes_methods = sizeof(nodes_methods) / sizeof(*nodes_methods);
