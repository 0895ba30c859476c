/* SPDX-License-Identifier: Apache-2.0 */
/* The sum over all parts of a job, and the first parameters, through memory of the host: what a part has on its GPU is
 * copied there, exchanged as in jobs on the host (engine/sum_parts.h), which gives the same bits, and brought back. For
 * a sum 4 bytes an element cross the bus in each direction.
 *
 * The exchange runs on the communication thread and only reads the GPU. What it has found is brought there by the main
 * thread afterwards, with a kernel that looks at the gate, as all that is written. */
#ifndef GACC_CUDA_PARTS_H
#define GACC_CUDA_PARTS_H

#include "coll/coll.h"
#include "cuda/bytes.h"

struct cuda_parts;

/* Of a plan with several parts, not sharded; all borrowed until cuda_parts_free. Takes plan_exchange_bytes of pinned
 * host memory. ST_NO_MEMORY, or as of the device. */
enum status cuda_parts_new(struct cuda_parts **out, const struct cuda_bytes *);
void cuda_parts_free(struct cuda_parts *); /* NULL is fine */

/* arith.h's reduce and broadcast: communication thread, one call at a time. Besides the communicator's failures
 * ST_IO_ERROR: the device has failed, and the next operation of the main thread says so. */
enum status cuda_parts_reduce(struct cuda_parts *, struct coll *, uint32_t src, bool filled);
enum status cuda_parts_broadcast(struct cuda_parts *, struct coll *, uint32_t root);
/* arith.h's reduced and filled: main thread, after such a call has succeeded. */
enum status cuda_parts_reduced(struct cuda_parts *, uint32_t dst);
enum status cuda_parts_filled(struct cuda_parts *);

#endif
