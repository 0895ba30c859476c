/* SPDX-License-Identifier: Apache-2.0 */
/* What a job's checkpoints need of the disk besides the engine's writing: the pool does it, one call back on the loop.
 * For the checkpoints of the edge.
 */
#ifndef GACC_RUNTIME_SAVING_DISK_H
#define GACC_RUNTIME_SAVING_DISK_H

#include "base/shared.h"
#include "rpc/pool.h"
#include "store/checkpoint_states.h"

enum disk_kind { DISK_SWEEP, DISK_SEAL, DISK_PRUNE, DISK_DISCARD };

/* Zeroed, then filled in by who starts it. Freed when `done` has returned. */
struct disk_work {
	struct rpc_work work;
	void (*done)(struct disk_work *);
	void *arg;
	enum disk_kind kind;
	uint8_t uuid[16];
	uint32_t uid; /* of the submitter */
	/* SWEEP: the directory as asked for; where others than gaccd's user may go */
	char wanted[CHECKPOINT_MAX_PATH];
	const char *state_dir, *allowed;
	/* SWEEP: found. SEAL, PRUNE, DISCARD: where */
	char dir[CHECKPOINT_MAX_PATH];
	char partial[CHECKPOINT_MAX_PATH], final[CHECKPOINT_MAX_PATH];
	/* SEAL */
	struct checkpoint_dir made[MANIFEST_MAX_PARTS]; /* what the engines of the parts have written into */
	uint32_t n_made;
	struct manifest manifest; /* the trainers' states come from below */
	struct states_of_part states[MANIFEST_MAX_PARTS];
	uint32_t n_states;	/* parts that may have some */
	void *spec;		/* owned; of manifest.n_spec bytes */
	struct shared *tensors; /* held: what belongs behind it; NULL: nothing */
	/* PRUNE: owned; oldest first */
	char **path;
	uint64_t *id;
	size_t n;
	/* what came of it */
	enum status status;
	char why[320];
	uint64_t last_id;	      /* SWEEP */
	uint8_t sha256[SHA256_BYTES]; /* SEAL */
	size_t n_done;		      /* PRUNE */
};

struct disk_work *disk_new(enum disk_kind, void (*done)(struct disk_work *), void *arg); /* NULL: no memory */
void disk_start(struct rpc_pool *, struct disk_work *);					 /* for w->uid's turn */
void disk_free(struct disk_work *); /* of one that was not started; NULL is fine */

/* Where somebody's checkpoints may lie: his own user's gaccd goes anywhere, others beneath state_dir/checkpoints or one
 * of `allowed` (colon-separated). By the text alone, then by the place that it leads to (in the pool). */
bool disk_text_allowed(const char *state_dir, const char *allowed, uint32_t uid, const char *path);
bool disk_place_allowed(const char *state_dir, const char *allowed, uint32_t uid, const char *resolved);
/* May this user read a checkpoint with files of this owner? Their own files, and those that gaccd has written for a job
 * of theirs. */
bool disk_may_read(uint32_t uid, uint32_t owner, const struct manifest *);

#endif
