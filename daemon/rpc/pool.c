/* SPDX-License-Identifier: Apache-2.0 */
/* Runs work whose size users choose on libuv's threads, for the RPC layer (large messages) and for the edge
 * (specifications, tensor sets, plans, memory, files). Queued and completed on the loop thread. */
#include "rpc/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <uv.h>

#define MAX_WORKERS 2
/* the journal, the history, the scan of state_dir, trimming memory */
#define OWN_THREADS 4

static const struct kind {
	int workers;
	bool one_each; /* of a user, one piece at a time */
} kinds[RPC_POOL_KINDS] = {
	[RPC_POOL_COMPUTE] = { 2, false },
	[RPC_POOL_ALLOCATE] = { 1, false },
	[RPC_POOL_RELEASE] = { 1, false },
	[RPC_POOL_DISK] = { 2, true },
};

struct worker {
	uv_work_t work;
	struct rpc_pool *pool;
	struct rpc_work *of; /* NULL: idle */
};

struct lane { /* the work of one kind */
	struct worker worker[MAX_WORKERS];
	struct rpc_work *first, **tail;
	int64_t last; /* the user whose work was started last */
};

struct rpc_pool {
	uv_loop_t *loop;
	struct lane lane[RPC_POOL_KINDS];
};

static void start(struct rpc_pool *p, enum rpc_pool_kind kind);

static void run(uv_work_t *w)
{
	struct worker *worker = w->data;
	worker->of->run(worker->of);
}

static void end(uv_work_t *w, int canceled)
{
	struct worker *worker = w->data;
	struct rpc_work *done = worker->of;
	worker->of = NULL;
	start(worker->pool, done->kind);
	done->done(done);
}

static bool at_work(const struct lane *lane, int64_t user)
{
	for (int i = 0; i < MAX_WORKERS; i++)
		if (lane->worker[i].of && lane->worker[i].of->user == user)
			return true;
	return false;
}

/* Position of the oldest work that may start, preferring other users than the last. NULL: none may. */
static struct rpc_work **find(struct lane *lane, bool one_each)
{
	struct rpc_work **oldest = NULL;
	for (struct rpc_work **at = &lane->first; *at; at = &(*at)->next) {
		if (one_each && at_work(lane, (*at)->user))
			continue;
		if ((*at)->user != lane->last)
			return at;
		if (!oldest)
			oldest = at;
	}
	return oldest;
}

static struct rpc_work *take(struct lane *lane, bool one_each)
{
	struct rpc_work **at = find(lane, one_each);
	if (!at)
		return NULL;
	struct rpc_work *w = *at;
	*at = w->next;
	if (lane->tail == &w->next)
		lane->tail = at;
	lane->last = w->user;
	return w;
}

static void start(struct rpc_pool *p, enum rpc_pool_kind kind)
{
	struct lane *lane = &p->lane[kind];
	for (int i = 0; i < kinds[kind].workers; i++) {
		struct worker *w = &lane->worker[i];
		if (w->of)
			continue;
		w->of = take(lane, kinds[kind].one_each);
		if (!w->of)
			return;
		uv_queue_work(p->loop, &w->work, run, end);
	}
}

enum status rpc_pool_make_threads(void)
{
	int n = OWN_THREADS;
	char text[16];
	for (int k = 0; k < RPC_POOL_KINDS; k++)
		n += kinds[k].workers;
	snprintf(text, sizeof(text), "%d", n);
	return uv_os_setenv("UV_THREADPOOL_SIZE", text) ? ST_NO_MEMORY : ST_OK;
}

enum status rpc_pool_new(void *loop, struct rpc_pool **out)
{
	struct rpc_pool *p = calloc(1, sizeof(*p));
	if (!p)
		return ST_NO_MEMORY;
	p->loop = loop;
	for (int k = 0; k < RPC_POOL_KINDS; k++) {
		struct lane *lane = &p->lane[k];
		lane->tail = &lane->first;
		lane->last = INT64_MIN;
		for (int i = 0; i < MAX_WORKERS; i++) {
			lane->worker[i].pool = p;
			lane->worker[i].work.data = &lane->worker[i];
		}
	}
	*out = p;
	return ST_OK;
}

void rpc_pool_free(struct rpc_pool *p)
{
	free(p);
}

void rpc_pool_put_kind(struct rpc_pool *p, enum rpc_pool_kind kind, struct rpc_work *w, int64_t user,
		       void (*run_it)(struct rpc_work *), void (*done)(struct rpc_work *))
{
	struct lane *lane = &p->lane[kind];
	*w = (struct rpc_work){ .user = user, .kind = kind, .run = run_it, .done = done };
	*lane->tail = w;
	lane->tail = &w->next;
	start(p, kind);
}

void rpc_pool_put(struct rpc_pool *p, struct rpc_work *w, int64_t user, void (*run_it)(struct rpc_work *),
		  void (*done)(struct rpc_work *))
{
	rpc_pool_put_kind(p, RPC_POOL_COMPUTE, w, user, run_it, done);
}

int rpc_pool_running(const struct rpc_pool *p, enum rpc_pool_kind kind)
{
	int n = 0;
	for (int i = 0; i < MAX_WORKERS; i++)
		n += p->lane[kind].worker[i].of != NULL;
	return n;
}

bool rpc_pool_busy(const struct rpc_pool *p)
{
	for (int k = 0; k < RPC_POOL_KINDS; k++)
		if (rpc_pool_running(p, (enum rpc_pool_kind)k) || p->lane[k].first)
			return true;
	return false;
}
