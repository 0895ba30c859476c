/* SPDX-License-Identifier: Apache-2.0 */
/* Packs and unpacks the addresses of engines and the boards of a communicator, and checks those that come in. For
 * edge/hosted_ports.c and edge/part_ports.c, on the loop thread; no state. */
#include "cluster/board_message.h"

#include "cluster/record.h"
#include "gacc/internal/v1/cluster.pb-c.h"
#include "proto/bytes.h"

#include <assert.h>
#include <stdio.h>

#define BOARD_FIELDS(X) X(job_id) X(epoch) X(term) X(comm)
#define BLOB_FIELDS(X) BOARD_FIELDS(X) X(part) X(life)

/* ---- packing ---- */

void *blob_pack(const struct part_blob *b, size_t *out_n)
{
	Gacc__Internal__V1__PartBlob m = GACC__INTERNAL__V1__PART_BLOB__INIT;
#define X(field) m.field = b->field;
	BLOB_FIELDS(X)
#undef X
	m.address = (ProtobufCBinaryData){ b->n, (uint8_t *)b->bytes };
	return bytes_pack(&m.base, out_n);
}

void *board_pack(const struct part_board *b, size_t *out_n)
{
	Gacc__Internal__V1__PartBoard m = GACC__INTERNAL__V1__PART_BOARD__INIT;
	Gacc__Internal__V1__PartAddress part[COLL_MAX_PARTS], *list[COLL_MAX_PARTS];
	assert(b->n_parts && b->n_parts <= COLL_MAX_PARTS);
#define X(field) m.field = b->field;
	BOARD_FIELDS(X)
#undef X
	for (uint32_t i = 0; i < b->n_parts; i++) {
		gacc__internal__v1__part_address__init(list[i] = &part[i]);
		part[i].life = b->address[i].life;
		part[i].address = (ProtobufCBinaryData){ b->address[i].n_blob, (uint8_t *)b->address[i].blob };
	}
	m.part = list;
	m.n_part = b->n_parts;
	return bytes_pack(&m.base, out_n);
}

/* ---- unpacking ---- */

static enum status check_ids(uint64_t epoch, uint64_t term, uint64_t comm, const char *message, char *why, size_t n_why)
{
	if (epoch && term && comm)
		return ST_OK;
	snprintf(why, n_why, "%s.%s is missing", message, !epoch ? "epoch" : !term ? "term" : "comm");
	return ST_VERSION_SKEW;
}

static enum status check_address(uint64_t life, const ProtobufCBinaryData *address, const char *message, char *why,
				 size_t n_why)
{
	if (!life)
		snprintf(why, n_why, "%s.life is missing", message);
	else if (!address->len || address->len > COLL_MAX_BLOB)
		snprintf(why, n_why, "%s.address has %zu bytes, and must have 1 to %d", message, address->len,
			 COLL_MAX_BLOB);
	else
		return ST_OK;
	return ST_VERSION_SKEW;
}

enum status blob_unpack(const void *bytes, size_t n, uint32_t parts, struct held_blob *out, char *why, size_t n_why)
{
	struct ProtobufCMessage *base;
	enum status st = message_unpack(&gacc__internal__v1__part_blob__descriptor, bytes, n, &base, why, n_why);
	if (st)
		return st;
	const Gacc__Internal__V1__PartBlob *m = (const Gacc__Internal__V1__PartBlob *)base;
	st = check_ids(m->epoch, m->term, m->comm, "PartBlob", why, n_why);
	if (!st)
		st = check_address(m->life, &m->address, "PartBlob", why, n_why);
	if (!st && m->part >= parts) {
		snprintf(why, n_why, "PartBlob.part is %u, and the job has %u parts", m->part, parts);
		st = ST_VERSION_SKEW;
	}
	if (st) {
		bytes_free(base);
		return st;
	}
	*out = (struct held_blob){ .blob = { .bytes = m->address.data, .n = m->address.len }, .message = base };
#define X(field) out->blob.field = m->field;
	BLOB_FIELDS(X)
#undef X
	return ST_OK;
}

static enum status check_board(const Gacc__Internal__V1__PartBoard *m, uint32_t parts, char *why, size_t n_why)
{
	enum status st = check_ids(m->epoch, m->term, m->comm, "PartBoard", why, n_why);
	if (!st && m->n_part != parts) {
		snprintf(why, n_why, "PartBoard.part has %zu addresses, and the job has %u parts", m->n_part, parts);
		return ST_VERSION_SKEW;
	}
	for (uint32_t i = 0; i < parts && !st; i++)
		st = check_address(m->part[i]->life, &m->part[i]->address, "PartAddress", why, n_why);
	return st;
}

enum status board_unpack(const void *bytes, size_t n, uint32_t parts, struct held_board *out, char *why, size_t n_why)
{
	struct ProtobufCMessage *base;
	assert(parts <= COLL_MAX_PARTS);
	enum status st = message_unpack(&gacc__internal__v1__part_board__descriptor, bytes, n, &base, why, n_why);
	if (st)
		return st;
	const Gacc__Internal__V1__PartBoard *m = (const Gacc__Internal__V1__PartBoard *)base;
	st = check_board(m, parts, why, n_why);
	if (st) {
		bytes_free(base);
		return st;
	}
	out->message = base;
	out->board = (struct part_board){ .n_parts = parts, .address = out->address };
#define X(field) out->board.field = m->field;
	BOARD_FIELDS(X)
#undef X
	for (uint32_t i = 0; i < parts; i++)
		out->address[i] =
			(struct coll_address){ m->part[i]->life, m->part[i]->address.data, m->part[i]->address.len };
	return ST_OK;
}

void blob_release(struct held_blob *b)
{
	bytes_free(b->message);
	b->message = NULL;
}

void board_release(struct held_board *b)
{
	bytes_free(b->message);
	b->message = NULL;
}
