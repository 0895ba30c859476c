/* SPDX-License-Identifier: Apache-2.0 */
/* On which nodes the parts of a job lie: what `nodes` of a specification says. "a,b" names nodes in the order of the
 * parts, part i of D on node i * N / D of the N nodes; "a:4,b:4" says besides how many ranks each has, which must be
 * what the equal blocks give it. None: all parts are on the coordinator's node. All functions are pure.
 */
#ifndef GACC_CONTROL_SPEC_NODES_H
#define GACC_CONTROL_SPEC_NODES_H

#include "base/node_name.h"
#include "control/spec.h"

/* every name with its ranks, and commas */
#define SPEC_MAX_NODES_BYTES (SPEC_MAX_PARTS * (NODE_NAME_MAX + 8))

/* How many nodes are named; 0: `why` says what is wrong. "" has none, too. */
uint32_t spec_nodes_count(const char *nodes, char *why, size_t n_why);
/* Of a specification whose ranks and parts are checked. ST_INVALID_SPEC. */
enum status spec_nodes_check(const struct job_spec *, char *why, size_t n_why);

/* Of a specification that has been checked: the node of a part. false: the coordinator's, and `out` is "". */
bool spec_node_of(const struct job_spec *, uint32_t part, char out[NODE_NAME_MAX + 1]);
/* How many parts lie on this node; all of them where no nodes are named. */
uint32_t spec_parts_on(const struct job_spec *, const char *node);
/* Which of the parts on its node a part is, from 0 on. */
uint32_t spec_part_on_node(const struct job_spec *, uint32_t part);
/* Which ranks the parts on this node have, from *first on; 0: none. They are a block. */
uint32_t spec_ranks_on(const struct job_spec *, const char *node, uint32_t *first);

#endif
