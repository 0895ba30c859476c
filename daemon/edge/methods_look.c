/* SPDX-License-Identifier: Apache-2.0 */
/* Methods that only look: the history, events and the configuration. Called by the RPC server. Loop
 * thread; the history's pages and events are read on a pool thread. */
#include "edge/methods.h"

#include "edge/caller.h"
#include "edge/convert.h"
#include "edge/hosted_scalars.h"
#include "edge/hosted_view.h"
#include "gacc/v1/job.pb-c.h"
#include "gacc/v1/node.pb-c.h"

#include <stdlib.h>
#include <string.h>

static void unreadable(struct rpc_call *call)
{
	rpc_failf(call, ST_IO_ERROR, "the history cannot be read now: gaccd's log says why");
}

/* ---- History: pages are read on a pool thread and sent as fast as the client takes them ---- */

#define HISTORY_LIMIT 20
#define PAGE_BYTES (1u << 20) /* a page is full when it has so many; one window at least */
/* far below the 4 MiB that clients take; packed in a fraction of a millisecond */
#define MICROS_PER_MESSAGE 4096u
#define MICROS_ROOM (512u << 10)      /* what so many may need */
#define MICROS_PER_MESSAGE_SHORT 256u /* when room is short */

/* Where the ranks of a job are. The texts are the job's. */
struct where {
	Gacc__V1__Job *job;
	Gacc__V1__RankBlock *block, **list;
	size_t n;
};

static void where_free(struct where *w)
{
	if (w->job)
		gacc__v1__job__free_unpacked(w->job, NULL);
	free(w->block);
	free(w->list);
}

static void add_block(struct where *w, char *node, uint32_t first, uint32_t n)
{
	Gacc__V1__RankBlock *last = w->n ? w->list[w->n - 1] : NULL;
	if (!*node)
		return;
	if (last && !strcmp(last->node, node)) {
		last->n_ranks += n;
		return;
	}
	Gacc__V1__RankBlock *b = w->list[w->n] = &w->block[w->n];
	w->n++;
	gacc__v1__rank_block__init(b);
	b->node = node;
	b->first_rank = first;
	b->n_ranks = n;
}

/* As the job is shown, also after its end. false: no memory. */
static bool where_fill(const struct hosted *h, struct now now, struct where *w)
{
	const Gacc__V1__Job *j = w->job = hosted_view(h, 0, now);
	w->block = j ? calloc(j->n_parts + 1, sizeof(*w->block)) : NULL;
	w->list = j ? calloc(j->n_parts + 1, sizeof(Gacc__V1__RankBlock *)) : NULL;
	if (!w->block || !w->list)
		return false;
	for (size_t i = 0; i < j->n_parts; i++)
		add_block(w, j->parts[i]->node, j->parts[i]->first_rank, j->parts[i]->n_ranks);
	if (!j->n_parts && j->n_nodes && j->spec)
		add_block(w, j->nodes[0], 0, j->spec->ranks);
	return true;
}

/* "": not known. */
static char *where_is(const struct where *w, uint32_t rank)
{
	for (size_t i = 0; i < w->n; i++)
		if (rank >= w->block[i].first_rank && rank - w->block[i].first_rank < w->block[i].n_ranks)
			return w->block[i].node;
	return (char *)protobuf_c_empty_string;
}

struct page_window {
	struct page_window *next;
	Gacc__V1__HistoryResponse *response; /* without micro-batches */
	uint64_t n_micros, n_sent;
	struct history_micro micro[];
};

struct looking {
	struct recorder_read read;
	struct daemon *d;
	uint64_t call; /* 0: the client has left */
	uint64_t job, before, left;
	bool micros, whole;
	bool reading; /* the pool thread has it */
	bool over;    /* nothing is behind this page */
	enum status status;
	struct page_window *page, **page_tail;
	size_t page_bytes;
	struct where where;
};

static void page_pop(struct looking *q)
{
	struct page_window *w = q->page;
	q->page = w->next;
	if (!q->page)
		q->page_tail = &q->page;
	if (w->response)
		gacc__v1__history_response__free_unpacked(w->response, NULL);
	free(w);
}

static void looking_free(struct looking *q)
{
	while (q->page)
		page_pop(q);
	where_free(&q->where);
	free(q);
}

static enum status take_window(void *arg, const struct history_window *h)
{
	struct looking *q = arg;
	size_t n = sizeof(struct page_window) + h->n_micros * sizeof(*h->micro);
	struct page_window *w = malloc(n);
	if (!w)
		return ST_NO_MEMORY;
	*w = (struct page_window){ .n_micros = h->n_micros,
				   .response = gacc__v1__history_response__unpack(NULL, h->n_result, h->result) };
	if (h->n_micros)
		memcpy(w->micro, h->micro, h->n_micros * sizeof(*h->micro));
	*q->page_tail = w;
	q->page_tail = &w->next;
	q->page_bytes += n + h->n_result + h->n_scalars * sizeof(*h->scalar);
	q->left--;
	q->before = h->window;
	if (!w->response)
		return ST_MALFORMED;
	if (!scalars_message(h->scalar, h->n_scalars, &w->response->scalars, &w->response->n_scalars))
		return ST_NO_MEMORY;
	return q->page_bytes >= PAGE_BYTES ? ST_CANCELLED : ST_OK;
}

static void read_page(struct recorder_read *r, struct history *h)
{
	struct looking *q = (struct looking *)r;
	q->page_bytes = 0;
	q->status = q->whole ? history_each_of_whole(h, q->job, q->before, q->left, take_window, q)
			     : history_each_window(h, q->job, q->before, q->left, q->micros, take_window, q);
	q->over = q->status != ST_CANCELLED || !q->left || !q->before;
	if (q->status == ST_CANCELLED)
		q->status = ST_OK;
}

static void fill_micro(const struct history_micro *m, Gacc__V1__MicroBatch *out)
{
	gacc__v1__micro_batch__init(out);
	out->rank = m->rank;
	out->micro = m->micro;
	out->weight = m->weight;
	out->loss = m->loss;
	out->pushed_unix_nanos = m->unix_ns;
	out->lag_ns = m->lag_ns;
	out->rejected = m->voided;
	out->data_key = m->data_key;
}

/* With what is only lent to the message while it is packed. */
static enum status send_with(struct rpc_call *call, const struct where *where, Gacc__V1__HistoryResponse *r,
			     Gacc__V1__MicroBatch **micros, size_t n)
{
	Gacc__V1__HistoryResponse m = *r;
	m.micros = micros;
	m.n_micros = n;
	m.blocks = where->list;
	m.n_blocks = where->n;
	if (m.result)
		m.last_node = where_is(where, m.result->last_rank);
	return rpc_send(call, &m.base);
}

/* The window's next message. */
static enum status send_some(struct rpc_call *call, const struct where *where, struct page_window *w)
{
	uint64_t left = w->n_micros - w->n_sent;
	size_t n = rpc_room(call) < MICROS_ROOM ? MICROS_PER_MESSAGE_SHORT : MICROS_PER_MESSAGE;
	if (n > left)
		n = left;
	Gacc__V1__MicroBatch *m = calloc(n + 1, sizeof(*m)), **list = calloc(n + 1, sizeof(*list));
	enum status st = m && list ? ST_OK : ST_NO_MEMORY;
	for (size_t i = 0; i < n && !st; i++) {
		fill_micro(&w->micro[w->n_sent + i], &m[i]);
		list[i] = &m[i];
	}
	if (!st)
		st = send_with(call, where, w->response, list, n);
	if (!st)
		w->n_sent += n;
	free(list);
	free(m);
	return st;
}

static void page_read(struct recorder_read *r);

static void send_page(struct rpc_call *call)
{
	struct looking *q = rpc_data(call);
	if (!q || q->reading)
		return;
	while (q->page) {
		enum status st = send_some(call, &q->where, q->page);
		if (st == ST_NO_MEMORY)
			no_memory(call);
		if (st)
			return; /* too much is queued: on_writable goes on */
		if (q->page->n_sent == q->page->n_micros)
			page_pop(q);
	}
	if (q->over) {
		rpc_finish(call, NULL);
		return;
	}
	q->reading = true;
	recorder_read(q->d->recorder, &q->read);
}

static void page_read(struct recorder_read *r)
{
	struct looking *q = (struct looking *)r;
	struct rpc_call *call = q->call ? rpc_find(q->d->rpc, q->call) : NULL;
	q->reading = false;
	if (!q->call)
		looking_free(q);
	else if (call && q->status)
		unreadable(call);
	else if (call)
		send_page(call);
}

static void history_over(struct rpc_call *call, bool completed)
{
	struct looking *q = rpc_data(call);
	if (q && q->reading)
		q->call = 0; /* page_read frees it */
	else if (q)
		looking_free(q);
}

static void history(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__HistoryRequest *q = (const Gacc__V1__HistoryRequest *)m;
	struct hosted *h = named_job(call, q->job);
	if (!h)
		return;
	hosted_scalars_write(h); /* they are read with the rest */
	struct looking *look = malloc(sizeof(*look));
	if (!look) {
		no_memory(call);
		return;
	}
	*look = (struct looking){ .read = { .read = read_page, .done = page_read },
				  .d = h->d,
				  .call = rpc_id(call),
				  .job = h->id,
				  .before = q->before_window,
				  .left = q->limit ? q->limit : HISTORY_LIMIT,
				  .micros = q->micros };
	look->whole = q->whole;
	if (q->whole && !q->limit)
		look->left = HISTORY_WHOLE + 2; /* all there are */
	look->page_tail = &look->page;
	if (!where_fill(h, now_of(call), &look->where)) {
		looking_free(look);
		no_memory(call);
		return;
	}
	rpc_set_data(call, look);
	send_page(call);
}

/* ---- ListEvents ---- */

#define EVENTS_LIMIT 1000
#define EVENTS_MAX 5000 /* below the 4 MiB that clients take */

struct event_list {
	struct recorder_read read;
	struct daemon *d;
	uint64_t call;
	struct history_query query;
	enum status status;
	Gacc__V1__Event **event;
	size_t n;
};

static enum status take_event(void *arg, const struct history_event *e)
{
	struct event_list *q = arg;
	Gacc__V1__Event *o = convert_event(e);
	if (!o)
		return ST_NO_MEMORY;
	q->event[q->n++] = o;
	return ST_OK;
}

static void read_events(struct recorder_read *r, struct history *h)
{
	struct event_list *q = (struct event_list *)r;
	q->status = history_each_event(h, &q->query, take_event, q);
}

static void events_read(struct recorder_read *r)
{
	struct event_list *q = (struct event_list *)r;
	struct rpc_call *call = rpc_find(q->d->rpc, q->call);
	Gacc__V1__ListEventsResponse m = GACC__V1__LIST_EVENTS_RESPONSE__INIT;
	m.events = q->event;
	m.n_events = q->n;
	if (call && q->status)
		unreadable(call);
	else if (call)
		rpc_finish(call, &m.base);
	for (size_t i = 0; i < q->n; i++)
		gacc__v1__event__free_unpacked(q->event[i], NULL);
	free(q->event);
	free(q);
}

static void list_events(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__ListEventsRequest *q = (const Gacc__V1__ListEventsRequest *)m;
	uint32_t limit = q->limit == 0 ? EVENTS_LIMIT : q->limit < EVENTS_MAX ? q->limit : EVENTS_MAX;
	struct hosted *h = *q->job ? named_job(call, q->job) : NULL;
	if (*q->job && !h)
		return;
	struct event_list *list = malloc(sizeof(*list));
	Gacc__V1__Event **event = calloc(limit, sizeof(*event));
	if (!list || !event) {
		free(list);
		free(event);
		no_memory(call);
		return;
	}
	*list = (struct event_list){ .read = { .read = read_events, .done = events_read },
				     .d = daemon_of(call),
				     .call = rpc_id(call),
				     .event = event,
				     .query = { .of_job = h != NULL,
						.job = h ? h->id : 0,
						.of_user = caller_uid(call) != 0,
						.uid = caller_uid(call),
						.after_id = q->after_id,
						.limit = limit } };
	recorder_read(list->d->recorder, &list->read);
}

/* ---- GetConfig ---- */

static const char *source_of(const char *origin)
{
	return !strncmp(origin, "GACC_", 5) ? "environment" : !strcmp(origin, "--set") ? "command line" : origin;
}

static bool add_value(void *arg, const char *key, const char *value, const char *origin)
{
	Gacc__V1__GetConfigResponse *r = arg;
	Gacc__V1__ConfigValue **list = realloc(r->values, (r->n_values + 1) * sizeof(*list));
	Gacc__V1__ConfigValue *v = malloc(sizeof(*v));
	if (list)
		r->values = list;
	if (!list || !v) {
		free(v);
		return false;
	}
	gacc__v1__config_value__init(v);
	list[r->n_values++] = v;
	v->key = strdup(key);
	v->value = strdup(value);
	v->source = strdup(source_of(origin));
	return v->key && v->value && v->source;
}

static void get_config(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	Gacc__V1__GetConfigResponse *r = malloc(sizeof(*r));
	if (!r) {
		no_memory(call);
		return;
	}
	gacc__v1__get_config_response__init(r);
	if (conf_each(daemon_of(call)->node.conf, add_value, r))
		rpc_finish(call, &r->base);
	else
		no_memory(call);
	gacc__v1__get_config_response__free_unpacked(r, NULL);
}

#define JOB_SERVICE &gacc__v1__job_service__descriptor
#define NODE_SERVICE &gacc__v1__node_service__descriptor

const struct rpc_method look_methods[] = {
	{ .service = JOB_SERVICE,
	  .name = "History",
	  .kind = RPC_SERVER_STREAM,
	  .flags = RPC_RELAY,
	  .on_message = history,
	  .on_writable = send_page,
	  .on_end = history_over },
	{ .service = JOB_SERVICE,
	  .name = "ListEvents",
	  .kind = RPC_UNARY,
	  .flags = RPC_RELAY,
	  .on_message = list_events },
	{ .service = NODE_SERVICE, .name = "GetConfig", .kind = RPC_UNARY, .on_message = get_config },
};
const size_t n_look_methods = sizeof(look_methods) / sizeof(*look_methods);
