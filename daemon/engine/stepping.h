/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranges of the arena a step updates, and with which scalars: the same on the host and on a device.
 *
 * A range is left out when its parameter group is frozen, or when the job has untouched: skip and the window has no
 * gradient of its tensor. Of such a job each tensor has ranges of its own, and the scalars of its own step. Main
 * thread; while an update runs its workers read.
 */
#ifndef GACC_ENGINE_STEPPING_H
#define GACC_ENGINE_STEPPING_H

#include "engine/touched.h"

struct stepping {
	const struct plan *plan;
	struct touched touched;
	uint64_t *tensor;	       /* [n_ranges], of a job that skips: whose each range is; else NULL */
	bool *left_out;		       /* [n_ranges], of the step at hand */
	struct kernel_update *scalars; /* [n_scalars], of the step at hand */
	uint64_t n_scalars;	       /* one for each parameter group, or, of a job that skips, for each range */
};

/* Plan and page are borrowed. ST_NO_MEMORY. */
enum status stepping_init(struct stepping *, const struct plan *, const struct control_page *);
void stepping_fini(struct stepping *); /* zeroed is fine */

/* The step of record r (commit_*). */
void stepping_begin(struct stepping *, const struct control_record *r);
/* Which of the scalars are a range's. */
static inline uint64_t stepping_row(const struct stepping *s, uint64_t range)
{
	return s->tensor ? range : plan_ranges(s->plan)[range].optim_group;
}
/* LAMB's second phase: lr times the group's scale times the trust ratio. */
float stepping_lr(const struct stepping *, uint64_t range, double lr, double trust);
/* LAMB's trust ratio; 1 of what is left out. */
double stepping_trust(const struct stepping *, uint64_t range, double param_sumsq, double direction_sumsq);

#endif
