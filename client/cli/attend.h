/* SPDX-License-Identifier: Apache-2.0 */
/* Following a job to its end. */
#ifndef GACCCTL_ATTEND_H
#define GACCCTL_ATTEND_H

#include "log_set.h"

/* Prints the logs to `out` until the job has ended: EXIT_OK, *out_last is its last state (may be NULL: not wanted). A
 * signal ends it before: EXIT_INTERRUPTED, and `again` is said, unless it is NULL. signals_block() must have been
 * called before the client was opened. */
int attend(struct invocation *inv, const gacc_job_info *job, struct log_set *set, FILE *out, const char *again,
	   gacc_jobs **out_last);

#endif
