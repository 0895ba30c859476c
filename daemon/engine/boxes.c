/* SPDX-License-Identifier: Apache-2.0 */
/* Takes the ranks' mailboxes from gaccd, and gives them up when a newer session comes or the engine ends. For engine.c
 * and window.c; the engine's main thread. */
#include "engine/boxes.h"

#include "engine/process.h"

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
		boxes_list(&e->boxes, c->rank, LIST_LOOK);
		boxes_list(&e->boxes, c->rank, LIST_RING);
	}
	engine_reply(e, c, st, why[0] ? why : NULL);
}
