/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a job with its machines: made, driven once a tick, retired, forgotten. Private to the edge; loop thread.
 */
#ifndef GACC_EDGE_HOSTED_LIFE_H
#define GACC_EDGE_HOSTED_LIFE_H

#include "edge/hosted.h"

struct prepared;

/* ---- hosted_life.c ---- */
/* Builds the object from a specification, of which it takes what it needs; a refused one's status. */
enum status hosted_new(struct daemon *, uint64_t id, uint32_t uid, const char *user, struct prepared *,
		       struct hosted **out);
/* From here on it is found. Ids ascend. */
enum status hosted_add(struct daemon *, struct hosted *);
void hosted_free(struct hosted *); /* takes NULL */
/* Its coordinator is freed, and its part is no longer wanted where it is: it is over, or set aside. */
void hosted_drop_machines(struct hosted *);
void hosted_free_all(struct daemon *);

/* ---- hosted_tick.c ---- */
void hosted_tick(struct hosted *, struct now);

/* ---- hosted_retire.c ---- */
/* A job that has ended gives back its memory, then all but what is shown of it. */
void hosted_end_tick(struct hosted *, struct now);
/* Of the jobs that are over, more than history.jobs leave memory, journal and history; one a call. */
void hosted_forget_old(struct daemon *);
/* What the history still has of jobs that the journal does not have. */
void hosted_forget_unknown(struct daemon *);

#endif
