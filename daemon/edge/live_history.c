/* SPDX-License-Identifier: Apache-2.0 */
/* A job's events, and its windows with their micro-batches, for later queries. */
#include "edge/live_job.h"

#include "base/log.h"
#include "edge/convert.h"
#include "gacc/v1/job.pb-c.h"
#include "proto/bytes.h"
#include "proto/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- events ---- */

static struct history_event event_of(const struct live_job *l, const struct event *e)
{
	return (struct history_event){ .id = e->id,
				       .job = l->id,
				       .uid = l->uid,
				       .unix_ns = e->unix_ns,
				       .warning = e->warning,
				       .reason = e->reason,
				       .object = e->object,
				       .message = e->message,
				       .window = e->window };
}

void live_event(struct live_job *l, bool warning, const char *reason, int64_t rank, const char *text)
{
	struct event what = { .id = daemon_event_id(l->d),
			      .unix_ns = daemon_now(l->d).unix_ns,
			      .warning = warning,
			      .window = l->coord ? job_window(l->part->job) : 0 };
	char object[32] = "job";
	if (rank >= 0)
		snprintf(object, sizeof(object), "rank %lld", (long long)rank);
	const struct event *e = events_add(&l->events, &what, reason, object, text);
	struct log_fields f = { l->id, rank, e->window, reason };
	log_line(warning ? LOG_WARN : LOG_INFO, f, "%s", text);
	struct history_event h = event_of(l, e);
	recorder_put_event(l->d->recorder, &h);
	l->changed = true;
}

struct history_event live_history_event(const struct live_job *l, uint64_t i)
{
	return event_of(l, events_at(&l->events, i));
}

static enum status load_event(void *arg, const struct history_event *h)
{
	struct live_job *l = arg;
	struct event what = { .id = h->id, .unix_ns = h->unix_ns, .warning = h->warning, .window = h->window };
	events_add(&l->events, &what, h->reason, h->object, h->message);
	return ST_OK;
}

void live_history_load(struct live_job *l)
{
	history_last_events(l->d->history, l->id, LIVE_EVENTS, load_event, l); /* none, if it fails */
}

int64_t live_history_when(const struct live_job *l, const char *reason)
{
	return events_when(&l->events, reason);
}

/* ---- windows ---- */

/* A window that is decided: its ledger, copied before the next window's pushes overwrite it. */
struct live_window {
	uint64_t window;
	bool durable;
	bool restored;	      /* from the journal: the history may have it, and then knows more */
	struct commit commit; /* of a restored one */
	struct history_micro *micro;
	uint64_t n_micros;
	uint32_t *short_ranks;
	size_t n_short;
	int64_t first_ns[]; /* of each index: its first push */
};

static void window_free(struct live_window *w)
{
	if (!w)
		return;
	free(w->micro);
	free(w->short_ranks);
	free(w);
}

static uint64_t bits_in(const uint64_t *map, size_t n_words)
{
	uint64_t n = 0;
	for (size_t i = 0; i < n_words; i++)
		n += (uint64_t)__builtin_popcountll(map[i]);
	return n;
}

/* The bits' micro-batches, behind those that are there. */
static void copy_cells(struct live_window *w, const struct control_page *page, const uint64_t *map, size_t n_words,
		       bool voided)
{
	for (size_t i = 0; i < n_words; i++)
		for (uint64_t left = map[i]; left; left &= left - 1) {
			uint64_t bit = i * 64 + (uint64_t)__builtin_ctzll(left);
			uint32_t rank = (uint32_t)(bit / page->max_micro_size),
				 micro = (uint32_t)(bit % page->max_micro_size);
			const struct ledger_cell *c = control_page_ledger(page, rank, micro);
			w->micro[w->n_micros++] = (struct history_micro){ .rank = rank,
									  .micro = micro,
									  .voided = voided,
									  .weight = c->weight,
									  .loss = c->loss,
									  .unix_ns = c->unix_nanos,
									  .data_key = c->data_key };
			if (!w->first_ns[micro] || c->unix_nanos < w->first_ns[micro])
				w->first_ns[micro] = c->unix_nanos;
		}
}

static bool find_short(struct live_window *w, const struct control_state *s)
{
	uint32_t *gave = calloc(s->r.ranks, sizeof(*gave)); /* then the short ones, from its start on */
	if (!gave)
		return false;
	for (uint64_t i = 0; i < w->n_micros; i++)
		gave[w->micro[i].rank]++;
	for (uint32_t r = 0; r < s->r.ranks; r++)
		if (gave[r] < s->r.micro_size)
			gave[w->n_short++] = r;
	w->short_ranks = gave;
	return true;
}

static bool copy_ledger(struct live_window *w, const struct control_page *page, const struct control_state *s,
			const uint64_t *counted)
{
	uint64_t n = bits_in(counted, s->n_words) + bits_in(s->voided, s->n_words);
	w->micro = malloc((n + 1) * sizeof(*w->micro));
	if (!w->micro)
		return false;
	copy_cells(w, page, counted, s->n_words, false);
	copy_cells(w, page, s->voided, s->n_words, true);
	for (uint64_t i = 0; i < w->n_micros; i++)
		w->micro[i].lag_ns = w->micro[i].unix_ns - w->first_ns[w->micro[i].micro];
	return find_short(w, s);
}

void live_history_decided(struct live_job *l, const struct commit *k, const uint64_t *counted, uint32_t n_words)
{
	const struct control_state *s = job_record(l->part->job);
	struct control_page page;
	struct live_window *w = calloc(1, sizeof(*w) + l->spec->max_micro_size * sizeof(*w->first_ns));
	window_free(l->deciding);
	l->deciding = NULL;
	if (!w)
		return;
	w->window = k->window;
	/* the engine may have been replaced, and its record not been heard yet: then the window is kept without its
	 * micro-batches */
	if (s && s->r.window == k->window && s->n_words == n_words && part_control_page(l->part, &page) &&
	    !copy_ledger(w, &page, s, counted)) {
		window_free(w);
		return;
	}
	l->deciding = w;
}

void live_history_durable(struct live_job *l, uint64_t window)
{
	if (l->deciding && l->deciding->window == window)
		l->deciding->durable = true;
}

/* Takes w. */
static void put_window(struct live_job *l, const struct commit *k, struct live_window *w)
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
		struct history_window h = { .job = l->id,
					    .window = k->window,
					    .unix_ns = k->unix_nanos,
					    .result = bytes,
					    .n_result = n,
					    .n_micros = w->n_micros,
					    .if_missing = w->restored };
		recorder_put_window(l->d->recorder, &h, w->micro);
		w->micro = NULL;
	}
	free(bytes);
	window_free(w);
}

void live_history_applied(struct live_job *l)
{
	struct live_window *w = l->deciding;
	const struct commit *k = coord_last_commit(l->coord);
	enum coord_phase phase = coord_phase(l->coord);
	if (!w || !w->durable || !k || k->window != w->window || phase == COORD_PERSIST || phase == COORD_COMMIT)
		return;
	l->deciding = NULL;
	put_window(l, k, w);
}

/* The digest after a window is in the journal's next one; that after the newest comes with the engine's record. */
void live_history_restored(struct live_job *l, const struct commit *k)
{
	struct live_window *before = l->deciding, *w = calloc(1, sizeof(*w));
	l->deciding = w;
	if (w) {
		w->window = k->window;
		w->durable = w->restored = true;
		w->commit = *k;
	}
	if (!before)
		return;
	if (before->window + 1 == k->window)
		before->commit.params_digest = k->params_before;
	put_window(l, &before->commit, before);
}

void live_history_fini(struct live_job *l)
{
	window_free(l->deciding);
	l->deciding = NULL;
}
