/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/private.h"

#include <stdio.h>
#include <string.h>
#include <grpc/byte_buffer.h>
#include <protobuf-c/protobuf-c.h>

#define PATH_SHOWN 128 /* bytes of a method's name */

void rpc_why_unpack(const struct rpc_row *row, grpc_byte_buffer *in, enum status st, char *why, size_t n_why)
{
	size_t n = grpc_byte_buffer_length(in);
	if (st == ST_MALFORMED)
		bytes_explain_buffer(row->input, in, why, n_why);
	else if (st == ST_RESOURCE_EXHAUSTED && row->method->bulk)
		snprintf(why, n_why, "%s: %zu bytes, of which more than %u are not data", row->input->name, n,
			 BYTES_ENVELOPE_MAX);
	else
		snprintf(why, n_why, "%s: %zu bytes of small elements: %s", row->input->name, n, status_info(st)->text);
}

void rpc_why_no_room(const struct rpc_shares *shares, const char *what, int64_t who, size_t n, char *why, size_t n_why)
{
	snprintf(why, n_why,
		 "%s hold %zu bytes, %zu of them yours, this one has %zu; nobody may have more than are left of %zu",
		 what, shares->used, rpc_shares_of(shares, who), n, shares->most);
}

const char *rpc_why_refused(const struct rpc_server *server, const struct rpc_row *row, const char *path, size_t n_path,
			    int64_t who, enum status st, char *why, size_t n_why)
{
	if (row) {
		path = row->path;
		n_path = strlen(path);
	}
	int shown = (int)(n_path < PATH_SHOWN ? n_path : PATH_SHOWN);
	if (st == ST_RESOURCE_EXHAUSTED && who == RPC_STRANGERS) {
		snprintf(why, n_why, "%.*s: %zu calls of callers without a token are open; there may be %zu", shown,
			 path, rpc_shares_of(&server->calls, who), server->calls.most_strangers);
		return "send the token, or repeat this call later";
	}
	if (st == ST_RESOURCE_EXHAUSTED) {
		snprintf(why, n_why,
			 "%.*s: %zu calls are open, %zu of them yours; nobody may have more than are left of %zu",
			 shown, path, server->calls.used, rpc_shares_of(&server->calls, who), server->calls.most);
		return "end calls that wait, then repeat this one";
	}
	if (st == ST_INVALID_ARGUMENT) {
		snprintf(why, n_why, "%.*s: the call has no deadline", shown, path);
		return "set a deadline (grpc-timeout)";
	}
	snprintf(why, n_why, "%.*s: %s", shown, path, status_info(st)->text);
	return NULL;
}
