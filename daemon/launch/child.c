/* SPDX-License-Identifier: Apache-2.0 */
/* What the launcher's children do between fork and exec: change the user, drop rights, reset signals, redirect their
 * output, and become a rank or the log writer. No other thread exists in them. */
#include "launch/child.h"

#include "base/descriptors.h"
#include "launch/logs.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CANNOT_RUN 126
#define NOT_FOUND 127
#define TAIL_SECONDS 5

_Noreturn static void fail(const struct launch_start *s, uint32_t rank, int code, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

_Noreturn static void fail(const struct launch_start *s, uint32_t rank, int code, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(s->reason[rank], LAUNCH_REASON, fmt, ap);
	va_end(ap);
	_exit(code);
}

/* A process that changes from one user other than root to another keeps its capabilities, and ambient ones would pass
 * into the program. Who has none need not be allowed to call capset: gaccd's unit does not allow it. */
static bool drop_capabilities(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct have[_LINUX_CAPABILITY_U32S_3], none[_LINUX_CAPABILITY_U32S_3];
	memset(have, 0, sizeof(have));
	memset(none, 0, sizeof(none));
	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) || syscall(SYS_capget, &head, have))
		return false;
	return !memcmp(have, none, sizeof(none)) || !syscall(SYS_capset, &head, none);
}

/* gaccd is the last to be killed when memory is short; its ranks are not. */
static void be_killed_like_others(void)
{
	FILE *f = fopen("/proc/self/oom_score_adj", "we");
	if (!f)
		return;
	fputs("0", f);
	fclose(f);
}

bool launch_become_user(const struct launch_start *s)
{
	if (s->order.change_user && (setgroups((size_t)s->n_groups, s->group) || setresgid(s->gid, s->gid, s->gid) ||
				     setresuid(s->order.uid, s->order.uid, s->order.uid)))
		return false;
	return getuid() == s->order.uid && geteuid() == s->order.uid && (s->order.uid == 0 || drop_capabilities());
}

static void reset_signals(void)
{
	sigset_t none;
	struct sigaction dfl = { .sa_handler = SIG_DFL };
	for (int i = 1; i < NSIG; i++)
		sigaction(i, &dfl, NULL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

/* ---- the log ---- */

static bool make_directories(const char *path)
{
	char part[PATH_MAX];
	if (strlen(path) >= sizeof(part)) {
		errno = ENAMETOOLONG;
		return false;
	}
	strcpy(part, path);
	for (char *c = part + 1; *c; c++)
		if (*c == '/') {
			*c = '\0';
			if (mkdir(part, 0755) && errno != EEXIST)
				return false;
			*c = '/';
		}
	return !mkdir(part, 0755) || errno == EEXIST;
}

/* What an earlier job has left in the log goes; what this one wrote before it was started again stays. */
static void redirect(const struct launch_start *s, uint32_t rank, uint32_t restarts, int output)
{
	bool fresh = s->order.fresh && !restarts;
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC), log = -1;
	const char *why = make_directories(s->log_dir)
				  ? launch_log_open(s, rank, false, O_WRONLY | O_APPEND | O_CREAT, &log)
				  : strerror(errno);
	if (!why && fresh && ftruncate(log, 0))
		why = strerror(errno);
	if (!why && fresh)
		launch_log_drop_older(s, rank);
	if (!why && (null < 0 || dup2(null, 0) < 0 || dup2(output, 1) < 0 || dup2(output, 2) < 0))
		why = strerror(errno);
	if (why)
		fail(s, rank, CANNOT_RUN, "cannot write %.120s/worker_%u.log: %s", s->log_dir, s->order.first + rank,
		     why);
}

/* ---- the rank ---- */

/* Whoever cannot be told from a rank by its pid must not run. */
static void wait_for_go(int go)
{
	char byte;
	ssize_t n;
	do
		n = read(go, &byte, 1);
	while (n < 0 && errno == EINTR);
	if (n != 1)
		_exit(CANNOT_RUN);
}

_Noreturn void launch_child_rank(const struct launch_start *s, uint32_t rank, uint32_t restarts, pid_t parent, int go,
				 int output)
{
	setpgid(0, 0);
	reset_signals();
	wait_for_go(go);
	be_killed_like_others();
	descriptors_restore(s->descriptors);
	if (!launch_become_user(s))
		fail(s, rank, CANNOT_RUN, "cannot become user %.32s: %s", s->user, strerror(errno));
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* a change of user would have cleared it */
	if (getppid() != parent)
		_exit(CANNOT_RUN);
	umask(022);
	redirect(s, rank, restarts, output);
	const char *dir = *s->working_dir ? s->working_dir : "/";
	if (chdir(dir))
		fail(s, rank, CANNOT_RUN, "cannot enter the working directory %.120s: %s", dir, strerror(errno));
	environ = launch_environment(s, rank, restarts);
	if (!environ)
		fail(s, rank, CANNOT_RUN, "no memory for its environment");
	execvp(s->command[0], s->command);
	fail(s, rank, errno == ENOENT ? NOT_FOUND : CANNOT_RUN, "cannot run %.120s: %s", s->command[0],
	     strerror(errno));
}

/* Up to n bytes of the end of a log, or of the older one behind it. */
static size_t read_end(const struct launch_start *s, uint32_t rank, bool older, char *to, size_t n)
{
	struct stat st;
	int log;
	if (launch_log_open(s, rank, older, O_RDONLY, &log))
		return 0;
	ssize_t got = fstat(log, &st) ? -1 : pread(log, to, n, st.st_size > (off_t)n ? st.st_size - (off_t)n : 0);
	close(log);
	return got < 0 ? 0 : (size_t)got;
}

_Noreturn void launch_child_tail(const struct launch_start *s, uint32_t rank, int out)
{
	char text[2 * LAUNCH_MAX_TAIL], *half = text + LAUNCH_MAX_TAIL;
	reset_signals();
	alarm(TAIL_SECONDS); /* a file system may hang */
	if (!launch_become_user(s))
		_exit(1);
	size_t n = read_end(s, rank, false, half, LAUNCH_MAX_TAIL), older = 0;
	if (n < LAUNCH_MAX_TAIL)
		older = read_end(s, rank, true, half - (LAUNCH_MAX_TAIL - n), LAUNCH_MAX_TAIL - n);
	/* the older log is there, if it is long enough to reach the newer one */
	char *from = half - (LAUNCH_MAX_TAIL - n);
	if (older < LAUNCH_MAX_TAIL - n)
		memmove(half - older, from, older);
	_exit(write(out, half - older, older + n) != (ssize_t)(older + n));
}
