/* SPDX-License-Identifier: Apache-2.0 */
/* Pushes through the session's mailbox: fills in requests, keeps those that are not yet answered, and reads answers. A
 * push that is not accepted here goes by RPC (push.c, async.c). The job's thread. */
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
					  .flags = push->zero_after ? GACC_BOX_ZERO_AFTER : 0,
					  .window = push->window,
					  .micro = push->micro,
					  .slot = push->slot,
					  .weight = push->weight,
					  .loss = push->loss,
					  .data_key = push->data_key,
					  .loss_scale = push->loss_scale,
					  .n_present = (uint32_t)push->n_present,
					  .lr = push->lr };
}

/* Its number; 0: by RPC. */
static uint64_t publish(struct gacc_job *job, const struct push *push)
{
	if (!is_ours(job) || !cells_usable(&job->memory.cells) || FAILPOINT_ERROR(client_push_before))
		return 0;
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

/* False: by RPC. */
static bool is_accepted(struct gacc_job *job, struct push *push, uint64_t seq)
{
	struct cells *c = &job->memory.cells;
	struct gacc_box_answer a;

	if (!seq || !is_ours(job) || !cells_await(c, seq, c->patience_ms, &a) || a.status != ST_OK ||
	    FAILPOINT_ERROR(client_push_answered))
		return false;
	take_answer(push, &a);
	return true;
}

bool posted_push_now(struct gacc_job *job, struct push *push)
{
	return is_accepted(job, push, publish(job, push));
}
