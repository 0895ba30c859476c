/* A server stream that one thread reads to its end, again and again, and that other threads may cut off. */
#ifndef GACC_CLIENT_TAIL_H
#define GACC_CLIENT_TAIL_H

#include <pthread.h>
#include <stdbool.h>

struct ProtobufCMessage;
struct ProtobufCServiceDescriptor;
struct rpc_channel;
struct rpc_failure;
struct rpc_stream;

struct tail_source {
	const struct ProtobufCServiceDescriptor *service;
	const char *method;
	/* Fills the request of the next stream, with the lock held; valid until the stream has begun. */
	const struct ProtobufCMessage *(*request)(void *arg);
	void (*on_message)(void *arg, const struct ProtobufCMessage *msg);
};

struct tail {
	pthread_mutex_t lock;      /* of all below; the owner's data may lie under it, too */
	pthread_cond_t changed;    /* by CLOCK_MONOTONIC */
	struct rpc_stream *stream; /* being read */
	bool stop;
};

void tail_init(struct tail *tail);
void tail_fini(struct tail *tail);
/* One stream, from its start to its end; *failure says why it ended. */
void tail_read(struct tail *tail, struct rpc_channel *channel, const struct tail_source *source, void *arg,
	       struct rpc_failure *failure);
/* Sleeps before the next one while still(arg) holds, asked under the lock; `briefly`: at most 200 ms. False: stop. */
bool tail_pause(struct tail *tail, bool briefly, bool (*still)(void *arg), void *arg);
/* Any thread, with the lock held: the stream that is read now ends. */
void tail_cut(struct tail *tail);
/* Any thread: the same, and no further one begins. */
void tail_stop(struct tail *tail);

#endif
