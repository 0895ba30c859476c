/* SPDX-License-Identifier: Apache-2.0 */
/* What `gaccctl run` does when one of its ranks ends: restart it, or end the job with the reason. Part of the poll
 * loop of run.c; the main thread. */
#include "run_impl.h"

#include "output.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define LAST_LINES 20
#define EARLY_MS 1000 /* what a rank has said last is with gaccd, and its end has been noticed */

/* ---- the job, as gaccd knows it ---- */

void run_take_job(struct run *r, gacc_jobs *jobs)
{
	gacc_jobs_free(r->job);
	r->job = jobs;
	r->has_run |= run_info(r)->state >= GACC_JOB_RUNNING;
}

bool run_refresh(struct run *r)
{
	gacc_jobs *jobs;

	if (gacc_job_get(r->inv->client, r->id, &jobs))
		return false;
	run_take_job(r, jobs);
	return true;
}

/* As of now: a rank often hears of its job's end before we do. */
static bool is_ending(struct run *r)
{
	run_refresh(r);
	return run_info(r)->state >= GACC_JOB_COMPLETING;
}

void run_try_end(struct run *r)
{
	gacc_client *client = r->inv->client;
	gacc_status st;
	gacc_jobs *jobs;

	if (!*r->end_reason || r->end_told || run_info(r)->ended)
		return;
	st = r->failed ? gacc_job_fail(client, r->id, r->end_reason, &jobs)
		       : gacc_job_cancel(client, r->id, r->end_reason, 0, &jobs);
	if (st)
		return;
	gacc_jobs_free(jobs);
	r->end_told = true;
}

/* The first reason counts. */
static void end_job(struct run *r, bool failed, const char *reason)
{
	if (!*r->end_reason) {
		snprintf(r->end_reason, sizeof(r->end_reason), "%s", reason);
		r->failed = failed;
	}
	run_try_end(r);
}

void run_cancel_job(struct run *r, const char *reason)
{
	end_job(r, false, reason);
}

void run_fail_job(struct run *r, const char *reason)
{
	end_job(r, true, reason);
}

/* ---- ranks that have failed ---- */

void run_stop_ranks(struct run *r, int signal)
{
	r->stopping = true;
	r->deadline_ms = run_now_ms() + r->grace_ms;
	ranks_signal(&r->ranks, signal);
}

/* Why the job ended: which rank, how, and its last output. */
static void say_root_cause(struct run *r, uint32_t rank)
{
	const struct rank_process *p = &r->ranks.rank[rank];
	struct follower last;

	tell(r->inv->err, "--- rank %u (pid %d) ", rank, (int)p->last_pid);
	if (p->signal)
		tell(r->inv->err, "was killed by signal %d (%s)", p->signal, strsignal(p->signal));
	else
		fprintf(r->inv->err, "exited with %d%s", p->status, p->status ? "" : " before the job was complete");
	tell(r->inv->err, "; last lines of %s/worker_%u.log:\n", r->log_dir, rank);
	follower_init(&last, r->log_dir, rank, false, LAST_LINES);
	follower_pump(&last, r->inv->err, true);
	follower_fini(&last);
	fprintf(r->inv->err, "---\n");
}

static void describe_end(char *text, size_t n, uint32_t rank, const struct rank_process *p)
{
	if (p->signal)
		snprintf(text, n, "rank %u (pid %d) was killed by signal %d (%s)", rank, (int)p->last_pid, p->signal,
			 strsignal(p->signal));
	else
		snprintf(text, n, "rank %u (pid %d) exited with code %d", rank, (int)p->last_pid, p->status);
}

static void on_rank_failed(struct run *r, uint32_t rank)
{
	struct rank_process *p = &r->ranks.rank[rank];
	char reason[128];
	int err;

	if (r->restarts < r->max_restarts && !is_ending(r)) {
		r->restarts++;
		p->restarts++;
		tell(r->say, "rank %u ended with %d; starting it again (%" PRIu64 " of %" PRIu64 ")\n", rank, p->status,
		     r->restarts, r->max_restarts);
		err = ranks_start(&r->ranks, rank);
		if (!err)
			return;
		tell(r->inv->err, "rank %u cannot be started: %s\n", rank, strerror(err));
	}
	say_root_cause(r, rank);
	describe_end(reason, sizeof(reason), rank, p);
	run_fail_job(r, reason);
	run_stop_ranks(r, SIGTERM);
}

void run_reap(struct run *r)
{
	uint32_t rank;

	while (ranks_reap(&r->ranks, &rank)) {
		const struct rank_process *p = &r->ranks.rank[rank];
		bool by_itself = !r->stopping;

		r->n_well += by_itself && !p->status;
		if (by_itself && p->status)
			on_rank_failed(r, rank);
		if (by_itself && p->ended && p->status > r->worst)
			r->worst = p->status;
	}
}

/* ---- ranks that end well, but too early ---- */

static bool is_missing(const gacc_job_info *j, uint32_t rank)
{
	for (size_t i = 0; i < j->n_missing; i++)
		if (j->missing[i] == rank)
			return true;
	return false;
}

/* Nobody has attached in the place of this process, and it cannot be the parent of a trainer that lives. */
static bool is_gone(const gacc_rank_info *seen, const struct rank_process *p)
{
	if (!strcmp(seen->state, "ABSENT") || !strcmp(seen->state, "LOST") || !seen->pid || seen->pid == p->last_pid)
		return true;
	return kill((pid_t)seen->pid, 0) && errno == ESRCH;
}

/* It has ended well, and the job still needs it; unless somebody else has attached in its place. */
static bool owes(const struct run *r, uint32_t rank)
{
	const struct rank_process *p = &r->ranks.rank[rank];
	const gacc_job_info *j = run_info(r);
	const gacc_rank_info *seen = &j->rank[rank];

	if (!p->ended || p->status || !is_gone(seen, p))
		return false;
	return j->state == GACC_JOB_STARTING ? !r->has_run && strcmp(seen->state, "DONE") != 0 : is_missing(j, rank);
}

static uint32_t first_owing(const struct run *r)
{
	uint32_t rank = 0;

	while (rank < r->n_ranks && (rank >= run_info(r)->n_rank || !owes(r, rank)))
		rank++;
	return rank;
}

void run_watch_early_ends(struct run *r)
{
	uint32_t rank = r->n_ranks;
	char reason[128];

	if (!r->n_well || r->stopping || *r->end_reason || run_info(r)->ended || run_now_ms() < r->look_ms)
		return;
	if (run_refresh(r))
		rank = first_owing(r);
	r->look_ms = run_now_ms() + RUN_LOOK_MS;
	if (rank == r->n_ranks)
		r->early_ms = 0;
	else if (!r->early_ms)
		r->early_ms = run_now_ms();
	if (!r->early_ms || run_now_ms() - r->early_ms < EARLY_MS)
		return;
	say_root_cause(r, rank);
	snprintf(reason, sizeof(reason), "rank %u (pid %d) exited with 0 before the job was complete", rank,
		 (int)r->ranks.rank[rank].last_pid);
	run_fail_job(r, reason);
	run_stop_ranks(r, SIGTERM);
}
