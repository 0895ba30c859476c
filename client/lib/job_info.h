/* SPDX-License-Identifier: Apache-2.0 */
/* gacc.v1.Job and Event as the public structs. */
#ifndef GACC_CLIENT_JOB_INFO_H
#define GACC_CLIENT_JOB_INFO_H

#include "gacc/gacc_admin.h"

#include <stddef.h>

struct ProtobufCMessage;
struct Gacc__V1__Event;
struct Gacc__V1__Job;
struct Gacc__V1__Scalar;

/* n jobs that are borrowed from `owner`, which is taken over (also on failure) and freed with the result. NULL without
 * memory. */
gacc_jobs *jobs_new(struct ProtobufCMessage *owner, struct Gacc__V1__Job *const *job, size_t n);

/* Of an answer (answer.h); borrows the names. NULL without memory. */
const gacc_scalar *scalars_logged(void *answer, struct Gacc__V1__Scalar *const *, size_t n);

/* All but the JSON; borrows from the message. */
void event_fill(gacc_job_event *out, const struct Gacc__V1__Event *);

#endif
