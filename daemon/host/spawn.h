/* SPDX-License-Identifier: Apache-2.0 */
/* Child processes that the event loop starts and hears the end of.
 *
 * Not uv_spawn, which forks: a fork copies the page tables of the whole process, and the loop waits for that and for
 * the child to drop the copy again, 20 to 50 ms in a gaccd with half a GiB of its own. posix_spawn lends the child its
 * memory until it executes.
 *
 * Loop thread.
 */
#ifndef GACC_HOST_SPAWN_H
#define GACC_HOST_SPAWN_H

#include <stdbool.h>
#include <stdint.h>

#define SPAWN_FD 3 /* the child's number for `fd` */

struct spawned;

struct spawn_opts {
	const char *file; /* a path; relative ones are the caller's */
	char *const *args, *const *env;
	/* the child has it as SPAWN_FD, and 2 as it is; 0 and 1 are /dev/null; the others must be CLOEXEC */
	int fd;
	bool detached; /* in a session of its own, and a loop that ends does not wait for it */
	/* Once, with the signal that killed it, or 0. What spawn_child gave is freed when this returns. */
	void (*exited)(void *arg, int64_t status, int signal);
	void *arg;
};

/* 0, or -errno: nothing has been started. All signals have their default actions in the child, and none is blocked.
 * `loop` is a uv_loop_t. */
int spawn_child(void *loop, const struct spawn_opts *, struct spawned **out);
int64_t spawned_pid(const struct spawned *);
/* From now on `exited` is not called. The child continues to run and is not reaped by us. NULL is allowed. */
void spawned_let_go(struct spawned *);

#endif
