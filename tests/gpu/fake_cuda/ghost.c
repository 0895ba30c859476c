/* SPDX-License-Identifier: Apache-2.0 */
/* Death, and life after it. The child is made by _Fork: the program's own handlers of fork are not for it. It has one
 * thread, and may not allocate what another thread of the dead process might have been about to, so it frees nothing;
 * an alarm ends it if it hangs. */
#include "ghost.h"

#include "allocation.h"
#include "driver.h"
#include "options.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

static bool here;
static _Atomic bool due;

bool ghost_is_here(void)
{
	return here;
}

bool ghost_is_due(void)
{
	return due;
}

void ghost_call(void)
{
	due = true;
}

static void begin(pid_t dead)
{
	here = true;
	due = false;
	alarm(120);
	allocation_close_others();
	int null = open("/dev/null", O_RDWR);
	for (int fd = 0; null >= 0 && fd < 3; fd++)
		dup2(null, fd);
	while (getppid() == dead)
		usleep(100);
	usleep(options()->late_us);
}

void ghost_die(void)
{
	pid_t pid = getpid();
	if (here)
		return; /* once is enough */
	driver_lock();	/* nobody is changing a queue, and nobody else is here */
	if (options()->late) {
		if (!_Fork()) {
			begin(pid);
			return;
		}
	}
	kill(pid, SIGKILL);
	for (;;)
		pause();
}
