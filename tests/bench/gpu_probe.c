/* SPDX-License-Identifier: Apache-2.0 */
/* What a GPU and its driver do that gacc's design depends on: each row is a line "NUMBER<tab>WHAT<tab>RESULT". For
 * deploy/bundle-run.sh; needs nothing of gacc.
 *
 *     gpu_probe survival    does exported memory outlive the process that made it, after SIGKILL
 *
 * Without a GPU each row says so and the status is 0; a row that failed makes it 1. The first process never opens the
 * driver: whatever does is a child with a time limit, so that a hang of the driver is a row, too. */
#include "gpu_probe.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int number;
		int (*run)(void);
	} parts[] = { { "survival", 2, survival } };

	for (size_t i = 0; argc == 2 && i < sizeof(parts) / sizeof(*parts); i++) {
		int number = parts[i].number;

		if (strcmp(argv[1], parts[i].name))
			continue;
		int found = run_rows(number, "GPU", look, &number);
		if (found)
			return found > 1;
		return parts[i].run();
	}
	fprintf(stderr, "usage: gpu_probe survival\n");
	return 2;
}
