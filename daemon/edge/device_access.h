/* SPDX-License-Identifier: Apache-2.0 */
/* What gaccd may use of a machine's GPUs. Loop thread: a few dozen calls of access(2), which open nothing. */
#ifndef GACC_DAEMON_EDGE_DEVICE_ACCESS_H
#define GACC_DAEMON_EDGE_DEVICE_ACCESS_H

#include <stdint.h>

#define DEVICE_NODES_MAX 34 /* nvidiactl, nvidia-uvm, nvidia0 to nvidia31 */

struct device_access {
	uint64_t memlock; /* RLIMIT_MEMLOCK in bytes; UINT64_MAX: none */
	uint32_t n;
	struct device_node {
		char path[80];
		const char *error; /* "" or the name of an errno; static */
	} node[DEVICE_NODES_MAX];
};

/* `dev`: "/dev", or a test's folder. */
void device_access_read(const char *dev, struct device_access *out);

#endif
