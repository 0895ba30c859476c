/* SPDX-License-Identifier: Apache-2.0 */
/* The directories of checkpoints: resolves the paths that users name, and opens and makes directories name by name
 * without following symbolic links. For checkpoint.c and its callers; no state, any thread; blocks. */
#include "store/checkpoint_dirs.h"

#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(CHECKPOINT_MAX_PATH == PATH_MAX, "what realpath fills");

static const char *text_of(int error)
{
	return error == ELOOP ? "there is a symbolic link on the way" : strerror(error);
}

enum status checkpoint_failed(const char *what, const char *name, int error, char *why, size_t n_why)
{
	snprintf(why, n_why, "%s %s: %s", what, name, text_of(error));
	log_error("checkpoint: %s", why);
	return ST_IO_ERROR;
}

enum status checkpoint_refused(const char *path, int error, char *why, size_t n_why)
{
	if (error == EACCES || error == EPERM) {
		snprintf(why, n_why,
			 "%s: uid %u, as which gaccd runs, may not read it, or not enter a directory on the way", path,
			 (unsigned)geteuid());
		return ST_PERMISSION_DENIED;
	}
	snprintf(why, n_why, "%s: %s", path, text_of(error));
	bool theirs = error == ENOENT || error == ELOOP || error == ENOTDIR || error == EINVAL || error == EFBIG;
	return theirs ? ST_INVALID_ARGUMENT : ST_IO_ERROR;
}

/* The names of `rest` behind the path in `out`. */
static enum status append_names(char out[CHECKPOINT_MAX_PATH], const char *rest, const char *path, char *why,
				size_t n_why)
{
	size_t at = strlen(out);
	if (at >= CHECKPOINT_MAX_PATH - 64) /* a link may lead to a longer path */
		return checkpoint_refused(path, ENAMETOOLONG, why, n_why);
	for (size_t n; rest += strspn(rest, "/"), (n = strcspn(rest, "/")); rest += n) {
		if (n == 2 && !strncmp(rest, "..", 2)) {
			snprintf(why, n_why, "%s: \"..\" behind a directory that does not exist", path);
			return ST_INVALID_ARGUMENT;
		}
		if (n == 1 && *rest == '.')
			continue;
		if (at + 1 + n >= CHECKPOINT_MAX_PATH - 64)
			return checkpoint_refused(path, ENAMETOOLONG, why, n_why);
		at += (size_t)snprintf(out + at, CHECKPOINT_MAX_PATH - at, "%s%.*s", at > 1 ? "/" : "", (int)n, rest);
	}
	return ST_OK;
}

enum status checkpoint_resolve(const char *path, char out[CHECKPOINT_MAX_PATH], char *why, size_t n_why)
{
	char head[CHECKPOINT_MAX_PATH];
	size_t n = strlen(path), cut = n;
	if (path[0] != '/' || n >= sizeof(head) - 64) {
		snprintf(why, n_why, "%.200s: a checkpoint's directory must be absolute and shorter than %zu bytes",
			 path, sizeof(head) - 64);
		return ST_INVALID_ARGUMENT;
	}
	memcpy(head, path, n + 1);
	while (!realpath(head, out)) {
		if (errno != ENOENT)
			return checkpoint_refused(path, errno, why, n_why);
		while (cut > 1 && head[--cut] != '/')
			;
		head[cut ? cut : 1] = '\0';
	}
	return append_names(out, path + strlen(head), path, why, n_why);
}

/* One name of a path. With O_DIRECTORY a link fails with ENOTDIR: ELOOP tells what is wrong. */
static int open_part(int dir_fd, const char *name, int flags, mode_t mode)
{
	int fd = openat(dir_fd, name, flags | O_NOFOLLOW | O_CLOEXEC, mode);
	int error = errno;
	struct stat st;
	if (fd < 0 && error == ENOTDIR && !fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) && S_ISLNK(st.st_mode))
		error = ELOOP;
	errno = error;
	return fd;
}

/* Name by name: openat2 is refused to units with RestrictSUIDSGID. */
int checkpoint_open_at(int dir_fd, const char *path, int flags, mode_t mode)
{
	char part[CHECKPOINT_MAX_PATH];
	int at_fd = *path == '/' ? open("/", O_PATH | O_DIRECTORY | O_CLOEXEC) : dir_fd;
	for (path += strspn(path, "/"); at_fd != -1; path += strspn(path, "/")) {
		size_t n = strcspn(path, "/");
		bool last = !path[n + strspn(path + n, "/")];
		snprintf(part, sizeof(part), "%.*s", n ? (int)n : 1, n ? path : ".");
		int next = last ? open_part(at_fd, part, flags, mode) : open_part(at_fd, part, O_PATH | O_DIRECTORY, 0);
		int error = errno;
		if (at_fd != dir_fd)
			close(at_fd);
		errno = error;
		at_fd = next;
		path += n;
		if (last)
			break;
	}
	return at_fd;
}

static bool is_empty(int dir_fd)
{
	_Alignas(struct dirent) char list[1024];
	ssize_t n;
	while ((n = getdents64(dir_fd, list, sizeof(list))) > 0)
		for (ssize_t at = 0; at < n;) {
			const struct dirent *e = (const struct dirent *)(list + at);
			if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
				return false;
			at += e->d_reclen;
		}
	return n == 0;
}

/* Makes and opens a directory with this mode, whatever the umask. The owner of the parent may rename between these
 * calls: so a directory with something in it never gets another mode, and is not taken for a new one when it must be
 * `empty`. */
static int make_one(int parent_fd, const char *name, mode_t mode, bool empty)
{
	struct stat s;
	if (mkdirat(parent_fd, name, mode) < 0)
		return -1;
	int fd = checkpoint_open_at(parent_fd, name, O_RDONLY | O_DIRECTORY, 0);
	bool ok = fd >= 0 && fstat(fd, &s) == 0;
	if (ok && (empty || (s.st_mode & 0777) != mode)) {
		ok = is_empty(fd);
		errno = ok ? 0 : EEXIST;
		ok = ok && ((s.st_mode & 0777) == mode || fchmod(fd, mode) == 0);
	}
	if (ok) /* checkpoint_sync_way comes later */
		return fd;
	int error = errno;
	unlinkat(parent_fd, name, AT_REMOVEDIR);
	if (fd >= 0)
		close(fd);
	errno = error;
	return -1;
}

/* Opens the directories of a path one by one, and makes those that are missing. */
static int make_dirs(const char *path)
{
	char part[CHECKPOINT_MAX_PATH];
	int fd = checkpoint_open_at(AT_FDCWD, "/", O_RDONLY | O_DIRECTORY, 0);
	for (const char *at = path + strspn(path, "/"); fd >= 0 && *at; at += strspn(at, "/")) {
		size_t n = strcspn(at, "/");
		snprintf(part, sizeof(part), "%.*s", (int)n, at);
		at += n;
		struct stat s;
		mode_t list = fstat(fd, &s) == 0 ? s.st_mode & 0044 : 0;
		int next = make_one(fd, part, (CHECKPOINT_WAY_MODE & ~0044) | list, false);
		if (next < 0 && errno == EEXIST)
			next = checkpoint_open_at(fd, part, O_RDONLY | O_DIRECTORY, 0);
		int error = errno;
		close(fd);
		errno = error;
		fd = next;
	}
	return fd;
}

enum status checkpoint_open_dir(const char *path, bool create, int *out_fd, char *why, size_t n_why)
{
	int fd = checkpoint_open_at(AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0);
	if (fd < 0 && errno == ENOENT && create)
		fd = make_dirs(path);
	if (fd < 0)
		return create ? checkpoint_failed("cannot open directory", path, errno, why, n_why)
			      : checkpoint_refused(path, errno, why, n_why);
	*out_fd = fd;
	return ST_OK;
}

bool checkpoint_sync_way(int dir_fd)
{
	struct stat here, above;
	bool ok = fstat(dir_fd, &here) == 0;
	for (int fd = dir_fd, up; ok; fd = up) {
		up = openat(fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		bool may_sync = up >= 0;
		if (up < 0 && errno == EACCES)
			up = openat(fd, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
		ok = up >= 0 && fstat(up, &above) == 0;
		bool end = ok && (above.st_dev != here.st_dev || above.st_ino == here.st_ino);
		ok = ok && (end || !may_sync || fsync(up) == 0);
		int error = errno;
		if (fd != dir_fd)
			close(fd);
		if (up >= 0 && (end || !ok))
			close(up);
		errno = error;
		if (end)
			break;
		here = above;
	}
	return ok;
}

enum status checkpoint_open_parent(const char *path, bool create, int *out_fd, const char **name, char *why,
				   size_t n_why)
{
	char parent[CHECKPOINT_MAX_PATH];
	const char *slash = strrchr(path, '/');
	snprintf(parent, sizeof(parent), "%.*s", slash == path ? 1 : (int)(slash - path), path);
	*name = slash + 1;
	return checkpoint_open_dir(parent, create, out_fd, why, n_why);
}

enum status checkpoint_make_dir(const char *path, struct checkpoint_dir *out, int *out_fd, char *why, size_t n_why)
{
	const char *name;
	struct stat s;
	int parent;
	enum status st = checkpoint_open_parent(path, true, &parent, &name, why, n_why);
	if (st)
		return st;
	int fd = make_one(parent, name, CHECKPOINT_DIR_MODE, true);
	if (fd < 0 || fstat(fd, &s) < 0) {
		st = checkpoint_failed("cannot make directory", path, errno, why, n_why);
		if (fd >= 0)
			close(fd);
	} else {
		*out = (struct checkpoint_dir){ s.st_dev, s.st_ino };
		*out_fd = fd;
	}
	close(parent);
	return st;
}
