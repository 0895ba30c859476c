/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points: streams and events. */
#include "api.h"

#include "driver.h"
#include "event.h"
#include "graph.h"
#include "stream.h"

cu_result cuStreamCreate(cu_stream *out, unsigned flags)
{
	struct stream *s;
	ENTER(NEEDS_CONTEXT);
	if (flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	driver_lock();
	cu_result result = stream_make(context_current(), !(flags & CU_STREAM_NON_BLOCKING), &s);
	driver_unlock();
	if (!result)
		*out = stream_handle(s);
	return result;
}

/* What the handle names; the lock is held if there is such a stream. */
static struct stream *lock_stream(cu_stream handle)
{
	driver_lock();
	struct stream *s = stream_find(handle);
	if (!s)
		driver_unlock();
	return s;
}

cu_result cuStreamDestroy_v2(cu_stream handle)
{
	ENTER(NEEDS_CONTEXT);
	struct stream *s = handle ? lock_stream(handle) : NULL;
	if (!s)
		return CUDA_ERROR_INVALID_HANDLE;
	stream_destroy(s);
	driver_unlock();
	return CUDA_SUCCESS;
}

cu_result cuStreamQuery(cu_stream handle)
{
	ENTER(NEEDS_CONTEXT);
	struct stream *s = lock_stream(handle);
	if (!s)
		return CUDA_ERROR_INVALID_HANDLE;
	bool done = stream_is_done(s, s->queued);
	cu_result captured = s->capture ? graph_break(s) : CUDA_SUCCESS;
	driver_unlock();
	if (captured)
		return captured;
	return driver_sticky() ? driver_sticky() : done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

cu_result cuStreamSynchronize(cu_stream handle)
{
	ENTER(NEEDS_CONTEXT);
	struct stream *s = lock_stream(handle);
	if (!s)
		return CUDA_ERROR_INVALID_HANDLE;
	cu_result captured = s->capture ? graph_break(s) : CUDA_SUCCESS;
	if (!captured)
		stream_wait(s, s->queued);
	driver_unlock();
	return captured ? captured : driver_sticky();
}

/* Waits for what the event stands for now; if it was never recorded, for nothing. */
cu_result cuStreamWaitEvent(cu_stream handle, cu_event event, unsigned flags)
{
	ENTER(NEEDS_CONTEXT);
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	cu_result result = CUDA_SUCCESS;
	driver_lock();
	struct stream *s = stream_find(handle);
	struct event *e = event_find(event);
	struct operation *op = NULL;
	if (!s || !e)
		result = CUDA_ERROR_INVALID_HANDLE;
	else if (s->capture)
		result = graph_break(s);
	else if (!event_is_done(e) && !(op = stream_operation(OPERATION_WAIT, 0)))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	if (op) {
		op->other = e->stream;
		op->until = e->number;
		stream_queue(s, op);
	}
	driver_unlock();
	return result;
}

cu_result cuStreamIsCapturing(cu_stream handle, cu_capture_status *out)
{
	ENTER(NEEDS_CONTEXT);
	struct stream *s = lock_stream(handle);
	if (!s)
		return CUDA_ERROR_INVALID_HANDLE;
	*out = graph_status(s);
	driver_unlock();
	return CUDA_SUCCESS;
}

cu_result cuEventCreate(cu_event *out, unsigned flags)
{
	struct event *e;
	ENTER(NEEDS_CONTEXT);
	if (flags & ~(unsigned)(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING))
		return CUDA_ERROR_INVALID_VALUE; /* interprocess events are not there */
	driver_lock();
	cu_result result = event_make(context_current(), !(flags & CU_EVENT_DISABLE_TIMING), &e);
	driver_unlock();
	if (!result)
		*out = event_handle(e);
	return result;
}

cu_result cuEventDestroy_v2(cu_event handle)
{
	ENTER(NEEDS_CONTEXT);
	driver_lock();
	struct event *e = event_find(handle);
	if (e)
		event_destroy(e);
	driver_unlock();
	return e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

cu_result cuEventRecord(cu_event event, cu_stream stream)
{
	ENTER(NEEDS_CONTEXT);
	driver_lock();
	struct event *e = event_find(event);
	struct stream *s = stream_find(stream);
	cu_result result = CUDA_ERROR_INVALID_HANDLE;
	if (e && s && e->context == s->context)
		result = s->capture ? graph_break(s) : event_record(e, s);
	driver_unlock();
	return result;
}

cu_result cuEventQuery(cu_event handle)
{
	ENTER(NEEDS_CONTEXT);
	driver_lock();
	struct event *e = event_find(handle);
	cu_result result = !e ? CUDA_ERROR_INVALID_HANDLE : event_is_done(e) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
	driver_unlock();
	return driver_sticky() ? driver_sticky() : result;
}

cu_result cuEventSynchronize(cu_event handle)
{
	ENTER(NEEDS_CONTEXT);
	driver_lock();
	struct event *e = event_find(handle);
	if (e && e->stream)
		stream_wait(e->stream, e->number);
	driver_unlock();
	return e ? driver_sticky() : CUDA_ERROR_INVALID_HANDLE;
}

static cu_result elapsed(const struct event *from, const struct event *to, float *out_ms)
{
	if (!from || !to || !from->timed || !to->timed || !from->stream || !to->stream)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!event_is_done(from) || !event_is_done(to))
		return CUDA_ERROR_NOT_READY;
	*out_ms = (float)(to->ns - from->ns) / 1e6f;
	return CUDA_SUCCESS;
}

cu_result cuEventElapsedTime_v2(float *out_ms, cu_event from, cu_event to)
{
	ENTER(NEEDS_CONTEXT);
	driver_lock();
	cu_result result = elapsed(event_find(from), event_find(to), out_ms);
	driver_unlock();
	return result;
}
