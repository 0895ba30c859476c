/* SPDX-License-Identifier: Apache-2.0 */
/* The main program of `gaccd --supervise`: starts gaccd, stores its descriptors, and restarts it with them when it
 * dies. For containers and tests without systemd. A process of its own with one thread. */
#include "host/supervise.h"

#include "base/clock.h"
#include "base/descriptors.h"
#include "base/log.h"
#include "host/fdstore.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define FIRST_FD 3
#define MAX_MESSAGE 4096
#define MAX_MESSAGE_FDS 16
#define OWN_FDS 16
#define EXIT_USAGE 2 /* also of a wrong configuration */
#define MAX_BACKOFF_MS 10000
#define STEADY_MS 10000 /* a child that exits on its own after so long had started well */

struct stored {
	char name[FDSTORE_MAX_NAME];
	int fd;
};

struct supervisor {
	const struct supervise_opts *opts;
	int notify, signals;
	char dir[80], address[90]; /* NOTIFY_SOCKET */
	sigset_t caller_mask;
	uint64_t descriptors_before;
	size_t room; /* descriptors that can be kept */
	pid_t child; /* 0: none now */
	bool ready, stopping;
	int64_t start_at, started_at, heard_at; /* ms, CLOCK_BOOTTIME */
	uint32_t failures; /* children in a row that have ended by themselves soon after their start */
	size_t n_stored;
	struct stored stored[SUPERVISE_MAX_FDS];
};

static int64_t now_ms(void)
{
	return clock_ns(CLOCK_BOOTTIME) / 1000000;
}

/* ---- the store ---- */

static void forget(struct supervisor *s, const char *name)
{
	for (size_t i = 0; i < s->n_stored;) {
		if (strcmp(s->stored[i].name, name) != 0) {
			i++;
			continue;
		}
		close(s->stored[i].fd);
		s->stored[i] = s->stored[--s->n_stored];
	}
}

/* Takes fd. As in systemd, a name may be there already: it is the child that keeps them apart. */
static void keep(struct supervisor *s, const char *name, int fd)
{
	if (s->n_stored == s->room) {
		log_error("the descriptor store is full (%zu): %s is not kept", s->room, name);
		close(fd);
		return;
	}
	struct stored *at = &s->stored[s->n_stored++];
	snprintf(at->name, sizeof(at->name), "%s", name);
	at->fd = fd;
}

/* ---- messages of the child ---- */

struct message {
	char text[MAX_MESSAGE];
	int fd[MAX_MESSAGE_FDS];
	size_t n_fds;
	pid_t sender;
};

static void take_control(struct message *m, struct msghdr *h)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c)) {
		if (c->cmsg_level != SOL_SOCKET)
			continue;
		if (c->cmsg_type == SCM_RIGHTS) {
			m->n_fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
			memcpy(m->fd, CMSG_DATA(c), m->n_fds * sizeof(int));
		} else if (c->cmsg_type == SCM_CREDENTIALS) {
			struct ucred sender;
			memcpy(&sender, CMSG_DATA(c), sizeof(sender));
			m->sender = sender.pid;
		}
	}
}

/* False: there is none. A message too long to be understood comes back empty. */
static bool receive(struct supervisor *s, struct message *m)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int) * MAX_MESSAGE_FDS) + CMSG_SPACE(sizeof(struct ucred))];
	} control;
	struct iovec iov = { m->text, sizeof(m->text) - 1 };
	struct msghdr h = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)
	};
	m->n_fds = 0;
	m->sender = 0;
	ssize_t n = recvmsg(s->notify, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0)
		return false;
	take_control(m, &h);
	m->text[h.msg_flags & (MSG_TRUNC | MSG_CTRUNC) ? 0 : n] = 0;
	return true;
}

/* Value of "KEY=" in the message, cut at the end of its line; NULL: not there. */
static const char *value_of(const struct message *m, const char *key, char out[FDSTORE_MAX_NAME])
{
	size_t n = strlen(key);
	for (const char *line = m->text; *line; line += strcspn(line, "\n"), line += *line == '\n')
		if (strncmp(line, key, n) == 0 && line[n] == '=') {
			snprintf(out, FDSTORE_MAX_NAME, "%.*s", (int)strcspn(line + n + 1, "\n"), line + n + 1);
			return out;
		}
	return NULL;
}

static void handle(struct supervisor *s, struct message *m)
{
	char value[FDSTORE_MAX_NAME], name[FDSTORE_MAX_NAME];
	const char *fdname = value_of(m, "FDNAME", name);
	if (m->sender != s->child || s->child == 0)
		return;
	if (value_of(m, "READY", value))
		s->ready = true;
	if (value_of(m, "READY", value) || value_of(m, "WATCHDOG", value))
		s->heard_at = now_ms();
	if (value_of(m, "STATUS", value))
		log_debug("status: %s", value);
	if (value_of(m, "FDSTOREREMOVE", value) && fdname)
		forget(s, fdname);
	if (value_of(m, "FDSTORE", value) && fdname)
		while (m->n_fds > 0)
			keep(s, fdname, m->fd[--m->n_fds]);
}

/* A barrier's descriptor is answered by closing it, when the messages before it are read: they come in order. */
static void drain_messages(struct supervisor *s)
{
	struct message m;
	while (receive(s, &m)) {
		handle(s, &m);
		while (m.n_fds > 0)
			close(m.fd[--m.n_fds]);
	}
}

/* ---- the child ---- */

__attribute__((noreturn)) static void fail_to_place(int n)
{
	log_error("%d descriptors of jobs cannot be handed to gaccd: %s (RLIMIT_NOFILE of the supervisor is %llu, %d "
		  "are needed: raise it with "
		  "prlimit); the supervisor keeps them and tries again",
		  n, strerror(errno), (unsigned long long)descriptors_limit(), 2 * n + OWN_FDS);
	_exit(EXIT_FAILURE);
}

/* In the child, between fork and exec: descriptors go to 3, 4, ... where sd_listen_fds looks for them. They are moved
 * up first, so that none is overwritten before its turn. */
static void place_fds(const struct supervisor *s)
{
	int n = (int)s->n_stored;
	int moved[SUPERVISE_MAX_FDS];
	for (int i = 0; i < n; i++)
		if ((moved[i] = fcntl(s->stored[i].fd, F_DUPFD_CLOEXEC, FIRST_FD + n)) < 0)
			fail_to_place(n);
	for (int i = 0; i < n; i++)
		if (dup2(moved[i], FIRST_FD + i) < 0)
			fail_to_place(n);
}

static void set_number(const char *name, uint64_t v)
{
	char text[24];
	snprintf(text, sizeof(text), "%llu", (unsigned long long)v);
	setenv(name, text, 1);
}

static void set_environment(const struct supervisor *s)
{
	setenv("NOTIFY_SOCKET", s->address, 1);
	set_number("FDSTORE", s->room);
	if (s->opts->watchdog_ms) {
		set_number("WATCHDOG_USEC", s->opts->watchdog_ms * UINT64_C(1000));
		set_number("WATCHDOG_PID", (uint64_t)getpid());
	}
	if (s->n_stored == 0)
		return;
	char *names = calloc(s->n_stored, FDSTORE_MAX_NAME), *at = names;
	if (!names)
		_exit(EXIT_FAILURE);
	for (size_t i = 0; i < s->n_stored; i++)
		at += sprintf(at, "%s%s", i ? ":" : "", s->stored[i].name);
	setenv("LISTEN_FDNAMES", names, 1);
	set_number("LISTEN_FDS", s->n_stored);
	set_number("LISTEN_PID", (uint64_t)getpid());
}

/* Own process group: a terminal's Ctrl-C reaches us alone, and the child once, as SIGTERM. Should we be killed, the
 * descriptors are gone with us, and the child is told to stop. */
__attribute__((noreturn)) static void become_child(const struct supervisor *s, pid_t parent)
{
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent)
		_exit(EXIT_FAILURE);
	set_environment(s);
	place_fds(s);
	descriptors_restore(s->descriptors_before);
	sigprocmask(SIG_SETMASK, &s->caller_mask, NULL);
	execv(s->opts->argv[0], s->opts->argv);
	log_error("%s: %s", s->opts->argv[0], strerror(errno));
	_exit(EXIT_USAGE);
}

static void start_child(struct supervisor *s)
{
	pid_t self = getpid(), pid = fork();
	if (pid == 0)
		become_child(s, self);
	if (pid < 0) {
		log_error("fork: %s; again in %u ms", strerror(errno), s->opts->backoff_ms);
		s->start_at = now_ms() + s->opts->backoff_ms;
		return;
	}
	s->child = pid;
	s->ready = false;
	s->started_at = now_ms();
	log_debug("started %s, pid %d, with %zu descriptors", s->opts->argv[0], (int)pid, s->n_stored);
}

/* Before the next start. What was killed comes back at once. What exits on its own, soon after it was started, lacks
 * something, a disk with room for example: it is tried less and less often. */
static uint32_t next_backoff(struct supervisor *s, bool exited)
{
	uint64_t ms = s->opts->backoff_ms;
	s->failures = exited && now_ms() - s->started_at < STEADY_MS ? s->failures + 1 : 0;
	for (uint32_t i = 1; i < s->failures && ms < MAX_BACKOFF_MS; i++)
		ms *= 2;
	return ms < MAX_BACKOFF_MS ? (uint32_t)ms : MAX_BACKOFF_MS;
}

/* A child that says that starting it again would not help is believed, unless what is kept here would be lost. */
static bool is_final(const struct supervisor *s, bool exited, int status)
{
	return s->stopping || (exited && (status == 0 || (status == EXIT_USAGE && s->n_stored == 0)));
}

/* True: the end; *code is ours. */
static bool reap(struct supervisor *s, int *code)
{
	int ws;
	if (s->child == 0 || waitpid(s->child, &ws, WNOHANG) != s->child)
		return false;
	drain_messages(s); /* what it stored before it died counts */
	bool exited = WIFEXITED(ws);
	int status = exited ? WEXITSTATUS(ws) : 128 + WTERMSIG(ws);
	s->child = 0;
	uint32_t backoff_ms = next_backoff(s, exited);
	s->start_at = now_ms() + backoff_ms;
	if (is_final(s, exited, status)) {
		*code = status;
		return true;
	}
	log_warn("%s %s %d; starting it again in %u ms with %zu descriptors", s->opts->argv[0],
		 exited ? "exited with" : "was killed by signal", exited ? status : WTERMSIG(ws), backoff_ms,
		 s->n_stored);
	return false;
}

/* True: the end. */
static bool take_signals(struct supervisor *s, int *code)
{
	struct signalfd_siginfo i;
	while (read(s->signals, &i, sizeof(i)) == sizeof(i)) {
		if (i.ssi_signo == SIGCHLD)
			continue;
		if (i.ssi_signo != SIGHUP)
			s->stopping = true;
		if (s->child)
			kill(s->child, i.ssi_signo == SIGHUP ? SIGHUP : SIGTERM);
	}
	*code = 0;
	return reap(s, code) || (s->stopping && s->child == 0);
}

/* ---- the loop ---- */

static bool watched(const struct supervisor *s)
{
	return s->child && s->ready && s->opts->watchdog_ms && !s->stopping;
}

static int wait_ms(const struct supervisor *s)
{
	int64_t until = s->child == 0 ? s->start_at : watched(s) ? s->heard_at + s->opts->watchdog_ms : INT64_MAX;
	int64_t left = until - now_ms();
	return until == INT64_MAX ? -1 : left < 0 ? 0 : left > INT32_MAX ? INT32_MAX : (int)left;
}

static void on_time(struct supervisor *s)
{
	if (s->child == 0 && now_ms() >= s->start_at)
		start_child(s);
	if (watched(s) && now_ms() >= s->heard_at + s->opts->watchdog_ms) {
		log_error("pid %d was silent for %u ms: killed", (int)s->child, s->opts->watchdog_ms);
		s->ready = false;
		kill(s->child, SIGKILL);
	}
}

static int run(struct supervisor *s)
{
	int code;
	start_child(s);
	for (;;) {
		struct pollfd p[2] = { { s->notify, POLLIN, 0 }, { s->signals, POLLIN, 0 } };
		poll(p, 2, wait_ms(s));
		if (take_signals(s, &code))
			return code;
		drain_messages(s);
		on_time(s);
	}
}

/* In a directory of its own, where nobody else can flood it. */
static int open_notify(struct supervisor *s)
{
	const char *tmp = getenv("TMPDIR");
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	int on = 1;
	if (snprintf(s->dir, sizeof(s->dir), "%s/gaccd-notify.XXXXXX", tmp && *tmp ? tmp : "/tmp") >=
	    (int)sizeof(s->dir)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	if (!mkdtemp(s->dir)) {
		s->dir[0] = 0;
		return -1;
	}
	snprintf(s->address, sizeof(s->address), "%s/socket", s->dir);
	memcpy(at.sun_path, s->address, sizeof(s->address));
	s->notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (s->notify < 0 || setsockopt(s->notify, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)))
		return -1;
	return bind(s->notify, (struct sockaddr *)&at, sizeof(at));
}

static void close_notify(struct supervisor *s)
{
	if (s->notify >= 0)
		close(s->notify);
	unlink(s->address);
	if (*s->dir)
		rmdir(s->dir);
}

/* The child has each of them twice on its way to the program. */
static size_t find_room(void)
{
	uint64_t half = descriptors_limit() / 2;
	return half > SUPERVISE_MAX_FDS + OWN_FDS ? SUPERVISE_MAX_FDS : half > OWN_FDS ? half - OWN_FDS : 0;
}

int supervise_run(const struct supervise_opts *opts)
{
	static const int handled[] = { SIGCHLD, SIGTERM, SIGINT, SIGHUP };
	int code = EXIT_FAILURE;
	sigset_t set;
	struct supervisor *s = calloc(1, sizeof(*s));
	if (!s)
		return code;
	s->opts = opts;
	s->descriptors_before = descriptors_raise();
	s->room = find_room();
	sigemptyset(&set);
	for (size_t i = 0; i < sizeof(handled) / sizeof(*handled); i++)
		sigaddset(&set, handled[i]);
	sigprocmask(SIG_BLOCK, &set, &s->caller_mask);
	s->notify = -1;
	s->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (s->signals >= 0 && open_notify(s) == 0)
		code = run(s);
	else
		log_error("supervise: %s", strerror(errno));
	for (size_t i = 0; i < s->n_stored; i++)
		close(s->stored[i].fd);
	close_notify(s);
	if (s->signals >= 0)
		close(s->signals);
	free(s);
	return code;
}
