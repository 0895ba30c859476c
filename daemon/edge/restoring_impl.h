/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint that is being read for a restore: shared by restoring.c (loop thread) and restoring_read.c (in
 * the pool) only. */
#ifndef GACC_EDGE_RESTORING_IMPL_H
#define GACC_EDGE_RESTORING_IMPL_H

#include "cluster/job_records.h"
#include "edge/restoring.h"
#include "rpc/pool.h"
#include "runtime/manifest_updates.h"
#include "store/checkpoint.h"

struct reading {
	struct rpc_work work;
	struct hosted *h;
	char wanted[CHECKPOINT_MAX_PATH], path[CHECKPOINT_MAX_PATH];
	const char *state_dir, *allowed;
	uint32_t uid, owner; /* of the submitter; of the files */
	struct manifest *m;
	struct job_spec was;   /* of the checkpoint's job */
	struct shared *known;  /* the job's tensors, packed, held; NULL: its specification has them, or nobody */
	struct tensor_set set; /* the checkpoint's, matched with the job's rules */
	void *packed;	       /* the set, for journal and node, if the job had none */
	size_t n_packed;
	struct restored base; /* what the journal keeps of it */
	enum status status;
	char why[320];
	const char *other_sum; /* what makes the job's sum another than the checkpoint's; NULL: nothing */
	bool was_dynamic;      /* the checkpoint's loss scale was adapted */
	bool same_ranges;      /* of the update */
	bool same_frozen;
};

/* In the pool; w is a struct reading in which h, wanted, uid, state_dir, allowed and known are set. Leaves status, why
 * and what was read. */
void restoring_read(struct rpc_work *w);

#endif
