/* Work whose size users choose, for the RPC layer (large messages) and for the edge (specifications, tensor sets, plans): on the
 * threads of libuv's pool, started and ended on the loop. */
#include "rpc/pool.h"

#include <stdlib.h>
#include <uv.h>

struct worker {
	uv_work_t work;
	struct rpc_pool *pool;
	struct rpc_work *of; /* NULL: idle */
};

struct rpc_pool {
	uv_loop_t *loop;
	struct worker worker[RPC_POOL_WORKERS];
	struct rpc_work *first, **tail;
	int64_t last; /* whose work was started last */
};

static void start(struct rpc_pool *p);

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
	start(worker->pool);
	done->done(done);
}

/* The oldest of another user than the last one's, else the oldest. */
static struct rpc_work *take(struct rpc_pool *p)
{
	struct rpc_work **at = &p->first;
	while (*at && (*at)->who == p->last)
		at = &(*at)->next;
	if (!*at)
		at = &p->first;
	struct rpc_work *w = *at;
	*at = w->next;
	if (p->tail == &w->next)
		p->tail = at;
	p->last = w->who;
	return w;
}

static void start(struct rpc_pool *p)
{
	for (int i = 0; i < RPC_POOL_WORKERS && p->first; i++) {
		struct worker *w = &p->worker[i];
		if (w->of)
			continue;
		w->of = take(p);
		uv_queue_work(p->loop, &w->work, run, end);
	}
}

enum status rpc_pool_new(void *loop, struct rpc_pool **out)
{
	struct rpc_pool *p = calloc(1, sizeof *p);
	if (!p)
		return ST_NO_MEMORY;
	p->loop = loop;
	p->tail = &p->first;
	p->last = INT64_MIN;
	for (int i = 0; i < RPC_POOL_WORKERS; i++) {
		p->worker[i].pool = p;
		p->worker[i].work.data = &p->worker[i];
	}
	*out = p;
	return ST_OK;
}

void rpc_pool_free(struct rpc_pool *p)
{
	free(p);
}

void rpc_pool_put(struct rpc_pool *p, struct rpc_work *w, int64_t who, void (*run_it)(struct rpc_work *), void (*done)(struct rpc_work *))
{
	*w = (struct rpc_work){ .who = who, .run = run_it, .done = done };
	*p->tail = w;
	p->tail = &w->next;
	start(p);
}

bool rpc_pool_busy(const struct rpc_pool *p)
{
	for (int i = 0; i < RPC_POOL_WORKERS; i++)
		if (p->worker[i].of)
			return true;
	return p->first != NULL;
}
