/* SPDX-License-Identifier: Apache-2.0 */
/* Reads from /proc and the cgroup v2 files how much memory this process may use, and returns freed memory to the
 * kernel. To limit what jobs may have together; any thread, blocks only for these files. */
#include "base/machine.h"

#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define NO_LIMIT UINT64_MAX

/* Value behind `key` in a file of lines "key value"; false: no such line. */
static bool find(const char *path, const char *key, uint64_t *out)
{
	FILE *f = fopen(path, "re");
	char line[256];
	size_t n = strlen(key);
	bool found = false;
	while (f && !found && fgets(line, sizeof(line), f))
		found = !strncmp(line, key, n) && sscanf(line + n, "%" SCNu64, out) == 1;
	if (f)
		fclose(f);
	return found;
}

/* A file with one number; "max" and what cannot be read are `missing`. */
static uint64_t number(const char *group, const char *name, uint64_t missing)
{
	char path[4352];
	uint64_t v;
	snprintf(path, sizeof(path), "%s/%s", group, name);
	return find(path, "", &v) ? v : missing;
}

/* Dropped before anything is refused: the kernel counts it as used. */
static uint64_t droppable(const char *group)
{
	char path[4352];
	uint64_t v;
	snprintf(path, sizeof(path), "%s/memory.stat", group);
	return find(path, "inactive_file ", &v) ? v : 0;
}

static void lower_by_group(const char *group, struct machine_memory *m)
{
	uint64_t max = number(group, "memory.max", NO_LIMIT);
	if (max == NO_LIMIT)
		return;
	uint64_t used = number(group, "memory.current", 0), cache = droppable(group);
	used -= cache < used ? cache : used;
	uint64_t left = used < max ? max - used : 0;
	m->total = max < m->total ? max : m->total;
	m->available = left < m->available ? left : m->available;
}

/* "0::/system.slice/gaccd.service": our group; the one with the controllers' limits may be any above it. */
static bool own_group(const char *root, char *out, size_t n)
{
	char path[256], line[4096];
	snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
	FILE *f = fopen(path, "re");
	bool found = false;
	while (f && !found && fgets(line, sizeof(line), f))
		found = !strncmp(line, "0::/", 4);
	if (f)
		fclose(f);
	if (!found || strstr(line, "/..")) /* outside of our cgroup namespace: not to be seen from here */
		return false;
	line[strcspn(line, "\n")] = '\0';
	return (size_t)snprintf(out, n, "%s/sys/fs/cgroup%s", root, line + 3) < n;
}

enum status machine_memory_read(const char *root, struct machine_memory *out)
{
	char path[256], group[4096];
	struct machine_memory m;
	snprintf(path, sizeof(path), "%s/proc/meminfo", root);
	if (!find(path, "MemTotal:", &m.total) || !find(path, "MemAvailable:", &m.available)) {
		log_error("%s: MemTotal and MemAvailable cannot be read: %s", path, strerror(errno));
		return ST_IO_ERROR;
	}
	m.total <<= 10;
	m.available <<= 10;
	size_t top = strlen(root) + strlen("/sys/fs/cgroup");
	if (own_group(root, group, sizeof(group)))
		for (char *end = group + strlen(group); end; end = strrchr(group + top, '/')) {
			*end = '\0';
			lower_by_group(group, &m);
		}
	*out = m;
	return ST_OK;
}

uint64_t machine_max_mappings(const char *root)
{
	char directory[256];
	snprintf(directory, sizeof(directory), "%s/proc/sys/vm", root);
	return number(directory, "max_map_count", UINT64_MAX);
}

/* One at a time: where a sanitizer's allocator is in the place of glibc's, the first of these calls sets up the latter,
 * without a lock. */
void machine_memory_trim(size_t keep)
{
	static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
	if (pthread_mutex_trylock(&one))
		return;
	if (mallinfo2().fordblks > keep)
		malloc_trim(0);
	pthread_mutex_unlock(&one);
}
