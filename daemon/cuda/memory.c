/* SPDX-License-Identifier: Apache-2.0 */
/* Makes and adopts a job's memory on a GPU: allocations with descriptors, their headers and addresses. For the plug-in
 * and arith_cuda.c; the engine's main thread. */
#include "cuda/memory.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE 256 /* what begins in SEG_DEVICE begins at a multiple of this */
#define SHARES_MOST 65536
#define SHARES_EACH 2 /* for a multiprocessor: what its shared memory has room for */

static uint64_t lines(uint64_t bytes)
{
	return (bytes + LINE - 1) / LINE * LINE;
}

static uint64_t stamps_at(void)
{
	return lines(sizeof(struct cuda_state)) + lines(sizeof(struct cuda_gate));
}

static uint64_t undo_at(uint32_t shares)
{
	return stamps_at() + lines(shares * sizeof(cuda_word));
}

int cuda_segments(const struct plan *p, uint32_t shares, struct plan_segment *out, int n)
{
	const uint64_t bytes = undo_at(shares) + (uint64_t)shares * 2 * CUDA_UNDO_HALF * sizeof(float);
	const int host = plan_host_segments(p), all = plan_segments(p, NULL, 0) - 1; /* without SEG_DEVICE_FILE */
	struct plan_segment *s = calloc((size_t)all, sizeof(*s));
	assert(p->device == PLAN_CUDA);
	if (!s)
		return 0;
	plan_segments(p, s, all);
	s[host].bytes = bytes;
	for (int i = host; i < all && i - host < n; i++)
		out[i - host] = s[i];
	free(s);
	return all - host;
}

static void place(struct cuda_memory *m, const struct cuda_arena *a)
{
	const uint32_t role = a->what.role;
	if (role == SEG_DEVICE) {
		m->gate = a->at + lines(sizeof(struct cuda_state));
		m->stamp = a->at + stamps_at();
		m->undo = a->at + undo_at(m->shares);
	} else if (role == SEG_ACCUM0 || role == SEG_ACCUM1) {
		m->accum[role - SEG_ACCUM0] = a->at;
	} else if (role == SEG_PARAMS) {
		m->params = a->at;
	} else if (role == SEG_MASTER) {
		m->master = a->at;
	} else if (role == SEG_STATE0 || role == SEG_STATE1) {
		m->state[role - SEG_STATE0] = a->at;
	} else {
		m->slot[a->what.index] = a->at;
	}
}

static enum status prepare(struct cuda_memory *m, const struct cuda_device *d, const struct plan *p, uint32_t shares)
{
	const int n = cuda_segments(p, shares, NULL, 0);
	struct plan_segment *s = calloc((size_t)n + 1, sizeof(*s));
	*m = (struct cuda_memory){ .device = d, .plan = p, .shares = shares };
	m->arena = calloc((size_t)n + 1, sizeof(*m->arena));
	m->slot = calloc(p->slots, sizeof(*m->slot));
	m->pinned = calloc(p->slots, sizeof(*m->pinned));
	if (!n || !s || !m->arena || !m->slot || !m->pinned) {
		free(s);
		return ST_NO_MEMORY;
	}
	m->n = cuda_segments(p, shares, s, n);
	for (int i = 0; i < n; i++)
		m->arena[i] = (struct cuda_arena){ .what = s[i], .fd = -1 };
	free(s);
	return ST_OK;
}

static struct cu_location location(const struct cuda_device *d)
{
	return (struct cu_location){ CU_MEM_LOCATION_TYPE_DEVICE, d->number };
}

static struct cu_allocation exportable(const struct cuda_device *d)
{
	return (struct cu_allocation){ .type = CU_MEM_ALLOCATION_TYPE_PINNED,
				       .requested_handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				       .location = location(d),
				       .flags = { .gpu_direct_rdma_capable = d->may_rdma } };
}

/* An address, and the right to write. *what: the call that has failed. */
static cu_result map_as(const struct cuda_device *d, struct cuda_arena *a, const char **what)
{
	const struct cu_access access = { location(d), CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	*what = "cuMemAddressReserve";
	cu_result r = d->cu.cuMemAddressReserve(&a->whole, a->n_whole, 0, 0, 0);
	if (r) {
		a->whole = 0;
		return r;
	}
	*what = "cuMemMap";
	r = d->cu.cuMemMap(a->whole, a->n_whole, 0, a->handle, 0);
	a->mapped = !r;
	a->at = a->whole + SEGMENT_DATA_OFFSET;
	if (r)
		return r;
	*what = "cuMemSetAccess";
	return d->cu.cuMemSetAccess(a->whole, a->n_whole, &access, 1);
}

/* The descriptor is closed, too. */
static void drop(const struct cuda_device *d, struct cuda_arena *a)
{
	if (a->mapped)
		d->cu.cuMemUnmap(a->whole, a->n_whole);
	if (a->whole)
		d->cu.cuMemAddressFree(a->whole, a->n_whole);
	if (a->handle)
		d->cu.cuMemRelease(a->handle);
	if (a->fd >= 0)
		close(a->fd);
	*a = (struct cuda_arena){ .what = a->what, .fd = -1 };
}

static enum status measure(const struct cuda_device *d, struct cuda_arena *a)
{
	const struct cu_allocation what = exportable(d);
	size_t grain = 0;
	const enum status st =
		cuda_check(d, "cuMemGetAllocationGranularity",
			   d->cu.cuMemGetAllocationGranularity(&grain, &what, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
	if (!st)
		a->n_whole = (SEGMENT_DATA_OFFSET + a->what.bytes + grain - 1) / grain * grain;
	return st;
}

/* ---- making ---- */

static enum status create(const struct cuda_device *d, struct cuda_arena *a)
{
	const struct cu_allocation what = exportable(d);
	enum status st = measure(d, a);
	if (!st)
		st = cuda_check(d, "cuMemCreate", d->cu.cuMemCreate(&a->handle, a->n_whole, &what, 0));
	if (st)
		return st;
	return cuda_check(
		d, "cuMemExportToShareableHandle",
		d->cu.cuMemExportToShareableHandle(&a->fd, a->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

static enum status map_new(const struct cuda_device *d, struct cuda_arena *a)
{
	const char *what;
	const cu_result r = map_as(d, a, &what);
	return cuda_check(d, what, r);
}

static enum status fill(const struct cuda_memory *m, const struct cuda_arena *a, uint64_t generation)
{
	const struct cuda_device *d = m->device;
	struct segment_header h;
	segment_header_fill(&h, m->plan->job_id, generation, m->plan->fingerprint, a->what.role, a->what.index,
			    a->what.bytes);
	enum status st = cuda_check(d, "cuMemsetD8Async", d->cu.cuMemsetD8Async(a->whole, 0, a->n_whole, d->stream));
	if (!st)
		st = cuda_wait(d, a->n_whole);
	if (!st)
		st = cuda_upload(d, a->whole, &h, sizeof(h));
	if (!st && a->what.role == SEG_DEVICE)
		st = cuda_upload(
			d, a->at,
			&(struct cuda_state){ CUDA_KERNELS_ABI, KERNEL_BLOCK, m->shares, CUDA_UNDO_HALF, d->uuid },
			sizeof(struct cuda_state));
	return st ? st : cuda_wait(d, 0);
}

static enum status make(const struct cuda_memory *m, struct cuda_arena *a, uint64_t generation)
{
	enum status st = create(m->device, a);
	if (!st)
		st = map_new(m->device, a);
	return st ? st : fill(m, a, generation);
}

static uint64_t count_units(const struct plan *p)
{
	const struct plan_range *r = plan_ranges(p);
	uint64_t n = 0;
	for (uint64_t i = 0; i < p->n_ranges; i++)
		n += (r[i].count + KERNEL_BLOCK - 1) / KERNEL_BLOCK;
	return n;
}

/* What all of it takes, as allocations are whole pages of the device. */
static enum status measure_all(struct cuda_memory *m, uint64_t *out)
{
	enum status st = ST_OK;
	*out = 0;
	for (int i = 0; i < m->n && !st; i++) {
		st = measure(m->device, &m->arena[i]);
		*out += m->arena[i].n_whole;
	}
	return st;
}

/* When what was made of it has been given back. */
static enum status explain(const struct cuda_device *d, const char *what, uint64_t need, enum status st, char *why,
			   size_t n_why)
{
	const double mib = 1 << 20;
	size_t left = 0, total = 0;
	if (st == ST_NO_MEMORY && need && !d->cu.cuMemGetInfo(&left, &total))
		snprintf(why, n_why, "%s %.1f MiB of the GPU's memory, of whose %.1f MiB %.1f are free now", what,
			 (double)need / mib, (double)total / mib, (double)left / mib);
	else if (st)
		snprintf(why, n_why, "the GPU's memory cannot be taken: %s", status_info(st)->text);
	return st;
}

enum status cuda_memory_make(struct cuda_memory *out, const struct cuda_device *d, const struct plan *p,
			     uint64_t generation, char *why, size_t n_why)
{
	const uint64_t units = count_units(p), most = (uint64_t)d->processors * SHARES_EACH;
	struct cuda_memory m;
	uint64_t need = 0;
	enum status st = prepare(&m, d, p, (uint32_t)(units < most ? units : most));
	if (!st)
		st = measure_all(&m, &need);
	for (int i = 0; i < m.n && !st; i++) {
		st = make(&m, &m.arena[i], generation);
		if (!st)
			place(&m, &m.arena[i]);
	}
	if (st) {
		cuda_memory_fini(&m);
		return explain(d, "the job needs", need, st, why, n_why);
	}
	*out = m;
	return ST_OK;
}

/* ---- adopting ---- */

/* That of the first descriptor, before the number of shares is known. */
static enum status read_state(const struct cuda_device *d, const struct cuda_arena *a, struct cuda_state *out,
			      char *why, size_t n_why)
{
	enum status st = cuda_download(d, out, a->at, sizeof(*out));
	if (st)
		return st;
	if (out->abi != CUDA_KERNELS_ABI || out->unit != KERNEL_BLOCK || out->undo_half != CUDA_UNDO_HALF)
		snprintf(why, n_why,
			 "memory of kernels of version %u, these are of version %u: finish or save the job with those",
			 out->abi, CUDA_KERNELS_ABI);
	else if (memcmp(&out->uuid, &d->uuid, sizeof(out->uuid)) != 0)
		snprintf(why, n_why, "memory of another GPU");
	else if (!out->shares || out->shares > SHARES_MOST)
		snprintf(why, n_why, "memory for an update of %u shares", out->shares);
	else
		return ST_OK;
	return ST_INVALID_CONFIG;
}

static enum status check(const struct cuda_memory *m, const struct cuda_arena *a, uint64_t generation, char *why,
			 size_t n_why)
{
	struct segment_header h;
	enum status st = cuda_download(m->device, &h, a->whole, sizeof(h));
	if (!st)
		st = segment_header_check(&h, SEGMENT_DATA_OFFSET + a->what.bytes, why, n_why);
	if (!st)
		st = segment_header_match(&h, m->plan->job_id, m->plan->fingerprint, a->what.role, a->what.index, why,
					  n_why);
	if (st || h.generation == generation)
		return st;
	snprintf(why, n_why, "generation %" PRIu64 ", expected %" PRIu64, h.generation, generation);
	return ST_SEGMENT_CORRUPT;
}

/* Of a descriptor, or a length, that is wrong the driver says so. Whatever else it says is how the device fares at the
 * moment: the memory is whole, and a later engine may get it. */
static enum status judge(const struct cuda_device *d, const char *what, cu_result r, char *why, size_t n_why)
{
	const enum status st = cuda_check(d, what, r);
	const bool is_wrong = r == CUDA_ERROR_INVALID_VALUE || r == CUDA_ERROR_INVALID_HANDLE;
	if (st && !is_wrong)
		snprintf(why, n_why, "the GPU's memory is there, but cannot be taken now: %s: %s", what,
			 cuda_result_name(&d->cu, r));
	return is_wrong ? ST_SEGMENT_CORRUPT : st;
}

static enum status import(const struct cuda_device *d, struct cuda_arena *a, char *why, size_t n_why)
{
	const cu_result r = d->cu.cuMemImportFromShareableHandle(&a->handle, (void *)(intptr_t)a->fd,
								 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (r)
		a->handle = 0;
	snprintf(why, n_why, "the descriptor is no memory of this GPU, or no longer: %s", cuda_result_name(&d->cu, r));
	return judge(d, "cuMemImportFromShareableHandle", r, why, n_why);
}

static enum status map(const struct cuda_device *d, struct cuda_arena *a, char *why, size_t n_why)
{
	const char *what;
	const cu_result r = map_as(d, a, &what);
	snprintf(why, n_why, "the memory cannot be mapped with %" PRIu64 " bytes", a->n_whole);
	return judge(d, what, r, why, n_why);
}

static enum status adopt(const struct cuda_memory *m, struct cuda_arena *a, uint64_t generation, char *why,
			 size_t n_why)
{
	enum status st = measure(m->device, a);
	if (!st)
		st = import(m->device, a, why, n_why);
	if (!st)
		st = map(m->device, a, why, n_why); /* it is shorter than it should be, above all */
	return st ? st : check(m, a, generation, why, n_why);
}

/* Is this SEG_DEVICE of the job, whose length is not known yet? */
static enum status match_first(const struct cuda_device *d, const struct cuda_arena *a, const struct plan *p, char *why,
			       size_t n_why)
{
	struct segment_header h;
	char text[160] = "the device has failed";
	enum status st = cuda_download(d, &h, a->whole, sizeof(h));
	if (!st)
		st = segment_header_match(&h, p->job_id, p->fingerprint, SEG_DEVICE, 0, text, sizeof(text));
	if (st)
		snprintf(why, n_why, "segment 0 (role %d): %s", SEG_DEVICE, text);
	return st;
}

/* How many shares the memory was made for: the length of SEG_DEVICE depends on it. */
static enum status read_shares(const struct cuda_device *d, int fd, const struct plan *p, uint32_t *shares, char *why,
			       size_t n_why)
{
	struct cuda_arena a = { .what = { SEG_DEVICE, 0, sizeof(struct cuda_state), true }, .fd = fd };
	struct cuda_memory m = { .device = d, .arena = calloc(1, sizeof(a)), .n = 1 };
	struct cuda_state state = { 0 };
	if (!m.arena)
		return ST_NO_MEMORY;
	enum status st = measure(d, &a);
	if (!st)
		st = import(d, &a, why, n_why);
	if (!st)
		st = map(d, &a, why, n_why);
	if (!st)
		st = match_first(d, &a, p, why, n_why);
	if (!st)
		st = read_state(d, &a, &state, why, n_why);
	a.fd = -1; /* the caller's */
	*m.arena = a;
	cuda_memory_fini(&m);
	*shares = state.shares;
	return st;
}

enum status cuda_memory_adopt(struct cuda_memory *out, const struct cuda_device *d, const struct plan *p,
			      uint64_t generation, const int *fds, int n, char *why, size_t n_why)
{
	struct cuda_memory m = CUDA_MEMORY_NONE;
	uint32_t shares = 0;
	enum status st = ST_SEGMENT_CORRUPT;
	snprintf(why, n_why, "the GPU's memory cannot be adopted");
	if (n > 0)
		st = read_shares(d, fds[0], p, &shares, why, n_why);
	if (!st)
		st = prepare(&m, d, p, shares);
	if ((!st && m.n != n) || n < 1) {
		snprintf(why, n_why, "%d descriptors of a GPU's memory, expected %d", n, m.n);
		st = ST_SEGMENT_CORRUPT;
	}
	for (int i = 0; i < n; i++) {
		if (st) {
			close(fds[i]);
			continue;
		}
		char text[160] = "the device has failed";
		m.arena[i].fd = fds[i];
		st = adopt(&m, &m.arena[i], generation, text, sizeof(text));
		if (st)
			snprintf(why, n_why, "segment %d (role %u): %s", i, m.arena[i].what.role, text);
		else
			place(&m, &m.arena[i]);
	}
	if (st)
		cuda_memory_fini(&m);
	else
		*out = m;
	return st;
}

/* ---- other memory for a slot ---- */

static struct cuda_arena *arena_of(const struct cuda_memory *m, uint32_t slot)
{
	for (int i = 0; i < m->n; i++)
		if (m->arena[i].what.role == SEG_SLOT && m->arena[i].what.index == slot)
			return &m->arena[i];
	return NULL;
}

enum status cuda_memory_make_slot(const struct cuda_memory *m, uint32_t slot, uint64_t generation, int *out_fd,
				  char *why, size_t n_why)
{
	const struct cuda_arena *is = arena_of(m, slot);
	struct cuda_arena a = { .fd = -1 };
	if (!is) {
		snprintf(why, n_why, "slot %u is not on the GPU", slot);
		return ST_INVALID_ARGUMENT;
	}
	a.what = is->what;
	const enum status st = make(m, &a, generation);
	*out_fd = st ? -1 : a.fd;
	if (!st)
		a.fd = -1;
	const uint64_t need = a.n_whole;
	drop(m->device, &a);
	return explain(m->device, "a slot needs", need, st, why, n_why);
}

enum status cuda_memory_take_slot(struct cuda_memory *m, uint32_t slot, uint64_t generation, int fd, char *why,
				  size_t n_why)
{
	struct cuda_arena *is = arena_of(m, slot);
	struct cuda_arena a = { .fd = fd };
	char text[160] = "the device has failed";
	enum status st = ST_INVALID_ARGUMENT;
	if (is) {
		a.what = is->what;
		st = adopt(m, &a, generation, text, sizeof(text));
	} else {
		snprintf(text, sizeof(text), "it is not on the GPU");
	}
	if (st) {
		snprintf(why, n_why, "slot %u: %s", slot, text);
		drop(m->device, &a);
		return st;
	}
	drop(m->device, is);
	*is = a;
	place(m, is);
	return ST_OK;
}

/* ---- both ---- */

enum status cuda_memory_slot(struct cuda_memory *m, uint32_t slot, void *pages, uint64_t bytes)
{
	cu_memory seen = 0;
	if (m->pinned[slot])
		cuda_unpin(m->device, m->pinned[slot]);
	m->pinned[slot] = NULL;
	m->slot[slot] = 0;
	if (!pages)
		return ST_OK;
	const enum status st = cuda_pin(m->device, pages, SEGMENT_DATA_OFFSET + bytes, &seen);
	if (st)
		return st;
	m->pinned[slot] = pages;
	m->slot[slot] = seen + SEGMENT_DATA_OFFSET;
	return ST_OK;
}

void cuda_memory_fini(struct cuda_memory *m)
{
	for (uint32_t i = 0; m->pinned && i < m->plan->slots; i++)
		if (m->pinned[i])
			cuda_unpin(m->device, m->pinned[i]);
	free(m->pinned);
	m->pinned = NULL;
	for (int i = 0; i < m->n; i++)
		drop(m->device, &m->arena[i]);
	free(m->arena);
	free(m->slot);
	m->arena = NULL;
	m->slot = NULL;
	m->n = 0;
}
