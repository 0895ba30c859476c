/* SPDX-License-Identifier: Apache-2.0 */
/* Mailboxes of sessions: tells the engine of them, ends them, and learns from the engine's record what has come in
 * them. gaccd sees no push of a mailbox: its mirror of the record is behind until it has caught up. Part of struct job;
 * pure; loop thread. */
#include "control/job_impl.h"

#include "engine/progress.h"

#include <string.h>

#define RECORD_MAX (UINT64_C(256) << 10) /* some 50 us to copy and to check */

bool job_offers_mailboxes(const struct job_spec *s)
{
	uint64_t bitmap = control_words(s->ranks, s->max_micro_size) * sizeof(uint64_t);
	return s->ranks * sizeof(struct control_rank) + 3 * bitmap <= RECORD_MAX;
}

/* ---- life ---- */

bool mailbox_send(struct job *j, struct rank *r)
{
	/* nothing may be counted before the job runs: a checkpoint could still replace what there is */
	bool may = j->engine_up && j->run && !j->ended && j->mirror.r.params_ready && !r->attaching;
	if (!may || !r->has_box || r->box_sent)
		return true;
	struct engine_command c = {
		.op = ENGINE_MAILBOX, .rank = r->index, .sgen = r->sgen, .epoch = j->mirror.r.epoch
	};
	r->box_sent = job_send(j, &c, &r->box_command, NULL);
	return r->box_sent;
}

void mailbox_end(struct job *j, struct rank *r)
{
	if (!r->has_box)
		return;
	r->has_box = r->box_sent = false;
	r->queued_since_ns = 0;
	j->ports.mailbox_over(j->ports.ctx, r->index);
}

/* An engine that cannot take it leaves what lies in it unread: its trainer must not wait for that. */
void mailbox_answered(struct job *j, const struct engine_answer *a)
{
	struct rank *r = &j->rank[a->rank];
	if (a->status && r->box_sent && r->box_command == a->id)
		mailbox_end(j, r);
}

void job_on_mailbox(struct job *j, uint32_t rank, uint64_t generation)
{
	struct rank *r = job_rank(j, rank);
	if (!r || r->sgen != generation || !r->has_session || j->ended)
		return;
	j->has_boxes = r->has_box = true;
	mailbox_send(j, r);
}

/* ---- what has come in them ---- */

/* What gaccd shows of the pushes that the open window counts, of this rank. */
static void learn_pushes(struct job *j, struct rank *r, const struct record_view *v)
{
	const uint32_t max = j->spec->max_micro_size;
	const struct ledger_cell *cell = &v->ledger[(size_t)r->index * max];
	r->weight = 0;
	for (uint32_t m = 0; m < job_micro_size(j); m++)
		r->weight += rank_counted(j, r, m) ? cell[m].weight : 0;
}

static bool has_moved(const struct job *j, const struct rank *r, const struct control_state *s)
{
	const uint32_t max = j->spec->max_micro_size;
	return s->rank[r->index].counted != j->mirror.rank[r->index].counted ||
	       control_count(s->voided, max, r->index, job_micro_size(j)) != r->voided;
}

/* Takes the pushes of the open window, and nothing else: sessions, flushes and what concerns the whole window come with
 * the answers to commands, each of which has more to do than to change the mirror. */
static void take_record(struct job *j, const struct record_view *v)
{
	struct control_state *m = &j->mirror;
	const struct control_state *s = v->state;
	if (s->r.window != m->r.window)
		return; /* the answer to COMMIT is on its way, and the next look finds the same */
	j->caught_up = s->r.seq;
	if (s->r.count || m->r.count) {
		m->r.window_lr = s->r.window_lr;
		m->r.lr_rank = s->r.lr_rank;
	}
	EACH_RANK(j, r)
	r->moved = has_moved(j, r, s);
	m->r.count = s->r.count;
	memcpy(m->counted, s->counted, m->n_words * sizeof(*m->counted));
	memcpy(m->voided, s->voided, m->n_words * sizeof(*m->voided));
	EACH_RANK(j, r)
	{
		if (!r->moved)
			continue;
		m->rank[r->index].counted = s->rank[r->index].counted;
		learn_pushes(j, r, v);
		rank_recount(j, r);
		j->report_due = true;
	}
}

/* Times by the engine's clock, which is gaccd's: of what has come long before gaccd looks. */
static void take_times(struct job *j, const struct status_rank *row)
{
	struct progress_parked p;
	EACH_RANK(j, r)
	{
		if (!r->has_box)
			continue;
		int64_t ready = atomic_load_explicit(&row[r->index].ready_mono_ns, memory_order_relaxed);
		int64_t last = atomic_load_explicit(&row[r->index].last_push_unix_ns, memory_order_relaxed);
		bool parked = progress_parked(&row[r->index], &p);
		if (r->ready_ns && ready && ready < r->ready_ns)
			r->ready_ns = ready;
		r->last_push_unix_ns = last > r->last_push_unix_ns ? last : r->last_push_unix_ns;
		r->queued_since_ns = parked ? p.since_mono_ns : 0;
		r->queued_micro = parked && p.micro < j->spec->max_micro_size ? p.micro : 0;
	}
}

bool job_catch_up(struct job *j)
{
	struct record_view v = { 0 };
	if (!j->has_boxes || !j->engine_up)
		return true;
	bool was_behind = j->behind;
	j->behind = !j->ports.record(j->ports.ctx, j->caught_up, &v);
	if (j->behind)
		return false;
	j->report_due |= was_behind;
	if (v.state)
		take_record(j, &v);
	take_times(j, v.rank);
	return true;
}
