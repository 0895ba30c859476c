/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the fake driver begin with. Check runs each test in a process of its own: it sets the environment,
 * then loads the driver, which reads it. */
#ifndef GACC_TESTS_GPU_RIG_H
#define GACC_TESTS_GPU_RIG_H

#include "proto/cuda_driver.h"

#include <check.h>
#include <stddef.h>

extern struct cuda_driver cu; /* once it is loaded */

void rig_load(void);  /* the driver, for a machine of this test's own */
void rig_begin(void); /* rig_load, cuInit, and device 0's primary context as this thread's */

#define SUCCEEDS(call) ck_assert_str_eq(rig_name(call), "CUDA_SUCCESS")
#define FAILS(call, code) ck_assert_str_eq(rig_name(call), rig_name(code))
const char *rig_name(cu_result);

/* Zeroed memory of the host that several processes can have: a memfd, mapped. The descriptor goes to *out_fd unless
 * that is NULL. */
void *rig_shared(size_t n, int *out_fd);
cu_memory rig_alloc(size_t n); /* of the current device, zeroed */
cu_stream rig_stream(void);    /* one that waits for no other */
struct cu_allocation rig_exportable(cu_device);
void rig_read(void *to, cu_memory from, size_t n); /* through a stream of its own, and waits */

/* A child that runs `act` and exits with 0, and what it ended with: the status of waitpid. Begin with rig_load, since a
 * child cannot use the driver if its parent has called cuInit. */
int rig_child(void (*act)(void *), void *arg);

#endif
