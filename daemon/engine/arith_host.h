/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of arenas in shared memory: on this node's CPUs, with the kernels of math/. */
#ifndef GACC_ENGINE_ARITH_HOST_H
#define GACC_ENGINE_ARITH_HOST_H

#include "engine/arith.h"
#include "engine/memory.h"
#include "engine/workers.h"

/* For complete memory. kernels: name of a table, "" the best of this CPU. Memory and workers are borrowed until close.
 * ST_INVALID_CONFIG: this CPU cannot run that table; ST_NO_MEMORY. */
enum status arith_host_open(struct arith **out, const struct memory *, const char *kernels, struct workers *);

#endif
