/* SPDX-License-Identifier: Apache-2.0 */
/* Registers the daemon's memory with a GPU's driver and takes that back. For cuda.c, and for map.c, which exchanges the
 * memory; the job's thread. */
#include "lib/cuda_memory.h"

#include <stdio.h>
#include <stdlib.h>

static enum status say(const struct cuda *c, cu_result code, const char *what, char *why, size_t size)
{
	snprintf(why, size, "%s: %s", what, cuda_result_name(&c->api, code));
	return code == CUDA_ERROR_OUT_OF_MEMORY ? ST_NO_MEMORY : ST_IO_ERROR;
}

/* ---- the context ---- */

cu_result cuda_enter(const struct cuda *c, cu_context *out_before)
{
	cu_result code = c->api.cuCtxGetCurrent(out_before);

	if (code || *out_before == c->context)
		return code;
	return c->api.cuCtxSetCurrent(c->context);
}

void cuda_leave(const struct cuda *c, cu_context before)
{
	if (before != c->context)
		c->api.cuCtxSetCurrent(before);
}

/* ---- one mapping ---- */

static size_t chunk_bytes(const struct cuda *c, const struct cuda_pinned *p, size_t i)
{
	size_t left = p->bytes - i * c->chunk;

	return left < c->chunk ? left : c->chunk;
}

/* The first n chunks. The code of the first failure. */
static cu_result unpin_one(const struct cuda *c, struct cuda_pinned *p, size_t n)
{
	cu_result first = CUDA_SUCCESS;

	for (size_t i = 0; i < n; i++) {
		cu_result code = c->api.cuMemHostUnregister(p->base + i * c->chunk);

		first = first ? first : code;
	}
	free(p->device);
	*p = (struct cuda_pinned){ 0 };
	return first;
}

static cu_result pin_chunk(const struct cuda *c, struct cuda_pinned *p, size_t i, unsigned flags)
{
	unsigned char *at = p->base + i * c->chunk;
	cu_result code = c->api.cuMemHostRegister(at, chunk_bytes(c, p, i), flags);

	if (code)
		return code;
	code = c->api.cuMemHostGetDevicePointer(&p->device[i], at, 0);
	if (code)
		c->api.cuMemHostUnregister(at);
	return code;
}

static cu_result pin_one(const struct cuda *c, struct cuda_wanted w, unsigned flags, struct cuda_pinned *out)
{
	struct cuda_pinned p = { w.base, w.bytes, (w.bytes + c->chunk - 1) / c->chunk, NULL };

	p.device = calloc(p.n, sizeof(*p.device));
	if (!p.device)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < p.n; i++) {
		cu_result code = pin_chunk(c, &p, i, flags);

		if (code) {
			unpin_one(c, &p, i);
			return code;
		}
	}
	*out = p;
	return CUDA_SUCCESS;
}

/* ---- all ---- */

static cu_result unpin_all(struct cuda *c)
{
	cu_result first = CUDA_SUCCESS;

	for (int i = 0; i <= CUDA_SLOTS_MAX; i++) {
		struct cuda_pinned *p = i < CUDA_SLOTS_MAX ? &c->slot[i] : &c->params;
		cu_result code = p->base ? unpin_one(c, p, p->n) : CUDA_SUCCESS;

		first = first ? first : code;
	}
	c->pinned = false;
	return first;
}

enum status cuda_pin(struct cuda *c, const struct cuda_wanted *slots, struct cuda_wanted params, char *why, size_t size)
{
	const unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
	const char *what = "pinning a slot (cuMemHostRegister)";
	cu_context before;
	cu_result code = cuda_enter(c, &before);

	if (code)
		return say(c, code, "making the context current", why, size);
	for (int i = 0; i < CUDA_SLOTS_MAX && !code; i++)
		code = slots[i].base ? pin_one(c, slots[i], flags, &c->slot[i]) : CUDA_SUCCESS;
	if (!code && params.base && c->pins_params && c->read_only) {
		what = "pinning the parameters (cuMemHostRegister)";
		code = pin_one(c, params, flags | CU_MEMHOSTREGISTER_READ_ONLY, &c->params);
	}
	c->pinned = !code;
	if (code)
		unpin_all(c);
	cuda_leave(c, before);
	return code ? say(c, code, what, why, size) : ST_OK;
}

bool cuda_unpin(struct cuda *c, char *why, size_t size)
{
	const char *what = "making the context current";
	cu_context before;
	cu_result code = cuda_enter(c, &before), unpinned;
	const bool entered = !code;

	if (entered) {
		what = "waiting for the device before its memory is exchanged (cuCtxSynchronize)";
		code = c->api.cuCtxSynchronize();
	}
	unpinned = unpin_all(c);
	if (!code && unpinned) {
		what = "unpinning (cuMemHostUnregister)";
		code = unpinned;
	}
	if (entered)
		cuda_leave(c, before);
	if (code)
		say(c, code, what, why, size);
	return !code;
}

bool cuda_find(const struct cuda *c, const struct cuda_pinned *p, const unsigned char *at, cu_memory *out,
	       size_t *out_bytes)
{
	size_t offset, i;

	if (!p->base || at < p->base || at >= p->base + p->bytes)
		return false;
	offset = (size_t)(at - p->base);
	i = offset / c->chunk;
	*out = p->device[i] + offset % c->chunk;
	*out_bytes = chunk_bytes(c, p, i) - offset % c->chunk;
	return true;
}

/* ---- the end ---- */

static void free_driver_objects(struct cuda *c)
{
	if (c->side)
		c->api.cuStreamDestroy(c->side);
	if (c->event)
		c->api.cuEventDestroy(c->event);
	for (int i = 0; i < 2; i++)
		if (c->stage_free[i])
			c->api.cuEventDestroy(c->stage_free[i]);
	if (c->stage)
		c->api.cuMemFreeHost(c->stage);
}

void cuda_free(struct cuda *c)
{
	cu_context before = NULL;
	char why[200];
	bool quiet;

	if (!c)
		return;
	quiet = !c->context || cuda_unpin(c, why, sizeof(why));
	pthread_mutex_lock(&c->lock);
	c->job = NULL;
	pthread_mutex_unlock(&c->lock);
	if (!quiet) /* a host function may still be called with this memory */
		return;
	if (c->context && !cuda_enter(c, &before)) {
		free_driver_objects(c);
		cuda_leave(c, before);
	}
	if (c->retained)
		c->api.cuDevicePrimaryCtxRelease(c->device);
	pthread_mutex_destroy(&c->lock);
	free(c);
}
