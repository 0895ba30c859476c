/* SPDX-License-Identifier: Apache-2.0 */
/* Allocations of device memory. The name of the memfd says whose memory it is (holders.h); that is how an import knows
 * it, and how other processes count it. */
#include "allocation.h"

#include "holders.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct allocation *all;

static struct allocation *add(int fd, size_t n, unsigned on_machine)
{
	struct allocation *a = calloc(1, sizeof(*a));
	if (!a) {
		close(fd);
		return NULL;
	}
	*a = (struct allocation){ .next = all, .fd = fd, .n = n, .on_machine = on_machine, .n_handles = 1 };
	all = a;
	return a;
}

static int make_memory(unsigned on_machine, size_t n)
{
	char name[HOLDERS_NAME];
	holders_memory_name(on_machine, name);
	int fd = memfd_create(name, MFD_CLOEXEC);
	if (fd >= 0 && !ftruncate(fd, (off_t)n))
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

cu_result allocation_make(unsigned on_machine, size_t n, bool exportable, struct allocation **out)
{
	int lock = holders_lock(), fd = -1;
	if (n <= holders_free(on_machine))
		fd = make_memory(on_machine, n);
	holders_unlock(lock);
	struct allocation *a = fd < 0 ? NULL : add(fd, n, on_machine);
	if (!a)
		return CUDA_ERROR_OUT_OF_MEMORY;
	a->exportable = exportable;
	*out = a;
	return CUDA_SUCCESS;
}

cu_result allocation_import(int fd, struct allocation **out)
{
	unsigned on_machine;
	struct stat st;
	enum memory_of what = holders_memory_of(fd, &on_machine);
	if (what == MEMORY_OF_PAST)
		return CUDA_ERROR_INVALID_HANDLE;
	if (what == MEMORY_OF_NOTHING || fstat(fd, &st))
		return CUDA_ERROR_INVALID_VALUE;
	int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (own < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	struct allocation *a = add(own, (size_t)st.st_size, on_machine);
	if (!a)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = a;
	return CUDA_SUCCESS;
}

void allocation_drop(struct allocation *a)
{
	if (a->n_mapped || a->n_handles)
		return;
	struct allocation **at = &all;
	while (*at != a)
		at = &(*at)->next;
	*at = a->next;
	close(a->fd);
	free(a);
}

struct allocation *allocation_find(cu_handle handle)
{
	for (struct allocation *a = all; a; a = a->next)
		if (allocation_handle(a) == handle && a->n_handles)
			return a;
	return NULL;
}

cu_handle allocation_handle(const struct allocation *a)
{
	return (cu_handle)(uintptr_t)a;
}

void allocation_close_others(void)
{
	for (int from = 3; from < INT_MAX;) {
		int next = INT_MAX;
		for (struct allocation *a = all; a; a = a->next)
			if (a->fd >= from && a->fd < next)
				next = a->fd;
		if (next > from)
			close_range((unsigned)from, (unsigned)next - 1, 0);
		from = next == INT_MAX ? next : next + 1;
	}
}
