/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: a queue of operations and a thread that runs them in order. All calls with the driver's lock held. */
#ifndef GACC_FAKE_CUDA_STREAM_H
#define GACC_FAKE_CUDA_STREAM_H

#include "context.h"
#include "operation.h"

#include <pthread.h>
#include <stdbool.h>

struct graph;

struct stream {
	struct stream *next; /* all that there were: waits may name one that is destroyed */
	struct context *context;
	bool live;	       /* the program may use it */
	bool blocking;	       /* waits for the default stream, and it for this one */
	bool ending;	       /* its thread ends when the queue is empty */
	bool running;	       /* the first operation, on its thread now */
	struct graph *capture; /* what is queued goes there; NULL: it is not captured */
	bool capture_is_broken;
	uint64_t queued, done;		/* numbers of operations */
	struct operation *head, **tail; /* the one that runs is the first */
	pthread_t thread;
};

cu_result stream_make(struct context *, bool blocking, struct stream **out);
/* NULL and CU_STREAM_LEGACY name the current context's default stream. NULL: there is none of this handle. */
struct stream *stream_find(cu_stream);
cu_stream stream_handle(struct stream *);
/* What is queued is still done. */
void stream_destroy(struct stream *);
void stream_wait_all(struct context *); /* for all that the context's streams have to do */
/* Destroys the context's streams and waits until all is done. */
void stream_end_all(struct context *);

/* An operation for stream_queue, zeroed, with room for a kernel's parameters; NULL: no memory. */
struct operation *stream_operation(enum operation_kind, size_t n_params);
/* Takes the operation. Its number; of a captured one, 1 and it does not run. */
uint64_t stream_queue(struct stream *, struct operation *);
void stream_wait(struct stream *, uint64_t number); /* until it is done; gives the lock back meanwhile */
bool stream_is_done(const struct stream *, uint64_t number);

bool stream_any_runs(void); /* has a thread that runs an operation now */

/* What a ghost does after the operation in which its process died. */
_Noreturn void stream_finish_all(void);

#endif
