/* SPDX-License-Identifier: Apache-2.0 */
/* Brings together what the engines of a job of several parts have written of one checkpoint: before the seal, gaccd
 * moves each part's files, of the open window or of its share of the optimizer state, into the directory of the whole.
 * In the pool; blocks. */
#include "store/checkpoint_dirs.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum status checkpoint_open_made(const char *path, const struct checkpoint_dir *made, int *out_fd, uint32_t *out_uid,
				 char *why, size_t n_why)
{
	struct stat s;
	int fd;
	enum status st = checkpoint_open_dir(path, false, &fd, why, n_why);
	if (st)
		return st;
	if (fstat(fd, &s) == 0 && s.st_dev == made->dev && s.st_ino == made->ino) {
		*out_fd = fd;
		*out_uid = s.st_uid;
		return ST_OK;
	}
	snprintf(why, n_why, "%s is not the directory that was written: rename nothing there", path);
	log_error("checkpoint: %s", why);
	close(fd);
	return ST_IO_ERROR;
}

static enum status move_files(int from, int to, uint32_t part, const struct manifest *m, char *why, size_t n_why)
{
	char name[CHECKPOINT_FILE_NAME];
	for (int p = CHECKPOINT_OPTIMIZER; p < CHECKPOINT_PARTS; p++) {
		const char *written = checkpoint_part_name((enum checkpoint_part)p);
		checkpoint_file_name(name, (enum checkpoint_part)p, part, manifest_by_part(m));
		if (m->part[part].file[p].bytes && renameat2(from, written, to, name, RENAME_NOREPLACE) < 0)
			return checkpoint_failed("renaming to", name, errno, why, n_why);
	}
	return ST_OK;
}

enum status checkpoint_gather(const char *partial, const struct checkpoint_dir *whole,
			      const struct checkpoint_dir *made, uint32_t part, const struct manifest *m, char *why,
			      size_t n_why)
{
	char path[CHECKPOINT_MAX_PATH];
	uint32_t uid;
	int from, to;
	checkpoint_part_path(path, partial, part);
	enum status st = checkpoint_open_made(partial, whole, &to, &uid, why, n_why);
	if (st)
		return st;
	st = checkpoint_open_made(path, made, &from, &uid, why, n_why);
	if (!st) {
		st = move_files(from, to, part, m, why, n_why);
		close(from);
	}
	close(to);
	return st || !part ? st : checkpoint_remove(path, why, n_why);
}
