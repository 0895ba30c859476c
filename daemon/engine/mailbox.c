/* SPDX-License-Identifier: Apache-2.0 */
/* A mailbox as descriptors: makes the memory and the bells, for gaccd and on any thread; opens, watches and drops
 * them, for the engine's main thread. */
#include "engine/mailbox.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define MAX_TENSORS (UINT64_C(1) << 32)

/* ---- making one ---- */

static enum status failed(const char *what, char *why, size_t n_why)
{
	int error = errno;
	snprintf(why, n_why, "a mailbox: %s: %s", what, strerror(error));
	return error == ENOMEM || error == ENOSPC || error == EMFILE || error == ENFILE ? ST_NO_MEMORY : ST_IO_ERROR;
}

/* The memory; -1 with the call that failed. */
static int make_memory(const struct mailbox_owner *o, const char **what)
{
	struct gacc_box_header h = { .magic = GACC_BOX_MAGIC,
				     .version = GACC_BOX_VERSION,
				     .cells = GACC_BOX_CELLS,
				     .job = o->job,
				     .rank = o->rank,
				     .slots = o->slots,
				     .sgen = o->sgen };
	char name[64];
	snprintf(name, sizeof(name), "gacc-%" PRIu64 "-mailbox-%u", o->job, o->rank);
	off_t bytes = (off_t)gacc_box_bytes(o->n_tensors);
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	bool ok = (*what = "memfd_create", fd >= 0) && (*what = "fchmod", fchmod(fd, 0600) == 0) &&
		  (*what = "fallocate", fallocate(fd, 0, 0, bytes) == 0) &&
		  (*what = "header", pwrite(fd, &h, sizeof(h), 0) == (ssize_t)sizeof(h)) &&
		  (*what = "seals", fcntl(fd, F_ADD_SEALS, SEALS) == 0);
	if (!ok && fd >= 0) {
		int error = errno;
		close(fd);
		errno = error;
	}
	return ok ? fd : -1;
}

/* The two bells, and the epoll that the trainer gets instead of the second. */
static bool make_bells(struct mailbox_fds *f, const char **what)
{
	struct epoll_event bell = { .events = EPOLLIN | EPOLLET, .data.u64 = MAILBOX_BELL };
	*what = "eventfd";
	f->submit = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	f->answer = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (f->submit < 0 || f->answer < 0)
		return false;
	*what = "epoll";
	f->waits = epoll_create1(EPOLL_CLOEXEC);
	return f->waits >= 0 && epoll_ctl(f->waits, EPOLL_CTL_ADD, f->answer, &bell) == 0;
}

enum status mailbox_make(struct mailbox_fds *out, const struct mailbox_owner *o, char *why, size_t n_why)
{
	assert(o->n_tensors > 0 && o->n_tensors < MAX_TENSORS);
	const char *what;
	*out = MAILBOX_NO_FDS;
	out->memory = make_memory(o, &what);
	if (out->memory >= 0 && make_bells(out, &what))
		return ST_OK;
	enum status st = failed(what, why, n_why);
	mailbox_close_fds(out);
	return st;
}

void mailbox_close_fds(struct mailbox_fds *f)
{
	int fds[] = { f->memory, f->submit, f->answer, f->waits };
	for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
		if (fds[i] >= 0)
			close(fds[i]);
	*f = MAILBOX_NO_FDS;
}

/* ---- the engine's side ---- */

static enum status judge_memory(int fd, size_t bytes, char *why, size_t n_why)
{
	struct stat info;
	int seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || (seals & SEALS) != SEALS)
		snprintf(why, n_why, "a mailbox: not a sealed memfd (seals 0x%x)", (unsigned)(seals < 0 ? 0 : seals));
	else if (fstat(fd, &info) < 0 || (uint64_t)info.st_size != bytes)
		snprintf(why, n_why, "a mailbox: it does not have %zu bytes", bytes);
	else
		return ST_OK;
	return ST_SEGMENT_CORRUPT;
}

static bool cannot_block(int fd)
{
	int flags = fcntl(fd, F_GETFL);
	return flags >= 0 && (flags & O_NONBLOCK);
}

static enum status map(struct gacc_box **out, const struct mailbox_fds *f, size_t bytes, char *why, size_t n_why)
{
	enum status st = judge_memory(f->memory, bytes, why, n_why);
	if (st)
		return st;
	if (!cannot_block(f->answer)) {
		snprintf(why, n_why, "a mailbox: its answer bell could block");
		return ST_INVALID_ARGUMENT;
	}
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, f->memory, 0);
	*out = p;
	return p == MAP_FAILED ? failed("mmap", why, n_why) : ST_OK;
}

enum status mailbox_open(struct mailbox *out, const struct mailbox_fds *f, uint64_t n_tensors, uint32_t slots,
			 char *why, size_t n_why)
{
	assert(n_tensors > 0 && n_tensors < MAX_TENSORS);
	struct mailbox_fds mine = *f;
	struct gacc_box *mem;
	size_t bytes = gacc_box_bytes(n_tensors);
	mine.waits = -1;
	enum status st = map(&mem, &mine, bytes, why, n_why);
	if (st) {
		mailbox_close_fds(&mine);
		return st;
	}
	close(mine.memory);
	*out = (struct mailbox){ .bytes = bytes, .submit = mine.submit, .answer = mine.answer, .epoll = -1 };
	box_take_over(&out->cells, mem, n_tensors, slots);
	return ST_OK;
}

enum status mailbox_watch(struct mailbox *m, int epoll, uint64_t data)
{
	struct epoll_event e = { .events = EPOLLIN | EPOLLET, .data.u64 = data };
	if (epoll_ctl(epoll, EPOLL_CTL_ADD, m->submit, &e) != 0)
		return ST_IO_ERROR;
	m->epoll = epoll;
	return ST_OK;
}

/* The submit bell's file lives on with the trainer, so closing it here would not end its events. */
void mailbox_drop(struct mailbox *m)
{
	if (m->epoll >= 0)
		epoll_ctl(m->epoll, EPOLL_CTL_DEL, m->submit, NULL);
	munmap(m->cells.mem, m->bytes);
	close(m->submit);
	close(m->answer);
	*m = (struct mailbox){ .submit = -1, .answer = -1, .epoll = -1 };
}
