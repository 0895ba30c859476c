/* SPDX-License-Identifier: Apache-2.0 */
/* The entry points of the fake driver: those that gacc uses (proto/cuda_driver.h) and a few more for programs of tests.
 * A symbol that is not in either list does not exist. tests/gpu/unit/cuda_header.c compares both with cuda.h. */
#ifndef GACC_FAKE_CUDA_API_H
#define GACC_FAKE_CUDA_API_H

#include "fake_cuda/more.h"
#include "proto/cuda_driver.h"

#define API_DECLARE(name, suffix, params) __attribute__((visibility("default"))) cu_result name##suffix params;
CUDA_FUNCTIONS(API_DECLARE)
CUDA_MORE_FUNCTIONS(API_DECLARE)
#undef API_DECLARE

#endif
