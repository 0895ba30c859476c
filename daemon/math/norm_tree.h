/* SPDX-License-Identifier: Apache-2.0 */
/* The tree of kernel_sum, when several parts have its leaves: the sum over all blocks with the bits that one owner of
 * all of them would get.
 *
 * kernel_sum adds runs of at most 8 blocks from left to right, and splits longer ones at the largest power of two below
 * their length. A part that has the blocks [from, to) of n takes the sum of each largest subtree that is wholly its
 * own, in ascending order; norm_tree_join walks the same tree and takes a part's sum wherever it meets one of these
 * subtrees. Parts begin at multiples of 8 blocks, so no run is cut. Pure, no state, no allocation; any thread.
 */
#ifndef GACC_MATH_NORM_TREE_H
#define GACC_MATH_NORM_TREE_H

#include <stdbool.h>
#include <stdint.h>

#define NORM_TREE_ALIGN 8 /* blocks */
/* Sums of one part: two for each level of a tree of 2^38 blocks (2^48 elements), of which the runs are no levels. */
#define NORM_TREE_MAX 72

struct norm_tree {
	uint64_t from, to, of; /* blocks */
	uint32_t n, reserved;
	double sum[NORM_TREE_MAX];
};

/* sumsq: of the blocks [from, to), to - from values. from is a multiple of NORM_TREE_ALIGN, to is one or `of`, which is
 * at most 2^38. An empty part has no sums. */
void norm_tree_take(const double *sumsq, uint64_t from, uint64_t to, uint64_t of, struct norm_tree *out);
/* The sum over all blocks. false: the n trees, in the order of their parts, are not one whole; *out is untouched then.
 */
bool norm_tree_join(const struct norm_tree *const *tree, uint32_t n, double *out);

#endif
