/* SPDX-License-Identifier: Apache-2.0 */
/* Starts an engine process, sends it commands and reads its answers over a socketpair without blocking, asks a silent
 * one whether it still answers, and reaps it. For part_engine.c, which decides when an engine is started or killed.
 * Loop thread. */
#include "runtime/engine_proc.h"

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
#include <unistd.h>
#include <uv.h>

struct packet {
	struct packet *next;
	struct engine_command command;
	unsigned char *tail;
	uint32_t n_tail;
	int fds[ENGINE_PROC_FDS], n_fds; /* duplicates: the caller's may be closed before it is sent */
};

/* The START that is still on its way: its descriptors travel in as many packets as they need, in the plan's order. */
struct starting {
	struct engine_command command;
	int *fds; /* the caller's descriptors, by number; NULL: all have been sent */
	int n_fds, sent;
};

struct engine_proc {
	struct spawned *process; /* NULL: not started, or gone */
	uv_poll_t poll;
	uv_timer_t late; /* runs when it was let go */
	uint32_t end_ms;
	int fd;
	struct engine_events events;
	void *arg;
	struct starting starting;
	struct packet *queue, **queue_tail;
	bool polling_write, exited, let_go;
	uint32_t n_open;       /* handles */
	uint32_t silent_ticks; /* since it was heard */
	int64_t pid;
	struct engine_exit end;
	char why[160];
};

static void packet_free(struct packet *p)
{
	for (int i = 0; i < p->n_fds; i++)
		close(p->fds[i]);
	free(p->tail);
	free(p);
}

static void on_poll(uv_poll_t *h, int status, int events);

static void watch(struct engine_proc *e)
{
	bool want_write = e->starting.fds || e->queue;
	if (want_write == e->polling_write)
		return;
	e->polling_write = want_write;
	uv_poll_start(&e->poll, want_write ? UV_READABLE | UV_WRITABLE : UV_READABLE, on_poll);
}

/* 0, or -errno. */
static int send_start(struct engine_proc *e)
{
	struct starting *s = &e->starting;
	while (s->fds) {
		int n = s->n_fds - s->sent < ENGINE_MAX_FDS ? s->n_fds - s->sent : ENGINE_MAX_FDS;
		int r = packet_send(e->fd, &s->command, sizeof(s->command), NULL, 0, s->fds + s->sent, n);
		if (r)
			return r;
		s->sent += n;
		if (s->sent < s->n_fds)
			continue;
		free(s->fds);
		s->fds = NULL;
	}
	return 0;
}

static void flush_queue(struct engine_proc *e)
{
	int r = send_start(e);
	while (!r && e->queue) {
		struct packet *p = e->queue;
		r = packet_send(e->fd, &p->command, sizeof(p->command), p->tail, p->n_tail, p->fds, p->n_fds);
		if (r)
			break;
		e->queue = p->next;
		if (!e->queue)
			e->queue_tail = &e->queue;
		packet_free(p);
	}
	if (r && r != -EAGAIN) { /* without this packet it would wait for ever */
		char why[96];
		snprintf(why, sizeof(why), "the engine cannot be reached: %s", strerror(-r));
		engine_proc_kill(e, why);
	}
	if (!e->exited)
		watch(e);
}

/* Keeps what the caller lends. */
static bool keep(struct packet *p, const void *tail, const int *fds, int n_fds)
{
	for (; p->n_fds < n_fds; p->n_fds++) {
		p->fds[p->n_fds] = fcntl(fds[p->n_fds], F_DUPFD_CLOEXEC, 0);
		if (p->fds[p->n_fds] < 0)
			return false;
	}
	if (!p->command.n_present || !tail)
		return true;
	p->tail = malloc(p->command.n_present);
	if (!p->tail)
		return false;
	memcpy(p->tail, tail, p->command.n_present);
	p->n_tail = p->command.n_present;
	return true;
}

static bool enqueue(struct engine_proc *e, const struct engine_command *c, const void *tail, const int *fds, int n_fds)
{
	struct packet *p = calloc(1, sizeof(*p));
	if (!p)
		return false;
	p->command = *c;
	if (!keep(p, tail, fds, n_fds)) {
		packet_free(p);
		return false;
	}
	*e->queue_tail = p;
	e->queue_tail = &p->next;
	return true;
}

bool engine_proc_send(struct engine_proc *e, const struct engine_command *c, const void *present, const int *fds,
		      int n_fds)
{
	if (e->exited || e->let_go)
		return false;
	if (!e->starting.fds && !e->queue) {
		int r = packet_send(e->fd, c, sizeof(*c), present, c->n_present, fds, n_fds);
		if (r != -EAGAIN)
			return r == 0;
	}
	bool ok = enqueue(e, c, present, fds, n_fds);
	watch(e);
	return ok;
}

/* ---- the end ---- */

static void free_if_over(struct engine_proc *e)
{
	if (!e->exited || e->n_open)
		return;
	while (e->queue) {
		struct packet *p = e->queue;
		e->queue = p->next;
		packet_free(p);
	}
	free(e->starting.fds);
	if (e->fd >= 0)
		close(e->fd);
	if (!e->let_go)
		e->events.exited(e->arg, &e->end);
	free(e);
}

static void on_closed(uv_handle_t *h)
{
	struct engine_proc *e = h->data;
	e->n_open--;
	free_if_over(e);
}

static void close_handle(uv_handle_t *h)
{
	if (!uv_is_closing(h))
		uv_close(h, on_closed);
}

static void on_process_exit(void *arg, int64_t exit_status, int term_signal)
{
	struct engine_proc *e = arg;
	e->exited = true;
	e->process = NULL;
	e->end = (struct engine_exit){ exit_status, term_signal, e->why };
	close_handle((uv_handle_t *)&e->poll);
	close_handle((uv_handle_t *)&e->late);
	free_if_over(e);
}

struct answer_packet {
	struct engine_answer a;
	unsigned char tail[ENGINE_MAX_TAIL];
};

static bool brings_descriptors(const struct engine_answer *a)
{
	return !a->status && (a->op == ENGINE_ALLOCATE || a->op == ENGINE_MAKE_SLOTS);
}

static bool is_answer(const struct answer_packet *p, int n, int n_fds)
{
	if (n_fds && (n < (int)sizeof(p->a) || !brings_descriptors(&p->a)))
		return false;
	return n >= (int)sizeof(p->a) && p->a.n_tail <= sizeof(p->tail) && n == (int)(sizeof(p->a) + p->a.n_tail) &&
	       (!p->a.n_tail || p->a.op == ENGINE_JOIN);
}

static void close_all(const int *fds, int n)
{
	for (int i = 0; i < n; i++)
		close(fds[i]);
}

static void give_descriptors(struct engine_proc *e, const int *fds, int n)
{
	if (n && e->events.descriptors)
		e->events.descriptors(e->arg, fds, n);
	else
		close_all(fds, n);
}

static void read_answers(struct engine_proc *e)
{
	for (;;) {
		struct answer_packet p;
		int fds[ENGINE_MAX_FDS], n_fds = ENGINE_MAX_FDS;
		int n = packet_recv(e->fd, &p, sizeof(p), fds, &n_fds);
		if (n == -EAGAIN || n == -EINTR)
			return;
		if (n <= 0)
			n_fds = 0;
		if (!is_answer(&p, n, n_fds)) { /* closed, or nonsense: its exit tells the rest */
			close_all(fds, n_fds);
			uv_poll_stop(&e->poll);
			if (n > 0 || n == -EMSGSIZE)
				engine_proc_kill(e, "the engine's answer cannot be understood");
			return;
		}
		e->silent_ticks = 0;
		give_descriptors(e, fds, n_fds);
		if (e->let_go || e->exited)
			return;
		if (p.a.op != ENGINE_PING)
			e->events.answer(e->arg, &p.a, p.tail);
		if (e->let_go || e->exited)
			return;
	}
}

void engine_proc_hear(struct engine_proc *e)
{
	if (!e->exited && !e->let_go && !e->starting.fds)
		read_answers(e);
}

static void on_poll(uv_poll_t *h, int status, int events)
{
	struct engine_proc *e = h->data;
	if (status < 0) {
		uv_poll_stop(&e->poll);
		return;
	}
	if (events & UV_WRITABLE)
		flush_queue(e);
	if (events & UV_READABLE && !e->let_go)
		read_answers(e);
}

bool engine_proc_tick(struct engine_proc *e, uint32_t patience)
{
	if (e->exited || e->let_go)
		return true;
	/* one question at half time: an idle engine is asked rarely, a busy one answers other things meanwhile */
	if (++e->silent_ticks == (patience + 1) / 2) {
		struct engine_command ping = { .op = ENGINE_PING };
		engine_proc_send(e, &ping, NULL, NULL, 0);
	}
	if (e->silent_ticks <= patience)
		return true;
	e->silent_ticks = 0;
	return false;
}

void engine_proc_kill(struct engine_proc *e, const char *why)
{
	if (!*e->why)
		snprintf(e->why, sizeof(e->why), "%s", why);
	if (!e->exited)
		process_signal_child(e->pid, SIGKILL);
}

static void on_late(uv_timer_t *h)
{
	struct engine_proc *e = h->data;
	log_notice("an engine (pid %lld) has not ended within %u ms: it is killed", (long long)e->pid, e->end_ms);
	process_signal_child(e->pid, SIGKILL);
}

void engine_proc_close(struct engine_proc *e)
{
	if (!e)
		return;
	struct engine_command stop = { .op = ENGINE_STOP };
	engine_proc_send(e, &stop, NULL, NULL, 0);
	e->let_go = true;
	if (e->exited)
		return;
	close_handle((uv_handle_t *)&e->poll);
	shutdown(e->fd, SHUT_RDWR);
	uv_timer_start(&e->late, on_late, e->end_ms, 0);
}

int64_t engine_proc_pid(const struct engine_proc *e)
{
	return e->pid;
}

/* ---- the beginning ---- */

/* What gaccd itself was told by its service manager is not for others; its configuration is not either. */
static bool is_for_engines(const char *variable)
{
	static const char *const own[] = { "NOTIFY_SOCKET=", "LISTEN_", "WATCHDOG_", "GACC_" };
	for (size_t i = 0; i < sizeof(own) / sizeof(*own); i++)
		if (!strncmp(variable, own[i], strlen(own[i])))
			return false;
	return true;
}

/* For free(); NULL: no memory. */
static char **environment(void)
{
	size_t n = 0, k = 0;
	while (environ[n])
		n++;
	char **env = calloc(n + 2, sizeof(*env));
	for (size_t i = 0; env && i < n; i++)
		if (is_for_engines(environ[i]))
			env[k++] = environ[i];
	if (env)
		env[k] = failpoint_environment();
	return env;
}

static int spawn(uv_loop_t *loop, struct engine_proc *e, int child_fd, bool on_device)
{
	char name[] = "gaccd", flag[] = "--engine";
	char *args[] = { name, flag, NULL }, *none[] = { failpoint_environment(), NULL };
	char **all = on_device ? environment() : NULL;
	if (on_device && !all)
		return UV_ENOMEM;
	/* the child's own link, before it executes: right even when the file was replaced by an upgrade */
	struct spawn_opts o = { .file = "/proc/self/exe",
				.args = args,
				.env = all ? all : none,
				.fd = child_fd,
				.exited = on_process_exit,
				.arg = e };
	if (FAILPOINT_ERROR(gaccd_spawn_before))
		o.file = ""; /* so that it is the kernel that fails */
	_Static_assert(ENGINE_CHANNEL_FD == SPAWN_FD, "the channel");
	const int r = spawn_child(loop, &o, &e->process);
	free(all);
	return r;
}

static void fill_start(struct engine_command *c, const struct engine_start *s)
{
	*c = (struct engine_command){ .op = s->op,
				      .job_id = s->job_id,
				      .epoch = s->epoch,
				      .generation = s->generation,
				      .incarnation = s->incarnation,
				      .log_level = (uint32_t)s->log_level,
				      .log_format = (uint32_t)s->log_format,
				      .stall_ns = s->stall_ns,
				      .n_device = s->n_device,
				      .others_are_over = s->others_are_over };
	snprintf(c->kernels, sizeof(c->kernels), "%s", s->kernels);
	snprintf(c->coll_address, sizeof(c->coll_address), "%s", s->coll_address ? s->coll_address : "");
}

bool engine_proc_go_on(struct engine_proc *e, const struct engine_start *s)
{
	struct engine_command c;
	fill_start(&c, s);
	return engine_proc_send(e, &c, NULL, NULL, 0);
}

static bool prepare_start(struct engine_proc *e, const struct engine_start *s)
{
	int *fds = calloc((size_t)s->n_fds, sizeof(*fds));
	if (!fds)
		return false;
	memcpy(fds, s->fds, (size_t)s->n_fds * sizeof(*fds));
	fill_start(&e->starting.command, s);
	e->starting.fds = fds;
	e->starting.n_fds = s->n_fds;
	return true;
}

static void free_unstarted(struct engine_proc *e)
{
	close(e->fd);
	free(e->starting.fds);
	free(e);
}

static struct engine_proc *make(const struct engine_start *s, int fd, const struct engine_events *events, void *arg)
{
	struct engine_proc *e = calloc(1, sizeof(*e));
	if (!e)
		return NULL;
	e->fd = fd;
	e->end_ms = s->end_ms;
	e->events = *events;
	e->arg = arg;
	e->queue_tail = &e->queue;
	e->poll.data = e->late.data = e;
	if (prepare_start(e, s))
		return e;
	free(e);
	return NULL;
}

enum status engine_proc_start(void *loop, const struct engine_start *s, const struct engine_events *events, void *arg,
			      struct engine_proc **out, char *why, size_t n_why)
{
	int fds[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds)) {
		snprintf(why, n_why, "its socket cannot be made: %s", strerror(errno));
		return ST_IO_ERROR;
	}
	struct engine_proc *e = make(s, fds[0], events, arg);
	if (!e) {
		close(fds[0]);
		close(fds[1]);
		snprintf(why, n_why, "%s", status_info(ST_NO_MEMORY)->text);
		return ST_NO_MEMORY;
	}
	int r = spawn(loop, e, fds[1], s->on_device);
	close(fds[1]);
	if (r) {
		snprintf(why, n_why, "no process: %s", uv_strerror(r));
		free_unstarted(e);
		return ST_IO_ERROR;
	}
	e->pid = spawned_pid(e->process);
	uv_timer_init(loop, &e->late);
	uv_poll_init(loop, &e->poll, e->fd);
	e->n_open = 2;
	uv_poll_start(&e->poll, UV_READABLE, on_poll);
	if (FAILPOINT_ERROR(gaccd_spawned))
		engine_proc_kill(e, status_info(ST_NO_MEMORY)->text);
	else
		flush_queue(e);
	*out = e;
	return ST_OK;
}
