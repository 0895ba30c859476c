/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer's update on a GPU, which an engine can die in at any instant and finish in its next life: what
 * engine/update.h is on the host. A share is a thread block; stamps and undo areas lie in SEG_DEVICE, and
 * kernels_cuda.h has the order of stores. Units are blocks of KERNEL_BLOCK elements. Main thread. */
#ifndef GACC_CUDA_UPDATE_H
#define GACC_CUDA_UPDATE_H

#include "cuda/looks.h"

struct cuda_updates;

/* All borrowed until cuda_updates_free. ST_NO_MEMORY, or as of the device. */
enum status cuda_updates_new(struct cuda_updates **out, const struct cuda_life *, const struct cuda_results *,
			     struct cuda_looks *, const struct control_page *);
void cuda_updates_free(struct cuda_updates *); /* NULL is fine */

/* As the operations update_begin, update_can_resume and update_run of arith.h. */
enum status cuda_updates_begin(struct cuda_updates *, uint64_t window);
enum status cuda_updates_can_resume(struct cuda_updates *, uint64_t window, bool *out);
enum status cuda_updates_run(struct cuda_updates *, const struct control_record *, uint32_t half,
			     struct arith_params *out);

#endif
