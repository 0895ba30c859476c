/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what comes next in the log of a rank, with its owner's rights, also when the log was rotated meanwhile. For
 * edge/rank_logs.c, on a thread of the pool. */
#include "runtime/rank_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE 65536

/* A regular file of this owner, and what it is; -1 with errno. A FIFO would wait for its writer. */
static int open_log(const char *path, uint32_t owner, struct stat *is)
{
	const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
	int fd = open(path, flags);
	if (fd < 0 && errno == EACCES && owner != geteuid()) {
		setfsuid(owner);
		fd = open(path, flags);
		const int error = errno;
		setfsuid(geteuid());
		errno = error;
	}
	if (fd < 0)
		return -1;
	if (!fstat(fd, is) && S_ISREG(is->st_mode) && is->st_uid == owner)
		return fd;
	close(fd);
	errno = EACCES;
	return -1;
}

/* Where the last `tail` lines begin, as far as they are looked for. The break that ends the file belongs to its last
 * line. */
static uint64_t tail_offset(int fd, uint64_t size, uint64_t tail)
{
	const uint64_t least = size > RANK_LOG_SCAN ? size - RANK_LOG_SCAN : 0;
	uint64_t end = size, found = 0;
	char piece[PIECE];
	if (!size || !tail)
		return size;
	if (pread(fd, piece, 1, (off_t)size - 1) == 1 && piece[0] != '\n')
		found = 1; /* an unfinished line counts as one */
	while (end > least) {
		const size_t n = end - least < PIECE ? (size_t)(end - least) : PIECE;
		const ssize_t got = pread(fd, piece, n, (off_t)(end -= n));
		for (ssize_t i = got; i > 0; i--)
			if (piece[i - 1] == '\n' && found++ == tail)
				return end + (uint64_t)i;
	}
	return least;
}

static void read_from(int fd, const struct stat *is, uint64_t offset, uint8_t *room, struct log_piece *out)
{
	const ssize_t n = pread(fd, room, LOG_PIECE_BYTES, (off_t)offset);
	out->file = is->st_ino;
	out->data = room;
	out->n = n > 0 ? (uint32_t)n : 0;
	out->offset = offset + out->n;
	out->more = n > 0 && out->offset < (uint64_t)is->st_size;
}

/* The rest of the file that has been renamed since, if that is the one before. */
static bool read_older(const char *path, uint32_t owner, const struct log_ask *a, uint8_t *room, struct log_piece *out)
{
	char older[4300];
	struct stat is;
	snprintf(older, sizeof(older), "%s.1", path);
	const int fd = open_log(older, owner, &is);
	if (fd < 0)
		return false;
	if (is.st_ino == a->file && a->offset < (uint64_t)is.st_size)
		read_from(fd, &is, a->offset, room, out);
	close(fd);
	out->more |= out->n != 0; /* the newer file */
	return out->n;
}

static void read_log(const char *path, uint32_t owner, const struct log_ask *a, uint8_t *room, struct log_piece *out)
{
	struct stat is;
	const int fd = open_log(path, owner, &is);
	if (fd < 0) {
		out->missing = errno == ENOENT;
		out->status = out->missing ? ST_OK : ST_IO_ERROR;
		if (out->status)
			snprintf(out->text, sizeof(out->text), "cannot read %.120s: %s", path, strerror(errno));
		return;
	}
	const uint64_t size = (uint64_t)is.st_size;
	if (!a->file)
		read_from(fd, &is, a->from_end ? tail_offset(fd, size, a->tail) : 0, room, out);
	else if (a->file == is.st_ino && a->offset <= size)
		read_from(fd, &is, a->offset, room, out);
	else if (!read_older(path, owner, a, room, out))
		read_from(fd, &is, 0, room, out);
	close(fd);
}

void rank_log_read(const char *dir, uint32_t owner, const struct log_ask *a, uint8_t *room, struct log_piece *out)
{
	char path[4200];
	struct stat is;
	*out = (struct log_piece){ .status = ST_OK };
	if (owner == RANK_LOG_OF_DIR) {
		if (lstat(dir, &is)) {
			out->missing = true;
			return;
		}
		owner = is.st_uid;
	}
	snprintf(path, sizeof(path), "%.4000s/worker_%u.log", dir, a->rank);
	read_log(path, owner, a, room, out);
}
