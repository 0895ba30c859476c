/* SPDX-License-Identifier: Apache-2.0 */
/* A server stream that one thread reads to its end, again and again, and that other threads may cut off. */
#ifndef GACC_CLIENT_TAIL_H
#define GACC_CLIENT_TAIL_H

#include "proto/status.h"

#include <pthread.h>
#include <stdbool.h>

struct ProtobufCMessage;
struct ProtobufCServiceDescriptor;
struct rpc_channel;
struct rpc_failure;
struct rpc_stream;

enum tail_next {
	TAIL_AGAIN, /* in 200 ms */
	TAIL_REST,  /* when may_wait says no */
	TAIL_OVER
};

struct tail_source {
	const struct ProtobufCServiceDescriptor *service;
	const char *method;
	/* Fills the request of the next stream, with the lock held; valid until the stream has begun. */
	const struct ProtobufCMessage *(*request)(void *arg);
	/* Borrows the message. Another status than OK ends the stream with it. */
	enum status (*on_message)(void *arg, const struct ProtobufCMessage *msg);
	/* A stream has ended, and why. */
	enum tail_next (*on_end)(void *arg, const struct rpc_failure *failure);
	/* Asked with the lock held while nothing is read: may the next stream wait? */
	bool (*may_wait)(void *arg);
};

struct tail {
	pthread_mutex_t lock;	   /* of all below; the owner's data may lie under it, too */
	pthread_cond_t changed;	   /* by CLOCK_MONOTONIC */
	struct rpc_stream *stream; /* being read */
	bool stop;
};

void tail_init(struct tail *tail);
void tail_fini(struct tail *tail);
/* One stream after the other, until on_end says that it is over, or tail_stop. */
void tail_run(struct tail *tail, struct rpc_channel *channel, const struct tail_source *source, void *arg);
/* Any thread, with the lock held: the stream that is read now ends, and may_wait is asked again. */
void tail_cut(struct tail *tail);
/* Any thread: the same, and no further one begins. */
void tail_stop(struct tail *tail);

#endif
