/* SPDX-License-Identifier: Apache-2.0 */
/* Exchanges the memory of a session's slots for memory to which no dead process can write, and makes such memory on a
 * device. For engine.c; the engine's main thread, between passes, so that no worker reads a slot. */
#include "engine/process.h"

#include <unistd.h>

/* The slot itself is what the window has counted (accumulate: none): it stays until the window is over. */
static bool holds_sum(const struct engine *e, uint32_t first, uint32_t n)
{
	const uint64_t filled = e->state.r.filled;
	return e->mem.plan->in_slot && filled > first && filled <= (uint64_t)first + n;
}

static bool on_device(const struct engine *e)
{
	return e->mem.plan->device != PLAN_HOST && !e->mem.plan->slots_on_host;
}

static enum status exchange(struct engine *e, uint32_t slot, int fd, char *why, size_t n_why)
{
	if (on_device(e))
		return on_device_take_slot(&e->on_device, &e->mem, slot, fd, why, n_why);
	on_device_drop_slot(&e->on_device, &e->mem, slot);
	const enum status st = memory_exchange_slot(&e->mem, slot, fd, why, n_why);
	arith_need("pinning a slot", on_device_slot(&e->on_device, &e->mem, slot));
	return st;
}

/* Of the session that has these slots, and no other. */
static enum status judge_session(const struct engine *e, const struct engine_command *c)
{
	const struct plan *p = e->mem.plan;
	if (c->rank >= e->state.r.ranks)
		return ST_RANK_OUT_OF_RANGE;
	const struct control_rank *r = &e->state.rank[c->rank];
	const uint32_t first = (r->session.spare ? p->ranks : c->rank) * p->slots_per_rank;
	return c->sgen != r->sgen || c->slot != first ? ST_SESSION_FENCED : ST_OK;
}

static enum status judge(const struct engine *e, const struct engine_command *c, int n_fds)
{
	const struct plan *p = e->mem.plan;
	const enum status st = judge_session(e, c);
	if (st)
		return st;
	if (n_fds != (int)p->slots_per_rank)
		return ST_INVALID_ARGUMENT;
	return holds_sum(e, c->slot, p->slots_per_rank) ? ST_NOT_READY : ST_OK;
}

void slots_exchange(struct engine *e, const struct engine_command *c, const int *fds, int n_fds)
{
	char why[sizeof(((struct engine_answer *)0)->text)] = "";
	enum status st = judge(e, c, n_fds);
	for (int i = 0; i < n_fds; i++) {
		if (st)
			close(fds[i]);
		else
			st = exchange(e, c->slot + (uint32_t)i, fds[i], why, sizeof(why));
	}
	engine_reply(e, c, st, why[0] ? why : NULL);
}

void slots_make(struct engine *e, const struct engine_command *c)
{
	const uint32_t n = e->mem.plan->slots_per_rank;
	char why[sizeof(((struct engine_answer *)0)->text)] = "";
	struct engine_answer a = engine_answer_to(e, c, ST_OK);
	int fds[ENGINE_MAX_FDS], n_fds = 0;
	enum status st = on_device(e) && n <= ENGINE_MAX_FDS ? judge_session(e, c) : ST_INVALID_ARGUMENT;
	for (uint32_t i = 0; i < n && !st; i++) {
		st = on_device_make_slot(&e->on_device, &e->mem, c->slot + i, &fds[n_fds], why, sizeof(why));
		n_fds += !st;
	}
	if (st) {
		engine_reply(e, c, st, why[0] ? why : NULL);
	} else {
		a.n_device = (uint32_t)n_fds;
		engine_send_fds(e, &a, fds, n_fds);
	}
	while (n_fds)
		close(fds[--n_fds]);
}
