/* SPDX-License-Identifier: Apache-2.0 */
/* The work of a job whose result tells of every micro-batch that was lost, doubled or mixed up, whatever was broken
 * around it.
 *
 * Tensors: `ledger` has one element for each micro-batch of the whole job; number g = (window * micro_size + micro) *
 * ranks + rank has a gradient of 1 there and of 0 elsewhere. With SGD, learning rate 1, reduction sum and no momentum
 * the element ends as minus g's weight: 0 is a loss, twice the weight is a micro-batch that counted twice. `body` is
 * the training proper: its gradient depends on the parameters, so that an error anywhere spreads. Everything follows
 * from (window, micro, rank) and the parameters, so that a run with faults ends in the bits of one without. No state;
 * any thread.
 */
#ifndef TESTS_SUPPORT_WORK_H
#define TESTS_SUPPORT_WORK_H

#include <gacc/gacc.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct work {
	uint64_t micro_size, ranks;
	size_t n_ledger, n_body; /* elements, f32 */
};

/* For jobs of so many windows. */
struct work work_of(uint64_t steps, uint64_t micro_size, uint64_t ranks, size_t n_body);
/* The micro-batch's number. */
uint64_t work_number(const struct work *, const gacc_position *at, int rank);
/* A multiple of 1/4 in [0.5, 3.25]: sums of these are exact. */
double work_weight(const gacc_position *at, int rank);
/* The parameters that a job begins with: n_ledger and n_body values. */
void work_initial(const struct work *, float *ledger, float *body);
/* The gradient of number g where `body` has the values `params`; a g beyond the ledger has no element there. */
void work_gradient(const struct work *, uint64_t g, const float *params, float *out_ledger, float *out_body);
/* Registers the tensors, gives these values (NULL: another rank does) if the job wants any, and waits until it runs. */
gacc_status work_enter(const struct work *, gacc_job *, const float *ledger, const float *body, gacc_position *out);
/* Writes a file as a whole or not at all, whenever the process is killed. False: it could not. */
bool work_write(const char *path, const struct iovec *part, int n);

#endif
