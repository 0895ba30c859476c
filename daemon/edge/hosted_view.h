/* SPDX-License-Identifier: Apache-2.0 */
/* A job as the API shows it. Private to the edge; loop thread. */
#ifndef GACC_EDGE_HOSTED_VIEW_H
#define GACC_EDGE_HOSTED_VIEW_H

#include "edge/hosted.h"

struct Gacc__V1__Buffer;

/* The parts of a job of which there may be very many. */
enum view_part {
	VIEW_RANKS = 1,
	/* the whole; without it tensors, param_groups, init, labels and launch_command are left out. Of a job without
	 * text->pb it is not to be had here: whole_job.c */
	VIEW_SPEC = 2,
	VIEW_EVENTS = 4,
};
/* in messages that are made at one go: the loop is busy with so many for 20 ms */
#define VIEW_MAX_RANKS 20000

/* A message for free with gacc__v1__job__free_unpacked; parts: of enum view_part; NULL: no memory. */
struct Gacc__V1__Job *hosted_view(const struct hosted *, unsigned parts, struct now);
/* The job's shared memory by part and kind, or `together`: by kind alone. How many rows there are: at most
 * PART_VIEW_BUFFERS for each part, or in all. Texts are lent: until the next message of a part's node. */
size_t hosted_buffers(const struct hosted *, bool together, struct Gacc__V1__Buffer *out);

#endif
