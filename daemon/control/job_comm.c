/* SPDX-License-Identifier: Apache-2.0 */
/* The communicator of a job of several parts, as one of its parts sees it: passes addresses between the engine and the
 * coordinator, and turns failures into votes. Part of struct job; pure; loop thread.
 *
 * An engine that dies takes its membership with it. Its successor is told of the same communicator, and offers an
 * address with its own life; whether that may still be joined is for the coordinator's board to say.
 */
#include "control/job_impl.h"

#include "coll/coll.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAY_EVERY_NS (INT64_C(1000) * 1000000)
#define AGAIN_NS (INT64_C(100) * 1000000)

/* ---- votes ---- */

/* The attempt that a communicator which cannot be used fails: before the job runs, and while shares are gathered, its
 * own. 0: none, no attempt is under way. */
static uint64_t failing_attempt(const struct job *j)
{
	const struct order *o = &j->order;
	if (o->want == WANT_GO)
		return o->window == j->mirror.r.window ? o->attempt : 0;
	if (is_gathering(j))
		return o->comm;
	return o->want == WANT_NOTHING && !o->run ? o->comm : 0;
}

static void vote_if_failed(struct job *j, struct now now)
{
	const struct member *m = &j->member;
	if (m->state != MEMBER_FAILED || !is_in_orders_comm(j))
		return;
	const uint64_t attempt = failing_attempt(j);
	if (!attempt || (j->vote_status && j->vote_term == m->term && j->vote_attempt == attempt))
		return;
	j->vote_status = m->failed;
	j->vote_term = m->term;
	j->vote_attempt = attempt;
	j->vote_suspects = m->suspects;
	memcpy(j->vote_text, m->why, sizeof(j->vote_text));
	job_report(j, now);
}

static void drop_blob(struct member *m)
{
	free(m->blob);
	m->blob = NULL;
	m->n_blob = 0;
}

static void note_failure(struct job *j, const struct engine_answer *a, enum status st)
{
	struct member *m = &j->member;
	drop_blob(m);
	m->state = MEMBER_FAILED;
	m->failed = st;
	m->suspects = a->suspects & part_mask(j);
	snprintf(m->why, sizeof(m->why), "%s", a->text);
}

static void fail(struct job *j, const struct engine_answer *a, enum status st, struct now now)
{
	note_failure(j, a, st);
	job_report(j, now);
	vote_if_failed(j, now);
}

void comm_commit_failed(struct job *j, const struct engine_answer *a, struct now now)
{
	const struct member *m = &j->member;
	if (a->status == ST_NOT_READY || a->status == ST_CANCELLED)
		return; /* the tick sends it again, if it is wanted then */
	if (is_in_orders_comm(j) && m->k == j->commit_comm)
		fail(j, a, a->status, now);
}

void comm_go_failed(struct job *j, const struct engine_answer *a)
{
	const struct member *m = &j->member;
	if (m->k && j->go_comm == m->k && j->go_term == m->term)
		note_failure(j, a, a->status);
}

/* ---- to the engine and the coordinator ---- */

void comm_forget(struct job *j)
{
	drop_blob(&j->member);
	j->member = (struct member){ 0 };
}

/* The engine may be in it. */
static void leave(struct job *j)
{
	const struct member *m = &j->member;
	struct engine_command c = { .op = ENGINE_ABORT, .term = m->term, .comm = m->k };
	uint64_t id;
	if (m->state != MEMBER_NONE && job_send(j, &c, &id, NULL))
		comm_forget(j);
}

static void join(struct job *j, struct now now)
{
	const struct order *o = &j->order;
	struct engine_command c = {
		.op = ENGINE_JOIN, .term = o->term, .comm = o->comm, .join_ns = o->join_ms * INT64_C(1000000)
	};
	uint64_t id;
	if (now.mono_ns < j->member.again_ns || !job_send(j, &c, &id, NULL))
		return;
	comm_forget(j);
	j->member = (struct member){ .state = MEMBER_TOLD, .term = o->term, .k = o->comm, .join_command = id };
}

static void say_blob(struct job *j, struct now now)
{
	struct member *m = &j->member;
	const struct part_blob b = { .job_id = j->id,
				     .epoch = j->epoch,
				     .part = j->part.number,
				     .term = m->term,
				     .comm = m->k,
				     .life = j->life,
				     .bytes = m->blob,
				     .n = m->n_blob };
	assert(m->blob && j->life);
	m->said_ns = now.mono_ns;
	j->ports.blob(j->ports.ctx, &b);
}

/* What the engine has been sent of initial parameters is not answered yet. */
static bool is_being_given(const struct job *j)
{
	bool given = !j->mirror.r.params_ready && (j->init_command || j->restore_command);
	for (uint32_t i = 0; i < j->n_waiters && !given; i++)
		given = j->waiter[i].kind == WAIT_PUT && j->waiter[i].sent;
	return given;
}

/* From its first byte on nobody can say whose parameters the part has; only the source keeps its own. */
static void fill(struct job *j)
{
	struct member *m = &j->member;
	struct engine_command c = { .op = ENGINE_FILL, .term = m->term, .comm = m->k, .slot = j->order.fill_part - 1 };
	if (is_filling(j) && comm_can_go(j) && !m->fill_command && !is_being_given(j) &&
	    job_send(j, &c, &m->fill_command, NULL) && takes_fill(j))
		j->mirror.r.params_ready = 0;
}

bool comm_can_go(const struct job *j)
{
	const enum membership s = j->member.state;
	return is_in_orders_comm(j) && (s == MEMBER_GIVEN || s == MEMBER_JOINED);
}

void comm_send(struct job *j, struct now now)
{
	if (!has_parts(j) || !j->have_order || !j->engine_up)
		return;
	if (!j->order.comm || j->order.want == WANT_END) {
		leave(j);
		return;
	}
	if (!is_in_orders_comm(j))
		join(j, now);
	if (j->member.state == MEMBER_OFFERED && now.mono_ns - j->member.said_ns >= SAY_EVERY_NS)
		say_blob(j, now);
	vote_if_failed(j, now);
	fill(j);
}

void comm_take_board(struct job *j, const struct part_board *b)
{
	struct member *m = &j->member;
	if (m->state != MEMBER_OFFERED || b->job_id != j->id || b->epoch != j->epoch || b->term != m->term ||
	    b->comm != m->k || b->n_parts != j->part.n_parts)
		return;
	const struct coll_address *own = &b->address[j->part.number];
	if (own->life != j->life || own->n_blob != m->n_blob || memcmp(own->blob, m->blob, m->n_blob))
		return; /* of an earlier life; the coordinator will see that from the blob */
	for (; m->n_given < b->n_parts; m->n_given++) {
		const struct coll_address *a = &b->address[m->n_given];
		struct engine_command c = { .op = ENGINE_ADDRESS,
					    .term = m->term,
					    .comm = m->k,
					    .slot = m->n_given,
					    .part_life = a->life,
					    .n_present = (uint32_t)a->n_blob };
		uint64_t id;
		if (!job_send(j, &c, &id, a->blob))
			return; /* the board comes again, as long as the blob goes out */
	}
	drop_blob(m);
	m->state = MEMBER_GIVEN;
}

/* ---- the engine's answers ---- */

/* Without memory, here or there, JOIN is sent again: the engine answers with the same address. */
static void join_again(struct job *j, struct now now)
{
	comm_forget(j);
	j->member.again_ns = now.mono_ns + AGAIN_NS;
}

void comm_join_answered(struct job *j, const struct engine_answer *a, const void *blob, struct now now)
{
	struct member *m = &j->member;
	if (m->state != MEMBER_TOLD || a->id != m->join_command)
		return;
	const bool in_bounds = blob && a->n_tail > 0 && a->n_tail <= COLL_MAX_BLOB;
	if (a->status == ST_NO_MEMORY) {
		join_again(j, now);
		return;
	}
	if (a->status || !in_bounds) {
		fail(j, a, a->status ? a->status : ST_MALFORMED, now);
		return;
	}
	m->blob = malloc(a->n_tail);
	if (!m->blob) {
		join_again(j, now);
		return;
	}
	memcpy(m->blob, blob, a->n_tail);
	m->n_blob = a->n_tail;
	m->state = MEMBER_OFFERED;
	say_blob(j, now);
}

void comm_address_answered(struct job *j, const struct engine_answer *a, struct now now)
{
	const struct member *m = &j->member;
	bool waits = m->state == MEMBER_OFFERED || m->state == MEMBER_GIVEN;
	if (a->status && waits && a->id > m->join_command)
		fail(j, a, a->status, now);
}

void comm_fill_answered(struct job *j, const struct engine_answer *a, struct now now)
{
	struct member *m = &j->member;
	if (!m->fill_command || a->id != m->fill_command)
		return;
	m->fill_command = 0;
	if (a->status == ST_NOT_READY || a->status == ST_CANCELLED)
		return; /* the tick sends it again, if it is wanted then */
	if (a->status) {
		fail(j, a, a->status, now);
		return;
	}
	m->filled = true;
	j->mirror.r.params_ready = 1;
	j->mirror.r.params_digest = a->digest;
	job_params_changed(j, now);
}

/* Those of an earlier communicator come before the answer to JOIN. */
void comm_progress(struct job *j, const struct engine_answer *a, struct now now)
{
	struct member *m = &j->member;
	if (a->comm != m->k || (m->state != MEMBER_GIVEN && m->state != MEMBER_JOINED))
		return;
	job_exchange(j, a->connected, j->pieces + (a->pieces > m->pieces ? a->pieces - m->pieces : 0));
	m->pieces = a->pieces;
	switch ((enum comm_news)a->news) {
	case COMM_JOINED:
		m->state = MEMBER_JOINED;
		job_report(j, now);
		break;
	case COMM_LOST:
		fail(j, a, a->status ? a->status : ST_UNAVAILABLE, now);
		break;
	case COMM_MOVES:
		j->report_due = true;
		break;
	}
}
