/* SPDX-License-Identifier: Apache-2.0 */
/* The event stream of a session: a thread of its own reads it into a queue, from which any thread takes events
 * (gacc_event). */
#include "lib/internal.h"

#include "gacc/v1/gradient.pb-c.h"
#include "lib/channel.h"
#include "lib/json.h"
#include "lib/tail.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define EVENTS_MAX 64
#define TEXT_MAX 256

struct event {
	gacc_event_kind kind;
	char text[TEXT_MAX];
};

struct watcher {
	struct gacc_client *client;
	pthread_t thread;
	struct tail tail; /* its lock guards all that follows */
	uint64_t session_id;
	uint8_t token[TOKEN_BYTES];
	size_t token_bytes;
	uint64_t binding; /* grows with each session */
	int fd;		  /* eventfd, semaphore: one count per event */
	struct event event[EVENTS_MAX];
	size_t first, n;
};

/* ---- events ---- */

static void announce(struct watcher *w, gacc_event_kind kind, const char *text)
{
	uint64_t one = 1;
	struct event *e;

	pthread_mutex_lock(&w->tail.lock);
	if (w->n == EVENTS_MAX) { /* the oldest gives its place, and its count on the eventfd */
		w->first = (w->first + 1) % EVENTS_MAX;
		w->n--;
		one = 0;
	}
	e = &w->event[(w->first + w->n++) % EVENTS_MAX];
	e->kind = kind;
	snprintf(e->text, sizeof(e->text), "%s", text);
	if (one && w->fd >= 0 && write(w->fd, &one, sizeof(one)) != sizeof(one))
		w->n--; /* cannot be: the counter is far from full */
	pthread_mutex_unlock(&w->tail.lock);
}

static const char *outcome_name(const Gacc__V1__StepResult *s)
{
	switch (s->outcome) {
	case GACC__V1__STEP_OUTCOME__STEP_OUTCOME_APPLIED:
		return "applied";
	case GACC__V1__STEP_OUTCOME__STEP_OUTCOME_SKIPPED:
		return s->skip_reason == GACC__V1__SKIP_REASON__SKIP_REASON_OUTLIER_NORM ? "skipped: outlier norm"
											 : "skipped: non-finite";
	case GACC__V1__STEP_OUTCOME__STEP_OUTCOME_EMPTY:
		return "empty";
	case GACC__V1__STEP_OUTCOME__STEP_OUTCOME_DROPPED:
		return "dropped: uneven";
	default:
		return "unknown outcome";
	}
}

static void on_step(struct watcher *w, const Gacc__V1__StepResult *s)
{
	char text[TEXT_MAX];

	snprintf(text, sizeof(text), "window %" PRIu64 " %s: %" PRIu64 " micro-batches, weight %g, step %" PRIu64,
		 s->window, outcome_name(s), s->micro_count, s->total_weight, s->applied_step);
	announce(w, GACC_EVENT_STEP, text);
}

static void on_stall(struct watcher *w, const Gacc__V1__StallWarning *s, const char *message)
{
	char text[TEXT_MAX];
	size_t at;

	if (*message) {
		announce(w, GACC_EVENT_STALL, message);
		return;
	}
	at = (size_t)snprintf(text, sizeof(text), "window %" PRIu64 ": waiting %.0f s for", s->window,
			      (double)s->waiting_ns / 1e9);
	for (size_t i = 0; i < s->n_late && at < sizeof(text); i++)
		at += (size_t)snprintf(text + at, sizeof(text) - at, "%s rank %u (%s%spid %" PRId64 ") at %u",
				       i ? "," : "", s->late[i]->rank, s->late[i]->node, *s->late[i]->node ? " " : "",
				       s->late[i]->pid, s->late[i]->micro_count);
	announce(w, GACC_EVENT_STALL, text);
}

static void on_state(struct watcher *w, Gacc__V1__JobState state, const char *message)
{
	char text[TEXT_MAX];

	snprintf(text, sizeof(text), "job is %s%s%s", enum_short_name(&gacc__v1__job_state__descriptor, (int)state),
		 *message ? ": " : "", message);
	announce(w, GACC_EVENT_STATE, text);
}

static void on_message(struct watcher *w, const Gacc__V1__WatchSessionResponse *m)
{
	switch (m->event_case) {
	case GACC__V1__WATCH_SESSION_RESPONSE__EVENT_STEP:
		on_step(w, m->step);
		break;
	case GACC__V1__WATCH_SESSION_RESPONSE__EVENT_STALL:
		on_stall(w, m->stall, m->message);
		break;
	case GACC__V1__WATCH_SESSION_RESPONSE__EVENT_STATE:
		on_state(w, m->state, m->message);
		break;
	default:
		break;
	}
}

/* ---- the thread ---- */

/* What one stream needs beside the watcher: a copy of the session, as the bound one may change while it is read. */
struct reading {
	struct watcher *watcher;
	uint64_t binding;
	bool connected; /* it has said something */
	uint8_t token[TOKEN_BYTES];
	Gacc__V1__Session session;
	Gacc__V1__WatchSessionRequest request;
};

static const struct ProtobufCMessage *session_request(void *arg)
{
	struct reading *r = arg;
	const struct watcher *w = r->watcher;

	r->binding = w->binding;
	memcpy(r->token, w->token, w->token_bytes);
	r->session = (Gacc__V1__Session)GACC__V1__SESSION__INIT;
	r->session.id = w->session_id;
	r->session.token = (ProtobufCBinaryData){ w->token_bytes, r->token };
	r->request = (Gacc__V1__WatchSessionRequest)GACC__V1__WATCH_SESSION_REQUEST__INIT;
	r->request.session = &r->session;
	return &r->request.base;
}

static enum status session_message(void *arg, const struct ProtobufCMessage *msg)
{
	struct reading *r = arg;

	r->connected = true;
	on_message(r->watcher, (const Gacc__V1__WatchSessionResponse *)msg);
	return ST_OK;
}

static bool same_binding(void *arg)
{
	const struct reading *r = arg;

	return r->watcher->binding == r->binding;
}

static bool rebound(struct reading *r)
{
	bool yes;

	pthread_mutex_lock(&r->watcher->tail.lock);
	yes = !same_binding(r) || r->watcher->tail.stop;
	pthread_mutex_unlock(&r->watcher->tail.lock);
	return yes;
}

static enum tail_next session_end(void *arg, const struct rpc_failure *failure)
{
	struct reading *r = arg;
	bool was_connected = r->connected;

	r->connected = false;
	if (rebound(r))
		return TAIL_AGAIN;
	if (is_outage(failure)) {
		if (was_connected)
			announce(r->watcher, GACC_EVENT_CONNECTION, "the connection to gaccd broke; trying again");
		return TAIL_AGAIN;
	}
	if (failure->status)
		announce(r->watcher, GACC_EVENT_CONNECTION, status_info(failure->status)->text);
	return TAIL_REST; /* the job has ended, or this session has */
}

static const struct tail_source session_events = { &gacc__v1__gradient_service__descriptor,
						   "WatchSession",
						   session_request,
						   session_message,
						   session_end,
						   same_binding };

static void *run(void *arg)
{
	struct watcher *w = arg;
	struct reading r = { .watcher = w };

	tail_run(&w->tail, w->client->channel, &session_events, &r);
	return NULL;
}

/* ---- for the job ---- */

static void bind_session(struct watcher *w, const Gacc__V1__Session *s)
{
	w->session_id = s->id;
	w->token_bytes = s->token.len;
	memcpy(w->token, s->token.data, s->token.len);
	w->binding++;
}

enum status watcher_new(struct gacc_job *job, struct watcher **out)
{
	struct watcher *w = calloc(1, sizeof(*w));

	if (!w)
		return ST_NO_MEMORY;
	w->client = job->client;
	w->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
	bind_session(w, job->session);
	tail_init(&w->tail);
	if (thread_start(&w->thread, run, w)) {
		tail_fini(&w->tail);
		if (w->fd >= 0)
			close(w->fd);
		free(w);
		return ST_RESOURCE_EXHAUSTED;
	}
	*out = w;
	return ST_OK;
}

void watcher_rebind(struct watcher *w, const Gacc__V1__Session *session)
{
	pthread_mutex_lock(&w->tail.lock);
	bind_session(w, session);
	tail_cut(&w->tail);
	pthread_mutex_unlock(&w->tail.lock);
}

void watcher_free(struct watcher *w)
{
	if (!w)
		return;
	tail_stop(&w->tail);
	pthread_join(w->thread, NULL);
	tail_fini(&w->tail);
	if (w->fd >= 0)
		close(w->fd);
	free(w);
}

int gacc_event_fd(gacc_job *job)
{
	return job->watcher->fd;
}

gacc_status gacc_event(gacc_job *job, gacc_event_kind *kind, char *text, size_t n)
{
	struct watcher *w = job->watcher;
	gacc_status st = GACC_EAGAIN;
	uint64_t one;

	pthread_mutex_lock(&w->tail.lock);
	if (w->n) {
		const struct event *e = &w->event[w->first];

		if (kind)
			*kind = e->kind;
		if (text && n)
			snprintf(text, n, "%s", e->text);
		w->first = (w->first + 1) % EVENTS_MAX;
		w->n--;
		(void)!read(w->fd, &one, sizeof(one));
		st = GACC_OK;
	}
	pthread_mutex_unlock(&w->tail.lock);
	return st;
}
