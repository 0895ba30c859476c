/* SPDX-License-Identifier: Apache-2.0 */
/* What a stream does, one after the other. An operation's addresses are those of this process, where its memory lies.
 */
#ifndef GACC_FAKE_CUDA_OPERATION_H
#define GACC_FAKE_CUDA_OPERATION_H

#include "proto/cuda_types.h"

#include <stdbool.h>

struct event;
struct stream;

typedef void host_kernel(void **params, unsigned grid, unsigned block);

enum operation_kind {
	OPERATION_COPY,
	OPERATION_SET,
	OPERATION_SET_WORDS, /* of 4 bytes */
	OPERATION_WRITE,     /* cuStreamWriteValue64 */
	OPERATION_KERNEL,
	OPERATION_HOST_FUNCTION,
	OPERATION_RECORD, /* these two are the stream's own business */
	OPERATION_WAIT,
};

struct operation {
	struct operation *next;
	uint64_t number; /* in its stream, from 1 */
	enum operation_kind kind;
	long counted; /* kernels, copies and sets: as faults.h counted it */
	char *to;
	const char *from;
	size_t n, done; /* bytes: all, and what is done */
	uint64_t value; /* set: its lowest byte, its lowest word, or all of it */
	host_kernel *kernel;
	unsigned grid, block;
	cu_host_function function;
	void *arg;
	struct event *event;
	struct stream *other; /* to wait for .. */
	uint64_t until;	      /* .. this number there */
	size_t n_params;
	_Alignas(16) unsigned char params[]; /* of a kernel */
};

/* Does it, on the thread of a stream of the context of this device, without the driver's lock. An error becomes the
 * sticky one. Does not return when the fault says that it hangs or that the process dies there; in the ghost of the
 * dead process (ghost.h) it goes on and returns. */
void operation_run(struct operation *, unsigned on_machine);

#endif
