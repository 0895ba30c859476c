/* SPDX-License-Identifier: Apache-2.0 */
/* Registrations. The pages of a shared mapping get a second address, by mremap with an old size of 0, which belongs to
 * the registration alone; a window (gate.h) guards it. */
#include "host_memory.h"

#include "device.h"
#include "gate.h"
#include "maps.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_RANGES 64

struct registration {
	struct window window; /* first; .at NULL: no second address */
	struct registration *next;
	char *at, *begin; /* at: as the caller says; begin: of its page */
	size_t n;	  /* from `at` */
	size_t n_pages;	  /* bytes from `begin` */
	bool is_own;	  /* of host_memory_alloc */
};

static struct registration *all;

static bool overlaps(const struct registration *r, const char *p, size_t n)
{
	return r->at < p + n && p < r->at + r->n;
}

static struct registration *first_in(const char *p, size_t n)
{
	for (struct registration *r = all; r; r = r->next)
		if (overlaps(r, p, n))
			return r;
	return NULL;
}

/* Gives the pages of shared mappings a second address, in r->window. False: no memory. */
static bool map_again(struct registration *r, const struct maps_range *range, unsigned n, bool read_only)
{
	char *second = mmap(NULL, r->n_pages, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (second == MAP_FAILED)
		return false;
	for (unsigned i = 0; i < n; i++) {
		char *to = second + (range[i].at - r->begin);
		if (mremap(range[i].at, 0, range[i].n, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED) {
			munmap(second, r->n_pages);
			return false;
		}
	}
	mprotect(second, r->n_pages, PROT_NONE);
	r->window = (struct window){ .at = second, .n = r->n_pages, .now = PROT_NONE };
	for (unsigned d = 0; d < MAX_DEVICES; d++)
		r->window.access[d] = read_only ? PROT_READ : PROT_READ | PROT_WRITE;
	gate_add(&r->window);
	return true;
}

static cu_result look_at_pages(struct registration *r, unsigned flags)
{
	struct maps_range range[MAX_RANGES];
	unsigned n = maps_find(r->begin, r->n_pages, range, MAX_RANGES);
	bool read_only = false, shared = n <= MAX_RANGES;
	if (!n)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < n && i < MAX_RANGES; i++) {
		if (!range[i].can_read)
			return CUDA_ERROR_INVALID_VALUE;
		read_only |= !range[i].can_write;
		shared &= range[i].is_shared;
	}
	if (read_only && !(flags & CU_MEMHOSTREGISTER_READ_ONLY))
		return CUDA_ERROR_INVALID_VALUE;
	if (shared && !map_again(r, range, n, flags & CU_MEMHOSTREGISTER_READ_ONLY))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return CUDA_SUCCESS;
}

cu_result host_memory_register(void *p, size_t n, unsigned flags)
{
	const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)p;
	const unsigned known =
		CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;
	if (!p || !n || from + n < from || flags & ~known)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_attribute(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED) ||
	    (flags & CU_MEMHOSTREGISTER_READ_ONLY &&
	     !device_attribute(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED)))
		return CUDA_ERROR_NOT_SUPPORTED;
	if (first_in(p, n))
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	struct registration *r = calloc(1, sizeof(*r));
	if (!r)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r->at = p;
	r->n = n;
	r->begin = (char *)(from / page * page);
	r->n_pages = (from + n + page - 1) / page * page - (uintptr_t)r->begin;
	cu_result result = look_at_pages(r, flags);
	if (result) {
		free(r);
		return result;
	}
	r->next = all;
	all = r;
	return CUDA_SUCCESS;
}

static struct registration *registration_at(const void *p, bool is_own)
{
	for (struct registration *r = all; r; r = r->next)
		if (r->at == p && r->is_own == is_own)
			return r;
	return NULL;
}

static void remove_registration(struct registration *r)
{
	struct registration **at = &all;
	while (*at != r)
		at = &(*at)->next;
	*at = r->next;
	if (r->window.at) {
		gate_remove(&r->window);
		munmap(r->window.at, r->window.n);
	}
	free(r);
}

cu_result host_memory_unregister(void *p)
{
	struct registration *r = registration_at(p, false);
	if (!r)
		return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	remove_registration(r);
	return CUDA_SUCCESS;
}

cu_result host_memory_alloc(size_t n, void **out)
{
	if (!n)
		return CUDA_ERROR_INVALID_VALUE;
	void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	cu_result result = host_memory_register(p, n, 0);
	if (result) {
		munmap(p, n);
		return result;
	}
	registration_at(p, false)->is_own = true;
	*out = p;
	return CUDA_SUCCESS;
}

cu_result host_memory_free(void *p)
{
	struct registration *r = registration_at(p, true);
	if (!r)
		return CUDA_ERROR_INVALID_VALUE;
	munmap(r->at, r->n);
	remove_registration(r);
	return CUDA_SUCCESS;
}

void *host_memory_device_pointer(const void *p)
{
	struct registration *r = first_in(p, 1);
	if (!r)
		return NULL;
	if (!r->window.at || device_attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM))
		return (char *)r->at + ((const char *)p - r->at);
	return r->window.at + ((const char *)p - r->begin);
}

/* Is this in a registration's second address? */
static bool is_second(const char *p, size_t n)
{
	for (struct registration *r = all; r; r = r->next) {
		const char *first = r->window.at ? r->window.at + (r->at - r->begin) : NULL;
		if (first && p >= first && p < first + r->n && n <= (size_t)(first + r->n - p))
			return true;
	}
	return false;
}

enum pinned host_memory_find(void *p, size_t n, void **out_pages, size_t *out_n)
{
	*out_pages = p;
	*out_n = n;
	if (is_second(p, n))
		return PINNED_ALL;
	size_t covered = 0;
	for (struct registration *r = all; r; r = r->next) {
		if (!overlaps(r, p, n))
			continue;
		char *from = r->at > (char *)p ? r->at : p;
		char *to = r->at + r->n < (char *)p + n ? r->at + r->n : (char *)p + n;
		covered += (size_t)(to - from);
		if (from != p)
			continue;
		*out_n = (size_t)(to - from);
		if (r->window.at)
			*out_pages = r->window.at + (from - r->begin);
	}
	return covered == n ? PINNED_ALL : covered ? PINNED_PARTLY : PINNED_NOT;
}
