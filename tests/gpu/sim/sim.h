/* SPDX-License-Identifier: Apache-2.0 */
/* A simulator of CUDA's execution model, so that kernels can be tested where there is no GPU: the contract between the
 * shared object that holds the kernels and whoever loads it, a test or the fake libcuda.
 *
 * Kernels are compiled by a C++ compiler with -include on_host.h, together with sim.cc and fiber.cc, into a shared
 * object. For each kernel `k` it exports
 *
 *     void host_k(void **params, unsigned grid, unsigned block);
 *
 * which runs the whole launch and returns when it is done. params[i] points at the kernel's argument i, as for
 * cuLaunchKernel; all kernels here have one argument, a struct. Launches are one-dimensional, a block has up to
 * SIM_MAX_THREADS threads. Different threads of the process may run launches at the same time; the variables below
 * belong to all of them and are set while none runs. The caller's floating-point mode is kept, but during the launch
 * subnormals count as zero (x86-64), as -ftz=true has it.
 *
 * What the model promises: threads are fibers. A warp runs until it cannot go on, in an order of lanes that the seed
 * decides; a few blocks are resident at a time and change places at barriers and atomic operations. What a GPU may do
 * and this does not: run two lanes at the same time, return an old value from a cache, reorder loads. So a barrier or a
 * fence that is missing is found; one that is too weak is not. It is stricter than CUDA in one thing: what a thread
 * stores to global memory is seen by other threads, those of its own block included, only after its fence. Kernels
 * pass values among the threads of a block through shared memory. */
#ifndef GACC_TESTS_SIM_H
#define GACC_TESTS_SIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SIM_MAX_THREADS 1024
#define SIM_MAX_RESIDENT 8
#define SIM_SHARED_BYTES (48 * 1024) /* of a block; more is an error, as for static shared memory on a GPU */

typedef void sim_kernel(void **params, unsigned grid, unsigned block);

/* Draws the order of lanes, warps and blocks, the number of resident blocks (2 to SIM_MAX_RESIDENT), and the order in
 * which stores arrive. The same seed gives the same order. 0: all in ascending order, one block after the other. */
extern uint64_t sim_seed;
/* Not 0: stores to global memory may be held back until the thread's next fence or the end of its block, and arrive in
 * any order. 0: they arrive at once. Atomic operations are never held back; they do not wait for stores, either. */
extern int sim_weak;
/* That many stores and atomic operations on global memory still take place; instead of the next one the process dies.
 * Below 0: it does not. */
extern int64_t sim_kill_after;
/* Called instead of SIGKILL, on the stack of a fiber; NULL: SIGKILL. When it returns, the launch goes on from that
 * very store and sim_kill_after is -1: in a child that it has forked, this is a GPU that outlives its process. The hook
 * may also wait. */
extern void (*sim_on_kill)(void);
/* Stores and atomic operations on global memory since the object was loaded. */
extern uint64_t sim_effects;

#ifdef __cplusplus
}
#endif
#endif
