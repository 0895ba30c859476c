/* SPDX-License-Identifier: Apache-2.0 */
/* gaccctl submit, and registering a job for other commands (checkpoint restore): one call, then with --wait following
 * the job to its end. gaccctl's main thread. */
#include "submit.h"

#include "attend.h"
#include "job_file.h"
#include "output.h"
#include "signals.h"
#include "view.h"

#include <inttypes.h>
#include <poll.h>

#define LAST_WORDS_MS 15000 /* more than the grace that ranks have */
#define LOOK_MS 20

/* As `run`: of the rank that failed by itself, else the highest; 7 when no rank failed but the job did. Ranks that
 * gaccd had to end because another failed have a signal's status, which says nothing. */
static int status_of_ranks(const gacc_job_info *job)
{
	int worst = job->root_cause ? job->root_cause->exit_status : 0;

	for (size_t i = 0; i < job->n_rank && !job->root_cause; i++)
		if (job->rank[i].exit_status > worst)
			worst = job->rank[i].exit_status;
	if (worst)
		return worst;
	return job->state == GACC_JOB_COMPLETED ? EXIT_OK : EXIT_JOB_FAILED;
}

static int conclude(struct invocation *inv, FILE *say, const gacc_job_info *job)
{
	char steps[64];

	tell(say, "job %" PRIu64 " %s   steps %s%s%s%s%s\n", job->id, job->state_name,
	     view_steps(steps, sizeof(steps), job), *job->reason ? "   " : "", job->reason,
	     *job->log_dir ? "   logs " : "", job->log_dir);
	if (job->root_cause)
		tell(inv->err, "%s; see: gaccctl describe job/%" PRIu64 "\n", job->root_cause->message, job->id);
	if (wants_data(inv))
		print_json(inv, job->json);
	return status_of_ranks(job);
}

static bool ranks_have_ended(const gacc_job_info *job)
{
	for (size_t i = 0; i < job->n_rank; i++)
		if (job->rank[i].exit_status < 0)
			return false;
	return true;
}

/* A job is over when its last step is; processes that gaccd started end, and write their last lines, a little later. */
static void await_ranks(struct invocation *inv, struct log_set *set, FILE *say, gacc_jobs **last)
{
	gacc_jobs *jobs;
	char id[24];

	snprintf(id, sizeof(id), "%" PRIu64, (*last)->job[0].id);
	for (int ms = 0; ms < LAST_WORDS_MS && (*last)->job[0].launcher_pid && !ranks_have_ended(&(*last)->job[0]);
	     ms += LOOK_MS) {
		poll(NULL, 0, LOOK_MS);
		if (gacc_job_get(inv->client, id, &jobs))
			break;
		gacc_jobs_free(*last);
		*last = jobs;
	}
	log_set_pump(set, say, true);
}

/* Interrupted: the ranks get the job's grace, and after a second signal none. */
static int cancel_and_follow(struct invocation *inv, const gacc_job_info *job, struct log_set *set, FILE *say,
			     gacc_jobs **last)
{
	char id[24];
	int st = EXIT_INTERRUPTED;

	snprintf(id, sizeof(id), "%" PRIu64, job->id);
	tell(inv->err, "\ncancelling job %s; once more kills the ranks\n", id);
	for (uint32_t grace_ms = 0; grace_ms < 2 && st == EXIT_INTERRUPTED; grace_ms++) {
		gacc_jobs *jobs;

		if (gacc_job_cancel(inv->client, id, "interrupted in gaccctl run", grace_ms, &jobs))
			return fail_client(inv);
		gacc_jobs_free(jobs);
		st = attend(inv, job, set, say, NULL, last);
	}
	return st;
}

int submit_follow(struct invocation *inv, const gacc_job_info *job, bool owns)
{
	FILE *say = wants_data(inv) ? inv->err : inv->out;
	const char *tee = opt(inv, "tee") ? opt(inv, "tee") : "0";
	struct log_set set = { .list = tee, .tail = FOLLOW_ALL };
	gacc_jobs *last = NULL;
	char again[64];
	int st;

	if (!rank_list_ok(tee, job->ranks))
		return fail_usage(inv, "--tee %s: all, none, or ranks below %u such as 0,2", tee, job->ranks);
	snprintf(again, sizeof(again), "gaccctl logs %" PRIu64 " -f, or gaccctl wait %" PRIu64, job->id, job->id);
	if (log_set_open(inv, job, &set, &st))
		st = attend(inv, job, &set, say, owns ? NULL : again, &last);
	bool cancelled = owns && st == EXIT_INTERRUPTED;

	if (cancelled)
		st = cancel_and_follow(inv, job, &set, say, &last);
	if (st == EXIT_OK && last) {
		await_ranks(inv, &set, say, &last);
		st = conclude(inv, say, &last->job[0]);
	}
	if (cancelled)
		st = EXIT_INTERRUPTED;
	log_set_fini(&set);
	gacc_jobs_free(last);
	return st;
}

static int say_submitted(struct invocation *inv, const gacc_job_info *job)
{
	if (opt_flag(inv, "wait")) {
		tell(wants_data(inv) ? inv->err : inv->out, "job %" PRIu64 " (%s) is %s%s%s\n", job->id, job->name,
		     job->state_name, *job->reason ? ": " : "", job->reason);
		fflush(inv->out);
		return EXIT_OK;
	}
	if (wants_data(inv))
		return print_json(inv, job->json);
	fprintf(inv->out, inv->format == FORMAT_NAME ? "job/%" PRIu64 "\n" : "%" PRIu64 "\n", job->id);
	tell(inv->err, "job %" PRIu64 " (%s) is %s%s%s; see: gaccctl status %" PRIu64 " -w\n", job->id, job->name,
	     job->state_name, *job->reason ? ": " : "", job->reason, job->id);
	return EXIT_OK;
}

static int dry_run(struct invocation *inv, gacc_spec *spec)
{
	const char *json = gacc_spec_json(spec);

	if (!json)
		return fail_with(inv, EXIT_FAILED, "NO_MEMORY", NULL, "out of memory");
	if (!wants_data(inv))
		inv->format = FORMAT_JSON;
	return print_json(inv, json);
}

int submit_job(struct invocation *inv, gacc_spec *spec)
{
	gacc_jobs *jobs;
	int st;

	if (opt_flag(inv, "dry-run"))
		return dry_run(inv, spec);
	if (!inv->client && !open_client_for(inv, SUBMIT_TIMEOUT_MS, &st))
		return st;
	if (gacc_job_submit(inv->client, spec, &jobs))
		return fail_client(inv);
	st = say_submitted(inv, &jobs->job[0]);
	if (st == EXIT_OK && opt_flag(inv, "wait"))
		st = submit_follow(inv, &jobs->job[0], false);
	gacc_jobs_free(jobs);
	return st;
}

int cmd_submit(struct invocation *inv)
{
	gacc_spec *spec;
	int st;

	if (opt_flag(inv, "wait"))
		signals_block(); /* before the library makes threads */
	spec = submit_spec(inv, &st);
	if (!spec)
		return st;
	st = submit_job(inv, spec);
	gacc_spec_free(spec);
	return st;
}
