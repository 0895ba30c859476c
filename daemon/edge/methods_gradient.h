/* SPDX-License-Identifier: Apache-2.0 */
/* What the methods of sessions share: from a message to the part and the arguments that control takes. Private to the
 * edge; loop thread.
 */
#ifndef GACC_EDGE_METHODS_GRADIENT_H
#define GACC_EDGE_METHODS_GRADIENT_H

#include "edge/hosted.h"

struct Gacc__V1__Session;
struct Gacc__V1__PushRequest;

/* The part of a session and the session's key, which control judges. NULL: there is none, and nothing is answered. */
struct part *session_find(struct rpc_call *, const struct Gacc__V1__Session *, struct session_key *out);
/* The same, and the key is that of the rank's session in force (job_session_ok): for what control does not judge
 * itself. NULL: answered with an error. */
struct part *checked_session(struct rpc_call *, const struct Gacc__V1__Session *, struct session_key *out);
/* Push arguments from the wire. `present` is borrowed. */
struct push_args push_args_of(const struct Gacc__V1__PushRequest *);

#endif
