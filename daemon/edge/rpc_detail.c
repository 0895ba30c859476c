#include <string.h>
#include <stdlib.h>
#include "edge/rpc_private.h"
#include "gacc/v1/common.pb-c.h"
#include "google/rpc/status.pb-c.h"

/* gRPC refuses metadata of more than 8 KiB, base64 included. */
#define TEXT_MAX 1000
#define RANKS_MAX 400

size_t rpc_text_fit(const char *s, size_t max)
{
	size_t n = strnlen(s, max + 1);
	if (n <= max)
		return n;
	for (n = max; n > 0 && (s[n] & 0xc0) == 0x80; n--)
		;
	return n;
}

/* Copy of s, cut to fit; `room` has TEXT_MAX + 1 bytes. */
static char *fit(const char *s, char *room)
{
	size_t n = s ? rpc_text_fit(s, TEXT_MAX) : 0;
	if (n > 0)
		memcpy(room, s, n);
	room[n] = 0;
	return room;
}

static void *pack(const ProtobufCMessage *msg, size_t *out_len)
{
	size_t n = protobuf_c_message_get_packed_size(msg);
	uint8_t *data = malloc(n ? n : 1);
	if (data)
		*out_len = protobuf_c_message_pack(msg, data);
	return data;
}

static void *pack_detail(const struct rpc_error *error, size_t *out_len)
{
	char hint[TEXT_MAX + 1], field[TEXT_MAX + 1], reason[64];
	Gacc__V1__ErrorDetail detail = GACC__V1__ERROR_DETAIL__INIT;
	uint32_t ranks[RANKS_MAX];
	detail.reason = strcpy(reason, status_info(error->status)->name);
	detail.hint = fit(error->hint, hint);
	detail.field = fit(error->field, field);
	detail.retry_after_ms = error->retry_after_ms;
	detail.n_missing_ranks = error->n_missing_ranks < RANKS_MAX ? error->n_missing_ranks : RANKS_MAX;
	if (detail.n_missing_ranks > 0)
		memcpy(ranks, error->missing_ranks, detail.n_missing_ranks * sizeof *ranks);
	detail.missing_ranks = ranks;
	return pack(&detail.base, out_len);
}

void rpc_detail_pack(const struct rpc_error *error, uint8_t **out_data, size_t *out_len)
{
	static char type_url[] = "type.googleapis.com/gacc.v1.ErrorDetail";
	char text[TEXT_MAX + 1];
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
	status.message = fit(error->message ? error->message : info->text, text);
	status.n_details = 1;
	status.details = details;
	*out_data = pack(&status.base, out_len);
	free(any.value.data);
}
