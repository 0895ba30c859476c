/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes a job's arenas on a GPU from the host. For arith_cuda.c; the engine's main thread, reads also on the
 * thread that writes checkpoints. */
#include "cuda/bytes.h"

#include <string.h>

#define TAKEN_AT_ONCE (UINT64_C(64) << 20) /* bytes; each wait shows that the device gets on */

enum status cuda_bytes_new(struct cuda_bytes *out, const struct cuda_life *life)
{
	const struct cuda_device *d = life->memory->device;
	struct cuda_bytes b = { .life = life };
	enum status st = cuda_pinned(d, CUDA_STAGING, &b.staging, &b.seen);
	if (st)
		return st;
	st = cuda_check(d, "cuStreamCreate", d->cu.cuStreamCreate(&b.reader, CU_STREAM_NON_BLOCKING));
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
	b->life->memory->device->cu.cuStreamDestroy(b->reader);
	cuda_pinned_free(b->life->memory->device, b->staging);
	*b = (struct cuda_bytes){ .life = NULL };
}

enum status cuda_bytes_read(const struct cuda_bytes *b, void *to, cu_memory from, uint64_t n)
{
	const struct cuda_device *d = b->life->memory->device;
	enum status st = cuda_enter(d); /* it may be a thread's first call */
	if (!st && n)
		st = cuda_check(d, "a copy from the GPU", d->cu.cuMemcpyDtoHAsync(to, from, n, b->reader));
	return st ? st : cuda_check(d, "a copy from the GPU", d->cu.cuStreamSynchronize(b->reader));
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
