/* SPDX-License-Identifier: Apache-2.0 */
/* Of a job with untouched: skip (plan->skip_untouched): which tensors the open window's sum has a gradient of, and how
 * many steps have left each tensor out.
 *
 * Both lie in the control segment behind the rest (control_page.h), twice each. A set belongs to a half of the
 * accumulators: it has the tensors of all micro-batches that are in that half, and is written before the record says
 * so, like the sum itself. Numbers of steps left out belong to an applied step, by whether it is odd.
 *
 *   event                                  set of a half                      numbers
 *   a pass from half x to half 1-x         1-x: that of x (none if the        -
 *                                          window has no sum yet), and the
 *                                          tensors of what it adds
 *   a pass is repeated, as a micro-batch   1-x: the same again, without it    -
 *   of it is not finite
 *   the sum over all parts goes from       1-x: those of all parts' halves x  -
 *   half x to half 1-x
 *   an update, step t (APPLYING)           read                               of t-1 are read
 *   the window after it opens              -                                  of t: those of t-1, and one more for
 *                                                                             each tensor that is not in the set
 *   a window ends without an update        -                                  -
 *   a checkpoint is read                   of half 0: from the file, or none  of its step: from the file, or 0
 *   death before the next record           written again from the same half   written again from the same numbers
 *
 * So what the record in force speaks of is never being written. A tied tensor (alias) stands for its target, and its
 * own bit and number say nothing. A tensor's own t is the number of steps that it took part in, as torch.optim counts
 * them: Adam's exponent, and whether momentum begins.
 *
 * Pure. The engine's main thread, touched_join the communication thread, while the window is closed.
 */
#ifndef GACC_ENGINE_TOUCHED_H
#define GACC_ENGINE_TOUCHED_H

#include "engine/control_page.h"
#include "engine/plan.h"

#include <stdbool.h>
#include <stdint.h>

struct touched {
	const struct plan *plan; /* NULL: the job steps all tensors */
	size_t n_bytes;		 /* of a set: bit i of byte i / 8 is tensor i; a multiple of 64 */
	unsigned char *set[2];	 /* of each half */
	uint64_t *left_out[2];	 /* [n_tensors]: after an even and after an odd number of applied steps */
};

/* Bytes of the control segment's data behind control_page_bytes. */
uint64_t touched_bytes(uint64_t n_tensors);
/* What a whole control segment needs: with them if the job skips. 0: more than can be addressed. */
uint64_t touched_control_bytes(uint32_t ranks, uint32_t max_micro_size, uint32_t threads, uint64_t n_tensors,
			       bool skips);
/* Of a plan that does not skip: plan is NULL, and nothing else may be called. Both are borrowed. */
struct touched touched_view(const struct plan *, const struct control_page *);

/* The half with the sum that an update reads; of a job without accumulators the one that stands for its slot. */
uint32_t touched_half(const struct plan *, const struct control_record *);
/* Half dst: that of src, unless `first`, and what n micro-batches have touched; a present of NULL is all tensors. dst
 * may be src only when first. */
void touched_add(const struct touched *, uint32_t dst, uint32_t src, bool first, const unsigned char *const *present,
		 uint32_t n);
/* Half dst: all that any of n_parts sets, one after the other in `sets`, has. */
void touched_join(const struct touched *, uint32_t dst, const unsigned char *sets, uint32_t n_parts);
/* Is it in the set? Tensors that are no alias. */
bool touched_has(const struct touched *, uint32_t half, uint64_t tensor);

/* The tensor's own number of the applied step `step`, which touches it. At least 1. */
uint64_t touched_step(const struct touched *, uint64_t step, uint64_t tensor);
/* The numbers of `step`, which was applied with the set of `half`. */
void touched_note(const struct touched *, uint64_t step, uint32_t half);

#endif
