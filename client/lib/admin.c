/* Jobs and nodes: what gaccctl asks. */
#include "lib/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "lib/channel.h"
#include "gacc/gacc_admin.h"
#include "gacc/v1/job.pb-c.h"
#include "gacc/v1/node.pb-c.h"
#include "lib/job_info.h"
#include "lib/json.h"
#include "lib/spec.h"

#define REQUEST_ID_BYTES 16

/* --- failures */

gacc_failure_info gacc_failure(const gacc_client *client)
{
	const struct failure *f = &client->failure;

	return (gacc_failure_info){ f->code, f->reason, f->message, f->hint };
}

void gacc_set_timeout(gacc_client *client, int timeout_ms)
{
	client->admin_timeout_ms = timeout_ms > 0 ? timeout_ms : 1;
}

static gacc_status admin_fail(struct gacc_client *client, enum status st, const char *text)
{
	struct failure f;

	failure_set(&f, st, NULL, "%s", text);
	return client_fail(client, &f);
}

/* One call. A daemon that is not there is an answer, not a reason to wait. */
static gacc_status admin_call(struct gacc_client *client, const ProtobufCServiceDescriptor *service, const char *method,
			      const ProtobufCMessage *request, ProtobufCMessage **out_reply)
{
	struct rpc_failure rpc = { 0 };
	struct failure f;
	enum status st;

	st = rpc_channel_call(client->channel, service, method, request, client->admin_timeout_ms, RPC_NO_RETRY,
			      out_reply, &rpc);
	if (!st)
		return GACC_OK;
	rpc.status = st;
	explain_unreachable(client->endpoint, &rpc);
	failure_of_rpc(&f, "", &rpc);
	return client_fail(client, &f);
}

#define JOBS (&gacc__v1__job_service__descriptor)

static gacc_status give_jobs(struct gacc_client *client, ProtobufCMessage *owner, Gacc__V1__Job *const *job, size_t n,
			     gacc_jobs **out)
{
	if (n == 1 && !job[0]) {
		bytes_free(owner);
		return admin_fail(client, ST_MALFORMED, "gaccd's answer holds no job");
	}
	*out = jobs_new(owner, job, n);
	return *out ? GACC_OK : admin_fail(client, ST_NO_MEMORY, "out of memory");
}

/* --- jobs */

gacc_status gacc_job_submit(gacc_client *client, const gacc_spec *spec, gacc_jobs **out)
{
	Gacc__V1__SubmitRequest request = GACC__V1__SUBMIT_REQUEST__INIT;
	uint8_t request_id[REQUEST_ID_BYTES];
	ProtobufCMessage *reply;
	gacc_status st;

	if (getrandom(request_id, sizeof(request_id), 0) != sizeof(request_id))
		return admin_fail(client, ST_INTERNAL, "no random numbers");
	request.spec = spec_message(spec);
	request.request_id.data = request_id;
	request.request_id.len = sizeof(request_id);
	st = admin_call(client, JOBS, "Submit", &request.base, &reply);
	if (st)
		return st;
	return give_jobs(client, reply, &((Gacc__V1__SubmitResponse *)reply)->job, 1, out);
}

gacc_status gacc_job_get(gacc_client *client, const char *job, gacc_jobs **out)
{
	Gacc__V1__GetRequest request = GACC__V1__GET_REQUEST__INIT;
	ProtobufCMessage *reply;
	gacc_status st;

	request.job = (char *)(uintptr_t)job;
	st = admin_call(client, JOBS, "Get", &request.base, &reply);
	if (st)
		return st;
	return give_jobs(client, reply, &((Gacc__V1__GetResponse *)reply)->job, 1, out);
}

gacc_status gacc_job_list(gacc_client *client, int ended_too, gacc_jobs **out)
{
	Gacc__V1__ListRequest request = GACC__V1__LIST_REQUEST__INIT;
	const Gacc__V1__ListResponse *list;
	ProtobufCMessage *reply;
	gacc_status st;

	request.all = ended_too != 0;
	st = admin_call(client, JOBS, "List", &request.base, &reply);
	if (st)
		return st;
	list = (Gacc__V1__ListResponse *)reply;
	return give_jobs(client, reply, list->jobs, list->n_jobs, out);
}

gacc_status gacc_job_cancel(gacc_client *client, const char *job, const char *reason, gacc_jobs **out)
{
	Gacc__V1__CancelRequest request = GACC__V1__CANCEL_REQUEST__INIT;
	ProtobufCMessage *reply;
	gacc_status st;

	request.job = (char *)(uintptr_t)job;
	request.reason = (char *)(uintptr_t)(reason ? reason : "");
	st = admin_call(client, JOBS, "Cancel", &request.base, &reply);
	if (st)
		return st;
	return give_jobs(client, reply, &((Gacc__V1__CancelResponse *)reply)->job, 1, out);
}

gacc_status gacc_job_flush(gacc_client *client, const char *job, uint64_t *out_window)
{
	Gacc__V1__FlushJobRequest request = GACC__V1__FLUSH_JOB_REQUEST__INIT;
	ProtobufCMessage *reply;
	gacc_status st;

	request.job = (char *)(uintptr_t)job;
	st = admin_call(client, JOBS, "Flush", &request.base, &reply);
	if (st)
		return st;
	if (out_window)
		*out_window = ((Gacc__V1__FlushJobResponse *)reply)->window;
	bytes_free(reply);
	return GACC_OK;
}

/* --- the node */

struct node_block {
	gacc_node_info public; /* first: what callers hold */
	ProtobufCMessage *owner;
	char *json;
};

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
	struct node_block *node;
	ProtobufCMessage *reply;
	int64_t start = now_ns();
	gacc_status st;

	st = admin_call(client, &gacc__v1__node_service__descriptor, "GetNode", &request.base, &reply);
	if (st)
		return st;
	node = calloc(1, sizeof(*node));
	if (node)
		node->json = json_of(reply);
	if (!node || !node->json) {
		free(node);
		bytes_free(reply);
		return admin_fail(client, ST_NO_MEMORY, "out of memory");
	}
	node->owner = reply;
	fill_node(&node->public, (Gacc__V1__GetNodeResponse *)reply, node->json, now_ns() - start);
	*out = &node->public;
	return GACC_OK;
}

void gacc_node_free(gacc_node_info *public)
{
	struct node_block *node = (struct node_block *)public;

	if (!node)
		return;
	bytes_free(node->owner);
	free(node->json);
	free(node);
}
