/* SPDX-License-Identifier: Apache-2.0 */
/* gaccctl top: redraws a table of jobs and ranks at an interval until a count or a signal ends it. gaccctl's main
 * thread. */
#include "command.h"
#include "output.h"
#include "signals.h"
#include "view.h"

#include <poll.h>
#include <string.h>
#include <unistd.h>

static void say_node(struct invocation *inv, const gacc_node_info *n)
{
	char used[SHORT], limit[SHORT];

	tell(inv->out, "%s  gaccd %s  %u jobs  %s", n->name, n->version, n->jobs, bytes(used, n->host_bytes_used));
	if (n->host_bytes_limit)
		tell(inv->out, " of %s", bytes(limit, n->host_bytes_limit));
	tell(inv->out, " shared memory  %u CPUs (%s)\n\n", n->cpus, n->kernels);
}

static int draw(struct invocation *inv, struct contact *contact)
{
	gacc_node_info *node;
	gacc_jobs *jobs;

	if (gacc_node_get(inv->client, &node))
		return contact_failed(inv, contact);
	if (gacc_job_list(inv->client, 0, &jobs)) {
		gacc_node_free(node);
		return contact_failed(inv, contact);
	}
	contact_made(contact);
	clear_screen(inv);
	say_node(inv, node);
	view_jobs(inv, jobs);
	for (size_t i = 0; i < jobs->n; i++) {
		fputc('\n', inv->out);
		view_status(inv, &jobs->job[i]);
	}
	if (!may_color(inv->out))
		fputc('\n', inv->out);
	fflush(inv->out);
	gacc_jobs_free(jobs);
	gacc_node_free(node);
	return EXIT_OK;
}

/* False: the user has seen enough. */
static bool pause_for(int signals, int64_t ms)
{
	struct pollfd p = { .fd = signals, .events = POLLIN };

	return poll(&p, 1, (int)ms) == 0;
}

int cmd_top(struct invocation *inv)
{
	struct contact contact = { 0 };
	int64_t interval_ms;
	uint64_t count;
	int signals, st = EXIT_OK;

	if (wants_data(inv) || inv->format == FORMAT_NAME)
		return fail_usage(inv, "top is for people; for programs: gaccctl jobs -o json, or status -w -o jsonl");
	if (!opt_duration(inv, "interval", 1000, &interval_ms, &st) ||
	    !opt_uint(inv, "count", 1, UINT64_MAX, UINT64_MAX, &count, &st))
		return st;
	signals_block(); /* before the library makes threads */
	if (!open_client(inv, &st))
		return st;
	signals = signals_open();
	do
		st = draw(inv, &contact);
	while (st == EXIT_OK && --count && pause_for(signals, interval_ms));
	if (signals >= 0)
		close(signals);
	return st;
}
