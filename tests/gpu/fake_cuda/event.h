/* SPDX-License-Identifier: Apache-2.0 */
/* Events: a place in the queue of a stream. Of this process only. All calls with the driver's lock held. */
#ifndef GACC_FAKE_CUDA_EVENT_H
#define GACC_FAKE_CUDA_EVENT_H

#include "stream.h"

struct event {
	struct event *next; /* all, destroyed ones too while they are to happen */
	struct context *context;
	bool live, timed;
	struct stream *stream; /* where it was recorded last; NULL: nowhere */
	uint64_t number;       /* of the operation that records it */
	unsigned n_pending;    /* times it is queued */
	int64_t ns;	       /* when it happened last */
};

cu_result event_make(struct context *, bool timed, struct event **out);
struct event *event_find(cu_event); /* NULL: there is none of this handle */
cu_event event_handle(struct event *);
void event_destroy(struct event *);
cu_result event_record(struct event *, struct stream *);
bool event_is_done(const struct event *); /* one that was never recorded is */
void event_happens(struct event *);	  /* the stream has come to it */

#endif
