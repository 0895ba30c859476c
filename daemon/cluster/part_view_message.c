/* SPDX-License-Identifier: Apache-2.0 */
/* Packs what is shown of a part at its node, and unpacks and checks it at the coordinator. For edge/part_views.c and
 * edge/hosted_seen.c, on the loop thread; no state. */
#include "cluster/part_view_message.h"

#include "cluster/message_text.h"
#include "cluster/record.h"
#include "gacc/internal/v1/cluster.pb-c.h"
#include "proto/bytes.h"

#include <stdio.h>
#include <string.h>

#define VIEW_FENCES(X) X(job_id) X(epoch) X(incarnation) X(part)
#define VIEW_FIELDS(X)                                                                                                 \
	X(links)                                                                                                       \
	X(bytes)                                                                                                       \
	X(allocating)                                                                                                  \
	X(ended)                                                                                                       \
	X(released)                                                                                                    \
	X(ranks_known)                                                                                                 \
	X(has_tensors)                                                                                                 \
	X(engine_starts)                                                                                               \
	X(engine_pid)                                                                                                  \
	X(tensors)                                                                                                     \
	X(parameters)                                                                                                  \
	X(gpu_bytes)
#define BUFFER_FIELDS(X) X(segments) X(bytes) X(tensors) X(clients)

bool part_view_same(const struct part_view *a, const struct part_view *b)
{
#define X(field) &&a->field == b->field
	return !strcmp(a->gpu, b->gpu) VIEW_FENCES(X) VIEW_FIELDS(X);
#undef X
}

void *part_view_pack(const struct part_view *v, size_t *out_n)
{
	Gacc__Internal__V1__PartView m = GACC__INTERNAL__V1__PART_VIEW__INIT;
	Gacc__Internal__V1__PartBuffer buffer[PART_VIEW_BUFFERS], *list[PART_VIEW_BUFFERS];
	char mended[PART_VIEW_BUFFERS][sizeof(v->buffer->kind)], gpu[sizeof(v->gpu)];
	m.number = v->number;
	m.gpu = message_put_text(v->gpu, gpu);
#define X(field) m.field = v->field;
	VIEW_FENCES(X)
	VIEW_FIELDS(X)
#undef X
	for (uint32_t i = 0; i < v->n_buffers; i++) {
		gacc__internal__v1__part_buffer__init(list[i] = &buffer[i]);
		buffer[i].kind = message_put_text(v->buffer[i].kind, mended[i]);
#define X(field) buffer[i].field = v->buffer[i].field;
		BUFFER_FIELDS(X)
#undef X
	}
	m.n_buffers = v->n_buffers;
	m.buffers = list;
	return bytes_pack(&m.base, out_n);
}

static enum status check(const Gacc__Internal__V1__PartView *m, char *why, size_t n_why)
{
	if (!m->epoch || !m->incarnation || !m->number)
		snprintf(why, n_why, "PartView.%s is missing",
			 !m->epoch	   ? "epoch"
			 : !m->incarnation ? "incarnation"
					   : "number");
	else if (m->released && !m->ended)
		snprintf(why, n_why, "PartView.released is set, and ended is not");
	else if (m->engine_pid < 0)
		snprintf(why, n_why, "PartView.engine_pid is %lld", (long long)m->engine_pid);
	else
		return ST_OK;
	return ST_VERSION_SKEW;
}

static enum status take_buffer(const Gacc__Internal__V1__PartBuffer *m, struct part_buffer *out, char *why,
			       size_t n_why)
{
	if (!*m->kind) {
		snprintf(why, n_why, "PartBuffer.kind is missing");
		return ST_VERSION_SKEW;
	}
	message_take_text(out->kind, sizeof(out->kind), m->kind);
#define X(field) out->field = m->field;
	BUFFER_FIELDS(X)
#undef X
	return ST_OK;
}

static enum status take(const Gacc__Internal__V1__PartView *m, struct part_view *out, char *why, size_t n_why)
{
	struct part_view v = { .number = m->number };
	enum status st = check(m, why, n_why);
#define X(field) v.field = m->field;
	VIEW_FENCES(X)
	VIEW_FIELDS(X)
#undef X
	message_take_text(v.gpu, sizeof(v.gpu), m->gpu);
	v.n_buffers = m->n_buffers < PART_VIEW_BUFFERS ? (uint32_t)m->n_buffers : PART_VIEW_BUFFERS;
	for (uint32_t i = 0; i < v.n_buffers && !st; i++)
		st = take_buffer(m->buffers[i], &v.buffer[i], why, n_why);
	if (!st)
		*out = v;
	return st;
}

enum status part_view_unpack(const void *bytes, size_t n, struct part_view *out, char *why, size_t n_why)
{
	struct ProtobufCMessage *base;
	enum status st = message_unpack(&gacc__internal__v1__part_view__descriptor, bytes, n, &base, why, n_why);
	if (st)
		return st;
	st = take((const Gacc__Internal__V1__PartView *)base, out, why, n_why);
	bytes_free(base);
	return st;
}
