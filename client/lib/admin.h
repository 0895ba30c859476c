/* SPDX-License-Identifier: Apache-2.0 */
/* One call of gacc_admin.h, and its failures. */
#ifndef GACC_CLIENT_ADMIN_H
#define GACC_CLIENT_ADMIN_H

#include "gacc/gacc_admin.h"
#include "proto/status.h"

#include <stdbool.h>

struct ProtobufCMessage;
struct ProtobufCServiceDescriptor;
struct rpc_failure;

/* Keeps the failure for gacc_failure; returns its code. */
gacc_status admin_fail(struct gacc_client *client, enum status st, const char *text);
gacc_status admin_no_memory(struct gacc_client *client);
/* The same for what a call reported. */
gacc_status admin_rpc_failed(struct gacc_client *client, const struct ProtobufCServiceDescriptor *service,
			     const char *method, enum status st, struct rpc_failure *rpc);
/* A unary call within the client's timeout; *out_reply is freed with bytes_free. A daemon that is not there is an
 * answer, not a reason to wait. */
gacc_status admin_call(struct gacc_client *client, const struct ProtobufCServiceDescriptor *service, const char *method,
		       const struct ProtobufCMessage *request, struct ProtobufCMessage **out_reply);
/* The same for an answer that is the caller's (lib/answer.h): a zeroed struct of that size, which `fill` fills from the
 * reply, that it keeps. fill returns false without memory. */
gacc_status admin_answer(struct gacc_client *client, const struct ProtobufCServiceDescriptor *service,
			 const char *method, const struct ProtobufCMessage *request, size_t public_bytes,
			 bool (*fill)(void *public, const struct ProtobufCMessage *reply), void **out);
/* What repeating a request is known by. */
#define REQUEST_ID_BYTES 16
gacc_status admin_request_id(struct gacc_client *client, unsigned char out[REQUEST_ID_BYTES]);

/* Our requests have no const; nothing writes into them. */
static inline char *unconst(const char *text)
{
	return (char *)(uintptr_t)(text ? text : "");
}

#endif
