/* SPDX-License-Identifier: Apache-2.0 */
/* Turns SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGCHLD into a descriptor for poll(), and restores them for child
 * processes. gaccctl's main thread. */
#include "signals.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

static void ours(sigset_t *set)
{
	sigemptyset(set);
	sigaddset(set, SIGINT);
	sigaddset(set, SIGTERM);
	sigaddset(set, SIGHUP);
	sigaddset(set, SIGQUIT);
	sigaddset(set, SIGCHLD);
}

void signals_block(void)
{
	sigset_t set;

	ours(&set);
	sigprocmask(SIG_BLOCK, &set, NULL);
}

int signals_open(void)
{
	sigset_t set;

	ours(&set);
	return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

int signals_next(int fd)
{
	struct signalfd_siginfo info;

	return read(fd, &info, sizeof(info)) == sizeof(info) ? (int)info.ssi_signo : 0;
}
