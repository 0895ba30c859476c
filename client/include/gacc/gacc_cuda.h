/* SPDX-License-Identifier: Apache-2.0 */
/* gacc for trainers whose gradients are on an NVIDIA GPU. The daemon adds and updates in host memory, or, with device:
 * cuda, on a GPU of the node.
 *
 *     gacc_attach, gacc_register, gacc_ready                 as in gacc.h; slots_per_rank: 2
 *     cuDevicePrimaryCtxRetain, cuCtxSetCurrent              or whatever makes a context current: cudaSetDevice, torch
 *     gacc_cuda_register(job, NULL);                         slots and parameters are pinned
 *     for (;;) {
 *             gacc_cuda_copy_params(job, stream, params, 0, bytes);          queued: the new parameters, to the device
 *             forward and backward, queued in `stream`
 *             gacc_grad_buffer(job, &slot, NULL);
 *             gacc_cuda_copy_gradient(job, stream, 0, grads, bytes);         queued: the gradients, to the slot
 *             gacc_cuda_push(job, stream, &(gacc_push_opts){ sizeof(gacc_push_opts), .async = 1 }, NULL);
 *             gacc_wait(job, -1, &step);                     the step: by then the stream has filled the slot
 *     }
 *     gacc_detach(job, 1);                                   unpins
 *
 * Slots on the device. A job with slots_on: device has slots and parameters in the memory of its GPU, which
 * gacc_cuda_register imports. gacc_grad_buffer and gacc_params then give addresses on the device, to be used by kernels
 * and copies alone: the gradients may be written straight to the slot, and no copy crosses the bus. gacc_cuda_register
 * comes before gacc_put_params, gacc_params and gacc_grad_buffer, which otherwise fail with DEVICE_MISMATCH, and the
 * context is one of that GPU. The parameters are mapped read-only: a kernel that writes them ends the context.
 *
 * Driver. libcuda.so.1 is loaded by gacc_cuda_register; neither building nor starting needs a toolkit, a driver or a
 * GPU. Drivers for CUDA 12.0 (R525) and later will do. GACC_ENOSYS: there is none here, or it is older.
 *
 * Context. All calls use the context that gacc_cuda_register found or was told to use, whichever is current; they leave
 * the current one as it was. Streams and device memory given to them must be of this context.
 *
 * Threads. All functions here are the job's thread's, like those of gacc.h. The library enqueues a host function, which
 * a thread of the driver runs; it calls no CUDA and never waits for long.
 *
 * Order. What writes to the slot must come before the push in `stream` (other streams must be joined by then), and so
 * must what reads the parameters: the push may complete the window, and the daemon then updates them in place. Reads of
 * the new parameters are enqueued after gacc_wait has returned. PyTorch's backward() joins its streams with the current
 * one; copy streams of your own are not joined.
 *
 * Memory. Pages stay pinned, or imported, until gacc_detach. After an outage the daemon may offer other memory; the
 * library then waits until the context has nothing to do, unpins, exchanges the memory beneath the same addresses, and
 * pins again; slots on the device are exchanged in the same way, with what is in them. If that fails, the job handle is
 * of no more use: all calls fail and say why, only gacc_detach remains, and the process may attach anew. It never goes
 * on with memory that is not pinned, where copies would silently be synchronous.
 *
 * Failures of the driver are GACC_EINTERNAL (GACC_ENOMEM for memory), with the driver's name in gacc_last_error. One
 * that stays, such as an illegal address, ends the context; gacc_detach works then, too.
 *
 * fork: the child of a process that has used CUDA can use neither CUDA nor gacc. Children that live on, such as workers
 * that load data, should be started before CUDA is used, or by forkserver or spawn: they keep the device open, and with
 * it work of a trainer that was killed.
 */
#ifndef GACC_GACC_CUDA_H
#define GACC_GACC_CUDA_H

#include "gacc/gacc.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st *gacc_cuda_stream; /* CUstream, cudaStream_t */
typedef unsigned long long gacc_cuda_memory;  /* CUdeviceptr: an address on the device */

typedef struct gacc_cuda_opts {
	size_t struct_size;
	int device;	    /* this device's primary context; -1: the context that is current */
	int no_params;	    /* 1: leave the parameters as they are; gacc_cuda_copy_params goes through a buffer */
	size_t chunk_bytes; /* of one registration, a multiple of 4096; 0: 4 GiB */
} gacc_cuda_opts;

/* 1: the job's slots and parameters are in the memory of a GPU (slots_on: device). After gacc_attach. */
GACC_API int gacc_cuda_is_on_device(const gacc_job *);
/* Pins slots and parameters (cuMemHostRegister, so that all contexts and the device can use them). After
 * gacc_register, once. opts NULL: the current context. Takes ready words 1 and 2 for itself. Where the device cannot
 * register read-only memory, the parameters stay unpinned and gacc_cuda_copy_params goes through 64 MiB of pinned
 * memory. GACC_ENOSYS: no driver. GACC_EINVAL: no context, or the job has one slot for each rank (slots_per_rank: 2
 * lets the device fill one while the other is added). GACC_ENOMEM. After a failure nothing is pinned, and it may be
 * called again. With slots on the device it imports them instead, and `no_params` and `chunk_bytes` mean nothing;
 * GACC_EINVAL: DEVICE_MISMATCH, another GPU than the context's has them, and gacc_last_error names both. */
GACC_API gacc_status gacc_cuda_register(gacc_job *, const gacc_cuda_opts *opts);

/* Where the device sees this address, which lies in a slot or in pinned parameters; out_bytes (may be NULL): how many
 * bytes from there lie together for the device. For kernels that read or write host memory. GACC_EINVAL: it is none. */
GACC_API gacc_status gacc_cuda_address(gacc_job *, const void *host, gacc_cuda_memory *out, size_t *out_bytes);

/* Enqueues a copy of `bytes` to the slot of the last gacc_grad_buffer, `offset` (gacc_offset) bytes from its start.
 * With `accumulate: none` GACC_EINVAL refuses a slot that was pushed without an answer and may be the sum: push it
 * again as it is, or ask gacc_grad_buffer for another one. */
GACC_API gacc_status gacc_cuda_copy_gradient(gacc_job *, gacc_cuda_stream stream, size_t offset, gacc_cuda_memory from,
					     size_t bytes);
/* Enqueues a copy of the parameters' bytes from `offset` (gacc_param_offset) on. Not pinned: it copies 32 MiB at a time
 * itself and waits for the stream in between, and a stream that is being captured is refused. */
GACC_API gacc_status gacc_cuda_copy_params(gacc_job *, gacc_cuda_stream stream, gacc_cuda_memory to, size_t offset,
					   size_t bytes);

/* Copies the parameters' bytes from `offset` on to memory of the host, and waits for that: to test or save them there.
 * When gacc_params may be called. */
GACC_API gacc_status gacc_cuda_read_params(gacc_job *, void *to, size_t offset, size_t bytes);

/* gacc_push of a slot that is full when all that is in `stream` now has run. The stream does not wait for anything, nor
 * does this call with opts->async. opts: as of gacc_push, without a ready word; ready_timeout_ms counts. After
 * GACC_ETIMEOUT call it again. Refused while the stream is being captured: a graph does not repeat pushes. */
GACC_API gacc_status gacc_cuda_push(gacc_job *, gacc_cuda_stream stream, const gacc_push_opts *opts,
				    gacc_push_info *out);

/* The two halves of gacc_cuda_push, for CUDA graphs. gacc_cuda_ring enqueues what says that the slot of the last
 * gacc_grad_buffer is full; it may be captured, and then says so in each launch of the graph, for that slot.
 * gacc_cuda_launched is called once for each such launch, when the same slot is held. gacc_cuda_push_rung pushes the
 * slot that is held, full when all rings of it have come that were enqueued or launched until now. Two slots that take
 * turns need two graphs. A graph with a ring is not launched any more after gacc_detach: the ring uses the job. */
GACC_API gacc_status gacc_cuda_ring(gacc_job *, gacc_cuda_stream stream);
GACC_API gacc_status gacc_cuda_launched(gacc_job *);
GACC_API gacc_status gacc_cuda_push_rung(gacc_job *, const gacc_push_opts *opts, gacc_push_info *out);

#ifdef __cplusplus
}
#endif

#endif
