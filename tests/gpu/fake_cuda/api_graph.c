/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points: captures of streams, and graphs. The modes, which say what other threads may do meanwhile, are all as
 * the relaxed one. */
#include "api.h"

#include "driver.h"
#include "graph.h"

/* With the lock. The default stream of CU_STREAM_LEGACY cannot be captured. */
static cu_result begin(cu_stream handle)
{
	struct stream *s = stream_find(handle);
	if (!s)
		return CUDA_ERROR_INVALID_HANDLE;
	if (s == s->context->default_stream)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (s->capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	s->capture_is_broken = false;
	s->capture = graph_make(false);
	return s->capture ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

cu_result cuStreamBeginCapture_v2(cu_stream handle, cu_capture_mode mode)
{
	ENTER(NEEDS_CONTEXT);
	if (mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	driver_lock();
	cu_result result = begin(handle);
	driver_unlock();
	return result;
}

static cu_result end(cu_stream handle, cu_graph *out)
{
	struct stream *s = stream_find(handle);
	if (!s)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!s->capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	struct graph *g = s->capture;
	s->capture = NULL;
	if (!s->capture_is_broken) {
		*out = (cu_graph)(void *)g;
		return CUDA_SUCCESS;
	}
	graph_free(g);
	*out = NULL;
	return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

cu_result cuStreamEndCapture(cu_stream handle, cu_graph *out)
{
	ENTER(NEEDS_CONTEXT);
	driver_lock();
	cu_result result = end(handle, out);
	driver_unlock();
	return result;
}

static cu_result instantiate(cu_graph_exec *out, const void *handle)
{
	const struct graph *g = graph_find(handle, false);
	if (!g)
		return CUDA_ERROR_INVALID_HANDLE;
	struct graph *executable = graph_make(true);
	if (!executable)
		return CUDA_ERROR_OUT_OF_MEMORY;
	cu_result result = graph_copy(executable, g);
	if (result)
		graph_free(executable);
	else
		*out = (cu_graph_exec)(void *)executable;
	return result;
}

cu_result cuGraphInstantiateWithFlags(cu_graph_exec *out, cu_graph graph, unsigned long long flags)
{
	ENTER(NEEDS_CONTEXT);
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	driver_lock();
	cu_result result = instantiate(out, graph);
	driver_unlock();
	return result;
}

/* A graph within a graph is not there. */
cu_result cuGraphLaunch(cu_graph_exec executable, cu_stream handle)
{
	ENTER(NEEDS_CONTEXT);
	driver_lock();
	const struct graph *g = graph_find(executable, true);
	struct stream *s = stream_find(handle);
	cu_result result = CUDA_ERROR_INVALID_HANDLE;
	if (g && s)
		result = s->capture ? graph_break(s) : graph_launch(g, s);
	driver_unlock();
	return result;
}

static cu_result destroy(const void *handle, bool is_executable)
{
	driver_lock();
	struct graph *g = graph_find(handle, is_executable);
	if (g)
		graph_free(g);
	driver_unlock();
	return g ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

cu_result cuGraphExecDestroy(cu_graph_exec executable)
{
	ENTER(NEEDS_CONTEXT);
	return destroy(executable, true);
}

cu_result cuGraphDestroy(cu_graph graph)
{
	ENTER(NEEDS_CONTEXT);
	return destroy(graph, false);
}
