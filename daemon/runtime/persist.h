/* SPDX-License-Identifier: Apache-2.0 */
/* The journal's thread: records queue up on the loop, a pool thread makes them durable, callbacks run on the loop.
 *
 * At most one batch is under way; what queues up meanwhile becomes the next one, so that many jobs share one fsync.
 * Records are copied. Callbacks come in the order of the calls. Reads take their turn between the batches, one at a
 * time.
 */
#ifndef GACC_RUNTIME_PERSIST_H
#define GACC_RUNTIME_PERSIST_H

#include "base/shared.h"
#include "store/journal.h"

struct persist;

/* `loop` is a uv_loop_t; the journal is borrowed. `term` guards every record. */
enum status persist_new(void *loop, struct journal *, uint64_t term, struct persist **out);
/* Callbacks no longer come, but for those of reads; arguments that were given away are freed; records are still
 * written. Takes NULL. */
void persist_mute(struct persist *);
/* Mutes it, and writes what is queued. Blocks. */
void persist_free(struct persist *);

/* ST_NO_MEMORY at once (cb is not called), else cb(arg, outcome) later on the loop; cb may be NULL. */
enum status persist_put(struct persist *, const struct journal_record *, void (*cb)(void *arg, enum status), void *arg);
/* The same for a record whose bytes are those of `bytes`, which is held instead of copied. */
enum status persist_put_shared(struct persist *, const struct journal_record *, struct shared *bytes,
			       void (*cb)(void *arg, enum status), void *arg);
/* persist_put, and arg, malloc'ed, is given away: it is freed when cb has returned, or when it will not be called. */
enum status persist_put_own(struct persist *, const struct journal_record *, void (*cb)(void *arg, enum status),
			    void *arg);

/* To be called several times a second: about a second after a batch, what is noted outside the journal becomes durable,
 * too. */
void persist_tick(struct persist *);

/* Embedded in the caller's own; lives until `done`. */
struct persist_read {
	struct persist_read *next;
	/* on a pool thread, when all that was put before is written */
	void (*read)(struct persist_read *, struct journal *);
	void (*done)(struct persist_read *, bool muted); /* on the loop; muted: nobody waits any more */
};
void persist_read(struct persist *, struct persist_read *);

#endif
