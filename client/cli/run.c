/* SPDX-License-Identifier: Apache-2.0 */
/* gaccctl run: submits a job and runs its ranks in the foreground. One poll loop on the main thread serves signals,
 * the job's changes and the ranks' output. */
#include "run_impl.h"

#include "job_file.h"
#include "output.h"
#include "run_nodes.h"
#include "signals.h"
#include "status_line.h"
#include "view.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RANKS_MAX 4096
#define LAST_STATE_MS 3000

enum { POLL_SIGNALS, POLL_JOB, POLL_OUTPUT };

/* ---- start ---- */

static bool make_directories(char *path)
{
	for (char *p = path + 1; *p; p++) {
		if (*p != '/')
			continue;
		*p = '\0';
		if (mkdir(path, 0755) && errno != EEXIST)
			return false;
		*p = '/';
	}
	return !mkdir(path, 0755) || errno == EEXIST;
}

static bool prepare_logs(struct run *r, int *st)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s", r->log_dir);
	if (*path == '/' && make_directories(path))
		return true;
	*st = fail_with(r->inv, EXIT_FAILED, "LOG_DIR", "choose another with --log-dir", "log directory %s: %s", path,
			*path == '/' ? strerror(errno) : "not an absolute path");
	return false;
}

static void say_header(struct run *r)
{
	const gacc_job_info *j = run_info(r);

	tell(r->say, "job %s (%s) registered   ranks %u   micro_size %u", r->id, j->name, j->ranks, j->micro_size);
	if (j->batch)
		fprintf(r->say, "   effective batch %" PRIu64 " x %u x %u = %" PRIu64, j->batch, j->micro_size,
			j->ranks, j->batch * j->micro_size * j->ranks);
	tell(r->say, "\nlogs %s   follow elsewhere: gaccctl logs %s -f\n", j->log_dir, r->id);
	if (!getenv("OMP_NUM_THREADS"))
		fputs("OMP_NUM_THREADS=1 for each rank, as it was not set\n", r->say);
	fflush(r->say);
}

static bool register_job(struct run *r, int *st)
{
	gacc_spec *spec = run_spec(r->inv, st);
	bool ok;

	if (!spec)
		return false;
	ok = !gacc_job_submit(r->inv->client, spec, &r->job);
	gacc_spec_free(spec);
	if (!ok) {
		*st = fail_client(r->inv);
		return false;
	}
	snprintf(r->id, sizeof(r->id), "%" PRIu64, run_info(r)->id);
	r->n_ranks = run_info(r)->ranks;
	r->log_dir = strdup(run_info(r)->log_dir);
	if (!r->log_dir)
		*st = fail_with(r->inv, EXIT_FAILED, "NO_MEMORY", NULL, "out of memory");
	return r->log_dir != NULL;
}

static bool start_ranks(struct run *r, int *st)
{
	struct rank_environment e = { .job_id = run_info(r)->id,
				      .ranks = r->n_ranks,
				      .micro_size = run_info(r)->micro_size,
				      .endpoint = gacc_endpoint(r->inv->client),
				      .log_dir = r->log_dir,
				      .master_port = free_port(),
				      .no_torch = opt_flag(r->inv, "no-torch-env") };
	int err = 0;

	r->ranks = (struct ranks){
		.n = r->n_ranks, .argv = r->inv->operand, .log_dir = r->log_dir, .no_torch = e.no_torch
	};
	r->ranks.rank = calloc(r->n_ranks, sizeof(*r->ranks.rank));
	r->ranks.common = rank_environment(environ, &e);
	r->follower = calloc(r->n_ranks, sizeof(*r->follower));
	if (!r->ranks.rank || !r->ranks.common || !r->follower)
		err = ENOMEM;
	for (uint32_t i = 0; i < r->n_ranks && !err; i++) {
		err = ranks_start(&r->ranks, i);
		follower_init(&r->follower[i], r->log_dir, i, true, FOLLOW_ALL);
	}
	if (err)
		*st = fail_with(r->inv, EXIT_FAILED, "START", NULL, "cannot start ranks: %s", strerror(err));
	return !err;
}

static bool open_polls(struct run *r, int *st)
{
	if (gacc_job_watch(r->inv->client, r->id, &r->watch)) {
		*st = fail_client(r->inv);
		return false;
	}
	status_line_open(r->inv->err);
	r->poll[POLL_SIGNALS] = (struct pollfd){ .fd = signals_open(), .events = POLLIN };
	r->poll[POLL_JOB] = (struct pollfd){ .fd = gacc_watch_fd(r->watch), .events = POLLIN };
	r->poll[POLL_OUTPUT] = (struct pollfd){ .fd = follow_changes(r->log_dir), .events = POLLIN };
	if (r->poll[POLL_SIGNALS].fd >= 0)
		return true;
	*st = fail_with(r->inv, EXIT_FAILED, "SIGNALFD", NULL, "no descriptor for signals");
	return false;
}

static void on_interrupt(struct run *r)
{
	if (r->interrupted) {
		ranks_signal(&r->ranks, SIGKILL);
		return;
	}
	r->interrupted = true;
	tell(r->inv->err, "\ncancelling job %s; once more kills the ranks\n", r->id);
	run_cancel_job(r, "interrupted in gaccctl run");
	run_stop_ranks(r, SIGTERM);
}

static void on_signals(struct run *r)
{
	int signal;

	while ((signal = signals_next(r->poll[POLL_SIGNALS].fd)))
		if (signal != SIGCHLD)
			on_interrupt(r);
	run_reap(r);
}

/* ---- the job's changes ---- */

static void say_params(struct run *r)
{
	if (r->params_said || !run_info(r)->parameters)
		return;
	r->params_said = true;
	tell(r->say, "params %" PRIu64 " in %" PRIu64 " tensors\n", run_info(r)->parameters, run_info(r)->tensors);
	fflush(r->say);
}

static void on_job(struct run *r)
{
	gacc_jobs *jobs;
	gacc_status st = gacc_watch_next(r->watch, &jobs);

	if (st == GACC_OK) {
		bool was_ended = run_info(r)->ended;

		run_take_job(r, jobs);
		r->asked_ms = r->asked_ms == INT64_MAX ? 0 : r->asked_ms;
		say_params(r);
		if (!was_ended && run_info(r)->ended && !r->deadline_ms)
			r->deadline_ms = run_now_ms() + r->grace_ms; /* ranks see it too, and should end */
	} else if (st != GACC_EAGAIN) {
		r->poll[POLL_JOB].fd = -1; /* told all */
		if (st != GACC_EDONE) {
			r->lost_job = true;
			fail_client(r->inv);
			run_stop_ranks(r, SIGTERM);
		}
	}
}

/* ---- the loop ---- */

static void show_output(struct run *r, bool at_end)
{
	for (uint32_t i = 0; i < r->ranks.n; i++)
		if (rank_listed(r->tee, i))
			follower_pump(&r->follower[i], r->say, at_end);
}

/* The grace period is over: ranks that still run are killed; a job that still runs has lost its ranks. */
static void on_deadline(struct run *r)
{
	r->deadline_ms = 0;
	if (ranks_running(&r->ranks)) {
		if (r->stopping)
			ranks_signal(&r->ranks, SIGKILL);
		else
			run_stop_ranks(r, SIGTERM);
		return;
	}
	if (*r->end_reason) {
		r->lost_job = true; /* nor does it end when it is told to */
		return;
	}
	run_fail_job(r, "all ranks have ended before the job was complete");
	r->deadline_ms = run_now_ms() + r->grace_ms;
}

static int patience_ms(const struct run *r)
{
	int64_t left = r->deadline_ms ? r->deadline_ms - run_now_ms() : 1000;

	if (r->poll[POLL_OUTPUT].fd < 0 && left > 500)
		left = 500;
	if (r->n_well && left > RUN_LOOK_MS)
		left = RUN_LOOK_MS;
	return left < 0 ? 0 : (int)left;
}

static bool finished(struct run *r)
{
	if (ranks_running(&r->ranks))
		return false;
	if (!run_info(r)->ended && !r->lost_job && !r->deadline_ms)
		r->deadline_ms = run_now_ms() + r->grace_ms;
	return run_info(r)->ended || r->lost_job;
}

static void loop(struct run *r)
{
	while (!finished(r)) {
		poll(r->poll, 3, patience_ms(r));
		if (r->poll[POLL_OUTPUT].revents)
			follow_changes_seen(r->poll[POLL_OUTPUT].fd);
		show_output(r, false);
		run_try_end(r);
		on_signals(r);
		if (r->poll[POLL_JOB].fd >= 0 && r->poll[POLL_JOB].revents)
			on_job(r);
		run_watch_early_ends(r);
		if (r->deadline_ms && run_now_ms() >= r->deadline_ms)
			on_deadline(r);
		run_show_progress(r);
	}
	status_line_clear();
	show_output(r, true);
}

/* ---- the end ---- */

/* The last state, which a job that was cancelled reaches a little after its ranks. */
static void await_end(struct run *r)
{
	int64_t until = run_now_ms() + LAST_STATE_MS;

	run_refresh(r);
	while (run_info(r)->state == GACC_JOB_COMPLETING && run_now_ms() < until) {
		poll(NULL, 0, 20);
		run_refresh(r);
	}
}

static int conclude(struct run *r)
{
	const gacc_job_info *j;
	char steps[64];

	await_end(r);
	j = run_info(r);
	tell(r->say, "job %s %s in %.1f s   steps %s%s%s   logs %s\n", r->id, j->state_name,
	     (double)(run_now_ms() - r->started_ms) / 1000, view_steps(steps, sizeof(steps), j),
	     *j->reason ? "   " : "", j->reason, j->log_dir);
	if (wants_data(r->inv))
		print_json(r->inv, j->json);
	if (r->interrupted)
		return EXIT_INTERRUPTED;
	if (r->worst)
		return r->worst;
	return j->state == GACC_JOB_COMPLETED ? EXIT_OK : EXIT_JOB_FAILED;
}

static void run_fini(struct run *r)
{
	ranks_fini(&r->ranks);
	for (uint32_t i = 0; r->follower && i < r->n_ranks; i++)
		follower_fini(&r->follower[i]);
	free(r->follower);
	free(r->log_dir);
	gacc_watch_close(r->watch);
	for (int i = 0; i < 3; i += 2)
		if (r->poll[i].fd >= 0)
			close(r->poll[i].fd);
	gacc_jobs_free(r->job);
}

static bool read_options(struct run *r, int *st)
{
	struct invocation *inv = r->inv;
	uint64_t n;

	r->tee = opt(inv, "tee") ? opt(inv, "tee") : "0";
	if (!opt_uint(inv, "ranks", 1, RANKS_MAX, 1, &n, st) ||
	    !opt_uint(inv, "max-restarts", 0, 1000000, 0, &r->max_restarts, st) ||
	    !opt_duration(inv, "grace", 10000, &r->grace_ms, st))
		return false;
	if (rank_list_ok(r->tee, RANKS_MAX))
		return true;
	*st = fail_usage(inv, "--tee %s: all, none, or ranks such as 0,2", r->tee);
	return false;
}

int cmd_run(struct invocation *inv)
{
	struct run r = { .inv = inv,
			 .say = wants_data(inv) ? inv->err : inv->out,
			 .started_ms = run_now_ms(),
			 .poll = { { .fd = -1 }, { .fd = -1 }, { .fd = -1 } } };
	int st = EXIT_FAILED;

	if (opt(inv, "nodes"))
		return run_on_nodes(inv);
	if (!read_options(&r, &st))
		return st;
	signals_block(); /* before the library makes threads */
	if (!open_client_for(inv, SUBMIT_TIMEOUT_MS, &st) || !register_job(&r, &st))
		return st;
	if (prepare_logs(&r, &st) && open_polls(&r, &st)) {
		say_header(&r);
		if (start_ranks(&r, &st)) {
			loop(&r);
			st = conclude(&r);
		}
	}
	run_cancel_job(&r, "gaccctl run could not go on"); /* does nothing to a job that has ended */
	run_fini(&r);
	return st;
}
