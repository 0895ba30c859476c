/* SPDX-License-Identifier: Apache-2.0 */
/* gaccctl logs: prints the log files of a job's ranks, all or some, and follows them until the job ends. gaccctl's
 * main thread. */
#include "attend.h"
#include "output.h"
#include "signals.h"

#include <inttypes.h>
#include <unistd.h>

static bool open_logs(struct invocation *inv, const gacc_job_info *job, struct log_set *set, int *st)
{
	const char *list = opt(inv, "rank");

	if (!list)
		list = "all";
	if (!rank_list_ok(list, job->ranks)) {
		*st = fail_usage(inv, "--rank %s: ranks 0 to %u, such as 0,2", list, job->ranks - 1);
		return false;
	}
	if (!*job->log_dir) {
		*st = fail_with(inv, EXIT_NOT_FOUND, "NO_LOGS", "its output is where its launcher put it",
				"job %" PRIu64 " (%s) has no log directory", job->id, job->name);
		return false;
	}
	set->list = list;
	/* of ranks that this terminal did not start: what they write may be another user's, or not meant for it */
	set->escaped = !opt_flag(inv, "raw") && isatty(fileno(inv->out)) == 1;
	return log_set_open(inv, job, set, st);
}

static int show(struct invocation *inv, const gacc_job_info *job, struct log_set *set)
{
	char again[64];

	snprintf(again, sizeof(again), "gaccctl logs %" PRIu64 " -f", job->id);
	if (opt_flag(inv, "follow") && !job->ended) {
		int st = attend(inv, job, set, inv->out, again, NULL);

		return st == EXIT_OK && log_set_failed(set) ? fail_client(inv) : st;
	}
	if (!log_set_exists(set))
		return log_set_failed(set)
			       ? fail_client(inv)
			       : fail_with(inv, EXIT_NOT_FOUND, "NO_LOGS",
					   "logs are on the node where the job was started", "no such file: %s",
					   set->n ? set->follower[0].path : job->log_dir);
	log_set_pump(set, inv->out, true);
	return log_set_failed(set) ? fail_client(inv) : EXIT_OK;
}

int cmd_logs(struct invocation *inv)
{
	struct log_set set = { 0 };
	gacc_jobs *jobs;
	int st;

	if (!opt_uint(inv, "tail", 0, 1000000000, FOLLOW_ALL, &set.tail, &st))
		return st;
	signals_block(); /* before the library makes threads */
	if (!open_client(inv, &st))
		return st;
	if (gacc_job_get(inv->client, job_operand(inv->operand[0]), &jobs))
		return fail_client(inv);
	if (open_logs(inv, &jobs->job[0], &set, &st))
		st = show(inv, &jobs->job[0], &set);
	log_set_fini(&set);
	gacc_jobs_free(jobs);
	return st;
}
