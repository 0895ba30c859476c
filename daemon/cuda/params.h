/* SPDX-License-Identifier: Apache-2.0 */
/* The initial parameters on a GPU: uploaded through a slot, or drawn on the host, whose logarithms and cosines have
 * other bits than a GPU's. Main thread. */
#ifndef GACC_CUDA_PARAMS_H
#define GACC_CUDA_PARAMS_H

#include "cuda/bytes.h"
#include "engine/arith.h"
#include "engine/gaps.h"

struct cuda_first;

/* All borrowed until cuda_first_free. ST_NO_MEMORY, or as of the device. */
enum status cuda_first_new(struct cuda_first **out, const struct cuda_life *, const struct cuda_bytes *,
			   const struct gaps *);
void cuda_first_free(struct cuda_first *); /* NULL is fine */

/* As the operations of arith.h. */
enum status cuda_first_put(struct cuda_first *, uint32_t slot, uint64_t offset, uint64_t bytes);
enum status cuda_first_init(struct cuda_first *, const struct arith *);

#endif
