/* The event stream of a session: one thread reads it, any thread takes events. */
#include "lib/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "lib/channel.h"
#include "gacc/v1/gradient.pb-c.h"

#define EVENTS_MAX 64
#define TEXT_MAX 256
#define RETRY_MS 200

struct event {
	gacc_event_kind kind;
	char text[TEXT_MAX];
};

struct watcher {
	struct gacc_client *client;
	pthread_t thread;
	pthread_mutex_t lock;       /* of all below */
	pthread_cond_t changed;
	uint64_t session_id;
	uint8_t token[TOKEN_BYTES];
	size_t token_bytes;
	uint64_t binding;           /* grows with each session */
	struct rpc_stream *stream;  /* being read, for cancelling */
	bool stop;
	int fd;                     /* eventfd, semaphore: one count per event */
	struct event event[EVENTS_MAX];
	size_t first, n;
};

/* --- events */

static void announce(struct watcher *w, gacc_event_kind kind, const char *text)
{
	uint64_t one = 1;
	struct event *e;

	pthread_mutex_lock(&w->lock);
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
	pthread_mutex_unlock(&w->lock);
}

static const char *outcome_name(Gacc__V1__StepOutcome outcome)
{
	switch (outcome) {
	case GACC__V1__STEP_OUTCOME__STEP_OUTCOME_APPLIED:
		return "applied";
	case GACC__V1__STEP_OUTCOME__STEP_OUTCOME_SKIPPED:
		return "skipped: non-finite";
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
		 s->window, outcome_name(s->outcome), s->micro_count, s->total_weight, s->applied_step);
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
				       s->late[i]->pid,
				       s->late[i]->micro_count);
	announce(w, GACC_EVENT_STALL, text);
}

static void on_state(struct watcher *w, Gacc__V1__JobState state, const char *message)
{
	const ProtobufCEnumValue *v = protobuf_c_enum_descriptor_get_value(&gacc__v1__job_state__descriptor, (int)state);
	char text[TEXT_MAX];

	snprintf(text, sizeof(text), "job is %s%s%s", v ? v->name + strlen("JOB_STATE_") : "in an unknown state",
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

/* --- the thread */

/* Opens the stream of the session that is bound now; publishes it so that it can be cancelled. */
static struct rpc_stream *open_stream(struct watcher *w, uint64_t *binding)
{
	Gacc__V1__WatchSessionRequest request = GACC__V1__WATCH_SESSION_REQUEST__INIT;
	Gacc__V1__Session session = GACC__V1__SESSION__INIT;
	uint8_t token[TOKEN_BYTES];
	struct rpc_stream *stream;

	if (rpc_stream_open(w->client->channel, &gacc__v1__gradient_service__descriptor, "WatchSession", 0, 0, &stream))
		return NULL;
	pthread_mutex_lock(&w->lock);
	*binding = w->binding;
	session.id = w->session_id;
	session.token.data = token;
	session.token.len = w->token_bytes;
	memcpy(token, w->token, w->token_bytes);
	w->stream = stream;
	if (w->stop)
		rpc_stream_cancel(stream);
	pthread_mutex_unlock(&w->lock);
	request.session = &session;
	(void)rpc_stream_send(stream, &request.base);
	(void)rpc_stream_close_send(stream);
	return stream;
}

static void close_stream(struct watcher *w, struct rpc_stream *stream)
{
	pthread_mutex_lock(&w->lock);
	w->stream = NULL;
	pthread_mutex_unlock(&w->lock);
	rpc_stream_free(stream);
}

/* Reads until the stream ends; *failure says why. *connected: whether it said anything. */
static void read_stream(struct watcher *w, uint64_t *binding, bool *connected, struct rpc_failure *failure)
{
	const struct ProtobufCMessage *msg;
	struct rpc_stream *stream = open_stream(w, binding);

	memset(failure, 0, sizeof(*failure));
	failure->status = ST_UNAVAILABLE;
	if (!stream)
		return;
	while (!rpc_stream_next(stream, -1, &msg, NULL) && msg) {
		*connected = true;
		on_message(w, (const Gacc__V1__WatchSessionResponse *)msg);
	}
	failure->status = rpc_stream_finish(stream, failure);
	close_stream(w, stream);
}

/* Sleeps before the next try; without one (`until_rebound`) until there is another session. False: stop. */
static bool pause_or_stop(struct watcher *w, uint64_t binding, bool until_rebound)
{
	struct timespec ts;
	bool go;

	pthread_mutex_lock(&w->lock);
	clock_gettime(CLOCK_MONOTONIC, &ts);
	ts.tv_nsec += RETRY_MS * 1000000L;
	ts.tv_sec += ts.tv_nsec / 1000000000;
	ts.tv_nsec %= 1000000000;
	while (!w->stop && w->binding == binding) {
		if (until_rebound)
			pthread_cond_wait(&w->changed, &w->lock);
		else if (pthread_cond_timedwait(&w->changed, &w->lock, &ts))
			break;
	}
	go = !w->stop;
	pthread_mutex_unlock(&w->lock);
	return go;
}

static bool rebound(struct watcher *w, uint64_t binding)
{
	bool yes;

	pthread_mutex_lock(&w->lock);
	yes = w->binding != binding || w->stop;
	pthread_mutex_unlock(&w->lock);
	return yes;
}

static void *run(void *arg)
{
	struct watcher *w = arg;
	struct rpc_failure failure;
	uint64_t binding = 0;
	bool over = false;

	do {
		bool connected = false;

		read_stream(w, &binding, &connected, &failure);
		if (rebound(w, binding))
			continue;
		over = !is_outage(&failure); /* the job has ended, or this session has */
		if (over && failure.status)
			announce(w, GACC_EVENT_CONNECTION, status_info(failure.status)->text);
		else if (!over && connected)
			announce(w, GACC_EVENT_CONNECTION, "the connection to gaccd broke; trying again");
	} while (pause_or_stop(w, binding, over));
	return NULL;
}

/* --- for the job */

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
	pthread_condattr_t attr;

	if (!w)
		return ST_NO_MEMORY;
	w->client = job->client;
	w->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
	bind_session(w, job->session);
	pthread_mutex_init(&w->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&w->changed, &attr);
	pthread_condattr_destroy(&attr);
	if (thread_start(&w->thread, run, w)) {
		pthread_cond_destroy(&w->changed);
		pthread_mutex_destroy(&w->lock);
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
	pthread_mutex_lock(&w->lock);
	bind_session(w, session);
	if (w->stream)
		rpc_stream_cancel(w->stream);
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->lock);
}

void watcher_free(struct watcher *w)
{
	if (!w)
		return;
	pthread_mutex_lock(&w->lock);
	w->stop = true;
	if (w->stream)
		rpc_stream_cancel(w->stream);
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->lock);
	pthread_join(w->thread, NULL);
	pthread_cond_destroy(&w->changed);
	pthread_mutex_destroy(&w->lock);
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

	pthread_mutex_lock(&w->lock);
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
	pthread_mutex_unlock(&w->lock);
	return st;
}
