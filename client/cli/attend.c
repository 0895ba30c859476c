/* SPDX-License-Identifier: Apache-2.0 */
/* Follows a job until it ends, and shows its log files as they grow; for `gaccctl logs` and `gaccctl submit --wait`.
 * gaccctl's only thread. */
#include "attend.h"

#include "output.h"
#include "signals.h"

#include <inttypes.h>
#include <poll.h>
#include <unistd.h>

#define LOOK_MS 500 /* without a directory to watch */

enum { POLL_JOB, POLL_OUTPUT, POLL_SIGNALS };

/* Takes what the watch has. True: no more will come; *st says whether that was the job's end. */
static bool take_news(struct invocation *inv, gacc_watch *watch, struct log_set *set, gacc_jobs **last, int *st)
{
	gacc_jobs *jobs;
	gacc_status got = gacc_watch_next(watch, &jobs);

	if (got == GACC_OK) {
		gacc_jobs_free(*last);
		*last = jobs;
		log_set_update(set, &jobs->job[0]);
		return jobs->job[0].ended;
	}
	if (got != GACC_EAGAIN && got != GACC_EDONE)
		*st = fail_client(inv);
	return got != GACC_EAGAIN;
}

static int loop(struct invocation *inv, struct log_set *set, FILE *out, struct pollfd *p, gacc_watch *watch,
		gacc_jobs **last)
{
	int st = EXIT_OK;

	for (;;) {
		if (p[POLL_OUTPUT].fd < 0 && set->n)
			p[POLL_OUTPUT].fd = follow_changes(set->dir); /* which may be made only now */
		log_set_pump(set, out, false);
		poll(p, 3, set->far || (p[POLL_OUTPUT].fd < 0 && set->n) ? LOOK_MS : -1);
		if (p[POLL_OUTPUT].revents)
			follow_changes_seen(p[POLL_OUTPUT].fd);
		if (p[POLL_SIGNALS].revents && signals_next(p[POLL_SIGNALS].fd))
			return EXIT_INTERRUPTED;
		if (p[POLL_JOB].revents && take_news(inv, watch, set, last, &st))
			return st;
	}
}

int attend(struct invocation *inv, const gacc_job_info *job, struct log_set *set, FILE *out, const char *again,
	   gacc_jobs **out_last)
{
	struct pollfd p[3] = { { .events = POLLIN }, { .fd = -1, .events = POLLIN }, { .events = POLLIN } };
	gacc_jobs *last = NULL;
	gacc_watch *watch;
	char id[24];
	int st;

	snprintf(id, sizeof(id), "%" PRIu64, job->id);
	if (gacc_job_watch(inv->client, id, &watch))
		return fail_client(inv);
	p[POLL_JOB].fd = gacc_watch_fd(watch);
	p[POLL_SIGNALS].fd = signals_open();
	st = loop(inv, set, out, p, watch, &last);
	log_set_pump(set, out, true);
	if (st == EXIT_INTERRUPTED && again)
		tell(inv->err, "job %s goes on; follow it again with: %s\n", id, again);
	for (int i = POLL_OUTPUT; i <= POLL_SIGNALS; i++)
		if (p[i].fd >= 0)
			close(p[i].fd);
	gacc_watch_close(watch);
	if (out_last && st == EXIT_OK && last)
		*out_last = last;
	else
		gacc_jobs_free(last);
	return st;
}
