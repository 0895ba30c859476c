/* SPDX-License-Identifier: Apache-2.0 */
/* Whether nodes may have parts of one job. Pure; any thread.
 *
 * | node of part 0, node of another part               | they are    |
 * |----------------------------------------------------|-------------|
 * | other `coll`: their engines do not speak alike     | not alike   |
 * | other `kernels_revision`: same sums, other bits    | not alike   |
 * | only one `data_address` is on loopback: it cannot | not alike   |
 * | be reached from the other node                     |             |
 * | other `kernels` (instruction set), version, CPUs   | alike       |
 */
#ifndef GACC_CONTROL_ALIKE_H
#define GACC_CONTROL_ALIKE_H

#include <stdbool.h>
#include <stddef.h>

struct member_facts;

/* `first`: of the node of part 0; `other`: of that of another part of the job. Else `why` names both nodes and what
 * they have: "node b has gloo/1 between engines, and node a, which has part 0, gloo/2: upgrade the older". */
bool nodes_alike(const struct member_facts *first, const struct member_facts *other, char *why, size_t n_why);

/* The third row alone: what waiting does not mend, so that Submit refuses it. */
bool nodes_reach(const struct member_facts *first, const struct member_facts *other, char *why, size_t n_why);

#endif
