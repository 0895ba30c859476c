/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine tells others: answers to gaccd, and in their cells to trainers; the control record for the engine's
 * successor; the status page, with where each rank stands. For all files of process.h; the engine's main thread. */
#include "engine/process.h"

#include "base/packet.h"
#include "engine/progress.h"
#include "proto/failpoint.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

struct engine_answer engine_answer_to(const struct engine *e, const struct engine_command *c, enum status st)
{
	const struct control_record *r = &e->state.r;
	return (struct engine_answer){ .op = c->op,
				       .status = st,
				       .id = c->id,
				       .window = r->window,
				       .rank = c->rank,
				       .attempt = c->attempt,
				       .count = r->count,
				       .sum_weight = r->sum_weight,
				       .sum_loss = r->sum_loss,
				       .last_rank = r->last_rank,
				       .x = r->x,
				       .window_lr = r->window_lr,
				       .lr_rank = r->lr_rank,
				       .version = ENGINE_CHANNEL_VERSION,
				       .life = e->life,
				       .comm = c->comm };
}

struct coll_id engine_comm_id(const struct engine *e, const struct engine_command *c)
{
	return (struct coll_id){ .job = e->mem.plan->job_id, .epoch = e->state.r.epoch, .term = c->term, .k = c->comm };
}

void engine_note_told(struct engine *e)
{
	progress_note_told(e->mem.progress, e->state.r.seq);
}

/* Waits for room when the socket is full; a closed socket ends the engine. */
static void send_all(struct engine *e, const struct engine_answer *a, const void *tail, const int *fds, int n_fds)
{
	int rc;
	if (FAILPOINT_ERROR(engine_answer_before)) {
		e->ended = true;
		return;
	}
	if (e->running)
		engine_note_told(e);
	while ((rc = packet_send(e->fd, a, sizeof(*a), tail, a->n_tail, fds, n_fds)) == -EAGAIN) {
		struct pollfd p = { .fd = e->fd, .events = POLLOUT };
		poll(&p, 1, -1);
	}
	if (rc < 0)
		e->ended = true;
}

void engine_send_with(struct engine *e, const struct engine_answer *a, const void *tail)
{
	send_all(e, a, tail, NULL, 0);
}

void engine_send_fds(struct engine *e, const struct engine_answer *a, const int *fds, int n_fds)
{
	send_all(e, a, NULL, fds, n_fds);
}

void engine_send(struct engine *e, const struct engine_answer *a)
{
	assert(!a->n_tail);
	engine_send_with(e, a, NULL);
}

void engine_reply(struct engine *e, const struct engine_command *c, enum status st, const char *why)
{
	struct engine_answer a = engine_answer_to(e, c, st);
	if (why)
		snprintf(a.text, sizeof(a.text), "%s", why);
	engine_send(e, &a);
}

void engine_publish(struct engine *e)
{
	control_page_publish(&e->mem.page, &e->state);
}

void engine_show_status(struct engine *e)
{
	struct status_page *p = e->mem.status;
	const struct control_record *r = &e->state.r;
	atomic_store(&p->window, r->window);
	atomic_store(&p->applied_step, r->applied_step);
	atomic_store(&p->micro_size, r->micro_size);
	atomic_store(&p->counted, r->count);
	atomic_store(&p->engine_pid, (uint64_t)getpid());
	uint64_t seq = atomic_load(&p->seq);
	if (r->phase == WINDOW_APPLYING) /* other parts' parameters have yet to come */
		return;
	atomic_store_explicit(&p->seq, seq + (seq & 1), memory_order_release);
}

enum status engine_check_window(const struct engine *e, uint64_t window)
{
	uint64_t now = e->state.r.window;
	return window == now ? ST_OK : window < now ? ST_WINDOW_CLOSED : ST_NOT_CURRENT_WINDOW;
}

/* ---- answers in cells ---- */

void engine_answer_cell(struct engine *e, uint32_t rank, uint32_t cell, struct gacc_box_answer a)
{
	struct box *b = &e->boxes.rank[rank];
	a.counted = a.window == e->state.r.window ? e->state.rank[rank].counted : 0;
	a.micro_size = e->state.r.micro_size;
	engine_note_told(e);
	box_answer(&b->mail.cells, cell, b->mail.cells.open[cell], &a);
	boxes_list(&e->boxes, rank, LIST_RING);
}

void engine_ring(struct engine *e)
{
	struct boxes *b = &e->boxes;
	for (uint32_t i = 0; i < b->n_listed[LIST_RING]; i++) {
		struct box *of = &b->rank[b->list[LIST_RING][i]];
		of->listed[LIST_RING] = false;
		if (of->open)
			box_ring(&of->mail.cells, of->mail.answer);
	}
	b->n_listed[LIST_RING] = 0;
}

/* ---- where each rank stands ---- */

bool engine_rank_owes(const struct engine *e, uint32_t rank)
{
	const struct control_state *s = &e->state;
	const struct control_rank *r = &s->rank[rank];
	return !r->flushed && r->counted < s->r.micro_size &&
	       r->counted + control_count(s->voided, s->r.max_micro_size, rank, s->r.micro_size) < s->r.micro_size;
}

static bool has_given_all(const struct engine *e, uint32_t rank)
{
	return e->state.rank[rank].flushed != RANK_LEFT && !engine_rank_owes(e, rank);
}

void engine_show_rank(struct engine *e, uint32_t rank)
{
	struct status_rank *row = &e->mem.progress->rank[rank];
	const struct accum_entry *p = accum_oldest(&e->accum, rank);
	progress_ready(row, has_given_all(e, rank));
	progress_park(row, p ? &(struct progress_parked){ p->since_ns, p->micro, p->blocked_by } : NULL);
}

static uint32_t count_owing(const struct engine *e)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < e->state.r.ranks; i++)
		n += engine_rank_owes(e, i);
	return n;
}

void engine_show_ranks(struct engine *e)
{
	for (uint32_t i = 0; i < e->state.r.ranks; i++)
		engine_show_rank(e, i);
	e->owing = count_owing(e);
}

void engine_tell(struct engine *e, enum progress_kind kind, const struct accum_entry *p, uint32_t nonfinite)
{
	struct engine_answer a = engine_answer_to(e, &(struct engine_command){ .op = ENGINE_PROGRESS }, ST_OK);
	a.result = kind;
	a.rank = p ? p->rank : 0;
	a.micro = p ? p->micro : 0;
	a.nonfinite_count = nonfinite;
	engine_send(e, &a);
}

/* Also after the last mailbox is gone: gaccd may not know yet what came in it. An armed GO's answer says more. */
void engine_note_done(struct engine *e, uint32_t n_ranks)
{
	e->owing -= n_ranks;
	assert(e->owing == count_owing(e));
	if (n_ranks && !e->owing && e->boxes.n && !go_is_due(&e->state.r, &e->armed, e->owing))
		engine_tell(e, PROGRESS_COMPLETE, NULL, 0);
}
