/* SPDX-License-Identifier: Apache-2.0 */
/* gacc_admin.h's calls on the past of a job: windows, events, norms. For gaccctl and other tools of operators; any
 * thread, blocking. */
#include "gacc/v1/job.pb-c.h"
#include "lib/admin.h"
#include "lib/answer.h"
#include "lib/channel.h"
#include "lib/internal.h"
#include "lib/job_info.h"
#include "lib/json.h"

#include <stdlib.h>
#include <string.h>

#define JOBS (&gacc__v1__job_service__descriptor)

/* ---- windows ---- */

static void fill_window(gacc_window_info *out, const Gacc__V1__StepResult *s)
{
	*out = (gacc_window_info){
		.window = s->window,
		.applied_step = s->applied_step,
		.outcome = enum_short_name(&gacc__v1__step_outcome__descriptor, (int)s->outcome),
		.skip_reason = enum_short_name(&gacc__v1__skip_reason__descriptor, (int)s->skip_reason),
		.total_weight = s->total_weight,
		.divisor = s->divisor,
		.micro_count = s->micro_count,
		.grad_norm = s->grad_norm,
		.lr = s->lr,
		.mean_loss = s->mean_loss,
		.loss_scale = s->loss_scale,
		.last_rank = s->last_rank,
		.last_lag_ns = s->last_lag_ns,
		.closed_unix_nanos = s->closed_unix_nanos,
	};
}

/* The node of a rank; "": not known. */
static const char *node_of(const Gacc__V1__HistoryResponse *r, uint32_t rank)
{
	for (size_t i = 0; i < r->n_blocks; i++)
		if (rank >= r->blocks[i]->first_rank && rank - r->blocks[i]->first_rank < r->blocks[i]->n_ranks)
			return r->blocks[i]->node;
	return "";
}

static void fill_micro(gacc_micro_info *out, const Gacc__V1__MicroBatch *m, const char *node)
{
	*out = (gacc_micro_info){
		.rank = m->rank,
		.micro = m->micro,
		.weight = m->weight,
		.loss = m->loss,
		.pushed_unix_nanos = m->pushed_unix_nanos,
		.lag_ns = m->lag_ns,
		.rejected = m->rejected,
		.data_key = m->data_key,
		.node = node,
	};
}

/* What the stream has brought: one message for each window, whole. */
struct windows {
	gacc_history *history; /* keeps them */
	Gacc__V1__HistoryResponse **msg;
	size_t n, room;
};

static bool make_room(struct windows *w)
{
	size_t room = w->room ? 2 * w->room : 32;
	Gacc__V1__HistoryResponse **msg;

	if (w->n < w->room)
		return true;
	msg = realloc(w->msg, room * sizeof(*msg));
	if (!msg)
		return false;
	w->msg = msg;
	w->room = room;
	return true;
}

/* Moves the micro-batches of a message that goes on with a window to the end of those that it has. */
static bool join(Gacc__V1__HistoryResponse *window, Gacc__V1__HistoryResponse *more)
{
	size_t n = window->n_micros + more->n_micros;
	Gacc__V1__MicroBatch **micros = realloc(window->micros, (n + 1) * sizeof(*micros));

	if (!micros)
		return false;
	memcpy(micros + window->n_micros, more->micros, more->n_micros * sizeof(*micros));
	window->micros = micros;
	window->n_micros = n;
	more->n_micros = 0;
	return true;
}

/* Takes the message. */
static enum status take_window(struct windows *w, Gacc__V1__HistoryResponse *r)
{
	Gacc__V1__HistoryResponse *last = w->n ? w->msg[w->n - 1] : NULL;
	bool ok;

	if (r->result && last && last->result->window == r->result->window) {
		ok = join(last, r);
		gacc__v1__history_response__free_unpacked(r, NULL);
		return ok ? ST_OK : ST_NO_MEMORY;
	}
	if (!answer_keep(w->history, &r->base) || !make_room(w))
		return ST_NO_MEMORY;
	if (!r->result)
		return ST_MALFORMED;
	w->msg[w->n++] = r;
	return ST_OK;
}

/* The stream owns what it gives out. */
static enum status add_window(struct windows *w, const ProtobufCMessage *msg)
{
	ProtobufCMessage *copy = bytes_clone(msg);

	return copy ? take_window(w, (Gacc__V1__HistoryResponse *)copy) : ST_NO_MEMORY;
}

static enum status take_windows(struct rpc_stream *stream, struct windows *w)
{
	const ProtobufCMessage *msg;
	enum status st;

	do {
		st = rpc_stream_next(stream, -1, &msg, NULL);
		if (st || !msg)
			return st;
		st = add_window(w, msg);
	} while (!st);
	rpc_stream_cancel(stream);
	return st;
}

static enum status read_windows(struct gacc_client *client, const ProtobufCMessage *request, struct windows *w,
				struct rpc_failure *rpc)
{
	struct rpc_stream *stream;
	enum status st, taken;

	st = rpc_stream_open(client->channel, JOBS, "History", client->admin_timeout_ms, 0, &stream);
	if (st)
		return st;
	(void)rpc_stream_send(stream, request);
	(void)rpc_stream_close_send(stream);
	taken = take_windows(stream, w);
	st = rpc_stream_finish(stream, rpc);
	rpc_stream_free(stream);
	if (taken)
		*rpc = (struct rpc_failure){ .status = taken };
	return taken ? taken : st;
}

static bool fill_history_window(gacc_history *history, gacc_window_info *out, const Gacc__V1__HistoryResponse *r)
{
	gacc_micro_info *micro = answer_items(history, r->n_micros, sizeof(*micro));
	const char **node = answer_items(history, r->n_short_ranks, sizeof(*node));

	fill_window(out, r->result);
	out->json = answer_json(history, &r->base);
	for (size_t i = 0; micro && i < r->n_micros; i++)
		fill_micro(&micro[i], r->micros[i], node_of(r, r->micros[i]->rank));
	for (size_t i = 0; node && i < r->n_short_ranks; i++)
		node[i] = node_of(r, r->short_ranks[i]);
	out->scalar = scalars_logged(history, r->scalars, r->n_scalars);
	out->n_scalar = r->n_scalars;
	out->micro = micro;
	out->n_micro = r->n_micros;
	out->short_rank = r->short_ranks;
	out->n_short = r->n_short_ranks;
	out->last_node = r->last_node;
	out->short_node = node;
	return micro && node && out->json && out->scalar;
}

static bool fill_history(struct windows *w)
{
	gacc_window_info *item = answer_items(w->history, w->n, sizeof(*item));

	for (size_t i = 0; item && i < w->n; i++)
		if (!fill_history_window(w->history, &item[i], w->msg[i]))
			return false;
	*w->history = (gacc_history){ w->n, item };
	return item != NULL;
}

static gacc_status get_history(gacc_client *client, const Gacc__V1__HistoryRequest *request, gacc_history **out)
{
	struct windows w = { .history = answer_new(sizeof(*w.history)) };
	struct rpc_failure rpc = { 0 };
	enum status st;

	if (!w.history)
		return admin_no_memory(client);
	st = read_windows(client, &request->base, &w, &rpc);
	if (!st && !fill_history(&w))
		st = ST_NO_MEMORY;
	free(w.msg);
	if (!st) {
		*out = w.history;
		return GACC_OK;
	}
	answer_free(w.history);
	return admin_rpc_failed(client, JOBS, "History", st, &rpc);
}

gacc_status gacc_job_history(gacc_client *client, const char *job, uint64_t before_window, uint32_t limit, int micros,
			     gacc_history **out)
{
	Gacc__V1__HistoryRequest request = GACC__V1__HISTORY_REQUEST__INIT;

	request.job = unconst(job);
	request.before_window = before_window;
	request.limit = limit;
	request.micros = micros != 0;
	return get_history(client, &request, out);
}

gacc_status gacc_job_history_whole(gacc_client *client, const char *job, gacc_history **out)
{
	Gacc__V1__HistoryRequest request = GACC__V1__HISTORY_REQUEST__INIT;

	request.job = unconst(job);
	request.whole = true;
	return get_history(client, &request, out);
}

void gacc_history_free(gacc_history *history)
{
	answer_free(history);
}

/* ---- events ---- */

static bool fill_events(void *public, const ProtobufCMessage *reply)
{
	const Gacc__V1__ListEventsResponse *r = (const Gacc__V1__ListEventsResponse *)reply;
	gacc_job_event *item = answer_items(public, r->n_events, sizeof(*item));

	for (size_t i = 0; item && i < r->n_events; i++) {
		event_fill(&item[i], r->events[i]);
		item[i].json = answer_json(public, &r->events[i]->base);
		if (!item[i].json)
			return false;
	}
	*(gacc_events *)public = (gacc_events){ r->n_events, item };
	return item != NULL;
}

gacc_status gacc_job_events(gacc_client *client, const char *job, uint64_t after_id, uint32_t limit, gacc_events **out)
{
	Gacc__V1__ListEventsRequest request = GACC__V1__LIST_EVENTS_REQUEST__INIT;
	gacc_status st;
	void *answer;

	request.job = unconst(job);
	request.after_id = after_id;
	request.limit = limit;
	st = admin_answer(client, JOBS, "ListEvents", &request.base, sizeof(**out), fill_events, &answer);
	if (!st)
		*out = answer;
	return st;
}

void gacc_events_free(gacc_events *events)
{
	answer_free(events);
}

/* ---- norms ---- */

static bool fill_norms(void *public, const ProtobufCMessage *reply)
{
	const Gacc__V1__TensorNormsResponse *r = (const Gacc__V1__TensorNormsResponse *)reply;
	gacc_tensor_norm *item = answer_items(public, r->n_norms, sizeof(*item));
	gacc_norms *out = public;

	out->json = answer_json(public, reply);
	if (!item || !out->json)
		return false;
	for (size_t i = 0; i < r->n_norms; i++)
		item[i] = (gacc_tensor_norm){ r->norms[i]->name, r->norms[i]->grad_norm, r->norms[i]->param_norm };
	out->window = r->window;
	out->n = r->n_norms;
	out->norm = item;
	return true;
}

gacc_status gacc_job_norms(gacc_client *client, const char *job, gacc_norms **out)
{
	Gacc__V1__TensorNormsRequest request = GACC__V1__TENSOR_NORMS_REQUEST__INIT;
	gacc_status st;
	void *answer;

	request.job = unconst(job);
	st = admin_answer(client, JOBS, "TensorNorms", &request.base, sizeof(**out), fill_norms, &answer);
	if (!st)
		*out = answer;
	return st;
}

void gacc_norms_free(gacc_norms *norms)
{
	answer_free(norms);
}
