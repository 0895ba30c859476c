/* SPDX-License-Identifier: Apache-2.0 */
/* On which nodes the parts of a job are, of those that its specification names. Private to the edge; loop thread. */
#ifndef GACC_EDGE_HOSTED_NODES_H
#define GACC_EDGE_HOSTED_NODES_H

#include "control/members.h"
#include "control/spec_nodes.h"
#include "edge/hosted.h"

/* May a new job with this specification have its parts there? INVALID_SPEC (a node that the cluster does not have, one
 * that is drained, or nodes whose engines cannot reach each other), UNAVAILABLE (one that is not linked). */
enum status hosted_nodes_check(const struct daemon *, const struct job_spec *, const char **field, char *why,
			       size_t n_why);
/* Gives each part of the job the number of its node; a node that has not said Hello yet is awaited.
 * ST_RESOURCE_EXHAUSTED: there are too many nodes. */
enum status hosted_nodes_assign(struct hosted *);
/* Tells the coordinator of a job of several parts which of them are on nodes of another build than that of part 0. To
 * be called before engines get to know each other, and now and then. */
void hosted_nodes_compare(struct hosted *, struct now);
/* The job's parts are no longer wanted: nodes that no other job needs may be forgotten. */
void hosted_nodes_forget(struct hosted *);
/* Has it a part there? `node` as in struct link_message. */
bool hosted_has_part_on(const struct hosted *, uint32_t node);
/* How many of its parts are on this node. */
uint32_t hosted_parts_here(const struct hosted *);
/* The name of a part's node, lent for as long as the part is there. */
const char *hosted_node(const struct hosted *, uint32_t part);
/* The same in memory of the caller's. Of a gaccd alone it may be longer than fits: cut. */
void hosted_node_name(const struct hosted *, uint32_t part, char out[NODE_NAME_MAX + 1]);
/* node.data_address of a part's node; "": that has not said Hello. */
void hosted_node_address(const struct hosted *, uint32_t part, char out[MEMBER_ADDRESS]);
/* The newest protocol between gaccds (node_facts.h) that the part's node speaks; UINT32_MAX: it has not said Hello. */
uint32_t hosted_node_protocol(const struct hosted *, uint32_t part);
/* The part that has this rank of the job. */
uint32_t hosted_part_with(const struct hosted *, uint32_t rank);
/* Whether a part of the job has it. */
bool hosted_part_has(const struct hosted *, uint32_t part, uint32_t rank);

#endif
