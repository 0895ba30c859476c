/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a server stream to its end again and again, with pauses between the attempts, until another thread stops it.
 * For watch.c and job_watch.c, on their threads. */
#include "lib/tail.h"

#include "lib/channel.h"
#include "lib/clock.h"

#include <string.h>

#define RETRY_MS 200

void tail_init(struct tail *tail)
{
	memset(tail, 0, sizeof(*tail));
	pthread_mutex_init(&tail->lock, NULL);
	cond_init(&tail->changed);
}

void tail_fini(struct tail *tail)
{
	pthread_cond_destroy(&tail->changed);
	pthread_mutex_destroy(&tail->lock);
}

/* Publishes the stream together with its request: a thread that changes the request can then cut the stream off. */
static void begin(struct tail *tail, struct rpc_stream *stream, const struct tail_source *source, void *arg)
{
	const struct ProtobufCMessage *request;

	pthread_mutex_lock(&tail->lock);
	request = source->request(arg);
	tail->stream = stream;
	if (tail->stop)
		rpc_stream_cancel(stream);
	pthread_mutex_unlock(&tail->lock);
	(void)rpc_stream_send(stream, request);
	(void)rpc_stream_close_send(stream);
}

static enum status read_messages(struct rpc_stream *stream, const struct tail_source *source, void *arg)
{
	const struct ProtobufCMessage *msg;
	enum status st;

	do {
		st = rpc_stream_next(stream, -1, &msg, NULL);
		if (st || !msg)
			return st;
		st = source->on_message(arg, msg);
	} while (!st);
	rpc_stream_cancel(stream);
	return st;
}

/* One stream, from its start to its end; *failure says why it ended. */
static void read_stream(struct tail *tail, struct rpc_channel *channel, const struct tail_source *source, void *arg,
			struct rpc_failure *failure)
{
	struct rpc_stream *stream;
	enum status st;

	memset(failure, 0, sizeof(*failure));
	failure->status = rpc_stream_open(channel, source->service, source->method, 0, 0, &stream);
	if (failure->status)
		return;
	begin(tail, stream, source, arg);
	st = read_messages(stream, source, arg);
	failure->status = rpc_stream_finish(stream, failure);
	if (st)
		*failure = (struct rpc_failure){ .status = st };
	pthread_mutex_lock(&tail->lock);
	tail->stream = NULL;
	pthread_mutex_unlock(&tail->lock);
	rpc_stream_free(stream);
}

/* Before the next stream. False: stop. */
static bool pause_for(struct tail *tail, bool briefly, bool (*may_wait)(void *arg), void *arg)
{
	struct timespec until = time_in(RETRY_MS);
	bool go;

	pthread_mutex_lock(&tail->lock);
	while (!tail->stop && may_wait(arg)) {
		if (!briefly)
			pthread_cond_wait(&tail->changed, &tail->lock);
		else if (pthread_cond_timedwait(&tail->changed, &tail->lock, &until))
			break;
	}
	go = !tail->stop;
	pthread_mutex_unlock(&tail->lock);
	return go;
}

void tail_run(struct tail *tail, struct rpc_channel *channel, const struct tail_source *source, void *arg)
{
	struct rpc_failure failure;
	enum tail_next next;

	do {
		read_stream(tail, channel, source, arg, &failure);
		next = source->on_end(arg, &failure);
	} while (next != TAIL_OVER && pause_for(tail, next == TAIL_AGAIN, source->may_wait, arg));
}

void tail_cut(struct tail *tail)
{
	if (tail->stream)
		rpc_stream_cancel(tail->stream);
	pthread_cond_broadcast(&tail->changed);
}

void tail_stop(struct tail *tail)
{
	pthread_mutex_lock(&tail->lock);
	tail->stop = true;
	tail_cut(tail);
	pthread_mutex_unlock(&tail->lock);
}
