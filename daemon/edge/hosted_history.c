/* SPDX-License-Identifier: Apache-2.0 */
/* Hands a job's events, and its windows with their micro-batches, to the recorder, for History and ListEvents later.
 * Called by the coordinator's ports and by all of edge that reports an event. Loop thread. */
#include "edge/hosted.h"

#include "base/log.h"
#include "cluster/event_message.h"
#include "edge/convert.h"
#include "gacc/v1/job.pb-c.h"
#include "proto/bytes.h"
#include "proto/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- events ---- */

static struct history_event event_of(const struct hosted *h, const struct event *e)
{
	return (struct history_event){ .id = e->id,
				       .job = h->id,
				       .uid = h->uid,
				       .unix_ns = e->unix_ns,
				       .warning = e->warning,
				       .reason = e->reason,
				       .object = e->object,
				       .message = e->message,
				       .window = e->window };
}

static void add_event(struct hosted *h, uint64_t window, bool warning, const char *reason, int64_t rank,
		      const char *text)
{
	struct event what = {
		.id = daemon_event_id(h->d), .unix_ns = daemon_now(h->d).unix_ns, .warning = warning, .window = window
	};
	char object[32] = "job";
	if (rank >= 0)
		snprintf(object, sizeof(object), "rank %lld", (long long)rank);
	const struct event *e = events_add(&h->events, &what, reason, object, text);
	struct log_fields f = { h->id, rank, e->window, reason };
	log_line(warning ? LOG_WARN : LOG_INFO, f, "%s", text);
	struct history_event row = event_of(h, e);
	recorder_put_event(h->d->recorder, &row);
	h->changed = true;
}

void hosted_event(struct hosted *h, bool warning, const char *reason, int64_t rank, const char *text)
{
	add_event(h, h->coord ? hosted_window(h) : 0, warning, reason, rank, text);
}

void hosted_part_event(struct hosted *h, const struct part_event *e)
{
	char text[sizeof(e->text) + 16];
	hosted_part_text(h, e->part, e->text, text, sizeof(text));
	add_event(h, e->window, e->warning, e->reason, e->rank, text);
}

struct history_event hosted_history_event(const struct hosted *h, uint64_t i)
{
	return event_of(h, events_at(&h->events, i));
}

bool hosted_add_events(const struct hosted *h, Gacc__V1__Job *j)
{
	const struct events *all = &h->events;
	uint64_t first = events_first(all);
	j->events = calloc(all->n - first + 1, sizeof(*j->events));
	if (!j->events)
		return false;
	for (uint64_t i = first; i < all->n; i++) {
		struct history_event e = hosted_history_event(h, i);
		Gacc__V1__Event *o = convert_event(&e);
		if (!o)
			return false;
		j->events[j->n_events++] = o;
	}
	return true;
}

static enum status load_event(void *arg, const struct history_event *row)
{
	struct hosted *h = arg;
	struct event what = { .id = row->id, .unix_ns = row->unix_ns, .warning = row->warning, .window = row->window };
	events_add(&h->events, &what, row->reason, row->object, row->message);
	return ST_OK;
}

void hosted_history_load(struct hosted *h)
{
	history_last_events(h->d->history, h->id, HOSTED_EVENTS, load_event, h); /* none, if it fails */
}

int64_t hosted_history_when(const struct hosted *h, const char *reason)
{
	return events_when(&h->events, reason);
}

/* ---- windows ---- */

/* A window that is decided. Its micro-batches come with its ledger. */
struct hosted_window {
	uint64_t window;
	bool durable;
	bool restored;	      /* from the journal: the history may have it, and then knows more */
	struct commit commit; /* of a restored one */
	struct history_micro *micro;
	uint64_t n_micros;
	uint32_t *short_ranks;
	size_t n_short;
};

static void window_free(struct hosted_window *w)
{
	if (!w)
		return;
	free(w->micro);
	free(w->short_ranks);
	free(w);
}

/* How long after the first push of its index each one came. */
static bool find_lags(struct hosted_window *w, uint32_t max_micro_size)
{
	int64_t *first = calloc(max_micro_size, sizeof(*first));
	if (!first)
		return false;
	for (uint64_t i = 0; i < w->n_micros; i++) {
		const struct history_micro *m = &w->micro[i];
		if (!first[m->micro] || m->unix_ns < first[m->micro])
			first[m->micro] = m->unix_ns;
	}
	for (uint64_t i = 0; i < w->n_micros; i++)
		w->micro[i].lag_ns = w->micro[i].unix_ns - first[w->micro[i].micro];
	free(first);
	return true;
}

static bool find_short(struct hosted_window *w, uint32_t ranks, uint32_t micro_size)
{
	uint32_t *gave = calloc(ranks, sizeof(*gave)); /* then the short ones, from its start on */
	if (!gave)
		return false;
	for (uint64_t i = 0; i < w->n_micros; i++)
		gave[w->micro[i].rank]++;
	for (uint32_t r = 0; r < ranks; r++)
		if (gave[r] < micro_size)
			gave[w->n_short++] = r;
	w->short_ranks = gave;
	return true;
}

/* Whether the ledgers of all parts have come, and all of each. */
static bool is_whole(const struct hosted *h, uint64_t window)
{
	uint32_t i = 0;
	while (i < h->n_parts && h->part[i].ledger.micro && h->part[i].ledger.window == window &&
	       h->part[i].ledger.n == h->part[i].ledger.total)
		i++;
	return i == h->n_parts;
}

/* Those of all parts, in the order of the parts. false: no memory. */
static bool join_ledgers(struct hosted *h, struct hosted_window *w)
{
	struct hosted_ledger *first = &h->part[0].ledger;
	uint64_t total = 0;
	for (uint32_t i = 0; i < h->n_parts; i++)
		total += h->part[i].ledger.n;
	w->micro = h->n_parts > 1 ? realloc(first->micro, (total + 1) * sizeof(*w->micro)) : first->micro;
	if (!w->micro)
		return false;
	w->n_micros = first->n;
	first->micro = NULL;
	for (uint32_t i = 1; i < h->n_parts; i++) {
		struct hosted_ledger *l = &h->part[i].ledger;
		memcpy(w->micro + w->n_micros, l->micro, l->n * sizeof(*l->micro));
		w->n_micros += l->n;
		free(l->micro);
		l->micro = NULL;
	}
	return true;
}

/* One that has not come, or not all of it, leaves the window without its micro-batches. false: no memory. */
static bool take_ledgers(struct hosted *h, const struct commit *k, struct hosted_window *w)
{
	if (w->restored || !is_whole(h, k->window))
		return true;
	return join_ledgers(h, w) && find_lags(w, h->spec->max_micro_size) &&
	       find_short(w, h->spec->ranks, k->micro_size);
}

void hosted_history_decided(struct hosted *h, const struct commit *k)
{
	window_free(h->deciding);
	h->deciding = calloc(1, sizeof(*h->deciding));
	if (h->deciding)
		h->deciding->window = k->window;
}

void hosted_history_durable(struct hosted *h, uint64_t window)
{
	if (h->deciding && h->deciding->window == window)
		h->deciding->durable = true;
}

/* Takes w. */
static void put_window(struct hosted *h, const struct commit *k, struct hosted_window *w)
{
	Gacc__V1__HistoryResponse m = GACC__V1__HISTORY_RESPONSE__INIT;
	Gacc__V1__StepResult step = GACC__V1__STEP_RESULT__INIT;
	convert_step(k, &step);
	m.result = &step;
	m.n_short_ranks = w->n_short;
	m.short_ranks = w->short_ranks;
	size_t n;
	void *bytes = bytes_pack(&m.base, &n);
	if (bytes) {
		struct history_window row = { .job = h->id,
					      .window = k->window,
					      .unix_ns = k->unix_nanos,
					      .result = bytes,
					      .n_result = n,
					      .n_micros = w->n_micros,
					      .if_missing = w->restored };
		recorder_put_window(h->d->recorder, h->uid, &row, w->micro);
		w->micro = NULL;
	}
	free(bytes);
	window_free(w);
}

void hosted_history_applied(struct hosted *h)
{
	struct hosted_window *w = h->deciding;
	const struct commit *k = coord_last_commit(h->coord);
	enum coord_phase phase = coord_phase(h->coord);
	if (!w || !w->durable || !k || k->window != w->window || phase == COORD_PERSIST || phase == COORD_COMMIT)
		return;
	h->deciding = NULL;
	if (take_ledgers(h, k, w))
		put_window(h, k, w);
	else
		window_free(w);
}

/* The digest after a window is in the journal's record of the next one; that after the newest comes with the engine's
 * record. */
void hosted_history_restored(struct hosted *h, const struct commit *k)
{
	struct hosted_window *before = h->deciding, *w = calloc(1, sizeof(*w));
	h->deciding = w;
	if (w) {
		w->window = k->window;
		w->durable = w->restored = true;
		w->commit = *k;
	}
	if (!before)
		return;
	if (before->window + 1 == k->window)
		before->commit.params_digest = k->params_before;
	put_window(h, &before->commit, before);
}

void hosted_history_fini(struct hosted *h)
{
	window_free(h->deciding);
	h->deciding = NULL;
}
