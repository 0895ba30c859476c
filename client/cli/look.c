/* SPDX-License-Identifier: Apache-2.0 */
/* gaccctl status, describe: a job's progress, its ranks and what it waits for, as text or JSON, once or with --watch
 * at every change. gaccctl's main thread. */
#include "command.h"
#include "output.h"
#include "view.h"

#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

/* ---- status ---- */

static int show_status(struct invocation *inv, const gacc_jobs *jobs)
{
	if (inv->format == FORMAT_NAME) {
		view_names(inv, jobs);
		return EXIT_OK;
	}
	for (size_t i = 0; i < jobs->n; i++) {
		if (i)
			fputc('\n', inv->out);
		view_status(inv, &jobs->job[i]);
	}
	return EXIT_OK;
}

static int show_one(struct invocation *inv, const gacc_jobs *jobs)
{
	return wants_data(inv) ? print_json(inv, jobs->job[0].json) : show_status(inv, jobs);
}

/* On a terminal each state replaces the one before; elsewhere they follow each other. */
static int watch_status(struct invocation *inv, const char *job)
{
	gacc_watch *watch;
	gacc_status st;

	if (gacc_job_watch(inv->client, job, &watch))
		return fail_client(inv);
	for (;;) {
		struct pollfd p = { .fd = gacc_watch_fd(watch), .events = POLLIN };
		gacc_jobs *jobs;

		poll(&p, 1, -1);
		st = gacc_watch_next(watch, &jobs);
		if (st == GACC_EAGAIN)
			continue;
		if (st)
			break;
		clear_screen(inv);
		show_one(inv, jobs);
		fflush(inv->out);
		gacc_jobs_free(jobs);
	}
	gacc_watch_close(watch);
	return st == GACC_EDONE ? EXIT_OK : fail_client(inv);
}

/* The job to watch when none is named: the only one there is. */
static int watch_only_job(struct invocation *inv)
{
	gacc_jobs *jobs;
	char id[24];
	int st;

	if (gacc_job_list(inv->client, 0, &jobs))
		return fail_client(inv);
	if (jobs->n == 1) {
		snprintf(id, sizeof(id), "%" PRIu64, jobs->job[0].id);
		st = watch_status(inv, id);
	} else {
		st = fail_usage(inv, "%zu jobs are running: name the one to watch", jobs->n);
	}
	gacc_jobs_free(jobs);
	return st;
}

static int status_of_all(struct invocation *inv)
{
	gacc_jobs *jobs;
	int st;

	if (gacc_job_list(inv->client, 0, &jobs))
		return fail_client(inv);
	if (!jobs->n && !wants_data(inv))
		fputs("no job is running; ended ones: gaccctl jobs -a\n", inv->err);
	st = wants_data(inv) ? print_json_list(inv, "jobs", jobs->job, jobs->n) : show_status(inv, jobs);
	gacc_jobs_free(jobs);
	return st;
}

int cmd_status(struct invocation *inv)
{
	const char *job = inv->n_operands ? job_operand(inv->operand[0]) : NULL;
	bool watch = opt_flag(inv, "watch");
	gacc_jobs *jobs;
	int st = EXIT_OK;

	if (!open_client(inv, &st))
		return st;
	if (!job)
		return watch ? watch_only_job(inv) : status_of_all(inv);
	if (watch)
		return watch_status(inv, job);
	if (gacc_job_get(inv->client, job, &jobs))
		return fail_client(inv);
	st = show_one(inv, jobs);
	gacc_jobs_free(jobs);
	return st;
}

/* ---- describe ---- */

static int describe_node(struct invocation *inv)
{
	gacc_node_info *node;
	int st = EXIT_OK;

	if (gacc_node_get(inv->client, &node))
		return fail_client(inv);
	if (wants_data(inv))
		st = print_json(inv, node->json);
	else if (inv->format == FORMAT_NAME)
		tell(inv->out, "node/%s\n", node->name);
	else
		view_node(inv, node);
	gacc_node_free(node);
	return st;
}

static int describe_job(struct invocation *inv, const char *job)
{
	gacc_jobs *jobs;
	int st = EXIT_OK;

	if (gacc_job_get(inv->client, job, &jobs))
		return fail_client(inv);
	if (wants_data(inv))
		st = print_json(inv, jobs->job[0].json);
	else if (inv->format == FORMAT_NAME)
		view_names(inv, jobs);
	else
		view_job(inv, &jobs->job[0]);
	gacc_jobs_free(jobs);
	return st;
}

/* "42.3" is rank 3 of job 42; the job's JSON holds it. */
static int describe_rank(struct invocation *inv, const char *text)
{
	const char *dot = strrchr(text, '.');
	char job[256], *end;
	gacc_jobs *jobs;
	unsigned long rank;
	int st;

	rank = dot ? strtoul(dot + 1, &end, 10) : 0;
	if (!dot || !dot[1] || *end)
		return fail_usage(inv, "rank/%s: rank/JOB.RANK is needed, such as rank/42.3", text);
	if (wants_data(inv))
		return fail_usage(inv, "a rank has no JSON of its own: gaccctl describe job/ID -o json | jq .ranks");
	snprintf(job, sizeof(job), "%.*s", (int)(dot - text), text);
	if (gacc_job_get(inv->client, job, &jobs))
		return fail_client(inv);
	if (rank < jobs->job[0].n_rank) {
		view_rank(inv, &jobs->job[0], &jobs->job[0].rank[rank]);
		st = EXIT_OK;
	} else {
		st = fail_with(inv, EXIT_NOT_FOUND, "RANK_OUT_OF_RANGE", NULL, "job %s has ranks 0 to %u", job,
			       jobs->job[0].ranks - 1);
	}
	gacc_jobs_free(jobs);
	return st;
}

int cmd_describe(struct invocation *inv)
{
	const char *what = inv->operand[0];
	int st;

	if (!open_client(inv, &st))
		return st;
	if (!strcmp(what, "node") || !strncmp(what, "node/", 5))
		return describe_node(inv);
	if (!strncmp(what, "rank/", 5))
		return describe_rank(inv, what + 5);
	return describe_job(inv, job_operand(what));
}
