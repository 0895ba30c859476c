/* SPDX-License-Identifier: Apache-2.0 */
/* The same job twice: in shared memory with the host's arithmetic, and on a device of the fake driver, or of NVIDIA's
 * if that is what the dynamic linker finds. Check runs each test in a process of its own, which sets the fake's
 * environment and loads it then. */
#ifndef GACC_TEST_GPU_TWIN_H
#define GACC_TEST_GPU_TWIN_H

#include "cuda/arith_cuda.h"
#include "unit/engine/rig.h"

#define TWIN_QUIET_NS (UINT64_C(5) * 1000000000)

struct twin {
	struct rig rig;
	struct memory mem;
	struct workers *workers;
	struct arith *host;
	struct cuda_device device;
	struct cuda_memory memory;
	struct arith *cuda;
	struct arith_norm norm; /* of the last add or inspect, the same in both */
};

/* The kernels of this build; without nvcc something that the fake takes for them. */
const void *twin_image(void);
/* Of a file, from the folder of this program: both can be moved. */
void twin_path(const char *from_program, char *out, size_t n);

/* A machine of this test's own, with the product's kernels; FAKE_CUDA_KERNELS may say where they are. seed: of the
 * simulator's order; 0: ascending. */
void twin_environment(uint64_t seed);
/* What a device does with the plan: the rig has made it for the host, where it has its memory. */
void twin_plan(struct rig *);
/* The device, without a job. */
void twin_device(struct cuda_device *);
void twin_open(struct twin *, const struct rig_config *);
void twin_close(struct twin *);

/* The host's slot as it is now, gaps included, to the device, as a trainer does it: by the slot's descriptor. */
void twin_give_slot(struct twin *, uint32_t slot);
/* The same for what the host has of a role. */
void twin_give(struct twin *, enum segment_role);
/* What the device has; free it. */
void *twin_read(struct twin *, enum segment_role);
/* The role's bytes are the same; NaNs may differ when `nans`. */
void twin_same(struct twin *, enum segment_role, bool nans);
void twin_same_slot(struct twin *, uint32_t slot);

/* On both, with the same counts, and the same norm if there is one. */
void twin_add(struct twin *, uint32_t dst, uint32_t src, bool first, const struct arith_source *s, uint32_t n,
	      bool norm);
void twin_inspect(struct twin *, uint32_t half);

#define OK(call) ck_assert_int_eq(call, ST_OK)

#endif
