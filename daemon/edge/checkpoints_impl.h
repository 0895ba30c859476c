/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of a hosted job's checkpoints: shared by checkpoints.c, checkpoints_disk.c and checkpoints_list.c alone. Loop
 * thread. */
#ifndef GACC_EDGE_CHECKPOINTS_IMPL_H
#define GACC_EDGE_CHECKPOINTS_IMPL_H

#include "control/save_answers.h"
#include "control/saver.h"
#include "control/updates.h"
#include "edge/checkpoints.h"
#include "store/checkpoint.h"

struct saving_call {
	uint64_t call;
	uint8_t request_id[16];
	bool wait;
};

struct saving {
	struct saver saver;
	char dir[CHECKPOINT_MAX_PATH]; /* "": not known, nothing can be saved there */
	uint32_t n_working;	       /* of the pool */
	struct save asked;	       /* of the parts; number 0: nobody is waited for, or nothing was asked for */
	struct save_answers answers;   /* of the parts */
	uint64_t n_asked;	       /* how often, since this gaccd's start */
	int64_t sent_ns;	       /* when it was asked last */
	bool have_last;
	struct commit last; /* the newest outcome that the parts have */
	bool have_before;
	struct commit before;		  /* the outcome before the window of the checkpoint under way */
	uint64_t save_bytes, carry_bytes; /* what one takes on a disk, as part 0's node says; 0: it has not said */
	uint64_t share_bytes[PART_MAX];	  /* and the share of each other part, of a sharded job */
	struct update update[UPDATES_MAX_PENDING + 1]; /* what its values are besides the spec's */
	uint32_t n_updates;
	uint32_t n_states;		 /* of trainers, in the one that is sealed */
	char final[CHECKPOINT_MAX_PATH]; /* of the one that is sealed */
	uint8_t sha256[SHA256_BYTES];
	bool refused; /* the one under way; on_refused follows */
	bool end_held;
	enum status end;
	char end_reason[256];
	struct saving_call *call;
	size_t n_calls;
	uint32_t calls_capacity;
};

/* checkpoints_list.c */
/* Why the checkpoint under way fails, for people. The saver is told by the caller. */
void saving_set_why(struct hosted *, const char *why);
/* The checkpoint has begun, or, `over`, has ended: answers the calls that wait for that. */
void saving_answer_calls(struct hosted *, const struct saved *, bool over);

/* checkpoints_disk.c: ports of the saver; ctx is the hosted. Each is answered by the saver_on_* of its name. */
void saving_sweep(void *ctx);
void saving_seal(void *ctx, const struct save_want *);
void saving_prune(void *ctx);
void saving_discard(void *ctx);

#endif
