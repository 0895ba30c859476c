/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_probe name: what the driver calls the first GPU, so that whoever reads the other rows knows whether it is one. */
#include "gpu_probe.h"

#include "proto/cuda_driver.h"

#include <stdio.h>

static int work(void *arg)
{
	const int *number = arg;
	struct cuda_driver cu;
	struct cu_uuid uuid;
	cu_device device;
	char why[300], name[100], text[33];
	int version = 0;

	if (!cuda_driver_load(&cu, why, sizeof(why))) {
		row(*number, "GPU", "FAILED: %s", why);
		return 1;
	}
	if (cu.cuInit(0) || cu.cuDriverGetVersion(&version) || cu.cuDeviceGet(&device, 0) ||
	    cu.cuDeviceGetName(name, sizeof(name), device) || cu.cuDeviceGetUuid(&uuid, device)) {
		row(*number, "GPU", "FAILED: the driver does not tell its name");
		return 1;
	}
	for (int i = 0; i < 16; i++)
		snprintf(text + 2 * i, 3, "%02x", (unsigned char)uuid.bytes[i]);
	row(*number, "GPU", "%s, UUID %s, CUDA %d.%d", name, text, version / 1000, version % 1000 / 10);
	return 0;
}

int name_of_gpu(int number)
{
	return run_rows(number, "GPU", work, &number) != 0;
}
