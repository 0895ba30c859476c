/* SPDX-License-Identifier: Apache-2.0 */
/* The output of a job's ranks: a pipe for each rank, and a process that writes what it reads from there to
 * <log_dir>/worker_<rank>.log.
 *
 * The launcher holds both ends of each pipe and starts the writer, which runs as the submitting user. A log grows to
 * its limit, then it is renamed to worker_<rank>.log.1, replacing an older one. Nothing is lost when either process
 * dies: the launcher starts another writer, which continues; a writer without a launcher ends when it has written what
 * the ranks had printed. A disk that hangs blocks only the writer. Only the launcher makes these calls, except
 * launch_log_open.
 */
#ifndef GACC_LAUNCH_LOGS_H
#define GACC_LAUNCH_LOGS_H

#include "launch/start.h"

/* bytes that a log may have, however small its user's share is */
#define LAUNCH_LOG_LEAST 16384
/* bytes a second of a job's ranks together; ranks that print more wait */
#define LAUNCH_LOG_RATE (64u << 20)

struct launch_logs;

/* Makes the pipes and starts the writer; `start` is borrowed. `in_child` closes what the writer must not hold.
 * ST_NO_MEMORY, ST_IO_ERROR (logged). */
enum status launch_logs_new(const struct launch_start *start, void (*in_child)(void *arg), void *arg,
			    struct launch_logs **out);
/* The end of the pipe that becomes the rank's standard output. */
int launch_logs_end(const struct launch_logs *, uint32_t rank);
/* Bytes that a log may have, and as much again in worker_<rank>.log.1. Longer ones are cut, their newest lines are
 * kept. */
void launch_logs_limit(struct launch_logs *, uint64_t bytes);
/* Waits until what the rank has printed is in its log, half a second at most. */
void launch_logs_drain(struct launch_logs *, uint32_t rank);
/* A child was reaped: was it the writer? Then another one is started. */
bool launch_logs_on_exit(struct launch_logs *, pid_t pid);
/* Lets go of the pipes: the writer ends when it has written what is in them. NULL is fine. */
void launch_logs_free(struct launch_logs *);

/* Deletes what an earlier job has left behind a log. By a process that has become the user. */
void launch_log_drop_older(const struct launch_start *, uint32_t rank);
/* Opens a rank's log, or the older one behind it, if it is a regular file: opening a FIFO would wait for its other
 * end. By a process that has become the user. NULL, or why not. */
const char *launch_log_open(const struct launch_start *, uint32_t rank, bool older, int flags, int *out);

#endif
