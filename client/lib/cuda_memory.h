/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a job that a GPU's driver has pinned, and how the driver is called: the context of gacc_cuda_register, made
 * current for each call. All functions are the job's thread's.
 */
#ifndef GACC_CLIENT_CUDA_MEMORY_H
#define GACC_CLIENT_CUDA_MEMORY_H

#include "proto/cuda_driver.h"
#include "proto/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gacc_job;
struct layout;

#define CUDA_SLOTS_MAX 2
#define CUDA_STAGE_BYTES ((size_t)64 << 20)

/* One mapping, registered in chunks: one registration of 512 GiB fails in some drivers. */
struct cuda_pinned {
	unsigned char *base; /* NULL: it is not pinned */
	size_t bytes, n;     /* n: chunks */
	cu_memory *device;   /* [n]: where the device sees each */
};

/* Memory of the device, imported from a descriptor. */
struct cuda_imported {
	cu_memory at; /* where all of it lies */
	size_t bytes; /* up to the device's granularity; 0: none */
	cu_handle handle;
};

/* What a host function gets: the slot whose word it raises. */
struct cuda_ring {
	struct cuda *cuda;
	uint32_t slot;
	uint64_t rung; /* by host functions, several at a time if graphs run in several streams */
	uint64_t due;  /* rings that were enqueued or launched */
};

struct cuda {
	struct cuda_driver api;
	cu_context context;
	cu_device device;
	bool retained;		     /* the context, by us */
	bool pins_params, read_only; /* read_only: the device can register memory that we cannot write */
	size_t chunk;
	bool pinned; /* all that is to be */
	bool lost;   /* memory was exchanged and could not be pinned again; `why` has the reason */
	char why[200];
	struct cuda_pinned slot[CUDA_SLOTS_MAX], params;
	struct cuda_ring ring[CUDA_SLOTS_MAX];
	cu_stream side; /* where host functions run */
	cu_event event;
	unsigned char *stage; /* CUDA_STAGE_BYTES in two halves; NULL: not needed yet */
	cu_event stage_free[2];
	bool stage_used[2];
	pthread_mutex_t lock; /* of job, which host functions use */
	struct gacc_job *job; /* NULL: it is being freed */
};

/* A mapping that is to be pinned. */
struct cuda_wanted {
	unsigned char *base; /* NULL: none */
	size_t bytes;
};

/* Makes the context current, and afterwards what was current before. */
cu_result cuda_enter(const struct cuda *, cu_context *out_before);
void cuda_leave(const struct cuda *, cu_context before);

/* Pins slots and, if they are to be, the parameters. A failure unpins all, and `why` says what failed. NO_MEMORY,
 * IO_ERROR. */
enum status cuda_pin(struct cuda *, const struct cuda_wanted *slots, struct cuda_wanted params, char *why, size_t size);
/* Waits until the context has nothing to do, and unpins what is pinned. False: the driver failed, `why` says how; then
 * nothing is pinned that we know of. */
bool cuda_unpin(struct cuda *, char *why, size_t size);
/* Unpins and frees; what a failed driver may still use stays. Takes NULL. */
void cuda_free(struct cuda *);

/* Where the device sees `at`, and how many bytes from there lie in one registration. False: it is not pinned. */
bool cuda_find(const struct cuda *, const struct cuda_pinned *, const unsigned char *at, cu_memory *out,
	       size_t *out_bytes);

/* ---- cuda_import.c ---- */

/* Maps the device's memory of this descriptor, which stays the caller's: at least so many bytes, up to the device's
 * granularity. NO_MEMORY, IO_ERROR; `why` says what failed. */
enum status cuda_import(const struct cuda *, int fd, size_t bytes, bool writable, struct cuda_imported *out, char *why,
			size_t size);
/* Nothing on the device uses it any more. */
void cuda_drop(const struct cuda *, struct cuda_imported *);
/* Puts the fresh memory where the old one lies, which is given back. A slot, which is writable, keeps its content from
 * data_offset on. Nothing on the device uses either. IO_ERROR: both may be gone. */
enum status cuda_replace(const struct cuda *, struct cuda_imported *old, struct cuda_imported *fresh, bool writable,
			 size_t data_offset);

/* Bytes [offset, offset + n) of the parameter layout, gathered from `values` (layout_gather), to an address on the
 * device, and they are there. NO_MEMORY, IO_ERROR; `why` says what failed. */
enum status cuda_fill(const struct cuda *, const struct layout *, const void *const *values, size_t offset, size_t n,
		      cu_memory to, char *why, size_t size);

#endif
