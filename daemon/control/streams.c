/* SPDX-License-Identifier: Apache-2.0 */
/* Inline streams: which slot each one fills, how far it is, and when the daemon ends it. Its calls are
 * stream_calls.c's. Part of struct job; pure; loop thread.
 *
 * A stream belongs to one session generation and holds one slot of that session. docs/protocol.md, "Inline stream".
 */
#include "control/job_impl.h"

#include <stdio.h>

struct stream *stream_of(struct rank *r, uint64_t call)
{
	for (uint32_t i = 0; i < RANK_MAX_SLOTS; i++)
		if (r->stream[i].state && r->stream[i].call == call)
			return &r->stream[i];
	return NULL;
}

void stream_free(struct stream *s)
{
	coverage_fini(&s->came);
	*s = (struct stream){ 0 };
}

void stream_end(struct job *j, struct stream *s, enum status st, const char *hint, const char *text)
{
	uint64_t call = s->call;
	uint32_t rank = s->rank;
	bool parked = s->state == STREAM_TAKEN;
	stream_free(s);
	if (parked)
		job_on_call_gone(j, call, rank); /* a piece that waits for its rank's turn is dropped */
	reply_error(j, call, st, hint, "%s", text);
}

void streams_end(struct job *j, struct rank *r, enum status st, const char *hint, const char *text)
{
	for (uint32_t i = 0; i < RANK_MAX_SLOTS; i++)
		if (r->stream[i].state)
			stream_end(j, &r->stream[i], st, hint, text);
}

void job_stream_gone(struct job *j, uint64_t call, uint32_t rank)
{
	struct rank *r = job_rank(j, rank);
	struct stream *s = r ? stream_of(r, call) : NULL;
	if (s)
		stream_free(s);
}

/* ---- its bytes ---- */

/* Checked before every copy: the stream has not ended, its session is in force, and nobody else reads or writes the
 * slot. */
struct stream *stream_filling(struct job *j, uint64_t call, uint32_t rank)
{
	struct rank *r = job_rank(j, rank);
	struct stream *s = r ? stream_of(r, call) : NULL;
	return s && s->state == STREAM_FILLING && s->sgen == r->sgen && !j->ended ? s : NULL;
}

bool job_stream_admits(struct job *j, uint64_t call, uint32_t rank, uint64_t offset, uint64_t n)
{
	struct stream *s = stream_filling(j, call, rank);
	if (!s)
		return false;
	uint64_t all = s->is_put ? j->set.arena.param_bytes : j->set.arena.slot_bytes;
	if (offset <= all && n <= all - offset)
		return true;
	char text[160];
	snprintf(text, sizeof(text),
		 s->is_put ? "offset %llu, bytes %llu: the parameters have %llu"
			   : "offset %llu + %llu bytes: a slot holds %llu",
		 (unsigned long long)offset, (unsigned long long)n, (unsigned long long)all);
	stream_end(j, s, ST_INVALID_ARGUMENT, s->is_put ? "offset + bytes must lie in the parameter layout" : NULL,
		   text);
	return false;
}

bool stream_note(struct job *j, struct stream *s, uint64_t offset, uint64_t n)
{
	char text[160];
	enum status st = coverage_add(&s->came, offset, offset + n);
	if (st == ST_RESOURCE_EXHAUSTED)
		snprintf(text, sizeof(text), "more than %d separate pieces: send larger or contiguous chunks",
			 COVERAGE_MAX);
	else
		snprintf(text, sizeof(text), "%s", status_info(st)->text);
	if (st)
		stream_end(j, s, st, NULL, text);
	return !st;
}

bool job_stream_took(struct job *j, uint64_t call, uint32_t rank, uint64_t offset, uint64_t n)
{
	struct stream *s = stream_filling(j, call, rank);
	return s && stream_note(j, s, offset, n);
}

bool params_missing(const struct job *j, const struct coverage *c, char *why, size_t n_why)
{
	uint64_t from, to, i = coverage_missing(c, &j->set.arena, COVERAGE_PARAMS, NULL, &from, &to);
	if (i < j->set.n)
		snprintf(why, n_why,
			 "`last`, but the pieces do not cover tensor \"%.100s\" (bytes %llu to %llu of the parameters)",
			 j->set.tensor[i].name, (unsigned long long)from, (unsigned long long)to);
	return i < j->set.n;
}
