/* SPDX-License-Identifier: Apache-2.0 */
/* What the method files share: finding the caller, the job and the session. Private to the edge; loop thread. */
#ifndef GACC_EDGE_METHODS_H
#define GACC_EDGE_METHODS_H

#include "edge/hosted.h"
#include "edge/reply.h"

struct Gacc__V1__Job;
struct Gacc__V1__JobSpec;
struct Gacc__V1__Session;
struct Gacc__V1__PushRequest;

/* The caller's uid: the kernel's word on unix sockets; callers over TCP have proved to be allowed and count as the
 * daemon's own user. */
uint32_t caller_uid(const struct rpc_call *);
struct daemon *daemon_of(const struct rpc_call *);
struct now now_of(const struct rpc_call *);
/* Answers NO_MEMORY. */
void no_memory(struct rpc_call *);

/* The call points to the job from now on; its on_end calls hosted_drop. */
void keep_job(struct rpc_call *, struct hosted *);
/* The call points to the part from now on; its on_end calls part_drop. */
void keep_part(struct rpc_call *, struct part *);
/* The part of a session and the session's key; NULL: answered with an error. */
struct part *find_session(struct rpc_call *, const struct Gacc__V1__Session *, struct session_key *out);
/* The same, and the key is that of the rank's session in force (job_session_ok): for what control does not judge
 * itself. */
struct part *checked_session(struct rpc_call *, const struct Gacc__V1__Session *, struct session_key *out);
/* The job with this name that the caller may see; NULL: answered NOT_FOUND. */
struct hosted *named_job(struct rpc_call *, const char *name);
/* May the caller change it? false: answered PERMISSION_DENIED. */
bool may_change(struct rpc_call *, const struct hosted *);
/* What a coordinator's refusal is to the caller: a job that has not begun to run again, but has its parameters from an
 * earlier gaccd, only waits for its engine. */
enum status refusal_of(const struct hosted *, enum status);
typedef void whole_job_fn(struct rpc_call *, struct Gacc__V1__Job *, int arg);
/* Calls `then` with the job as it is, specification and ranks included, and with what more `parts` (enum view_part)
 * asks for: at once, or later when the journal has to be read. It is not called when the call is gone, or was answered
 * with an error. The job is lent. */
void with_whole_job(struct rpc_call *, struct hosted *, unsigned parts, whole_job_fn *then, int arg);
/* Push arguments from the wire. `present` is borrowed. */
struct push_args push_args_of(const struct Gacc__V1__PushRequest *);
/* A push of the last window of a job that is over (hosted_retire.c): true when it is in that window, and is answered.
 */
bool push_is_over(struct rpc_call *, const struct Gacc__V1__PushRequest *);

/* Answers Cancel when the job has ended, which is when its end is durable. */
void answer_cancel(struct rpc_call *, struct hosted *);
/* on_end of the calls that wait for something of a job. */
void forget_wait(struct rpc_call *, bool completed);

/* rpc_method.prepare and discard of rows with a specification: a struct prepared; NULL: there is none, or no memory. */
void *prepare_spec(const struct Gacc__V1__JobSpec *);
void discard_spec(void *prepared);

/* The rows of each file. */
extern const struct rpc_method gradient_methods[], inline_methods[], job_methods[], wait_methods[], control_methods[];
extern const struct rpc_method checkpoint_methods[], node_methods[], look_methods[];
extern const size_t n_gradient_methods, n_inline_methods, n_job_methods, n_wait_methods, n_control_methods;
extern const size_t n_checkpoint_methods, n_node_methods, n_look_methods;

/* What to do about a new job that does not fit, by the words that say why. */
const char *submit_hint_full(const char *why);

#endif
