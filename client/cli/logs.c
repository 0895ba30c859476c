#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command.h"
#include "follow.h"
#include "output.h"
#include "signals.h"

struct log_set {
	struct follower *follower;
	size_t n;
};

static bool open_logs(struct invocation *inv, const gacc_job_info *job, uint64_t tail, struct log_set *set, int *st)
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
	set->follower = calloc(job->ranks, sizeof(*set->follower));
	if (!set->follower) {
		*st = fail_with(inv, EXIT_FAILED, "NO_MEMORY", NULL, "out of memory");
		return false;
	}
	for (uint32_t r = 0; r < job->ranks; r++)
		if (rank_listed(list, r))
			follower_init(&set->follower[set->n++], job->log_dir, r, true, tail);
	if (set->n == 1)
		set->follower[0].prefix = false;
	return true;
}

static void pump(struct log_set *set, FILE *out, bool at_end)
{
	for (size_t i = 0; i < set->n; i++)
		follower_pump(&set->follower[i], out, at_end);
}

static bool has_ended(gacc_watch *watch)
{
	gacc_jobs *jobs;
	bool ended;
	gacc_status st = gacc_watch_next(watch, &jobs);

	if (st)
		return st != GACC_EAGAIN;
	ended = jobs->job[0].ended;
	gacc_jobs_free(jobs);
	return ended;
}

/* Until the job ends, or the user has seen enough. */
static int follow(struct invocation *inv, const gacc_job_info *job, struct log_set *set)
{
	struct pollfd p[3] = { { .events = POLLIN }, { .events = POLLIN }, { .events = POLLIN } };
	gacc_watch *watch;
	char id[24];
	int st = EXIT_OK;

	snprintf(id, sizeof(id), "%" PRIu64, job->id);
	if (gacc_job_watch(inv->client, id, &watch))
		return fail_client(inv);
	p[0].fd = gacc_watch_fd(watch);
	p[1].fd = follow_changes(job->log_dir);
	p[2].fd = signals_open();
	for (;;) {
		pump(set, inv->out, false);
		poll(p, 3, p[1].fd < 0 ? 500 : -1); /* without a directory to watch, look twice a second */
		if (p[1].revents)
			follow_changes_seen(p[1].fd);
		if (p[2].revents) {
			fprintf(inv->err, "the job goes on; follow it again with: gaccctl logs %s -f\n", id);
			st = EXIT_INTERRUPTED;
			break;
		}
		if (p[0].revents && has_ended(watch))
			break;
	}
	pump(set, inv->out, true);
	for (int i = 1; i < 3; i++)
		if (p[i].fd >= 0)
			close(p[i].fd);
	gacc_watch_close(watch);
	return st;
}

static int show(struct invocation *inv, const gacc_job_info *job, struct log_set *set)
{
	bool any = false;

	if (opt_flag(inv, "follow") && !job->ended)
		return follow(inv, job, set);
	for (size_t i = 0; i < set->n; i++)
		any = any || follower_exists(&set->follower[i]);
	if (!any)
		return fail_with(inv, EXIT_NOT_FOUND, "NO_LOGS", "logs are on the node where the job was started",
			    "no such file: %s", set->n ? set->follower[0].path : job->log_dir);
	pump(set, inv->out, true);
	return EXIT_OK;
}

int cmd_logs(struct invocation *inv)
{
	struct log_set set = { 0 };
	gacc_jobs *jobs;
	uint64_t tail;
	int st;

	if (!opt_uint(inv, "tail", 0, 1000000000, FOLLOW_ALL, &tail, &st))
		return st;
	signals_block(); /* before the library makes threads */
	if (!open_client(inv, &st))
		return st;
	if (gacc_job_get(inv->client, job_operand(inv->operand[0]), &jobs))
		return fail_client(inv);
	if (open_logs(inv, &jobs->job[0], tail, &set, &st))
		st = show(inv, &jobs->job[0], &set);
	for (size_t i = 0; i < set.n; i++)
		follower_fini(&set.follower[i]);
	free(set.follower);
	gacc_jobs_free(jobs);
	return st;
}
