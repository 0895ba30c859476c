/* A job's changes: a thread reads the stream and keeps the newest state. */
#include "lib/internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "lib/channel.h"
#include "gacc/gacc_admin.h"
#include "gacc/v1/job.pb-c.h"
#include "lib/job_info.h"

#define RETRY_MS 200

struct gacc_watch {
	struct gacc_client *client;
	char *job;
	pthread_t thread;
	pthread_mutex_t lock;      /* of all below */
	pthread_cond_t stopped;
	struct rpc_stream *stream; /* being read, for cancelling */
	bool stop;
	int fd;                    /* eventfd: newest or over has something to say */
	gacc_jobs *newest;         /* not yet taken */
	bool over;                 /* nothing follows `newest` */
	struct failure failure;    /* code OK: the job has ended */
};

static void tell(struct gacc_watch *w)
{
	uint64_t one = 1;

	(void)!write(w->fd, &one, sizeof(one));
}

/* The stream owns the message it gives out: keep a copy. */
static gacc_jobs *copy_job(const Gacc__V1__WatchResponse *r)
{
	size_t n = gacc__v1__watch_response__get_packed_size(r);
	uint8_t *packed = malloc(n + 1);
	struct ProtobufCMessage *copy = NULL;
	gacc_jobs *jobs = NULL;

	if (packed) {
		gacc__v1__watch_response__pack(r, packed);
		if (!bytes_decode(&gacc__v1__watch_response__descriptor, packed, n, &copy))
			jobs = jobs_new(copy, &((Gacc__V1__WatchResponse *)copy)->job, 1);
	}
	free(packed);
	return jobs;
}

static void on_job(struct gacc_watch *w, const Gacc__V1__WatchResponse *r)
{
	gacc_jobs *jobs = r->job ? copy_job(r) : NULL;

	if (!jobs)
		return;
	pthread_mutex_lock(&w->lock);
	gacc_jobs_free(w->newest);
	w->newest = jobs;
	tell(w);
	pthread_mutex_unlock(&w->lock);
}

/* One stream from its start to its end. */
static enum status read_stream(struct gacc_watch *w, struct rpc_failure *failure)
{
	Gacc__V1__WatchRequest request = GACC__V1__WATCH_REQUEST__INIT;
	const struct ProtobufCMessage *msg;
	struct rpc_stream *stream;
	enum status st;

	st = rpc_stream_open(w->client->channel, &gacc__v1__job_service__descriptor, "Watch", 0, 0, &stream);
	if (st)
		return st;
	pthread_mutex_lock(&w->lock);
	w->stream = stream;
	if (w->stop)
		rpc_stream_cancel(stream);
	pthread_mutex_unlock(&w->lock);
	request.job = w->job;
	(void)rpc_stream_send(stream, &request.base);
	(void)rpc_stream_close_send(stream);
	while (!rpc_stream_next(stream, -1, &msg, NULL) && msg)
		on_job(w, (const Gacc__V1__WatchResponse *)msg);
	st = rpc_stream_finish(stream, failure);
	pthread_mutex_lock(&w->lock);
	w->stream = NULL;
	pthread_mutex_unlock(&w->lock);
	rpc_stream_free(stream);
	return st;
}

static bool pause_or_stop(struct gacc_watch *w)
{
	struct timespec ts;
	bool stop;

	pthread_mutex_lock(&w->lock);
	clock_gettime(CLOCK_REALTIME, &ts);
	ts.tv_nsec += RETRY_MS * 1000000L;
	ts.tv_sec += ts.tv_nsec / 1000000000;
	ts.tv_nsec %= 1000000000;
	if (!w->stop)
		pthread_cond_timedwait(&w->stopped, &w->lock, &ts);
	stop = w->stop;
	pthread_mutex_unlock(&w->lock);
	return !stop;
}

static void *run(void *arg)
{
	struct gacc_watch *w = arg;
	struct rpc_failure failure;
	struct failure f = { .code = GACC_OK };

	do {
		memset(&failure, 0, sizeof(failure));
		failure.status = read_stream(w, &failure);
	} while (is_outage(&failure) && pause_or_stop(w));
	if (failure.status)
		failure_of_rpc(&f, "", &failure);
	pthread_mutex_lock(&w->lock);
	w->failure = f;
	w->over = true;
	tell(w);
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

static void watch_free(struct gacc_watch *w)
{
	gacc_jobs_free(w->newest);
	pthread_cond_destroy(&w->stopped);
	pthread_mutex_destroy(&w->lock);
	if (w->fd >= 0)
		close(w->fd);
	free(w->job);
	free(w);
}

gacc_status gacc_job_watch(gacc_client *client, const char *job, gacc_watch **out)
{
	struct gacc_watch *w = calloc(1, sizeof(*w));
	struct failure f;

	if (!w)
		return GACC_ENOMEM;
	w->client = client;
	w->job = strdup(job);
	w->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->stopped, NULL);
	if (!w->job || w->fd < 0 || thread_start(&w->thread, run, w)) {
		watch_free(w);
		failure_set(&f, ST_RESOURCE_EXHAUSTED, NULL, "no memory, descriptor or thread to watch job %s", job);
		return client_fail(client, &f);
	}
	*out = w;
	return GACC_OK;
}

int gacc_watch_fd(const gacc_watch *w)
{
	return w->fd;
}

gacc_status gacc_watch_next(gacc_watch *w, gacc_jobs **out)
{
	gacc_status st = GACC_EAGAIN;
	uint64_t count;

	pthread_mutex_lock(&w->lock);
	(void)!read(w->fd, &count, sizeof(count));
	if (w->newest) {
		*out = w->newest;
		w->newest = NULL;
		st = GACC_OK;
	} else if (w->over) {
		st = w->failure.code ? client_fail(w->client, &w->failure) : GACC_EDONE;
	}
	if (w->over)
		tell(w); /* what is over stays readable */
	pthread_mutex_unlock(&w->lock);
	return st;
}

void gacc_watch_close(gacc_watch *w)
{
	if (!w)
		return;
	pthread_mutex_lock(&w->lock);
	w->stop = true;
	if (w->stream)
		rpc_stream_cancel(w->stream);
	pthread_cond_signal(&w->stopped);
	pthread_mutex_unlock(&w->lock);
	pthread_join(w->thread, NULL);
	watch_free(w);
}
