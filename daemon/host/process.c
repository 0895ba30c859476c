/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at other processes through /proc, and sends signals that reach the intended process or none. Any thread;
 * blocks only for /proc. */
#include "host/process.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Also of a zombie, whose state is Z. */
static bool read_stat(int64_t pid, struct process_info *out, char *out_state)
{
	char path[64], text[1024];
	snprintf(path, sizeof(path), "/proc/%lld/stat", (long long)pid);
	FILE *f = fopen(path, "re");
	if (!f)
		return false;
	size_t n = fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	text[n] = '\0';
	const char *at = strrchr(text, ')'); /* the name may hold anything */
	unsigned long long start;
	long long parent, group, session;
	char state;
	if (!at || sscanf(at + 1, " %c %lld %lld %lld %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
			  &state, &parent, &group, &session, &start) != 5)
		return false;
	*out = (struct process_info){ parent, group, session, start };
	*out_state = state;
	return true;
}

bool process_look(int64_t pid, struct process_info *out)
{
	struct process_info p;
	char state;
	if (!read_stat(pid, &p, &state) || state == 'Z' || state == 'X')
		return false;
	*out = p;
	return true;
}

uint64_t process_start_time(int64_t pid)
{
	struct process_info p;
	return process_look(pid, &p) ? p.start_time : 0;
}

bool process_uid(int64_t pid, uint32_t *out)
{
	char path[64], line[256];
	bool found = false;
	snprintf(path, sizeof(path), "/proc/%lld/status", (long long)pid);
	FILE *f = fopen(path, "re");
	while (f && !found && fgets(line, sizeof(line), f))
		found = sscanf(line, "Uid: %u", out) == 1;
	if (f)
		fclose(f);
	return found;
}

bool process_is_gaccd(int64_t pid, const char *role, const char *argument)
{
	char path[64], words[512], want[128];
	snprintf(path, sizeof(path), "/proc/%lld/cmdline", (long long)pid);
	FILE *f = fopen(path, "re");
	if (!f)
		return false;
	size_t n = fread(words, 1, sizeof(words), f);
	fclose(f);
	int length = snprintf(want, sizeof(want), "gaccd%c%s%c%s", 0, role, 0, argument);
	return length > 0 && (size_t)length < sizeof(want) && n > (size_t)length &&
	       !memcmp(words, want, (size_t)length + 1);
}

bool process_lives(int pidfd)
{
	return !syscall(SYS_pidfd_send_signal, pidfd, 0, NULL, 0) || errno == EPERM;
}

/* Its leader may be a zombie while other threads still end: the pidfd is readable when all have. */
bool process_is_over(int64_t pid, uint64_t start_time)
{
	struct process_info p;
	char state;
	const int fd = pid > 0 ? (int)syscall(SYS_pidfd_open, (pid_t)pid, 0) : -1;
	if (fd < 0)
		return pid > 0 && errno == ESRCH;
	struct pollfd end = { .fd = fd, .events = POLLIN };
	const bool is_there = read_stat(pid, &p, &state) && p.start_time == start_time && poll(&end, 1, 0) == 0;
	close(fd);
	return !is_there;
}

bool process_signal_if(int64_t pid, int signal, process_test *is_meant, const void *arg)
{
	int fd = pid > 0 ? (int)syscall(SYS_pidfd_open, (pid_t)pid, 0) : -1;
	if (fd < 0)
		return false;
	/* The number cannot have changed hands before the look if the process still has it afterwards. */
	bool ok = is_meant(arg, pid) && !syscall(SYS_pidfd_send_signal, fd, 0, NULL, 0) &&
		  !syscall(SYS_pidfd_send_signal, fd, signal, NULL, 0);
	close(fd);
	return ok;
}

bool process_signal_child(int64_t pid, int signal)
{
	siginfo_t info;
	return pid > 0 && !waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) && !kill((pid_t)pid, signal);
}
