/* SPDX-License-Identifier: Apache-2.0 */
/* The service manager: readiness, watchdog, and descriptors that survive this process.
 *
 * Uses sd_notify(3) and sd_listen_fds(3) with the process that set NOTIFY_SOCKET: systemd, or `gaccd --supervise`.
 * Memory segments are memfds whose only durable owner is that manager: after a SIGKILL the next gaccd inherits what was
 * stored, under the same name.
 *
 * Loop thread; nothing blocks. Messages wait in a queue while the manager does not read; at most FDSTORE_IN_FLIGHT
 * descriptors are sent and unread at a time, because Linux counts them together with all others of our user, and
 * engines must be able to start.
 */
#ifndef GACC_HOST_FDSTORE_H
#define GACC_HOST_FDSTORE_H

#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FDSTORE_MAX_NAME 64
/* descriptors that the manager has not read, and a barrier behind them */
#define FDSTORE_IN_FLIGHT 32

struct fdstore;

/* A descriptor that an earlier life stored. */
struct fdstore_fd {
	char name[FDSTORE_MAX_NAME]; /* "j7.r16.3.1": job, role (enum segment_role), index, generation */
	int fd;			     /* close-on-exec */
};

/* How many descriptors of an earlier life this process has inherited. Before fdstore_open. */
size_t fdstore_inherited(void);
/* Takes the manager's socket and the inherited descriptors, and removes both from the environment so that children do
 * not speak for us. *out_fds is an array for free(); the caller owns each fd. Without a manager the object works and
 * keeps nothing. Call once, before other threads and before anything else opens descriptors. */
enum status fdstore_open(struct fdstore **out, struct fdstore_fd **out_fds, size_t *out_n);
/* Before the first fdstore_keep. `loop` is a uv_loop_t. */
enum status fdstore_start(struct fdstore *, void *loop);
/* To be called about every 100 ms: says when the manager has not read for some seconds, and tries again what no event
 * would announce. */
void fdstore_tick(struct fdstore *, int64_t now_ns);
/* What waits is forgotten, requests without a callback. Memory goes when the loop has run once more. */
void fdstore_close(struct fdstore *);

/* Is there a manager that keeps descriptors? */
bool fdstore_active(const struct fdstore *);
/* How many descriptors it keeps at most; UINT64_MAX: it does not say, or there is none. */
uint64_t fdstore_room(const struct fdstore *);
/* How often to call fdstore_watchdog at least; 0: no watchdog. */
uint64_t fdstore_watchdog_us(const struct fdstore *);

/* Before fdstore_ready, after each part of the work of starting: the manager's limit for a start begins anew, with a
 * minute. Tells it at most once a second, and not at all when it has no room. */
void fdstore_starting(struct fdstore *, int64_t now_ns);
/* ST_OK: told, or will be when the manager has room, or there is none. ST_UNAVAILABLE: it is gone. ST_NO_MEMORY. */
enum status fdstore_ready(struct fdstore *);
enum status fdstore_stopping(struct fdstore *);
enum status fdstore_watchdog(struct fdstore *);

struct fdstore_request;
/* ST_OK: the manager has read all of them. ST_UNAVAILABLE: there is none, or it is gone. */
typedef void fdstore_done(void *arg, enum status);
/* Stores duplicates of the n descriptors of `item`, an array for free() that is taken; they must stay open until done,
 * which may be called before this returns. Names are unique (the caller's duty): letters, digits, '.', '-', '_',
 * shorter than FDSTORE_MAX_NAME. Requests are served one after the other. *handle is the request until done is called
 * or it is cancelled, then NULL. */
void fdstore_keep(struct fdstore *, struct fdstore_fd *item, size_t n, fdstore_done *, void *arg,
		  struct fdstore_request **handle);
/* Without done. What has been sent already is removed from the store. NULL is fine. */
void fdstore_cancel(struct fdstore_request *);
enum status fdstore_remove(struct fdstore *, const char *name);

#endif
