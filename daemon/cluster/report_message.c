/* SPDX-License-Identifier: Apache-2.0 */
/* Packs a part's reports, and unpacks and checks them at the coordinator. For edge/links.c, on the
 * loop thread; no state. */
#include "cluster/report_message.h"

#include "cluster/message_text.h"
#include "cluster/record.h"
#include "engine/control_page.h"
#include "gacc/internal/v1/cluster.pb-c.h"
#include "proto/bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what both sides have by the same name ---- */

#define REPORT_FIELDS(X)                                                                                               \
	X(job_id)                                                                                                      \
	X(epoch)                                                                                                       \
	X(incarnation)                                                                                                 \
	X(part)                                                                                                        \
	X(number)                                                                                                      \
	X(term)                                                                                                        \
	X(order)                                                                                                       \
	X(window)                                                                                                      \
	X(complete)                                                                                                    \
	X(all_left)                                                                                                    \
	X(ended)                                                                                                       \
	X(connected)                                                                                                   \
	X(pieces)                                                                                                      \
	X(count)                                                                                                       \
	X(sum_weight)                                                                                                  \
	X(sum_loss)                                                                                                    \
	X(lr)                                                                                                          \
	X(lr_rank)                                                                                                     \
	X(vote_term)                                                                                                   \
	X(vote_attempt)                                                                                                \
	X(sumsq)                                                                                                       \
	X(nonfinite)                                                                                                   \
	X(digest)                                                                                                      \
	X(params_digest)
/* X(the message's, the struct's) */
#define REPORT_TEXTS(X)                                                                                                \
	X(start_waits, start_waits)                                                                                    \
	X(hindrance, hindrance)                                                                                        \
	X(failed_text, failed.text)                                                                                    \
	X(refusal, refusal)                                                                                            \
	X(params_lost, params_lost)
#define REPORT_STATUSES(X) X(failed_status, failed.status) X(vote_status, vote_status) X(refused, refused)
/* X(type, field): the columns besides `rank` */
#define COLUMNS(X)                                                                                                     \
	X(uint32_t, counted)                                                                                           \
	X(uint32_t, voided)                                                                                            \
	X(uint32_t, first_void)                                                                                        \
	X(uint32_t, nonfinite)                                                                                         \
	X(uint32_t, first_nonfinite)                                                                                   \
	X(uint32_t, flushed)                                                                                           \
	X(protobuf_c_boolean, attached)                                                                                \
	X(protobuf_c_boolean, lost)                                                                                    \
	X(protobuf_c_boolean, known)                                                                                   \
	X(protobuf_c_boolean, unwatched)                                                                               \
	X(protobuf_c_boolean, silent)                                                                                  \
	X(int64_t, waiting_ns)                                                                                         \
	X(int64_t, lost_ns)                                                                                            \
	X(int64_t, pid)                                                                                                \
	X(double, weight)                                                                                              \
	X(int64_t, ready_ns)                                                                                           \
	X(int64_t, last_push_unix_ns)

/* ---- packing ---- */

#define X(type, field) sizeof(int64_t) +
enum { COLUMN_BYTES = COLUMNS(X) sizeof(int64_t) }; /* of one rank, at most; with `rank` */
#undef X

/* Fills in the columns that have an entry other than zero. `room` has COLUMN_BYTES for each rank. */
static void put_ranks(const struct report *r, Gacc__Internal__V1__RankProgress *m, int64_t *room)
{
	const uint32_t n = r->n_ranks;
	gacc__internal__v1__rank_progress__init(m);
	m->n_rank = n;
	m->rank = (uint32_t *)room;
	room += n;
	for (uint32_t i = 0; i < n; i++)
		m->rank[i] = r->rank[i].rank;
#define X(type, field)                                                                                                 \
	{                                                                                                              \
		type *column = (type *)room;                                                                           \
		bool any = false;                                                                                      \
		for (uint32_t i = 0; i < n; i++) {                                                                     \
			column[i] = r->rank[i].field;                                                                  \
			any |= r->rank[i].field != 0;                                                                  \
		}                                                                                                      \
		m->field = column;                                                                                     \
		m->n_##field = any ? n : 0;                                                                            \
		room += any ? n : 0;                                                                                   \
	}
	COLUMNS(X)
#undef X
}

void *report_pack(const struct report *r, size_t *out_n)
{
	Gacc__Internal__V1__Report m = GACC__INTERNAL__V1__REPORT__INIT;
	Gacc__Internal__V1__RankProgress ranks;
	int64_t few[8 * COLUMN_BYTES / sizeof(int64_t)];
	int64_t *room = r->n_ranks <= 8 ? few : malloc((size_t)r->n_ranks * COLUMN_BYTES);
	if (!room)
		return NULL;
	put_ranks(r, &ranks, room);
	m.ranks = &ranks;
	m.phase = (Gacc__Internal__V1__WindowPhase)(r->phase + 1);
	m.start = (Gacc__Internal__V1__StartPhase)(r->start + 1);
	m.n_counted = r->n_words;
	m.counted = (uint64_t *)r->counted; /* not written to */
#define X(field) m.field = r->field;
	REPORT_FIELDS(X)
#undef X
#define X(to, from)                                                                                                    \
	char mended_##to[sizeof(r->from)];                                                                             \
	m.to = message_put_text(r->from, mended_##to);
	REPORT_TEXTS(X)
#undef X
#define X(to, from) m.to = message_put_status(r->from);
	REPORT_STATUSES(X)
#undef X
	void *bytes = bytes_pack(&m.base, out_n);
	if (room != few)
		free(room);
	return bytes;
}

/* ---- unpacking ---- */

static enum status wrong(const char *field, uint64_t is, uint64_t most, char *why, size_t n_why)
{
	snprintf(why, n_why, "%s is %llu, and may be at most %llu", field, (unsigned long long)is,
		 (unsigned long long)most);
	return ST_VERSION_SKEW;
}

/* Checks that every column is empty, or has an entry for each rank. */
static enum status check_columns(const Gacc__Internal__V1__RankProgress *m, char *why, size_t n_why)
{
#define X(type, field)                                                                                                 \
	if (m->n_##field && m->n_##field != m->n_rank) {                                                               \
		snprintf(why, n_why, "RankProgress." #field " has %zu entries for %zu ranks", m->n_##field,            \
			 m->n_rank);                                                                                   \
		return ST_VERSION_SKEW;                                                                                \
	}
	COLUMNS(X)
#undef X
	return ST_OK;
}

/* Checks that the ranks belong to the part and are in its order. */
static enum status check_ranks(const Gacc__Internal__V1__RankProgress *m, const struct part_ranks *p, char *why,
			       size_t n_why)
{
	uint32_t at = 0;
	for (size_t i = 0; i < m->n_rank; i++, at++) {
		while (at < p->n && (p->rank ? p->rank[at] : at) < m->rank[i])
			at++;
		if (at == p->n || (p->rank ? p->rank[at] : at) != m->rank[i]) {
			snprintf(why, n_why, "RankProgress.rank has %u, which is not a rank of the part in its place",
				 m->rank[i]);
			return ST_VERSION_SKEW;
		}
	}
	return ST_OK;
}

static enum status check_rank(const struct rank_progress *p, uint32_t most, char *why, size_t n_why)
{
	if ((uint64_t)p->counted + p->voided > most)
		return wrong("RankProgress.counted with voided", (uint64_t)p->counted + p->voided, most, why, n_why);
	if (p->first_void > most || p->first_nonfinite > most) /* equal to `most`: there is none */
		return wrong("RankProgress.first_void or first_nonfinite",
			     p->first_void > p->first_nonfinite ? p->first_void : p->first_nonfinite, most, why, n_why);
	if (p->nonfinite > most)
		return wrong("RankProgress.nonfinite", p->nonfinite, most, why, n_why);
	if (p->flushed > RANK_LEFT)
		return wrong("RankProgress.flushed", p->flushed, RANK_LEFT, why, n_why);
	if (p->waiting_ns >= 0 && p->lost_ns >= 0 && p->ready_ns >= 0 && p->pid >= 0)
		return ST_OK;
	snprintf(why, n_why, "RankProgress of rank %u has an age or a pid below 0", p->rank);
	return ST_VERSION_SKEW;
}

static enum status take_ranks(const Gacc__Internal__V1__RankProgress *m, uint32_t max_micro_size,
			      struct rank_progress *out, char *why, size_t n_why)
{
	enum status st = ST_OK;
	for (size_t i = 0; i < m->n_rank && !st; i++) {
		struct rank_progress *p = &out[i];
		*p = (struct rank_progress){ .rank = m->rank[i] };
		if (m->n_flushed && m->flushed[i] > RANK_LEFT)
			return wrong("RankProgress.flushed", m->flushed[i], RANK_LEFT, why, n_why);
#define X(type, field)                                                                                                 \
	if (m->n_##field)                                                                                              \
		p->field = m->field[i];
		COLUMNS(X)
#undef X
		st = check_rank(p, max_micro_size, why, n_why);
	}
	return st;
}

static enum status check_report(const Gacc__Internal__V1__Report *m, const struct part_ranks *p,
				uint32_t max_micro_size, char *why, size_t n_why)
{
	const size_t n_words = control_words(p->n, max_micro_size);
	const unsigned phase = (unsigned)m->phase - 1, start = (unsigned)m->start - 1;
	if (phase > WINDOW_APPLYING)
		snprintf(why, n_why, "Report.phase is %d", (int)m->phase);
	else if (start > START_PARAMS)
		snprintf(why, n_why, "Report.start is %d", (int)m->start);
	else if (m->n_counted && m->n_counted != n_words)
		snprintf(why, n_why, "Report.counted has %zu words, and the part needs %zu", m->n_counted, n_words);
	else if (m->count > (uint64_t)p->n * max_micro_size)
		return wrong("Report.count", m->count, (uint64_t)p->n * max_micro_size, why, n_why);
	else if (!m->ranks)
		snprintf(why, n_why, "Report.ranks is missing");
	else if (check_columns(m->ranks, why, n_why) || check_ranks(m->ranks, p, why, n_why))
		return ST_VERSION_SKEW;
	else
		return ST_OK;
	return ST_VERSION_SKEW;
}

static void take_fields(const Gacc__Internal__V1__Report *m, struct report *r)
{
	*r = (struct report){ .phase = (uint32_t)m->phase - 1, .start = (uint32_t)m->start - 1 };
#define X(field) r->field = m->field;
	REPORT_FIELDS(X)
#undef X
#define X(from, to) message_take_text(r->to, sizeof(r->to), m->from);
	REPORT_TEXTS(X)
#undef X
#define X(from, to) r->to = message_take_status(m->from);
	REPORT_STATUSES(X)
#undef X
}

/* One block holds the ranks, then the words; out->rank is its address, also when there are no ranks. */
static enum status take_report(const Gacc__Internal__V1__Report *m, uint32_t max_micro_size, struct report *out,
			       char *why, size_t n_why)
{
	const size_t n_ranks = m->ranks->n_rank, rank_bytes = n_ranks * sizeof(struct rank_progress);
	struct rank_progress *rank = malloc(rank_bytes + m->n_counted * sizeof(uint64_t) + 1);
	if (!rank)
		return ST_NO_MEMORY;
	enum status st = take_ranks(m->ranks, max_micro_size, rank, why, n_why);
	if (st) {
		free(rank);
		return st;
	}
	take_fields(m, out);
	out->rank = rank;
	out->n_ranks = (uint32_t)n_ranks;
	if (m->n_counted) {
		out->counted = memcpy((char *)rank + rank_bytes, m->counted, m->n_counted * sizeof(uint64_t));
		out->n_words = (uint32_t)m->n_counted;
	}
	return ST_OK;
}

enum status report_unpack(const void *bytes, size_t n, const struct part_ranks *p, uint32_t max_micro_size,
			  struct report *out, char *why, size_t n_why)
{
	struct ProtobufCMessage *base;
	enum status st = message_unpack(&gacc__internal__v1__report__descriptor, bytes, n, &base, why, n_why);
	if (st)
		return st;
	const Gacc__Internal__V1__Report *m = (const Gacc__Internal__V1__Report *)base;
	st = check_report(m, p, max_micro_size, why, n_why);
	if (!st)
		st = take_report(m, max_micro_size, out, why, n_why);
	bytes_free(base);
	return st;
}

void report_release(struct report *r)
{
	free((void *)r->rank);
	*r = (struct report){ 0 };
}
