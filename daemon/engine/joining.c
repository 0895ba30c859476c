/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's place among those of the other parts: makes the communicator that gaccd names, passes addresses to it,
 * and tells gaccd how it gets on. For engine.c; the engine's main thread. Jobs of one part have nothing of it. */
#include "engine/process.h"

#include "base/clock.h"
#include "base/log.h"
#include "engine/sum_parts.h"
#include "proto/failpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

#define SAY_NS (500 * INT64_C(1000000))

/* The sizes are equal; what comes over the channel may lack its end. */
static void copy_text(char *to, size_t n, const char *from)
{
	snprintf(to, n, "%.*s", (int)(n - 1), from);
}

enum status joining_start(struct engine *e, const struct engine_command *c)
{
	if (e->mem.plan->n_parts == 1)
		return ST_OK;
	while (!e->life)
		if (getrandom(&e->life, sizeof(e->life), 0) != sizeof(e->life))
			return ST_IO_ERROR;
	e->stall_ns = c->stall_ns;
	copy_text(e->coll_address, sizeof(e->coll_address), c->coll_address);
	return ST_OK;
}

/* ---- commands ---- */

/* Before the first communicator: what it needs, and keeps until the end. */
static enum status prepare(struct engine *e, struct coll_failure *why)
{
	if (!e->program_net) {
		coll_failure_set(why, ST_INVALID_ARGUMENT, 0, "this program has no way to other engines");
		return ST_INVALID_ARGUMENT;
	}
	if (!e->net)
		e->net = e->program_net->open(e->coll_address, why);
	if (!e->net)
		return why->status;
	enum status st =
		e->comm ? ST_OK : comm_new(e->net, e->life, e->stall_ns, sum_parts_small(e->mem.plan), &e->comm);
	if (st)
		coll_failure_set(why, st, 0, "no thread, or no descriptor, for communicators");
	return st;
}

/* Again for each JOIN: it may have failed. */
static enum status watch(const struct engine *e, struct coll_failure *why)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u64 = WATCH_COMM };
	if (!epoll_ctl(e->epoll, EPOLL_CTL_ADD, comm_fd(e->comm), &ev) || errno == EEXIST)
		return ST_OK;
	coll_failure_set(why, ST_NO_MEMORY, 0, "the kernel has no memory to watch for communicators");
	return ST_NO_MEMORY;
}

static enum status join(struct engine *e, const struct engine_command *c, const void **blob, size_t *n_blob,
			struct coll_failure *why)
{
	const struct plan *p = e->mem.plan;
	const struct coll_id id = engine_comm_id(e, c);
	if (p->n_parts == 1) {
		coll_failure_set(why, ST_INVALID_ARGUMENT, 0, "the job has one part");
		return ST_INVALID_ARGUMENT;
	}
	enum status st = prepare(e, why);
	if (!st)
		st = watch(e, why);
	return st ? st : comm_join(e->comm, &id, p->part, p->n_parts, c->join_ns, blob, n_blob, why);
}

void joining_join(struct engine *e, const struct engine_command *c)
{
	const struct coll_id id = engine_comm_id(e, c);
	const void *blob = NULL;
	size_t n_blob = 0;
	struct coll_failure why;
	if (comm_compare(e->comm, &id) > 0) { /* what a GO, a FILL or a COMMIT waits for is over */
		step_drop_sum(e, ST_CANCELLED);
		fill_drop(e, ST_CANCELLED);
		apply_drop(e, ST_CANCELLED);
	}
	enum status st = join(e, c, &blob, &n_blob, &why);
	struct engine_answer a = engine_answer_to(e, c, st);
	if (st)
		snprintf(a.text, sizeof(a.text), "%s", why.text);
	a.n_tail = (uint32_t)n_blob;
	engine_send_with(e, &a, blob);
	FAILPOINT(engine_blob_told);
}

void joining_address(struct engine *e, const struct engine_command *c, const unsigned char *blob)
{
	const struct coll_id id = engine_comm_id(e, c);
	engine_reply(e, c, comm_address(e->comm, &id, c->slot, c->part_life, blob, c->n_present), NULL);
	FAILPOINT(engine_board_taken);
}

void joining_abort(struct engine *e, const struct engine_command *c)
{
	const struct coll_id id = engine_comm_id(e, c);
	if (e->sum.stage && e->sum.go.term == c->term && e->sum.go.comm == c->comm)
		step_drop_sum(e, ST_CANCELLED);
	if (e->fill.stage && e->fill.command.term == c->term && e->fill.command.comm == c->comm)
		fill_drop(e, ST_CANCELLED);
	if (e->apply.at_hand.stage && apply_names(&e->apply.at_hand.command, c->term, c->comm))
		apply_drop(e, ST_CANCELLED);
	FAILPOINT(engine_abort_begun);
	comm_abort(e->comm, &id);
	FAILPOINT(engine_abort_done);
	engine_reply(e, c, ST_OK, NULL);
}

/* ---- what has become of it ---- */

static void tell(struct engine *e, enum comm_news news, const struct comm_event *ev)
{
	struct engine_answer a =
		engine_answer_to(e, &(struct engine_command){ .op = ENGINE_PROGRESS, .comm = ev->id.k }, ev->status);
	a.result = PROGRESS_COMM;
	a.news = news;
	a.connected = ev->connected;
	a.pieces = ev->pieces;
	a.suspects = ev->suspects;
	snprintf(a.text, sizeof(a.text), "%s", ev->text);
	engine_send(e, &a);
}

static void on_event(struct engine *e, const struct comm_event *ev)
{
	if (ev->kind == COMM_EVENT_DONE && ev->task == COMM_REDUCE) {
		step_on_sum(e, ev);
		return;
	}
	if (ev->kind == COMM_EVENT_DONE) {
		(ev->task == COMM_GATHER ? apply_on_done : fill_on_done)(e, ev);
		step_on_connected(e);
		return;
	}
	if (ev->status) {
		log_job(ev->id.job, LOG_WARN, "CommunicatorLost", "communicator %" PRIu64 ": %s: %s", ev->id.k,
			status_info(ev->status)->name, ev->text);
		tell(e, COMM_LOST, ev);
		step_on_lost(e, ev);
		fill_on_lost(e, ev);
		apply_on_lost(e, ev);
		return;
	}
	FAILPOINT(engine_comm_up);
	tell(e, COMM_JOINED, ev);
	fill_on_connected(e);
	apply_on_connected(e);
	step_on_connected(e);
}

static void look(struct engine *e)
{
	struct comm_event ev;
	enum comm_look seen = comm_look(e->comm, clock_ns(CLOCK_MONOTONIC), &ev);
	if (seen == COMM_LOOK_MOVES)
		tell(e, COMM_MOVES, &ev);
	if (seen == COMM_LOOK_HANGS) {
		log_error("a call of a communicator hangs: the engine ends, its successor goes on");
		_exit(ENGINE_EXIT_HANGS);
	}
}

void joining_at_work(void *arg)
{
	struct engine *e = arg;
	int64_t now = clock_ns(CLOCK_MONOTONIC);
	if (e->running) {
		if (plan_is_sharded(e->mem.plan) && e->state.r.phase == WINDOW_APPLYING)
			comm_at_work(e->comm);
		look(e);
	}
	if (now - e->said_ns < SAY_NS)
		return;
	e->said_ns = now;
	engine_reply(e, &(struct engine_command){ .op = ENGINE_PING }, ST_OK, NULL);
}

void joining_go_on(struct engine *e, bool is_due)
{
	struct comm_event ev;
	while (is_due && comm_next(e->comm, &ev))
		on_event(e, &ev);
	if (comm_patience_ms(e->comm) >= 0)
		look(e);
}

/* Not exit: the thread that hangs may still use what its handlers free. */
void joining_fini(struct engine *e)
{
	if (!comm_free(e->comm, COLL_ABORT_NS)) {
		log_error("a call of a communicator hangs: the engine ends without it");
		_exit(e->exit_code ? e->exit_code : ENGINE_EXIT_HANGS);
	}
	coll_net_free(e->net);
}
