/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine tells others: answers to gaccd, the control record for the engine's successor, the status page for
 * trainers. For window.c, step.c, saving.c and engine.c; the engine's main thread. */
#include "engine/process.h"

#include "base/packet.h"
#include "engine/progress.h"
#include "proto/failpoint.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

struct engine_answer engine_answer_to(const struct engine *e, const struct engine_command *c, enum status st)
{
	const struct control_record *r = &e->state.r;
	return (struct engine_answer){ .op = c->op,
				       .status = st,
				       .id = c->id,
				       .window = r->window,
				       .rank = c->rank,
				       .attempt = c->attempt,
				       .count = r->count,
				       .sum_weight = r->sum_weight,
				       .sum_loss = r->sum_loss,
				       .last_rank = r->last_rank,
				       .x = r->x,
				       .window_lr = r->window_lr,
				       .lr_rank = r->lr_rank,
				       .version = ENGINE_CHANNEL_VERSION,
				       .life = e->life,
				       .comm = c->comm };
}

struct coll_id engine_comm_id(const struct engine *e, const struct engine_command *c)
{
	return (struct coll_id){ .job = e->mem.plan->job_id, .epoch = e->state.r.epoch, .term = c->term, .k = c->comm };
}

void engine_note_told(struct engine *e)
{
	progress_note_told(e->mem.progress, e->state.r.seq);
}

/* Waits for room when the socket is full; a closed socket ends the engine. */
void engine_send_with(struct engine *e, const struct engine_answer *a, const void *tail)
{
	int rc;
	if (FAILPOINT_ERROR(engine_answer_before)) {
		e->ended = true;
		return;
	}
	if (e->running)
		engine_note_told(e);
	while ((rc = packet_send(e->fd, a, sizeof(*a), tail, a->n_tail, NULL, 0)) == -EAGAIN) {
		struct pollfd p = { .fd = e->fd, .events = POLLOUT };
		poll(&p, 1, -1);
	}
	if (rc < 0)
		e->ended = true;
}

void engine_send(struct engine *e, const struct engine_answer *a)
{
	assert(!a->n_tail);
	engine_send_with(e, a, NULL);
}

void engine_reply(struct engine *e, const struct engine_command *c, enum status st, const char *why)
{
	struct engine_answer a = engine_answer_to(e, c, st);
	if (why)
		snprintf(a.text, sizeof(a.text), "%s", why);
	engine_send(e, &a);
}

void engine_publish(struct engine *e)
{
	control_page_publish(&e->mem.page, &e->state);
}

void engine_show_status(struct engine *e)
{
	struct status_page *p = e->mem.status;
	const struct control_record *r = &e->state.r;
	atomic_store(&p->window, r->window);
	atomic_store(&p->applied_step, r->applied_step);
	atomic_store(&p->micro_size, r->micro_size);
	atomic_store(&p->counted, r->count);
	atomic_store(&p->engine_pid, (uint64_t)getpid());
	uint64_t seq = atomic_load(&p->seq);
	atomic_store_explicit(&p->seq, seq + (seq & 1), memory_order_release);
}

enum status engine_check_window(const struct engine *e, uint64_t window)
{
	uint64_t now = e->state.r.window;
	return window == now ? ST_OK : window < now ? ST_WINDOW_CLOSED : ST_NOT_CURRENT_WINDOW;
}
