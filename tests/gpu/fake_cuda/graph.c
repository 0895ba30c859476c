/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs are lists of operations that were never queued. A launch queues copies of them, so that a graph may be
 * launched again, or destroyed, before they have run. */
#include "graph.h"

#include "faults.h"

#include <stdlib.h>
#include <string.h>

static struct graph *all;

struct graph *graph_make(bool is_executable)
{
	struct graph *g = calloc(1, sizeof(*g));
	if (!g)
		return NULL;
	*g = (struct graph){ .next = all, .is_executable = is_executable, .tail = &g->head };
	all = g;
	return g;
}

void graph_add(struct graph *g, struct operation *op)
{
	op->next = NULL;
	*g->tail = op;
	g->tail = &op->next;
}

struct graph *graph_find(const void *handle, bool is_executable)
{
	for (struct graph *g = all; g; g = g->next)
		if (g == handle && g->is_executable == is_executable)
			return g;
	return NULL;
}

static struct operation *copy_of(const struct operation *op)
{
	struct operation *copy = stream_operation(op->kind, op->n_params);
	if (copy)
		memcpy(copy, op, sizeof(*op) + op->n_params);
	return copy;
}

cu_result graph_copy(struct graph *to, const struct graph *from)
{
	for (const struct operation *op = from->head; op; op = op->next) {
		struct operation *copy = copy_of(op);
		if (!copy)
			return CUDA_ERROR_OUT_OF_MEMORY;
		graph_add(to, copy);
	}
	return CUDA_SUCCESS;
}

/* Failures count what runs, so each launch counts anew. */
static void count(struct operation *op)
{
	if (op->kind == OPERATION_KERNEL)
		op->counted = faults_count_launch();
	else if (op->counted)
		op->counted = faults_count_copy();
}

cu_result graph_launch(const struct graph *g, struct stream *s)
{
	for (const struct operation *op = g->head; op; op = op->next) {
		struct operation *copy = copy_of(op);
		if (!copy)
			return CUDA_ERROR_OUT_OF_MEMORY;
		count(copy);
		stream_queue(s, copy);
	}
	return CUDA_SUCCESS;
}

void graph_free(struct graph *g)
{
	struct graph **at = &all;
	while (*at != g)
		at = &(*at)->next;
	*at = g->next;
	for (struct operation *op = g->head, *next; op; op = next) {
		next = op->next;
		free(op);
	}
	free(g);
}

cu_capture_status graph_status(const struct stream *s)
{
	if (!s->capture)
		return CU_STREAM_CAPTURE_STATUS_NONE;
	return s->capture_is_broken ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

cu_result graph_break(struct stream *s)
{
	cu_result result =
		s->capture_is_broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	s->capture_is_broken = true;
	return result;
}
