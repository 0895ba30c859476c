/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes and checks the packet with which a trainer asks the attach socket for its memory; the bytes come from an
 * untrusted process. Pure; called by host/attach.c on the loop thread, and by a fuzzer. */
#include "host/map_request.h"

#include "proto/bytes.h"
#include "proto/version.h"
#include "gacc/v1/attach.pb-c.h"

#include <stdio.h>
#include <string.h>

static enum status check(const Gacc__V1__MapRequest *q, char *why, size_t n_why)
{
	if (q->version != MAP_VERSION) {
		snprintf(why, n_why,
			 "version %u of the attach socket's messages; this daemon speaks %d: update the older side",
			 q->version, MAP_VERSION);
		return ST_VERSION_SKEW;
	}
	if (!q->session) {
		snprintf(why, n_why, "session is missing: send the one that Attach gave");
		return ST_SESSION_UNKNOWN;
	}
	if (q->session->token.len != sizeof((struct map_request *)0)->token) {
		snprintf(why, n_why, "session.token has %zu bytes, must have 16: send the one that Attach gave",
			 q->session->token.len);
		return ST_SESSION_UNKNOWN;
	}
	if (strlen(q->gpu) > STATUS_GPU_BYTES) {
		snprintf(why, n_why, "gpu has %zu bytes: it is \"GPU-\" and a UUID, %d bytes", strlen(q->gpu),
			 STATUS_GPU_BYTES);
		return ST_INVALID_ARGUMENT;
	}
	return ST_OK;
}

enum status map_request_parse(const void *bytes, size_t n, struct map_request *out, char *why, size_t n_why)
{
	struct ProtobufCMessage *msg = NULL;
	enum status st = bytes_decode(&gacc__v1__map_request__descriptor, bytes, n, &msg);
	if (st) {
		bytes_explain(&gacc__v1__map_request__descriptor, bytes, n, why, n_why);
		return st;
	}
	const Gacc__V1__MapRequest *q = (const Gacc__V1__MapRequest *)msg;
	st = check(q, why, n_why);
	if (!st) {
		out->session = q->session->id;
		out->wants_mailbox = q->wants_mailbox;
		out->device = q->device;
		strcpy(out->gpu, q->gpu);
		memcpy(out->token, q->session->token.data, sizeof(out->token));
	}
	bytes_free(msg);
	return st;
}
