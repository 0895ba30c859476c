/* SPDX-License-Identifier: Apache-2.0 */
/* What a parent may leave behind. Without 0, 1 and 2 the first files that are opened get these numbers, and log lines
 * go into the journal's file; where SIGCHLD is ignored the kernel forgets children that end, and nobody starts them
 * again. */
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
