/* SPDX-License-Identifier: Apache-2.0 */
/* Corrects what a parent may leave behind, at the start of each of our processes. With 0, 1 or 2 closed, the first
 * files opened would get these numbers and receive log lines; with SIGCHLD ignored, the kernel would reap children
 * before we can learn how they ended. */
#include "base/inherited.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

bool inherited_mend(void)
{
	sigset_t none;
	sigemptyset(&none);
	signal(SIGCHLD, SIG_DFL);
	/* the size of a job's memory is a user's to choose, and RLIMIT_FSIZE holds for memfds, too */
	signal(SIGXFSZ, SIG_IGN);
	sigprocmask(SIG_SETMASK, &none, NULL);
	for (int fd = 0; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0 && errno == EBADF &&
		    open("/dev/null", O_RDWR) < 0) /* open() takes the lowest number */
			return false;
	return true;
}
