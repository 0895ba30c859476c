/* What has happened in a job: windows, events, norms. */
#include <stdlib.h>
#include <string.h>

#include "gacc/v1/job.pb-c.h"
#include "lib/admin.h"
#include "lib/answer.h"
#include "lib/channel.h"
#include "lib/internal.h"
#include "lib/job_info.h"
#include "lib/json.h"

#define JOBS (&gacc__v1__job_service__descriptor)

/* --- windows */

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

static void fill_micro(gacc_micro_info *out, const Gacc__V1__MicroBatch *m)
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
	};
}

/* A list that grows by one message of the stream after the other. */
struct windows {
	gacc_history *history;
	gacc_window_info *item;
	size_t room;
};

static bool make_room(struct windows *w)
{
	size_t room = w->room ? 2 * w->room : 32;
	gacc_window_info *item;

	if (w->history->n < w->room)
		return true;
	item = realloc(w->item, room * sizeof(*item));
	if (!item)
		return false;
	w->item = item;
	w->room = room;
	return true;
}

/* The stream owns what it gives out. */
static enum status add_window(struct windows *w, const ProtobufCMessage *msg)
{
	const Gacc__V1__HistoryResponse *r = (Gacc__V1__HistoryResponse *)message_copy(msg);
	gacc_window_info *out;
	gacc_micro_info *micro;

	if (!r || !answer_keep(w->history, (ProtobufCMessage *)(uintptr_t)&r->base) || !make_room(w))
		return ST_NO_MEMORY;
	if (!r->result)
		return ST_MALFORMED;
	out = &w->item[w->history->n];
	fill_window(out, r->result);
	micro = answer_items(w->history, r->n_micros, sizeof(*micro));
	out->json = answer_json(w->history, &r->base);
	if (!micro || !out->json)
		return ST_NO_MEMORY;
	for (size_t i = 0; i < r->n_micros; i++)
		fill_micro(&micro[i], r->micros[i]);
	out->micro = micro;
	out->n_micro = r->n_micros;
	out->short_rank = r->short_ranks;
	out->n_short = r->n_short_ranks;
	w->history->n++;
	return ST_OK;
}

static enum status read_windows(struct gacc_client *client, const ProtobufCMessage *request, struct windows *w,
				struct rpc_failure *rpc)
{
	const ProtobufCMessage *msg;
	struct rpc_stream *stream;
	enum status st, added = ST_OK;

	st = rpc_stream_open(client->channel, JOBS, "History", client->admin_timeout_ms, 0, &stream);
	if (st)
		return st;
	(void)rpc_stream_send(stream, request);
	(void)rpc_stream_close_send(stream);
	while (!added && !rpc_stream_next(stream, -1, &msg, NULL) && msg)
		added = add_window(w, msg);
	if (added)
		rpc_stream_cancel(stream);
	st = rpc_stream_finish(stream, rpc);
	rpc_stream_free(stream);
	if (added)
		*rpc = (struct rpc_failure){ .status = added };
	return added ? added : st;
}

/* Hands the list over to the history that it belongs to. */
static bool keep_windows(struct windows *w)
{
	gacc_window_info *all = answer_items(w->history, w->history->n, sizeof(*all));

	if (all && w->history->n)
		memcpy(all, w->item, w->history->n * sizeof(*all));
	w->history->window = all;
	return all != NULL;
}

gacc_status gacc_job_history(gacc_client *client, const char *job, uint64_t before_window, uint32_t limit, int micros,
			     gacc_history **out)
{
	Gacc__V1__HistoryRequest request = GACC__V1__HISTORY_REQUEST__INIT;
	struct windows w = { .history = answer_new(sizeof(*w.history)) };
	struct rpc_failure rpc = { 0 };
	enum status st;

	if (!w.history)
		return admin_no_memory(client);
	request.job = unconst(job);
	request.before_window = before_window;
	request.limit = limit;
	request.micros = micros != 0;
	st = read_windows(client, &request.base, &w, &rpc);
	if (!st && !keep_windows(&w))
		st = ST_NO_MEMORY;
	free(w.item);
	if (!st) {
		*out = w.history;
		return GACC_OK;
	}
	answer_free(w.history);
	return admin_rpc_failed(client, JOBS, "History", st, &rpc);
}

void gacc_history_free(gacc_history *history)
{
	answer_free(history);
}

/* --- events */

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

/* --- norms */

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
