/* SPDX-License-Identifier: Apache-2.0 */
/* Follows a job's changes for gacc_job_watch: a thread of its own reads the stream, reconnects, and keeps the newest
 * state for the caller's thread. */
#include "lib/internal.h"

#include "gacc/gacc_admin.h"
#include "gacc/v1/job.pb-c.h"
#include "lib/admin.h"
#include "lib/answer.h"
#include "lib/channel.h"
#include "lib/job_info.h"
#include "lib/tail.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct gacc_watch {
	struct gacc_client *client;
	char *job;
	pthread_t thread;
	struct tail tail; /* its lock guards all that follows */
	Gacc__V1__WatchRequest request;
	int fd;			/* eventfd: newest or over has something to say */
	gacc_jobs *newest;	/* not yet taken */
	bool over;		/* nothing follows `newest` */
	struct failure failure; /* code OK: the job has ended */
	/* the thread's own */
	bool contact; /* gaccd has answered: an outage will pass */
	bool denied;  /* the last attempt had no permission */
};

static void tell(struct gacc_watch *w)
{
	uint64_t one = 1;

	(void)!write(w->fd, &one, sizeof(one));
}

static enum status on_job(void *arg, const struct ProtobufCMessage *msg)
{
	const Gacc__V1__WatchResponse *r = (const Gacc__V1__WatchResponse *)msg;
	struct gacc_watch *w = arg;
	struct ProtobufCMessage *copy = r->job ? bytes_clone(msg) : NULL; /* the stream owns what it gives out */
	gacc_jobs *jobs = copy ? jobs_new(copy, &((Gacc__V1__WatchResponse *)copy)->job, 1) : NULL;

	if (!jobs)
		return r->job ? ST_NO_MEMORY : ST_MALFORMED;
	pthread_mutex_lock(&w->tail.lock);
	gacc_jobs_free(w->newest);
	w->newest = jobs;
	tell(w);
	pthread_mutex_unlock(&w->tail.lock);
	w->contact = true;
	w->denied = false;
	return ST_OK;
}

static const struct ProtobufCMessage *job_request(void *arg)
{
	struct gacc_watch *w = arg;

	return &w->request.base;
}

/* Before the first answer the endpoint may be wrong, and the caller wants to know. Later gaccd will be back, unless the
 * socket is not for us: twice in a row, as it has no permissions at all in the moment in which it is made. */
static bool may_pass(struct gacc_watch *w, const struct rpc_failure *failure)
{
	bool denied_again = w->denied;

	w->denied = failure->status == ST_PERMISSION_DENIED;
	if (failure->status == ST_UNAVAILABLE || (w->denied && !denied_again))
		return w->contact;
	return is_outage(failure);
}

static enum tail_next on_end(void *arg, const struct rpc_failure *failure)
{
	struct failure f = { .code = GACC_OK };
	struct rpc_failure why = *failure;
	struct gacc_watch *w = arg;

	explain_unreachable(w->client->endpoint, &why);
	if (is_outage(failure) && may_pass(w, &why))
		return TAIL_AGAIN;
	if (why.status)
		failure_of_rpc(&f, "", &why);
	pthread_mutex_lock(&w->tail.lock);
	w->failure = f;
	w->over = true;
	tell(w);
	pthread_mutex_unlock(&w->tail.lock);
	return TAIL_OVER;
}

static bool may_wait(void *arg)
{
	return true;
}

static const struct tail_source job_changes = {
	&gacc__v1__job_service__descriptor, "Watch", job_request, on_job, on_end, may_wait
};

static void *run(void *arg)
{
	struct gacc_watch *w = arg;

	tail_run(&w->tail, w->client->channel, &job_changes, w);
	return NULL;
}

static void watch_free(struct gacc_watch *w)
{
	gacc_jobs_free(w->newest);
	tail_fini(&w->tail);
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
		return admin_no_memory(client);
	w->client = client;
	w->job = strdup(job);
	w->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	tail_init(&w->tail);
	gacc__v1__watch_request__init(&w->request);
	w->request.job = w->job;
	pthread_mutex_lock(&client->lock);
	w->contact = client->answered;
	pthread_mutex_unlock(&client->lock);
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

	pthread_mutex_lock(&w->tail.lock);
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
	pthread_mutex_unlock(&w->tail.lock);
	return st;
}

void gacc_watch_close(gacc_watch *w)
{
	if (!w)
		return;
	tail_stop(&w->tail);
	pthread_join(w->thread, NULL);
	watch_free(w);
}
