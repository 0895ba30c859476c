/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the schema of a journal from its bytes, while a gaccd has it open or none does: SQLite itself would wait for
 * the lock of a running gaccd, and writes files of its own to read a write-ahead log. For `gaccd --check-upgrade`.
 *
 * The version is in the header of page 1 (sqlite.org/fileformat2.html). The newest page 1 is in the log if a committed
 * transaction of the log has one, else in the file. The log is read first: what leaves it meanwhile is in the file. */
#include "store/journal.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DB_HEADER 100
#define LOG_HEADER 32
#define FRAME_HEADER 24
#define LOG_MAGIC 0x377f0682u /* its lowest bit: sums are of big-endian words */
#define LOG_FORMAT 3007000

static const char magic[16] = "SQLite format 3";

static uint32_t get_be32(const uint8_t *at)
{
	uint32_t v;
	memcpy(&v, at, sizeof(v));
	return be32toh(v);
}

static uint32_t version_of(const uint8_t *page)
{
	return get_be32(page + 60);
}

/* Not a link, and nothing that would block: the folder is gaccd's user's, and this may be root. */
static int open_plain(const char *path)
{
	struct stat is;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0 || (!fstat(fd, &is) && S_ISREG(is.st_mode)))
		return fd;
	close(fd);
	errno = EINVAL;
	return -1;
}

/* ---- the log ---- */

struct log {
	int fd;
	bool big; /* the order of bytes of the words that are summed */
	uint32_t page_size;
	uint8_t salt[8];
	uint32_t sum[2];
	uint8_t *frame;
};

static uint32_t get_word(const struct log *l, const uint8_t *at)
{
	uint32_t v;
	memcpy(&v, at, sizeof(v));
	return l->big ? be32toh(v) : le32toh(v);
}

static void add_sum(struct log *l, const uint8_t *at, size_t n)
{
	for (size_t i = 0; i < n; i += 8) {
		l->sum[0] += get_word(l, at + i) + l->sum[1];
		l->sum[1] += get_word(l, at + i + 4) + l->sum[0];
	}
}

static bool sum_is(const struct log *l, const uint8_t *at)
{
	return get_be32(at) == l->sum[0] && get_be32(at + 4) == l->sum[1];
}

/* false: there is nothing in it that counts. */
static bool begin_log(struct log *l)
{
	uint8_t h[LOG_HEADER];
	if (pread(l->fd, h, sizeof(h), 0) != sizeof(h) || (get_be32(h) & ~1u) != LOG_MAGIC ||
	    get_be32(h + 4) != LOG_FORMAT)
		return false;
	l->big = get_be32(h) & 1;
	l->page_size = get_be32(h + 8);
	memcpy(l->salt, h + 16, sizeof(l->salt));
	add_sum(l, h, 24);
	return sum_is(l, h + 24) && l->page_size >= 512 && l->page_size <= 65536 &&
	       !(l->page_size & (l->page_size - 1));
}

/* The next frame is whole, and of this round of the log. */
static bool next_frame(struct log *l, off_t at)
{
	const size_t n = FRAME_HEADER + l->page_size;
	if (pread(l->fd, l->frame, n, at) != (ssize_t)n || memcmp(l->frame + 8, l->salt, sizeof(l->salt)) != 0)
		return false;
	add_sum(l, l->frame, 8);
	add_sum(l, l->frame + FRAME_HEADER, l->page_size);
	return sum_is(l, l->frame + 16);
}

/* What the committed frames say; `*out` stays as it is if none of them is page 1. */
static void read_frames(struct log *l, uint32_t *out, bool *found)
{
	uint32_t version = 0;
	bool open = false; /* the transaction has page 1 */
	for (off_t at = LOG_HEADER; next_frame(l, at); at += FRAME_HEADER + l->page_size) {
		if (get_be32(l->frame) == 1) {
			version = version_of(l->frame + FRAME_HEADER);
			open = true;
		}
		if (open && get_be32(l->frame + 4)) { /* its last frame */
			*out = version;
			*found = true;
			open = false;
		}
	}
}

static enum status read_log(const char *path, uint32_t *out, bool *found)
{
	struct log l = { 0 };
	char name[4200];
	enum status st = ST_OK;
	snprintf(name, sizeof(name), "%s-wal", path);
	l.fd = open_plain(name);
	if (l.fd < 0)
		return errno == ENOENT ? ST_OK : ST_STORE_FAILED;
	if (begin_log(&l)) {
		l.frame = malloc(FRAME_HEADER + l.page_size);
		if (l.frame)
			read_frames(&l, out, found);
		else
			st = ST_NO_MEMORY;
	}
	free(l.frame);
	close(l.fd);
	errno = st ? ENOMEM : 0;
	return st;
}

/* ---- the file ---- */

static enum status read_file(const char *path, uint32_t *out)
{
	uint8_t h[DB_HEADER];
	int fd = open_plain(path);
	if (fd < 0)
		return errno == ENOENT ? ST_OK : ST_STORE_FAILED;
	const ssize_t n = pread(fd, h, sizeof(h), 0);
	const int error = errno;
	close(fd);
	errno = error;
	if (n < 0)
		return ST_STORE_FAILED;
	if (n && (n < DB_HEADER || memcmp(h, magic, sizeof(magic)) != 0))
		return ST_MALFORMED;
	*out = n ? version_of(h) : 0;
	return ST_OK;
}

enum status journal_schema_of(const char *path, uint32_t *out, char *why, size_t n_why)
{
	uint32_t in_log = 0;
	bool found = false;
	*out = 0;
	enum status st = read_log(path, &in_log, &found);
	if (!st)
		st = read_file(path, out);
	if (!st && found)
		*out = in_log;
	if (st)
		snprintf(why, n_why, "%s", st == ST_MALFORMED ? "this is no SQLite file" : strerror(errno));
	return st;
}
