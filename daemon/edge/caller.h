/* SPDX-License-Identifier: Apache-2.0 */
/* What methods ask about their calls: the caller, the job that is meant, errors that several of them answer. Private to
 * the edge; loop thread.
 */
#ifndef GACC_EDGE_CALLER_H
#define GACC_EDGE_CALLER_H

#include "edge/hosted.h"

/* The caller's uid: the kernel's word on unix sockets, here or at the node that relays the call; other callers over TCP
 * have proved to be allowed and count as the daemon's own user. */
uint32_t caller_uid(const struct rpc_call *);
/* Its uid is the kernel's word, here or at a node that has a certificate. */
bool caller_is_local(const struct rpc_call *);
struct daemon *daemon_of(const struct rpc_call *);
struct now now_of(const struct rpc_call *);
/* A little before the call's deadline, so that there is time to say more than that it is over; INT64_MAX: it has none.
 */
int64_t answer_by_ns(const struct rpc_call *);

/* The call points to the job from now on; its on_end calls hosted_drop. */
void keep_job(struct rpc_call *, struct hosted *);

/* The job with this name that the caller may see; NULL: answered NOT_FOUND. */
struct hosted *named_job(struct rpc_call *, const char *name);
/* May the caller change it? false: answered PERMISSION_DENIED. */
bool may_change(struct rpc_call *, const struct hosted *);

/* Answers NO_MEMORY. */
void no_memory(struct rpc_call *);
/* Answers JOB_ENDED, with the reason. */
void job_has_ended(struct rpc_call *, const struct hosted *);
/* What a coordinator's refusal is to the caller: a job that has not begun to run again, but has its parameters from an
 * earlier gaccd, only waits for its engine. */
enum status refusal_of(const struct hosted *, enum status);

#endif
