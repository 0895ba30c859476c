/* SPDX-License-Identifier: Apache-2.0 */
/* A libnvidia-ml.so.1 of a driver that is too old: it begins and ends, and has none of the later functions. */
#include "proto/nvml.h"

nvml_result nvmlInit_v2(void);
nvml_result nvmlShutdown(void);

nvml_result nvmlInit_v2(void)
{
	return NVML_SUCCESS;
}

nvml_result nvmlShutdown(void)
{
	return NVML_SUCCESS;
}
