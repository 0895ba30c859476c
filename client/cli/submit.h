/* SPDX-License-Identifier: Apache-2.0 */
/* Registering a job that others start. */
#ifndef GACCCTL_SUBMIT_H
#define GACCCTL_SUBMIT_H

#include "command.h"

/* Submits it, says its id, and follows it by the options --dry-run, --wait and --tee. With --wait, signals_block() must
 * have been called before. Returns the exit status. */
int submit_job(struct invocation *inv, gacc_spec *spec);
/* Shows the output of the ranks of --tee (0) until the job and the ranks that gaccd has started have ended, and says
 * how: the exit status is that of the rank that failed first, or 7. `owns`: a signal cancels the job, and a second one
 * has its ranks killed; else it is left alone. As with --wait. */
int submit_follow(struct invocation *inv, const gacc_job_info *job, bool owns);

#endif
