/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs as gaccctl shows them. Pure: a job in, text out. */
#ifndef GACCCTL_VIEW_H
#define GACCCTL_VIEW_H

#include "command.h"

/* "job/42", a line each. */
void view_names(struct invocation *inv, const gacc_jobs *jobs);
/* The table of `gaccctl jobs`. */
void view_jobs(struct invocation *inv, const gacc_jobs *jobs);
/* One job's head line, its ranks, and what to do about a late one. */
void view_status(struct invocation *inv, const gacc_job_info *job);
/* Everything, with events. */
void view_job(struct invocation *inv, const gacc_job_info *job);
void view_rank(struct invocation *inv, const gacc_job_info *job, const gacc_rank_info *rank);
void view_node(struct invocation *inv, const gacc_node_info *node);
/* n of them, oldest first; `jobs`: with the job of each. */
void view_events(struct invocation *inv, const gacc_job_event *event, size_t n, bool jobs);
/* "1203/5000", or "1203". */
char *view_steps(char *out, size_t n, const gacc_job_info *job);

#endif
