/* SPDX-License-Identifier: Apache-2.0 */
/* The member of a communicator that an engine is: the table of comm.h. For the engine; main thread, and the
 * communication thread (call_thread.c), whose part is at the beginning. */
#include "engine/comm.h"

#include "base/clock.h"
#include "engine/call_thread.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_MS 500
#define LOOK_NS (LOOK_MS * INT64_C(1000000))
#define MAX_GAP_NS (2 * LOOK_NS) /* that counts, of the time between two looks at the old one */

/* One member, with what it needs to join. Main thread; while a call runs, what the call reads is left alone. */
struct seat {
	struct coll *coll;
	struct coll_id id;
	bool called; /* the communication thread has had it: it leaves there, too */
	uint32_t n_told;
	struct coll_address all[COLL_MAX_PARTS]; /* life 0: not told yet */
};

enum call_kind { CALL_JOIN, CALL_FN, CALL_LEAVE };

struct call {
	enum call_kind kind;
	enum comm_task task;
	struct seat *seat;
	comm_fn *fn;
	void *arg;
};

struct comm {
	struct coll_net *net;
	uint64_t life;
	int64_t stall_ns;
	uint32_t small;
	struct call_thread *thread;
	struct call call; /* the thread's while it runs */
	enum comm_state state;
	struct seat *member, *old;
	struct coll_id newest; /* that was opened; k 0: none */
	bool opened;
	int64_t old_seen_ns; /* when it was last looked at, or its abort or its leaving began */
	int64_t old_for_ns;  /* that this has taken, while the main thread looked */
	int64_t looked_ns;   /* since when nothing has been said about the call that runs */
	bool has_worked;     /* since then; comm_at_work */
	uint64_t said_pieces;
	uint32_t said_connected;
};

/* ---- the communication thread ---- */

static enum status run(void *arg)
{
	const struct call *call = arg;
	switch (call->kind) {
	case CALL_JOIN:
		return coll_join(call->seat->coll, call->seat->all);
	case CALL_LEAVE:
		coll_leave(call->seat->coll);
		return ST_OK;
	default:
		return call->fn(call->arg, call->seat->coll);
	}
}

/* ---- calls, as main sees them ---- */

static void post(struct comm *c, const struct call *call)
{
	call->seat->called = true;
	c->call = *call;
	call_thread_post(c->thread, run, &c->call);
}

static void free_seat(struct seat *s)
{
	for (uint32_t i = 0; i < COLL_MAX_PARTS; i++)
		free((void *)s->all[i].blob);
	free(s);
}

/* ---- the end of a member ---- */

static void count_from_now(struct comm *c)
{
	c->old_seen_ns = clock_ns(CLOCK_MONOTONIC);
	c->old_for_ns = 0;
}

static void leave_old(struct comm *c)
{
	count_from_now(c);
	post(c, &(struct call){ .kind = CALL_LEAVE, .seat = c->old });
}

/* The member is over, whether it was aborted or has failed. One that the communication thread has never had leaves
 * here, which takes no time. */
static void retire(struct comm *c)
{
	struct seat *s = c->member;
	c->member = NULL;
	c->state = COMM_BROKEN;
	if (!s->called) {
		coll_leave(s->coll);
		free_seat(s);
		return;
	}
	assert(!c->old);
	c->old = s;
	count_from_now(c);
	if (call_thread_is_idle(c->thread))
		leave_old(c);
}

static void abort_member(struct comm *c)
{
	if (!c->member)
		return;
	coll_abort(c->member->coll);
	retire(c);
}

bool comm_abort(struct comm *c, const struct coll_id *id)
{
	if (!c || !c->member || coll_id_compare(id, &c->member->id))
		return false;
	abort_member(c);
	return true;
}

/* ---- the beginning of one ---- */

static void say_from_now(struct comm *c)
{
	c->looked_ns = clock_ns(CLOCK_MONOTONIC);
}

/* The member joins as soon as all addresses are here and the old one has left. */
static void join_if_due(struct comm *c)
{
	if (c->state != COMM_OFFERED || c->old || c->member->n_told < c->member->coll->n_parts)
		return;
	c->state = COMM_JOINING;
	c->said_pieces = c->said_connected = 0;
	say_from_now(c);
	post(c, &(struct call){ .kind = CALL_JOIN, .task = COMM_JOIN, .seat = c->member });
}

static enum status open_member(struct comm *c, const struct coll_config *config, struct coll_failure *why)
{
	struct seat *s = calloc(1, sizeof(*s));
	if (!s) {
		coll_failure_set(why, ST_NO_MEMORY, 0, "no memory for a member");
		return ST_NO_MEMORY;
	}
	s->id = config->id;
	enum status st = coll_open(c->net, config, &s->coll, why);
	if (st) {
		free(s);
		return st;
	}
	c->member = s;
	c->newest = config->id;
	c->opened = true;
	return ST_OK;
}

enum status comm_join(struct comm *c, const struct coll_id *id, uint32_t part, uint32_t n, int64_t join_ns,
		      const void **blob, size_t *n_blob, struct coll_failure *why)
{
	int order = comm_compare(c, id);
	if (order < 0 || (!order && !c->member)) {
		coll_failure_set(why, ST_STALE_ATTEMPT, 0,
				 order < 0 ? "a later communicator was asked for" : "this engine has left it");
		return ST_STALE_ATTEMPT;
	}
	if (order) {
		abort_member(c);
		const struct coll_config config = { *id, part, n, c->life, c->stall_ns, join_ns, c->small };
		enum status st = open_member(c, &config, why);
		c->state = st ? COMM_NONE : COMM_OFFERED;
		if (st)
			return st;
	}
	*blob = coll_blob(c->member->coll, n_blob);
	return ST_OK;
}

static bool is_own(const struct comm *c, uint64_t life, const void *blob, size_t n)
{
	size_t n_own;
	const void *own = coll_blob(c->member->coll, &n_own);
	return life == c->life && n == n_own && !memcmp(blob, own, n);
}

static enum status keep_address(struct seat *s, uint32_t part, uint64_t life, const void *blob, size_t n)
{
	struct coll_address *a = &s->all[part];
	if (a->life)
		return a->life == life && a->n_blob == n && !memcmp(a->blob, blob, n) ? ST_OK : ST_MALFORMED;
	void *copy = malloc(n);
	if (!copy)
		return ST_NO_MEMORY;
	memcpy(copy, blob, n);
	*a = (struct coll_address){ .life = life, .blob = copy, .n_blob = n };
	s->n_told++;
	return ST_OK;
}

enum status comm_address(struct comm *c, const struct coll_id *id, uint32_t part, uint64_t life, const void *blob,
			 size_t n)
{
	if (!c || !c->member || coll_id_compare(id, &c->member->id))
		return ST_STALE_ATTEMPT;
	if (part >= c->member->coll->n_parts || !life || !n || n > COLL_MAX_BLOB)
		return ST_INVALID_ARGUMENT;
	if (c->state != COMM_OFFERED)
		return ST_OK;
	if (part == c->member->coll->part && !is_own(c, life, blob, n))
		return ST_MALFORMED;
	enum status st = keep_address(c->member, part, life, blob, n);
	join_if_due(c);
	return st;
}

/* ---- functions ---- */

static void work(struct comm *c, enum comm_task task, comm_fn *fn, void *arg)
{
	assert(c->state == COMM_READY);
	c->state = COMM_BUSY;
	say_from_now(c);
	post(c, &(struct call){ .kind = CALL_FN, .task = task, .seat = c->member, .fn = fn, .arg = arg });
}

void comm_reduce(struct comm *c, comm_fn *fn, void *arg)
{
	work(c, COMM_REDUCE, fn, arg);
}

void comm_fill(struct comm *c, comm_fn *fn, void *arg)
{
	work(c, COMM_FILL, fn, arg);
}

void comm_gather(struct comm *c, comm_fn *fn, void *arg)
{
	work(c, COMM_GATHER, fn, arg);
}

enum comm_state comm_state(const struct comm *c)
{
	return c ? c->state : COMM_NONE;
}

int comm_compare(const struct comm *c, const struct coll_id *id)
{
	return c && c->opened ? coll_id_compare(id, &c->newest) : 1;
}

bool comm_is_working(const struct comm *c)
{
	return c && (c->state == COMM_BUSY || (c->old && c->call.kind == CALL_FN && !call_thread_is_idle(c->thread)));
}

bool comm_is_filling(const struct comm *c)
{
	return comm_is_working(c) && c->call.task == COMM_FILL;
}

/* ---- events ---- */

int comm_fd(const struct comm *c)
{
	return call_thread_fd(c->thread);
}

static void describe(const struct comm *c, struct comm_event *out, enum status st)
{
	struct coll_state now;
	coll_poll(c->member->coll, &now);
	*out = (struct comm_event){ .kind = COMM_EVENT_DONE,
				    .task = c->call.task,
				    .id = c->member->id,
				    .status = st,
				    .connected = now.connected,
				    .pieces = now.pieces };
	if (!st)
		return;
	for (uint32_t i = 0; i < now.failure.n_suspects; i++)
		out->suspects |= UINT64_C(1) << now.failure.suspect[i];
	snprintf(out->text, sizeof(out->text), "%s", now.failure.status ? now.failure.text : status_info(st)->text);
}

/* The member's call has come back. */
static void settle(struct comm *c, enum status st, struct comm_event *out)
{
	bool joined = c->call.kind == CALL_JOIN;
	describe(c, out, st);
	if (joined)
		out->kind = st ? COMM_EVENT_LOST : COMM_EVENT_JOINED;
	c->state = COMM_READY;
	if (st)
		abort_member(c); /* a function's own failure has broken nothing yet */
}

/* The old one's call has come back. */
static void settle_old(struct comm *c)
{
	if (c->call.kind != CALL_LEAVE) {
		leave_old(c);
		return;
	}
	free_seat(c->old);
	c->old = NULL;
	join_if_due(c);
}

bool comm_next(struct comm *c, struct comm_event *out)
{
	enum status st;
	if (!c)
		return false;
	while (call_thread_take(c->thread, &st)) {
		if (c->call.seat == c->old) {
			settle_old(c);
			continue;
		}
		settle(c, st, out);
		return true;
	}
	return false;
}

static bool is_calling(const struct comm *c)
{
	return c->state == COMM_JOINING || c->state == COMM_BUSY;
}

static bool has_joined(const struct comm *c)
{
	return c->state == COMM_READY || c->state == COMM_BUSY;
}

void comm_at_work(struct comm *c)
{
	if (!c || !has_joined(c))
		return;
	coll_at_work(c->member->coll);
	c->has_worked = true;
}

int comm_patience_ms(const struct comm *c)
{
	return c && (c->old || is_calling(c)) ? LOOK_MS : -1;
}

/* The old one has had COLL_ABORT_NS, and its call has not come back. The main thread may have been elsewhere for longer
 * than that, in an update, or the whole process may have stood still: of the time between two looks only what is usual
 * counts. */
static bool hangs(struct comm *c, int64_t now)
{
	if (!c->old)
		return false;
	int64_t gap = now - c->old_seen_ns;
	c->old_for_ns += gap < MAX_GAP_NS ? gap : MAX_GAP_NS;
	c->old_seen_ns = now;
	return c->old_for_ns > COLL_ABORT_NS && call_thread_is_running(c->thread);
}

enum comm_look comm_look(struct comm *c, int64_t now, struct comm_event *out)
{
	if (c && hangs(c, now))
		return COMM_LOOK_HANGS;
	if (!c || !(is_calling(c) || (has_joined(c) && c->has_worked)) || now - c->looked_ns < LOOK_NS)
		return COMM_LOOK_QUIET;
	describe(c, out, ST_OK);
	if (out->pieces == c->said_pieces && out->connected == c->said_connected)
		return COMM_LOOK_QUIET;
	c->looked_ns = now;
	c->has_worked = false;
	c->said_pieces = out->pieces;
	c->said_connected = out->connected;
	return COMM_LOOK_MOVES;
}

/* ---- beginning and end ---- */

enum status comm_new(struct coll_net *net, uint64_t life, int64_t stall_ns, uint32_t small, struct comm **out)
{
	struct comm *c = calloc(1, sizeof(*c));
	if (!c)
		return ST_NO_MEMORY;
	c->net = net;
	c->life = life;
	c->stall_ns = stall_ns;
	c->small = small;
	enum status st = call_thread_new(&c->thread);
	if (st) {
		free(c);
		return st;
	}
	*out = c;
	return ST_OK;
}

bool comm_free(struct comm *c, int64_t limit_ns)
{
	struct comm_event unwanted;
	int64_t until = clock_ns(CLOCK_MONOTONIC) + limit_ns;
	if (!c)
		return true;
	abort_member(c);
	for (; c->old; comm_next(c, &unwanted))
		if (!call_thread_await(c->thread, until))
			return false;
	call_thread_free(c->thread);
	free(c);
	return true;
}
