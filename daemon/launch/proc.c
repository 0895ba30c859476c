/* SPDX-License-Identifier: Apache-2.0 */
/* gaccd's handle of a job's launcher: finds or starts the process, sends it orders and receives its reports over a
 * socket, and notices its end. Loop thread of gaccd. */
#include "launch/proc.h"

#include "base/log.h"
#include "base/packet.h"
#include "host/process.h"
#include "host/spawn.h"
#include "proto/failpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <uv.h>

struct launch_proc {
	uv_poll_t poll;
	struct spawned *process; /* NULL: it has ended, or another gaccd has started it */
	int fd;
	uint64_t job_id;
	int64_t pid;
	struct launch_proc_events events;
	void *arg;
	bool closed, let_go; /* closed: the poll handle */
};

static void on_poll(uv_poll_t *h, int status, int events);

/* ---- the end ---- */

static void free_if_over(struct launch_proc *p)
{
	if (!p->closed || p->process)
		return;
	close(p->fd);
	if (!p->let_go)
		p->events.gone(p->arg);
	free(p);
}

static void on_closed(uv_handle_t *h)
{
	struct launch_proc *p = h->data;
	p->closed = true;
	free_if_over(p);
}

static void close_poll(struct launch_proc *p)
{
	if (!uv_is_closing((uv_handle_t *)&p->poll))
		uv_close((uv_handle_t *)&p->poll, on_closed);
}

static void on_process_exit(void *arg, int64_t exit_status, int term_signal)
{
	struct launch_proc *p = arg;
	if (!uv_is_closing((uv_handle_t *)&p->poll))
		on_poll(&p->poll, 0, UV_READABLE); /* its last words, up to the end of file */
	if (!p->process)
		return; /* they have let go of it, and on_closed follows */
	p->process = NULL;
	close_poll(p);
	free_if_over(p);
}

void launch_proc_close(struct launch_proc *p)
{
	if (!p)
		return;
	p->let_go = true;
	spawned_let_go(p->process);
	p->process = NULL;
	close_poll(p);
}

/* ---- words ---- */

/* false: it is not one that we understand. */
static bool hear(struct launch_proc *p, const struct launch_word *w, size_t n)
{
	if (n < sizeof(*w) || w->version != LAUNCH_CHANNEL_VERSION || n - sizeof(*w) != w->n_tail)
		return false;
	p->pid = w->pid;
	if (w->kind == LAUNCH_WORD_RANK)
		p->events.rank(p->arg, w->rank, &w->state);
	else
		p->events.summary(p->arg, &w->summary, (const char *)(w + 1), w->n_tail);
	return true;
}

static bool is_launcher_of(const void *job, int64_t pid)
{
	return process_is_gaccd(pid, "--launcher", job);
}

/* A launcher of another version is killed, and its ranks with it: its successor starts them again. Its number is a
 * message of a version that we do not speak, and it may have ended since: only what is a launcher of this job is
 * killed. */
static void refuse(struct launch_proc *p, const struct launch_word *w, int n)
{
	bool has_pid = n >= (int)(offsetof(struct launch_word, pid) + sizeof(w->pid)) && w->pid > 1;
	char job[24];
	snprintf(job, sizeof(job), "%llu", (unsigned long long)p->job_id);
	bool killed = has_pid && process_signal_if(w->pid, SIGKILL, is_launcher_of, job);
	log_job(p->job_id, LOG_WARN, "LauncherReplaced",
		"the job's launcher speaks version %u, not %d: it is replaced%s",
		n >= (int)sizeof(w->version) ? w->version : 0, LAUNCH_CHANNEL_VERSION,
		killed ? "" : "; the process that it names is not a launcher of this job and was not killed");
}

static void on_poll(uv_poll_t *h, int status, int events)
{
	struct launch_proc *p = h->data;
	static union {
		struct launch_word word;
		char bytes[sizeof(struct launch_word) + LAUNCH_MAX_TAIL];
	} packet;
	for (;;) {
		int n_fds = 0;
		int n = packet_recv(p->fd, &packet, sizeof(packet), NULL, &n_fds);
		if (n == -EAGAIN || n == -EINTR)
			return;
		if (n > 0 && hear(p, &packet.word, (size_t)n)) {
			if (p->let_go || uv_is_closing((uv_handle_t *)h))
				return;
			continue;
		}
		if (n > 0)
			refuse(p, &packet.word, n);
		close_poll(p);
		return;
	}
}

bool launch_proc_order(struct launch_proc *p, const struct launch_order *o, const void *words, uint32_t n)
{
	return packet_send(p->fd, o, sizeof(*o), words, n, NULL, 0) == 0;
}

int64_t launch_proc_pid(const struct launch_proc *p)
{
	return p->pid;
}

/* ---- the beginning ---- */

static int new_socket(int flags)
{
	return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0);
}

/* -errno of what has just failed; closes the socket, if there is one. */
static int failed(int fd)
{
	int error = errno;
	if (fd >= 0)
		close(fd);
	return -error;
}

/* A connected socket, or -errno. */
static int connect_to(const struct sockaddr_un *at)
{
	int fd = new_socket(SOCK_NONBLOCK);
	if (fd >= 0 && !connect(fd, (const struct sockaddr *)at, sizeof(*at)))
		return fd;
	return failed(fd);
}

/* The launcher inherits a socket that is listening already, so a connection made before it runs is not lost. */
static int listen_at(const struct sockaddr_un *at)
{
	int fd = new_socket(0);
	unlink(at->sun_path);
	if (fd >= 0 && !fchmod(fd, 0600) && !bind(fd, (const struct sockaddr *)at, sizeof(*at)) && !listen(fd, 4))
		return fd;
	return failed(fd);
}

static int spawn(uv_loop_t *loop, struct launch_proc *p, const struct launcher_args *a, int listener)
{
	char name[] = "gaccd", flag[] = "--launcher", job[24], orphan[24], descriptors[24];
	snprintf(job, sizeof(job), "%llu", (unsigned long long)a->job_id);
	snprintf(orphan, sizeof(orphan), "%llu", (unsigned long long)a->orphan_ms);
	snprintf(descriptors, sizeof(descriptors), "%llu", (unsigned long long)a->descriptors);
	char *args[] = { name, flag, job, (char *)a->runtime_dir, orphan, descriptors, (char *)a->uuid, NULL };
	char *env[] = { failpoint_environment(), NULL };
	struct spawn_opts o = { .file = "/proc/self/exe",
				.args = args,
				.env = env,
				.fd = listener,
				.detached = true,
				.exited = on_process_exit,
				.arg = p };
	if (FAILPOINT_ERROR(gaccd_launcher_before))
		o.file = ""; /* so that it is the kernel that fails */
	_Static_assert(LAUNCH_LISTEN_FD == SPAWN_FD, "the socket");
	int r = spawn_child(loop, &o, &p->process);
	FAILPOINT(gaccd_launcher_started);
	return r;
}

/* A connected socket of a launcher that was started for it, or -errno. */
static int start_one(uv_loop_t *loop, struct launch_proc *p, const struct launcher_args *a,
		     const struct sockaddr_un *at)
{
	int listener = listen_at(at);
	if (listener < 0)
		return listener;
	int r = spawn(loop, p, a, listener), fd = r ? r : connect_to(at);
	close(listener); /* not before: should the launcher be dead already, its socket's end says so like any other */
	return fd;
}

enum status launch_proc_open(void *loop, const struct launcher_args *a, bool start,
			     const struct launch_proc_events *events, void *arg, struct launch_proc **out)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	struct launch_proc *p = calloc(1, sizeof(*p));
	if (!p)
		return ST_NO_MEMORY;
	int fd = -ENAMETOOLONG;
	if (launcher_socket_path(a, at.sun_path, sizeof(at.sun_path)))
		fd = connect_to(&at);
	bool absent = fd == -ENOENT || fd == -ECONNREFUSED;
	if (absent && start)
		fd = start_one(loop, p, a, &at);
	if (fd < 0) {
		spawned_let_go(p->process);
		free(p);
		if (absent && !start)
			return ST_UNAVAILABLE;
		log_job(a->job_id, LOG_ERROR, "LauncherStart", "cannot reach a launcher at %s: %s", at.sun_path,
			strerror(-fd));
		return ST_IO_ERROR;
	}
	p->fd = fd;
	p->job_id = a->job_id;
	p->events = *events;
	p->arg = arg;
	p->poll.data = p;
	uv_poll_init(loop, &p->poll, fd);
	uv_poll_start(&p->poll, UV_READABLE, on_poll);
	uv_unref((uv_handle_t *)&p->poll);
	*out = p;
	return ST_OK;
}
