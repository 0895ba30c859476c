/* SPDX-License-Identifier: Apache-2.0 */
/* NodeService.ListNodes and DrainNode: the nodes of the cluster that this gaccd coordinates, or this one alone. Called
 * by the RPC server. Loop thread. */
#include "edge/methods.h"

#include "control/members.h"
#include "edge/caller.h"
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

/* false: no memory. */
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
	free(l.reason);
	free(l.list);
	free(l.node);
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

#define NODE(name_, handler)                                                                                           \
	{                                                                                                              \
		.service = &gacc__v1__node_service__descriptor, .name = name_, .kind = RPC_UNARY, .flags = RPC_RELAY,  \
		.on_message = handler                                                                                  \
	}

const struct rpc_method nodes_methods[] = {
	NODE("ListNodes", list_nodes),
	NODE("DrainNode", drain_node),
};
const size_t n_nodes_methods = sizeof(nodes_methods) / sizeof(*nodes_methods);
