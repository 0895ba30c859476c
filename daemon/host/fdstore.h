/* The service manager's side of life: readiness, watchdog, and descriptors that survive this process.
 *
 * Speaks sd_notify(3) and sd_listen_fds(3) to whoever set NOTIFY_SOCKET: systemd, or `gaccd --supervise`. Memory segments
 * are memfds whose only durable owner is that manager: what was stored before a SIGKILL is inherited by the
 * next life under the same name.
 *
 * Loop thread. Sends are datagrams that the manager reads at once; when its queue is full a send waits, 1 s at most.
 */
#ifndef GACC_HOST_FDSTORE_H
#define GACC_HOST_FDSTORE_H

#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FDSTORE_MAX_NAME 64

struct fdstore;

/* A descriptor that an earlier life stored. */
struct fdstore_fd {
	char name[FDSTORE_MAX_NAME]; /* "j7.r16.3.1": job, role (enum segment_role), index, generation */
	int fd;                      /* close-on-exec */
};

/* How many descriptors of an earlier life this process has inherited. Before fdstore_open. */
size_t fdstore_inherited(void);
/* Takes the manager's socket and the inherited descriptors, and removes both from the environment so that children do not
 * speak for us. *out_fds is an array for free(); the caller owns each fd. Without a manager the object works and
 * keeps nothing. Call once, before other threads and before anything else opens descriptors. */
enum status fdstore_open(struct fdstore **out, struct fdstore_fd **out_fds, size_t *out_n);
void fdstore_close(struct fdstore *);

/* Is there a manager that keeps descriptors? */
bool fdstore_active(const struct fdstore *);
/* How many descriptors it keeps at most; UINT64_MAX: it does not say, or there is none. */
uint64_t fdstore_room(const struct fdstore *);
/* How often to call fdstore_watchdog at least; 0: no watchdog. */
uint64_t fdstore_watchdog_us(const struct fdstore *);

/* ST_UNAVAILABLE: the manager did not take it (always when there is none, for put and barrier; the others then do nothing). */
enum status fdstore_ready(struct fdstore *);
enum status fdstore_stopping(struct fdstore *);
enum status fdstore_watchdog(struct fdstore *);

/* Stores a duplicate of fd. Names are unique (the caller's duty): letters, digits, '.', '-', '_', shorter than
 * FDSTORE_MAX_NAME. */
enum status fdstore_put(struct fdstore *, const char *name, int fd);
enum status fdstore_remove(struct fdstore *, const char *name);

/* *out_fd (the caller's, to poll and close) becomes readable once the manager has handled everything sent before. */
enum status fdstore_barrier(struct fdstore *, int *out_fd);

#endif
