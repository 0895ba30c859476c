/* SPDX-License-Identifier: Apache-2.0 */
/* Packs a coordinator's orders, and unpacks and checks them at the part. For edge/links.c, on the
 * loop thread; no state. */
#include "cluster/order_message.h"

#include "cluster/message_text.h"
#include "cluster/record.h"
#include "gacc/internal/v1/cluster.pb-c.h"
#include "proto/bytes.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define ORDER_FIELDS(X)                                                                                                \
	X(uuid_high)                                                                                                   \
	X(uuid_low)                                                                                                    \
	X(job_id)                                                                                                      \
	X(epoch)                                                                                                       \
	X(term) X(window) X(number) X(attempt) X(norms) X(run) X(paused) X(armed) X(comm) X(join_ms) X(fill_part)
#define LATE_FIELDS(X) X(rank) X(counted) X(micro_size) X(pid) X(waiting_ns) X(attached) X(lost) X(known)

void *order_pack(const struct order *o, size_t *out_n)
{
	Gacc__Internal__V1__Order m = GACC__INTERNAL__V1__ORDER__INIT;
	Gacc__Internal__V1__LateRank late[ORDER_MAX_LATE], *list[ORDER_MAX_LATE];
	struct commit_room room;
	char mended[sizeof(o->end_reason)];
	assert(o->n_late <= ORDER_MAX_LATE);
#define X(field) m.field = o->field;
	ORDER_FIELDS(X)
#undef X
	for (uint32_t i = 0; i < o->n_late; i++) {
		gacc__internal__v1__late_rank__init(list[i] = &late[i]);
#define X(field) late[i].field = o->late[i].field;
		LATE_FIELDS(X)
#undef X
	}
	m.late = list;
	m.n_late = o->n_late;
	m.want = (Gacc__Internal__V1__Want)(o->want + 1);
	m.end_status = message_put_status(o->end_status);
	m.end_reason = message_put_text(o->end_reason, mended);
	if (o->want == WANT_COMMIT)
		m.commit = commit_to_message(&o->commit, &room);
	return bytes_pack(&m.base, out_n);
}

static enum status check_order(const Gacc__Internal__V1__Order *m, const struct message_bounds *b, char *why,
			       size_t n_why)
{
	if ((unsigned)m->want - 1 > WANT_END) {
		snprintf(why, n_why, "Order.want is %d", (int)m->want);
		return ST_VERSION_SKEW;
	}
	if (m->n_late > ORDER_MAX_LATE) {
		snprintf(why, n_why, "Order.late has %zu ranks, and may have %d", m->n_late, ORDER_MAX_LATE);
		return ST_VERSION_SKEW;
	}
	if (m->fill_part > b->parts || (m->fill_part && !m->comm)) {
		snprintf(why, n_why, "Order.fill_part is %u, with the communicator %llu of %u parts", m->fill_part,
			 (unsigned long long)m->comm, b->parts);
		return ST_VERSION_SKEW;
	}
	if (m->want == GACC__INTERNAL__V1__WANT__WANT_GO && m->comm > m->attempt) {
		snprintf(why, n_why, "Order.comm is %llu, after attempt %llu", (unsigned long long)m->comm,
			 (unsigned long long)m->attempt);
		return ST_VERSION_SKEW;
	}
	for (size_t i = 0; i < m->n_late; i++)
		if (m->late[i]->rank >= b->ranks) {
			snprintf(why, n_why, "LateRank.rank is %u, and the job has %u ranks", m->late[i]->rank,
				 b->ranks);
			return ST_VERSION_SKEW;
		}
	return ST_OK;
}

static enum status take_commit(const Gacc__Internal__V1__Order *m, const struct message_bounds *b, struct commit *k,
			       char *why, size_t n_why)
{
	if (!m->commit) {
		snprintf(why, n_why, "Order.commit is missing");
		return ST_VERSION_SKEW;
	}
	enum status st = commit_from_message(m->commit, b, k, why, n_why);
	if (st || (k->job_id == m->job_id && k->window == m->window))
		return st;
	snprintf(why, n_why, "Order.commit is of window %llu of job %llu", (unsigned long long)k->window,
		 (unsigned long long)k->job_id);
	return ST_VERSION_SKEW;
}

static void take_fields(const Gacc__Internal__V1__Order *m, struct held_order *h)
{
	struct order *o = &h->order;
#define X(field) o->field = m->field;
	ORDER_FIELDS(X)
#undef X
	o->want = (enum want)((unsigned)m->want - 1);
	o->end_status = message_take_status(m->end_status);
	message_take_text(o->end_reason, sizeof(o->end_reason), m->end_reason);
	for (size_t i = 0; i < m->n_late; i++) {
#define X(field) h->late[i].field = m->late[i]->field;
		LATE_FIELDS(X)
#undef X
	}
	o->late = h->late;
	o->n_late = (uint32_t)m->n_late;
}

enum status order_unpack(const void *bytes, size_t n, const struct message_bounds *b, struct held_order *out, char *why,
			 size_t n_why)
{
	struct ProtobufCMessage *base;
	struct commit k = { 0 };
	enum status st = message_unpack(&gacc__internal__v1__order__descriptor, bytes, n, &base, why, n_why);
	if (st)
		return st;
	const Gacc__Internal__V1__Order *m = (const Gacc__Internal__V1__Order *)base;
	st = check_order(m, b, why, n_why);
	if (!st && m->want == GACC__INTERNAL__V1__WANT__WANT_COMMIT)
		st = take_commit(m, b, &k, why, n_why);
	if (!st) {
		*out = (struct held_order){ .order.commit = k };
		take_fields(m, out);
	}
	bytes_free(base);
	return st;
}
