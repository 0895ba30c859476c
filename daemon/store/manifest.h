/* SPDX-License-Identifier: Apache-2.0 */
/* manifest.json: what a checkpoint holds and of which job it is. docs/protocol.md, "Checkpoint", has the keys.
 *
 * A checkpoint is what its manifest says: it is written last, and files that no manifest names mean nothing. Integers
 * above 2^63 - 1 are written as "0x..", numbers that are not finite as "nan", "inf", "-inf". Any thread, no I/O.
 */
#ifndef GACC_STORE_MANIFEST_H
#define GACC_STORE_MANIFEST_H

#include "proto/status.h"
#include "store/sha256.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A manifest has the lowest version whose readers understand it: 2 has updates, 3 an open window of several parts, 4
 * the optimizer state in shares, 5 the trainers' own states. */
#define MANIFEST_VERSION 5
#define MANIFEST_MAX_BYTES (UINT64_C(256) << 20) /* a million tensors with names of 150 bytes */
#define MANIFEST_MAX_VALUES 64
#define MANIFEST_MAX_UPDATES 65
#define MANIFEST_MAX_CHANGES 8
#define MANIFEST_MAX_PARTS 16

enum checkpoint_part {
	CHECKPOINT_MODEL,     /* the parameters, by the tensors' names, in their dtype */
	CHECKPOINT_OPTIMIZER, /* f32: NAME.master, NAME.exp_avg, NAME.exp_avg_sq, NAME.momentum_buffer */
	CHECKPOINT_CARRY,     /* inside a window: the sum so far, by the tensors' names */
	CHECKPOINT_WINDOW,    /* inside a window: who is in that sum */
	CHECKPOINT_PARTS
};
const char *checkpoint_part_name(enum checkpoint_part); /* "model.safetensors" */

#define CHECKPOINT_STATES_NAME "states.safetensors" /* store/checkpoint_states.h */

#define CHECKPOINT_FILE_NAME 48
/* The same, but for the files that each of several parts has of its own: "carry-00001-of-00004.safetensors" is part
 * 0's. There is no such MODEL. */
void checkpoint_file_name(char out[CHECKPOINT_FILE_NAME], enum checkpoint_part, uint32_t part, uint32_t n_parts);
/* True for the name of a file by part. */
bool checkpoint_is_of_part(const char *name);

/* bytes 0: the checkpoint has no such file. */
struct checkpoint_file {
	uint64_t bytes;
	uint8_t sha256[SHA256_BYTES];
};

/* A number with a name, of the last window's outcome or of an update. */
struct manifest_value {
	const char *name;
	bool is_real;
	uint64_t whole;
	double real;
};

/* Values that operators have set, from a window on. */
struct manifest_update {
	uint64_t window;
	struct manifest_value to[MANIFEST_MAX_CHANGES];
	size_t n;
};

/* The sum of an open window. */
struct manifest_carry {
	uint64_t count;
	double sum_weight, sum_loss;
	uint32_t last_rank; /* the job's number, as is lr_rank */
	double lr;	    /* that its pushes gave it; 0: the schedule's */
	uint32_t lr_rank;
};

/* What one of several parts has of it. */
struct manifest_part {
	struct manifest_carry carry;
	struct checkpoint_file file[CHECKPOINT_PARTS]; /* CARRY and WINDOW; OPTIMIZER of a share; no MODEL */
};

struct manifest {
	uint64_t id; /* of the checkpoint in its job */
	uint64_t job;
	uint8_t uuid[16]; /* of the job */
	const char *name; /* of the job */
	uint32_t uid;	  /* of its owner */
	int64_t created_unix_ns;
	uint64_t window; /* that was open */
	uint64_t applied_step;
	bool inside_window; /* there is a carry */
	uint32_t ranks, micro_size;
	const char *optimizer, *accumulate_dtype;
	double loss_scale;
	uint64_t params_digest;
	struct manifest_carry carry; /* of the open window; of all parts together */
	/* inside a window of a job of several parts, whose files CARRY and WINDOW are here; else 0 */
	uint32_t n_parts;
	/* of a sharded job: its parts, each of which may have the OPTIMIZER of its share here; else 0. Both
	   numbers are the same where neither is 0 */
	uint32_t n_shares;
	struct manifest_part part[MANIFEST_MAX_PARTS];
	/* the last outcome; none before the first */
	struct manifest_value last[MANIFEST_MAX_VALUES];
	size_t n_last;
	struct manifest_update update[MANIFEST_MAX_UPDATES];
	size_t n_updates;
	const void *spec; /* packed gacc.v1.JobSpec, with the tensor set */
	size_t n_spec;
	struct checkpoint_file file[CHECKPOINT_PARTS];
	struct checkpoint_file states; /* the trainers' own */
	uint32_t n_states;	       /* ranks that have one in it; 0: there is no such file */
};

/* How many parts have files of their own in it: 0 or at least 2. */
static inline uint32_t manifest_by_part(const struct manifest *m)
{
	return m->n_shares ? m->n_shares : m->n_parts;
}

/* The i-th file that it can have, from 0, and its name; NULL: there are no more. Its bytes are 0 where it has not. */
const struct checkpoint_file *manifest_file(const struct manifest *, uint32_t i, char name[CHECKPOINT_FILE_NAME]);

/* The text, for free(). ST_NO_MEMORY, ST_INVALID_ARGUMENT (a name that is no UTF-8). */
enum status manifest_encode(const struct manifest *, char **out, size_t *out_n);
/* Judges a text of any origin. `path` begins every sentence in `why`, which names the key. *out owns what it points to.
 * ST_MALFORMED, ST_VERSION_SKEW, ST_NO_MEMORY. */
enum status manifest_decode(const char *path, const char *text, size_t n, struct manifest **out, char *why,
			    size_t n_why);
void manifest_free(struct manifest *); /* of manifest_decode; NULL is fine */

#endif
