/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the processes that have a device open, for the sentence that says why memory is not free. In gaccd's pool. A
 * process of another user shows its descriptors to root alone. */
#include "host/device_holders.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool has_open(const char *pid, const char *prefix)
{
	char path[300], target[256];
	snprintf(path, sizeof(path), "/proc/%s/fd", pid);
	DIR *dir = opendir(path);
	bool found = false;
	for (const struct dirent *e; dir && !found && (e = readdir(dir));) {
		ssize_t n = readlinkat(dirfd(dir), e->d_name, target, sizeof(target) - 1);
		if (n < 0)
			continue;
		target[n] = '\0';
		found = !strncmp(target, prefix, strlen(prefix));
	}
	if (dir)
		closedir(dir);
	return found;
}

void device_holders(const char *prefix, char *out, size_t n)
{
	DIR *dir = opendir("/proc");
	size_t used = 0;
	if (n)
		out[0] = '\0';
	for (const struct dirent *e; dir && (e = readdir(dir));) {
		const bool is_pid = e->d_name[0] >= '1' && e->d_name[0] <= '9';
		const char *before = used ? ", " : "pid ";
		if (!is_pid || used + strlen(before) + strlen(e->d_name) + sizeof(", ..") > n ||
		    !has_open(e->d_name, prefix))
			continue;
		used += (size_t)snprintf(out + used, n - used, "%s%s", before, e->d_name);
	}
	if (dir)
		closedir(dir);
}
