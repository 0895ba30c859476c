/* SPDX-License-Identifier: Apache-2.0 */
/* Device addresses are addresses of this process, in ranges that nothing else can get. */
#include "memory.h"

#include "gate.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct reservation {
	struct reservation *next;
	char *at, *whole; /* whole: from where it is unmapped */
	size_t n, n_whole;
	bool is_alloc; /* made by memory_alloc, and undone by memory_free only */
};

struct mapping {
	struct window window; /* first */
	struct mapping *next;
	struct allocation *allocation;
};

static struct reservation *reservations;
static struct mapping *mappings;

static struct reservation *reservation_of(const char *at, size_t n)
{
	for (struct reservation *r = reservations; r; r = r->next)
		if (at >= r->at && at < r->at + r->n && n <= (size_t)(r->at + r->n - at))
			return r;
	return NULL;
}

static bool overlaps(const struct mapping *m, const char *at, size_t n)
{
	return m->window.at < at + n && at < m->window.at + m->window.n;
}

static struct mapping *first_in(const char *at, size_t n)
{
	for (struct mapping *m = mappings; m; m = m->next)
		if (overlaps(m, at, n))
			return m;
	return NULL;
}

cu_result memory_reserve(size_t n, size_t align, char **out)
{
	if (!align)
		align = GRANULARITY;
	if (!n || align & (align - 1) || n > SIZE_MAX - align)
		return CUDA_ERROR_INVALID_VALUE;
	struct reservation *r = calloc(1, sizeof(*r));
	if (!r)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r->n_whole = n + align;
	r->whole = mmap(NULL, r->n_whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (r->whole == MAP_FAILED) {
		free(r);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	r->at = r->whole + (align - (uintptr_t)r->whole % align) % align;
	r->n = n;
	r->next = reservations;
	reservations = r;
	*out = r->at;
	return CUDA_SUCCESS;
}

static void remove_reservation(struct reservation *r)
{
	struct reservation **at = &reservations;
	while (*at != r)
		at = &(*at)->next;
	*at = r->next;
	munmap(r->whole, r->n_whole);
	free(r);
}

cu_result memory_unreserve(char *at, size_t n)
{
	struct reservation *r = reservation_of(at, n);
	if (!r || r->is_alloc || r->at != at || r->n != n || first_in(at, n))
		return CUDA_ERROR_INVALID_VALUE;
	remove_reservation(r);
	return CUDA_SUCCESS;
}

static cu_result map(char *at, size_t n, size_t offset, struct allocation *a)
{
	struct mapping *m = calloc(1, sizeof(*m));
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (mmap(at, n, PROT_NONE, MAP_SHARED | MAP_FIXED, a->fd, (off_t)offset) == MAP_FAILED) {
		free(m);
		return CUDA_ERROR_MAP_FAILED;
	}
	m->window = (struct window){ .at = at, .n = n, .now = PROT_NONE };
	m->allocation = a;
	m->next = mappings;
	mappings = m;
	a->n_mapped++;
	gate_add(&m->window);
	return CUDA_SUCCESS;
}

cu_result memory_map(char *at, size_t n, size_t offset, struct allocation *a)
{
	struct reservation *r = reservation_of(at, n);
	if (!n || n % GRANULARITY || offset % GRANULARITY || (uintptr_t)at % GRANULARITY || !r || r->is_alloc)
		return CUDA_ERROR_INVALID_VALUE;
	if (n > a->n || offset > a->n - n || first_in(at, n))
		return CUDA_ERROR_INVALID_VALUE;
	return map(at, n, offset, a);
}

static void unmap(struct mapping *m)
{
	struct mapping **at = &mappings;
	while (*at != m)
		at = &(*at)->next;
	*at = m->next;
	gate_remove(&m->window);
	mmap(m->window.at, m->window.n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
	m->allocation->n_mapped--;
	allocation_drop(m->allocation);
	free(m);
}

/* Do whole mappings cover exactly these bytes? */
static bool is_exact(const char *at, size_t n)
{
	size_t covered = 0;
	for (struct mapping *m = mappings; m; m = m->next) {
		if (!overlaps(m, at, n))
			continue;
		if (m->window.at < at || m->window.at + m->window.n > at + n)
			return false;
		covered += m->window.n;
	}
	return n && covered == n;
}

cu_result memory_unmap(char *at, size_t n)
{
	struct reservation *r = reservation_of(at, n);
	if (!r || r->is_alloc || !is_exact(at, n))
		return CUDA_ERROR_INVALID_VALUE;
	for (struct mapping *m; (m = first_in(at, n));)
		unmap(m);
	return CUDA_SUCCESS;
}

cu_result memory_set_access(char *at, size_t n, unsigned on_machine, int access)
{
	if (!is_exact(at, n))
		return CUDA_ERROR_INVALID_VALUE;
	for (struct mapping *m = mappings; m; m = m->next)
		if (overlaps(m, at, n))
			m->window.access[on_machine] = access;
	gate_refresh();
	return CUDA_SUCCESS;
}

cu_result memory_alloc(unsigned on_machine, size_t n, char **out)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	if (!n)
		return CUDA_ERROR_INVALID_VALUE;
	if (n > SIZE_MAX / 2)
		return CUDA_ERROR_OUT_OF_MEMORY;
	n = (n + page - 1) / page * page;
	struct allocation *a;
	cu_result result = allocation_make(on_machine, n, false, &a);
	if (result)
		return result;
	result = memory_reserve(n + page, 0, out);
	if (!result) {
		reservations->is_alloc = true;
		result = map(*out, n, 0, a);
		if (result)
			remove_reservation(reservations);
	}
	a->n_handles = 0;
	if (result)
		allocation_drop(a);
	else
		mappings->window.access[on_machine] = PROT_READ | PROT_WRITE;
	gate_refresh();
	return result;
}

cu_result memory_free(char *at)
{
	struct reservation *r = reservation_of(at, 1);
	if (!r || !r->is_alloc || r->at != at)
		return CUDA_ERROR_INVALID_VALUE;
	unmap(first_in(at, 1));
	remove_reservation(r);
	return CUDA_SUCCESS;
}

bool memory_is_device(const void *p, size_t n)
{
	for (const char *at = p, *end = at + n; at < end;) {
		struct mapping *m = first_in(at, 1);
		if (!m || !m->window.access[m->allocation->on_machine])
			return false;
		at = m->window.at + m->window.n;
	}
	return true;
}
