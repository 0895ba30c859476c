/* One call of gacc_admin.h, and its failures. */
#ifndef GACC_CLIENT_ADMIN_H
#define GACC_CLIENT_ADMIN_H

#include "gacc/gacc_admin.h"
#include "proto/status.h"

struct ProtobufCMessage;
struct ProtobufCServiceDescriptor;
struct rpc_failure;

/* Keeps the failure for gacc_failure; returns its code. */
gacc_status admin_fail(struct gacc_client *client, enum status st, const char *text);
gacc_status admin_no_memory(struct gacc_client *client);
/* The same for what a call reported. */
gacc_status admin_rpc_failed(struct gacc_client *client, const struct ProtobufCServiceDescriptor *service, const char *method,
			     enum status st, struct rpc_failure *rpc);
/* A unary call within the client's timeout; *out_reply is freed with bytes_free. A daemon that is not there is an answer, not a
 * reason to wait. */
gacc_status admin_call(struct gacc_client *client, const struct ProtobufCServiceDescriptor *service, const char *method,
		       const struct ProtobufCMessage *request, struct ProtobufCMessage **out_reply);
/* What repeating a request is known by. */
#define REQUEST_ID_BYTES 16
gacc_status admin_request_id(struct gacc_client *client, unsigned char out[REQUEST_ID_BYTES]);

/* Our requests have no const; nothing writes into them. */
static inline char *unconst(const char *text)
{
	return (char *)(uintptr_t)(text ? text : "");
}

#endif
