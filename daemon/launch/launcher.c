/* SPDX-License-Identifier: Apache-2.0 */
/* The main program of `gaccd --launcher`: starts the ranks of one job, restarts them as gaccd orders, and reports how
 * each ended. It survives a restart of gaccd. A process of its own with one thread and a poll loop. */
#include "launch/launcher.h"

#include "base/clock.h"
#include "base/descriptors.h"
#include "base/log.h"
#include "base/packet.h"
#include "launch/child.h"
#include "launch/logs.h"
#include "launch/orphans.h"
#include "launch/state.h"
#include "host/process.h"
#include "proto/failpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_POLL_MS 60000
#define TAIL_MS 6000
#define REAP_AT_ONCE 256
#define RANK_NONE UINT32_MAX

struct launcher {
	const struct launcher_args *args;
	char socket_path[sizeof(struct sockaddr_un)], state_path[4096];
	int listener, gaccd, signals, state; /* gaccd: -1 while nobody is connected */
	struct launch_note *old;	     /* of the launcher before us */
	uint32_t n_old;
	struct launch_start start;
	struct launch *launch; /* NULL: not started */
	struct launch_logs *logs;
	bool *dirty;	      /* ranks that gaccd has not heard of */
	uint32_t first_dirty; /* none below */
	bool summary_dirty;
	int64_t alone_since_ns;
	bool leaving; /* ends when no rank is left */
	bool more_to_reap;
	char tail[LAUNCH_MAX_TAIL];
	uint32_t n_tail;
	bool have_tail;
};

static struct now clock_now(void)
{
	return (struct now){ clock_ns(CLOCK_BOOTTIME), clock_ns(CLOCK_REALTIME) };
}

/* ---- processes: the ports of control/launch ---- */

static enum status note_pid(struct launcher *l, const struct launch_note *note)
{
	enum status st = FAILPOINT_ERROR(launcher_note_before);
	if (!st)
		st = launch_state_note(l->state, note);
	FAILPOINT(launcher_noted);
	return st;
}

/* A child waits for its go until its pid is in the file. */
static int64_t start_rank(void *ctx, uint32_t rank, uint32_t restarts)
{
	struct launcher *l = ctx;
	int go[2];
	pid_t self = getpid();
	if (FAILPOINT_ERROR(launcher_spawn_before) || pipe2(go, O_CLOEXEC)) {
		snprintf(l->start.reason[rank], LAUNCH_REASON, "no pipe: %s", strerror(errno));
		return 0;
	}
	l->start.reason[rank][0] = '\0';
	pid_t pid = fork();
	if (pid == 0) {
		close(go[1]);
		launch_child_rank(&l->start, rank, restarts, self, go[0], launch_logs_end(l->logs, rank));
	}
	close(go[0]);
	if (pid > 0) {
		struct launch_note note = { rank,
					    pid,
					    process_start_time(pid),
					    restarts,
					    launch_summary(l->launch)->charged,
					    getsid(0),
					    l->start.order.uid };
		setpgid(pid, pid);
		FAILPOINT(launcher_spawned);
		if (note_pid(l, &note) || write(go[1], "", 1) != 1) {
			close(go[1]); /* the child exits when it reads nothing */
			waitpid(pid, NULL, 0);
			snprintf(l->start.reason[rank], LAUNCH_REASON, "its pid cannot be noted in %.120s",
				 l->state_path);
			return 0;
		}
	} else {
		snprintf(l->start.reason[rank], LAUNCH_REASON, "no process: %s", strerror(errno));
	}
	close(go[1]);
	return pid > 0 ? pid : 0;
}

static void signal_rank(void *ctx, uint32_t rank, int64_t pid, int signal)
{
	kill((pid_t)-pid, signal);
}

static void on_changed(void *ctx, uint32_t rank)
{
	struct launcher *l = ctx;
	l->dirty[rank] = true;
	if (rank < l->first_dirty)
		l->first_dirty = rank;
	l->summary_dirty = true;
}

/* The running rank with this process, or RANK_NONE: an orphan's. */
static uint32_t rank_of(const struct launcher *l, pid_t pid)
{
	for (uint32_t i = 0; l->launch && i < l->start.order.n_ranks; i++)
		if (launch_rank(l->launch, i)->state == LAUNCH_RANK_RUNNING && launch_rank(l->launch, i)->pid == pid)
			return i;
	return RANK_NONE;
}

/* What is left of its group goes with it: while it is a zombie, the number of the group is its own. */
static void reap_rank(struct launcher *l, uint32_t rank, pid_t pid)
{
	int status = 0;
	FAILPOINT(launcher_rank_ended);
	kill(-pid, SIGKILL);
	waitpid(pid, &status, 0);
	launch_logs_drain(l->logs, rank); /* its last words are in the log before anybody hears of its end */
	launch_on_exit(l->launch, rank, pid, WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status),
		       clock_now());
}

/* Not more at a time: a rank that makes orphans faster than they are reaped must not delay orders. */
static void reap(struct launcher *l)
{
	siginfo_t info = { .si_pid = 0 };
	int n = 0;
	for (; n < REAP_AT_ONCE && !waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) && info.si_pid; n++) {
		uint32_t rank = rank_of(l, info.si_pid);
		if (rank == RANK_NONE) {
			waitpid(info.si_pid, NULL, 0);
			launch_logs_on_exit(l->logs, info.si_pid);
		} else {
			reap_rank(l, rank, info.si_pid);
		}
		info.si_pid = 0;
	}
	l->more_to_reap = n == REAP_AT_ONCE;
}

/* ---- why it failed ---- */

static void read_tail(struct launcher *l, int from)
{
	struct pollfd p = { from, POLLIN, 0 };
	while (l->n_tail < sizeof(l->tail) && poll(&p, 1, TAIL_MS) == 1) {
		ssize_t n = read(from, l->tail + l->n_tail, sizeof(l->tail) - l->n_tail);
		if (n <= 0)
			break;
		l->n_tail += (uint32_t)n;
	}
}

/* The end of the rank's log, or why there was none. Once, when the job has failed. */
static void take_tail(struct launcher *l)
{
	const struct launch_summary *s = l->launch ? launch_summary(l->launch) : NULL;
	int out[2];
	if (!s || s->result != LAUNCH_FAILED || l->have_tail)
		return;
	l->have_tail = true;
	const char *reason = l->start.reason[s->cause.rank];
	if (*reason) {
		l->n_tail = (uint32_t)snprintf(l->tail, sizeof(l->tail), "%.*s", LAUNCH_REASON, reason);
		return;
	}
	if (pipe2(out, O_CLOEXEC))
		return;
	pid_t pid = fork();
	if (pid == 0)
		launch_child_tail(&l->start, s->cause.rank, out[1]);
	close(out[1]);
	if (pid > 0) {
		read_tail(l, out[0]);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
	close(out[0]);
}

/* ---- words to gaccd ---- */

static void lose_gaccd(struct launcher *l)
{
	close(l->gaccd);
	l->gaccd = -1;
	l->alone_since_ns = clock_now().mono_ns;
}

/* false: the socket is full, or gaccd has gone. */
static bool say(struct launcher *l, const struct launch_word *w, const void *tail)
{
	int r = packet_send(l->gaccd, w, sizeof(*w), tail, w->n_tail, NULL, 0);
	if (r && r != -EAGAIN)
		lose_gaccd(l);
	return r == 0;
}

static bool say_ranks(struct launcher *l)
{
	for (; l->launch && l->first_dirty < l->start.order.n_ranks; l->first_dirty++) {
		uint32_t i = l->first_dirty;
		struct launch_word w = {
			.version = LAUNCH_CHANNEL_VERSION, .kind = LAUNCH_WORD_RANK, .pid = getpid(), .rank = i
		};
		if (!l->dirty[i])
			continue;
		w.state = *launch_rank(l->launch, i);
		if (!say(l, &w, NULL))
			return false;
		l->dirty[i] = false;
	}
	return true;
}

static void say_all(struct launcher *l)
{
	if (l->gaccd < 0 || !say_ranks(l) || !l->summary_dirty)
		return;
	struct launch_word w = {
		.version = LAUNCH_CHANNEL_VERSION, .kind = LAUNCH_WORD_SUMMARY, .pid = getpid(), .n_tail = l->n_tail
	};
	if (l->launch)
		w.summary = *launch_summary(l->launch);
	w.summary.master_port = l->start.master_port;
	if (say(l, &w, l->tail))
		l->summary_dirty = false;
}

static void all_is_news(struct launcher *l)
{
	l->first_dirty = 0;
	l->summary_dirty = true;
	if (l->launch)
		memset(l->dirty, true, l->start.order.n_ranks);
}

/* ---- orders ---- */

/* What the writer of the logs must not hold: gaccd would not see the launcher's end. */
static void close_own(void *arg)
{
	struct launcher *l = arg;
	close(l->listener);
	if (l->gaccd >= 0)
		close(l->gaccd);
	close(l->signals);
	close(l->state);
}

static enum status begin(struct launcher *l, const void *packet, size_t n)
{
	const struct launch_ports ports = {
		.ctx = l, .start = start_rank, .signal = signal_rank, .changed = on_changed
	};
	enum status st = launch_start_parse(packet, n, &l->start);
	const struct launch_order *o = &l->start.order;
	l->start.descriptors = l->args->descriptors;
	if (!st)
		st = launch_logs_new(&l->start, close_own, l, &l->logs);
	if (!st)
		l->dirty = calloc(o->n_ranks, sizeof(*l->dirty));
	if (!st)
		st = l->dirty ? launch_new(&l->launch, o->n_ranks, o->max_restarts, o->grace_ns, &ports) : ST_NO_MEMORY;
	if (st)
		return st;
	log_init("launcher", (enum log_format)o->log_format, (enum log_level)o->log_level);
	for (uint32_t i = 0; i < l->n_old; i++)
		if (l->old[i].rank < o->n_ranks)
			launch_resume(l->launch, l->old[i].rank, l->old[i].restarts, l->old[i].charged);
	launch_allow(l->launch, o->max_restarts, o->final != 0, clock_now());
	launch_start(l->launch, clock_now());
	all_is_news(l);
	return ST_OK;
}

static void stop(struct launcher *l, int64_t grace_ns)
{
	FAILPOINT(launcher_stop_before);
	if (l->launch)
		launch_stop(l->launch, grace_ns, clock_now());
}

static void handle_order(struct launcher *l, const struct launch_order *o, size_t n)
{
	switch ((enum launch_op)o->op) {
	case LAUNCH_OP_START:
		FAILPOINT(launcher_start_taken);
		if (!l->launch && begin(l, o, n))
			l->leaving = true; /* logged; gaccd sees us go */
		break;
	case LAUNCH_OP_DRAIN:
		if (l->launch)
			launch_drain(l->launch, clock_now());
		l->leaving = true;
		break;
	case LAUNCH_OP_LOGS:
		if (l->logs)
			launch_logs_limit(l->logs, o->log_max);
		break;
	case LAUNCH_OP_ALLOW:
		if (l->launch)
			launch_allow(l->launch, o->max_restarts, o->final != 0, clock_now());
		break;
	case LAUNCH_OP_END:
		stop(l, o->grace_ns);
		l->leaving = true;
		break;
	}
}

static void read_orders(struct launcher *l)
{
	static union {
		struct launch_order order;
		char bytes[sizeof(struct launch_order) + LAUNCH_MAX_WORDS];
	} packet;
	while (l->gaccd >= 0) {
		int n_fds = 0;
		int n = packet_recv(l->gaccd, &packet, sizeof(packet), NULL, &n_fds);
		if (n == -EAGAIN || n == -EINTR)
			return;
		if (n < (int)sizeof(packet.order) || packet.order.version != LAUNCH_CHANNEL_VERSION) {
			if (n > 0)
				log_error("launcher of job %llu: an order of %d bytes, version %u",
					  (unsigned long long)l->args->job_id, n, packet.order.version);
			lose_gaccd(l);
			return;
		}
		handle_order(l, &packet.order, (size_t)n);
	}
}

static void take_connection(struct launcher *l)
{
	struct ucred peer;
	socklen_t n = sizeof(peer);
	int fd = accept4(l->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0)
		return;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) || (peer.uid != geteuid() && peer.uid != 0)) {
		close(fd);
		return;
	}
	if (l->gaccd >= 0)
		close(l->gaccd); /* of an earlier gaccd */
	l->gaccd = fd;
	all_is_news(l);
}

/* ---- the loop ---- */

static void read_signals(struct launcher *l)
{
	struct signalfd_siginfo s;
	for (int n = 0; n < REAP_AT_ONCE && read(l->signals, &s, sizeof(s)) == sizeof(s); n++)
		if (s.ssi_signo != SIGCHLD) {
			l->leaving = true;
			stop(l, l->start.order.grace_ns);
		}
	reap(l);
}

static bool is_over(const struct launcher *l)
{
	return !l->launch || launch_summary(l->launch)->phase == LAUNCH_OVER;
}

/* When it ends because nobody has come. */
static int64_t orphan_due_ns(const struct launcher *l)
{
	bool ending = l->leaving && (!l->launch || launch_summary(l->launch)->phase != LAUNCH_DRAINING);
	return l->gaccd >= 0 || ending ? INT64_MAX : l->alone_since_ns + (int64_t)l->args->orphan_ms * 1000000;
}

static void end_if_orphaned(struct launcher *l)
{
	if (clock_now().mono_ns < orphan_due_ns(l))
		return;
	log_job(l->args->job_id, LOG_NOTICE, "LaunchOrphaned", "no gaccd for %llu s: the ranks are stopped",
		(unsigned long long)l->args->orphan_ms / 1000);
	l->leaving = true;
	stop(l, l->start.order.grace_ns);
}

static int timeout_ms(int64_t due_ns)
{
	int64_t ms = (due_ns - clock_now().mono_ns + 999999) / 1000000;
	return ms < 0 ? 0 : ms > MAX_POLL_MS ? MAX_POLL_MS : (int)ms;
}

static void run(struct launcher *l)
{
	for (;;) {
		int64_t due_ns = l->launch ? launch_tick(l->launch, clock_now()) : INT64_MAX;
		end_if_orphaned(l);
		take_tail(l);
		say_all(l);
		if (l->leaving && is_over(l) && (l->gaccd < 0 || !l->summary_dirty))
			return;
		struct pollfd p[] = { { l->listener, POLLIN, 0 },
				      { l->gaccd, (short)(POLLIN | (l->summary_dirty ? POLLOUT : 0)), 0 },
				      { l->signals, POLLIN, 0 } };
		int64_t orphan_ns = orphan_due_ns(l);
		if (poll(p, 3, l->more_to_reap ? 0 : timeout_ms(due_ns < orphan_ns ? due_ns : orphan_ns)) < 0)
			continue;
		if (p[2].revents || l->more_to_reap)
			read_signals(l);
		if (p[1].revents & (POLLIN | POLLHUP | POLLERR))
			read_orders(l);
		if (p[0].revents)
			take_connection(l);
	}
}

static int open_signals(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, NULL);
	return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void finish(struct launcher *l)
{
	FAILPOINT(launcher_end);
	if (!orphans_end())
		log_job(l->args->job_id, LOG_WARN, "OrphansLeft",
			"processes that its ranks have left behind could not be killed: their parent "
			"is init now");
	unlink(l->socket_path); /* first: a gaccd that finds no socket starts a launcher, which reads the state file */
	unlink(l->state_path);
	launch_free(l->launch);
	launch_logs_free(l->logs);
	launch_start_fini(&l->start);
	free(l->dirty);
	free(l->old);
}

int launcher_run(const struct launcher_args *args)
{
	static struct launcher l;
	l = (struct launcher){ .args = args, .listener = LAUNCH_LISTEN_FD, .gaccd = -1, .state = -1 };
	close_range(LAUNCH_LISTEN_FD + 1, ~0U, 0);
	fcntl(l.listener, F_SETFD, FD_CLOEXEC);
	prctl(PR_SET_NAME, "gacc-launcher");
	descriptors_raise();
	if (!orphans_adopt())
		log_job(args->job_id, LOG_WARN, "OrphansUnseen",
			"processes that leave their rank's session will outlive the job: %s", strerror(errno));
	launcher_state_path(args, l.state_path, sizeof(l.state_path));
	if (!launcher_socket_path(args, l.socket_path, sizeof(l.socket_path)))
		return 2;
	l.signals = open_signals();
	l.alone_since_ns = clock_now().mono_ns;
	if (l.signals < 0 || launch_state_open(l.state_path, &l.state, &l.old, &l.n_old)) {
		log_error("launcher of job %llu: cannot begin: %s", (unsigned long long)args->job_id, strerror(errno));
		return 1;
	}
	launch_state_kill(l.old, l.n_old);
	all_is_news(&l);
	FAILPOINT(launcher_listening);
	run(&l);
	finish(&l);
	return 0;
}
