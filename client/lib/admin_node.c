/* SPDX-License-Identifier: Apache-2.0 */
/* gacc_admin.h's calls on the node: its state, memory, configuration and protocol version. For gaccctl and other
 * tools of operators; any thread, blocking. */
#include "gacc/v1/node.pb-c.h"
#include "lib/admin.h"
#include "lib/answer.h"
#include "lib/clock.h"

#define NODE (&gacc__v1__node_service__descriptor)

static bool fill_access(gacc_node_info *out, const Gacc__V1__DeviceAccess *access)
{
	gacc_device_node *device = answer_items(out, access->n_nodes, sizeof(*device));

	for (size_t i = 0; device && i < access->n_nodes; i++)
		device[i] = (gacc_device_node){ access->nodes[i]->path, access->nodes[i]->error };
	out->has_device_access = 1;
	out->memlock_limit = access->memlock_limit;
	out->n_device = access->n_nodes;
	out->device = device;
	return device != NULL;
}

static bool fill_node(void *public, const ProtobufCMessage *reply)
{
	const Gacc__V1__GetNodeResponse *n = (const Gacc__V1__GetNodeResponse *)reply;
	const Gacc__V1__StateDisk *disk = n->state_disk;
	gacc_node_info *out = public;

	*out = (gacc_node_info){
		.name = n->name,
		.version = n->version,
		.kernels = n->kernels,
		.pid = n->pid,
		.started_unix_nanos = n->started_unix_nanos,
		.incarnation = n->incarnation,
		.term = n->term,
		.protocol = n->protocol,
		.jobs = n->jobs,
		.cpus = n->cpus,
		.host_bytes_used = n->host_bytes_used,
		.host_bytes_limit = n->host_bytes_limit,
		.draining = n->draining,
		.disk_total = disk ? disk->total : 0,
		.disk_free = disk ? disk->free : 0,
		.disk_full = disk && disk->full,
		.journal_reserve = disk ? disk->journal_reserve : 0,
		.journal_reserve_limit = disk ? disk->journal_reserve_limit : 0,
		.user_checkpoints = disk ? disk->user_checkpoints : 0,
		.user_logs = disk ? disk->user_logs : 0,
		.user_limit = disk ? disk->user_limit : 0,
		.longest_turn_ns = n->longest_turn_ns,
		.recent_turn_ns = n->recent_turn_ns,
		.certificate_fault = n->certificate_fault,
		.certificate_note = n->certificate_note,
		.certificate_expires_unix = n->certificate_expires_unix,
		.json = answer_json(public, reply),
	};
	return out->json && (!n->device_access || fill_access(out, n->device_access));
}

gacc_status gacc_node_get(gacc_client *client, gacc_node_info **out)
{
	Gacc__V1__GetNodeRequest request = GACC__V1__GET_NODE_REQUEST__INIT;
	int64_t start = now_ns();
	gacc_status st;
	void *answer;

	st = admin_answer(client, NODE, "GetNode", &request.base, sizeof(**out), fill_node, &answer);
	if (st)
		return st;
	*out = answer;
	(*out)->round_trip_ns = now_ns() - start;
	return GACC_OK;
}

void gacc_node_free(gacc_node_info *node)
{
	answer_free(node);
}

/* ---- the cluster ---- */

static const char *node_state(Gacc__V1__NodeState state)
{
	const ProtobufCEnumValue *v =
		protobuf_c_enum_descriptor_get_value(&gacc__v1__node_state__descriptor, (int)state);

	return v ? v->name + sizeof("NODE_STATE_") - 1 : "?";
}

static bool fill_node_list(void *public, Gacc__V1__ClusterNode *const *node, size_t n_nodes)
{
	gacc_cluster_node *item = answer_items(public, n_nodes, sizeof(*item));

	for (size_t i = 0; item && i < n_nodes; i++) {
		const Gacc__V1__ClusterNode *n = node[i];

		item[i] = (gacc_cluster_node){
			.name = n->name,
			.state = node_state(n->state),
			.version = n->version,
			.kernels = n->kernels,
			.collectives = n->collectives,
			.kernels_revision = n->kernels_revision,
			.reason = n->reason,
			.data_address = n->data_address,
			.coordinates = n->coordinates,
			.drained = n->drained,
			.state_since_unix_nanos = n->state_since_unix_nanos,
			.heard_unix_nanos = n->heard_unix_nanos,
			.silent_ns = n->silent_ns,
			.incarnation = n->incarnation,
			.host_bytes_used = n->host_bytes_used,
			.host_bytes_limit = n->host_bytes_limit,
			.cpus = n->cpus,
			.parts = n->parts,
			.json = answer_json(public, &n->base),
		};
		if (!item[i].json)
			return false;
	}
	*(gacc_nodes *)public = (gacc_nodes){ .n = n_nodes, .node = item };
	return item != NULL;
}

static bool fill_nodes(void *public, const ProtobufCMessage *reply)
{
	const Gacc__V1__ListNodesResponse *r = (const Gacc__V1__ListNodesResponse *)reply;

	return fill_node_list(public, r->nodes, r->n_nodes);
}

static bool fill_drained(void *public, const ProtobufCMessage *reply)
{
	const Gacc__V1__DrainNodeResponse *r = (const Gacc__V1__DrainNodeResponse *)reply;

	return fill_node_list(public, &r->node, r->node != NULL);
}

gacc_status gacc_node_list(gacc_client *client, gacc_nodes **out)
{
	Gacc__V1__ListNodesRequest request = GACC__V1__LIST_NODES_REQUEST__INIT;
	gacc_status st;
	void *answer;

	st = admin_answer(client, NODE, "ListNodes", &request.base, sizeof(**out), fill_nodes, &answer);
	if (!st)
		*out = answer;
	return st;
}

gacc_status gacc_node_drain(gacc_client *client, const char *name, int drained, gacc_nodes **out)
{
	Gacc__V1__DrainNodeRequest request = GACC__V1__DRAIN_NODE_REQUEST__INIT;
	gacc_status st;
	void *answer;

	request.name = unconst(name);
	request.drained = drained != 0;
	st = admin_answer(client, NODE, "DrainNode", &request.base, sizeof(**out), fill_drained, &answer);
	if (!st)
		*out = answer;
	return st;
}

void gacc_nodes_free(gacc_nodes *nodes)
{
	answer_free(nodes);
}

/* ---- memory ---- */

static void fill_memory(gacc_node_memory *out, const Gacc__V1__NodeMemory *n)
{
	*out = (gacc_node_memory){
		.name = n->name,
		.heard = n->heard,
		.host_bytes_used = n->host_bytes_used,
		.host_bytes_limit = n->host_bytes_limit,
		.user_bytes_used = n->user_bytes_used,
		.user_bytes_limit = n->user_bytes_limit,
	};
}

static void fill_buffer(gacc_buffer_info *out, const Gacc__V1__Buffer *b)
{
	*out = (gacc_buffer_info){
		.job = b->job,
		.kind = b->kind,
		.segments = b->segments,
		.clients = b->clients,
		.tensors = b->tensors,
		.bytes = b->bytes,
		.node = b->node,
		.part = b->part,
	};
}

static bool fill_buffers(void *public, const ProtobufCMessage *reply)
{
	const Gacc__V1__ListBuffersResponse *r = (const Gacc__V1__ListBuffersResponse *)reply;
	gacc_buffer_info *item = answer_items(public, r->n_buffers, sizeof(*item));
	gacc_node_memory *node = answer_items(public, r->n_nodes, sizeof(*node));
	gacc_buffers *out = public;

	if (!item || !node)
		return false;
	for (size_t i = 0; i < r->n_buffers; i++)
		fill_buffer(&item[i], r->buffers[i]);
	for (size_t i = 0; i < r->n_nodes; i++)
		fill_memory(&node[i], r->nodes[i]);
	*out = (gacc_buffers){
		.n = r->n_buffers,
		.buffer = item,
		.host_bytes_used = r->host_bytes_used,
		.host_bytes_limit = r->host_bytes_limit,
		.user_bytes_used = r->user_bytes_used,
		.user_bytes_limit = r->user_bytes_limit,
		.json = answer_json(public, reply),
		.node = node,
		.n_node = r->n_nodes,
	};
	return out->json != NULL;
}

gacc_status gacc_node_buffers(gacc_client *client, const char *job, gacc_buffers **out)
{
	Gacc__V1__ListBuffersRequest request = GACC__V1__LIST_BUFFERS_REQUEST__INIT;
	gacc_status st;
	void *answer;

	request.job = unconst(job);
	st = admin_answer(client, NODE, "ListBuffers", &request.base, sizeof(**out), fill_buffers, &answer);
	if (!st)
		*out = answer;
	return st;
}

void gacc_buffers_free(gacc_buffers *buffers)
{
	answer_free(buffers);
}

/* ---- configuration ---- */

static bool fill_config(void *public, const ProtobufCMessage *reply)
{
	const Gacc__V1__GetConfigResponse *r = (const Gacc__V1__GetConfigResponse *)reply;
	gacc_config_value *item = answer_items(public, r->n_values, sizeof(*item));
	gacc_config *out = public;

	if (!item)
		return false;
	for (size_t i = 0; i < r->n_values; i++)
		item[i] = (gacc_config_value){ r->values[i]->key, r->values[i]->value, r->values[i]->source };
	*out = (gacc_config){ r->n_values, item, answer_json(public, reply) };
	return out->json != NULL;
}

gacc_status gacc_node_config(gacc_client *client, gacc_config **out)
{
	Gacc__V1__GetConfigRequest request = GACC__V1__GET_CONFIG_REQUEST__INIT;
	gacc_status st;
	void *answer;

	st = admin_answer(client, NODE, "GetConfig", &request.base, sizeof(**out), fill_config, &answer);
	if (!st)
		*out = answer;
	return st;
}

void gacc_config_free(gacc_config *config)
{
	answer_free(config);
}
