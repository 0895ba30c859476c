/* SPDX-License-Identifier: Apache-2.0 */
/* Takes mailboxes from gaccd, and takes out of them what trainers have published: pushes go to push.c as if they came
 * as commands, WAITs to boxes_wait.c. For engine.c; the engine's main thread. */
#include "engine/process.h"

#include <stdlib.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

/* ---- requests ---- */

static int64_t unix_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void offer(struct engine *e, uint32_t rank, const struct box_request *r)
{
	const struct gacc_box_request *q = &r->q;
	const struct push p = { .rank = rank,
				.micro = q->micro,
				.slot = q->slot,
				.sgen = e->boxes.rank[rank].sgen,
				.window = q->window,
				.data_key = q->data_key,
				.weight = q->weight,
				.loss = q->loss,
				.lr = q->lr,
				.loss_scale = q->loss_scale,
				.present = r->present,
				.n_present = q->n_present };
	push_offer(e, &p,
		   &(struct push_origin){ .asker = boxes_asker(r->cell),
					  .unix_nanos = unix_ns(),
					  .zero_after = q->flags & GACC_BOX_ZERO_AFTER });
}

void boxes_look(struct engine *e, uint32_t rank)
{
	struct box *b = boxes_of(e, rank);
	struct box_request request[GACC_BOX_CELLS];
	uint32_t unready = 0, n = b ? box_look_all(&b->mail.cells, request, &unready) : 0;
	if (!b)
		return;
	b->unready = unready != 0;
	if (unready)
		boxes_list(e, rank, LIST_LOOK);
	if (b->mail.cells.bell_due) /* it has refused some */
		boxes_list(e, rank, LIST_RING);
	for (uint32_t i = 0; i < n; i++) {
		if (request[i].q.kind == GACC_BOX_PUSH)
			offer(e, rank, &request[i]);
		else
			boxes_wait(e, rank, request[i].cell, request[i].q.window);
		free(request[i].present);
	}
}

void boxes_look_again(struct engine *e)
{
	struct boxes *b = &e->boxes;
	uint32_t n = 0;
	for (uint32_t i = 0; i < b->n_listed[LIST_LOOK]; i++) {
		uint32_t rank = b->list[LIST_LOOK][i];
		if (b->rank[rank].unready)
			boxes_look(e, rank);
		b->rank[rank].listed[LIST_LOOK] = b->rank[rank].unready;
		if (b->rank[rank].unready)
			b->list[LIST_LOOK][n++] = rank;
	}
	b->n_listed[LIST_LOOK] = n;
}

/* ---- a mailbox comes ---- */

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
		st = boxes_open(e, c, &f, why, sizeof(why));
	} else {
		for (int i = 0; i < n_fds; i++)
			close(fds[i]);
	}
	if (st == ST_OK) {
		/* the engine before this one may have died between an answer and its bell */
		boxes_list(e, c->rank, LIST_RING);
		boxes_look(e, c->rank);
	}
	engine_reply(e, c, st, why[0] ? why : NULL);
}
