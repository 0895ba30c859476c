/* SPDX-License-Identifier: Apache-2.0 */
/* Pushes and waits through the session's mailbox: fills in requests, keeps those that are not yet answered, and reads
 * answers. What is not accepted here goes by RPC (push.c, async.c, step.c). The job's thread, and no other: publishing
 * does not wait, so that asynchronous pushes need no thread. */
#include "lib/internal.h"

#include "gacc/v1/gradient.pb-c.h"
#include "proto/failpoint.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- one request ---- */

/* A mailbox is of one session: it is dead as soon as another one is to come. */
static bool is_ours(const struct gacc_job *job)
{
	return job->memory.cells.sgen == job->generation && !job->lost;
}

static struct gacc_box_request request_of(const struct push *push)
{
	return (struct gacc_box_request){ .kind = GACC_BOX_PUSH,
					  .flags = (push->zero_after ? GACC_BOX_ZERO_AFTER : 0) |
						   (push->ready_rings ? GACC_BOX_RINGS : 0),
					  .window = push->window,
					  .micro = push->micro,
					  .slot = push->slot,
					  .weight = push->weight,
					  .loss = push->loss,
					  .data_key = push->data_key,
					  .loss_scale = push->loss_scale,
					  .n_present = (uint32_t)push->n_present,
					  .ready_at = push->ready_at,
					  .ready_value = push->ready_value,
					  .lr = push->lr };
}

bool posted_is_possible(struct gacc_job *job)
{
	return is_ours(job) && cells_usable(&job->memory.cells);
}

/* Its number; 0: by RPC. */
static uint64_t publish(struct gacc_job *job, const struct push *push)
{
	if (!posted_is_possible(job) || FAILPOINT_ERROR(client_push_before))
		return 0;
	if (push->ready_at &&
	    (job->memory.words.sgen != job->memory.cells.sgen || !words_are_current(&job->memory.words)))
		return 0; /* the engine would look at another page */
	return cells_publish(&job->memory.cells, request_of(push), push->present);
}

static void take_answer(struct push *push, const struct gacc_box_answer *a)
{
	push->is_void = a->result == GACC__V1__PUSH_RESULT__PUSH_RESULT_VOID;
	push->duplicate = a->result == GACC__V1__PUSH_RESULT__PUSH_RESULT_DUPLICATE ||
			  a->result == GACC__V1__PUSH_RESULT__PUSH_RESULT_ALREADY_COMMITTED;
	push->count = a->counted;
	push->micro_size = a->micro_size;
	push->parked_ns = a->parked_ns;
}

/* While the gradient is not complete, the answer is awaited for no longer than that may take; and never longer than the
 * call may last. */
static int64_t patience(const struct gacc_job *job, const struct push *push)
{
	int64_t ms = job->memory.cells.patience_ms, left = push->ready_at ? push_ready_left(job, push) : ms;

	ms = left < ms && !push_await_ready(job, push, 0) ? left : ms;
	left = settle_left(job);
	return left < ms ? left : ms;
}

/* False: by RPC. */
static bool is_accepted(struct gacc_job *job, struct push *push, uint64_t seq)
{
	struct cells *c = &job->memory.cells;
	struct gacc_box_answer a;

	if (!seq || !is_ours(job) || !cells_await(c, seq, patience(job, push), &a) || a.status != ST_OK ||
	    FAILPOINT_ERROR(client_push_answered))
		return false;
	take_answer(push, &a);
	return true;
}

bool posted_push_now(struct gacc_job *job, struct push *push)
{
	return is_accepted(job, push, publish(job, push));
}

/* ---- those whose answers are not awaited yet ---- */

void posted_add(struct gacc_job *job, const struct push *push)
{
	struct posted *p = &job->posted;

	assert(p->n < SLOTS_MAX);
	p->entry[p->n++] = (struct posted_push){ *push, publish(job, push), job->generation };
}

struct push *posted_first(struct gacc_job *job, bool *out_accepted)
{
	struct posted_push *first = &job->posted.entry[0];
	uint64_t seq = first->sgen == job->generation ? first->seq : 0; /* numbers are those of a mailbox */

	assert(job->posted.n);
	*out_accepted = is_accepted(job, &first->push, seq);
	return &first->push;
}

bool posted_is_owed(struct gacc_job *job)
{
	const struct posted_push *first = &job->posted.entry[0];

	return first->sgen == job->generation && is_ours(job) && cells_owes(&job->memory.cells, first->seq) &&
	       !memory_hung_up(&job->memory);
}

void posted_drop(struct posted *p)
{
	assert(p->n);
	free(p->entry[0].push.present);
	p->n--;
	memmove(&p->entry[0], &p->entry[1], p->n * sizeof(p->entry[0]));
}

size_t posted_queued(const struct posted *p, uint32_t *out)
{
	for (size_t i = 0; i < p->n; i++)
		out[i] = p->entry[i].push.micro;
	return p->n;
}

bool posted_uses(const struct posted *p, uint32_t slot)
{
	for (size_t i = 0; i < p->n; i++)
		if (p->entry[i].push.slot == slot)
			return true;
	return false;
}

/* ---- waiting for a window's end ---- */

/* A trainer goes by what it reads here: a wrong number would let it push what nobody asked for. */
static bool is_sound(const struct gacc_box_step *s)
{
	return s->outcome >= GACC_STEP_APPLIED && s->outcome <= GACC_STEP_DROPPED && s->half <= 1 &&
	       (s->next_micro_size || s->final);
}

bool posted_wait(struct gacc_job *job, uint64_t window, int timeout_ms, struct gacc_box_step *out)
{
	struct posted *p = &job->posted;
	struct cells *c = &job->memory.cells;
	bool is_open = p->wait.seq && p->wait.sgen == job->generation && p->wait.window == window;
	struct gacc_box_answer a;

	if (!is_open) {
		if (!posted_is_possible(job))
			return false;
		p->wait.seq =
			cells_publish(c, (struct gacc_box_request){ .kind = GACC_BOX_WAIT, .window = window }, NULL);
		p->wait.sgen = job->generation;
		p->wait.window = window;
	}
	if (timeout_ms < 0 || timeout_ms > c->patience_ms)
		timeout_ms = c->patience_ms;
	if (!is_ours(job) || !cells_await(c, p->wait.seq, timeout_ms, &a))
		return false; /* a later call goes on with this request: cells are few */
	p->wait.seq = 0;
	return a.status == ST_OK && a.result == 1 && cells_step(c, window, out) && is_sound(out);
}
