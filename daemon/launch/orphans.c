/* SPDX-License-Identifier: Apache-2.0 */
/* Finds and ends processes that ranks have left behind: the launcher becomes their parent as a child subreaper, and
 * reads /proc to find them. The launcher's only thread. */
#include "launch/orphans.h"

#include "host/process.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WAIT_NS 5000000
#define WAIT_TRIES 1000
#define REAP_AT_ONCE 4096 /* of children that are made as fast as they are reaped */

bool orphans_adopt(void)
{
	return !prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
}

static void kill_children(void)
{
	DIR *proc = opendir("/proc");
	int64_t self = getpid();
	for (const struct dirent *d; proc && (d = readdir(proc));) {
		struct process_info p;
		long long pid = strtoll(d->d_name, NULL, 10);
		if (pid > 0 && process_look(pid, &p) && p.parent == self)
			kill((pid_t)pid, SIGKILL);
	}
	if (proc)
		closedir(proc);
}

/* From the top down: a parent that starts its children again is gone before they are. */
bool orphans_end(void)
{
	for (int tries = 0; tries < WAIT_TRIES; tries++) {
		pid_t pid = 0;
		for (int n = 0; n < REAP_AT_ONCE && (pid = waitpid(-1, NULL, WNOHANG)) > 0; n++)
			;
		if (pid < 0)
			return errno == ECHILD;
		kill_children();
		nanosleep(&(struct timespec){ .tv_nsec = WAIT_NS }, NULL);
	}
	return false;
}
