/* SPDX-License-Identifier: Apache-2.0 */
/* What operators look back at: the windows of jobs with their micro-batches, and events. Kept in one SQLite file.
 *
 * Nothing depends on it. What was written last may be missing after a power loss, but what is there is whole. A damaged
 * file is moved aside (`PATH.damaged`, one is kept) and a new one is begun, by the call that notices. When the disk is
 * full, or cannot be written, calls fail with ST_STORE_FAILED until it can be again; the first failure is logged, and
 * that it works again.
 *
 * Calls block (disk); they never run two at once on one history.
 */
#ifndef GACC_STORE_HISTORY_H
#define GACC_STORE_HISTORY_H

#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* of micro-batches per job: the oldest windows lose theirs */
#define HISTORY_MICRO_BYTES (64u << 20)

/* Of the thinned series of a whole job: at most so many windows, the first among them, evenly spaced but for that. When
 * there would be more, every other one goes. */
#define HISTORY_WHOLE 512

#define HISTORY_SCALAR_NAME 64 /* bytes, with the NUL */
#define HISTORY_SCALARS 128    /* of a window: the others are not written */

struct history;

/* What is older goes, in batches, but for the thinned series: there may be an eighth more for a while. */
struct history_limits {
	uint64_t windows; /* per job */
	uint64_t events;  /* per job, and of the node */
};

/* One micro-batch; the file has them as they are here. */
struct history_micro {
	uint32_t rank, micro;
	uint32_t voided; /* 1: not in the sum */
	uint32_t reserved;
	double weight, loss;
	int64_t unix_ns; /* when it was pushed */
	int64_t lag_ns;	 /* after the first push of its index by any rank */
	uint64_t data_key;
};

/* A value that a rank has logged. Of one name and window the lowest rank's is kept, and of that the last. */
struct history_scalar {
	uint64_t job, window;
	double value; /* any */
	uint32_t rank;
	char name[HISTORY_SCALAR_NAME];
};

struct history_window {
	uint64_t job, window;
	int64_t unix_ns;
	const void *result; /* the caller's; not empty */
	size_t n_result;
	const struct history_micro *micro;
	uint64_t n_micros;		     /* 0: not known */
	const struct history_scalar *scalar; /* when it is read; by name */
	size_t n_scalars;
	bool if_missing; /* does not replace what is there of this window */
};

struct history_event {
	uint64_t id;  /* ascending, by the caller */
	uint64_t job; /* 0: the node */
	uint32_t uid; /* of the job's owner */
	int64_t unix_ns;
	bool warning;
	const char *reason, *object, *message;
	uint64_t window;
};

/* Opens or creates the file (mode 0600). Only ST_NO_MEMORY is an error: a file that cannot be had now is tried again by
 * every call below, which return ST_STORE_FAILED until then. */
enum status history_open(const char *path, const struct history_limits *, struct history **out);
void history_close(struct history *);

/* Writes all, or nothing: ST_STORE_FAILED. */
enum status history_write(struct history *, const struct history_window *, size_t n_windows,
			  const struct history_event *, size_t n_events);

/* The same for scalars, also of windows that are not there yet; they go with their windows. */
enum status history_write_scalars(struct history *, const struct history_scalar *, size_t n);

/* Calls `fn` for the windows of a job below `before` (0: all), newest first, at most `limit`; stops at the first status
 * other than ST_OK and returns it. Pointers live until `fn` returns, which must not call the history. Without `micros`,
 * n_micros is 0. */
enum status history_each_window(struct history *, uint64_t job, uint64_t before, uint64_t limit, bool micros,
				enum status (*fn)(void *arg, const struct history_window *), void *arg);

/* The same for the thinned series and the newest window. Windows of the series have lost their micro-batches, unless
 * they are among the newest. */
enum status history_each_of_whole(struct history *, uint64_t job, uint64_t before, uint64_t limit,
				  enum status (*fn)(void *arg, const struct history_window *), void *arg);

/* Nothing of this job is kept any more. ST_STORE_FAILED: it is still there; history_forget_others of a later start
 * takes it. */
enum status history_forget(struct history *, uint64_t job);
/* The same for all jobs but these; ascending. */
enum status history_forget_others(struct history *, const uint64_t *job, size_t n);

struct history_query {
	bool of_job; /* only of `job` */
	uint64_t job;
	bool of_user; /* only of jobs of `uid`, and the node's */
	uint32_t uid;
	uint64_t after_id, limit;
};
/* The same for events, oldest first. */
enum status history_each_event(struct history *, const struct history_query *,
			       enum status (*fn)(void *arg, const struct history_event *), void *arg);
/* The same for the last n of a job. */
enum status history_last_events(struct history *, uint64_t job, uint64_t n,
				enum status (*fn)(void *arg, const struct history_event *), void *arg);

#endif
