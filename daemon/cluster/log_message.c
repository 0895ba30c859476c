/* SPDX-License-Identifier: Apache-2.0 */
/* Packs questions for pieces of ranks' logs and their answers, and unpacks and checks them. For edge/rank_logs.c, on
 * the loop thread; no state. */
#include "cluster/log_message.h"

#include "cluster/message_text.h"
#include "cluster/record.h"
#include "gacc/internal/v1/cluster.pb-c.h"
#include "proto/bytes.h"

#include <stdio.h>
#include <string.h>

#define ASK_FIELDS(X) X(job_id) X(number) X(rank) X(file) X(offset) X(from_end) X(tail)
#define PIECE_FIELDS(X) X(job_id) X(number) X(missing) X(more) X(file) X(offset)

void *log_ask_pack(const struct log_ask *a, size_t *out_n)
{
	Gacc__Internal__V1__LogAsk m = GACC__INTERNAL__V1__LOG_ASK__INIT;
#define X(field) m.field = a->field;
	ASK_FIELDS(X)
#undef X
	m.uuid = (ProtobufCBinaryData){ sizeof(a->uuid), (uint8_t *)a->uuid }; /* not written to */
	return bytes_pack(&m.base, out_n);
}

enum status log_ask_unpack(const void *bytes, size_t n, struct log_ask *out, char *why, size_t n_why)
{
	struct ProtobufCMessage *base;
	enum status st = message_unpack(&gacc__internal__v1__log_ask__descriptor, bytes, n, &base, why, n_why);
	if (st)
		return st;
	const Gacc__Internal__V1__LogAsk *m = (const Gacc__Internal__V1__LogAsk *)base;
	if (!m->job_id || !m->number) {
		snprintf(why, n_why, "LogAsk.%s is missing", m->job_id ? "number" : "job_id");
		st = ST_VERSION_SKEW;
	} else if (m->uuid.len != sizeof(out->uuid)) {
		snprintf(why, n_why, "LogAsk.uuid has %zu bytes, and must have 16", m->uuid.len);
		st = ST_VERSION_SKEW;
	} else {
#define X(field) out->field = m->field;
		ASK_FIELDS(X)
#undef X
		memcpy(out->uuid, m->uuid.data, sizeof(out->uuid));
	}
	bytes_free(base);
	return st;
}

void *log_piece_pack(const struct log_piece *p, size_t *out_n)
{
	Gacc__Internal__V1__LogPiece m = GACC__INTERNAL__V1__LOG_PIECE__INIT;
	char mended[LOG_PIECE_TEXT];
#define X(field) m.field = p->field;
	PIECE_FIELDS(X)
#undef X
	m.status = message_put_status(p->status);
	m.text = message_put_text(p->text, mended);
	m.data = (ProtobufCBinaryData){ p->n, (uint8_t *)p->data }; /* not written to */
	return bytes_pack(&m.base, out_n);
}

static enum status check_piece(const Gacc__Internal__V1__LogPiece *m, char *why, size_t n_why)
{
	if (!m->job_id || !m->number)
		snprintf(why, n_why, "LogPiece.%s is missing", m->job_id ? "number" : "job_id");
	else if (m->data.len > LOG_PIECE_BYTES)
		snprintf(why, n_why, "LogPiece.data has %zu bytes, and may have 32768", m->data.len);
	else if (m->data.len && !m->file)
		snprintf(why, n_why, "LogPiece.file is missing");
	else if (m->offset < m->data.len)
		snprintf(why, n_why, "LogPiece.offset is %llu after %zu bytes", (unsigned long long)m->offset,
			 m->data.len);
	else
		return ST_OK;
	return ST_VERSION_SKEW;
}

enum status log_piece_unpack(const void *bytes, size_t n, struct log_piece *out, char *why, size_t n_why)
{
	struct ProtobufCMessage *base;
	enum status st = message_unpack(&gacc__internal__v1__log_piece__descriptor, bytes, n, &base, why, n_why);
	if (st)
		return st;
	const Gacc__Internal__V1__LogPiece *m = (const Gacc__Internal__V1__LogPiece *)base;
	st = check_piece(m, why, n_why);
	if (st) {
		bytes_free(base);
		return st;
	}
	*out = (struct log_piece){ .status = message_take_status(m->status),
				   .data = m->data.data,
				   .n = (uint32_t)m->data.len,
				   .message = base };
#define X(field) out->field = m->field;
	PIECE_FIELDS(X)
#undef X
	message_take_text(out->text, sizeof(out->text), m->text);
	return ST_OK;
}

void log_piece_release(struct log_piece *p)
{
	bytes_free(p->message);
	*p = (struct log_piece){ .status = ST_OK };
}
