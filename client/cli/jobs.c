/* SPDX-License-Identifier: Apache-2.0 */
/* gaccctl jobs: lists jobs by state and user as a table, names only or JSON. One call of gacc_admin.h; gaccctl's main
 * thread. */
#include "command.h"
#include "output.h"
#include "view.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_MS 500

struct filter {
	bool state[GACC_JOB_NODE_FAIL + 1]; /* wanted */
	bool any_state;
	bool ended_too;
	const char *user; /* NULL: all */
};

static bool is_end(gacc_job_state state)
{
	return state >= GACC_JOB_COMPLETED;
}

/* "running,failed"; a state that is an end asks for ended jobs. */
static bool read_states(struct filter *f, const char *list)
{
	char name[16];
	size_t n;

	for (;; list += n + 1) {
		gacc_job_state state;

		n = strcspn(list, ",");
		if (n >= sizeof(name))
			return false;
		snprintf(name, sizeof(name), "%.*s", (int)n, list);
		state = gacc_job_state_named(name);
		if (!state)
			return false;
		f->state[state] = true;
		f->ended_too = f->ended_too || is_end(state);
		if (!list[n])
			return true;
	}
}

static bool read_filter(struct invocation *inv, struct filter *f, int *st)
{
	const char *states = opt(inv, "state");

	*f = (struct filter){ .any_state = !states, .ended_too = opt_flag(inv, "all"), .user = opt(inv, "user") };
	if (!states || read_states(f, states))
		return true;
	*st = fail_usage(
		inv,
		"--state %s: states are pending, starting, running, stalled, paused, completing, completed, failed, "
		"cancelled, node_fail",
		states);
	return false;
}

static bool wanted(const struct filter *f, const gacc_job_info *job)
{
	size_t state = (size_t)job->state; /* of a newer gaccd, maybe: a name that cannot be asked for */

	return (f->any_state || (state < sizeof(f->state) && f->state[state])) &&
	       (!f->user || !strcmp(f->user, job->user));
}

/* The wanted ones of `all`, which they borrow from, in *out: its `job` is malloc'ed, NULL without memory. */
static void select_jobs(const struct filter *f, const gacc_jobs *all, gacc_jobs *out)
{
	gacc_job_info *job = malloc((all->n + 1) * sizeof(*job));
	size_t n = 0;

	for (size_t i = 0; job && i < all->n; i++)
		if (wanted(f, &all->job[i]))
			job[n++] = all->job[i];
	*out = (gacc_jobs){ n, job };
}

static int print(struct invocation *inv, const gacc_jobs *jobs)
{
	if (wants_data(inv))
		return print_json_list(inv, "jobs", jobs->job, jobs->n);
	if (inv->format == FORMAT_NAME)
		view_names(inv, jobs);
	else
		view_jobs(inv, jobs);
	return EXIT_OK;
}

static int print_wanted(struct invocation *inv, const struct filter *f, const gacc_jobs *all)
{
	gacc_jobs jobs;
	int st;

	select_jobs(f, all, &jobs);
	if (jobs.job && !jobs.n && inv->format != FORMAT_NAME && !wants_data(inv) && !opt_flag(inv, "watch"))
		tell(inv->err, "no jobs%s\n",
		     !all->n && !f->ended_too ? "; those that have ended: gaccctl jobs -a"
		     : all->n		      ? " that are asked for"
					      : "");
	st = jobs.job ? print(inv, &jobs) : fail_with(inv, EXIT_FAILED, "NO_MEMORY", NULL, "out of memory");
	free((void *)(uintptr_t)jobs.job);
	return st;
}

/* The first wanted one from the i-th on; jobs->n: none. */
static size_t next_wanted(const struct filter *f, const gacc_jobs *jobs, size_t i)
{
	while (i < jobs->n && !wanted(f, &jobs->job[i]))
		i++;
	return i;
}

/* What is wanted of both is. */
static bool same(const struct filter *f, const gacc_jobs *a, const gacc_jobs *b)
{
	size_t i = next_wanted(f, a, 0), j = next_wanted(f, b, 0);

	while (i < a->n && j < b->n && !strcmp(a->job[i].json, b->job[j].json)) {
		i = next_wanted(f, a, i + 1);
		j = next_wanted(f, b, j + 1);
	}
	return i == a->n && j == b->n;
}

/* One look; if what is wanted differs from *last, it is printed, and becomes *last. */
static int look(struct invocation *inv, const struct filter *f, struct contact *contact, gacc_jobs **last)
{
	gacc_jobs *all;
	int st;

	if (gacc_job_list(inv->client, f->ended_too, &all))
		return contact_failed(inv, contact);
	contact_made(contact);
	if (*last && same(f, *last, all)) {
		gacc_jobs_free(all);
		return EXIT_OK;
	}
	if (opt_flag(inv, "watch"))
		clear_screen(inv);
	st = print_wanted(inv, f, all);
	fflush(inv->out);
	gacc_jobs_free(*last);
	*last = all;
	return st;
}

int cmd_jobs(struct invocation *inv)
{
	struct contact contact = { 0 };
	gacc_jobs *last = NULL;
	struct filter f;
	int st;

	if (!read_filter(inv, &f, &st) || !open_client(inv, &st))
		return st;
	st = look(inv, &f, &contact, &last);
	while (st == EXIT_OK && opt_flag(inv, "watch") && !ferror(inv->out)) {
		poll(NULL, 0, LOOK_MS);
		st = look(inv, &f, &contact, &last);
	}
	gacc_jobs_free(last);
	return st;
}
