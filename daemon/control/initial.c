/* SPDX-License-Identifier: Apache-2.0 */
/* Initial parameters: from a checkpoint, by the rules of init, or in pieces from a rank. Part of struct job; pure; loop
 * thread.
 *
 * Pieces come from one rank, the giver: the rank whose piece is sent to the engine first. Pieces of other ranks wait,
 * so that the parameters are never a mixture; when the giver's are complete, the others are answered and nothing of
 * theirs is written. If the giver stops before its last piece, a waiting rank becomes the giver and sends all of them.
 * docs/protocol.md, "Initial parameters".
 */
#include "control/job_impl.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- pieces ---- */

/* What the earlier giver has given will be written over: should it begin again, it gives all. */
static struct rank *give(struct job *j, struct rank *r)
{
	if (j->giver && j->giver != r)
		coverage_fini(&j->giver->given);
	j->giver = r;
	return r;
}

/* The piece has been taken, or is not wanted. If an inline stream brought it, that may go on, or ends. */
static void put_over(struct job *j, struct waiter *w, bool done)
{
	struct stream *s = stream_of(&j->rank[w->rank], w->call);
	if (s && done)
		stream_free(s);
	else if (s)
		s->state = STREAM_FILLING;
	waiter_remove(j, w);
}

static void send_put(struct job *j, struct waiter *w)
{
	struct engine_command c = { .op = ENGINE_PUT_PARAMS,
				    .rank = w->rank,
				    .sgen = j->rank[w->rank].sgen,
				    .slot = w->slot,
				    .offset = w->offset,
				    .bytes = w->bytes,
				    .last = w->last };
	w->sent = job_send(j, &c, &w->command_id, NULL);
}

/* The parameters are ready: answers the calls that bring more, also those whose engine died after taking the piece and
 * before answering. */
static void puts_answer(struct job *j)
{
	struct reply rep = { .kind = REPLY_PUT };
	rep.put.ready = true;
	for (uint32_t i = j->n_waiters; i-- > 0;)
		if (j->waiter[i].kind == WAIT_PUT && !j->waiter[i].sent) {
			struct waiter w = j->waiter[i];
			put_over(j, &j->waiter[i], true);
			j->ports.reply(j->ports.ctx, w.call, &rep);
		}
}

/* The last piece of PutParameters: with it, all must have come. */
static bool put_is_whole(struct job *j, struct waiter *w)
{
	const struct coverage *given = &j->rank[w->rank].given;
	struct coverage with = { 0 };
	char text[256];
	enum status st = coverage_add(&with, w->offset, w->offset + w->bytes);
	for (uint32_t i = 0; i < given->n && !st; i++)
		st = coverage_add(&with, given->piece[i].start, given->piece[i].end);
	bool missing = !st && params_missing(j, &with, text, sizeof(text));
	coverage_fini(&with);
	if (!st && !missing)
		return true;
	if (st)
		snprintf(text, sizeof(text), "%s", status_info(st)->text);
	uint64_t call = w->call;
	waiter_remove(j, w);
	reply_error(j, call, st ? st : ST_INVALID_ARGUMENT,
		    "give the missing bytes before `last`; after a restart of gaccd, all of them", "%s", text);
	return false;
}

/* Pieces may overtake each other, but `last` is sent after all others of its rank. A rank that is being fenced gives
 * nothing more. */
static void puts_send(struct job *j)
{
	struct rank *busy = puts_giver(j);
	for (uint32_t i = j->n_waiters; i-- > 0;) {
		struct waiter *w = &j->waiter[i];
		struct rank *r = &j->rank[w->rank];
		if (w->kind != WAIT_PUT || w->sent || r->attaching || (busy && r != busy))
			continue;
		busy = give(j, r);
		if (!w->last || (r->n_puts == r->n_last_puts && (w->streamed || put_is_whole(j, w))))
			send_put(j, w);
	}
}

/* ---- where they come from ---- */

void job_begin_with(struct job *j, void *tail, uint32_t n)
{
	free(j->restore);
	j->restore = tail;
	j->n_restore = n;
}

static void reconcile_start(struct job *j)
{
	if (is_filling(j)) /* what comes now waits until that is over */
		return;
	if (j->mirror.r.params_ready) {
		puts_answer(j);
		return;
	}
	if (j->restore) {
		struct engine_command c = { .op = ENGINE_RESTORE, .n_present = j->n_restore };
		if (!j->restore_command)
			job_send(j, &c, &j->restore_command, j->restore);
		return;
	}
	if (j->spec->n_init && !j->init_command) {
		struct engine_command c = { .op = ENGINE_INIT_PARAMS };
		job_send(j, &c, &j->init_command, NULL);
	}
	puts_send(j);
}

void initial_send(struct job *j)
{
	if (j->engine_up)
		reconcile_start(j);
}

void job_params_given(struct job *j, const struct engine_answer *a)
{
	j->mirror.r.params_ready = 1;
	if (has_parts(j)) /* compared with those of the others */
		j->mirror.r.params_digest = a->digest;
}

void job_params_changed(struct job *j, struct now now)
{
	if (j->mirror.r.params_ready)
		job_report(j, now);
	job_answer_ready(j);
}

/* ---- answers ---- */

static struct waiter *put_of(const struct job *j, const struct engine_answer *a)
{
	for (uint32_t i = 0; i < j->n_waiters; i++) {
		struct waiter *w = &j->waiter[i];
		if (w->kind == WAIT_PUT && w->sent && w->command_id == a->id)
			return w;
	}
	return NULL;
}

void put_answered(struct job *j, const struct engine_answer *a, struct now now)
{
	struct waiter *found = put_of(j, a);
	if (!found)
		return;
	struct waiter w = *found;
	bool answered = w.streamed && !stream_of(&j->rank[w.rank], w.call); /* the stream has ended meanwhile */
	struct reply rep = { .kind = REPLY_PUT };
	enum status st = a->status;
	if (has_parts(j) && st == ST_NOT_READY && !answered) { /* another part's were coming: the tick sends it again */
		found->sent = false;
		return;
	}
	if (!st && (w.last || a->result))
		job_params_given(j, a);
	if (!st && !w.streamed && !j->mirror.r.params_ready)
		st = coverage_add(&j->rank[w.rank].given, w.offset, w.offset + w.bytes);
	rep.put.ready = j->mirror.r.params_ready;
	if (st == ST_NONFINITE) /* all of them anew, or another rank's */
		coverage_fini(&j->rank[w.rank].given);
	put_over(j, found, st || rep.put.ready);
	if (rep.put.ready)
		job_params_changed(j, now);
	initial_send(j); /* a `last` may have waited for this piece */
	if (answered)
		return;
	if (st)
		reply_error(j, w.call, st, NULL, "parameters at byte %llu: %s", (unsigned long long)w.offset,
			    a->status ? a->text : status_info(st)->text);
	else
		j->ports.reply(j->ports.ctx, w.call, &rep); /* a stream brings its next piece from in here */
}

/* ---- calls ---- */

void put_begin(struct job *j, uint64_t call, struct rank *r, const struct put_args *a, struct now now)
{
	uint32_t n, first = session_slots(j, r, &n);
	struct waiter *w = waiter_add(j, call, WAIT_PUT, r->index);
	struct stream *s = w ? NULL : stream_of(r, call);
	if (s)
		stream_free(s); /* answered: no memory */
	if (!w)
		return;
	w->slot = first + a->slot;
	w->offset = a->offset;
	w->bytes = a->bytes;
	w->last = a->last;
	r->n_last_puts += a->last;
	w->streamed = a->streamed;
	initial_send(j);
}

void job_put_params(struct job *j, uint64_t call, const struct session_key *k, uint32_t slot, uint64_t offset,
		    uint64_t bytes, bool last, struct now now)
{
	struct rank *r = call_allowed(j, call, k);
	if (!r)
		return;
	if (!j->engine_seen) {
		reply_error(j, call, ST_NOT_READY, "call RegisterTensors first", "the job has no memory yet");
		return;
	}
	if (j->mirror.r.params_ready && !is_filling(j)) {
		struct reply rep = { .kind = REPLY_PUT };
		rep.put.ready = true;
		j->ports.reply(j->ports.ctx, call, &rep);
		return;
	}
	if (slot >= j->spec->slots_per_rank || bytes > j->set.arena.slot_bytes || offset > j->set.arena.param_bytes ||
	    bytes > j->set.arena.param_bytes - offset) {
		reply_error(j, call, ST_INVALID_ARGUMENT, "offset + bytes must lie in the parameter layout",
			    "slot %u, offset %llu, bytes %llu: slots hold %llu bytes, parameters %llu", slot,
			    (unsigned long long)offset, (unsigned long long)bytes,
			    (unsigned long long)j->set.arena.slot_bytes, (unsigned long long)j->set.arena.param_bytes);
		return;
	}
	if (!r->mapped) {
		reply_error(j, call, ST_BAD_SLOT,
			    "map the slots over the attach socket, or send the parameters with PutParametersInline",
			    "slot %u: this session of rank %u has not mapped its slots", slot, k->rank);
		return;
	}
	if (r->stream[slot].state) {
		reply_error(j, call, ST_SLOT_BUSY, "use the other slot, or wait for the stream's end",
			    "slot %u of rank %u is filled by an inline stream", slot, k->rank);
		return;
	}
	struct put_args a = { .slot = slot, .offset = offset, .bytes = bytes, .last = last };
	put_begin(j, call, r, &a, now);
}
