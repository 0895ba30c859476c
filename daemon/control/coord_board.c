/* SPDX-License-Identifier: Apache-2.0 */
/* What a coordinator hears of engines and their addresses, and sends to all when they are complete; the table is in
 * coord_impl.h. Called with messages of the parts and from the tick. Pure; loop thread. */
#include "control/coord_impl.h"

#include "coll/board.h"

#include <stdio.h>

/* ---- addresses ---- */

static void send_board(struct coord *c, uint32_t part)
{
	const struct coll_id id = coord_comm_id(c);
	struct part_board b = { .job_id = id.job, .epoch = id.epoch, .term = id.term, .comm = id.k };
	b.address = board_addresses(c->comm.board, &id, &b.n_parts);
	c->ports.board(c->ports.ctx, part, &b);
}

static enum status judge(const struct coord *c, const struct part_blob *b)
{
	if (!c->comm.board || c->superseded || c->phase > COORD_COMMIT)
		return ST_JOB_ENDED;
	if (b->job_id != c->job_id || b->epoch != c->epoch || b->term != c->term || !b->comm || b->comm != c->comm.k)
		return ST_STALE_ATTEMPT;
	if (b->part >= c->n_peers)
		return ST_INVALID_ARGUMENT;
	/* its report is behind, or the address is of an engine that is gone */
	return b->life == c->peer[b->part].last.life ? ST_OK : ST_NOT_READY;
}

/* Engines of different builds would not understand each other, or compute other bits. */
static bool all_alike(const struct coord *c)
{
	COORD_EACH_PART(c, i)
	if (*c->peer[i].unlike)
		return false;
	return true;
}

static void open_if_complete(struct coord *c, struct now now)
{
	struct coord_comm *m = &c->comm;
	const struct coll_id id = coord_comm_id(c);
	if (m->state != COMM_BOARD || board_state(m->board, &id) != BOARD_COMPLETE || !all_alike(c))
		return;
	m->state = COMM_OPEN;
	m->since_ns = c->progress_ns = now.mono_ns;
	COORD_EACH_PART(c, i)
	send_board(c, i);
	coord_step(c, now);
}

/* None of those on the board is known to be gone. In GO a part's vote stands when its engine has died. */
static bool all_live(const struct coord *c)
{
	COORD_EACH_PART(c, i)
	if (c->peer[i].last.life && c->peer[i].last.life != c->peer[i].life)
		return false;
	return true;
}

enum status coord_on_blob(struct coord *c, const struct part_blob *b, struct now now)
{
	struct coord_comm *m = &c->comm;
	const struct coll_id id = coord_comm_id(c);
	enum status st = judge(c, b);
	if (!st)
		st = board_put(m->board, &id, b->part, b->life, b->bytes, b->n);
	if (st)
		return st;
	c->peer[b->part].life = b->life;
	if (m->state == COMM_OPEN) { /* the board was lost */
		if (!all_live(c))
			return ST_NOT_READY;
		send_board(c, b->part);
		return ST_OK;
	}
	open_if_complete(c, now);
	return ST_OK;
}

/* ---- engines ---- */

/* Another life of an engine that is in the communicator: the others must not wait for the one that is gone. */
static void engine_restarted(struct coord *c, const struct peer *p, struct now now)
{
	const uint32_t part = (uint32_t)(p - c->peer);
	char why[60 + COORD_NODE], node[COORD_NODE];
	snprintf(why, sizeof(why), "the engine of part %u%s was restarted", part, coord_node_of(c, part, node));
	switch (c->phase) {
	case COORD_START:
		coord_comm_fail(c, why, now);
		break;
	case COORD_GO: /* its vote stands, also when a dead engine gave it; what failed says it better */
		if (!(p->marks & 1u << MARK_VOTED))
			coord_fail_attempt(c, why, now);
		break;
	case COORD_COLLECT:
	case COORD_CLOSE:
	case COORD_COMMIT:
		coord_comm_leave(c);
		coord_broadcast(c, now);
		break;
	case COORD_PERSIST: /* all have voted: the next attempt looks at it */
	case COORD_ENDING:
	case COORD_ENDED:
		break;
	}
}

void coord_comm_report(struct coord *c, const struct peer *p, struct now now)
{
	if (!c->comm.board)
		return;
	if (!c->comm.source && p->marks & 1u << MARK_STARTED)
		c->comm.source = (uint32_t)(p - c->peer) + 1;
	if (p->life && p->last.life && p->life != p->last.life)
		engine_restarted(c, p, now);
	coord_comm_look(c, now);
}

/* ---- the tick ---- */

/* In COMMIT: does it get on? */
static void watch_commit(struct coord *c, struct now now)
{
	char why[160] = "no part has got on with it for long";
	if (!coord_comm_gathers(c))
		return;
	if (c->comm.state == COMM_NONE) {
		coord_step(c, now);
		return;
	}
	if ((c->held || *c->hindrance) && now.mono_ns > c->progress_ns)
		c->progress_ns = now.mono_ns;
	if (now.mono_ns - c->progress_ns <= coord_comm_stuck_ns(c))
		return;
	coord_describe_comm(c, why, sizeof(why), now);
	coord_comm_late(c);
	coord_comm_fail(c, why, now);
}

void coord_comm_tick(struct coord *c, struct now now)
{
	struct coord_comm *m = &c->comm;
	if (!m->board)
		return;
	if (c->superseded || c->phase > COORD_COMMIT) {
		board_purge_job(m->board, c->job_id);
		m->state = COMM_NONE;
	} else if (c->phase == COORD_START && m->state == COMM_NONE) {
		coord_step(c, now);
	} else if (c->phase == COORD_GO && m->state == COMM_NONE) { /* there was no memory */
		coord_comm_form(c, now);
		coord_renew_order(c);
	} else {
		open_if_complete(c, now); /* nodes may be alike again */
	}
	watch_commit(c, now);
}
