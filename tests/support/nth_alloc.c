/* malloc and its family before libc's, which is called by the names it has for that purpose. Not with a sanitizer, which does the
 * same. */
#include "support/nth.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

extern const char __executable_start[], etext[];

static unsigned fail_at, calls;
static bool armed, own_only;

void nth_alloc_arm(unsigned n, bool own)
{
	fail_at = n;
	calls = 0;
	own_only = own;
	armed = true;
}

unsigned nth_alloc_disarm(void)
{
	armed = false;
	return calls;
}

static bool fails(const void *caller)
{
	const char *at = caller;
	if (!armed || (own_only && (at < __executable_start || at >= etext)) || __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) != fail_at)
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
