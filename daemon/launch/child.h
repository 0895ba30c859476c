/* SPDX-License-Identifier: Apache-2.0 */
/* What a launcher's child does between fork and exec. Of the launcher's rights it uses only one: to change the user.
 *
 * All are called in a child right after fork(); two of them do not return.
 */
#ifndef GACC_LAUNCH_CHILD_H
#define GACC_LAUNCH_CHILD_H

#include "launch/start.h"

#include <stdbool.h>

/* Gives up the launcher's rights. false: errno. */
bool launch_become_user(const struct launch_start *);
/* Becomes the rank when a byte has come through `go`, which tells that the launcher has noted our pid; ends when `go`
 * is closed without one. Leads a process group of its own, dies with the launcher `parent`, makes
 * <log_dir>/worker_<rank>.log and prints to `output` (launch/logs.h). Failures leave their reason in
 * start->reason[rank], and exit with 126, or 127 when there is no such program. */
_Noreturn void launch_child_rank(const struct launch_start *, uint32_t rank, uint32_t restarts, pid_t parent, int go,
				 int output);
/* Copies the end of the rank's log to `out`, as the user: a log directory may be full of links to what is not theirs to
 * read. */
_Noreturn void launch_child_tail(const struct launch_start *, uint32_t rank, int out);

#endif
