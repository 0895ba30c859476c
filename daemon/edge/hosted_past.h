/* SPDX-License-Identifier: Apache-2.0 */
/* What is left of a job that is over. Private to the edge; loop thread.
 *
 * In memory a view without tensors, rules, labels and command, and without the ranks where they are many: kilobytes,
 * whatever the job was. The journal has all of it: the specification as submitted, and a view with all ranks, written
 * with END and again when nothing can change.
 */
#ifndef GACC_EDGE_HOSTED_PAST_H
#define GACC_EDGE_HOSTED_PAST_H

#include "cluster/view_record.h"
#include "edge/hosted.h"

#define HOSTED_PAST_EVENTS 32 /* that describe shows of it; the history has all */
/* so long after its end it is known which micro-batches were in its last window */
#define HOSTED_COUNTED_NS (INT64_C(60) * 1000000000)

/* ---- hosted_past.c ---- */
/* For END: the view as of now, as the journal keeps it; data for free(), n = 0: no memory. */
struct journal_bytes hosted_past_record(const struct hosted *, struct now);
/* The sessions of a job that has ended are over: the journal's view is renewed. */
void hosted_past_renew(struct hosted *, struct now);
/* What is shown of the job, which has ended, is kept: small in memory, whole in the journal; its specification goes.
 * false: no memory. */
bool hosted_past_keep(struct hosted *, struct now);

/* A job that had ended, from its view. ST_MALFORMED: it has none, or one that cannot be read. ST_NO_MEMORY. */
enum status hosted_past_new(struct daemon *, const struct journal_job *, struct hosted **out);
void hosted_past_tick(struct hosted *, struct now);

/* ---- hosted_past_view.c ---- */
/* What a journal's VIEW has. NULL: there is none, or it cannot be read, for the reason in `why`, else "". Any thread.
 */
struct Gacc__V1__Job *hosted_past_unpack(const struct journal_bytes *, struct view_head *, char *why, size_t n_why);
/* As it is in memory; parts: VIEW_RANKS and VIEW_EVENTS; for free with gacc__v1__job__free_unpacked. NULL: no memory.
 */
struct Gacc__V1__Job *hosted_past_view(const struct hosted *, unsigned parts);

/* What the journal has of it. Zeroed, then filled in on a pool thread by hosted_past_read; hosted_past_free takes it
 * half filled. */
struct hosted_past_whole {
	struct Gacc__V1__Job *job; /* NULL: not known */
	struct Gacc__V1__JobSpec *spec;
};
enum status hosted_past_read(struct hosted_past_whole *, const struct journal_job *);
void hosted_past_free(struct hosted_past_whole *);
/* The view with ranks and specification, which are taken, and with events if `parts` has them; NULL: no memory. */
struct Gacc__V1__Job *hosted_past_whole(const struct hosted *, struct hosted_past_whole *, unsigned parts);

#endif
