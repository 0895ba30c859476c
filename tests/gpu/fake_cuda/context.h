/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts, and which is current in each thread. All calls but context_current with the driver's lock held. */
#ifndef GACC_FAKE_CUDA_CONTEXT_H
#define GACC_FAKE_CUDA_CONTEXT_H

#include "options.h"
#include "proto/cuda_types.h"

#include <stdbool.h>

struct stream;

struct context {
	cu_device device;
	unsigned on_machine;
	unsigned n_retained; /* of the primary context; 1 of others; 0: destroyed */
	struct stream *default_stream;
	int mark; /* descriptor: holders.h counts it */
};

struct context *context_current(void); /* of the calling thread; NULL: none */
cu_result context_set_current(struct context *);
/* cuCtxPushCurrent, cuCtxPopCurrent. NULL is nothing to push, and the answer if there was nothing to pop. */
cu_result context_push(struct context *);
struct context *context_pop(void);

cu_result context_retain_primary(cu_device, struct context **out);
cu_result context_release_primary(cu_device, bool all);
bool context_primary_is_active(cu_device);
cu_result context_make(cu_device, struct context **out);
cu_result context_destroy(struct context *);

/* Is it a context that has not been destroyed? */
struct context *context_find(cu_context);
cu_context context_handle(struct context *);

#endif
