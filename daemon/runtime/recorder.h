/* SPDX-License-Identifier: Apache-2.0 */
/* The history's thread: windows and events queue up on the loop, a pool thread writes them, and reads for whoever looks
 * back.
 *
 * Nothing of a job ever waits for it. One batch is under way at most; events ask for the next at once, windows come
 * with the next recorder_flush, which the daemon's tick calls. When more than RECORDER_MAX_BYTES wait, the user of whom
 * most waits loses some: first the oldest windows their micro-batches, then the oldest of all goes, and one warning
 * names the user and counts them. Nobody loses anything as long as others have more. What cannot be written is lost,
 * and the history says why. Loop thread.
 */
#ifndef GACC_RUNTIME_RECORDER_H
#define GACC_RUNTIME_RECORDER_H

#include "store/history.h"

#define RECORDER_MAX_BYTES (16u << 20)
#define RECORDER_USER_SCALARS 4096 /* of a user's jobs: about 1.2 MiB */

struct recorder;

/* `loop` is a uv_loop_t; the history is borrowed. ST_NO_MEMORY. */
enum status recorder_new(void *loop, struct history *, struct recorder **out);
/* What is queued is written first, what wants to read is done. Blocks. */
void recorder_free(struct recorder *);

/* Copies the window but for its micro-batches: w->micro is malloc'ed and taken. Without memory the window is lost.
 * `uid`, here and below: whose job it is. */
void recorder_put_window(struct recorder *, uint32_t uid, const struct history_window *w, struct history_micro *take);
void recorder_put_event(struct recorder *, const struct history_event *); /* copied */
/* How many scalars of this user's jobs may be put before the next batch. */
size_t recorder_scalars_room(const struct recorder *, uint32_t uid);
void recorder_put_scalar(struct recorder *, uint32_t uid, const struct history_scalar *); /* copied; like a window */
/* Nothing is put of this job any more. */
void recorder_forget(struct recorder *, uint32_t uid, uint64_t job);
void recorder_flush(struct recorder *);

/* Embedded in the caller's own; lives until `done`. */
struct recorder_read {
	struct recorder_read *next;
	/* On a pool thread, when all that was put before is written. */
	void (*read)(struct recorder_read *, struct history *);
	void (*done)(struct recorder_read *); /* on the loop */
};
void recorder_read(struct recorder *, struct recorder_read *);

#endif
