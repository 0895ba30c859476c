/* SPDX-License-Identifier: Apache-2.0 */
/* The devices of the machine and which of them this process sees (CUDA_VISIBLE_DEVICES). A device has a number on the
 * machine, from which its UUID and its memory follow, and one as a cu_device of this process. */
#ifndef GACC_FAKE_CUDA_DEVICE_H
#define GACC_FAKE_CUDA_DEVICE_H

#include "proto/cuda_types.h"

#include <stdbool.h>

#define DEVICE_UUID_TEXT 48

void device_read_visible(void);				 /* cuInit: before all others */
int device_count(void);					 /* that this process sees */
bool device_is(cu_device);				 /* one of them */
unsigned device_on_machine(cu_device);			 /* its number there */
struct cu_uuid device_uuid(unsigned on_machine);	 /* the same in each process */
void device_uuid_text(unsigned, char[DEVICE_UUID_TEXT]); /* GPU-..., as NVML has it */
int device_attribute(cu_attribute);			 /* of each device */
bool device_attribute_is(cu_attribute);			 /* known to a driver of this version */

#endif
