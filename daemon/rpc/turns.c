/* SPDX-License-Identifier: Apache-2.0 */
/* Limits how many answers and messages of call_send.c are sent in one turn of the loop; the rest is queued for the next
 * turns. Loop thread. */
#include "rpc/turns.h"

#include <stdlib.h>
#include <uv.h>

/* a turn ends after so long: an answer may be 1 MiB, which gRPC copies into the socket */
#define TURN_NS UINT64_C(5000000)

struct rpc_turns {
	uv_prepare_t prepare; /* a turn ends: runs what was put */
	uv_idle_t idle;	      /* active while something is put, so that the loop does not wait before the next turn */
	unsigned most, done;
	int open; /* handles */
	struct rpc_tag *first, **tail;
};

static void do_nothing(uv_idle_t *idle)
{
}

static void on_prepare(uv_prepare_t *prepare)
{
	struct rpc_turns *t = prepare->data;
	uint64_t begun_ns = uv_hrtime();
	t->done = 0;
	while (t->first && t->done < t->most && (!t->done || uv_hrtime() - begun_ns < TURN_NS)) {
		struct rpc_tag *tag = t->first;
		t->first = tag->next;
		if (!t->first)
			t->tail = &t->first;
		t->done++;
		tag->run(tag, true);
	}
	if (!t->first)
		uv_idle_stop(&t->idle);
}

enum status rpc_turns_new(void *loop, unsigned most, struct rpc_turns **out)
{
	struct rpc_turns *t = calloc(1, sizeof(*t));
	if (!t)
		return ST_NO_MEMORY;
	t->most = most;
	t->tail = &t->first;
	t->open = 2;
	uv_prepare_init(loop, &t->prepare);
	uv_idle_init(loop, &t->idle);
	t->prepare.data = t->idle.data = t;
	uv_prepare_start(&t->prepare, on_prepare);
	uv_unref((uv_handle_t *)&t->prepare);
	*out = t;
	return ST_OK;
}

bool rpc_turns_take(struct rpc_turns *t)
{
	if (t->first || t->done >= t->most)
		return false;
	t->done++;
	return true;
}

void rpc_turns_put(struct rpc_turns *t, struct rpc_tag *tag)
{
	tag->next = NULL;
	*t->tail = tag;
	t->tail = &tag->next;
	uv_idle_start(&t->idle, do_nothing);
}

static void on_closed(uv_handle_t *handle)
{
	struct rpc_turns *t = handle->data;
	if (--t->open == 0)
		free(t);
}

void rpc_turns_free(struct rpc_turns *t)
{
	if (!t)
		return;
	uv_close((uv_handle_t *)&t->prepare, on_closed);
	uv_close((uv_handle_t *)&t->idle, on_closed);
}
