/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs and ranks as text: the tables and lines of `jobs`, `status`, `describe` and `top`. Pure except for writing to
 * the invocation's output. */
#include "view.h"

#include "output.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

char *view_steps(char *out, size_t n, const gacc_job_info *job)
{
	if (job->steps)
		snprintf(out, n, "%" PRIu64 "/%" PRIu64, job->applied_step, job->steps);
	else
		snprintf(out, n, "%" PRIu64, job->applied_step);
	return out;
}

static bool is_state(const gacc_rank_info *r, const char *state)
{
	return !strcmp(r->state, state);
}

static bool is_here(const gacc_rank_info *r)
{
	return !is_state(r, "ABSENT") && !is_state(r, "LOST") && !is_state(r, "DONE");
}

static bool is_late(const gacc_rank_info *r)
{
	return is_state(r, "LATE") || is_state(r, "LOST");
}

static const char *job_color(const gacc_job_info *job)
{
	switch (job->state) {
	case GACC_JOB_STALLED:
		return "yellow";
	case GACC_JOB_FAILED:
	case GACC_JOB_NODE_FAIL:
		return "red";
	default:
		return NULL;
	}
}

#define NODES_WIDTH 20

/* "a,b", or how many there are if that would be long; "-": an older gaccd does not say it. */
static const char *node_names(char *out, size_t n, const gacc_job_info *j)
{
	size_t at = 0;

	snprintf(out, n, "-");
	for (size_t i = 0; i < j->n_node && at < n; i++)
		at += (size_t)snprintf(out + at, n - at, "%s%s", i ? "," : "", j->node[i]);
	if (at > NODES_WIDTH && j->n_node > 1)
		snprintf(out, n, "%zu nodes", j->n_node);
	return out;
}

static void job_row(struct sheet *s, const gacc_job_info *j)
{
	char text[256], when[SHORT], size[SHORT];
	uint32_t here = 0;

	for (size_t i = 0; i < j->n_rank; i++)
		here += is_here(&j->rank[i]);
	sheet_row(s, job_color(j));
	sheet_cell(s, "%" PRIu64, j->id);
	sheet_cell(s, "%s", j->name);
	sheet_cell(s, "%s", j->state_name);
	sheet_cell(s, "%u/%u", here, j->ranks);
	sheet_cell(s, "%s", node_names(text, sizeof(text), j));
	sheet_cell(s, "%s", view_steps(text, sizeof(text), j));
	sheet_cell(s, "%u", j->micro_size);
	if (j->has_last)
		sheet_cell(s, "%.4f", j->last_loss);
	else
		sheet_cell(s, "-");
	if (j->ended || j->steps_per_second <= 0) {
		sheet_cell(s, "-");
		sheet_cell(s, "-");
	} else {
		sheet_cell(s, "%.2f", j->steps_per_second);
		sheet_cell(s, "%.0f", 100 * j->wait_fraction);
	}
	sheet_cell(s, "%s", age_since(when, j->created_unix_nanos));
	sheet_cell(s, "%s", j->user);
	sheet_cell(s, "%" PRIu64, j->window);
	sheet_cell(s, "%" PRIu64, j->parameters);
	sheet_cell(s, "%s", bytes(size, j->host_bytes));
	sheet_cell(s, "%s", j->optimizer);
	sheet_cell(s, "%s", *j->reason ? j->reason : "-");
}

void view_names(struct invocation *inv, const gacc_jobs *jobs)
{
	for (size_t i = 0; i < jobs->n; i++)
		fprintf(inv->out, "job/%" PRIu64 "\n", jobs->job[i].id);
}

void view_jobs(struct invocation *inv, const gacc_jobs *jobs)
{
	static const struct column columns[] = {
		{ "ID", true, false },	      { "NAME", false, false },	 { "STATE", false, false },
		{ "RANKS", false, false },    { "NODES", false, false }, { "STEP", false, false },
		{ "MICRO", true, false },     { "LOSS", true, false },	 { "STEP/S", true, false },
		{ "WAIT%", true, false },     { "AGE", true, false },	 { "USER", false, false },
		{ "WINDOW", true, true },     { "PARAMS", true, true },	 { "MEMORY", true, true },
		{ "OPTIMIZER", false, true }, { "REASON", false, true }, { NULL, false, false },
	};
	struct sheet *s = sheet_new(inv, columns);

	for (size_t i = 0; i < jobs->n; i++)
		job_row(s, &jobs->job[i]);
	sheet_print(s);
}

/* ---- status ---- */

/* Others call a rank ready that has given all; one whose push is parked behind another rank is waiting. */
static const char *state_word(const gacc_job_info *j, const gacc_rank_info *r, char lower[SHORT])
{
	size_t i;

	if (is_late(r))
		return r->state;
	if (is_state(r, "WAITING"))
		return r->flushed ? "flushed" : r->micro_count + r->void_count < j->micro_size ? "waiting" : "ready";
	for (i = 0; r->state[i] && i < SHORT - 1; i++)
		lower[i] = (char)tolower((unsigned char)r->state[i]);
	lower[i] = '\0';
	return lower;
}

static void rank_state(char *out, size_t n, const gacc_job_info *j, const gacc_rank_info *r)
{
	char lower[SHORT], late[SHORT];
	const char *word = state_word(j, r, lower);

	if (*r->detail)
		snprintf(out, n, "%s (%s)", word, r->detail);
	else if (is_late(r) && r->late_ns > 0)
		snprintf(out, n, "%s %s", word, age(late, r->late_ns / 1000000000));
	else
		snprintf(out, n, "%s", word);
}

static void rank_row(struct sheet *s, const gacc_job_info *j, const gacc_rank_info *r)
{
	char state[256], when[SHORT];

	rank_state(state, sizeof(state), j, r);
	sheet_row(s, is_late(r) ? "yellow" : NULL);
	sheet_cell(s, "%u", r->rank);
	sheet_cell(s, "%s", *r->node ? r->node : "-");
	if (r->pid)
		sheet_cell(s, "%" PRId64, r->pid);
	else
		sheet_cell(s, "-");
	sheet_cell(s, "%u/%u", r->micro_count, j->micro_size);
	sheet_cell(s, "%g", r->weight);
	sheet_cell(s, "%s", age_since(when, r->last_push_unix_nanos));
	sheet_cell(s, "%s", state);
	sheet_cell(s, "%u", r->void_count);
	if (!strcmp(j->launch, "DAEMON") && r->exit_status >= 0)
		sheet_cell(s, "%d", r->exit_status);
	else
		sheet_cell(s, "-");
	sheet_cell(s, "%u", r->restarts);
}

static void view_ranks(struct invocation *inv, const gacc_job_info *job)
{
	static const struct column columns[] = {
		{ "RANK", true, false },    { "NODE", false, false },  { "PID", true, false },
		{ "MICRO", false, false },  { "WEIGHT", true, false }, { "LAST PUSH", true, false },
		{ "STATE", false, false },  { "VOID", true, true },    { "EXIT", true, true },
		{ "RESTARTS", true, true }, { NULL, false, false },
	};
	struct sheet *s = sheet_new(inv, columns);

	for (size_t i = 0; i < job->n_rank; i++)
		rank_row(s, job, &job->rank[i]);
	sheet_print(s);
}

static bool any_is_here(const gacc_job_info *job)
{
	for (size_t i = 0; i < job->n_rank; i++)
		if (is_here(&job->rank[i]))
			return true;
	return false;
}

static void hint(struct invocation *inv, const gacc_job_info *job)
{
	char when[SHORT];

	if (!job->ended && job->state == GACC_JOB_STALLED && job->n_rank && !any_is_here(job)) {
		/* nobody waits for anybody */
		tell(inv->out, "hint: start its ranks, and it goes on where it was; more time: timeouts.abandoned of "
			       "its job file\n");
		return;
	}
	for (size_t i = 0; i < job->n_rank; i++) {
		if (!is_late(&job->rank[i]))
			continue;
		fprintf(inv->out, "hint: gaccctl logs %" PRIu64 " --rank %u --tail 50", job->id, job->rank[i].rank);
		if (job->stall_abort_ms)
			tell(inv->out, "; the job aborts at stall_abort %s",
			     age(when, (int64_t)job->stall_abort_ms / 1000));
		fputc('\n', inv->out);
		return;
	}
}

static void view_scalars(struct invocation *inv, const gacc_job_info *job)
{
	for (size_t i = 0; i < job->n_scalar; i++)
		tell(inv->out, "%s%s %.4g", i ? "  " : "logged: ", job->scalar[i].name, job->scalar[i].value);
	if (job->n_scalar)
		fputc('\n', inv->out);
}

void view_status(struct invocation *inv, const gacc_job_info *job)
{
	char steps[64], when[SHORT];

	tell(inv->out, "JOB %" PRIu64 "  %s  %s", job->id, job->name, job->state_name);
	if (job->gpu && *job->gpu)
		tell(inv->out, "  on %s", job->gpu);
	tell(inv->out, "  step %s", view_steps(steps, sizeof(steps), job));
	if (job->ended)
		tell(inv->out, "  %s ago", age_since(when, job->ended_unix_nanos));
	else if (job->window_opened_unix_nanos)
		tell(inv->out, "  window %" PRIu64 " open %s", job->window,
		     age_since(when, job->window_opened_unix_nanos));
	if (!job->ended && job->n_missing)
		fprintf(inv->out, "  WAITING FOR %zu OF %u RANKS", job->n_missing, job->ranks);
	if (job->queue_position)
		fprintf(inv->out, "  QUEUED AT %u", job->queue_position);
	if (*job->reason)
		tell(inv->out, "  %s", job->reason);
	fputc('\n', inv->out);
	view_scalars(inv, job);
	view_ranks(inv, job);
	if (!job->ended)
		hint(inv, job);
}

/* ---- describe ---- */

static void line(struct invocation *inv, const char *name, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static void line(struct invocation *inv, const char *name, const char *fmt, ...)
{
	char *text;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vasprintf(&text, fmt, ap);
	va_end(ap);
	if (n < 0)
		return;
	tell(inv->out, "%-18s%s\n", name, text);
	free(text);
}

static void event_row(struct sheet *s, const gacc_job_event *e, bool jobs)
{
	char when[SHORT];

	sheet_row(s, e->warning ? "yellow" : NULL);
	sheet_cell(s, "%s", age_since(when, e->unix_nanos));
	sheet_cell(s, "%s", e->warning ? "Warning" : "Normal");
	sheet_cell(s, "%s", e->reason);
	if (jobs && e->job)
		sheet_cell(s, "%" PRIu64, e->job);
	else if (jobs)
		sheet_cell(s, "-");
	sheet_cell(s, "%s", e->object);
	sheet_cell(s, "%" PRIu64, e->window);
	sheet_cell(s, "%s", e->message);
}

void view_events(struct invocation *inv, const gacc_job_event *event, size_t n, bool jobs)
{
	static const struct column of_job[] = {
		{ "AGE", true, false },	    { "TYPE", false, false },  { "REASON", false, false },
		{ "OBJECT", false, false }, { "WINDOW", true, false }, { "MESSAGE", false, false },
		{ NULL, false, false },
	};
	static const struct column of_all[] = {
		{ "AGE", true, false },	     { "TYPE", false, false },	 { "REASON", false, false },
		{ "JOB", true, false },	     { "OBJECT", false, false }, { "WINDOW", true, false },
		{ "MESSAGE", false, false }, { NULL, false, false },
	};
	struct sheet *s = sheet_new(inv, jobs ? of_all : of_job);

	for (size_t i = 0; i < n; i++)
		event_row(s, &event[i], jobs);
	sheet_print(s);
}

static void view_last(struct invocation *inv, const gacc_job_info *j)
{
	const char *node;

	if (!j->has_last)
		return;
	line(inv, "Last window:", "%s  loss %.4f  grad norm %.4g  lr %.4g  weight %g", j->last_outcome, j->last_loss,
	     j->last_grad_norm, j->last_lr, j->last_weight);
	node = j->last_rank < j->n_rank ? j->rank[j->last_rank].node : "";
	line(inv, "Last rank in:", "%u%s%s, %.1f ms after the one before", j->last_rank, *node ? " on " : "", node,
	     (double)j->last_lag_ns / 1e6);
}

static void view_counters(struct invocation *inv, const gacc_counters *c)
{
	if (!c->applied && !c->skipped_nonfinite && !c->skipped_outlier && !c->dropped && !c->empty)
		return;
	line(inv, "Windows:",
	     "%" PRIu64 " applied (%" PRIu64 " partial), %" PRIu64 " skipped as non-finite, %" PRIu64
	     " as outliers, %" PRIu64 " dropped, %" PRIu64 " empty",
	     c->applied, c->partial, c->skipped_nonfinite, c->skipped_outlier, c->dropped, c->empty);
	if (c->rejected_micros)
		line(inv, "Void:", "%" PRIu64 " micro-batches", c->rejected_micros);
}

static void view_update(struct invocation *inv, const gacc_pending_update *u)
{
	tell(inv->out, "%-18sfrom window %" PRIu64 ":", "Update:", u->window);
	if (u->values.micro_size)
		fprintf(inv->out, " micro_size=%u", u->values.micro_size);
	if (u->values.lr)
		fprintf(inv->out, " lr=%g", *u->values.lr);
	if (u->values.clip_norm)
		fprintf(inv->out, " clip_norm=%g", *u->values.clip_norm);
	if (u->values.clip_value)
		fprintf(inv->out, " clip_value=%g", *u->values.clip_value);
	fputc('\n', inv->out);
}

static void view_root_cause(struct invocation *inv, const gacc_root_cause *c)
{
	line(inv, "Root cause:", "%s", c->message);
	for (size_t i = 0; i < c->n_log_line; i++)
		tell(inv->out, "  | %s\n", c->log_line[i]);
}

static void part_row(struct sheet *s, const gacc_part_info *p)
{
	char size[SHORT];

	sheet_row(s, p->engine_pid ? NULL : "yellow");
	sheet_cell(s, "%u", p->number);
	sheet_cell(s, "%s", *p->node ? p->node : "-");
	if (p->ranks > 1)
		sheet_cell(s, "%u-%u", p->first_rank, p->first_rank + p->ranks - 1);
	else
		sheet_cell(s, "%u", p->first_rank);
	if (p->engine_pid)
		sheet_cell(s, "%" PRId64, p->engine_pid);
	else
		sheet_cell(s, "-");
	sheet_cell(s, "%u", p->engine_restarts);
	if (p->communicator)
		sheet_cell(s, "%" PRIu64, p->communicator);
	else
		sheet_cell(s, "-");
	sheet_cell(s, "%s", bytes(size, p->host_bytes));
}

static void view_parts(struct invocation *inv, const gacc_job_info *j)
{
	static const struct column columns[] = {
		{ "PART", true, false },   { "NODE", false, false },	{ "RANKS", false, false },
		{ "ENGINE", true, false }, { "RESTARTS", true, false }, { "COMM", true, false },
		{ "MEMORY", true, false }, { NULL, false, false },
	};
	struct sheet *s = sheet_new(inv, columns);

	for (size_t i = 0; i < j->n_part; i++)
		part_row(s, &j->part[i]);
	sheet_print(s);
}

void view_job(struct invocation *inv, const gacc_job_info *j)
{
	char text[64], size[SHORT], when[SHORT];

	line(inv, "Job:", "%" PRIu64 " (%s)", j->id, j->name);
	line(inv, "UUID:", "%s", j->uuid);
	line(inv, "User:", "%s", j->user);
	line(inv, "State:", "%s%s%s, for %s", j->state_name, *j->reason ? ": " : "", j->reason,
	     age_since(when, j->state_since_unix_nanos));
	line(inv, "Created:", "%s ago", age_since(when, j->created_unix_nanos));
	line(inv, "Steps:", "%s applied, window %" PRIu64, view_steps(text, sizeof(text), j), j->window);
	line(inv, "Ranks:", "%u, %u micro-batches each", j->ranks, j->micro_size);
	if (j->batch)
		line(inv, "Effective batch:", "%" PRIu64 " x %u x %u = %" PRIu64, j->batch, j->micro_size, j->ranks,
		     j->batch * j->micro_size * j->ranks);
	line(inv, "Reduction:", "%s", j->reduction);
	line(inv, "Optimizer:", "%s", j->optimizer);
	line(inv, "Parameters:", "%" PRIu64 " in %" PRIu64 " tensors", j->parameters, j->tensors);
	line(inv, "Shared memory:", "%s", bytes(size, j->host_bytes));
	if (j->gpu && *j->gpu)
		line(inv, "GPU:", "%s, %s of its memory", j->gpu, bytes(size, j->gpu_bytes));
	if (j->engine_pid)
		line(inv, "Engine:", "pid %" PRId64 ", restarted %u times", j->engine_pid, j->engine_restarts);
	if (j->steps_per_second > 0)
		line(inv, "Speed:", "%.2f steps/s, %.0f%% of the time ranks wait for others", j->steps_per_second,
		     100 * j->wait_fraction);
	view_last(inv, j);
	view_counters(inv, &j->counters);
	if (j->loss_scale > 1)
		line(inv, "Loss scale:", "%g", j->loss_scale);
	for (size_t i = 0; i < j->n_update; i++)
		view_update(inv, &j->update[i]);
	if (j->queue_position)
		line(inv, "Queue:", "position %u", j->queue_position);
	if (j->launcher_pid)
		line(inv, "Launcher:", "pid %" PRId64, j->launcher_pid);
	if (*j->log_dir)
		line(inv, "Logs:", "%s", j->log_dir);
	if (j->root_cause)
		view_root_cause(inv, j->root_cause);
	if (j->n_part) {
		fputs("\nParts:\n", inv->out);
		view_parts(inv, j);
	}
	fputs("\nRanks:\n", inv->out);
	view_ranks(inv, j);
	fputs("\nEvents:\n", inv->out);
	if (j->n_event)
		view_events(inv, j->event, j->n_event, false);
	else
		fputs("none\n", inv->out);
}

void view_rank(struct invocation *inv, const gacc_job_info *j, const gacc_rank_info *r)
{
	char state[256], when[SHORT];

	rank_state(state, sizeof(state), j, r);
	line(inv, "Rank:", "%u of job %" PRIu64 " (%s)", r->rank, j->id, j->name);
	line(inv, "Node:", "%s", *r->node ? r->node : "-");
	line(inv, "Pid:", "%" PRId64, r->pid);
	line(inv, "State:", "%s", state);
	line(inv, "Window:", "%" PRIu64 ": %u of %u micro-batches, %u void%s", j->window, r->micro_count, j->micro_size,
	     r->void_count, r->flushed ? ", flushed" : "");
	line(inv, "Weight:", "%g", r->weight);
	line(inv, "Last push:", "%s ago", age_since(when, r->last_push_unix_nanos));
	if (*j->log_dir)
		line(inv, "Log:", "%s/worker_%u.log", j->log_dir, r->rank);
}

static void view_disk(struct invocation *inv, const gacc_node_info *n)
{
	char a[SHORT], b[SHORT], c[SHORT];

	if (!n->disk_total)
		return;
	line(inv, "State disk:", "%s of %s free%s", bytes(a, n->disk_free), bytes(b, n->disk_total),
	     n->disk_full ? ", full: new jobs and checkpoints there are refused" : "");
	line(inv, "Journal reserve:", "%s of %s", bytes(a, n->journal_reserve), bytes(b, n->journal_reserve_limit));
	if (n->user_limit)
		line(inv, "Yours there:", "%s of checkpoints, %s of logs, %s allowed", bytes(a, n->user_checkpoints),
		     bytes(b, n->user_logs), bytes(c, n->user_limit));
}

void view_node(struct invocation *inv, const gacc_node_info *n)
{
	char used[SHORT], limit[SHORT], when[SHORT];

	line(inv, "Node:", "%s", n->name);
	line(inv, "gaccd:", "%s, pid %" PRId64 ", up %s%s", n->version, n->pid, age_since(when, n->started_unix_nanos),
	     n->draining ? ", stopping" : "");
	line(inv, "Protocol:", "%u", n->protocol);
	line(inv, "Incarnation:", "%" PRIu64 ", term %" PRIu64, n->incarnation, n->term);
	line(inv, "Jobs:", "%u", n->jobs);
	line(inv, "Shared memory:", "%s of %s", bytes(used, n->host_bytes_used),
	     n->host_bytes_limit ? bytes(limit, n->host_bytes_limit) : "unlimited");
	line(inv, "CPUs:", "%u, kernels %s", n->cpus, n->kernels);
	view_disk(inv, n);
	line(inv, "Event loop:", "longest turn %.1f ms, lately %.1f ms", (double)n->longest_turn_ns / 1e6,
	     (double)n->recent_turn_ns / 1e6);
}
