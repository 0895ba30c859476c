/* SPDX-License-Identifier: Apache-2.0 */
/* gaccctl cancel, pause, resume, flush, update: one call of gacc_admin.h each, and a line that says what it changed.
 * gaccctl's main thread. */
#include "command.h"
#include "output.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is done to one job after the other ---- */

struct change;
typedef gacc_status (*job_call)(struct invocation *inv, const struct change *change, const char *job, gacc_jobs **out);

struct change {
	job_call call;
	const char *reason;
	uint32_t grace_ms;
	const char *next; /* what to look at then; the job's id follows */
};

static gacc_status cancel(struct invocation *inv, const struct change *change, const char *job, gacc_jobs **out)
{
	return gacc_job_cancel(inv->client, job, change->reason, change->grace_ms, out);
}

static gacc_status hold(struct invocation *inv, const struct change *change, const char *job, gacc_jobs **out)
{
	return gacc_job_pause(inv->client, job, change->reason, out);
}

static gacc_status go_on(struct invocation *inv, const struct change *change, const char *job, gacc_jobs **out)
{
	return gacc_job_resume(inv->client, job, out);
}

static const char *reason_or(struct invocation *inv, const char *otherwise)
{
	const char *reason = opt(inv, "reason");

	return reason ? reason : otherwise;
}

static int change_one(struct invocation *inv, const struct change *change, const char *job)
{
	const gacc_job_info *j;
	gacc_jobs *jobs;
	int st = EXIT_OK;

	if (change->call(inv, change, job, &jobs))
		return fail_client(inv);
	j = &jobs->job[0];
	if (wants_data(inv))
		st = print_json(inv, j->json);
	else if (inv->format == FORMAT_NAME)
		fprintf(inv->out, "job/%" PRIu64 "\n", j->id);
	else
		tell(inv->out, "job %" PRIu64 " (%s) is %s%s%s; %s%" PRIu64 "\n", j->id, j->name, j->state_name,
		     *j->reason ? ": " : "", j->reason, change->next, j->id);
	gacc_jobs_free(jobs);
	return st;
}

/* One that fails does not keep the others from it; but without gaccd there is no use in going on. The first failure's
 * status. */
static int for_each_job(struct invocation *inv, const struct change *change)
{
	int st = EXIT_OK;

	if (!open_client(inv, &st))
		return st;
	for (int i = 0; i < inv->n_operands; i++) {
		int one = change_one(inv, change, job_operand(inv->operand[i]));

		st = st ? st : one;
		if (one && gacc_failure(inv->client).status == GACC_EUNAVAIL)
			break;
	}
	return st;
}

int cmd_cancel(struct invocation *inv)
{
	struct change change = { cancel, reason_or(inv, "gaccctl cancel"), .next = "see: gaccctl describe job/" };
	int64_t grace_ms;
	int st;

	if (!opt_duration(inv, "grace", 0, &grace_ms, &st))
		return st;
	if (opt(inv, "grace") && !grace_ms)
		grace_ms = 1; /* 0 is the job's own */
	change.grace_ms = (uint32_t)grace_ms;
	return for_each_job(inv, &change);
}

int cmd_pause(struct invocation *inv)
{
	struct change change = { hold, reason_or(inv, "gaccctl pause"), .next = "go on with: gaccctl resume " };

	return for_each_job(inv, &change);
}

int cmd_resume(struct invocation *inv)
{
	struct change change = { go_on, .next = "see: gaccctl status " };

	return for_each_job(inv, &change);
}

int cmd_flush(struct invocation *inv)
{
	const char *job = job_operand(inv->operand[0]);
	uint64_t window;
	int st = EXIT_OK;

	if (!open_client(inv, &st))
		return st;
	if (gacc_job_flush(inv->client, job, &window))
		return fail_client(inv);
	if (wants_data(inv))
		return print_jsonf(inv, "{\"window\":%" PRIu64 "}", window);
	tell(inv->out, "window %" PRIu64 " of job %s closes; see: gaccctl status %s\n", window, job, job);
	return EXIT_OK;
}

/* ---- update ---- */

struct update {
	gacc_job_values values;
	double lr, clip_norm, clip_value;
};

static bool read_number(const char *text, double *out)
{
	char *end;

	*out = strtod(text, &end);
	return *text && !*end;
}

/* Takes "lr=0.01". False: no such key, or no such value. */
static bool read_value(const char *given, struct update *u)
{
	const struct {
		const char *key;
		double *value;
		const double **given;
	} numbers[] = { { "lr=", &u->lr, &u->values.lr },
			{ "optimizer.lr=", &u->lr, &u->values.lr },
			{ "clip_norm=", &u->clip_norm, &u->values.clip_norm },
			{ "clip_value=", &u->clip_value, &u->values.clip_value } };
	double k;

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		size_t n = strlen(numbers[i].key);

		if (strncmp(given, numbers[i].key, n) != 0)
			continue;
		*numbers[i].given = numbers[i].value;
		return read_number(given + n, numbers[i].value);
	}
	if (strncmp(given, "micro_size=", 11) != 0 || !read_number(given + 11, &k) || !(k >= 1 && k <= 65536) ||
	    k != (uint32_t)k)
		return false;
	u->values.micro_size = (uint32_t)k;
	return true;
}

int cmd_update(struct invocation *inv)
{
	const char *job = job_operand(inv->operand[0]);
	struct update u = { .values = { .struct_size = sizeof(u.values) } };
	uint64_t window;
	int st = EXIT_OK;

	for (int i = 1; i < inv->n_operands; i++)
		if (!read_value(inv->operand[i], &u))
			return fail_usage(inv, "%s: lr=X, clip_norm=X, clip_value=X or micro_size=1..65536 is needed",
					  inv->operand[i]);
	if (!opt_uint(inv, "window", 1, UINT64_MAX, 0, &window, &st) || !open_client(inv, &st))
		return st;
	if (gacc_job_update(inv->client, job, &u.values, window, &window))
		return fail_client(inv);
	if (wants_data(inv))
		return print_jsonf(inv, "{\"window\":%" PRIu64 "}", window);
	tell(inv->out, "job %s: holds from window %" PRIu64 " on; see: gaccctl describe job/%s\n", job, window, job);
	return EXIT_OK;
}
