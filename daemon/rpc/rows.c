/* SPDX-License-Identifier: Apache-2.0 */
/* The table of methods: rpc.c adds its rows and checks them at the start, calls find theirs in it. protobuf-c's
 * descriptors do not say which methods stream, so the check reads the linked descriptor set. Loop thread. */
#include "base/log.h"
#include "rpc/private.h"
#include "google/protobuf/descriptor.pb-c.h"
#include "proto/protoset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <protobuf-c/protobuf-c.h>

static const char our_package[] = "gacc.v1";

/* ---- adding and finding ---- */

static const ProtobufCMethodDescriptor *find_method(const struct rpc_method *row)
{
	for (unsigned i = 0; i < row->service->n_methods; i++)
		if (strcmp(row->service->methods[i].name, row->name) == 0)
			return &row->service->methods[i];
	return NULL;
}

enum status rpc_server_add(struct rpc_server *server, const struct rpc_method *rows, size_t n, void *context)
{
	struct rpc_row *all = realloc(server->rows, (server->n_rows + n) * sizeof(*all));
	if (!all)
		return ST_NO_MEMORY;
	server->rows = all;
	for (size_t i = 0; i < n; i++) {
		const ProtobufCMethodDescriptor *types = find_method(&rows[i]);
		if (!types) {
			log_error("service %s has no method %s", rows[i].service->name, rows[i].name);
			return ST_INTERNAL;
		}
		struct rpc_row *row = &server->rows[server->n_rows++];
		*row = (struct rpc_row){
			.method = &rows[i], .input = types->input, .output = types->output, .context = context
		};
		snprintf(row->path, sizeof(row->path), "/%s/%s", rows[i].service->name, rows[i].name);
	}
	return ST_OK;
}

const struct rpc_row *rpc_row_find(const struct rpc_server *server, const char *path, size_t len)
{
	for (size_t i = 0; i < server->n_rows; i++)
		if (strlen(server->rows[i].path) == len && memcmp(server->rows[i].path, path, len) == 0)
			return &server->rows[i];
	return NULL;
}

/* ---- the check ---- */

static enum rpc_kind kind_of(const Google__Protobuf__MethodDescriptorProto *method)
{
	if (method->client_streaming)
		return method->server_streaming ? RPC_BIDI : RPC_CLIENT_STREAM;
	return method->server_streaming ? RPC_SERVER_STREAM : RPC_UNARY;
}

static bool handlers_ok(const struct rpc_row *row)
{
	const struct rpc_method *m = row->method;
	bool ok = m->on_message && ((m->kind != RPC_CLIENT_STREAM && m->kind != RPC_BIDI) || m->on_half_close);
	if (!ok)
		log_error("%s: a handler is missing", row->path);
	return ok;
}

static bool row_ok(const struct rpc_row *row, const Google__Protobuf__MethodDescriptorProto *method)
{
	static const char *const names[] = { "unary", "client stream", "server stream", "bidi" };
	const struct rpc_method *m = row->method;
	if (m->kind != kind_of(method)) {
		log_error("%s: the row says %s, the .proto %s", row->path, names[m->kind], names[kind_of(method)]);
		return false;
	}
	return handlers_ok(row);
}

/* The descriptor set does not have these, so only the table can be wrong. */
static bool internal_ok(const struct rpc_server *server, size_t *n_found)
{
	bool ok = true;
	for (size_t i = 0; i < server->n_rows; i++) {
		const struct rpc_row *row = &server->rows[i];
		if (!(row->method->flags & RPC_INTERNAL))
			continue;
		ok = handlers_ok(row) && ok;
		*n_found += rpc_row_find(server, row->path, strlen(row->path)) == row;
	}
	return ok;
}

/* Is any method of this service served? */
static bool served(const struct rpc_server *server, const char *service)
{
	for (size_t i = 0; i < server->n_rows; i++)
		if (strcmp(server->rows[i].method->service->name, service) == 0)
			return true;
	return false;
}

/* Checks the methods of a service, and counts those that have a row. */
static bool service_ok(const struct rpc_server *server, const char *package,
		       const Google__Protobuf__ServiceDescriptorProto *service, size_t *n_found)
{
	char name[128], path[256];
	bool ok = true;
	snprintf(name, sizeof(name), "%s.%s", package, service->name);
	if (strcmp(package, our_package) != 0 && !served(server, name))
		return true;
	for (size_t i = 0; i < service->n_method; i++) {
		snprintf(path, sizeof(path), "/%s/%s", name, service->method[i]->name);
		const struct rpc_row *row = rpc_row_find(server, path, strlen(path));
		if (!row)
			log_error("%s has no row", path);
		ok = row && row_ok(row, service->method[i]) && ok;
		*n_found += row != NULL;
	}
	return ok;
}

enum status rpc_check_rows(const struct rpc_server *server)
{
	Google__Protobuf__FileDescriptorSet *set =
		google__protobuf__file_descriptor_set__unpack(NULL, gacc_protoset_len, gacc_protoset);
	if (!set)
		return ST_NO_MEMORY;
	size_t n_found = 0;
	bool ok = internal_ok(server, &n_found);
	for (size_t i = 0; i < set->n_file; i++)
		for (size_t k = 0; k < set->file[i]->n_service; k++)
			ok = service_ok(server, set->file[i]->package, set->file[i]->service[k], &n_found) && ok;
	google__protobuf__file_descriptor_set__free_unpacked(set, NULL);
	if (n_found != server->n_rows) {
		log_error("%zu of %zu rows are in the descriptor set: one is double or unknown", n_found,
			  server->n_rows);
		ok = false;
	}
	return ok ? ST_OK : ST_INTERNAL;
}
