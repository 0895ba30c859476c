/* SPDX-License-Identifier: Apache-2.0 */
/* Compares what two nodes have said in their Hello, for the coordinator of a job with a part on each of them. Pure;
 * any thread. */
#include "control/alike.h"

#include "base/loopback.h"
#include "control/members.h"

#include <stdio.h>
#include <string.h>

bool nodes_reach(const struct member_facts *first, const struct member_facts *other, char *why, size_t n_why)
{
	const bool is_first = is_hidden_ip(first->data_address);
	const struct member_facts *hidden = is_first ? first : other, *seen = is_first ? other : first;
	if (is_first == is_hidden_ip(other->data_address))
		return true;
	snprintf(why, n_why,
		 "node %s has node.data_address %s, which node %s (%s) cannot reach: set it to an address of %s on the "
		 "data network",
		 hidden->node, hidden->data_address, seen->node, seen->data_address, hidden->node);
	return false;
}

bool nodes_alike(const struct member_facts *first, const struct member_facts *other, char *why, size_t n_why)
{
	if (strcmp(first->coll, other->coll) != 0)
		snprintf(why, n_why,
			 "node %s has %s between engines, and node %s, which has part 0, %s: upgrade the older",
			 other->node, other->coll, first->node, first->coll);
	else if (first->kernels_revision != other->kernels_revision)
		snprintf(why, n_why,
			 "node %s has kernels of revision %u, and node %s, which has part 0, of %u: upgrade the older",
			 other->node, other->kernels_revision, first->node, first->kernels_revision);
	else
		return nodes_reach(first, other, why, n_why);
	return false;
}
