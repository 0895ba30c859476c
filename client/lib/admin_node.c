/* The node that answers: itself, its memory, its configuration. */
#include <time.h>

#include "gacc/v1/node.pb-c.h"
#include "lib/admin.h"
#include "lib/answer.h"
#include "proto/bytes.h"

#define NODE (&gacc__v1__node_service__descriptor)

/* Makes the public struct of an answer, which keeps the reply; NULL without memory. */
static void *take_reply(ProtobufCMessage *reply, size_t public_bytes, const char **out_json)
{
	void *public = answer_new(public_bytes);

	if (!public) {
		bytes_free(reply);
		return NULL;
	}
	if (answer_keep(public, reply) && (*out_json = answer_json(public, reply)))
		return public;
	answer_free(public);
	return NULL;
}

static int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void fill_node(gacc_node_info *out, const Gacc__V1__GetNodeResponse *n, const char *json, int64_t round_trip_ns)
{
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
		.round_trip_ns = round_trip_ns,
		.json = json,
	};
}

gacc_status gacc_node_get(gacc_client *client, gacc_node_info **out)
{
	Gacc__V1__GetNodeRequest request = GACC__V1__GET_NODE_REQUEST__INIT;
	ProtobufCMessage *reply;
	int64_t start = now_ns();
	gacc_node_info *node;
	const char *json;
	gacc_status st;

	st = admin_call(client, NODE, "GetNode", &request.base, &reply);
	if (st)
		return st;
	node = take_reply(reply, sizeof(*node), &json);
	if (!node)
		return admin_no_memory(client);
	fill_node(node, (Gacc__V1__GetNodeResponse *)reply, json, now_ns() - start);
	*out = node;
	return GACC_OK;
}

void gacc_node_free(gacc_node_info *node)
{
	answer_free(node);
}

/* --- memory */

static bool fill_buffers(gacc_buffers *out, const Gacc__V1__ListBuffersResponse *r)
{
	gacc_buffer_info *item = answer_items(out, r->n_buffers, sizeof(*item));

	if (!item)
		return false;
	for (size_t i = 0; i < r->n_buffers; i++) {
		const Gacc__V1__Buffer *b = r->buffers[i];

		item[i] = (gacc_buffer_info){ b->job, b->kind, b->segments, b->clients, b->tensors, b->bytes };
	}
	out->n = r->n_buffers;
	out->buffer = item;
	out->host_bytes_used = r->host_bytes_used;
	out->host_bytes_limit = r->host_bytes_limit;
	out->user_bytes_used = r->user_bytes_used;
	out->user_bytes_limit = r->user_bytes_limit;
	return true;
}

gacc_status gacc_node_buffers(gacc_client *client, const char *job, gacc_buffers **out)
{
	Gacc__V1__ListBuffersRequest request = GACC__V1__LIST_BUFFERS_REQUEST__INIT;
	gacc_buffers *buffers;
	ProtobufCMessage *reply;
	const char *json;
	gacc_status st;

	request.job = unconst(job);
	st = admin_call(client, NODE, "ListBuffers", &request.base, &reply);
	if (st)
		return st;
	buffers = take_reply(reply, sizeof(*buffers), &json);
	if (!buffers || !fill_buffers(buffers, (Gacc__V1__ListBuffersResponse *)reply)) {
		answer_free(buffers);
		return admin_no_memory(client);
	}
	buffers->json = json;
	*out = buffers;
	return GACC_OK;
}

void gacc_buffers_free(gacc_buffers *buffers)
{
	answer_free(buffers);
}

/* --- configuration */

static bool fill_config(gacc_config *out, const Gacc__V1__GetConfigResponse *r)
{
	gacc_config_value *item = answer_items(out, r->n_values, sizeof(*item));

	if (!item)
		return false;
	for (size_t i = 0; i < r->n_values; i++)
		item[i] = (gacc_config_value){ r->values[i]->key, r->values[i]->value, r->values[i]->source };
	out->n = r->n_values;
	out->value = item;
	return true;
}

gacc_status gacc_node_config(gacc_client *client, gacc_config **out)
{
	Gacc__V1__GetConfigRequest request = GACC__V1__GET_CONFIG_REQUEST__INIT;
	ProtobufCMessage *reply;
	gacc_config *config;
	const char *json;
	gacc_status st;

	st = admin_call(client, NODE, "GetConfig", &request.base, &reply);
	if (st)
		return st;
	config = take_reply(reply, sizeof(*config), &json);
	if (!config || !fill_config(config, (Gacc__V1__GetConfigResponse *)reply)) {
		answer_free(config);
		return admin_no_memory(client);
	}
	config->json = json;
	*out = config;
	return GACC_OK;
}

void gacc_config_free(gacc_config *config)
{
	answer_free(config);
}
