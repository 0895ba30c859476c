/* SPDX-License-Identifier: Apache-2.0 */
/* malloc and its family before libc's, which is called by the names it has for that purpose. Not with a sanitizer,
 * which does the same. */
#include "support/nth.h"

#include <errno.h>
#include <link.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

extern const char __executable_start[], etext[];
static const char *library_start, *library_end; /* code of libprotobuf-c */

static unsigned fail_at, calls;
static bool armed, own_only;

static int look_for_library(struct dl_phdr_info *info, size_t n, void *unused)
{
	if (!strstr(info->dlpi_name, "libprotobuf-c"))
		return 0;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_X) {
			library_start = (const char *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
			library_end = library_start + info->dlpi_phdr[i].p_memsz;
		}
	return 1;
}

static bool is_own(const char *at)
{
	return (at >= __executable_start && at < etext) || (at >= library_start && at < library_end);
}

void nth_alloc_arm(unsigned n, bool own)
{
	fail_at = n;
	calls = 0;
	own_only = own;
	dl_iterate_phdr(look_for_library, NULL);
	armed = true;
}

unsigned nth_alloc_disarm(void)
{
	armed = false;
	return calls;
}

/* In a program that knows nothing of this: NTH_ALLOC=n in the environment, and at the end how many there were on
 * stderr. */
__attribute__((constructor)) static void arm_by_environment(void)
{
	const char *n = getenv("NTH_ALLOC");
	if (n)
		nth_alloc_arm((unsigned)atoi(n), true);
}

__attribute__((destructor)) static void say_count(void)
{
	if (getenv("NTH_ALLOC"))
		fprintf(stderr, "%u allocations\n", nth_alloc_disarm());
}

static bool fails(const void *caller)
{
	const char *at = caller;
	if (!armed || (own_only && !is_own(at)) || __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) != fail_at)
		return false;
	errno = ENOMEM;
	return true;
}
#define FAILS() fails(__builtin_return_address(0))

void *malloc(size_t n)
{
	return FAILS() ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
	return FAILS() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
	return FAILS() ? NULL : __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n)
{
	return FAILS() ? NULL : __libc_memalign(align, n);
}

int posix_memalign(void **out, size_t align, size_t n)
{
	void *p = FAILS() ? NULL : __libc_memalign(align, n);
	if (!p)
		return ENOMEM;
	*out = p;
	return 0;
}
