/* SPDX-License-Identifier: Apache-2.0 */
/* An engine process as gaccd holds it: started with its memory, talked to over a socketpair, reaped when it dies.
 *
 * Loop thread. The process is this binary with `--engine`; it ends when its socket closes.
 */
#ifndef GACC_RUNTIME_ENGINE_PROC_H
#define GACC_RUNTIME_ENGINE_PROC_H

#include "engine/channel.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine_proc;

struct engine_exit {
	int64_t status;
	int signal;	 /* 0: none */
	const char *why; /* engine_proc_kill's; "": it was not us */
};

struct engine_events {
	/* Also the HELLO (op ENGINE_START). tail: the n_tail bytes behind it, for the call. */
	void (*answer)(void *arg, const struct engine_answer *, const void *tail);
	/* Before an answer to ENGINE_ALLOCATE, which it came with: they are the callee's. NULL: they are closed. */
	void (*descriptors)(void *arg, const int *fds, int n);
	/* The process is dead; the object is freed when this returns. Not called after engine_proc_close. */
	void (*exited)(void *arg, const struct engine_exit *);
};

struct engine_start {
	enum engine_op op; /* ENGINE_START or ENGINE_ALLOCATE */
	uint64_t job_id, epoch, generation, incarnation;
	/* the plan, then the segments. The array is borrowed for the call; the descriptors stay open, under these
	 * numbers, until HELLO, exited or engine_proc_close */
	const int *fds;
	int n_fds;
	int log_level, log_format; /* base/log.h */
	const char *kernels;	   /* name of a table in math/kernels.h; "" = the best of this CPU */
	/* of several parts; else NULL and 0 */
	const char *coll_address; /* the others reach the engine there */
	int64_t stall_ns;
	uint32_t end_ms; /* how long it has to end after engine_proc_close: then it is killed */
	/* of a job on a device */
	/* the engine has this process' environment, which tells where the driver is, and how it works */
	bool on_device;
	uint32_t n_device, others_are_over;
};

/* ST_IO_ERROR, ST_NO_MEMORY, with why. Not logged: who tries again for the same reason need not say so. `loop` is a
 * uv_loop_t. */
enum status engine_proc_start(void *loop, const struct engine_start *, const struct engine_events *, void *arg,
			      struct engine_proc **out, char *why, size_t n_why);
/* START to an engine that has been told to ALLOCATE and has answered; it brings no descriptors. */
bool engine_proc_go_on(struct engine_proc *, const struct engine_start *);
#define ENGINE_PROC_FDS 3 /* that can go with a command: those of a mailbox */

/* Queued when the socket is full. false: the process is going or gone, or there is no memory or no descriptor to queue
 * it. n_present bytes follow the command, and at most ENGINE_PROC_FDS descriptors go with it, which stay the caller's.
 */
bool engine_proc_send(struct engine_proc *, const struct engine_command *, const void *present, const int *fds,
		      int n_fds);
/* Takes the answers that have arrived, now instead of with the loop's next look. */
void engine_proc_hear(struct engine_proc *);
int64_t engine_proc_pid(const struct engine_proc *);
/* Once a tick: asks for a sign of life when there has been none for a while. false: none has come for `patience` ticks,
 * the engine hangs or is stopped. Ticks, not time: a machine that slept, or a gaccd that was stopped, must not blame
 * the engine. */
bool engine_proc_tick(struct engine_proc *, uint32_t patience);
/* SIGKILL; exited follows, with why. */
void engine_proc_kill(struct engine_proc *, const char *why);
/* Asks it to end (ENGINE_STOP, then the closed socket) and lets go: no event comes any more. One that hangs, in a
 * device's driver above all, is killed after end_ms, as it would keep its memory and the loop for ever. NULL is fine.
 */
void engine_proc_close(struct engine_proc *);

#endif
