/* SPDX-License-Identifier: Apache-2.0 */
/* One `gaccctl run`: shared by run.c, which has the loop, and run_ends.c alone. One thread. */
#ifndef GACCCTL_RUN_IMPL_H
#define GACCCTL_RUN_IMPL_H

#include "command.h"
#include "follow.h"
#include "ranks.h"

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#define RUN_LOOK_MS 200 /* between two looks at ranks that end too early */

struct run {
	struct invocation *inv;
	FILE *say;	/* what is for people */
	gacc_jobs *job; /* as last seen: what it points to lives until the next change */
	char id[24];
	char *log_dir;
	uint32_t n_ranks;
	uint64_t max_restarts, restarts;
	int64_t grace_ms;
	const char *tee;
	struct ranks ranks;
	struct follower *follower; /* of each rank; only those that are shown are read */
	gacc_watch *watch;
	struct pollfd poll[3]; /* signals, job, output */
	int64_t started_ms;
	int64_t deadline_ms; /* when patience ends; 0: no deadline */
	bool stopping;	     /* ranks have been asked to end */
	bool interrupted, params_said;
	bool has_run;		   /* the job, once: if it is STARTING after that, gaccd is */
	uint32_t n_well;	   /* ranks that have ended with 0 */
	int64_t look_ms, early_ms; /* next look at these; since when one is owing */
	char end_reason[128];	   /* "": nobody wants the job ended */
	bool failed;		   /* the reason is a rank's failure, not a wish */
	bool end_told;		   /* gaccd knows */
	bool lost_job;		   /* its end will not be seen */
	int worst;		   /* status of the ranks that ended by themselves */
	int64_t progress_ms;	   /* when the line on the terminal was drawn */
	int64_t asked_ms;	   /* when gaccd was asked for it; INT64_MAX: it is away, until it tells something */
};

static inline const gacc_job_info *run_info(const struct run *r)
{
	return &r->job->job[0];
}

static inline int64_t run_now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* What gaccd says of the job now; takes `jobs`. */
void run_take_job(struct run *, gacc_jobs *jobs);
/* Asks gaccd. false: it does not answer. */
bool run_refresh(struct run *);
/* Tells gaccd that the job is to end, if somebody wants that and gaccd has not taken it yet: it may be restarting just
 * now. */
void run_try_end(struct run *);
/* Somebody wants the job ended; the first reason counts. Failed: nobody has asked for this end, and the job becomes
 * FAILED, as with ranks that gaccd starts. */
void run_cancel_job(struct run *, const char *reason);
void run_fail_job(struct run *, const char *reason);
/* Asks the ranks to end, by this signal; their grace begins. */
void run_stop_ranks(struct run *, int signal);
/* Processes of ranks that have ended: noted, started again, or the end of the job. */
void run_reap(struct run *);
/* A rank that ends with 0 before its job does: the others would wait for it until stall_abort. Looks every RUN_LOOK_MS.
 */
void run_watch_early_ends(struct run *);
/* Draws the line on the terminal that shows steps, loss, time left and stragglers, a few times a second. */
void run_show_progress(struct run *);

#endif
