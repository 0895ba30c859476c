/* `gaccctl run`: a job and its ranks, from the terminal. One poll() loop: signals, the job's changes, the ranks' output. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "command.h"
#include "follow.h"
#include "output.h"
#include "ranks.h"
#include "job_file.h"
#include "signals.h"
#include "view.h"

#define LAST_LINES 20
#define RANKS_MAX 4096
#define LAST_STATE_MS 3000
#define LOOK_MS 200
#define EARLY_MS 1000 /* what a rank has said last is with gaccd, and its end has been noticed */

extern char **environ;

struct run {
	struct invocation *inv;
	FILE *say;                /* what is for people */
	gacc_jobs *job;           /* as last seen: what it points to lives until the next change */
	char id[24];
	char *log_dir;
	uint32_t n_ranks;
	uint64_t max_restarts, restarts;
	int64_t grace_ms;
	const char *tee;
	struct ranks ranks;
	struct follower *follower; /* of each rank; only those that are shown are read */
	gacc_watch *watch;
	struct pollfd poll[3];    /* signals, job, output */
	int64_t started_ms;
	int64_t deadline_ms;      /* when patience ends; 0: no deadline */
	bool stopping;            /* ranks have been asked to end */
	bool interrupted, params_said;
	bool has_run;             /* the job, once: if it is STARTING after that, gaccd is */
	uint32_t n_well;          /* ranks that have ended with 0 */
	int64_t look_ms, early_ms; /* next look at these; since when one is owing */
	char end_reason[128];     /* "": nobody wants the job ended */
	bool failed;              /* the reason is a rank's failure, not a wish */
	bool end_told;            /* gaccd knows */
	bool lost_job;            /* its end will not be seen */
	int worst;                /* status of the ranks that ended by themselves */
};

enum { POLL_SIGNALS, POLL_JOB, POLL_OUTPUT };

static const gacc_job_info *info(const struct run *r)
{
	return &r->job->job[0];
}

static int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* --- start */

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
	const gacc_job_info *j = info(r);

	tell(r->say, "job %s (%s) registered   ranks %u   micro_size %u", r->id, j->name, j->ranks, j->micro_size);
	if (j->batch)
		fprintf(r->say, "   effective batch %" PRIu64 " x %u x %u = %" PRIu64, j->batch, j->micro_size, j->ranks,
			j->batch * j->micro_size * j->ranks);
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
	snprintf(r->id, sizeof(r->id), "%" PRIu64, info(r)->id);
	r->n_ranks = info(r)->ranks;
	r->log_dir = strdup(info(r)->log_dir);
	if (!r->log_dir)
		*st = fail_with(r->inv, EXIT_FAILED, "NO_MEMORY", NULL, "out of memory");
	return r->log_dir != NULL;
}

static bool start_ranks(struct run *r, int *st)
{
	struct rank_environment e = { .job_id = info(r)->id, .ranks = r->n_ranks, .micro_size = info(r)->micro_size,
				      .endpoint = gacc_endpoint(r->inv->client), .log_dir = r->log_dir,
				      .master_port = free_port() };
	int err = 0;

	r->ranks = (struct ranks){ .n = r->n_ranks, .argv = r->inv->operand, .log_dir = r->log_dir };
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
	r->poll[POLL_SIGNALS] = (struct pollfd){ .fd = signals_open(), .events = POLLIN };
	r->poll[POLL_JOB] = (struct pollfd){ .fd = gacc_watch_fd(r->watch), .events = POLLIN };
	r->poll[POLL_OUTPUT] = (struct pollfd){ .fd = follow_changes(r->log_dir), .events = POLLIN };
	if (r->poll[POLL_SIGNALS].fd >= 0)
		return true;
	*st = fail_with(r->inv, EXIT_FAILED, "SIGNALFD", NULL, "no descriptor for signals");
	return false;
}

/* --- the end of ranks */

/* Until gaccd has taken it: it may be restarting just now. */
static void try_end(struct run *r)
{
	gacc_client *client = r->inv->client;
	gacc_status st;
	gacc_jobs *jobs;

	if (!*r->end_reason || r->end_told || info(r)->ended)
		return;
	st = r->failed ? gacc_job_fail(client, r->id, r->end_reason, &jobs) : gacc_job_cancel(client, r->id, r->end_reason, 0, &jobs);
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
	try_end(r);
}

static void cancel_job(struct run *r, const char *reason)
{
	end_job(r, false, reason);
}

/* It becomes FAILED, as with ranks that gaccd starts: nobody has asked for this end. */
static void fail_job(struct run *r, const char *reason)
{
	end_job(r, true, reason);
}

static void stop_ranks(struct run *r, int signal)
{
	r->stopping = true;
	r->deadline_ms = now_ms() + r->grace_ms;
	ranks_signal(&r->ranks, signal);
}

/* Why it all ended: who, how, and its last words. */
static void say_root_cause(struct run *r, uint32_t rank)
{
	const struct rank_process *p = &r->ranks.rank[rank];
	struct follower last;

	fprintf(r->inv->err, "--- rank %u (pid %d) ", rank, (int)p->last_pid);
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

static void take_job(struct run *r, gacc_jobs *jobs)
{
	gacc_jobs_free(r->job);
	r->job = jobs;
	r->has_run |= info(r)->state >= GACC_JOB_RUNNING;
}

static bool refresh(struct run *r)
{
	gacc_jobs *jobs;

	if (gacc_job_get(r->inv->client, r->id, &jobs))
		return false;
	take_job(r, jobs);
	return true;
}

/* As of now: a rank often hears of its job's end before we do. */
static bool is_ending(struct run *r)
{
	refresh(r);
	return info(r)->state >= GACC_JOB_COMPLETING;
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
		fprintf(r->say, "rank %u ended with %d; starting it again (%" PRIu64 " of %" PRIu64 ")\n", rank, p->status,
			r->restarts, r->max_restarts);
		err = ranks_start(&r->ranks, rank);
		if (!err)
			return;
		tell(r->inv->err, "rank %u cannot be started: %s\n", rank, strerror(err));
	}
	say_root_cause(r, rank);
	describe_end(reason, sizeof(reason), rank, p);
	fail_job(r, reason);
	stop_ranks(r, SIGTERM);
}

static void on_child(struct run *r)
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
	const gacc_job_info *j = info(r);
	const gacc_rank_info *seen = &j->rank[rank];

	if (!p->ended || p->status || !is_gone(seen, p))
		return false;
	return j->state == GACC_JOB_STARTING ? !r->has_run && strcmp(seen->state, "DONE") != 0 : is_missing(j, rank);
}

static uint32_t first_owing(const struct run *r)
{
	uint32_t rank = 0;

	while (rank < r->n_ranks && (rank >= info(r)->n_rank || !owes(r, rank)))
		rank++;
	return rank;
}

/* A rank that ends with 0 before its job does: the others would wait for it until stall_abort. */
static void watch_early_ends(struct run *r)
{
	uint32_t rank = r->n_ranks;
	char reason[128];

	if (!r->n_well || r->stopping || *r->end_reason || info(r)->ended || now_ms() < r->look_ms)
		return;
	if (refresh(r))
		rank = first_owing(r);
	r->look_ms = now_ms() + LOOK_MS;
	if (rank == r->n_ranks)
		r->early_ms = 0;
	else if (!r->early_ms)
		r->early_ms = now_ms();
	if (!r->early_ms || now_ms() - r->early_ms < EARLY_MS)
		return;
	say_root_cause(r, rank);
	snprintf(reason, sizeof(reason), "rank %u (pid %d) exited with 0 before the job was complete", rank,
		 (int)r->ranks.rank[rank].last_pid);
	fail_job(r, reason);
	stop_ranks(r, SIGTERM);
}

static void on_interrupt(struct run *r)
{
	if (r->interrupted) {
		ranks_signal(&r->ranks, SIGKILL);
		return;
	}
	r->interrupted = true;
	tell(r->inv->err, "\ncancelling job %s; once more kills the ranks\n", r->id);
	cancel_job(r, "interrupted in gaccctl run");
	stop_ranks(r, SIGTERM);
}

static void on_signals(struct run *r)
{
	int signal;

	while ((signal = signals_next(r->poll[POLL_SIGNALS].fd)))
		if (signal != SIGCHLD)
			on_interrupt(r);
	on_child(r);
}

/* --- the job's changes */

static void say_params(struct run *r)
{
	if (r->params_said || !info(r)->parameters)
		return;
	r->params_said = true;
	fprintf(r->say, "params %" PRIu64 " in %" PRIu64 " tensors\n", info(r)->parameters, info(r)->tensors);
	fflush(r->say);
}

static void on_job(struct run *r)
{
	gacc_jobs *jobs;
	gacc_status st = gacc_watch_next(r->watch, &jobs);

	if (st == GACC_OK) {
		bool was_ended = info(r)->ended;

		take_job(r, jobs);
		say_params(r);
		if (!was_ended && info(r)->ended && !r->deadline_ms)
			r->deadline_ms = now_ms() + r->grace_ms; /* ranks see it too, and should end */
	} else if (st != GACC_EAGAIN) {
		r->poll[POLL_JOB].fd = -1; /* told all */
		if (st != GACC_EDONE) {
			r->lost_job = true;
			fail_client(r->inv);
			stop_ranks(r, SIGTERM);
		}
	}
}

/* --- the loop */

static void show_output(struct run *r, bool at_end)
{
	for (uint32_t i = 0; i < r->ranks.n; i++)
		if (rank_listed(r->tee, i))
			follower_pump(&r->follower[i], r->say, at_end);
}

/* The grace period is over: whoever still runs is killed; a job that still runs has lost its ranks. */
static void on_deadline(struct run *r)
{
	r->deadline_ms = 0;
	if (ranks_running(&r->ranks)) {
		if (r->stopping)
			ranks_signal(&r->ranks, SIGKILL);
		else
			stop_ranks(r, SIGTERM);
		return;
	}
	if (*r->end_reason) {
		r->lost_job = true; /* nor does it end when it is told to */
		return;
	}
	fail_job(r, "all ranks have ended before the job was complete");
	r->deadline_ms = now_ms() + r->grace_ms;
}

static int patience_ms(const struct run *r)
{
	int64_t left = r->deadline_ms ? r->deadline_ms - now_ms() : 1000;

	if (r->poll[POLL_OUTPUT].fd < 0 && left > 500)
		left = 500;
	if (r->n_well && left > LOOK_MS)
		left = LOOK_MS;
	return left < 0 ? 0 : (int)left;
}

static bool finished(struct run *r)
{
	if (ranks_running(&r->ranks))
		return false;
	if (!info(r)->ended && !r->lost_job && !r->deadline_ms)
		r->deadline_ms = now_ms() + r->grace_ms;
	return info(r)->ended || r->lost_job;
}

static void loop(struct run *r)
{
	while (!finished(r)) {
		poll(r->poll, 3, patience_ms(r));
		if (r->poll[POLL_OUTPUT].revents)
			follow_changes_seen(r->poll[POLL_OUTPUT].fd);
		show_output(r, false);
		try_end(r);
		on_signals(r);
		if (r->poll[POLL_JOB].fd >= 0 && r->poll[POLL_JOB].revents)
			on_job(r);
		watch_early_ends(r);
		if (r->deadline_ms && now_ms() >= r->deadline_ms)
			on_deadline(r);
	}
	show_output(r, true);
}

/* --- the end */

/* The last state, which a job that was cancelled reaches a little after its ranks. */
static void await_end(struct run *r)
{
	int64_t until = now_ms() + LAST_STATE_MS;

	refresh(r);
	while (info(r)->state == GACC_JOB_COMPLETING && now_ms() < until) {
		poll(NULL, 0, 20);
		refresh(r);
	}
}

static int conclude(struct run *r)
{
	const gacc_job_info *j;
	char steps[64];

	await_end(r);
	j = info(r);
	tell(r->say, "job %s %s in %.1f s   steps %s%s%s   logs %s\n", r->id, j->state_name,
		(double)(now_ms() - r->started_ms) / 1000, view_steps(steps, sizeof(steps), j), *j->reason ? "   " : "",
		j->reason, j->log_dir);
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
	struct run r = { .inv = inv, .say = wants_data(inv) ? inv->err : inv->out, .started_ms = now_ms(),
			 .poll = { { .fd = -1 }, { .fd = -1 }, { .fd = -1 } } };
	int st = EXIT_FAILED;

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
	cancel_job(&r, "gaccctl run could not go on"); /* does nothing to a job that has ended */
	run_fini(&r);
	return st;
}
