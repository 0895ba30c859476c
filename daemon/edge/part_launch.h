/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of a job that another gaccd coordinates and that this one launches, as it has parts of the job: takes the
 * orders of the coordinator and sends it news (cluster/launch_message.h). Private to the edge; loop thread.
 *
 * The command and the user are in the parts' placement, of which this node has a record. So a gaccd that starts again
 * finds the launcher before it hears its coordinator. Without any part of the job the ranks are ended.
 */
#ifndef GACC_EDGE_PART_LAUNCH_H
#define GACC_EDGE_PART_LAUNCH_H

#include "edge/starter.h"
#include "runtime/part.h"

struct link_message;

struct part_launch {
	struct part_launch *next; /* of d->part_launch */
	struct daemon *d;
	uint64_t epoch;
	uint32_t part;			/* the job's first one on this node */
	struct specification *text;	/* held */
	struct Gacc__V1__JobSpec *spec; /* without its tensors */
	uint8_t uuid[16];
	struct launch_rank *rank;
	struct starter starter;
	uint64_t term, order;		/* of the newest order that was taken; 0: none since the start of this gaccd */
	uint64_t number;		/* of the news that were sent last */
	bool news;			/* something is to be told */
	int64_t sent_ns;		/* 0: not yet, or on an earlier link */
	char failure[LAUNCHED_FAILURE]; /* why they cannot be launched here; "": they can */
};

/* May this node launch ranks for the owner of a job? ST_PERMISSION_DENIED with why. */
enum status part_launch_check(const struct daemon *, uint32_t uid, const char *user, char *why, size_t n_why);
/* LINK_LAUNCH: what is wanted. */
void part_launch_take(struct daemon *, const struct link_message *);
/* At the start, when the parts are there: finds the launchers of an earlier gaccd. ST_NO_MEMORY. */
enum status part_launch_recover(struct daemon *);
void part_launch_tick(struct daemon *, struct now);
/* Lets go of all launchers: they and their ranks live on. */
void part_launch_free_all(struct daemon *);

#endif
