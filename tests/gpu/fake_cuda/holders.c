/* SPDX-License-Identifier: Apache-2.0 */
/* Looks through /proc for the memfds of the fake. Used by libcuda and by the fake NVML. */
#include "holders.h"

#include "node.h"
#include "options.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_SEEN 4096

/* What is counted once, wherever it is found: inodes, or processes. */
struct seen {
	unsigned n;
	uint64_t id[MAX_SEEN];
};

/* Called for each descriptor of each process: the name that its memfd was given, and its path in /proc. */
typedef void found_fn(void *arg, const char *name, const char *path);

void holders_memory_name(unsigned on_machine, char name[HOLDERS_NAME])
{
	snprintf(name, HOLDERS_NAME, "fake_cuda:%s:%u:memory:%llu", options()->machine, on_machine,
		 (unsigned long long)node_life(on_machine));
}

void holders_context_name(unsigned on_machine, char name[HOLDERS_NAME])
{
	snprintf(name, HOLDERS_NAME, "fake_cuda:%s:%u:context:%d", options()->machine, on_machine, (int)getpid());
}

/* False: no memfd. The kernel writes "/memfd:NAME (deleted)". */
static bool memfd_name(const char *path, char name[HOLDERS_NAME])
{
	static const char before[] = "/memfd:", behind[] = " (deleted)";
	char link[256];
	ssize_t n = readlink(path, link, sizeof(link) - 1);
	if (n < (ssize_t)(sizeof(before) + sizeof(behind)) || strncmp(link, before, sizeof(before) - 1))
		return false;
	link[n - (ssize_t)sizeof(behind) + 1] = '\0';
	snprintf(name, HOLDERS_NAME, "%.*s", HOLDERS_NAME - 1, link + sizeof(before) - 1);
	return true;
}

enum memory_of holders_memory_of(int fd, unsigned *out_on_machine)
{
	char path[64], name[HOLDERS_NAME], expected[HOLDERS_NAME];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (!memfd_name(path, name))
		return MEMORY_OF_NOTHING;
	for (*out_on_machine = 0; *out_on_machine < options()->n_devices; ++*out_on_machine) {
		holders_memory_name(*out_on_machine, expected);
		if (!strcmp(name, expected))
			return MEMORY_OF_DEVICE;
		*strrchr(expected, ':') = '\0'; /* without the life */
		if (!strncmp(name, expected, strlen(expected)))
			return MEMORY_OF_PAST;
	}
	return MEMORY_OF_NOTHING;
}

static void look_at_process(const char *pid, found_fn *found, void *arg)
{
	char path[600], name[HOLDERS_NAME];
	snprintf(path, sizeof(path), "/proc/%s/fd", pid);
	DIR *fds = opendir(path);
	if (!fds)
		return; /* another user's, or gone */
	for (struct dirent *e; (e = readdir(fds));) {
		snprintf(path, sizeof(path), "/proc/%s/fd/%s", pid, e->d_name);
		if (memfd_name(path, name))
			found(arg, name, path);
	}
	closedir(fds);
}

static void look(found_fn *found, void *arg)
{
	DIR *proc = opendir("/proc");
	if (!proc)
		return;
	for (struct dirent *e; (e = readdir(proc));)
		if (e->d_name[0] >= '1' && e->d_name[0] <= '9')
			look_at_process(e->d_name, found, arg);
	closedir(proc);
}

/* Was it new? */
static bool note(struct seen *seen, uint64_t id)
{
	for (unsigned i = 0; i < seen->n; i++)
		if (seen->id[i] == id)
			return false;
	if (seen->n < MAX_SEEN)
		seen->id[seen->n++] = id;
	return true;
}

struct used {
	char name[HOLDERS_NAME];
	uint64_t bytes;
	struct seen seen;
};

static void count_memory(void *arg, const char *name, const char *path)
{
	struct used *used = arg;
	struct stat st;
	if (!strcmp(name, used->name) && !stat(path, &st) && note(&used->seen, st.st_ino))
		used->bytes += (uint64_t)st.st_size;
}

uint64_t holders_used(unsigned on_machine)
{
	struct used *used = calloc(1, sizeof(*used));
	if (!used)
		return UINT64_MAX;
	holders_memory_name(on_machine, used->name);
	look(count_memory, used);
	uint64_t bytes = used->bytes;
	free(used);
	return bytes;
}

uint64_t holders_free(unsigned on_machine)
{
	uint64_t used = holders_used(on_machine), all = options()->memory;
	return used < all ? all - used : 0;
}

struct contexts {
	char begin[HOLDERS_NAME]; /* of the names; the maker's process id follows */
	struct seen seen;
};

static void count_context(void *arg, const char *name, const char *path)
{
	struct contexts *c = arg;
	size_t n = strlen(c->begin);
	if (!strncmp(name, c->begin, n))
		note(&c->seen, strtoull(name + n, NULL, 10));
}

unsigned holders_contexts(unsigned on_machine, pid_t *pids, unsigned max)
{
	struct contexts *c = calloc(1, sizeof(*c));
	if (!c)
		return 0;
	snprintf(c->begin, sizeof(c->begin), "fake_cuda:%s:%u:context:", options()->machine, on_machine);
	look(count_context, c);
	unsigned n = c->seen.n;
	for (unsigned i = 0; i < n && i < max; i++)
		pids[i] = (pid_t)c->seen.id[i];
	free(c);
	return n;
}

/* The library's own file, since each process has it. */
int holders_lock(void)
{
	Dl_info here;
	if (!dladdr(__extension__(void *) holders_lock, &here))
		return -1;
	int fd = open(here.dli_fname, O_RDONLY | O_CLOEXEC);
	if (fd >= 0)
		flock(fd, LOCK_EX);
	return fd;
}

void holders_unlock(int fd)
{
	if (fd >= 0)
		close(fd);
}
