/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory this process may count on: the machine's, or less where a control group (cgroup v2) says so; in how
 * many pieces; and what it has freed. */
#ifndef GACC_BASE_MACHINE_H
#define GACC_BASE_MACHINE_H

#include "proto/status.h"

#include <stddef.h>
#include <stdint.h>

struct machine_memory {
	uint64_t total; /* bytes: the machine's, or the lowest memory.max of our group and those above it */
	/* of these, what can still be had without swapping; page cache that can be dropped counts */
	uint64_t available;
};

/* Reads /proc and /sys/fs/cgroup below `root`: "" but in tests. Groups that cannot be read have no limit. ST_IO_ERROR:
 * no meminfo. */
enum status machine_memory_read(const char *root, struct machine_memory *out);

/* How many mappings a process may have: vm.max_map_count; UINT64_MAX: not known. `root` as above. */
uint64_t machine_max_mappings(const char *root);

/* If more than `keep` bytes lie freed in the heaps of this process, returns them to the system, which free alone does
 * for the top of one heap only. Takes about a millisecond for each 10 MB. Any thread; does nothing while another is at
 * it. */
void machine_memory_trim(size_t keep);

#endif
