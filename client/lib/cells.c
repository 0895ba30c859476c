/* SPDX-License-Identifier: Apache-2.0 */
/* Cells of a mailbox as the trainer uses them: opens the mailbox that gaccd has handed out, stores requests, rings, and
 * waits for answers on the epoll descriptor. For pushes and waits without RPC (posted.c); the job's thread. */
#include "lib/cells.h"

#include "lib/clock.h"
#include "proto/box_check.h"
#include "proto/failpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { HANG_UP = 2, TIMER = 3 }; /* data of the attach socket's and the timer's events; that of the bell is 1 */

/* ---- shared memory: each word is read once and written once, by one instruction ---- */

static void load_words(void *to, const void *from, size_t bytes)
{
	unsigned char *out = to;
	const uint64_t *in = from;

	for (size_t i = 0; i < bytes / sizeof(*in); i++) {
		uint64_t word = __atomic_load_n(&in[i], __ATOMIC_RELAXED);

		memcpy(out + i * sizeof(word), &word, sizeof(word));
	}
}

/* Words [first, behind) of a struct. */
static void store_words(void *to, const void *from, size_t first, size_t behind)
{
	uint64_t *out = to;
	const unsigned char *in = from;

	for (size_t i = first; i < behind; i++) {
		uint64_t word;

		memcpy(&word, in + i * sizeof(word), sizeof(word));
		__atomic_store_n(&out[i], word, __ATOMIC_RELAXED);
	}
}

static uint32_t check_of(const void *p, size_t bytes)
{
	return box_check(p, bytes);
}

/* ---- opening: nothing that gaccd hands out may harm this process ---- */

static enum status fail(char *why, size_t n_why, const char *what, const char *reason)
{
	snprintf(why, n_why, "%s: %s", what, reason);
	return ST_SEGMENT_CORRUPT;
}

/* Memory of exactly this size, which can no longer shrink under us. */
static enum status map_memory(struct cells *c, int fd, char *why, size_t n_why)
{
	struct stat sb;
	int seals = fcntl(fd, F_GET_SEALS);
	void *base;

	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		return fail(why, n_why, "memory", "not sealed");
	if (fstat(fd, &sb) || (uint64_t)sb.st_size != c->bytes)
		return fail(why, n_why, "memory", "of another size");
	base = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		return fail(why, n_why, "mmap", strerror(errno));
	c->mem = base;
	return ST_OK;
}

static enum status check_header(const struct cells *c, const struct cells_owner *o, char *why, size_t n_why)
{
	struct gacc_box_header h;

	load_words(&h, &c->mem->header, sizeof(h));
	if (h.magic != GACC_BOX_MAGIC || h.version != GACC_BOX_VERSION || h.cells != GACC_BOX_CELLS)
		return fail(why, n_why, "header", "of another format");
	if (h.job != o->job || h.rank != o->rank || h.sgen != o->sgen || h.slots != o->slots)
		return fail(why, n_why, "header", "of another session");
	return ST_OK;
}

/* A write to the bell must neither block nor raise a signal, as one to a pipe or a socket could: those have a file
 * type, an eventfd has none. */
static enum status check_bell(int fd, char *why, size_t n_why)
{
	int flags = fcntl(fd, F_GETFL);
	struct stat sb;

	if (flags < 0 || fstat(fd, &sb) || sb.st_mode & S_IFMT || !(flags & O_NONBLOCK))
		return fail(why, n_why, "bell", "not an eventfd that never blocks");
	return ST_OK;
}

/* One thing to wait on for both. */
static enum status watch_socket(int epoll, int socket, char *why, size_t n_why)
{
	struct epoll_event e = { .events = EPOLLRDHUP, .data.u64 = HANG_UP };

	if (epoll_ctl(epoll, EPOLL_CTL_ADD, socket, &e))
		return fail(why, n_why, "epoll descriptor", strerror(errno));
	return ST_OK;
}

/* Without one, sleeps have timeouts. */
static void add_timer(struct cells *c)
{
	struct epoll_event e = { .events = EPOLLIN, .data.u64 = TIMER };

	c->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (c->timer < 0 || !epoll_ctl(c->waits, EPOLL_CTL_ADD, c->timer, &e))
		return;
	close(c->timer);
	c->timer = -1;
}

/* Numbers go on where a process of this session may have stopped; what it left open stays so until it is answered. */
static void adopt_cells(struct cells *c)
{
	for (uint32_t i = 0; i < GACC_BOX_CELLS; i++) {
		uint64_t asked = __atomic_load_n(&c->mem->request[i].seq, __ATOMIC_RELAXED);

		c->seq = asked > c->seq ? asked : c->seq;
		if (asked != __atomic_load_n(&c->mem->answer[i].seq, __ATOMIC_ACQUIRE)) {
			c->open[i] = asked;
			c->late[i] = true;
		}
	}
}

enum status cells_open(struct cells *out, const struct cells_fds *fds, const struct cells_owner *o, int socket,
		       char *why, size_t n_why)
{
	enum status st = ST_OK;

	*out = (struct cells){ .bytes = gacc_box_bytes(o->n_tensors),
			       .sgen = o->sgen,
			       .n_tensors = o->n_tensors,
			       .submit = fds->submit,
			       .waits = fds->waits,
			       .timer = -1,
			       .patience_ms = CELLS_PATIENCE_MS };
	if (fds->memory < 0 || fds->submit < 0 || fds->waits < 0)
		st = fail(why, n_why, "descriptors", "not all of them have come");
	if (!st)
		st = check_bell(fds->submit, why, n_why);
	if (!st)
		st = map_memory(out, fds->memory, why, n_why);
	if (!st)
		st = check_header(out, o, why, n_why);
	if (!st)
		st = watch_socket(fds->waits, socket, why, n_why);
	if (!st)
		add_timer(out);
	if (!st)
		adopt_cells(out);
	if (fds->memory >= 0)
		close(fds->memory);
	if (st)
		cells_close(out);
	return st;
}

void cells_close(struct cells *c)
{
	if (!c->bytes)
		return;
	if (c->mem)
		munmap(c->mem, c->bytes);
	if (c->submit >= 0)
		close(c->submit);
	if (c->timer >= 0)
		close(c->timer);
	if (c->waits >= 0)
		close(c->waits);
	*c = (struct cells){ 0 };
}

/* ---- answers ---- */

/* Once closed, it stays so, whatever the memory says later. */
static bool is_closed(struct cells *c)
{
	c->closed = c->closed || __atomic_load_n(&c->mem->header.closed, __ATOMIC_ACQUIRE);
	return c->closed;
}

static bool read_answer(struct cells *c, uint32_t cell, struct gacc_box_answer *out)
{
	const struct gacc_box_answer *from = &c->mem->answer[cell];

	if (__atomic_load_n(&from->seq, __ATOMIC_ACQUIRE) != c->open[cell])
		return false;
	load_words(out, from, sizeof(*out));
	if (out->seq != c->open[cell] || out->check != check_of(out, GACC_BOX_ANSWER_CHECKED))
		return false;
	c->open[cell] = 0;
	c->late[cell] = false;
	return true;
}

/* A timeout costs each sleep a timer of the kernel's that is set and removed again. This one stays set: it rings at
 * `end`, or before it, as an earlier sleep has wanted, and is then set anew. false: a timeout is needed. */
static bool set_timer(struct cells *c, int64_t end)
{
	const struct itimerspec at = { .it_value = { end / 1000, end % 1000 * 1000000 } };

	if (c->timer < 0)
		return false;
	if (c->rings_ms && c->rings_ms <= end)
		return true;
	c->rings_ms = timerfd_settime(c->timer, TFD_TIMER_ABSTIME, &at, NULL) ? 0 : end;
	return c->rings_ms;
}

static void hear_timer(struct cells *c)
{
	uint64_t times;

	if (read(c->timer, &times, sizeof(times)) == sizeof(times))
		c->rings_ms = 0;
}

/* Sleeps until a bell, a hang-up or `end`, at most, which is `ms` away; false: hang-up, or no sleep was possible. */
static bool sleep_until_bell(struct cells *c, int64_t end, int64_t ms)
{
	struct epoll_event e[3];
	int timeout = ms > INT32_MAX ? INT32_MAX : (int)ms;
	int n = epoll_wait(c->waits, e, 3, set_timer(c, end) ? -1 : timeout);

	for (int i = 0; i < n; i++)
		if (e[i].data.u64 == HANG_UP)
			return false;
	for (int i = 0; i < n; i++)
		if (e[i].data.u64 == TIMER)
			hear_timer(c);
	return n >= 0 || errno == EINTR;
}

static uint32_t cell_of(const struct cells *c, uint64_t seq)
{
	uint32_t i = 0;

	while (i < GACC_BOX_CELLS && c->open[i] != seq)
		i++;
	return i;
}

bool cells_await(struct cells *c, uint64_t seq, int64_t ms, struct gacc_box_answer *out)
{
	uint32_t cell = c->mem && seq ? cell_of(c, seq) : GACC_BOX_CELLS;
	int64_t end = -1, left = ms;
	bool may_sleep = true;

	if (cell == GACC_BOX_CELLS)
		return false;
	for (;;) {
		bool closed = is_closed(c); /* asked first: answers came before it */

		if (read_answer(c, cell, out))
			return true;
		c->late[cell] = left <= 0 || !may_sleep;
		if (closed || c->late[cell])
			return false;
		if (end < 0)
			end = now_ms() + ms;
		may_sleep = sleep_until_bell(c, end, left);
		left = end - now_ms();
	}
}

bool cells_owes(struct cells *c, uint64_t seq)
{
	return c->mem && seq && cell_of(c, seq) < GACC_BOX_CELLS && !is_closed(c);
}

bool cells_step(const struct cells *c, uint64_t window, struct gacc_box_step *out)
{
	load_words(out, &c->mem->step, sizeof(*out));
	return out->check == check_of(out, GACC_BOX_STEP_CHECKED) && out->window == window;
}

/* ---- requests ---- */

bool cells_usable(struct cells *c)
{
	struct gacc_box_answer nobodys;

	if (!c->mem || is_closed(c))
		return false;
	for (uint32_t i = 0; i < GACC_BOX_CELLS; i++)
		if (c->late[i] && !read_answer(c, i, &nobodys))
			return false;
	return cell_of(c, 0) < GACC_BOX_CELLS;
}

static void ring(struct cells *c)
{
	const uint64_t one = 1;

	if (write(c->submit, &one, sizeof(one)) != (ssize_t)sizeof(one))
		c->closed = true;
}

uint64_t cells_publish(struct cells *c, struct gacc_box_request q, const uint8_t *present)
{
	const size_t words = sizeof(q) / sizeof(uint64_t);
	uint32_t cell = cell_of(c, 0);
	struct gacc_box_request *to = &c->mem->request[cell];

	if (q.n_present) {
		memcpy((unsigned char *)c->mem + gacc_box_present_at(c->n_tensors, cell), present, q.n_present);
		q.present_check = check_of(present, q.n_present);
	}
	q.seq = ++c->seq;
	q.check = check_of(&q, GACC_BOX_REQUEST_CHECKED);
	store_words(to, &q, 1, words / 2);
	FAILPOINT(client_box_half);
	store_words(to, &q, words / 2, words);
	__atomic_store_n(&to->seq, q.seq, __ATOMIC_RELEASE);
	c->open[cell] = q.seq;
	FAILPOINT(client_box_published);
	ring(c);
	return q.seq;
}
