/* SPDX-License-Identifier: Apache-2.0 */
/* For test programs that put functions of their own before libc's: the one behind, and its type. Each .c file that
 * includes it uses what it needs. */
#ifndef GACC_TESTS_LIBC_CALLS_H
#define GACC_TESTS_LIBC_CALLS_H

#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/types.h>

/* The libc function behind this one. */
#define REAL(type, name)                                                                                               \
	((union {                                                                                                      \
		 void *object;                                                                                         \
		 type *function;                                                                                       \
	 }){ dlsym(RTLD_NEXT, #name) }                                                                                 \
		 .function)

typedef int open_fn(const char *, int, ...);
typedef int openat_fn(int, const char *, int, ...);
typedef ssize_t write_fn(int, const void *, size_t);
typedef ssize_t pwrite_fn(int, const void *, size_t, off_t);
typedef ssize_t sendfile_fn(int, int, off_t *, size_t);
typedef int fd_fn(int);
typedef int truncate_fn(int, off_t);
typedef int fallocate_fn(int, int, off_t, off_t);
typedef int posix_fallocate_fn(int, off_t, off_t);
typedef int fchmod_fn(int, mode_t);
typedef int fchown_fn(int, uid_t, gid_t);
typedef int path_fn(const char *);
typedef int unlinkat_fn(int, const char *, int);
typedef int rename_fn(const char *, const char *);
typedef int renameat_fn(int, const char *, int, const char *);
typedef int renameat2_fn(int, const char *, int, const char *, unsigned);
typedef int mkdir_fn(const char *, mode_t);
typedef int mkdirat_fn(int, const char *, mode_t);
typedef long syscall_fn(long, ...);

/* The mode that comes with an open's flags, if one does. */
static inline mode_t libc_mode(int flags, va_list ap)
{
	return flags & (O_CREAT | __O_TMPFILE) ? (mode_t)va_arg(ap, int) : 0;
}

#endif
