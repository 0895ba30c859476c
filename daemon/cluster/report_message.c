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
	X(params_digest)                                                                                               \
	X(armed)                                                                                                       \
	X(life)                                                                                                        \
	X(comm)                                                                                                        \
	X(vote_suspects)
/* X(the message's, the struct's) */
#define REPORT_TEXTS(X)                                                                                                \
	X(start_waits, start_waits)                                                                                    \
	X(hindrance, hindrance)                                                                                        \
	X(failed_text, failed.text)                                                                                    \
	X(refusal, refusal)                                                                                            \
	X(params_lost, params_lost)                                                                                    \
	X(vote_text, vote_text)
#define REPORT_STATUSES(X) X(failed_status, failed.status) X(vote_status, vote_status) X(refused, refused)
/* X(type, field, what it is of rank *p): the columns besides `rank` */
#define COLUMNS(X)                                                                                                     \
	X(uint32_t, counted, p->counted)                                                                               \
	X(uint32_t, voided, p->voided)                                                                                 \
	X(uint32_t, first_void, p->first_void)                                                                         \
	X(uint32_t, nonfinite, p->nonfinite)                                                                           \
	X(uint32_t, first_nonfinite, p->first_nonfinite)                                                               \
	X(uint32_t, flushed, p->flushed)                                                                               \
	X(uint32_t, flags, flags_of(p))                                                                                \
	X(int64_t, waiting_ns, p->waiting_ns)                                                                          \
	X(int64_t, lost_ns, p->lost_ns)                                                                                \
	X(int64_t, pid, p->pid)                                                                                        \
	X(double, weight, p->weight)                                                                                   \
	X(int64_t, ready_ns, p->ready_ns)                                                                              \
	X(int64_t, last_push_unix_ns, p->last_push_unix_ns)
/* X(RankFlag, member) */
#define FLAGS(X) X(ATTACHED, attached) X(LOST, lost) X(KNOWN, known) X(UNWATCHED, unwatched) X(SILENT, silent)
#define FLAG(name) ((uint32_t)GACC__INTERNAL__V1__RANK_FLAG__RANK_FLAG_##name)
#define X(name, member) | FLAG(name)
enum { ALL_FLAGS = 0 FLAGS(X) };
#undef X

/* ---- packing ---- */

#define FEW 128	 /* words of columns that are on the stack */
#define BLOCK 64 /* ranks that stay in the nearest cache while their columns are filled in */

static uint32_t flags_of(const struct rank_progress *p)
{
	uint32_t flags = 0;
#define X(name, member) flags |= p->member ? FLAG(name) : 0;
	FLAGS(X)
#undef X
	return flags;
}

/* The bits in which other ranks differ from the first: a member of *out is zero where all have the same. It looks at
 * whole words, 80 bytes of each rank, which is what makes it fast. */
static void find_differences(const struct report *r, struct rank_progress *out)
{
	enum { WORDS = sizeof(*out) / sizeof(uint64_t) };
	uint64_t first[WORDS], is[WORDS], differs[WORDS] = { 0 };
	_Static_assert(WORDS * sizeof(uint64_t) == sizeof(*out), "whole words");
	memcpy(first, r->rank, sizeof(first));
	for (uint32_t i = 1; i < r->n_ranks; i++) {
		memcpy(is, &r->rank[i], sizeof(is));
		for (int k = 0; k < WORDS; k++)
			differs[k] |= is[k] ^ first[k];
	}
	memcpy(out, differs, sizeof(*out));
}

static bool are_consecutive(const struct report *r)
{
	for (uint32_t i = 1; i < r->n_ranks; i++)
		if (r->rank[i].rank != r->rank[0].rank + i)
			return false;
	return true;
}

/* How many entries each column needs: one where all ranks have the same, none where that is zero. */
static void count_entries(const struct report *r, Gacc__Internal__V1__RankProgress *m)
{
	struct rank_progress differing;
	uint64_t weight;
	const struct rank_progress *p = &differing;
	find_differences(r, &differing);
	m->n_rank = are_consecutive(r) ? 1 : r->n_ranks;
	/* as a number these bits may be a NaN, or a zero with a sign */
	memcpy(&weight, &differing.weight, sizeof(weight));
	differing.weight = weight != 0;
#define X(type, field, value) m->n_##field = (value) != 0 ? r->n_ranks : 1;
	COLUMNS(X)
#undef X
	p = r->rank;
#define X(type, field, value) m->n_##field = m->n_##field == 1 && (value) == 0 ? 0 : m->n_##field;
	COLUMNS(X)
#undef X
}

/* Gives each column its place in `room`; NULL: none yet. How many words they need together. */
static size_t place_columns(Gacc__Internal__V1__RankProgress *m, int64_t *room)
{
	size_t at = 0;
#define X(type, field, value)                                                                                          \
	m->field = room ? (type *)(room + at) : NULL;                                                                  \
	at += (m->n_##field * sizeof(type) + sizeof(*room) - 1) / sizeof(*room);
	X(uint32_t, rank, )
	COLUMNS(X)
#undef X
	return at;
}

static void fill_columns(const struct report *r, Gacc__Internal__V1__RankProgress *m)
{
	for (uint32_t begin = 0; begin < r->n_ranks; begin += BLOCK) {
		const uint32_t end = r->n_ranks - begin < BLOCK ? r->n_ranks : begin + BLOCK;
#define X(type, field, value)                                                                                          \
	for (uint32_t i = begin; i < end && i < m->n_##field; i++) {                                                   \
		const struct rank_progress *p = &r->rank[i];                                                           \
		m->field[i] = (value);                                                                                 \
	}
		X(uint32_t, rank, p->rank)
		COLUMNS(X)
#undef X
	}
}

/* In `few`, or in a block of memory that it returns for free(); NULL: no memory. */
static int64_t *put_ranks(const struct report *r, Gacc__Internal__V1__RankProgress *m, int64_t few[FEW])
{
	gacc__internal__v1__rank_progress__init(m);
	m->n = r->n_ranks;
	if (!r->n_ranks)
		return few;
	count_entries(r, m);
	size_t words = place_columns(m, NULL);
	int64_t *room = words <= FEW ? few : malloc(words * sizeof(*room));
	if (!room)
		return NULL;
	place_columns(m, room);
	fill_columns(r, m);
	return room;
}

void *report_pack(const struct report *r, size_t *out_n)
{
	Gacc__Internal__V1__Report m = GACC__INTERNAL__V1__REPORT__INIT;
	Gacc__Internal__V1__RankProgress ranks;
	int64_t few[FEW], *room = put_ranks(r, &ranks, few);
	if (!room)
		return NULL;
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

/* Checks how many entries each column has. */
static enum status check_columns(const Gacc__Internal__V1__RankProgress *m, uint32_t most, char *why, size_t n_why)
{
	if (m->n > most)
		return wrong("RankProgress.n", m->n, most, why, n_why);
#define X(type, field, value)                                                                                          \
	if (m->n_##field > 1 && m->n_##field != m->n) {                                                                \
		snprintf(why, n_why, "RankProgress." #field " has %zu entries for %u ranks", m->n_##field, m->n);      \
		return ST_VERSION_SKEW;                                                                                \
	}
	COLUMNS(X)
	X(uint32_t, rank, )
#undef X
	if (m->n_rank || !m->n)
		return ST_OK;
	snprintf(why, n_why, "RankProgress.rank is missing");
	return ST_VERSION_SKEW;
}

static uint32_t rank_at(const Gacc__Internal__V1__RankProgress *m, uint32_t i)
{
	return m->n_rank == 1 ? m->rank[0] + i : m->rank[i];
}

/* Checks that the ranks belong to the part and are in its order. */
static enum status check_ranks(const Gacc__Internal__V1__RankProgress *m, const struct part_ranks *p, char *why,
			       size_t n_why)
{
	uint32_t at = 0;
	for (uint32_t i = 0; i < m->n; i++, at++) {
		const uint32_t rank = rank_at(m, i);
		while (at < p->n && (p->rank ? p->rank[at] : at) < rank)
			at++;
		if (at == p->n || (p->rank ? p->rank[at] : at) != rank) {
			snprintf(why, n_why, "RankProgress.rank has %u, which is not a rank of the part in its place",
				 rank);
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

/* A column as it is for each rank: an entry, and how far it is to the next. */
#define X(type, field, value)                                                                                          \
	static const type no_##field = 0;                                                                              \
	const type *field = m->n_##field ? m->field : &no_##field;                                                     \
	const size_t step_##field = m->n_##field > 1;
static enum status take_ranks(const Gacc__Internal__V1__RankProgress *m, uint32_t max_micro_size,
			      struct rank_progress *out, char *why, size_t n_why)
{
	COLUMNS(X)
#undef X
	enum status st = ST_OK;
	for (uint32_t i = 0; i < m->n && !st; i++) {
		const uint32_t flag = flags[i * step_flags];
		if (flushed[i * step_flushed] > RANK_LEFT)
			return wrong("RankProgress.flushed", flushed[i * step_flushed], RANK_LEFT, why, n_why);
		if (flag & ~(uint32_t)ALL_FLAGS)
			return wrong("RankProgress.flags", flag, ALL_FLAGS, why, n_why);
		out[i] = (struct rank_progress){ .rank = rank_at(m, i),
						 .counted = counted[i * step_counted],
						 .voided = voided[i * step_voided],
						 .first_void = first_void[i * step_first_void],
						 .nonfinite = nonfinite[i * step_nonfinite],
						 .first_nonfinite = first_nonfinite[i * step_first_nonfinite],
						 .flushed = (uint8_t)flushed[i * step_flushed],
						 .waiting_ns = waiting_ns[i * step_waiting_ns],
						 .lost_ns = lost_ns[i * step_lost_ns],
						 .pid = pid[i * step_pid],
						 .weight = weight[i * step_weight],
						 .ready_ns = ready_ns[i * step_ready_ns],
						 .last_push_unix_ns = last_push_unix_ns[i * step_last_push_unix_ns] };
#define X(name, member) out[i].member = (flag & FLAG(name)) != 0;
		FLAGS(X)
#undef X
		st = check_rank(&out[i], max_micro_size, why, n_why);
	}
	return st;
}

static enum status check_report(const Gacc__Internal__V1__Report *m, const struct part_ranks *p,
				const struct message_bounds *b, char *why, size_t n_why)
{
	const uint32_t max_micro_size = b->max_micro_size;
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
	else if (b->parts < 64 && m->vote_suspects >> b->parts)
		snprintf(why, n_why, "Report.vote_suspects is %#llx, and the job has %u parts",
			 (unsigned long long)m->vote_suspects, b->parts);
	else if (!m->ranks)
		snprintf(why, n_why, "Report.ranks is missing");
	else if (check_columns(m->ranks, p->n, why, n_why) || check_ranks(m->ranks, p, why, n_why))
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
	const size_t n_ranks = m->ranks->n, rank_bytes = n_ranks * sizeof(struct rank_progress);
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

enum status report_unpack(const void *bytes, size_t n, const struct part_ranks *p, const struct message_bounds *b,
			  struct report *out, char *why, size_t n_why)
{
	struct ProtobufCMessage *base;
	enum status st = message_unpack(&gacc__internal__v1__report__descriptor, bytes, n, &base, why, n_why);
	if (st)
		return st;
	const Gacc__Internal__V1__Report *m = (const Gacc__Internal__V1__Report *)base;
	st = check_report(m, p, b, why, n_why);
	if (!st)
		st = take_report(m, b->max_micro_size, out, why, n_why);
	bytes_free(base);
	return st;
}

void report_release(struct report *r)
{
	free((void *)r->rank);
	*r = (struct report){ 0 };
}
