/* SPDX-License-Identifier: Apache-2.0 */
/* Packs questions for norms of tensors and their answers, and unpacks and checks them. For edge/hosted_norms.c and
 * edge/part_norms.c, on the loop thread; no state. */
#include "cluster/norms_message.h"

#include "cluster/message_text.h"
#include "cluster/record.h"
#include "gacc/internal/v1/cluster.pb-c.h"
#include "math/arena.h"
#include "proto/bytes.h"

#include <stdio.h>

#define ASK_FIELDS(X)                                                                                                  \
	X(job_id) X(epoch) X(part) X(number) X(window) X(term) X(attempt) X(first) X(uuid_high) X(uuid_low)
#define NORMS_FIELDS(X) X(job_id) X(epoch) X(part) X(number) X(first) X(total)
#define NORMS_COLUMNS(X) X(grad) X(param)

void *norms_ask_pack(const struct norms_ask *a, size_t *out_n)
{
	Gacc__Internal__V1__NormsAsk m = GACC__INTERNAL__V1__NORMS_ASK__INIT;
#define X(field) m.field = a->field;
	ASK_FIELDS(X)
#undef X
	return bytes_pack(&m.base, out_n);
}

enum status norms_ask_unpack(const void *bytes, size_t n, struct norms_ask *out, char *why, size_t n_why)
{
	struct ProtobufCMessage *base;
	enum status st = message_unpack(&gacc__internal__v1__norms_ask__descriptor, bytes, n, &base, why, n_why);
	if (st)
		return st;
	const Gacc__Internal__V1__NormsAsk *m = (const Gacc__Internal__V1__NormsAsk *)base;
	if (!m->epoch || !m->number || !m->term || !m->attempt) {
		snprintf(why, n_why, "NormsAsk.%s is missing",
			 !m->epoch    ? "epoch"
			 : !m->number ? "number"
			 : !m->term   ? "term"
				      : "attempt");
		st = ST_VERSION_SKEW;
	} else {
#define X(field) out->field = m->field;
		ASK_FIELDS(X)
#undef X
	}
	bytes_free(base);
	return st;
}

void *norms_pack(const struct part_norms *p, size_t *out_n)
{
	Gacc__Internal__V1__PartNorms m = GACC__INTERNAL__V1__PART_NORMS__INIT;
	char mended[NORMS_TEXT];
#define X(field) m.field = p->field;
	NORMS_FIELDS(X)
#undef X
#define X(column)                                                                                                      \
	m.column = p->column;                                                                                          \
	m.n_##column = p->n;
	NORMS_COLUMNS(X)
#undef X
	m.status = message_put_status(p->status);
	m.text = message_put_text(p->text, mended);
	return bytes_pack(&m.base, out_n);
}

static enum status check_column(const char *name, const double *value, size_t n, size_t must, char *why, size_t n_why)
{
	if (n != must) {
		snprintf(why, n_why, "PartNorms.%s has %zu values, and grad has %zu", name, n, must);
		return ST_VERSION_SKEW;
	}
	for (size_t i = 0; i < n; i++)
		if (value[i] < 0) {
			snprintf(why, n_why, "PartNorms.%s is %g, and a sum of squares is not negative", name,
				 value[i]);
			return ST_VERSION_SKEW;
		}
	return ST_OK;
}

static enum status check(const Gacc__Internal__V1__PartNorms *m, char *why, size_t n_why)
{
	const size_t n = m->n_grad;
	if (!m->epoch || !m->number) {
		snprintf(why, n_why, "PartNorms.%s is missing", m->epoch ? "number" : "epoch");
		return ST_VERSION_SKEW;
	}
	if (n > NORMS_PORTION || !n != !!*m->status) {
		snprintf(why, n_why, "PartNorms.grad has %zu values, and must have %s", n,
			 *m->status ? "none beside a status" : "1 to 16384");
		return ST_VERSION_SKEW;
	}
	if (m->total > ARENA_MAX_TENSORS || m->total < n || m->first > m->total - n) {
		snprintf(why, n_why, "PartNorms.total is %llu, with %llu tensors before these %zu",
			 (unsigned long long)m->total, (unsigned long long)m->first, n);
		return ST_VERSION_SKEW;
	}
	enum status st = check_column("grad", m->grad, n, n, why, n_why);
	return st ? st : check_column("param", m->param, m->n_param, n, why, n_why);
}

enum status norms_unpack(const void *bytes, size_t n, struct part_norms *out, char *why, size_t n_why)
{
	struct ProtobufCMessage *base;
	enum status st = message_unpack(&gacc__internal__v1__part_norms__descriptor, bytes, n, &base, why, n_why);
	if (st)
		return st;
	const Gacc__Internal__V1__PartNorms *m = (const Gacc__Internal__V1__PartNorms *)base;
	st = check(m, why, n_why);
	if (st) {
		bytes_free(base);
		return st;
	}
	*out = (struct part_norms){ .n = (uint32_t)m->n_grad,
				    .status = message_take_status(m->status),
				    .message = base };
#define X(field) out->field = m->field;
	NORMS_FIELDS(X)
	NORMS_COLUMNS(X)
#undef X
	message_take_text(out->text, sizeof(out->text), m->text);
	return ST_OK;
}

void norms_release(struct part_norms *p)
{
	bytes_free(p->message);
	*p = (struct part_norms){ .status = ST_OK };
}
