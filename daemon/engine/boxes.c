/* SPDX-License-Identifier: Apache-2.0 */
/* Takes the mailboxes of all ranks from gaccd, and gives them up. For engine.c and window.c; the engine's main thread.
 */
#include "engine/boxes.h"

#include "engine/plan.h"
#include "engine/process.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

/* ---- mailboxes come and go ---- */

void boxes_fini(struct boxes *b)
{
	for (uint32_t i = 0; i < b->n; i++)
		if (b->rank[i].open)
			mailbox_drop(&b->rank[i].mail);
	for (int i = 0; i < N_BOX_LISTS; i++)
		free(b->list[i]);
	free(b->rank);
	*b = (struct boxes){ 0 };
}

/* Jobs without a mailbox have none of it. */
static enum status begin(struct boxes *b, uint32_t ranks)
{
	if (b->rank)
		return ST_OK;
	struct boxes made = { .n = ranks, .rank = calloc(ranks, sizeof(*made.rank)) };
	bool complete = made.rank != NULL;
	for (int i = 0; i < N_BOX_LISTS; i++) {
		made.list[i] = calloc(ranks, sizeof(*made.list[i]));
		complete = complete && made.list[i];
	}
	if (complete) {
		*b = made;
		return ST_OK;
	}
	for (int i = 0; i < N_BOX_LISTS; i++)
		free(made.list[i]);
	free(made.rank);
	return ST_NO_MEMORY;
}

struct box *boxes_of(struct engine *e, uint32_t rank)
{
	return rank < e->boxes.n && e->boxes.rank[rank].open ? &e->boxes.rank[rank] : NULL;
}

static void drop(struct engine *e, struct box *b)
{
	b->unready = false;
	b->waits = 0;
	mailbox_drop(&b->mail);
	b->open = false;
	e->boxes.n_open--;
}

void boxes_fence(struct engine *e, uint32_t rank, uint64_t sgen)
{
	struct box *b = boxes_of(e, rank);
	if (b && b->sgen < sgen)
		drop(e, b);
}

/* For a rank of the engine, in the place of what it had; the descriptors are taken, whatever comes of it. ST_NO_MEMORY,
 * ST_IO_ERROR, ST_SEGMENT_CORRUPT, ST_INVALID_ARGUMENT, with why. */
static enum status take_over(struct engine *e, const struct engine_command *c, const struct mailbox_fds *f, char *why,
			     size_t n_why)
{
	const struct plan *p = e->mem.plan;
	struct mailbox m;
	enum status st = mailbox_open(&m, f, p->n_tensors, p->slots_per_rank, why, n_why);
	if (st)
		return st;
	st = begin(&e->boxes, e->state.r.ranks);
	if (!st)
		st = mailbox_watch(&m, e->epoll, c->rank);
	if (st) {
		snprintf(why, n_why, "a mailbox: %s", status_info(st)->text);
		mailbox_drop(&m);
		return st;
	}
	struct box *b = &e->boxes.rank[c->rank];
	if (b->open)
		drop(e, b);
	b->open = true;
	b->sgen = c->sgen;
	b->mail = m;
	e->boxes.n_open++;
	return ST_OK;
}

void boxes_list(struct engine *e, uint32_t rank, enum box_list which)
{
	struct boxes *b = &e->boxes;
	if (!b->rank[rank].listed[which])
		b->list[which][b->n_listed[which]++] = rank;
	b->rank[rank].listed[which] = true;
}

/* ---- the command ---- */

/* gaccd sends mailboxes when the job runs: nothing is counted before. */
static enum status judge(const struct engine *e, const struct engine_command *c, int n_fds, char *why, size_t n_why)
{
	const struct control_state *s = &e->state;
	if (n_fds != BOXES_FDS) {
		snprintf(why, n_why, "a mailbox with %d descriptors instead of %d (memory, submit, answer)", n_fds,
			 BOXES_FDS);
		return ST_INVALID_ARGUMENT;
	}
	if (c->rank >= s->r.ranks)
		return ST_RANK_OUT_OF_RANGE;
	if (c->epoch != s->r.epoch) {
		snprintf(why, n_why, "a mailbox of another epoch");
		return ST_STALE_EPOCH;
	}
	if (c->sgen != s->rank[c->rank].sgen)
		return c->sgen < s->rank[c->rank].sgen ? ST_SESSION_FENCED : ST_SESSION_UNKNOWN;
	if (s->r.params_ready)
		return ST_OK;
	snprintf(why, n_why, "a mailbox, and the parameters are not there yet");
	return ST_NOT_READY;
}

void boxes_take(struct engine *e, const struct engine_command *c, const int *fds, int n_fds)
{
	char why[sizeof(((struct engine_answer *)0)->text)] = "";
	enum status st = judge(e, c, n_fds, why, sizeof(why));
	if (st == ST_OK) {
		const struct mailbox_fds f = { fds[0], fds[1], fds[2], -1 };
		st = take_over(e, c, &f, why, sizeof(why));
	} else {
		for (int i = 0; i < n_fds; i++)
			close(fds[i]);
	}
	if (st == ST_OK) {
		/* what lies there is looked at in this turn; the engine before this one may have died between an answer
		 * and its bell */
		e->boxes.rank[c->rank].unready = true;
		boxes_list(e, c->rank, LIST_LOOK);
		boxes_list(e, c->rank, LIST_RING);
	}
	engine_reply(e, c, st, why[0] ? why : NULL);
}

/* ---- answers ---- */

void boxes_reply(struct engine *e, uint32_t rank, uint32_t cell, struct gacc_box_answer a)
{
	struct box *b = &e->boxes.rank[rank];
	a.counted = a.window == e->state.r.window ? e->state.rank[rank].counted : 0;
	a.micro_size = e->state.r.micro_size;
	engine_note_told(e);
	box_answer(&b->mail.cells, cell, b->mail.cells.open[cell], &a);
	boxes_list(e, rank, LIST_RING);
}

void boxes_answer(struct engine *e, const struct accum_entry *p, uint64_t asker, const struct engine_answer *a)
{
	const struct box *b = boxes_of(e, p->rank);
	uint32_t cell = (uint32_t)asker % GACC_BOX_CELLS;
	if (!b || !b->mail.cells.open[cell])
		return;
	assert(b->sgen == p->sgen); /* a newer session's ATTACH has refused what was queued */
	bool fails = a->result == PUSH_VOID && e->mem.plan->void_is_error; /* gaccd says so to whoever calls it */
	boxes_reply(e, p->rank, cell,
		    (struct gacc_box_answer){ .status = fails ? ST_NONFINITE : a->status,
					      .result = fails ? 0 : a->result,
					      .window = a->window,
					      .parked_ns = a->parked_ns,
					      .waited_for = plan_rank_number(e->mem.plan, a->blocked_by) });
}

void boxes_ring(struct engine *e)
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
