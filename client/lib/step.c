/* SPDX-License-Identifier: Apache-2.0 */
/* Follows where this rank stands in the job: gacc_ready, gacc_next, gacc_flush, gacc_wait, and whether the job is
 * done. The job's thread. */
#include "lib/internal.h"

#include "lib/channel.h"
#include "gacc/v1/gradient.pb-c.h"
#include "proto/failpoint.h"

#include <inttypes.h>
#include <stdio.h>

/* gacc_outcome is a copy of gacc.v1.StepOutcome. */
_Static_assert((int)GACC_STEP_APPLIED == (int)GACC__V1__STEP_OUTCOME__STEP_OUTCOME_APPLIED, "as in common.proto");
_Static_assert((int)GACC_STEP_SKIPPED == (int)GACC__V1__STEP_OUTCOME__STEP_OUTCOME_SKIPPED, "as in common.proto");
_Static_assert((int)GACC_STEP_EMPTY == (int)GACC__V1__STEP_OUTCOME__STEP_OUTCOME_EMPTY, "as in common.proto");
_Static_assert((int)GACC_STEP_DROPPED == (int)GACC__V1__STEP_OUTCOME__STEP_OUTCOME_DROPPED, "as in common.proto");

static gacc_status running(struct gacc_job *job)
{
	gacc_status st = job_enter(job);

	if (!st && !job->running)
		return job_fail(job, ST_NOT_READY, "call gacc_ready", "the job has not started here");
	return st;
}

static void fill_position(const struct gacc_job *job, gacc_position *out)
{
	const struct window *w = &job->window;
	uint32_t micro = 0;
	bool last = false;

	window_next(w, &micro, &last);
	*out = (gacc_position){ .window = w->number,
				.applied_step = w->applied_step,
				.micro = micro,
				.micro_size = w->micro_size,
				.last_in_window = last,
				.loss_scale = w->loss_scale };
}

/* Without shared memory: gets what the step has changed. */
static gacc_status fetch(struct gacc_job *job, bool reduced)
{
	return session_run(job, reduced ? "fetch the reduced gradients" : "fetch the parameters", -1, inline_fetch,
			   &reduced);
}

static gacc_status take_ready(struct gacc_job *job, const Gacc__V1__WaitReadyResponse *r)
{
	enum status st = position_adopt(job, r);

	if (st)
		return job_fail(job, st, NULL, "gaccd's answer to WaitReady: %s", status_info(st)->text);
	job->pending_apply = r->pending_apply && job->client_optimizer && r->window > 0;
	job->pending_window = r->window - 1; /* from a gaccd that does not say which */
	if (r->pending_case == GACC__V1__WAIT_READY_RESPONSE__PENDING_PENDING_WINDOW)
		job->pending_window = r->pending_window;
	job->running = true;
	if (job->memory.inlined && !job->client_optimizer)
		return fetch(job, false);
	return GACC_OK;
}

gacc_status gacc_ready(gacc_job *job, int timeout_ms, gacc_position *out)
{
	Gacc__V1__WaitReadyRequest request = GACC__V1__WAIT_READY_REQUEST__INIT;
	struct unary call = { .method = "WaitReady", .request = &request.base, .wire_timeout_ms = &request.timeout_ms };
	gacc_status st = job_enter(job);

	if (st)
		return st;
	if (!job->registered)
		return job_fail(job, ST_NOT_READY, "call gacc_register", "no tensors are registered");
	if (!job->running) {
		request.session = job->session;
		st = session_run(job, "wait for the job to start", timeout_ms, session_unary, &call);
		if (st)
			return st;
		st = take_ready(job, (Gacc__V1__WaitReadyResponse *)call.reply);
		bytes_free(call.reply);
	}
	if (!st && out)
		fill_position(job, out);
	return st;
}

gacc_status gacc_next(gacc_job *job, gacc_position *out)
{
	uint32_t micro;
	gacc_status st = running(job);
	bool last;

	if (st)
		return st;
	if (!out)
		return job_fail(job, ST_INVALID_ARGUMENT, NULL, "gacc_next without a place for the position");
	if (job->window.done) {
		job_fail(job, ST_JOB_ENDED, NULL, "the job has completed");
		return GACC_EDONE;
	}
	if (job->pending_apply || !window_next(&job->window, &micro, &last)) {
		job_fail(job, ST_WINDOW_FULL, "call gacc_wait", "nothing is left to push in window %" PRIu64,
			 job->window.number);
		return GACC_EAGAIN;
	}
	fill_position(job, out);
	return GACC_OK;
}

gacc_status gacc_flush(gacc_job *job)
{
	Gacc__V1__FlushRequest request = GACC__V1__FLUSH_REQUEST__INIT;
	struct unary call = { .method = "Flush", .request = &request.base };
	gacc_status st = running(job);

	if (!st)
		st = async_settle(job);
	if (st)
		return st;
	request.session = job->session;
	request.window = job->window.number;
	st = session_run(job, "flush", -1, session_unary, &call);
	if (!st)
		bytes_free(call.reply);
	else if (!failure_is_late(&job->failure) && job->failure.st != ST_FLUSHED)
		return st;
	window_give_up(&job->window); /* flushed now or before, or closed: nothing is owed */
	return GACC_OK;
}

static void fill_step(const Gacc__V1__WaitStepResponse *r, gacc_step *out)
{
	const Gacc__V1__StepResult *s = r->result;

	*out = (gacc_step){
		.window = s->window,
		.applied_step = s->applied_step,
		.outcome = (gacc_outcome)s->outcome,
		.total_weight = s->total_weight,
		.divisor = s->divisor,
		.micro_count = s->micro_count,
		.grad_norm = s->grad_norm,
		.lr = s->lr,
		.mean_loss = s->mean_loss,
		.last_rank = s->last_rank,
		.last_lag_ns = s->last_lag_ns,
		.params_digest = s->params_digest,
		.job_done = r->job_done,
	};
}

/* What the step brought becomes readable: mapped already, or to be fetched. */
static gacc_status fetch_result(struct gacc_job *job, const Gacc__V1__WaitStepResponse *r, gacc_step *step)
{
	gacc_status st = GACC_OK;
	uint32_t half = job->memory.inlined ? 0 : r->accum_half;

	if (step->outcome != GACC_STEP_APPLIED)
		return GACC_OK;
	if (job->memory.inlined)
		st = fetch(job, job->client_optimizer);
	if (!st && job->client_optimizer) {
		if (half > 1)
			return job_fail(job, ST_MALFORMED, NULL, "gaccd names half %u of two", half);
		step->reduced = mapping_data(&job->memory.reduced[half]);
	}
	return st;
}

static gacc_status open_next(struct gacc_job *job, const Gacc__V1__WaitStepResponse *r)
{
	enum status st;

	if (job->pending_apply) {
		job->pending_apply = false; /* gacc_ready has opened the window after it */
		return GACC_OK;
	}
	st = window_begin(&job->window, job->window.number + 1, r->result->applied_step, r->micro_size,
			  r->result->next_loss_scale);
	if (st)
		return job_fail(job, st, NULL, "no memory for %u micro-batches", r->micro_size);
	job->window.done = r->job_done;
	return GACC_OK;
}

static gacc_status take_step(struct gacc_job *job, const Gacc__V1__WaitStepResponse *r, gacc_step *out)
{
	gacc_step step;
	gacc_status st;

	if (!r->result)
		return job_fail(job, ST_MALFORMED, NULL, "gaccd's answer to WaitStep has no result");
	fill_step(r, &step);
	st = fetch_result(job, r, &step);
	if (!st)
		st = open_next(job, r);
	FAILPOINT(client_step_taken);
	if (!st && out)
		*out = step;
	return st;
}

/* ---- waiting ---- */

/* The step block as WaitStep says it, without the words. */
static void step_to_wire(const struct gacc_box_step *s, Gacc__V1__StepResult *result, Gacc__V1__WaitStepResponse *out)
{
	gacc__v1__step_result__init(result);
	result->window = s->window;
	result->applied_step = s->applied_step;
	result->outcome = (Gacc__V1__StepOutcome)s->outcome;
	result->skip_reason = (Gacc__V1__SkipReason)s->skip_reason;
	result->total_weight = s->total_weight;
	result->divisor = s->divisor;
	result->micro_count = s->micro_count;
	result->grad_norm = s->grad_norm;
	result->lr = s->lr;
	result->mean_loss = s->mean_loss;
	result->last_rank = s->last_rank;
	result->last_lag_ns = s->last_lag_ns;
	result->params_digest = s->params_digest;
	result->next_loss_scale = s->next_loss_scale;
	gacc__v1__wait_step_response__init(out);
	out->result = result;
	out->micro_size = s->next_micro_size;
	out->accum_half = s->half;
	out->job_done = s->final;
}

/* Through the mailbox. False: by RPC, in the time that is left. */
static bool wait_without_rpc(struct gacc_job *job, uint64_t window, int *timeout_ms, gacc_step *out, gacc_status *st)
{
	struct gacc_box_step block;
	Gacc__V1__StepResult result;
	Gacc__V1__WaitStepResponse answer;
	int64_t start = now_ms(), left;

	if (posted_wait(job, window, *timeout_ms, &block)) {
		step_to_wire(&block, &result, &answer);
		*st = take_step(job, &answer, out);
		return true;
	}
	left = *timeout_ms - (now_ms() - start);
	if (*timeout_ms > 0)
		*timeout_ms = left > 0 ? (int)left : 0;
	return false;
}

/* A wait that only this rank itself could end. */
static gacc_status check_owed(struct gacc_job *job)
{
	uint32_t micro;
	bool last;

	if (job->pending_apply || !window_next(&job->window, &micro, &last))
		return GACC_OK;
	return job_fail(job, ST_NOT_READY, "push them, or call gacc_flush",
			"gacc_wait would wait for this rank itself: it owes %zu micro-batches of window %" PRIu64
			", the first is %u",
			job->window.n_missing - job->window.at, job->window.number, micro);
}

/* Of queued pushes, in the time of the call, of which *timeout_ms becomes what is left. */
static gacc_status settle_within(struct gacc_job *job, int *timeout_ms)
{
	gacc_status st;

	if (*timeout_ms < 0)
		return async_settle(job);
	job->settle_by = now_ms() + *timeout_ms;
	st = async_settle(job);
	*timeout_ms = settle_left(job) > 0 ? (int)settle_left(job) : 0;
	job->settle_by = 0;
	return st;
}

gacc_status gacc_wait(gacc_job *job, int timeout_ms, gacc_step *out)
{
	Gacc__V1__WaitStepRequest request = GACC__V1__WAIT_STEP_REQUEST__INIT;
	struct unary call = { .method = "WaitStep", .request = &request.base, .wire_timeout_ms = &request.timeout_ms };
	char what[64];
	gacc_status st = running(job);

	if (!st)
		st = settle_within(job, &timeout_ms);
	if (!st)
		st = check_owed(job);
	if (st)
		return st;
	if (job->window.done)
		return GACC_EDONE;
	request.session = job->session;
	request.window = job->pending_apply ? job->pending_window : job->window.number;
	/* what an older window has left for gacc_done only gaccd knows */
	if (!job->pending_apply && wait_without_rpc(job, request.window, &timeout_ms, out, &st))
		return st;
	snprintf(what, sizeof(what), "wait for window %" PRIu64, request.window);
	st = session_run(job, what, timeout_ms, session_unary, &call);
	if (st)
		return st;
	st = take_step(job, (Gacc__V1__WaitStepResponse *)call.reply, out);
	bytes_free(call.reply);
	return st;
}

gacc_status gacc_done(gacc_job *job, uint64_t window)
{
	Gacc__V1__AckStepRequest request = GACC__V1__ACK_STEP_REQUEST__INIT;
	struct unary call = { .method = "AckStep", .request = &request.base };
	gacc_status st = running(job);

	if (st || !job->client_optimizer)
		return st;
	FAILPOINT(client_apply_ack_before);
	request.session = job->session;
	request.window = window;
	st = session_run(job, "acknowledge a step", -1, session_unary, &call);
	if (!st)
		bytes_free(call.reply);
	return st;
}
