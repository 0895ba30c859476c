/* SPDX-License-Identifier: Apache-2.0 */
/* Which of a node's GPUs a job gets: the one that it names, or the one with the most free memory.
 *
 * What is free is asked of NVML, which needs no context on a GPU; each context would take some hundred megabytes from
 * whoever computes there. Two engines that choose at the same moment may choose the same GPU. */
#ifndef GACC_CUDA_CHOOSE_H
#define GACC_CUDA_CHOOSE_H

#include "cuda/device_file.h"
#include "proto/cuda_driver.h"

#include <stdbool.h>
#include <stdint.h>

struct gpu_seen {
	cu_device number;
	struct cu_uuid uuid;
	char name[CUDA_UUID_TEXT];
	uint64_t free; /* bytes; 0: not known */
};

/* The index of the GPU whose name is, or begins with, `name`; of "#" and a number that one, from 0 on, in the driver's
 * order; of "" the first of those with the most free memory. -1: none, or several begin so, and `why` names those that
 * are there. Pure. */
int gpu_pick(const struct gpu_seen *, int n, const char *name, char *why, size_t n_why);

/* The same of those that the driver shows to this process (CUDA_VISIBLE_DEVICES), after cuInit. ST_INVALID_CONFIG:
 * there is no such GPU; ST_IO_ERROR: the driver has failed. */
enum status cuda_choose(const struct cuda_driver *, const char *name, struct gpu_seen *out, char *why, size_t n_why);

#endif
