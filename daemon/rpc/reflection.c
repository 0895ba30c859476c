/* SPDX-License-Identifier: Apache-2.0 */
/* grpc.reflection: describes the services to tools such as grpcurl. The v1alpha service has v1's messages, so one set
 * of handlers serves both. Loop thread. */
#include "rpc/private.h"
#include "google/protobuf/descriptor.pb-c.h"
#include "grpc/reflection/v1/reflection.pb-c.h"
#include "grpc/reflection/v1alpha/reflection.pb-c.h"
#include "proto/protoset.h"

#include <stdlib.h>
#include <string.h>
#include <grpc/status.h>

typedef Google__Protobuf__FileDescriptorSet file_set;
typedef Google__Protobuf__FileDescriptorProto file_desc;
typedef Google__Protobuf__DescriptorProto type_desc;
typedef Grpc__Reflection__V1__ServerReflectionRequest request_msg;
typedef Grpc__Reflection__V1__ServerReflectionResponse response_msg;
#define ASKS(name) GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##name
#define GIVES(name) GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##name

#define FILES_MAX 32
#define SERVICES_MAX 32

/* The part of `symbol` behind `name`: "" for the name itself, NULL if it is not within it. An empty name holds all. */
static const char *within(const char *symbol, const char *name)
{
	size_t n = strlen(name);
	if (n == 0)
		return symbol;
	if (strncmp(symbol, name, n) != 0 || (symbol[n] && symbol[n] != '.'))
		return NULL;
	return symbol + n + (symbol[n] == '.');
}

static bool enum_has(const Google__Protobuf__EnumDescriptorProto *desc, const char *symbol)
{
	return strcmp(desc->name, symbol) == 0;
}

static bool type_has(const type_desc *desc, const char *symbol)
{
	const char *rest = within(symbol, desc->name);
	if (!rest || *rest == 0)
		return rest != NULL;
	for (size_t i = 0; i < desc->n_field; i++)
		if (strcmp(desc->field[i]->name, rest) == 0)
			return true;
	for (size_t i = 0; i < desc->n_enum_type; i++)
		if (enum_has(desc->enum_type[i], rest))
			return true;
	for (size_t i = 0; i < desc->n_nested_type; i++)
		if (type_has(desc->nested_type[i], rest))
			return true;
	return false;
}

static bool service_has(const Google__Protobuf__ServiceDescriptorProto *desc, const char *symbol)
{
	const char *rest = within(symbol, desc->name);
	if (!rest || *rest == 0)
		return rest != NULL;
	for (size_t i = 0; i < desc->n_method; i++)
		if (strcmp(desc->method[i]->name, rest) == 0)
			return true;
	return false;
}

static bool file_has(const file_desc *file, const char *symbol)
{
	const char *rest = within(symbol, file->package);
	if (!rest)
		return false;
	for (size_t i = 0; i < file->n_message_type; i++)
		if (type_has(file->message_type[i], rest))
			return true;
	for (size_t i = 0; i < file->n_enum_type; i++)
		if (enum_has(file->enum_type[i], rest))
			return true;
	for (size_t i = 0; i < file->n_service; i++)
		if (service_has(file->service[i], rest))
			return true;
	return false;
}

static const file_desc *file_by_name(const file_set *set, const char *name)
{
	for (size_t i = 0; i < set->n_file; i++)
		if (strcmp(set->file[i]->name, name) == 0)
			return set->file[i];
	return NULL;
}

static const file_desc *file_by_symbol(const file_set *set, const char *symbol)
{
	for (size_t i = 0; i < set->n_file; i++)
		if (file_has(set->file[i], symbol))
			return set->file[i];
	return NULL;
}

/* Appends `file` and what it imports, each once. */
static void collect(const file_set *set, const file_desc *file, const file_desc **list, size_t *n)
{
	for (size_t i = 0; i < *n; i++)
		if (list[i] == file)
			return;
	if (!file || *n == FILES_MAX)
		return;
	list[(*n)++] = file;
	for (size_t i = 0; i < file->n_dependency; i++)
		collect(set, file_by_name(set, file->dependency[i]), list, n);
}

static void answer_error(struct rpc_call *call, response_msg *reply, int code, const char *text)
{
	Grpc__Reflection__V1__ErrorResponse error = GRPC__REFLECTION__V1__ERROR_RESPONSE__INIT;
	char message[64];
	error.error_code = code;
	error.error_message = strcpy(message, text);
	reply->message_response_case = GIVES(ERROR_RESPONSE);
	reply->error_response = &error;
	rpc_send(call, &reply->base);
}

static void answer_file(struct rpc_call *call, response_msg *reply, const file_set *set, const file_desc *file)
{
	Grpc__Reflection__V1__FileDescriptorResponse files = GRPC__REFLECTION__V1__FILE_DESCRIPTOR_RESPONSE__INIT;
	ProtobufCBinaryData packed[FILES_MAX];
	const file_desc *list[FILES_MAX];
	size_t n = 0;
	if (!file) {
		answer_error(call, reply, GRPC_STATUS_NOT_FOUND, "not found");
		return;
	}
	collect(set, file, list, &n);
	for (; files.n_file_descriptor_proto < n; files.n_file_descriptor_proto++) {
		const ProtobufCMessage *msg = &list[files.n_file_descriptor_proto]->base;
		ProtobufCBinaryData *to = &packed[files.n_file_descriptor_proto];
		to->data = malloc(protobuf_c_message_get_packed_size(msg));
		if (!to->data)
			break;
		to->len = protobuf_c_message_pack(msg, to->data);
	}
	files.file_descriptor_proto = packed;
	reply->message_response_case = GIVES(FILE_DESCRIPTOR_RESPONSE);
	reply->file_descriptor_response = &files;
	rpc_send(call, &reply->base);
	for (size_t i = 0; i < files.n_file_descriptor_proto; i++)
		free(packed[i].data);
}

static bool is_listed(const Grpc__Reflection__V1__ListServiceResponse *list, const char *name)
{
	for (size_t i = 0; i < list->n_service; i++)
		if (!strcmp(list->service[i]->name, name))
			return true;
	return false;
}

static void answer_services(struct rpc_call *call, response_msg *reply)
{
	const struct rpc_server *server = rpc_server_of(call);
	Grpc__Reflection__V1__ListServiceResponse list = GRPC__REFLECTION__V1__LIST_SERVICE_RESPONSE__INIT;
	Grpc__Reflection__V1__ServiceResponse services[SERVICES_MAX], *pointers[SERVICES_MAX];
	list.service = pointers;
	for (size_t i = 0; i < server->n_rows && list.n_service < SERVICES_MAX; i++) {
		const ProtobufCServiceDescriptor *service = server->rows[i].method->service;
		/* rows of a service may stand in several tables */
		if (is_listed(&list, service->name) || (server->rows[i].method->flags & RPC_INTERNAL))
			continue;
		grpc__reflection__v1__service_response__init(&services[list.n_service]);
		services[list.n_service].name = (char *)(uintptr_t)service->name; /* only read */
		pointers[list.n_service] = &services[list.n_service];
		list.n_service++;
	}
	reply->message_response_case = GIVES(LIST_SERVICES_RESPONSE);
	reply->list_services_response = &list;
	rpc_send(call, &reply->base);
}

/* The set is unpacked once per stream and kept with the call. */
static const file_set *set_of(struct rpc_call *call)
{
	if (!rpc_data(call))
		rpc_set_data(call,
			     google__protobuf__file_descriptor_set__unpack(NULL, gacc_protoset_len, gacc_protoset));
	return rpc_data(call);
}

static void on_request(struct rpc_call *call, const ProtobufCMessage *request, const struct bytes_view *bulk)
{
	request_msg *asked = (request_msg *)(uintptr_t)request; /* only read */
	response_msg reply = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
	const file_set *set = set_of(call);
	if (!set) {
		rpc_fail(call, &(struct rpc_error){ .status = ST_NO_MEMORY });
		return;
	}
	reply.valid_host = asked->host;
	reply.original_request = asked;
	switch (asked->message_request_case) {
	case ASKS(LIST_SERVICES):
		answer_services(call, &reply);
		break;
	case ASKS(FILE_BY_FILENAME):
		answer_file(call, &reply, set, file_by_name(set, asked->file_by_filename));
		break;
	case ASKS(FILE_CONTAINING_SYMBOL):
		answer_file(call, &reply, set, file_by_symbol(set, asked->file_containing_symbol));
		break;
	case ASKS(FILE_CONTAINING_EXTENSION):
	case ASKS(ALL_EXTENSION_NUMBERS_OF_TYPE):
		answer_error(call, &reply, GRPC_STATUS_NOT_FOUND, "proto3 has no extensions");
		break;
	default:
		answer_error(call, &reply, GRPC_STATUS_INVALID_ARGUMENT, "empty request");
	}
}

/* The answer has left: a client that does not read is not read either. */
static void on_writable(struct rpc_call *call)
{
	rpc_recv(call);
}

static void on_half_close(struct rpc_call *call)
{
	rpc_finish(call, NULL);
}

static void on_end(struct rpc_call *call, bool completed)
{
	google__protobuf__file_descriptor_set__free_unpacked(rpc_data(call), NULL);
}

#define ROW(version)                                                                                                   \
	{                                                                                                              \
		.service = &grpc__reflection__##version##__server_reflection__descriptor,                              \
		.name = "ServerReflectionInfo", .kind = RPC_BIDI, .flags = RPC_ENDS_ON_DRAIN,                          \
		.on_message = on_request, .on_half_close = on_half_close, .on_writable = on_writable, .on_end = on_end \
	}

static const struct rpc_method rows[] = { ROW(v1), ROW(v1alpha) };

enum status rpc_reflection_add(struct rpc_server *server)
{
	return rpc_server_add(server, rows, sizeof(rows) / sizeof(rows[0]), NULL);
}
