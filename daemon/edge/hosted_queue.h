/* SPDX-License-Identifier: Apache-2.0 */
/* Admission of jobs: whether they may have what they need of the node, and when. Private to the edge; loop thread. */
#ifndef GACC_EDGE_HOSTED_QUEUE_H
#define GACC_EDGE_HOSTED_QUEUE_H

#include "edge/hosted.h"

/* Asks for a new job whether it may come in: ST_OK with h->queued, need and reserved set, or the refusal with its
 * numbers. */
enum status hosted_queue_admit(struct hosted *, char *why, size_t n_why);
/* Whether a part may have `bytes` of this node, whoever coordinates its job. Of a job that is coordinated here all
 * parts may have what they will need, or none may: what the others need is set aside. ST_RESOURCE_EXHAUSTED with why.
 */
enum status hosted_queue_fits(const struct part *, uint64_t bytes, char *why, size_t n_why);
/* A job of an earlier gaccd: it waits again, or goes on with what it has. */
void hosted_queue_restore(struct hosted *, bool queued);
/* Starts the jobs whose turn has come and tells the others why they wait. */
void hosted_queue_run(struct daemon *, struct now);
/* Whether a gaccd that starts can hold so many descriptors of so many parts. ST_RESOURCE_EXHAUSTED, logged, if not:
 * better no gaccd than one that lets go of a job. */
enum status hosted_queue_check_held(size_t n_stored, size_t n_parts);
/* An event if it can, but not all ranks of its jobs could connect. */
void hosted_queue_warn(struct daemon *);

#endif
