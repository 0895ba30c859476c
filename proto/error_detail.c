/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/error_detail.h"

#include "gacc/v1/common.pb-c.h"
#include "google/rpc/status.pb-c.h"
#include "proto/bytes.h"
#include "proto/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <grpc/status.h>

#define RANKS_MAX 400

static char type_url[] = "type.googleapis.com/gacc.v1.ErrorDetail";

size_t error_text_fit(const char *s, size_t max)
{
	size_t n = strnlen(s, max + 1);
	if (n <= max)
		return n;
	for (n = max; n > 0 && (s[n] & 0xc0) == 0x80; n--)
		;
	return n;
}

char *error_text_copy(const char *s, char room[ERROR_TEXT_MAX + 1])
{
	size_t n = s ? error_text_fit(s, ERROR_TEXT_MAX) : 0, at = 0;
	while (at < n) {
		size_t k = utf8_length(s + at, s + n);
		if (k)
			memcpy(room + at, s + at, k);
		else
			room[at] = '?';
		at += k ? k : 1;
	}
	room[n] = 0;
	return room;
}

static void *pack_detail(const struct rpc_error *error, size_t *out_len)
{
	char hint[ERROR_TEXT_MAX + 1], field[ERROR_TEXT_MAX + 1], reason[64];
	Gacc__V1__ErrorDetail detail = GACC__V1__ERROR_DETAIL__INIT;
	uint32_t ranks[RANKS_MAX];
	detail.reason = strcpy(reason, status_info(error->status)->name);
	detail.hint = error_text_copy(error->hint ? error->hint : status_info(error->status)->hint, hint);
	detail.field = error_text_copy(error->field, field);
	detail.retry_after_ms = error->retry_after_ms;
	detail.n_missing_ranks = error->n_missing_ranks < RANKS_MAX ? error->n_missing_ranks : RANKS_MAX;
	if (detail.n_missing_ranks > 0)
		memcpy(ranks, error->missing_ranks, detail.n_missing_ranks * sizeof(*ranks));
	detail.missing_ranks = ranks;
	return bytes_pack(&detail.base, out_len);
}

void error_detail_pack(const struct rpc_error *error, uint8_t **out_data, size_t *out_len)
{
	char text[ERROR_TEXT_MAX + 1];
	Google__Rpc__Status__Any any = GOOGLE__RPC__STATUS__ANY__INIT, *details[1] = { &any };
	Google__Rpc__Status status = GOOGLE__RPC__STATUS__INIT;
	*out_data = NULL;
	*out_len = 0;
	any.type_url = type_url;
	any.value.data = pack_detail(error, &any.value.len);
	if (!any.value.data)
		return;
	const struct status_info *info = status_info(error->status);
	status.code = info->grpc_code;
	status.message = error_text_copy(error->message ? error->message : info->text, text);
	status.n_details = 1;
	status.details = details;
	*out_data = bytes_pack(&status.base, out_len);
	free(any.value.data);
}

/* Copies n bytes that may lack a NUL. */
static void copy_text(char *to, size_t cap, const char *from, size_t n)
{
	char text[ERROR_TEXT_MAX + 1];
	snprintf(text, sizeof(text), "%.*s", (int)n, from ? from : "");
	n = error_text_fit(text, cap - 1);
	memcpy(to, text, n);
	to[n] = 0;
}
#define COPY_TEXT(array, from) copy_text(array, sizeof(array), from, strlen(from))

/* For errors that are not the daemon's own words: of gRPC, or of another server. */
static enum status status_by_code(int code)
{
	switch (code) {
	case GRPC_STATUS_OK:
		return ST_OK;
	case GRPC_STATUS_CANCELLED:
		return ST_CANCELLED;
	case GRPC_STATUS_INVALID_ARGUMENT:
	case GRPC_STATUS_OUT_OF_RANGE:
		return ST_INVALID_ARGUMENT;
	case GRPC_STATUS_DEADLINE_EXCEEDED:
		return ST_STALLED;
	case GRPC_STATUS_PERMISSION_DENIED:
		return ST_PERMISSION_DENIED;
	case GRPC_STATUS_RESOURCE_EXHAUSTED:
		return ST_RESOURCE_EXHAUSTED;
	case GRPC_STATUS_UNIMPLEMENTED:
		return ST_UNIMPLEMENTED;
	case GRPC_STATUS_UNAVAILABLE:
		return ST_UNAVAILABLE;
	case GRPC_STATUS_UNAUTHENTICATED:
		return ST_UNAUTHENTICATED;
	default:
		return ST_INTERNAL;
	}
}

static void take_detail(const Gacc__V1__ErrorDetail *detail, struct rpc_failure *failure)
{
	int known = status_by_name(detail->reason);
	if (known > 0)
		failure->status = (enum status)known;
	COPY_TEXT(failure->reason, detail->reason);
	COPY_TEXT(failure->hint, detail->hint);
	COPY_TEXT(failure->field, detail->field);
	failure->retry_after_ms = detail->retry_after_ms;
	failure->n_missing_ranks =
		detail->n_missing_ranks < RPC_MISSING_MAX ? detail->n_missing_ranks : RPC_MISSING_MAX;
	for (size_t i = 0; i < failure->n_missing_ranks; i++)
		failure->missing_ranks[i] = detail->missing_ranks[i];
}

/* google.rpc.Status of the trailer: the message as it was written, and our ErrorDetail. */
static void take_trailer(const void *data, size_t n, struct rpc_failure *failure)
{
	ProtobufCMessage *msg, *detail;
	if (bytes_decode(&google__rpc__status__descriptor, data, n, &msg) != ST_OK)
		return;
	const Google__Rpc__Status *status = (const Google__Rpc__Status *)msg;
	COPY_TEXT(failure->message, status->message);
	for (size_t i = 0; i < status->n_details; i++) {
		const Google__Rpc__Status__Any *any = status->details[i];
		if (strcmp(any->type_url, type_url) != 0 ||
		    bytes_decode(&gacc__v1__error_detail__descriptor, any->value.data, any->value.len, &detail) !=
			    ST_OK)
			continue;
		take_detail((const Gacc__V1__ErrorDetail *)detail, failure);
		bytes_free(detail);
	}
	bytes_free(msg);
}

void error_detail_unpack(int grpc_code, const char *message, size_t n, const void *trailer, size_t n_trailer,
			 struct rpc_failure *out_failure)
{
	*out_failure = (struct rpc_failure){ .status = status_by_code(grpc_code), .grpc_code = grpc_code };
	copy_text(out_failure->message, sizeof(out_failure->message), message, n);
	if (grpc_code != GRPC_STATUS_OK && trailer)
		take_trailer(trailer, n_trailer, out_failure);
}
