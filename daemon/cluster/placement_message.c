/* SPDX-License-Identifier: Apache-2.0 */
/* Packs and unpacks what a node needs to have a part of a job: for the coordinator (edge/placing.c) and for the node
 * (runtime/part_place.c). Any thread; no state. */
#include "cluster/placement_message.h"

#include "cluster/message_end.h"
#include "cluster/record.h"
#include "gacc/internal/v1/placement.pb-c.h"
#include "proto/bytes.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLACEMENT_FIELDS(X)                                                                                            \
	X(job_id)                                                                                                      \
	X(epoch)                                                                                                       \
	X(term)                                                                                                        \
	X(uid)                                                                                                         \
	X(part)                                                                                                        \
	X(n_parts)                                                                                                     \
	X(ranks)                                                                                                       \
	X(max_micro_size)                                                                                              \
	X(heal_from)                                                                                                   \
	X(begun)
#define PLACEMENT_IDS(X) X(cluster) X(uuid)
#define TENSORS_FIELD 15 /* Placement.tensors: the last one on the wire */
#define PLACEMENT_TEXTS(X) X(user) X(node)

/* ---- packing; what the message points to is not written to ---- */

static void *pack_with(Gacc__Internal__V1__Placement *m, const struct placement *p, size_t *out_n)
{
	Gacc__Internal__V1__CommitRecord record[PLACEMENT_MAX_WINDOWS], *list[PLACEMENT_MAX_WINDOWS];
	struct commit_room room[PLACEMENT_MAX_WINDOWS];
	for (uint32_t i = 0; i < p->n_windows; i++) {
		gacc__internal__v1__commit_record__init(list[i] = &record[i]);
		record[i].commit = commit_to_message(&p->window[i].commit, &room[i]);
		record[i].counted = p->window[i].counted;
		record[i].n_counted = p->window[i].n_words;
	}
	m->windows = list;
	m->n_windows = p->n_windows;
	return p->tensors ? message_pack_before(&m->base, TENSORS_FIELD, p->tensors->n, out_n)
			  : bytes_pack(&m->base, out_n);
}

void *placement_pack(const struct placement *p, size_t *out_n)
{
	Gacc__Internal__V1__Placement m = GACC__INTERNAL__V1__PLACEMENT__INIT;
	assert(p->n_windows <= PLACEMENT_MAX_WINDOWS);
#define X(field) m.field = p->field;
	PLACEMENT_FIELDS(X)
#undef X
#define X(field) m.field = (ProtobufCBinaryData){ sizeof(p->field), (uint8_t *)p->field };
	PLACEMENT_IDS(X)
#undef X
	m.spec = (ProtobufCBinaryData){ p->spec.n, (uint8_t *)p->spec.data };
#define X(field) m.field = (char *)p->field;
	PLACEMENT_TEXTS(X)
#undef X
	struct restore_room room;
	m.restore = p->restore ? restore_to_message(p->restore, &room) : NULL;
	m.begin = (Gacc__Internal__V1__Begin)p->begin;
	m.rank = (uint32_t *)p->rank;
	m.n_rank = p->n_ranks;
	return pack_with(&m, p, out_n);
}

/* ---- unpacking ---- */

static enum status check_ranks(const Gacc__Internal__V1__Placement *m, char *why, size_t n_why)
{
	for (size_t i = 0; i < m->n_rank; i++)
		if (m->rank[i] >= m->ranks || (i && m->rank[i] <= m->rank[i - 1])) {
			snprintf(why, n_why, "Placement.rank has %u, and must ascend below %u", m->rank[i], m->ranks);
			return ST_VERSION_SKEW;
		}
	return ST_OK;
}

static enum status check_placement(const Gacc__Internal__V1__Placement *m, char *why, size_t n_why)
{
	if (m->cluster.len != 16 || m->uuid.len != 16)
		snprintf(why, n_why, "Placement.cluster and uuid have %zu and %zu bytes, and must have 16",
			 m->cluster.len, m->uuid.len);
	else if (m->part >= m->n_parts || m->heal_from >= m->n_parts)
		snprintf(why, n_why, "Placement.part is %u and heal_from %u, and the job has %u parts", m->part,
			 m->heal_from, m->n_parts);
	else if (!m->epoch || !m->spec.len)
		snprintf(why, n_why, "Placement.%s is missing", m->epoch ? "spec" : "epoch");
	else if (m->begin < GACC__INTERNAL__V1__BEGIN__BEGIN_NEW || m->begin > GACC__INTERNAL__V1__BEGIN__BEGIN_HEAL)
		snprintf(why, n_why, "Placement.begin is %d", (int)m->begin);
	else if (!m->n_rank || m->ranks > SPEC_MAX_RANKS || !m->max_micro_size)
		snprintf(why, n_why, "Placement has %zu of %u ranks with max_micro_size %u", m->n_rank, m->ranks,
			 m->max_micro_size);
	else if (m->n_windows > PLACEMENT_MAX_WINDOWS)
		snprintf(why, n_why, "Placement has %zu windows, and may have %d", m->n_windows, PLACEMENT_MAX_WINDOWS);
	else
		return check_ranks(m, why, n_why);
	return ST_VERSION_SKEW;
}

/* Unpacks the windows into h->window. They must belong to this job and follow each other. */
static enum status take_windows(const Gacc__Internal__V1__Placement *m, struct held_placement *h, char *why,
				size_t n_why)
{
	const struct message_bounds b = { m->ranks, m->max_micro_size, m->n_parts };
	uint32_t *n = &h->placement.n_windows;
	enum status st = ST_OK;
	while (*n < m->n_windows && !st) {
		struct decided *k = &h->window[*n];
		st = commit_record_from_message(m->windows[*n], &b, (uint32_t)m->n_rank, k, why, n_why);
		if (st)
			break;
		++*n;
		if (k->commit.job_id == m->job_id && (*n == 1 || k->commit.window == k[-1].commit.window + 1))
			continue;
		snprintf(why, n_why, "Placement.windows has window %llu of job %llu in the wrong place",
			 (unsigned long long)k->commit.window, (unsigned long long)k->commit.job_id);
		st = ST_VERSION_SKEW;
	}
	return st;
}

/* A job that has begun has its parameters: what it once began with must not be put over them. */
static enum status take_restore(const Gacc__Internal__V1__Placement *m, struct held_placement *h, char *why,
				size_t n_why)
{
	bool wanted = m->begin == GACC__INTERNAL__V1__BEGIN__BEGIN_RESTORE && !m->begun;
	if (wanted != !!m->restore) {
		snprintf(why, n_why, "Placement.restore %s",
			 wanted ? "is missing" : "is there, and nothing is to be restored");
		return ST_VERSION_SKEW;
	}
	return wanted ? restore_from_message(m->restore, m->max_micro_size, &h->restore, why, n_why) : ST_OK;
}

static void take_fields(const Gacc__Internal__V1__Placement *m, struct placement *p)
{
#define X(field) p->field = m->field;
	PLACEMENT_FIELDS(X)
	PLACEMENT_TEXTS(X)
#undef X
#define X(field) memcpy(p->field, m->field.data, sizeof(p->field));
	PLACEMENT_IDS(X)
#undef X
	p->spec = (struct placement_bytes){ m->spec.data, m->spec.len };
	p->begin = (enum placement_begin)m->begin;
	p->rank = m->rank;
	p->n_ranks = (uint32_t)m->n_rank;
}

/* Those that were lent, or those of a whole message, which are taken out of it. */
static enum status take_tensors(Gacc__Internal__V1__Placement *m, struct shared *lent, struct held_placement *h,
				char *why, size_t n_why)
{
	if (lent && m->tensors.len) {
		snprintf(why, n_why, "Placement.tensors is there twice");
		return ST_VERSION_SKEW;
	}
	if (lent)
		h->tensors = shared_hold(lent);
	if (lent || !m->tensors.len)
		return ST_OK;
	h->tensors = shared_new(m->tensors.data, m->tensors.len); /* protobuf-c has it from malloc */
	if (!h->tensors)
		return ST_NO_MEMORY;
	m->tensors = (ProtobufCBinaryData){ 0, NULL };
	return ST_OK;
}

enum status placement_unpack(const void *bytes, size_t n, struct shared *tensors, struct held_placement *out, char *why,
			     size_t n_why)
{
	struct ProtobufCMessage *base;
	struct held_placement h = { 0 };
	if (tensors && !message_cut_end(bytes, &n, TENSORS_FIELD, tensors->n)) {
		snprintf(why, n_why, "Placement.tensors is not the %zu bytes that follow", tensors->n);
		return ST_VERSION_SKEW;
	}
	enum status st = message_unpack(&gacc__internal__v1__placement__descriptor, bytes, n, &base, why, n_why);
	if (st)
		return st;
	Gacc__Internal__V1__Placement *m = (Gacc__Internal__V1__Placement *)base;
	h.message = base;
	st = check_placement(m, why, n_why);
	if (!st)
		st = take_windows(m, &h, why, n_why);
	if (!st)
		st = take_restore(m, &h, why, n_why);
	if (!st)
		st = take_tensors(m, tensors, &h, why, n_why);
	if (st) {
		placement_release(&h);
		return st;
	}
	take_fields(m, &h.placement);
	*out = h;
	out->placement.window = out->window;
	out->placement.tensors = out->tensors;
	out->placement.restore = m->restore ? &out->restore : NULL;
	return ST_OK;
}

void placement_release(struct held_placement *h)
{
	for (uint32_t i = 0; i < h->placement.n_windows; i++)
		free(h->window[i].counted);
	shared_drop(h->tensors);
	bytes_free(h->message);
	*h = (struct held_placement){ 0 };
}

struct shared *placement_take_tensors(struct held_placement *h)
{
	struct shared *tensors = h->tensors;
	h->tensors = h->placement.tensors = NULL;
	return tensors;
}
