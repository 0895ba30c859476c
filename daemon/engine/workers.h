/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that split one piece of work: a counter hands out items, the caller works too.
 *
 * One caller at a time. Between pieces the threads spin for a few microseconds, then sleep on a futex; an idle pool
 * uses no CPU. All of them, and the thread that calls workers_new, flush subnormals to zero (docs/gradient.md says
 * why).
 */
#ifndef GACC_ENGINE_WORKERS_H
#define GACC_ENGINE_WORKERS_H

#include "proto/status.h"

#include <stdbool.h>
#include <stdint.h>

/* One item; worker is 0..n-1 and not in two calls at once. */
typedef void workers_fn(void *arg, uint32_t item, uint32_t worker);

struct workers;

/* A pool of n threads, the caller included. ST_NO_MEMORY when a thread cannot be had. */
enum status workers_new(struct workers **out, uint32_t n);
void workers_free(struct workers *); /* joins the threads; NULL is fine */

/* fn for every item 0..n_items-1, in any order, and returns when all are done: what they wrote is visible. `alone`: on
 * the calling thread, in ascending order, because the work is too small to wake anyone. */
void workers_run(struct workers *, workers_fn *fn, void *arg, uint32_t n_items, bool alone);

/* Called by the thread that calls workers_run while work is long: at most five times a second, only if something has
 * been done since, and not in the first 0.2 s after workers_begin_turn. NULL: nothing is called, as before the first
 * call. */
typedef void workers_heartbeat(void *arg);
void workers_set_heartbeat(struct workers *, workers_heartbeat *, void *arg);
void workers_begin_turn(struct workers *);
/* A step of long work is done: an item of workers_run, which says so itself, a part of one that is long, or something
 * that the caller has waited for. worker: as in workers_fn; the caller's is 0, also outside of workers_run. */
void workers_note_step(struct workers *, uint32_t worker);

/* What all of them do once; for a further thread that adds. */
void workers_flush_subnormals(void);

#endif
