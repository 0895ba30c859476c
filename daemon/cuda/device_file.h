/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU's file in /dev, by the GPU's UUID.
 *
 * When the last process that has /dev/nvidiaN open ends, the driver may shut the GPU down, and memory that only
 * descriptors keep is lost. An engine therefore opens the file and hands it to gaccd with the memory's descriptors.
 * The driver numbers the files by its own order: /proc/driver/nvidia/gpus/BUS/information has "GPU UUID" and
 * "Device Minor" (the driver's README, "The /proc interface"). */
#ifndef GACC_CUDA_DEVICE_FILE_H
#define GACC_CUDA_DEVICE_FILE_H

#include "proto/cuda_types.h"
#include "proto/status.h"

#include <stddef.h>

/* proc: /proc/driver/nvidia; dev: /dev. *out is close-on-exec. ST_IO_ERROR: there is no such list, or the file cannot
 * be opened; *out is -1. ST_INVALID_CONFIG: there is a list without this GPU, as of an instance (MIG). `why` says it
 * in a sentence. Any thread; the driver answers at once for a GPU that is up. */
enum status device_file_open(const char *proc, const char *dev, const struct cu_uuid *, int *out, char *why,
			     size_t n_why);

#endif
