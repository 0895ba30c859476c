/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at a job's parameters and sums on a GPU, in the blocks in which the host looks at them: digest of the
 * parameters, what of them is lost, norms of single tensors. Main thread. */
#ifndef GACC_CUDA_LOOKS_H
#define GACC_CUDA_LOOKS_H

#include "cuda/bytes.h"
#include "cuda/partials.h"
#include "engine/arith.h"
#include "engine/control_page.h"

struct cuda_looks;

/* All borrowed until cuda_looks_free. ST_NO_MEMORY, or as of the device. */
enum status cuda_looks_new(struct cuda_looks **out, const struct cuda_life *, const struct cuda_results *,
			   const struct cuda_bytes *, const struct control_page *);
void cuda_looks_free(struct cuda_looks *); /* NULL is fine */

/* Of all parameters as they are: of the master where there is one. */
enum status cuda_looks_digest(struct cuda_looks *, uint64_t *digest);
/* Of what trainers see. */
enum status cuda_looks_seen(struct cuda_looks *, uint64_t *digest);
/* As finite_find (engine/finite.h). */
enum status cuda_looks_nonfinite(struct cuda_looks *, struct nonfinite *out);
/* As arith.h's norms. */
enum status cuda_looks_norms(struct cuda_looks *, uint32_t half);

#endif
