/* SPDX-License-Identifier: Apache-2.0 */
/* One life of an engine on a job's memory: its generation, and that no earlier one writes there any more.
 *
 * A GPU may go on with a launch after the process that queued it has died. So a life first raises the gate to a
 * generation of its own, and then waits until all blocks of earlier ones that have begun have ended, before it reads a
 * stamp or launches anything else (kernels_cuda.h). Main thread.
 */
#ifndef GACC_CUDA_LIFE_H
#define GACC_CUDA_LIFE_H

#include "cuda/memory.h"

struct cuda_life {
	const struct cuda_memory *memory;
	struct cuda_pass pass; /* for all launches */
	cuda_word left;	       /* this generation's cell, as it was at the beginning */
};

/* others_are_over: by some other proof than the counters, such as that the process which queued the work has been
 * waited for and was no client of MPS; then nothing is waited for. quiet_ns: how long to wait otherwise. ST_IO_ERROR
 * and `why`: the device failed, is not quiet after that time, or a younger life has the memory. */
enum status cuda_life_begin(struct cuda_life *out, const struct cuda_memory *, bool others_are_over, uint64_t quiet_ns,
			    char *why, size_t n_why);
/* Waits for all that this life has queued, which moves about so many bytes. ST_IO_ERROR: it may not be done, because
 * the device failed, or because a younger life has the memory. */
enum status cuda_life_wait(const struct cuda_life *, uint64_t bytes);

#endif
