/* SPDX-License-Identifier: Apache-2.0 */
/* The history's thread: windows and events queue up on the loop, a pool thread writes them, and reads for whoever looks
 * back.
 *
 * Nothing of a job ever waits for it. One batch is under way at most; events ask for the next at once, windows come
 * with the next recorder_flush, which the daemon's tick calls. When more than RECORDER_MAX_BYTES wait, the oldest
 * windows lose their micro-batches, then the oldest of all goes, and one warning counts them. What cannot be written is
 * lost, and the history says why. Loop thread.
 */
#ifndef GACC_RUNTIME_RECORDER_H
#define GACC_RUNTIME_RECORDER_H

#include "store/history.h"

#define RECORDER_MAX_BYTES (16u << 20)

struct recorder;

/* `loop` is a uv_loop_t; the history is borrowed. ST_NO_MEMORY. */
enum status recorder_new(void *loop, struct history *, struct recorder **out);
/* What is queued is written first, what wants to read is done. Blocks. */
void recorder_free(struct recorder *);

/* Copies the window but for its micro-batches: w->micro is malloc'ed and taken. Without memory the window is lost. */
void recorder_put_window(struct recorder *, const struct history_window *w, struct history_micro *take);
void recorder_put_event(struct recorder *, const struct history_event *); /* copied */
void recorder_forget(struct recorder *, uint64_t job);			  /* of which nothing is put any more */
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
