/* SPDX-License-Identifier: Apache-2.0 */
/* gacc's kernels on the first GPU, for the parts of gpu_probe: in a child of start(), one thread. What fails ends the
 * process with a row that says so. */
#ifndef GACC_BENCH_GPU_KERNELS_H
#define GACC_BENCH_GPU_KERNELS_H

#include "cuda/device.h"
#include "math/optim.h"

struct gpu {
	struct cuda_device device;
	int number;	  /* of the rows, for failures */
	const char *what; /* the row that is being worked on */
	struct cuda_pass pass;
	cu_memory gate, keys; /* of one life, whose generation is 1 */
};

/* False with a row "not run": this build has no kernels. */
bool gpu_open(struct gpu *, int number, const char *what);
/* The same with a gate that is at this address, zeroed. */
void gpu_open_gate(struct gpu *, cu_memory gate);

void gpu_must(const struct gpu *, enum status);
void gpu_call(const struct gpu *, const char *name, cu_result);
cu_memory gpu_alloc(const struct gpu *, uint64_t bytes);
void gpu_upload(const struct gpu *, cu_memory to, const void *from, uint64_t bytes);
void gpu_download(const struct gpu *, void *to, cu_memory from, uint64_t bytes);
void gpu_launch(const struct gpu *, const char *kernel, const void *argument, uint64_t blocks);
void gpu_wait(const struct gpu *);

/* dst = (src ? src : 0) + coef * each of n_sources arrays, in as many blocks as the engine takes, or in `blocks` of
 * them. */
struct gpu_add {
	cu_memory dst, src, g[KERNEL_MAX_SLOTS];
	enum dtype dtype; /* of g */
	uint32_t n_sources;
	float coef;
	cu_memory norm; /* 0: not taken; else n / KERNEL_BLOCK elements of 8, 8 and 4 bytes behind each other */
	uint64_t n;	/* a multiple of KERNEL_BLOCK */
	uint64_t blocks;
};
void gpu_add(const struct gpu *, const struct gpu_add *);

/* AdamW of one range, with digests and counts, as the engine launches it. */
struct gpu_adamw {
	cu_memory p, m, v, g, p16;		/* p16: bf16, or 0 */
	cu_memory table, stamp, undo, partials; /* gpu_adamw_open makes them */
	uint64_t n, units, shares;		/* n: a multiple of 4 */
	struct kernel_update update;
};
void gpu_adamw_open(const struct gpu *, struct gpu_adamw *);
/* window: another one than the last time. */
void gpu_adamw(const struct gpu *, const struct gpu_adamw *, uint64_t window);

/* The update of AdamW's third step with small steps, so that parameters stay where they are however often it runs. */
struct kernel_update gpu_small_steps(void);

#endif
