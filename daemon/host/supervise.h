/* SPDX-License-Identifier: Apache-2.0 */
/* `gaccd --supervise ARGS`: the service manager's part where there is none, as in containers and tests.
 *
 * Runs one child, keeps the descriptors it stores (fdstore.h), and starts it again, with them, whenever it dies.
 * The same protocol as systemd's, so that one code path in gaccd serves both.
 *
 * A process of its own, single-threaded, a poll loop. The kernel names the sender of every message: only the child's
 * count.
 */
#ifndef GACC_HOST_SUPERVISE_H
#define GACC_HOST_SUPERVISE_H

#include <stdint.h>

#define SUPERVISE_MAX_FDS 4096

struct supervise_opts {
	char *const *argv; /* of the child; argv[0] is a path */
	/* Between a death and the next start; restarts are not limited. Doubles, to 10 s at most, while children end by
	 * themselves within 10 s of their start. */
	uint32_t backoff_ms;
	uint32_t watchdog_ms; /* a child that was READY and then silent for so long is killed; 0: off */
};

/* Returns the exit code for the process. The child ends for good when it exits with 0, or with 2 while nothing is
 * stored (its arguments or its configuration are wrong: starting it again would not help, but ending would lose what is
 * stored), or when SIGTERM or SIGINT asked for it: both are handed on as SIGTERM. SIGHUP is handed on. A child that
 * died of signal s after such a request gives 128 + s. Blocks these signals and SIGCHLD in the caller. */
int supervise_run(const struct supervise_opts *);

#endif
