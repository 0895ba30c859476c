/* SPDX-License-Identifier: Apache-2.0 */
/* An inline stream's first message, and what follows when all of it has come: a push, or a piece of the parameters.
 * Part of struct job; pure; loop thread. */
#include "control/job_impl.h"

#include <stdio.h>

/* ---- its first message ---- */

/* The push can be answered, or can wait with an earlier one, without its bytes. */
static bool needs_no_bytes(const struct job *j, const struct rank *r, const struct push_args *a)
{
	return j->ended || a->window < j->mirror.r.window || push_repeats(j, r, a->window, a->micro);
}

/* The client has started again: its earlier stream, whose connection may be dead unnoticed, must give up its slot. */
static void end_earlier_try(struct job *j, struct rank *r, const struct push_args *push)
{
	for (uint32_t i = 0; i < RANK_MAX_SLOTS; i++) {
		struct stream *s = &r->stream[i];
		bool same = push ? !s->is_put && s->window == push->window && s->micro == push->micro : s->is_put;
		if (s->state && same)
			stream_end(j, s, ST_UNAVAILABLE, "one stream at a time",
				   "a newer stream of this session has begun with the same");
	}
}

static bool find_slot(const struct job *j, const struct rank *r, uint32_t *out)
{
	for (uint32_t i = 0; i < j->spec->slots_per_rank; i++)
		if (!slot_in_use(j, r, i)) {
			*out = i;
			return true;
		}
	return false;
}

bool job_stream_open(struct job *j, uint64_t call, const struct session_key *k, const struct push_args *push,
		     uint32_t *out_slot, struct now now)
{
	uint32_t n, slot;
	char text[160];
	struct rank *r = session_check(j, k, call);
	if (!r)
		return false;
	if (push && needs_no_bytes(j, r, push)) {
		job_push(j, call, k, push, now);
		return false;
	}
	if (!call_allowed(j, call, k))
		return false;
	if (!j->engine_seen) {
		reply_error(j, call, ST_NOT_READY, "call RegisterTensors first",
			    "call RegisterTensors first: the job has no memory yet");
		return false;
	}
	if (push && j->spec->accumulate == ACCUMULATE_NONE) { /* a repeat would write to the slot that is being read */
		reply_error(j, call, ST_NOT_SUPPORTED, "push a slot that the session maps, or use accumulate: sum",
			    "job %llu has accumulate: none: gradients do not come in a stream",
			    (unsigned long long)j->id);
		return false;
	}
	if (!push && j->mirror.r.params_ready) {
		struct reply rep = { .kind = REPLY_PUT, .put = { true } };
		j->ports.reply(j->ports.ctx, call, &rep);
		return false;
	}
	if (push && present_wrong(j, push, text, sizeof(text))) { /* before anybody keeps it */
		reply_error(j, call, ST_INVALID_ARGUMENT, PRESENT_HINT, "%s", text);
		return false;
	}
	end_earlier_try(j, r, push);
	if (!find_slot(j, r, &slot)) {
		reply_error(j, call, ST_SLOT_BUSY, NULL, "rank %u has a stream or a push in each of its slots",
			    r->global);
		return false;
	}
	r->stream[slot] = (struct stream){
		.state = STREAM_FILLING, .is_put = !push, .call = call, .rank = r->global, .sgen = r->sgen
	};
	if (push) {
		r->stream[slot].window = push->window;
		r->stream[slot].micro = push->micro;
	}
	*out_slot = session_slots(j, r, &n) + slot;
	return true;
}

/* ---- what it brings ---- */

static bool is_whole(struct job *j, struct stream *s, const struct push_args *a)
{
	char text[256];
	uint64_t from, to;
	if (!present_wrong(j, a, text, sizeof(text))) {
		uint64_t i = coverage_missing(&s->came, &j->set.arena, COVERAGE_SLOT, a->n_present ? a->present : NULL,
					      &from, &to);
		if (i == j->set.n)
			return true;
		snprintf(text, sizeof(text),
			 "the chunks do not cover tensor \"%.100s\" (bytes %llu to %llu of the slot)",
			 j->set.tensor[i].name, (unsigned long long)from, (unsigned long long)to);
	}
	stream_end(j, s, ST_INVALID_ARGUMENT, NULL, text);
	return false;
}

void job_stream_push(struct job *j, uint64_t call, const struct session_key *k, const struct push_args *args,
		     struct now now)
{
	struct stream *s = stream_filling(j, call, k->rank);
	if (!s || !is_whole(j, s, args))
		return;
	struct push_args a = *args;
	a.streamed = true;
	a.slot = (uint32_t)(s - job_rank(j, k->rank)->stream);
	stream_free(s); /* the slot is the push's from here on, or free */
	job_push(j, call, k, &a, now);
}

void job_stream_put(struct job *j, uint64_t call, const struct session_key *k, uint64_t offset, uint64_t n, bool last,
		    struct now now)
{
	struct stream *s = stream_filling(j, call, k->rank);
	struct rank *r = job_rank(j, k->rank);
	char text[256];
	if (!s || !stream_note(j, s, offset, n))
		return;
	if (last && !j->mirror.r.params_ready && params_missing(j, &s->came, text, sizeof(text))) {
		stream_end(j, s, ST_INVALID_ARGUMENT, "send the missing bytes before `last`", text);
		return;
	}
	s->state = STREAM_TAKEN;
	struct put_args a = {
		.slot = (uint32_t)(s - r->stream), .offset = offset, .bytes = n, .last = last, .streamed = true
	};
	put_begin(j, call, r, &a, now);
}
