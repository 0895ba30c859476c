/* SPDX-License-Identifier: Apache-2.0 */
/* Writes, seals, reads and deletes checkpoints on the disk. The files are written by the engine (the thread of
 * snapshot_writer.c) and read by its main thread; gaccd seals, loads and deletes checkpoints in the pool. No shared
 * state, any thread; blocks. */
#include "store/checkpoint_dirs.h"

#include "base/log.h"
#include "proto/failpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MANIFEST "manifest.json"
#define MANIFEST_PARTIAL "manifest.json.partial"
/* names with higher ids were not made by gaccd, whose next id would overflow */
#define MAX_ID (UINT64_C(1) << 48)

/* What a failpoint says, in the manner of a system call. */
static bool passes(enum status st)
{
	if (st)
		errno = EIO;
	return !st;
}

/* ---- one file ---- */

struct checkpoint_writer {
	int fd;
	const char *name;
	uint64_t bytes;
	struct sha256 *sum;
};

/* Fails if the name exists: the directory's owner may have put a link or a pipe there. */
static int create_file(int dir_fd, const char *name)
{
	int fd = checkpoint_open_at(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL, CHECKPOINT_FILE_MODE);
	if (fd >= 0)
		fchmod(fd, CHECKPOINT_FILE_MODE); /* whatever the umask */
	return fd;
}

enum status checkpoint_create_named(int dir_fd, const char *name, struct checkpoint_writer **out, char *why,
				    size_t n_why)
{
	struct checkpoint_writer *w = calloc(1, sizeof(*w));
	if (!w)
		return ST_NO_MEMORY;
	w->name = name;
	w->sum = sha256_new();
	w->fd = w->sum ? create_file(dir_fd, w->name) : -1;
	if (w->fd < 0 || !passes(FAILPOINT_ERROR(engine_save_opened))) {
		enum status st = w->sum ? checkpoint_failed("cannot make", w->name, errno, why, n_why) : ST_NO_MEMORY;
		checkpoint_abandon(w);
		return st;
	}
	*out = w;
	return ST_OK;
}

enum status checkpoint_create(int dir_fd, enum checkpoint_part part, struct checkpoint_writer **out, char *why,
			      size_t n_why)
{
	return checkpoint_create_named(dir_fd, checkpoint_part_name(part), out, why, n_why);
}

enum status checkpoint_reserve(struct checkpoint_writer *w, uint64_t bytes, char *why, size_t n_why)
{
	int error = bytes ? EINTR : 0;
	while (error == EINTR)
		error = fallocate(w->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes) == 0 ? 0 : errno;
	if (error == 0 || error == EOPNOTSUPP || error == ENOSYS)
		return ST_OK;
	return checkpoint_failed("no room for", w->name, error, why, n_why);
}

static int write_all(int fd, const char *data, size_t n, uint64_t offset)
{
	while (n) {
		ssize_t r = pwrite(fd, data, n, (off_t)offset);
		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0)
			return r ? errno : ENOSPC;
		data += r;
		offset += (uint64_t)r;
		n -= (size_t)r;
	}
	return 0;
}

enum status checkpoint_write(struct checkpoint_writer *w, const void *data, size_t n, char *why, size_t n_why)
{
	int error = passes(FAILPOINT_ERROR(engine_save_write_before)) ? write_all(w->fd, data, n, w->bytes) : errno;
	if (error)
		return checkpoint_failed("writing", w->name, error, why, n_why);
	sha256_add(w->sum, data, n);
	w->bytes += n;
	return ST_OK;
}

enum status checkpoint_finish(struct checkpoint_writer *w, struct checkpoint_file *out, char *why, size_t n_why)
{
	enum status st = ST_OK;
	if (!passes(FAILPOINT_ERROR(engine_save_sync_before)) || fdatasync(w->fd) < 0)
		st = checkpoint_failed("syncing", w->name, errno, why, n_why);
	if (!st) {
		FAILPOINT(engine_save_synced);
		out->bytes = w->bytes;
		sha256_end(w->sum, out->sha256);
	}
	checkpoint_abandon(w);
	return st;
}

void checkpoint_abandon(struct checkpoint_writer *w)
{
	if (!w)
		return;
	if (w->fd >= 0)
		close(w->fd);
	sha256_free(w->sum);
	free(w);
}

/* ---- judging ---- */

/* A regular file of this owner and size; uid and bytes are set on the first look. */
static int open_checked(int dir_fd, const char *name, uint32_t *uid, bool know_uid, uint64_t *bytes, bool know_bytes)
{
	struct stat s;
	int fd = checkpoint_open_at(dir_fd, name, O_RDONLY | O_NONBLOCK, 0);
	int error = fd < 0 ? errno : fstat(fd, &s) < 0 ? errno : !S_ISREG(s.st_mode) ? EINVAL : 0;
	if (!error && ((know_uid && s.st_uid != *uid) || (know_bytes && (uint64_t)s.st_size != *bytes)))
		error = EBADMSG;
	if (!error) {
		*uid = s.st_uid;
		*bytes = (uint64_t)s.st_size;
		return fd;
	}
	if (fd >= 0)
		close(fd);
	errno = error;
	return -1;
}

static enum status refused_part(const char *path, const char *name, int error, char *why, size_t n_why)
{
	char whole[CHECKPOINT_MAX_PATH + 32];
	snprintf(whole, sizeof(whole), "%s/%s", path, name);
	return checkpoint_refused(whole, error, why, n_why);
}

static enum status check_files(int dir_fd, const char *path, const struct manifest *m, uint32_t uid, char *why,
			       size_t n_why)
{
	const struct checkpoint_file *file;
	char name[CHECKPOINT_FILE_NAME];
	for (uint32_t i = 0; (file = manifest_file(m, i, name)); i++) {
		uint64_t bytes = file->bytes;
		if (!bytes)
			continue;
		int fd = open_checked(dir_fd, name, &uid, true, &bytes, true);
		if (fd < 0 && errno == EBADMSG) {
			snprintf(why, n_why,
				 "%s/%s: its size or owner is not that of the manifest (%" PRIu64 " bytes, uid %u)",
				 path, name, bytes, uid);
			return ST_MALFORMED;
		}
		if (fd < 0)
			return refused_part(path, name, errno, why, n_why);
		close(fd);
	}
	return ST_OK;
}

/* ---- sealing ---- */

static enum status write_manifest(int dir_fd, const char *text, size_t n, char *why, size_t n_why)
{
	int fd = create_file(dir_fd, MANIFEST_PARTIAL);
	bool ok = fd >= 0 && passes(FAILPOINT_ERROR(gaccd_save_manifest_opened));
	int error = ok ? write_all(fd, text, n, 0) : errno;
	if (!error && (fdatasync(fd) < 0 || !passes(FAILPOINT_ERROR(gaccd_save_manifest_written))))
		error = errno;
	if (fd >= 0)
		close(fd);
	if (!error && renameat(dir_fd, MANIFEST_PARTIAL, dir_fd, MANIFEST) < 0)
		error = errno;
	return error ? checkpoint_failed("writing", MANIFEST, error, why, n_why) : ST_OK;
}

/* Gives away a file that this process has made and that has no other link. Its owner is checked when it is read, so
 * the change is synced. *given: the owner was changed, perhaps not durably. */
static bool give_file(int dir_fd, const char *name, uint32_t uid, uint32_t gid, bool *given)
{
	struct stat s;
	int fd = checkpoint_open_at(dir_fd, name, O_RDONLY | O_NONBLOCK, 0);
	if (fd < 0)
		return errno == ENOENT;
	bool ok = fstat(fd, &s) == 0 &&
		  (errno = EPERM, S_ISREG(s.st_mode) && s.st_nlink == 1 && s.st_uid == geteuid()) &&
		  fchown(fd, uid, gid) == 0;
	*given |= ok;
	ok = ok && fsync(fd) == 0;
	int error = errno;
	close(fd);
	errno = error;
	return ok;
}

/* Without the right to give files away, gaccd keeps them; the submitter cannot read them then. The directory comes
 * last: from then on its owner can replace its files. A directory in which another user may write is not given away:
 * that user could have other files given away. ST_IO_ERROR: only some have been given (because of a user's quota, for
 * example), or not durably, and no user could read them all. */
static enum status give_to(int dir_fd, const char *path, const struct manifest *m, uint32_t uid, uint32_t gid,
			   char *why, size_t n_why)
{
	struct stat s;
	const struct checkpoint_file *file;
	char name[CHECKPOINT_FILE_NAME];
	bool given = false;
	if (geteuid() == uid)
		return ST_OK;
	bool ok = fstat(dir_fd, &s) == 0 && (errno = EPERM, s.st_uid == geteuid() && !(s.st_mode & 022));
	ok = ok && give_file(dir_fd, MANIFEST, uid, gid, &given);
	for (uint32_t i = 0; ok && (file = manifest_file(m, i, name)); i++)
		ok = !file->bytes || give_file(dir_fd, name, uid, gid, &given);
	if (ok && fchown(dir_fd, uid, gid) == 0)
		return ST_OK;
	if (given)
		return checkpoint_failed("giving its user the files of", path, errno, why, n_why);
	log_info("checkpoint: its files stay with uid %u: %s", (unsigned)geteuid(), strerror(errno));
	return ST_OK;
}

static enum status publish(const char *partial, const char *final, char *why, size_t n_why)
{
	const char *from, *to;
	int fd;
	enum status st = checkpoint_open_parent(partial, false, &fd, &from, why, n_why);
	if (st)
		return st;
	to = strrchr(final, '/') + 1;
	if (!passes(FAILPOINT_ERROR(gaccd_save_rename_before)) || renameat2(fd, from, fd, to, RENAME_NOREPLACE) < 0) {
		st = checkpoint_failed("renaming to", final, errno, why, n_why);
	} else if (!passes(FAILPOINT_ERROR(gaccd_save_renamed)) || fsync(fd) < 0 || !checkpoint_sync_way(fd)) {
		st = checkpoint_failed("syncing the directory of", final, errno, why, n_why);
		/* a complete checkpoint is never deleted here, even if no list has it */
		if (renameat(fd, to, fd, from) < 0)
			log_error("checkpoint: %s stays, and in no list: %s", final, strerror(errno));
	}
	close(fd);
	return st;
}

static void hash(const void *data, size_t n, struct sha256 *s, uint8_t out[SHA256_BYTES])
{
	sha256_add(s, data, n);
	sha256_end(s, out);
	sha256_free(s);
}

/* The directory that the files were written into, and no other that has been given its name since. */
static enum status open_made(const char *partial, const struct checkpoint_dir *made, const struct manifest *m,
			     int *out_fd, char *why, size_t n_why)
{
	uint32_t uid;
	int fd;
	enum status st = checkpoint_open_made(partial, made, &fd, &uid, why, n_why);
	if (st)
		return st;
	if (!check_files(fd, partial, m, uid, why, n_why)) {
		*out_fd = fd;
		return ST_OK;
	}
	log_error("checkpoint: %s", why);
	close(fd);
	return ST_IO_ERROR;
}

enum status checkpoint_seal(const char *partial, const struct checkpoint_dir *made, const char *final,
			    const struct manifest *m, uint32_t uid, uint32_t gid, uint8_t out_sha256[SHA256_BYTES],
			    char *why, size_t n_why)
{
	char *text = NULL;
	size_t n = 0;
	int fd = -1;
	struct sha256 *sum = sha256_new();
	enum status st = sum ? manifest_encode(m, &text, &n) : ST_NO_MEMORY;
	if (!st && n > MANIFEST_MAX_BYTES) {
		snprintf(why, n_why,
			 "the manifest would have %zu bytes, at most %" PRIu64
			 " can be read: the tensors' names are too long",
			 n, MANIFEST_MAX_BYTES);
		st = ST_RESOURCE_EXHAUSTED;
	}
	if (!st)
		st = open_made(partial, made, m, &fd, why, n_why);
	if (!st)
		st = write_manifest(fd, text, n, why, n_why);
	if (!st)
		st = give_to(fd, partial, m, uid, gid, why, n_why);
	if (!st && fsync(fd) < 0)
		st = checkpoint_failed("syncing", partial, errno, why, n_why);
	if (fd >= 0)
		close(fd);
	if (!st)
		st = publish(partial, final, why, n_why);
	if (!st)
		hash(text, n, sum, out_sha256);
	else
		sha256_free(sum);
	free(text);
	return st;
}

/* ---- reading ---- */

static enum status read_manifest(int dir_fd, const char *path, struct manifest **out, uint32_t *uid, char *why,
				 size_t n_why)
{
	char name[CHECKPOINT_MAX_PATH + 32];
	uint64_t bytes = 0;
	snprintf(name, sizeof(name), "%s/" MANIFEST, path);
	int fd = open_checked(dir_fd, MANIFEST, uid, false, &bytes, false);
	if (fd < 0)
		return checkpoint_refused(name, errno, why, n_why);
	char *text = bytes <= MANIFEST_MAX_BYTES ? malloc(bytes + 1) : NULL;
	size_t got = 0;
	for (ssize_t r = 1; text && got < bytes && r > 0; got += r > 0 ? (size_t)r : 0)
		r = pread(fd, text + got, bytes - got, (off_t)got);
	close(fd);
	enum status st = ST_NO_MEMORY;
	if (!text && bytes > MANIFEST_MAX_BYTES)
		st = checkpoint_refused(name, EFBIG, why, n_why);
	else if (text)
		st = manifest_decode(name, text, got, out, why, n_why);
	free(text);
	return st;
}

enum status checkpoint_load(const char *path, struct manifest **out, uint32_t *out_uid, char *why, size_t n_why)
{
	struct manifest *m = NULL;
	uint32_t uid = 0;
	int fd;
	enum status st = checkpoint_open_dir(path, false, &fd, why, n_why);
	if (st)
		return st;
	st = read_manifest(fd, path, &m, &uid, why, n_why);
	if (!st)
		st = check_files(fd, path, m, uid, why, n_why);
	close(fd);
	if (st) {
		manifest_free(m);
		return st;
	}
	*out = m;
	*out_uid = uid;
	return ST_OK;
}

enum status checkpoint_open_file(int dir_fd, const char *name, uint32_t owner, int *out_fd, char *why, size_t n_why)
{
	uint64_t bytes;
	int fd = open_checked(dir_fd, name, &owner, true, &bytes, false);
	if (fd < 0 && errno == EBADMSG) {
		snprintf(why, n_why, "%s: its owner is not the manifest's, uid %u", name, (unsigned)owner);
		return ST_MALFORMED;
	}
	if (fd < 0)
		return checkpoint_refused(name, errno, why, n_why);
	*out_fd = fd;
	return ST_OK;
}

bool checkpoint_exists(const char *path)
{
	char name[CHECKPOINT_MAX_PATH + 32];
	snprintf(name, sizeof(name), "%s/" MANIFEST, path);
	return access(name, F_OK) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

/* ---- deleting ---- */

static bool unlink_one(int dir_fd, const char *name)
{
	return unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT;
}

static bool unlink_of_parts(int dir_fd)
{
	int fd = checkpoint_open_at(dir_fd, ".", O_RDONLY | O_DIRECTORY, 0);
	DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
	bool ok = d != NULL;
	if (!d && fd >= 0)
		close(fd);
	for (struct dirent *e; ok && (e = readdir(d));)
		ok = !checkpoint_is_of_part(e->d_name) || unlink_one(dir_fd, e->d_name);
	if (d)
		closedir(d);
	return ok;
}

enum status checkpoint_remove(const char *path, char *why, size_t n_why)
{
	const char *name;
	int parent, fd;
	enum status st = checkpoint_open_parent(path, false, &parent, &name, why, n_why);
	if (st)
		return st;
	fd = checkpoint_open_at(parent, name, O_RDONLY | O_DIRECTORY, 0);
	bool ok = fd >= 0 ? passes(FAILPOINT_ERROR(gaccd_save_delete_before)) && unlink_one(fd, MANIFEST) &&
				    fsync(fd) == 0 && passes(FAILPOINT_ERROR(gaccd_save_delete_files)) &&
				    unlink_one(fd, MANIFEST_PARTIAL)
			  : false; /* if it is not there, whoever deleted it may have been killed before syncing that */
	for (int i = 0; ok && fd >= 0 && i < CHECKPOINT_PARTS; i++)
		ok = unlink_one(fd, checkpoint_part_name((enum checkpoint_part)i));
	if (ok && fd >= 0)
		ok = unlink_one(fd, CHECKPOINT_STATES_NAME);
	if (ok && fd >= 0)
		ok = unlink_of_parts(fd);
	if (ok && fd >= 0)
		ok = (unlinkat(parent, name, AT_REMOVEDIR) == 0 && fsync(parent) == 0) || errno == ENOTEMPTY;
	if (!ok && errno == ENOENT) /* its user deletes it, too */
		ok = fsync(parent) == 0;
	if (!ok)
		st = checkpoint_failed("deleting", path, errno, why, n_why);
	if (fd >= 0)
		close(fd);
	close(parent);
	return st;
}

/* What is left of a checkpoint of this job whose deletion was interrupted: the manifest is deleted first. */
static bool is_remnant(const char *path, const char *dir, const uint8_t uuid[16])
{
	char name[CHECKPOINT_MAX_PATH];
	uint64_t step, id;
	if (sscanf(path + strlen(dir), "/step-%" SCNu64 "-%" SCNu64, &step, &id) != 2)
		return false;
	checkpoint_final_path(name, dir, uuid, step, id);
	return !strcmp(path, name) && !checkpoint_exists(path);
}

/* Its user has deleted it meanwhile. */
static bool is_gone(const char *dir)
{
	return access(dir, F_OK) < 0 && errno == ENOENT;
}

enum status checkpoint_sweep(const char *dir, const uint8_t uuid[16], uint64_t *out_last_id, char *why, size_t n_why)
{
	char mine[CHECKPOINT_MAX_PATH], path[CHECKPOINT_MAX_PATH + 256];
	int fd;
	enum status st = checkpoint_open_dir(dir, false, &fd, why, n_why);
	if (st)
		return is_gone(dir) ? ST_OK : st;
	DIR *d = fdopendir(fd);
	if (!d) {
		close(fd);
		return ST_NO_MEMORY;
	}
	checkpoint_partial_path(mine, "", uuid, 0);
	size_t n_mine = 2 + 32 + 1; /* "/.UUID-" */
	for (struct dirent *e; (e = readdir(d)) && !st;) {
		uint64_t step, id;
		if (sscanf(e->d_name, "step-%" SCNu64 "-%" SCNu64, &step, &id) == 2 && id > *out_last_id && id < MAX_ID)
			*out_last_id = id;
		bool partial = !strncmp(e->d_name, mine + 1, n_mine - 1) && strstr(e->d_name, CHECKPOINT_PARTIAL);
		snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
		if (partial || is_remnant(path, dir, uuid))
			st = checkpoint_remove(path, why, n_why);
	}
	closedir(d);
	return st && is_gone(dir) ? ST_OK : st;
}
