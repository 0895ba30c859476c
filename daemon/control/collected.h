/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor set that ranks register in portions, because a message has room for some ten thousand tensors.
 *
 * Each rank gives the whole set from tensor 0 on. The first copy of a tensor is kept, whichever rank brings it, and
 * what comes for the same place later, from another rank or once more from the same, is compared with it. So the job
 * keeps one copy, and at any time what a rank has given is a prefix of that. Of each rank only the length of its prefix
 * is kept, for the session that gave it. When a rank ends its session, the tensors that no other rank has given as well
 * are dropped.
 *
 * Once the job has its tensor set, portions are compared with that, and nothing is kept but the prefixes.
 *
 * Pure. collected_take, collected_join and collected_trim are for any thread, while nobody else uses the object; the
 * rest takes time that depends on the number of ranks alone.
 */
#ifndef GACC_CONTROL_COLLECTED_H
#define GACC_CONTROL_COLLECTED_H

#include "control/tensor_set.h"

/* after the last portion that came, of whichever rank */
#define COLLECTED_KEEP_NS (INT64_C(600) * 1000000000)

struct portion {
	uint32_t rank;
	uint64_t generation; /* of the rank's session */
	uint64_t first, n;   /* tensors first .. first+n-1 */
	uint64_t total;	     /* of the whole set; > 0 */
};

/* Tensors that came in one portion. */
struct collected_block {
	uint64_t n;
	size_t bytes; /* of memory */
	struct tensor_spec *tensor;
	char *names;
};

struct collected_rank {
	uint32_t rank;
	uint64_t generation, received;
};

struct collected {
	uint64_t total; /* as the first portion said; 0: none has come */
	bool declared;	/* these are the job's tensors: the blocks have been given up */
	uint64_t n;	/* tensors in the blocks */
	size_t bytes;	/* of memory that the blocks take */
	struct collected_block *block;
	uint32_t n_blocks, blocks_capacity;
	struct collected_rank *rank; /* in no order */
	uint32_t n_ranks, ranks_capacity;
	int64_t last_ns; /* mono time of the last portion that came */
};

/* What this session has given. */
uint64_t collected_from(const struct collected *, uint32_t rank, uint64_t generation);

/* May the portion be taken now? `known`: the job's set, or NULL. INVALID_ARGUMENT: it is no part of any set;
 * LAYOUT_MISMATCH: other ranks have declared another number of tensors; OUT_OF_ORDER: a portion before it is missing.
 * `why` names what is expected. */
enum status collected_admit(const struct collected *, const struct portion *, const struct tensor_set *known, char *why,
			    size_t n_why);
/* Compares t with what is there, and keeps copies of the rest; linear in q->n. LAYOUT_MISMATCH with the first tensor
 * that differs, NO_MEMORY; then nothing has changed. To be called only with a portion that has been admitted. */
enum status collected_take(struct collected *, const struct portion *, const struct tensor_spec *t,
			   const struct tensor_set *known, char *why, size_t n_why);
/* The portion has been taken. NO_MEMORY: it has to come again. */
enum status collected_note(struct collected *, const struct portion *, int64_t now_ns);
/* Forgets what sessions have given that `current` does not know any more. collected_trim is to follow, with what this
 * returns. */
uint64_t collected_prune(struct collected *, bool (*current)(const void *ctx, uint32_t rank, uint64_t generation),
			 const void *ctx);
/* Drops all but the first n tensors. */
void collected_trim(struct collected *, uint64_t n);

/* All tensors behind each other in one block for free(), whose strings are these portions'; NULL: no memory. */
struct tensor_spec *collected_join(const struct collected *);
/* Nobody has given any, or not for a long time. */
bool collected_over(const struct collected *, int64_t now_ns);
void collected_fini(struct collected *); /* linear; leaves an empty one */

#endif
