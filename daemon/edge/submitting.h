/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs whose submitters wait: not durable yet, or without memory. Private to the edge; loop thread. */
#ifndef GACC_EDGE_SUBMITTING_H
#define GACC_EDGE_SUBMITTING_H

#include "edge/hosted.h"

/* Tells a submitter what has become of it; `existed`: it was not the first that meant this job. h NULL: it failed. */
typedef void submitted_fn(void *arg, struct hosted *h, bool existed, enum status, const char *why, const char *field);

struct submit_waiter;

struct pending_submit {
	struct pending_submit *next;
	struct hosted *h;
	struct submit_waiter *waiter, **waiter_tail;
	bool existed; /* the one that submitted it has its answer: all others meant a job that was there */
};

/* One with a first submitter, at the head of d->submitting. by_ns: when that one wants an answer, whatever it is;
 * INT64_MAX: never. NULL: no memory. */
struct pending_submit *submitting_new(struct daemon *, struct hosted *, submitted_fn *, void *arg, int64_t by_ns);
/* One more who meant the same job. false: no memory. */
bool submitting_join(struct pending_submit *, submitted_fn *, void *arg, int64_t by_ns);
/* Takes one out who has waited long enough for this job, for the caller to answer; the job goes on. false: there is
 * none. */
bool submitting_take_late(struct hosted *, int64_t now_ns, submitted_fn **cb, void **arg);
/* Answers all who wait, and forgets it. */
void submitting_end(struct daemon *, struct pending_submit *, enum status, const char *why, const char *field);
/* Memory for a job whose tensors came with its spec is there, or not: answers its Submit. */
void submitting_done(struct hosted *, enum status, const char *why);
/* The n-th job that is not durable yet, or NULL. */
struct hosted *submitting_pending(const struct daemon *, size_t n);

#endif
