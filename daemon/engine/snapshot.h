/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints out of an engine that goes on working, and back into a new one.
 *
 * snapshot_begin takes the record as it stands and starts a thread that writes parameters, master, optimizer state and,
 * inside a window, the sum so far, straight from the arenas. They are cut into chunks; each is read by the
 * thread once. Before the engine writes into memory that is in the snapshot, arith_before_write calls snapshot_protect,
 * which copies the chunks that the thread has not come to: so training waits for copies, never for the disk, unless
 * there is no memory to copy to. Chunks of far memory (arith->is_far) are copied aside at once, where there is room, so
 * that little is left for an update to wait for. A chunk:
 *
 *   PENDING -> TAKEN   the thread (or a worker, in snapshot_protect) copies it; takes microseconds
 *   TAKEN -> DONE      the thread has it
 *   TAKEN -> STAGED    it is in private memory, where the thread will find it
 *
 * What the files hold is therefore the state at snapshot_begin, whatever happens meanwhile. Main thread; the writer's
 * thread is inside. An engine that dies leaves a directory that nobody will rename: gaccd sweeps it.
 */
#ifndef GACC_ENGINE_SNAPSHOT_H
#define GACC_ENGINE_SNAPSHOT_H

#include "engine/arith.h"
#include "engine/channel.h"
#include "engine/memory.h"
#include "engine/workers.h"

#define SNAPSHOT_CHUNK (1u << 20) /* bytes */

struct snapshot;

struct snapshot_what {
	bool model;
	bool state;  /* of the optimizer, with the masters: what this part has of it */
	bool window; /* the sum of the open window, and who is in it; of a window without a sum, nothing */
};
#define SNAPSHOT_STATE ((struct snapshot_what){ true, true, false })
#define SNAPSHOT_ALL ((struct snapshot_what){ true, true, true })

/* All borrowed until snapshot_free. Of the memory only plan and control page are used. `available` says how many bytes
 * of memory can be had now (segment_memory_available); any thread. ST_NO_MEMORY, ST_IO_ERROR. */
enum status snapshot_new(struct snapshot **out, const struct memory *, struct arith *, struct workers *,
			 uint64_t (*available)(void));
void snapshot_free(struct snapshot *); /* stops a writer; NULL is fine */

/* Starts writing into the directory `path`, which is made and must not exist. ST_SLOT_BUSY: one is under way. */
enum status snapshot_begin(struct snapshot *, const struct control_state *, const char *path, struct snapshot_what,
			   char *why, size_t n_why);
/* Readable when the files are complete or have failed. */
int snapshot_fd(const struct snapshot *);
/* Ends what is complete or failed: ST_OK with the files, or why not (then nothing is left of them). ST_NOT_READY: still
 * being written, or none was begun. */
enum status snapshot_end(struct snapshot *, struct engine_file out[ENGINE_FILES], struct engine_dir *out_dir, char *why,
			 size_t n_why);
/* This memory is about to be written: from here on it is private to the engine again. Cheap when no snapshot needs it.
 */
void snapshot_protect(struct snapshot *, enum segment_role);

/* Reads the checkpoint at `path` into the arenas and judges every byte: names, shapes, dtypes, sizes and sums must be
 * the plan's and the ones in `r`. On ST_OK *s is the record of its window, sessions as they were; else parameters and
 * state hold anything, and it may be tried again. ST_MALFORMED, ST_CHECKSUM, ST_IO_ERROR, ST_INVALID_ARGUMENT. */
enum status snapshot_restore(const struct memory *, struct arith *, const struct engine_restore *r, const char *path,
			     struct control_state *s, char *why, size_t n_why);

#endif
