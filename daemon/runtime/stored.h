/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of jobs at the service manager: the names of its descriptors, and what an earlier gaccd has left there
 * (node->stored). Loop thread.
 */
#ifndef GACC_RUNTIME_STORED_H
#define GACC_RUNTIME_STORED_H

#include "engine/plan.h"
#include "engine/segment.h"
#include "runtime/node.h"

#define STORED_GENERATION 1 /* of the segments */

#define STORED_ALL UINT32_MAX /* all parts of the job */

/* The name of a segment of part `part` of n_parts. Those of the only part of a job do not say which part it is, as
 * before there were several. Of memory on a device the name says so. */
void stored_name(uint64_t job, uint32_t part, uint32_t n_parts, const struct plan_segment *,
		 char out[FDSTORE_MAX_NAME]);
/* The other name that the same segment may have: of memory that takes the place of a slot's, until and after it has.
 */
void stored_other_name(char name[FDSTORE_MAX_NAME]);
/* The job whose memory this is, and the part; 0: of none. A descriptor that has been taken is of none. out_part and
 * out_role may be NULL. */
uint64_t stored_job(const struct fdstore_fd *, uint32_t *out_part, unsigned *out_role);
/* The descriptor of this name, from here on the caller's; -1: there is none. */
int stored_take(struct node *, const char *name);
/* Bytes of a job's stored memory on the host, of all parts, and in *out_n, which may be NULL, how many descriptors it
 * has. */
uint64_t stored_bytes(const struct node *, uint64_t job, uint64_t *out_n);
/* The service manager need not keep what is left of this part's memory, or STORED_ALL, and its pages go back to the
 * machine. `uid`: who pays for that work. Without memory it stays until the next start. */
void stored_release(struct node *, uint64_t job, uint32_t part, uint32_t uid);

/* Closes n segments and frees the array, which is taken: in the pool, since giving pages back takes half a
 * millisecond for each MiB; at once when gaccd ends. */
void segments_release(struct node *, uint32_t uid, struct segment *, int n);

#endif
