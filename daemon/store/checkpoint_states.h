/* SPDX-License-Identifier: Apache-2.0 */
/* The trainers' own states in a checkpoint: states.safetensors, in which the array "rank.R" (u8) has the bytes of rank
 * R. What they mean only the trainers know.
 *
 * Calls block; any thread. The function that fails says why in one sentence that names the file.
 */
#ifndef GACC_STORE_CHECKPOINT_STATES_H
#define GACC_STORE_CHECKPOINT_STATES_H

#include "store/checkpoint.h"

#define TRAINER_STATE_MAX ((size_t)4 << 20)   /* bytes of one rank's */
#define TRAINER_STATES_MAX ((size_t)64 << 20) /* of all ranks' of a job together */

struct trainer_state {
	uint32_t rank;
	size_t n; /* bytes, at least one */
	const void *data;
};

/* Writes the file into the directory `made` of a checkpoint under way, beside what its engine has written; on the disk
 * when it returns ST_OK. States come in the order of ranks. ST_IO_ERROR: `path` is another directory by now, or the
 * file could not be written; ST_NO_MEMORY. */
enum status checkpoint_write_states(const char *path, const struct checkpoint_dir *made, const struct trainer_state *,
				    uint32_t n, struct checkpoint_file *out, char *why, size_t n_why);

/* What one part of the job has written of them, in its directory (checkpoint_part_path). */
struct states_of_part {
	uint32_t n; /* ranks; 0: there is no such file */
	struct checkpoint_file file;
	bool has_dir; /* it has made its directory */
};
/* Before the seal: puts the states of all parts into one file in `partial`, the directory `whole`, which is part 0's,
 * and sets n_states and states of *m, whose ranks must be set. The directories of the first n_gathered parts are left
 * to checkpoint_gather, the others, which have nothing else, are deleted. What a part has written is compared with what
 * it has told. ST_IO_ERROR, ST_CHECKSUM, ST_MALFORMED, ST_RESOURCE_EXHAUSTED: more than TRAINER_STATES_MAX;
 * ST_NO_MEMORY. */
enum status checkpoint_join_states(const char *partial, const struct checkpoint_dir *whole,
				   const struct states_of_part *, uint32_t n_parts, uint32_t n_gathered,
				   struct manifest *m, char *why, size_t n_why);

/* What a loaded checkpoint has of them. */
struct trainer_states {
	void *file; /* the whole of it */
	struct trainer_state *state;
	uint32_t n;
};
/* Reads the file of a checkpoint in `path`, whose manifest and owner checkpoint_load has given; its bytes are compared
 * with the manifest's sum. *out is empty where the checkpoint has none. ST_INVALID_ARGUMENT, ST_IO_ERROR, ST_CHECKSUM,
 * ST_MALFORMED, ST_NO_MEMORY. */
enum status checkpoint_read_states(const char *path, const struct manifest *, uint32_t owner,
				   struct trainer_states *out, char *why, size_t n_why);
/* What the file in this directory has; 0: there is none. */
uint64_t checkpoint_states_bytes(const char *path);
void trainer_states_fini(struct trainer_states *); /* of a zeroed one, too */

#endif
