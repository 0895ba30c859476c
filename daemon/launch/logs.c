/* SPDX-License-Identifier: Apache-2.0 */
/* The output of ranks: the launcher's thread makes a pipe for each rank and starts the log writer, a child process of
 * one thread that copies the pipes into log files. */
#include "launch/logs.h"

#include "base/clock.h"
#include "base/log.h"
#include "launch/child.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PIECE 65536
#define BURST (8u << 20)
#define LOOK_MS 1000 /* between looks at the limit */
#define DRAIN_TRIES 500
#define DRAIN_NS 1000000
#define AGAIN_NS 100000000 /* between the starts of two writers */
#define AT_ONCE 64
#define LINE_BYTES 4096 /* a longer line may be cut where a log ends */

/* Memory of the launcher and its writers. What one that was killed had read and not yet written is here for the
 * next. */
struct shared {
	_Atomic uint64_t limit;
	_Atomic uint32_t working; /* bytes are on their way from a pipe to a log */
	_Atomic uint32_t n, at;	  /* so many in the buffer, of which so many are written */
	uint32_t rank;
	char buffer[PIECE];
};

/* Of one rank. */
struct pipe {
	int in, out; /* -1: closed */
	/* the writer's */
	int log;       /* -1: not open */
	bool in_line;  /* its last byte is no line break */
	uint64_t lost; /* bytes since the last line that was written */
	const char *why;
};

struct launch_logs {
	const struct launch_start *start;
	void (*in_child)(void *arg);
	void *arg;
	struct shared *shared;
	struct pipe *pipe;
	uint32_t n;
	pid_t writer;
	int64_t started_ns;
	bool slow; /* the last drain took too long */
	/* the writer's */
	int poll;
	uint32_t n_open;
	uint64_t limit; /* that all logs keep to */
	int64_t allowance, allowance_ns;
};

static int64_t now_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

/* ---- files ---- */

static void path_of(const struct launch_start *s, uint32_t rank, const char *suffix, char out[PATH_MAX + 32])
{
	snprintf(out, PATH_MAX + 32, "%s/worker_%u.log%s", s->log_dir, s->order.first + rank, suffix);
}

const char *launch_log_open(const struct launch_start *s, uint32_t rank, bool older, int flags, int *out)
{
	char path[PATH_MAX + 32];
	struct stat st;
	path_of(s, rank, older ? ".1" : "", path);
	int fd = open(path, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644), err = errno;
	bool regular = fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode);
	if (regular && !fcntl(fd, F_SETFL, flags & O_APPEND)) {
		*out = fd;
		return NULL;
	}
	if (fd >= 0)
		close(fd);
	/* ENXIO: a FIFO that nobody reads, a socket */
	return fd < 0 && err != ENXIO ? strerror(err) : "it is not a regular file";
}

void launch_log_drop_older(const struct launch_start *s, uint32_t rank)
{
	char path[PATH_MAX + 32];
	path_of(s, rank, ".1", path);
	unlink(path);
}

static bool is_open(struct launch_logs *l, uint32_t rank)
{
	struct pipe *p = &l->pipe[rank];
	if (p->log < 0)
		p->why = launch_log_open(l->start, rank, false, O_WRONLY | O_APPEND | O_CREAT, &p->log);
	return p->log >= 0;
}

static void close_log(struct pipe *p)
{
	if (p->log >= 0)
		close(p->log);
	p->log = -1;
}

static uint64_t size_of(const struct pipe *p)
{
	struct stat st;
	return fstat(p->log, &st) ? 0 : (uint64_t)st.st_size;
}

static bool write_all(struct pipe *p, const char *text, size_t n)
{
	while (n) {
		ssize_t done = write(p->log, text, n);
		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0) {
			p->why = strerror(errno);
			return false;
		}
		text += done;
		n -= (size_t)done;
	}
	return true;
}

/* The log becomes the older one, and a new one begins. */
static void rotate(struct launch_logs *l, uint32_t rank)
{
	char path[PATH_MAX + 32], older[PATH_MAX + 32], text[128];
	struct pipe *p = &l->pipe[rank];
	path_of(l->start, rank, "", path);
	path_of(l->start, rank, ".1", older);
	bool drops = !access(older, F_OK);
	if (rename(path, older) && errno != ENOENT) {
		drops = !ftruncate(p->log, 0);
	} else {
		close_log(p);
		if (!is_open(l, rank))
			return;
	}
	int n = snprintf(text, sizeof(text),
			 "[gacc: earlier lines were dropped, a log has %llu bytes and as many in %s]\n",
			 (unsigned long long)l->limit, "its .1");
	p->in_line = false;
	if (drops)
		write_all(p, text, (size_t)n);
}

/* How many bytes go into a log of so many before it is rotated; 0: none. A line that has begun there is ended there. */
static size_t fitting(const struct launch_logs *l, const struct pipe *p, uint64_t size, const char *text, size_t n)
{
	uint64_t full = l->limit - LINE_BYTES, room = size < full ? full - size : 0;
	if (n <= room)
		return n;
	const char *end = memrchr(text, '\n', (size_t)room);
	if (!end && p->in_line)
		end = memchr(text, '\n', n < room + LINE_BYTES ? n : (size_t)room + LINE_BYTES);
	if (end)
		return (size_t)(end - text) + 1;
	return p->in_line || room >= LINE_BYTES ? (size_t)room : 0;
}

/* Says in the log what is missing there. */
static bool tell_lost(struct pipe *p)
{
	char text[160];
	uint64_t lost = p->lost;
	int n = snprintf(text, sizeof(text), "[gacc: %llu bytes of output were lost: %s]\n", (unsigned long long)lost,
			 p->why);
	p->lost = 0;
	if (write_all(p, text, (size_t)n))
		return true;
	p->lost = lost;
	return false;
}

/* Writes what is in the buffer, or counts it as lost. */
static void put(struct launch_logs *l)
{
	struct shared *m = l->shared;
	struct pipe *p = &l->pipe[m->rank];
	bool ok = is_open(l, m->rank) && (!p->lost || tell_lost(p));
	while (ok && m->at < m->n) {
		size_t part = fitting(l, p, size_of(p), m->buffer + m->at, m->n - m->at);
		if (!part) {
			rotate(l, m->rank);
			ok = p->log >= 0;
			continue;
		}
		ok = write_all(p, m->buffer + m->at, part);
		if (ok) {
			m->at += (uint32_t)part;
			p->in_line = m->buffer[m->at - 1] != '\n';
		}
	}
	p->lost += m->n - m->at;
	m->n = m->at = 0;
}

/* Copies the newest bytes of a log that has too many into a new file, which takes its place; without room the log is
 * emptied. */
static void cut(struct launch_logs *l, uint32_t rank, uint64_t size)
{
	char path[PATH_MAX + 32], new[PATH_MAX + 32], piece[PIECE];
	struct pipe *p = &l->pipe[rank];
	ssize_t n = 0;
	off_t at = (off_t)(size - l->limit);
	path_of(l->start, rank, "", path);
	path_of(l->start, rank, ".new", new);
	int from = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	int to = open(new, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
	bool ok = from >= 0 && to >= 0;
	while (ok && (n = pread(from, piece, sizeof(piece), at)) > 0) {
		ok = write(to, piece, (size_t)n) == n;
		at += n;
	}
	if (!ok || n < 0 || rename(new, path)) {
		unlink(new);
		if (ftruncate(p->log, 0))
			p->why = strerror(errno);
	}
	if (from >= 0)
		close(from);
	if (to >= 0)
		close(to);
	close_log(p);
}

/* The limit has become smaller. */
static void cut_all(struct launch_logs *l)
{
	for (uint32_t rank = 0; rank < l->n; rank++) {
		char older[PATH_MAX + 32];
		struct stat st;
		path_of(l->start, rank, ".1", older);
		if (!lstat(older, &st) && (uint64_t)st.st_size > l->limit)
			unlink(older);
		if (l->pipe[rank].log >= 0 && size_of(&l->pipe[rank]) > l->limit)
			cut(l, rank, size_of(&l->pipe[rank]));
	}
}

/* ---- the writer ---- */

static void take_limit(struct launch_logs *l)
{
	uint64_t limit = atomic_load(&l->shared->limit), before = l->limit;
	l->limit = limit > LAUNCH_LOG_LEAST ? limit : LAUNCH_LOG_LEAST;
	if (l->limit < before)
		cut_all(l);
}

/* Sleeps when more was read than the rate allows. */
static void keep_to_rate(struct launch_logs *l)
{
	int64_t now = now_ns();
	l->allowance += (now - l->allowance_ns) * (int64_t)(LAUNCH_LOG_RATE >> 20) / 1000 * 1048576 / 1000000;
	l->allowance = l->allowance > (int64_t)BURST ? (int64_t)BURST : l->allowance;
	l->allowance_ns = now;
	if (l->allowance < 0)
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

static void read_pipe(struct launch_logs *l, uint32_t rank)
{
	struct pipe *p = &l->pipe[rank];
	l->shared->rank = rank;
	atomic_store(&l->shared->working, 1); /* before the bytes leave the pipe: launch_logs_drain looks at both */
	ssize_t n = read(p->in, l->shared->buffer, PIECE);
	if (n > 0) {
		l->shared->n = (uint32_t)n;
		l->allowance -= n;
		put(l);
	} else if (!n || (errno != EAGAIN && errno != EINTR)) {
		epoll_ctl(l->poll, EPOLL_CTL_DEL, p->in, NULL);
		close_log(p);
		l->n_open--;
	}
	atomic_store(&l->shared->working, 0);
}

static bool watch_pipes(struct launch_logs *l)
{
	l->poll = epoll_create1(EPOLL_CLOEXEC);
	for (uint32_t i = 0; i < l->n; i++) {
		struct epoll_event e = { .events = EPOLLIN, .data.u32 = i };
		close(l->pipe[i].out);
		if (l->poll < 0 || epoll_ctl(l->poll, EPOLL_CTL_ADD, l->pipe[i].in, &e))
			return false;
	}
	l->n_open = l->n;
	return true;
}

_Noreturn static void write_logs(struct launch_logs *l)
{
	struct epoll_event e[AT_ONCE];
	prctl(PR_SET_NAME, "gacc-logs");
	if (!watch_pipes(l) || !launch_become_user(l->start))
		_exit(1);
	umask(022);
	l->allowance_ns = now_ns();
	take_limit(l);
	if (l->shared->n)
		put(l); /* a writer was killed */
	atomic_store(&l->shared->working, 0);
	while (l->n_open) {
		int n = epoll_wait(l->poll, e, AT_ONCE, LOOK_MS);
		take_limit(l);
		for (int i = 0; i < n; i++)
			read_pipe(l, e[i].data.u32);
		keep_to_rate(l);
	}
	_exit(0);
}

/* ---- the launcher's end ---- */

static bool start_writer(struct launch_logs *l)
{
	l->started_ns = now_ns();
	pid_t pid = fork();
	if (pid == 0) {
		l->in_child(l->arg);
		write_logs(l);
	}
	l->writer = pid;
	if (pid < 0)
		log_job(l->start->order.job_id, LOG_ERROR, "LogWriter", "no process to write the ranks' logs: %s",
			strerror(errno));
	return pid > 0;
}

static bool make_pipes(struct launch_logs *l)
{
	for (uint32_t i = 0; i < l->n; i++) {
		int end[2];
		if (pipe2(end, O_CLOEXEC))
			return false;
		l->pipe[i] = (struct pipe){ .in = end[0], .out = end[1], .log = -1 };
		if (fcntl(end[0], F_SETFL, O_NONBLOCK))
			return false;
	}
	return true;
}

enum status launch_logs_new(const struct launch_start *start, void (*in_child)(void *arg), void *arg,
			    struct launch_logs **out)
{
	struct launch_logs *l = calloc(1, sizeof(*l));
	if (!l)
		return ST_NO_MEMORY;
	*l = (struct launch_logs){ .start = start, .in_child = in_child, .arg = arg, .n = start->order.n_ranks };
	l->pipe = calloc(l->n, sizeof(*l->pipe));
	l->shared = mmap(NULL, sizeof(*l->shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (!l->pipe || l->shared == MAP_FAILED) {
		free(l->pipe);
		free(l);
		return ST_NO_MEMORY;
	}
	for (uint32_t i = 0; i < l->n; i++)
		l->pipe[i].in = l->pipe[i].out = -1;
	launch_logs_limit(l, start->order.log_max);
	if (make_pipes(l) && start_writer(l)) {
		*out = l;
		return ST_OK;
	}
	log_job(start->order.job_id, LOG_ERROR, "LogWriter", "no pipes for the output of %u ranks: %s", l->n,
		strerror(errno));
	launch_logs_free(l);
	return ST_IO_ERROR;
}

int launch_logs_end(const struct launch_logs *l, uint32_t rank)
{
	return l->pipe[rank].out;
}

void launch_logs_limit(struct launch_logs *l, uint64_t bytes)
{
	atomic_store(&l->shared->limit, bytes);
}

static bool is_drained(const struct launch_logs *l, uint32_t rank)
{
	int n = 0;
	return !ioctl(l->pipe[rank].in, FIONREAD, &n) && !n && !atomic_load(&l->shared->working);
}

void launch_logs_drain(struct launch_logs *l, uint32_t rank)
{
	int tries = l->slow ? DRAIN_TRIES - 1 : 0;
	for (; tries < DRAIN_TRIES && !is_drained(l, rank); tries++)
		nanosleep(&(struct timespec){ .tv_nsec = DRAIN_NS }, NULL);
	l->slow = tries == DRAIN_TRIES;
}

bool launch_logs_on_exit(struct launch_logs *l, pid_t pid)
{
	if (!l || pid != l->writer)
		return false;
	if (now_ns() - l->started_ns < AGAIN_NS)
		nanosleep(&(struct timespec){ .tv_nsec = AGAIN_NS }, NULL);
	start_writer(l);
	return true;
}

void launch_logs_free(struct launch_logs *l)
{
	if (!l)
		return;
	for (uint32_t i = 0; i < l->n; i++) {
		if (l->pipe[i].in >= 0)
			close(l->pipe[i].in);
		if (l->pipe[i].out >= 0)
			close(l->pipe[i].out);
	}
	munmap(l->shared, sizeof(*l->shared));
	free(l->pipe);
	free(l);
}
