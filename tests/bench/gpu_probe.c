/* SPDX-License-Identifier: Apache-2.0 */
/* What a GPU and its driver do that gacc's design depends on, and how fast gacc's kernels are there: each row is a line
 * "NUMBER<tab>WHAT<tab>RESULT". For deploy/bundle-run.sh.
 *
 *     gpu_probe name        what the driver calls it
 *     gpu_probe survival    does exported memory outlive the process that made it, after SIGKILL; needs nothing of gacc
 *     gpu_probe late [N]    does a kernel of a process that is killed, by signal N, write after the process is gone
 *     gpu_probe rates       passes and updates beside a copy of the same memory
 *     gpu_probe ready       from the end of a stream's work to the host's seeing it
 *     gpu_probe tiny        products beside the smallest normal number: the bits of the host
 *
 * Without a GPU each part says so and the status is 0; a row that failed makes it 1. The first process never opens the
 * driver: whatever does is a child with a time limit, so that a hang of the driver is a row, too. */
#include "gpu_probe.h"

#include "cuda_probe.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

void row(int number, const char *what, const char *format, ...)
{
	char text[600];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	printf("%d\t%s\t%s\n", number, what, text);
	fflush(stdout);
}

double seconds_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double quantile(double *v, int n, double part)
{
	qsort(v, (size_t)n, sizeof(*v), compare);
	return v[(int)(part * (n - 1) + 0.5)];
}

/* ---- processes ---- */

pid_t start(int (*work)(void *), void *arg)
{
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0) {
		alarm(CHILD_SECONDS);
		exit(work(arg));
	}
	if (pid < 0) {
		perror("fork");
		exit(2);
	}
	return pid;
}

int end_of(pid_t pid)
{
	int status;

	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int run_rows(int number, const char *what, int (*work)(void *), void *arg)
{
	int st = end_of(start(work, arg));

	if (st == 128 + SIGALRM)
		row(number, what, "FAILED: no answer of the driver for %d s", CHILD_SECONDS);
	else if (st > 128)
		row(number, what, "FAILED: killed by signal %d", st - 128);
	else if (st > 1) /* it has not come to its own row */
		row(number, what, "FAILED: the process that was to find out ended with status %d", st);
	return st;
}

bool send_to(int socket, const void *what, size_t n, int fd)
{
	char room[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec v = { (void *)what, n };
	struct msghdr h = { .msg_iov = &v, .msg_iovlen = 1 };

	if (fd >= 0) {
		h.msg_control = room;
		h.msg_controllen = sizeof(room);
		struct cmsghdr *cm = CMSG_FIRSTHDR(&h);
		cm->cmsg_level = SOL_SOCKET;
		cm->cmsg_type = SCM_RIGHTS;
		cm->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(cm), &fd, sizeof(int));
	}
	return sendmsg(socket, &h, MSG_NOSIGNAL) == (ssize_t)n;
}

bool receive_from(int socket, void *to, size_t n, int *out_fd)
{
	char room[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec v = { to, n };
	struct msghdr h = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room) };

	memset(to, 0, n);
	if (out_fd)
		*out_fd = -1;
	if (recvmsg(socket, &h, MSG_CMSG_CLOEXEC) != (ssize_t)n)
		return false;
	struct cmsghdr *cm = CMSG_FIRSTHDR(&h);
	if (out_fd && cm && cm->cmsg_type == SCM_RIGHTS)
		memcpy(out_fd, CMSG_DATA(cm), sizeof(int));
	return true;
}

/* ---- parts ---- */

/* "no GPU", "no NVIDIA driver (..)" are no failures; others are. */
static int look(void *arg)
{
	struct cuda c;
	cu_device device;
	char why[400];
	const int *number = arg;

	if (cuda_open(&c, &device, why, sizeof(why)))
		return 0;
	if (strstr(why, "NO_DEVICE"))
		snprintf(why, sizeof(why), "no GPU");
	row(*number, "GPU", "not run: %s", why);
	return 1;
}

static const struct part {
	const char *name;
	int number;
	gpu_part *run;
} parts[] = { { "name", 0, name_of_gpu }, { "tiny", 1, tiny },	 { "survival", 2, survival },
	      { "late", 3, late },	  { "rates", 4, rates }, { "ready", 5, ready } };

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "late"))
		late_signal = atoi(argv[2]);
	for (size_t i = 0; argc >= 2 && i < sizeof(parts) / sizeof(*parts); i++) {
		int number = parts[i].number;

		if (strcmp(argv[1], parts[i].name))
			continue;
		int found = run_rows(number, "GPU", look, &number);
		return found ? found > 1 : parts[i].run(number);
	}
	fprintf(stderr, "usage: gpu_probe name | tiny | survival | late [SIGNAL] | rates | ready\n");
	return 2;
}
