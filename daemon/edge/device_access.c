/* SPDX-License-Identifier: Apache-2.0 */
/* Looks for NVIDIA's device nodes as gaccd sees them, for GetNode. No CUDA and no NVML: whether a node may be opened is
 * asked of the kernel, whose answer counts file modes and the unit's rules for devices. Loop thread. */
#include "edge/device_access.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { GPUS_MAX = DEVICE_NODES_MAX - 2 };

static void look_at(const char *dev, const char *name, struct device_access *out)
{
	struct device_node *node = &out->node[out->n];
	int n = snprintf(node->path, sizeof(node->path), "%s/%s", dev, name);
	if (n >= (int)sizeof(node->path))
		return;
	const char *error = access(node->path, R_OK | W_OK) ? strerrorname_np(errno) : "";
	if (error && !strcmp(error, "ENOENT"))
		return;
	node->error = error ? error : "unknown error";
	out->n++;
}

void device_access_read(const char *dev, struct device_access *out)
{
	struct rlimit memlock;
	char name[16];
	*out = (struct device_access){ .memlock = UINT64_MAX };
	if (!getrlimit(RLIMIT_MEMLOCK, &memlock) && memlock.rlim_cur != RLIM_INFINITY)
		out->memlock = memlock.rlim_cur;
	look_at(dev, "nvidiactl", out);
	look_at(dev, "nvidia-uvm", out);
	for (int i = 0; i < GPUS_MAX; i++) {
		snprintf(name, sizeof(name), "nvidia%d", i);
		look_at(dev, name, out);
	}
}
