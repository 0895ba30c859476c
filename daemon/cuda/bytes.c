/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes a job's arenas on a GPU from the host. For arith_cuda.c; the engine's main thread, reads also on the
 * thread that writes checkpoints, on the workers that copy for it, and on the communication thread. */
#include "cuda/bytes.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define TAKEN_AT_ONCE (UINT64_C(64) << 20) /* bytes; each wait shows that the device gets on */

/* ---- lanes ---- */

/* So many threads read at once. One copy crosses the bus in a third of the time that its thread then takes to copy it
 * on, or less, so this many keep the bus busy. */
#define LANES 8

struct lane {
	cu_stream stream;
	unsigned char *pinned; /* CUDA_STAGING bytes */
	bool taken;
};

struct cuda_lanes {
	pthread_mutex_t lock; /* for the rest but `pinned` */
	pthread_cond_t left;  /* or taken by another one */
	uint64_t came, went;  /* threads that asked for a lane, and that got one: in their order */
	void *pinned;	      /* that of all */
	struct lane lane[LANES];
};

static void lanes_free(const struct cuda_device *d, struct cuda_lanes *l)
{
	for (int i = 0; i < LANES; i++)
		if (l->lane[i].stream)
			d->cu.cuStreamDestroy(l->lane[i].stream);
	cuda_pinned_free(d, l->pinned);
	pthread_cond_destroy(&l->left);
	pthread_mutex_destroy(&l->lock);
	free(l);
}

static enum status lanes_new(const struct cuda_device *d, struct cuda_lanes **out)
{
	struct cuda_lanes *l = calloc(1, sizeof(*l));
	cu_memory unused;
	if (!l)
		return ST_NO_MEMORY;
	pthread_mutex_init(&l->lock, NULL);
	pthread_cond_init(&l->left, NULL);
	enum status st = cuda_pinned(d, LANES * CUDA_STAGING, &l->pinned, &unused);
	for (int i = 0; i < LANES && !st; i++) {
		l->lane[i].pinned = (unsigned char *)l->pinned + (uint64_t)i * CUDA_STAGING;
		st = cuda_check(d, "cuStreamCreate", d->cu.cuStreamCreate(&l->lane[i].stream, CU_STREAM_NON_BLOCKING));
	}
	if (st)
		lanes_free(d, l);
	else
		*out = l;
	return st;
}

static struct lane *lane_free(struct cuda_lanes *l)
{
	for (int i = 0; i < LANES; i++)
		if (!l->lane[i].taken)
			return &l->lane[i];
	return NULL;
}

/* Waits until one is free. Who came first gets the first one: the main thread must not wait while others take theirs
 * again and again. */
static struct lane *lane_take(struct cuda_lanes *l)
{
	struct lane *found = NULL;
	pthread_mutex_lock(&l->lock);
	const uint64_t mine = l->came++;
	while (l->went != mine || !(found = lane_free(l)))
		pthread_cond_wait(&l->left, &l->lock);
	found->taken = true;
	l->went++;
	if (l->went != l->came)
		pthread_cond_broadcast(&l->left);
	pthread_mutex_unlock(&l->lock);
	return found;
}

static void lane_leave(struct cuda_lanes *l, struct lane *lane)
{
	pthread_mutex_lock(&l->lock);
	lane->taken = false;
	if (l->went != l->came)
		pthread_cond_broadcast(&l->left);
	pthread_mutex_unlock(&l->lock);
}

static enum status copy_out(const struct cuda_device *d, const struct lane *lane, void *pinned, cu_memory from,
			    uint64_t n)
{
	const enum status st =
		cuda_check(d, "a copy from the GPU", d->cu.cuMemcpyDtoHAsync(pinned, from, n, lane->stream));
	return st ? st : cuda_check(d, "a copy from the GPU", d->cu.cuStreamSynchronize(lane->stream));
}

/* ---- life ---- */

enum status cuda_bytes_new(struct cuda_bytes *out, const struct cuda_life *life)
{
	const struct cuda_device *d = life->memory->device;
	struct cuda_bytes b = { .life = life };
	enum status st = cuda_pinned(d, CUDA_STAGING, &b.staging, &b.seen);
	if (st)
		return st;
	st = lanes_new(d, &b.lanes);
	if (st)
		cuda_pinned_free(d, b.staging);
	else
		*out = b;
	return st;
}

void cuda_bytes_fini(struct cuda_bytes *b)
{
	if (!b->life)
		return;
	lanes_free(b->life->memory->device, b->lanes);
	cuda_pinned_free(b->life->memory->device, b->staging);
	*b = (struct cuda_bytes){ .life = NULL };
}

/* ---- bytes ---- */

enum status cuda_bytes_read(const struct cuda_bytes *b, void *to, cu_memory from, uint64_t n)
{
	const struct cuda_device *d = b->life->memory->device;
	enum status st = cuda_enter(d); /* it may be a thread's first call */
	struct lane *lane = lane_take(b->lanes);
	for (uint64_t done = 0, part; done < n && !st; done += part) {
		part = n - done < CUDA_STAGING ? n - done : CUDA_STAGING;
		st = copy_out(d, lane, lane->pinned, from + done, part);
		if (!st)
			memcpy((char *)to + done, lane->pinned, part);
	}
	lane_leave(b->lanes, lane);
	return st;
}

enum status cuda_bytes_read_pinned(const struct cuda_bytes *b, void *to, cu_memory from, uint64_t n)
{
	const struct cuda_device *d = b->life->memory->device;
	enum status st = cuda_enter(d);
	struct lane *lane = lane_take(b->lanes);
	if (!st && n)
		st = copy_out(d, lane, to, from, n);
	lane_leave(b->lanes, lane);
	return st;
}

enum status cuda_bytes_take(const struct cuda_bytes *b, cu_memory to, cu_memory seen, uint64_t n)
{
	const struct cuda_device *d = b->life->memory->device;
	enum status st = ST_OK;
	for (uint64_t done = 0, part; done < n && !st; done += part) {
		part = n - done < TAKEN_AT_ONCE ? n - done : TAKEN_AT_ONCE;
		const struct cuda_copy a = { .pass = b->life->pass,
					     .to = cuda_pointer(to + done),
					     .from = cuda_pointer(seen + done),
					     .bytes = part };
		st = cuda_launch(d, "copy_bytes", &a, cuda_blocks(d, part / 4096));
		if (!st)
			st = cuda_life_wait(b->life, part);
	}
	return st;
}

enum status cuda_bytes_write(const struct cuda_bytes *b, cu_memory to, const void *from, uint64_t n)
{
	enum status st = ST_OK;
	for (uint64_t done = 0, part; done < n && !st; done += part) {
		part = n - done < CUDA_STAGING ? n - done : CUDA_STAGING;
		memcpy(b->staging, (const char *)from + done, part);
		st = cuda_bytes_take(b, to + done, b->seen, part);
	}
	return st;
}
