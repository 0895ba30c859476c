/* SPDX-License-Identifier: Apache-2.0 */
/* Each function passes the call on and notes what it has changed. Functions that libc has under two names (open,
 * open64) are here under both, because libraries use either. */
#include "support/libc_calls.h"
#include "support/power_log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct power_log *rec; /* NULL: nothing is noted */
static uint64_t left;	      /* operations until this process ends; 0: it does not */

void power_record(struct power_log *l, uint64_t stop_at)
{
	rec = l;
	left = stop_at;
}

void power_note(uint64_t value)
{
	struct power_op op = { .kind = POWER_NOTE, .at = value };
	if (rec)
		power_add(rec, &op, NULL);
}

/* ---- what a call has changed ---- */

static void note(const struct power_op *op, const void *data)
{
	power_add(rec, op, data);
	if (left && --left == 0)
		_exit(0);
}

/* -1: not one of ours. */
static int node_of_fd(int fd)
{
	struct stat s;
	int error = errno;
	int node = rec && fstat(fd, &s) == 0 ? power_node_of(rec, &s) : -1;
	errno = error;
	return node;
}

/* A path's directory and last name. */
struct place {
	int dir; /* -1: not one of ours */
	char name[POWER_NAME];
};

static struct place place_of(int dir_fd, const char *path)
{
	struct place p = { .dir = -1 };
	char dir[PATH_MAX];
	struct stat s;
	int error = errno;
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	snprintf(dir, sizeof(dir), "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
	if (rec && strlen(name) < POWER_NAME && fstatat(dir_fd, dir, &s, 0) == 0) {
		p.dir = power_node_of(rec, &s);
		power_set_name(p.name, name);
	}
	errno = error;
	return p;
}

static bool exists(int dir_fd, const char *path)
{
	struct stat s;
	int error = errno;
	bool is = fstatat(dir_fd, path, &s, AT_SYMLINK_NOFOLLOW) == 0;
	errno = error;
	return is;
}

/* Where something new is about to come; dir -1: nowhere, or it is there already. */
static struct place place_of_new(int dir_fd, const char *path)
{
	struct place p = place_of(dir_fd, path);
	if (p.dir >= 0 && exists(dir_fd, path))
		p.dir = -1;
	return p;
}

static void note_new(const struct place *p, int dir_fd, const char *path)
{
	struct stat s;
	int error = errno;
	if (p->dir < 0 || fstatat(dir_fd, path, &s, AT_SYMLINK_NOFOLLOW))
		return;
	power_add_create(rec, p->dir, p->name, &s);
	if (left && --left == 0)
		_exit(0);
	errno = error;
}

/* Where an open is about to make something; dir -1: nowhere. */
static struct place place_of_opened(int dir_fd, const char *path, int flags)
{
	return flags & O_CREAT ? place_of_new(dir_fd, path) : (struct place){ .dir = -1 };
}

/* Returns fd. */
static int note_open(const struct place *p, int dir_fd, const char *path, int flags, int fd)
{
	if (fd < 0 || !rec)
		return fd;
	if (flags & O_CREAT)
		note_new(p, dir_fd, path);
	struct power_op op = { .kind = POWER_SIZE, .node = flags & O_TRUNC ? node_of_fd(fd) : -1 };
	if (op.node >= 0)
		note(&op, NULL);
	return fd;
}

static void note_write(int fd, const void *data, ssize_t n, off_t at)
{
	struct power_op op = {
		.kind = POWER_WRITE, .node = n > 0 ? node_of_fd(fd) : -1, .at = (uint64_t)at, .n = (uint64_t)n
	};
	if (op.node >= 0)
		note(&op, data);
}

static void note_fd(enum power_kind kind, int fd)
{
	struct stat s;
	int error = errno;
	struct power_op op = { .kind = kind, .node = node_of_fd(fd) };
	if (op.node >= 0 && fstat(fd, &s) == 0) {
		op.at = (uint64_t)s.st_size;
		op.mode = s.st_mode & 07777;
		op.uid = s.st_uid;
		op.gid = s.st_gid;
		note(&op, NULL);
	}
	errno = error;
}

static void note_unlink(const struct place *p)
{
	struct power_op op = { .kind = POWER_UNLINK, .dir = p->dir };
	power_set_name(op.name, p->name);
	if (p->dir >= 0)
		note(&op, NULL);
}

static void note_rename(const struct place *from, const struct place *to, int dir_fd, const char *path)
{
	struct stat s;
	struct power_op op = { .kind = POWER_RENAME, .dir = from->dir, .dir2 = to->dir };
	if (from->dir < 0 && to->dir < 0)
		return;
	if (from->dir < 0 || to->dir < 0 || fstatat(dir_fd, path, &s, AT_SYMLINK_NOFOLLOW))
		power_die("a rename into the directory, or out of it");
	op.node = power_node_of(rec, &s);
	power_set_name(op.name, from->name);
	power_set_name(op.name2, to->name);
	note(&op, NULL);
}

/* ---- the calls ---- */

#define OPEN(name)                                                                                                     \
	open_fn name;                                                                                                  \
	int name(const char *path, int flags, ...)                                                                     \
	{                                                                                                              \
		va_list ap;                                                                                            \
		va_start(ap, flags);                                                                                   \
		mode_t mode = libc_mode(flags, ap);                                                                    \
		va_end(ap);                                                                                            \
		struct place p = place_of_opened(AT_FDCWD, path, flags);                                               \
		return note_open(&p, AT_FDCWD, path, flags, REAL(open_fn, name)(path, flags, mode));                   \
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
		struct place p = place_of_opened(dir, path, flags);                                                    \
		return note_open(&p, dir, path, flags, REAL(openat_fn, name)(dir, path, flags, mode));                 \
	}
OPENAT(openat)
OPENAT(openat64)

write_fn write;
ssize_t write(int fd, const void *data, size_t n)
{
	ssize_t done = REAL(write_fn, write)(fd, data, n);
	if (rec && done > 0)
		note_write(fd, data, done, lseek(fd, 0, SEEK_CUR) - done);
	return done;
}

#define PWRITE(name)                                                                                                   \
	pwrite_fn name;                                                                                                \
	ssize_t name(int fd, const void *data, size_t n, off_t at)                                                     \
	{                                                                                                              \
		ssize_t done = REAL(pwrite_fn, name)(fd, data, n, at);                                                 \
		note_write(fd, data, done, at);                                                                        \
		return done;                                                                                           \
	}
PWRITE(pwrite)
PWRITE(pwrite64)

/* Of files that can be read: what it has copied is read again. */
sendfile_fn sendfile;
ssize_t sendfile(int out, int in, off_t *at, size_t n)
{
	static unsigned char buf[1 << 16];
	ssize_t done = REAL(sendfile_fn, sendfile)(out, in, at, n < sizeof(buf) ? n : sizeof(buf));
	if (rec && done > 0 && !at && pread(in, buf, (size_t)done, lseek(in, 0, SEEK_CUR) - done) == done)
		note_write(out, buf, done, lseek(out, 0, SEEK_CUR) - done);
	return done;
}

/* Not passed on: they would only take time. */
#define SYNC(name, kind)                                                                                               \
	fd_fn name;                                                                                                    \
	int name(int fd)                                                                                               \
	{                                                                                                              \
		if (!rec)                                                                                              \
			return REAL(fd_fn, name)(fd);                                                                  \
		note_fd(kind, fd);                                                                                     \
		return 0;                                                                                              \
	}
SYNC(fsync, POWER_SYNC)
SYNC(fdatasync, POWER_DATASYNC)

#define TRUNCATE(name)                                                                                                 \
	truncate_fn name;                                                                                              \
	int name(int fd, off_t n)                                                                                      \
	{                                                                                                              \
		int r = REAL(truncate_fn, name)(fd, n);                                                                \
		if (r == 0)                                                                                            \
			note_fd(POWER_SIZE, fd);                                                                       \
		return r;                                                                                              \
	}
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

#define FALLOCATE(name)                                                                                                \
	fallocate_fn name;                                                                                             \
	int name(int fd, int how, off_t at, off_t n)                                                                   \
	{                                                                                                              \
		int r = REAL(fallocate_fn, name)(fd, how, at, n);                                                      \
		if (r == 0 && !(how & FALLOC_FL_KEEP_SIZE))                                                            \
			note_fd(POWER_SIZE, fd);                                                                       \
		return r;                                                                                              \
	}
FALLOCATE(fallocate)
FALLOCATE(fallocate64)

#define POSIX_FALLOCATE(name)                                                                                          \
	posix_fallocate_fn name;                                                                                       \
	int name(int fd, off_t at, off_t n)                                                                            \
	{                                                                                                              \
		int r = REAL(posix_fallocate_fn, name)(fd, at, n);                                                     \
		if (r == 0)                                                                                            \
			note_fd(POWER_SIZE, fd);                                                                       \
		return r;                                                                                              \
	}
POSIX_FALLOCATE(posix_fallocate)
POSIX_FALLOCATE(posix_fallocate64)

fchmod_fn fchmod;
int fchmod(int fd, mode_t mode)
{
	int r = REAL(fchmod_fn, fchmod)(fd, mode);
	if (r == 0)
		note_fd(POWER_META, fd);
	return r;
}

fchown_fn fchown;
int fchown(int fd, uid_t uid, gid_t gid)
{
	int r = REAL(fchown_fn, fchown)(fd, uid, gid);
	if (r == 0)
		note_fd(POWER_META, fd);
	return r;
}

#define UNLINK(name)                                                                                                   \
	path_fn name;                                                                                                  \
	int name(const char *path)                                                                                     \
	{                                                                                                              \
		struct place p = place_of(AT_FDCWD, path);                                                             \
		int r = REAL(path_fn, name)(path);                                                                     \
		if (r == 0)                                                                                            \
			note_unlink(&p);                                                                               \
		return r;                                                                                              \
	}
UNLINK(unlink)
UNLINK(rmdir)

unlinkat_fn unlinkat;
int unlinkat(int dir, const char *path, int flags)
{
	struct place p = place_of(dir, path);
	int r = REAL(unlinkat_fn, unlinkat)(dir, path, flags);
	if (r == 0)
		note_unlink(&p);
	return r;
}

renameat2_fn renameat2;
int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
	struct place p = place_of(from_dir, from), q = place_of(to_dir, to);
	int r = REAL(renameat2_fn, renameat2)(from_dir, from, to_dir, to, flags);
	if (r == 0)
		note_rename(&p, &q, to_dir, to);
	return r;
}

renameat_fn renameat;
int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
	return renameat2(from_dir, from, to_dir, to, 0);
}

rename_fn rename;
int rename(const char *from, const char *to)
{
	return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}

mkdirat_fn mkdirat;
int mkdirat(int dir, const char *path, mode_t mode)
{
	struct place p = place_of_new(dir, path);
	int r = REAL(mkdirat_fn, mkdirat)(dir, path, mode);
	if (r == 0)
		note_new(&p, dir, path);
	return r;
}

mkdir_fn mkdir;
int mkdir(const char *path, mode_t mode)
{
	return mkdirat(AT_FDCWD, path, mode);
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
	bool opens = number == SYS_openat2 && rec;
	int flags = opens ? (int)*(const uint64_t *)a[2] : 0; /* struct open_how begins with them */
	struct place p = place_of_opened((int)a[0], (const char *)a[1], flags);
	long r = REAL(syscall_fn, syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
	if (opens)
		note_open(&p, (int)a[0], (const char *)a[1], flags, (int)r);
	return r;
}
