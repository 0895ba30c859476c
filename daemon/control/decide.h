/* SPDX-License-Identifier: Apache-2.0 */
/* The outcome of a closed window: pure numbers. docs/gradient.md has the formulas. */
#ifndef GACC_CONTROL_DECIDE_H
#define GACC_CONTROL_DECIDE_H

#include "control/messages.h"
#include "control/updates.h"

/* A closed window: the sums of its nodes. */
struct window_sums {
	uint64_t window, count, voided, expected; /* expected: ranks * micro_size */
	double sum_weight, sum_loss, sumsq;
	double lr; /* given by the pushes; 0: the schedule's */
	uint64_t nonfinite, digest;
};

/* What the decision builds on besides: the values that hold in this window, and what earlier commits have left. */
struct window_base {
	uint64_t applied_step;
	struct values values;
	struct carry carry;
};

/* The state before the first window. */
struct carry carry_first(const struct job_spec *);
/* Fills the outcome, its numbers and `next` of *out; everything else of *out stays. */
void commit_decide(const struct job_spec *, const struct window_sums *, const struct window_base *, struct commit *out);

#endif
