/* SPDX-License-Identifier: Apache-2.0 */
/* Like a test double of the kernel: each function passes the call on, unless it is the one that fails. Functions that
 * libc has under two names (open, open64) are here under both, because libraries use either. */
#include "support/libc_calls.h"
#include "support/nth.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static char root[PATH_MAX];
static enum nth_kind kind;
static unsigned fail_at, calls;
static char lost[PATH_MAX];
static bool armed;

void nth_io_arm(const char *dir, enum nth_kind k, unsigned n)
{
	snprintf(root, sizeof(root), "%s", dir);
	kind = k;
	fail_at = n;
	calls = 0;
	lost[0] = '\0';
	armed = true;
}

unsigned nth_io_disarm(void)
{
	armed = false;
	return calls;
}

const char *nth_io_lost(void)
{
	return lost;
}

static bool beneath(const char *path)
{
	size_t n = strlen(root);
	return strncmp(path, root, n) == 0 && (path[n] == '/' || path[n] == '\0');
}

static bool fd_beneath(int fd)
{
	char link[64], path[PATH_MAX];
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, path, sizeof(path) - 1);
	if (n < 0)
		return false;
	path[n] = '\0';
	return beneath(path);
}

static bool counts(bool ours, bool is_write)
{
	return armed && ours && (kind != NTH_SHORT || is_write) && ++calls == fail_at;
}

/* This call fails: errno is set. */
static bool fails(bool ours)
{
	if (!counts(ours, false))
		return false;
	errno = kind == NTH_ENOSPC ? ENOSPC : EIO;
	return true;
}

static bool sync_fails(int fd)
{
	struct stat s;
	char link[64];
	if (!fails(true))
		return false;
	int error = errno;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t n = fstat(fd, &s) == 0 && S_ISREG(s.st_mode) ? readlink(link, lost, sizeof(lost) - 1) : 0;
	lost[n > 0 ? n : 0] = '\0';
	errno = error;
	return true;
}

static bool fails_at(int dir_fd, const char *path)
{
	return armed && fails(path[0] == '/' ? beneath(path) : dir_fd != AT_FDCWD && fd_beneath(dir_fd));
}

/* *n is what is left to be written; false: nothing is, errno is set. */
static bool may_write(int fd, size_t *n)
{
	if (!armed || !counts(fd_beneath(fd), true))
		return true;
	if (kind == NTH_SHORT && *n > 1) {
		*n /= 2;
		return true;
	}
	errno = kind == NTH_ENOSPC ? ENOSPC : EIO;
	return kind == NTH_SHORT;
}

#define OPEN(name)                                                                                                     \
	open_fn name;                                                                                                  \
	int name(const char *path, int flags, ...)                                                                     \
	{                                                                                                              \
		va_list ap;                                                                                            \
		va_start(ap, flags);                                                                                   \
		mode_t mode = libc_mode(flags, ap);                                                                    \
		va_end(ap);                                                                                            \
		return fails_at(AT_FDCWD, path) ? -1 : REAL(open_fn, name)(path, flags, mode);                         \
	}
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                                                   \
	openat_fn name;                                                                                                \
	int name(int dir, const char *path, int flags, ...)                                                            \
	{                                                                                                              \
		va_list ap;                                                                                            \
		va_start(ap, flags);                                                                                   \
		mode_t mode = libc_mode(flags, ap);                                                                    \
		va_end(ap);                                                                                            \
		return fails_at(dir, path) ? -1 : REAL(openat_fn, name)(dir, path, flags, mode);                       \
	}
OPENAT(openat)
OPENAT(openat64)

write_fn write;
ssize_t write(int fd, const void *data, size_t n)
{
	return may_write(fd, &n) ? REAL(write_fn, write)(fd, data, n) : -1;
}

#define PWRITE(name)                                                                                                   \
	pwrite_fn name;                                                                                                \
	ssize_t name(int fd, const void *data, size_t n, off_t at)                                                     \
	{                                                                                                              \
		return may_write(fd, &n) ? REAL(pwrite_fn, name)(fd, data, n, at) : -1;                                \
	}
PWRITE(pwrite)
PWRITE(pwrite64)

#define SYNC(name)                                                                                                     \
	fd_fn name;                                                                                                    \
	int name(int fd)                                                                                               \
	{                                                                                                              \
		if (armed && fd_beneath(fd)) /* nobody cuts the power here: a real one would only take time */         \
			return sync_fails(fd) ? -1 : 0;                                                                \
		return REAL(fd_fn, name)(fd);                                                                          \
	}
SYNC(fsync)
SYNC(fdatasync)

#define TRUNCATE(name)                                                                                                 \
	truncate_fn name;                                                                                              \
	int name(int fd, off_t n)                                                                                      \
	{                                                                                                              \
		return armed && fails(fd_beneath(fd)) ? -1 : REAL(truncate_fn, name)(fd, n);                           \
	}
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

#define FALLOCATE(name)                                                                                                \
	fallocate_fn name;                                                                                             \
	int name(int fd, int how, off_t at, off_t n)                                                                   \
	{                                                                                                              \
		return armed && fails(fd_beneath(fd)) ? -1 : REAL(fallocate_fn, name)(fd, how, at, n);                 \
	}
FALLOCATE(fallocate)
FALLOCATE(fallocate64)

fchown_fn fchown;
int fchown(int fd, uid_t uid, gid_t gid)
{
	return armed && fails(fd_beneath(fd)) ? -1 : REAL(fchown_fn, fchown)(fd, uid, gid);
}

path_fn unlink;
int unlink(const char *path)
{
	return fails_at(AT_FDCWD, path) ? -1 : REAL(path_fn, unlink)(path);
}

unlinkat_fn unlinkat;
int unlinkat(int dir, const char *path, int flags)
{
	return fails_at(dir, path) ? -1 : REAL(unlinkat_fn, unlinkat)(dir, path, flags);
}

rename_fn rename;
int rename(const char *from, const char *to)
{
	return fails_at(AT_FDCWD, to) ? -1 : REAL(rename_fn, rename)(from, to);
}

renameat_fn renameat;
int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
	return fails_at(to_dir, to) ? -1 : REAL(renameat_fn, renameat)(from_dir, from, to_dir, to);
}

renameat2_fn renameat2;
int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
	return fails_at(to_dir, to) ? -1 : REAL(renameat2_fn, renameat2)(from_dir, from, to_dir, to, flags);
}

mkdirat_fn mkdirat;
int mkdirat(int dir, const char *path, mode_t mode)
{
	return fails_at(dir, path) ? -1 : REAL(mkdirat_fn, mkdirat)(dir, path, mode);
}

/* openat2 has no function of its own in libc. */
syscall_fn syscall;
long syscall(long number, ...)
{
	long a[6];
	va_list ap;
	va_start(ap, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(ap, long);
	va_end(ap);
	if (number == SYS_openat2 && fails_at((int)a[0], (const char *)a[1]))
		return -1;
	return REAL(syscall_fn, syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
