/* SPDX-License-Identifier: Apache-2.0 */
/* WAITs in mailboxes: which can be answered, with which step block, and all of a window's when it is over. For
 * push.c and step.c; the engine's main thread. */
#include "engine/boxes.h"

#include "engine/plan.h"
#include "engine/process.h"

/* The half with the reduced gradient. */
static uint32_t reduced_half(const struct engine *e)
{
	return e->mem.plan->optim.type == OPTIM_CLIENT ? 1 - e->state.r.x : 0;
}

/* Of the window before the open one. */
static struct gacc_box_step step_of(const struct engine *e)
{
	const struct control_record *r = &e->state.r;
	const struct step_result *s = &r->commit_result;
	return (struct gacc_box_step){ .window = r->commit_window,
				       .applied_step = r->commit_applied_step,
				       .outcome = r->commit_outcome,
				       .skip_reason = s->skip_reason,
				       .total_weight = s->total_weight,
				       .divisor = s->divisor,
				       .grad_norm = s->grad_norm,
				       .lr = r->commit_lr,
				       .mean_loss = s->mean_loss,
				       .micro_count = s->micro_count,
				       .last_rank = s->last_rank,
				       .final = s->final,
				       .last_lag_ns = s->last_lag_ns,
				       .params_digest = r->params_digest,
				       .next_loss_scale = r->commit_next_loss_scale,
				       .next_micro_size = r->commit_micro_size,
				       .half = reduced_half(e) };
}

/* The table of boxes.h. *later: the window is open, and the rest does not count. */
static enum status judge(const struct control_record *r, uint64_t window, bool *later)
{
	*later = false;
	if (window > r->window)
		return ST_NOT_CURRENT_WINDOW;
	if (window == r->window) {
		*later = !accum_has_ended(r);
		return ST_JOB_ENDED;
	}
	if (window + 1 < r->window || !accum_knows_last(r))
		return ST_WINDOW_FORGOTTEN;
	return r->params_nonfinite ? ST_NONFINITE : ST_OK;
}

/* The step block is there before the answer, which is OK for the window before the open one alone. */
static void answer(struct engine *e, uint32_t rank, uint32_t cell, uint64_t window, enum status st)
{
	struct gacc_box_answer a = { .status = st, .window = window };
	if (st == ST_OK) {
		const struct gacc_box_step step = step_of(e);
		box_write_step(&e->boxes.rank[rank].mail.cells, &step);
		a.result = 1;
		a.half = step.half;
	}
	engine_answer_cell(e, rank, cell, a);
}

void boxes_wait(struct engine *e, uint32_t rank, uint32_t cell, uint64_t window)
{
	struct box *b = boxes_of(e, rank);
	bool later;
	enum status st = judge(&e->state.r, window, &later);
	if (!later) {
		answer(e, rank, cell, window, st);
		return;
	}
	b->waits |= 1u << cell;
	boxes_list(&e->boxes, rank, LIST_WAIT);
}

static void end_waits_of(struct engine *e, uint32_t rank, enum status st)
{
	struct box *b = &e->boxes.rank[rank];
	for (uint32_t cell = 0; b->waits >> cell; cell++)
		if (b->waits >> cell & 1)
			answer(e, rank, cell, e->state.r.commit_window, st);
	b->waits = 0;
}

void boxes_end_waits(struct engine *e)
{
	struct boxes *b = &e->boxes;
	bool later;
	enum status st = judge(&e->state.r, e->state.r.commit_window, &later);
	for (uint32_t i = 0; i < b->n_listed[LIST_WAIT]; i++) {
		end_waits_of(e, b->list[LIST_WAIT][i], st);
		b->rank[b->list[LIST_WAIT][i]].listed[LIST_WAIT] = false;
	}
	b->n_listed[LIST_WAIT] = 0;
	engine_ring(e);
}
