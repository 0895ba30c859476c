/* SPDX-License-Identifier: Apache-2.0 */
/* Failures on demand: which call, which launch, which copy. Read from the environment as options.h is; thread-safe. */
#ifndef GACC_FAKE_CUDA_FAULTS_H
#define GACC_FAKE_CUDA_FAULTS_H

#include "proto/cuda_types.h"

#include <stdbool.h>

/* Counts this call, of which the symbol is given, suffix or not; what it has to return, CUDA_SUCCESS: go on. */
cu_result faults_of_call(const char *symbol);

enum fault { FAULT_NONE, FAULT_STICKY, FAULT_HANG, FAULT_KILL };

/* Counts a launch when it is queued: its number, from 1. What happens when it runs: NONE, STICKY with *out_code, HANG.
 */
long faults_count_launch(void);
enum fault faults_of_launch(long number, cu_result *out_code);
/* The same of copies and sets. KILL: the process dies when *out_bytes are written. */
long faults_count_copy(void);
enum fault faults_of_copy(long number, size_t *out_bytes);
/* Stores of kernels after which the process dies; below 0: it does not. */
int64_t faults_kill_after(void);

#endif
