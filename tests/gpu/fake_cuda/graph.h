/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs: the operations of one stream, captured in their order, and queued again with each launch. Captures over
 * several streams, which events join, are not there, nor graphs that are built node by node. All calls with the
 * driver's lock held. */
#ifndef GACC_FAKE_CUDA_GRAPH_H
#define GACC_FAKE_CUDA_GRAPH_H

#include "stream.h"

struct graph {
	struct graph *next; /* all */
	bool is_executable;
	struct operation *head, **tail;
};

/* NULL: no memory. */
struct graph *graph_make(bool is_executable);
void graph_add(struct graph *, struct operation *); /* takes it */
struct graph *graph_find(const void *handle, bool is_executable);
/* OUT_OF_MEMORY: `to` has some of them. */
cu_result graph_copy(struct graph *to, const struct graph *from);
cu_result graph_launch(const struct graph *, struct stream *);
void graph_free(struct graph *);

cu_capture_status graph_status(const struct stream *);
/* The stream is captured and was asked for what a capture cannot have: it is invalidated. What the call returns. */
cu_result graph_break(struct stream *);

#endif
