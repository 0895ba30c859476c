/* SPDX-License-Identifier: Apache-2.0 */
/* Packs the ledger of a part's window at its node, and unpacks and checks it at the coordinator. For
 * edge/part_ledgers.c and edge/hosted_ledger.c, on the loop thread; no state. */
#include "cluster/ledger_message.h"

#include "cluster/commit_message.h"
#include "cluster/record.h"
#include "gacc/internal/v1/cluster.pb-c.h"
#include "proto/bytes.h"

#include <stdio.h>

#define LEDGER_FIELDS(X) X(job_id) X(epoch) X(incarnation) X(part) X(window) X(total) X(counted) X(first)
#define LEDGER_COLUMNS(X) X(rank) X(micro) X(weight) X(loss) X(data_key) X(unix_nanos)

void *ledger_pack(const struct part_ledger *l, size_t *out_n)
{
	Gacc__Internal__V1__PartLedger m = GACC__INTERNAL__V1__PART_LEDGER__INIT;
#define X(field) m.field = l->field;
	LEDGER_FIELDS(X)
#undef X
#define X(column)                                                                                                      \
	m.column = l->column;                                                                                          \
	m.n_##column = l->n;
	LEDGER_COLUMNS(X)
#undef X
	return bytes_pack(&m.base, out_n);
}

static enum status wrong(const char *field, uint64_t is, uint64_t most, char *why, size_t n_why)
{
	snprintf(why, n_why, "PartLedger.%s is %llu, and may be at most %llu", field, (unsigned long long)is,
		 (unsigned long long)most);
	return ST_VERSION_SKEW;
}

static enum status check_columns(const Gacc__Internal__V1__PartLedger *m, char *why, size_t n_why)
{
	const size_t n = m->n_rank;
#define X(column)                                                                                                      \
	if (m->n_##column != n) {                                                                                      \
		snprintf(why, n_why, "PartLedger." #column " has %zu entries, and rank has %zu", m->n_##column, n);    \
		return ST_VERSION_SKEW;                                                                                \
	}
	LEDGER_COLUMNS(X)
#undef X
	const size_t most = m->total < LEDGER_PORTION ? (size_t)m->total : LEDGER_PORTION;
	if (n <= most && (n || !most))
		return ST_OK;
	snprintf(why, n_why, "PartLedger.rank has %zu entries, and must have %d to %zu", n, most > 0, most);
	return ST_VERSION_SKEW;
}

static enum status check_numbers(const Gacc__Internal__V1__PartLedger *m, const struct message_bounds *b, char *why,
				 size_t n_why)
{
	for (size_t i = 0; i < m->n_rank; i++) {
		if (m->rank[i] >= b->ranks)
			return wrong("rank", m->rank[i], b->ranks - 1, why, n_why);
		if (m->micro[i] >= b->max_micro_size)
			return wrong("micro", m->micro[i], b->max_micro_size - 1, why, n_why);
	}
	return ST_OK;
}

static enum status check(const Gacc__Internal__V1__PartLedger *m, const struct message_bounds *b, char *why,
			 size_t n_why)
{
	const uint64_t full = (uint64_t)b->ranks * b->max_micro_size, sent = ledger_most(b->parts);
	const uint64_t most = full < sent ? full : sent;
	if (!m->epoch || !m->incarnation) {
		snprintf(why, n_why, "PartLedger.%s is missing", m->epoch ? "incarnation" : "epoch");
		return ST_VERSION_SKEW;
	}
	if (m->total > most)
		return wrong("total", m->total, most, why, n_why);
	if (m->counted > m->total)
		return wrong("counted", m->counted, m->total, why, n_why);
	enum status st = check_columns(m, why, n_why);
	if (!st && m->first > m->total - m->n_rank)
		return wrong("first", m->first, m->total - m->n_rank, why, n_why);
	return st ? st : check_numbers(m, b, why, n_why);
}

enum status ledger_unpack(const void *bytes, size_t n, const struct message_bounds *b, struct part_ledger *out,
			  char *why, size_t n_why)
{
	struct ProtobufCMessage *base;
	enum status st = message_unpack(&gacc__internal__v1__part_ledger__descriptor, bytes, n, &base, why, n_why);
	if (st)
		return st;
	const Gacc__Internal__V1__PartLedger *m = (const Gacc__Internal__V1__PartLedger *)base;
	st = check(m, b, why, n_why);
	if (st) {
		bytes_free(base);
		return st;
	}
	*out = (struct part_ledger){ .n = (uint32_t)m->n_rank, .message = base };
#define X(field) out->field = m->field;
	LEDGER_FIELDS(X)
	LEDGER_COLUMNS(X)
#undef X
	return ST_OK;
}

void ledger_release(struct part_ledger *l)
{
	bytes_free(l->message);
	*l = (struct part_ledger){ 0 };
}
