/* SPDX-License-Identifier: Apache-2.0 */
/* A job's launcher as gaccd holds it: found or started, spoken to over its socket, reaped when it ends.
 *
 * Loop thread. The process is this binary with `--launcher` (launch/launcher.h). It outlives gaccd; launch_proc_open
 * finds it again.
 */
#ifndef GACC_LAUNCH_PROC_H
#define GACC_LAUNCH_PROC_H

#include "launch/channel.h"
#include "launch/launcher.h"

#include <stdbool.h>

struct launch_proc;

struct launch_proc_events {
	void (*rank)(void *arg, uint32_t rank, const struct launch_rank *);
	/* All ranks as of now have been told before it. `tail`: n_tail bytes, not ended by a NUL. */
	void (*summary)(void *arg, const struct launch_summary *, const char *tail, uint32_t n_tail);
	/* The launcher is gone; the object is freed when this returns. Not called after launch_proc_close. */
	void (*gone)(void *arg);
};

/* Connects to the job's launcher; starts one when there is none and `start`. ST_UNAVAILABLE: there is none; ST_IO_ERROR
 * (logged), ST_NO_MEMORY. `loop` is a uv_loop_t. */
enum status launch_proc_open(void *loop, const struct launcher_args *, bool start, const struct launch_proc_events *,
			     void *arg, struct launch_proc **out);
/* n bytes follow the order. false: the launcher cannot take it now. */
bool launch_proc_order(struct launch_proc *, const struct launch_order *, const void *words, uint32_t n);
/* 0: not known yet. */
int64_t launch_proc_pid(const struct launch_proc *);
/* Frees the handle without ending the launcher; no event follows. NULL is allowed. */
void launch_proc_close(struct launch_proc *);

#endif
