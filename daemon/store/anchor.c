/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the journal's last acknowledged state outside the journal, in a file and in memory for the service manager:
 * see anchor.h. For the journal's other files only, on whatever thread calls the journal. */
#include "store/anchor.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define MAGIC UINT64_C(0x31434e4143434147) /* "GACCANC1", little-endian */
#define SLOT_BYTES 512			   /* a disk writes it whole or not at all */
#define RING_OFFSET 4096
#define TOTAL_BYTES (RING_OFFSET + ANCHOR_ENTRIES * sizeof(struct anchor_entry))
#define ACCEPTED 1u

/* Written in turn to the file's first two places: one of them is whole at any time, even if gaccd or the machine
 * crashes. */
struct slot {
	uint64_t magic, seq, flags;
	struct anchor_mark mark;
	uint64_t crc; /* XXH3-64 of the fields above */
};
_Static_assert(sizeof(struct slot) <= SLOT_BYTES, "a slot is one sector");

static uint64_t crc_of(const struct slot *s)
{
	return XXH3_64bits(s, offsetof(struct slot, crc));
}

static enum status failed(const char *what)
{
	log_error("journal's anchor: %s: %s", what, strerror(errno));
	return ST_IO_ERROR;
}

/* ---- one copy ---- */

static bool put(int fd, const void *data, size_t n, size_t at)
{
	ssize_t done = pwrite(fd, data, n, (off_t)at);
	if (done >= 0 && (size_t)done < n)
		errno = ENOSPC;
	return done == (ssize_t)n;
}

/* True: the operator has accepted a loss of records. */
static bool read_copy(struct anchor_copy *c)
{
	bool accepted = false;
	for (int i = 0; i < 2 && c->fd >= 0; i++) {
		struct slot s;
		if (pread(c->fd, &s, sizeof(s), i * SLOT_BYTES) != sizeof(s) || s.magic != MAGIC ||
		    s.crc != crc_of(&s) || (c->found && s.seq < c->seq))
			continue;
		c->found = true;
		c->seq = s.seq;
		c->mark = s.mark;
		accepted = s.flags & ACCEPTED;
	}
	return accepted;
}

static bool write_slot(struct anchor_copy *c, const struct anchor_mark *mark, uint64_t flags)
{
	struct slot s = { .magic = MAGIC, .seq = c->seq + 1, .flags = flags, .mark = *mark };
	s.crc = crc_of(&s);
	if (!put(c->fd, &s, sizeof(s), (s.seq & 1) * SLOT_BYTES))
		return false;
	c->seq = s.seq;
	c->mark = *mark;
	c->found = true;
	return true;
}

static size_t place_of(uint64_t number)
{
	return RING_OFFSET + number % ANCHOR_ENTRIES * sizeof(struct anchor_entry);
}

/* Neighbours in one write. */
static bool write_entries(const struct anchor_copy *c, const struct anchor_entry *e, size_t n)
{
	if (n > ANCHOR_ENTRIES) {
		e += n - ANCHOR_ENTRIES;
		n = ANCHOR_ENTRIES;
	}
	for (size_t i = 0, run; i < n; i += run) {
		size_t room = ANCHOR_ENTRIES - e[i].number % ANCHOR_ENTRIES;
		run = n - i < room ? n - i : room;
		if (!put(c->fd, &e[i], run * sizeof(*e), place_of(e[i].number)))
			return false;
	}
	return true;
}

bool anchor_entry(const struct anchor_copy *c, uint64_t number, struct anchor_entry *out)
{
	return c->fd >= 0 && pread(c->fd, out, sizeof(*out), (off_t)place_of(number)) == sizeof(*out) &&
	       out->number == number;
}

/* ---- both ---- */

enum status anchor_read(struct anchor *a, const char *path, int kept)
{
	*a = (struct anchor){ .file = { .fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW) }, .kept = { .fd = kept } };
	if (a->file.fd < 0 && errno != ENOENT) {
		enum status st = failed(path);
		anchor_close(a);
		return st;
	}
	a->accepted = read_copy(&a->file);
	read_copy(&a->kept);
	return ST_OK;
}

const struct anchor_copy *anchor_newest(const struct anchor *a)
{
	if (!a->kept.found)
		return a->file.found ? &a->file : NULL;
	return a->file.found && a->file.mark.records > a->kept.mark.records ? &a->file : &a->kept;
}

/* The directory's entry of the file is durable when it returns. */
static bool sync_parent(const char *path)
{
	char *dir = strdup(path), *slash = dir ? strrchr(dir, '/') : NULL;
	if (slash)
		slash[slash == dir] = '\0';
	int fd = dir ? open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	bool ok = fd >= 0 && !fsync(fd);
	if (fd >= 0)
		close(fd);
	free(dir);
	return ok;
}

/* All of its space is taken at once, so that a full disk cannot make a later anchor_note fail. */
static bool lay_out(int fd)
{
	char *zeros = calloc(1, TOTAL_BYTES);
	struct stat st;
	bool ok = zeros && !fstat(fd, &st);
	if (ok && (size_t)st.st_size < TOTAL_BYTES)
		ok = put(fd, zeros + st.st_size, TOTAL_BYTES - (size_t)st.st_size, (size_t)st.st_size);
	free(zeros);
	return ok;
}

static enum status begin_file(struct anchor *a, const char *path, const struct anchor_mark *mark,
			      const struct anchor_entry *last, uint64_t flags)
{
	if (a->file.fd < 0)
		a->file.fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (a->file.fd < 0 || !lay_out(a->file.fd) || (last && !write_entries(&a->file, last, 1)) ||
	    !write_slot(&a->file, mark, flags) || fdatasync(a->file.fd) || !sync_parent(path))
		return failed(path);
	return ST_OK;
}

static enum status begin_memory(struct anchor *a, const struct anchor_mark *mark, const struct anchor_entry *last)
{
	if (a->kept.fd < 0)
		a->kept.fd = memfd_create("gacc-journal", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (a->kept.fd < 0 || !lay_out(a->kept.fd) || (last && !write_entries(&a->kept, last, 1)) ||
	    !write_slot(&a->kept, mark, 0))
		return failed("memory for the service manager");
	return ST_OK;
}

enum status anchor_begin(struct anchor *a, const char *path, bool keep, const struct anchor_mark *mark,
			 const struct anchor_entry *last)
{
	enum status st = keep ? begin_memory(a, mark, last) : ST_OK;
	if (!st)
		st = begin_file(a, path, mark, last, 0); /* last: it holds the operator's consent, which counts once */
	if (!st)
		a->accepted = false;
	return st;
}

enum status anchor_accept(struct anchor *a, const char *path, const struct anchor_mark *mark)
{
	return begin_file(a, path, mark, NULL, ACCEPTED);
}

enum status anchor_note(struct anchor *a, const struct anchor_mark *mark, const struct anchor_entry *e, size_t n)
{
	struct anchor_copy *copy[] = { &a->kept, &a->file };
	for (int i = 0; i < 2; i++)
		if (copy[i]->fd >= 0 && (!write_entries(copy[i], e, n) || !write_slot(copy[i], mark, 0)))
			return failed("writing it");
	a->dirty = true;
	return ST_OK;
}

enum status anchor_sync(struct anchor *a)
{
	if (!a->dirty)
		return ST_OK;
	a->dirty = false;
	return fdatasync(a->file.fd) ? failed("syncing it") : ST_OK;
}

void anchor_close(struct anchor *a)
{
	if (a->file.fd >= 0)
		close(a->file.fd);
	if (a->kept.fd >= 0)
		close(a->kept.fd);
	a->file.fd = a->kept.fd = -1;
}
