/* SPDX-License-Identifier: Apache-2.0 */
/* The frame of every call of gacc_admin.h: one unary RPC, its deadline, and its failure in the caller's terms. Any
 * thread; a client's lock guards its last failure. */
#include "lib/admin.h"

#include "lib/answer.h"
#include "lib/channel.h"
#include "lib/internal.h"

#include <stdio.h>
#include <sys/random.h>
#include <protobuf-c/protobuf-c.h>

gacc_failure_info gacc_failure(const gacc_client *client)
{
	const struct failure *f = &client->failure;

	return (gacc_failure_info){ f->code, f->reason, f->message, f->hint };
}

void gacc_set_timeout(gacc_client *client, int timeout_ms)
{
	client->admin_timeout_ms = timeout_ms > 0 ? timeout_ms : 1;
}

gacc_status admin_fail(struct gacc_client *client, enum status st, const char *text)
{
	struct failure f;

	failure_set(&f, st, NULL, "%s", text);
	return client_fail(client, &f);
}

gacc_status admin_no_memory(struct gacc_client *client)
{
	return admin_fail(client, ST_NO_MEMORY, "out of memory");
}

gacc_status admin_rpc_failed(struct gacc_client *client, const ProtobufCServiceDescriptor *service, const char *method,
			     enum status st, struct rpc_failure *rpc)
{
	struct failure f;

	rpc->status = st;
	explain_unreachable(client->endpoint, rpc);
	if (st == ST_UNIMPLEMENTED)
		failure_set(&f, st, "gaccctl version shows both versions",
			    "this gaccd is older and does not know %s.%s", service->short_name, method);
	else
		failure_of_rpc(&f, "", rpc);
	return client_fail(client, &f);
}

gacc_status admin_call(struct gacc_client *client, const ProtobufCServiceDescriptor *service, const char *method,
		       const ProtobufCMessage *request, ProtobufCMessage **out_reply)
{
	struct rpc_failure rpc = { 0 };
	enum status st;

	st = rpc_channel_call(client->channel, service, method, request, client->admin_timeout_ms, out_reply, &rpc);
	if (st)
		return admin_rpc_failed(client, service, method, st, &rpc);
	pthread_mutex_lock(&client->lock);
	client->answered = true;
	pthread_mutex_unlock(&client->lock);
	return GACC_OK;
}

gacc_status admin_answer(struct gacc_client *client, const ProtobufCServiceDescriptor *service, const char *method,
			 const ProtobufCMessage *request, size_t public_bytes,
			 bool (*fill)(void *public, const ProtobufCMessage *reply), void **out)
{
	void *public = answer_new(public_bytes);
	ProtobufCMessage *reply;
	gacc_status st;

	if (!public)
		return admin_no_memory(client);
	st = admin_call(client, service, method, request, &reply);
	if (!st && (!answer_keep(public, reply) || !fill(public, reply)))
		st = admin_no_memory(client);
	if (st) {
		answer_free(public);
		return st;
	}
	*out = public;
	return GACC_OK;
}

gacc_status admin_request_id(struct gacc_client *client, unsigned char out[REQUEST_ID_BYTES])
{
	if (getrandom(out, REQUEST_ID_BYTES, 0) == REQUEST_ID_BYTES)
		return GACC_OK;
	return admin_fail(client, ST_INTERNAL, "no random numbers");
}
