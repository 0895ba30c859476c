/* SPDX-License-Identifier: Apache-2.0 */
/* The arenas of a job in a GPU's memory: made, handed out as descriptors, and adopted by the engine's next life.
 *
 * Every segment of the plan that is on the device is an allocation of its own, with the header of segment_layout.h in
 * its first page; that of the role SEG_DEVICE has struct cuda_state, the gate, stamps and undo areas. A
 * descriptor is the memory: it lives as long as anybody holds one, and the GPU's device file is open somewhere. An
 * allocation is longer than its segment, up to the device's granularity.
 *
 * Only cuda_memory_make writes with copies and sets. From then on everything is written by kernels, which look at the
 * gate (kernels_cuda.h). Main thread.
 */
#ifndef GACC_CUDA_MEMORY_H
#define GACC_CUDA_MEMORY_H

#include "cuda/device.h"
#include "engine/plan.h"
#include "engine/segment.h"

/* At the beginning of SEG_DEVICE's data: what it was made for. Stamps and undo areas mean something only for the same
 * kernels, units and shares. */
struct cuda_state {
	uint32_t abi;	     /* CUDA_KERNELS_ABI */
	uint32_t unit;	     /* elements */
	uint32_t shares;     /* of an update */
	uint32_t undo_half;  /* floats */
	struct cu_uuid uuid; /* the device */
};

struct cuda_arena {
	struct plan_segment what;
	int fd;		  /* -1: none */
	cu_handle handle; /* 0: none */
	cu_memory whole;  /* 0: no address */
	uint64_t n_whole;
	bool mapped;
	cu_memory at; /* the data */
};

struct cuda_memory {
	const struct cuda_device *device;
	const struct plan *plan;
	struct cuda_arena *arena; /* [n] */
	int n;
	uint32_t shares;
	/* 0: this job has none */
	cu_memory accum[2], params, master, state[2];
	cu_memory *slot; /* [plan->slots] */
	void **pinned;	 /* [plan->slots], of slots on the host: their pages; NULL: none */
	cu_memory gate, stamp, undo;
};
#define CUDA_MEMORY_NONE ((struct cuda_memory){ .n = 0 })

/* The segments that lie on the device, SEG_DEVICE first, then in the order of plan_segments, without
 * SEG_DEVICE_FILE. Fills at most n of out and
 * returns how many there are. */
int cuda_segments(const struct plan *, uint32_t shares, struct plan_segment *out, int n);

/* All of them, zeroed. `arena[i].fd` are the descriptors, which stay the memory's. Device and plan are borrowed.
 * ST_NO_MEMORY and `why` with the numbers; other errors as of the device. */
enum status cuda_memory_make(struct cuda_memory *out, const struct cuda_device *, const struct plan *,
			     uint64_t generation, char *why, size_t n_why);
/* From n descriptors in the same order, which are taken, also on errors. ST_SEGMENT_CORRUPT: one of them is something
 * else, or of another job, generation or layout. The memory is whole otherwise: ST_INVALID_CONFIG, it was made by other
 * kernels, or for another device; ST_NO_MEMORY, ST_IO_ERROR, the device cannot take it now. */
enum status cuda_memory_adopt(struct cuda_memory *out, const struct cuda_device *, const struct plan *,
			      uint64_t generation, const int *fds, int n, char *why, size_t n_why);
/* Of a plan without slots_on_host: other memory for a slot, zeroed, of which the descriptor is all that is left: the
 * caller's. ST_NO_MEMORY and `why` with the numbers; other errors as of the device. */
enum status cuda_memory_make_slot(const struct cuda_memory *, uint32_t slot, uint64_t generation, int *out_fd,
				  char *why, size_t n_why);
/* The slot gets memory of such a descriptor, which is taken, also on errors, after which the slot is as it was. No
 * operation is under way. As cuda_memory_adopt. */
enum status cuda_memory_take_slot(struct cuda_memory *, uint32_t slot, uint64_t generation, int fd, char *why,
				  size_t n_why);
/* Of a plan with slots_on_host: where this slot's segment is mapped, its header page first, and its bytes of data. It
 * is pinned, so that kernels read it over the bus, in the place of what the slot was before; NULL: of nothing. No
 * operation is under way. ST_NO_MEMORY, or as of the device. */
enum status cuda_memory_slot(struct cuda_memory *, uint32_t slot, void *pages, uint64_t bytes);
void cuda_memory_fini(struct cuda_memory *); /* CUDA_MEMORY_NONE or half-built is fine */

/* Parameters of a group in their own dtype. */
static inline cu_memory cuda_params(const struct cuda_memory *m, uint32_t group)
{
	return m->params + m->plan->group[group].param_offset;
}
/* Values that count of a dtype group, from its first element on: f32 parameters, the master, or 16-bit parameters
 * without one. */
static inline cu_memory cuda_values(const struct cuda_memory *m, uint32_t group, enum dtype *out_dtype)
{
	const struct arena_group *g = &m->plan->group[group];
	*out_dtype = g->param_dtype;
	if (g->param_dtype == DTYPE_F32 || !m->master)
		return cuda_params(m, group);
	*out_dtype = DTYPE_F32;
	return m->master + g->start * sizeof(float);
}

#endif
