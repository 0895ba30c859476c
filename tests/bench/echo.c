/* SPDX-License-Identifier: Apache-2.0 */
/* The eventfds of echo.h, for bench_mailbox and bench_push. */
#include "echo.h"

#include "bench.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

void echo_start(struct echo *e)
{
	uint64_t n;
	e->there = eventfd(0, EFD_CLOEXEC);
	e->back = eventfd(0, EFD_CLOEXEC);
	e->pid = fork();
	if (e->there < 0 || e->back < 0 || e->pid < 0)
		bench_die("eventfd, fork: %s", strerror(errno));
	if (e->pid)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (read(e->there, &n, sizeof(n)) == (ssize_t)sizeof(n) &&
	       write(e->back, &(uint64_t){ 1 }, sizeof(n)) == (ssize_t)sizeof(n))
		;
	_exit(1);
}

void echo_call(const struct echo *e)
{
	uint64_t n = 1;
	if (write(e->there, &n, sizeof(n)) < 0 || read(e->back, &n, sizeof(n)) < 0)
		bench_die("eventfd: %s", strerror(errno));
}
