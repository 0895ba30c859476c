/* SPDX-License-Identifier: Apache-2.0 */
/* Repeats a call until it succeeds or its time is over: waits while gaccd is away, recovers the session after a
 * restart, and tells of the outage. For every call of a trainer; the job's thread, since the session may be replaced.
 */
#include "lib/internal.h"

#include "lib/channel.h"
#include "lib/env.h"

#include <stdio.h>
#include <string.h>

/* One attempt lasts at most this long, so that a hung daemon or a dead session is noticed. */
#define SLICE_MS 60000
#define BACKOFF_MIN_MS 20
#define BACKOFF_MAX_MS 1000
/* an outage that lasts longer is told on stderr; a restart of gaccd takes less */
#define OUTAGE_SILENT_MS 2000
/* New sessions in a row without one answer on them. */
#define RECOVERIES_MAX 5

struct retry {
	int64_t deadline;     /* -1: none */
	int64_t outage_start; /* -1: the daemon answers */
	int64_t backoff_ms;
	int recoveries;
	bool told; /* that gaccd cannot be reached */
};

/* So that nobody waits for minutes without an explanation. */
static void tell_outage(struct gacc_job *job, struct retry *r, const struct rpc_failure *failure)
{
	struct rpc_failure why = *failure;

	r->told = true;
	if (!env_may_say())
		return;
	explain_unreachable(job->client->endpoint, &why);
	fprintf(stderr, "gacc: rank %d waits for gaccd, for %d s at most: %s%s%s%s\n", job->rank, job->outage_ms / 1000,
		why.message, *why.hint ? " (" : "", why.hint, *why.hint ? ")" : "");
}

static void tell_back(const struct gacc_job *job, const struct retry *r)
{
	if (r->told && env_may_say())
		fprintf(stderr, "gacc: rank %d: gaccd answers again, after %.0f s\n", job->rank,
			(double)(now_ms() - r->outage_start) / 1000);
}

static int64_t left_ms(const struct retry *r)
{
	return r->deadline < 0 ? INT64_MAX : r->deadline - now_ms();
}

static void back_off(struct retry *r)
{
	/* the clock's last digits are jitter enough, and no global state */
	sleep_ms(r->backoff_ms / 2 + now_ns() % (r->backoff_ms / 2 + 1));
	r->backoff_ms = r->backoff_ms * 2 < BACKOFF_MAX_MS ? r->backoff_ms * 2 : BACKOFF_MAX_MS;
}

/* Should the attempt be repeated? Sleeps when that makes sense. */
static bool again(struct gacc_job *job, struct retry *r, const struct rpc_failure *failure)
{
	enum status st = failure->status;
	/* NOT_READY from a job that has run: a new daemon is about to take it up */
	bool outage = is_outage(failure) || (st == ST_NOT_READY && job->running);
	int64_t now = now_ms();

	if (outage) {
		if (r->outage_start < 0)
			r->outage_start = now;
		if (now - r->outage_start >= job->outage_ms)
			return false;
		if (now - r->outage_start >= OUTAGE_SILENT_MS && !r->told)
			tell_outage(job, r, failure);
	} else {
		tell_back(job, r);
		r->told = false;
		r->outage_start = -1;
	}
	if (st == ST_SESSION_FENCED) {
		job->fenced = true;
		return false;
	}
	if (st == ST_SESSION_UNKNOWN) {
		job->lost = true;
		return r->recoveries < RECOVERIES_MAX && left_ms(r) > 0;
	}
	if (failure->is_final || (st != ST_STALLED && !status_info(st)->retryable && !outage))
		return false;
	if (left_ms(r) <= 0)
		return false;
	if (st != ST_STALLED)
		back_off(r);
	return true;
}

static enum status one_attempt(struct gacc_job *job, struct retry *r, attempt_fn attempt, void *arg,
			       struct rpc_failure *failure)
{
	int64_t slice = left_ms(r);
	enum status st;

	slice = slice < 1 ? 1 : slice < SLICE_MS ? slice : SLICE_MS;
	if (job->session && (job->lost || memory_hung_up(&job->memory))) {
		r->recoveries++;
		st = session_recover(job, slice, failure);
		if (st && st != ST_JOB_ENDED)
			return st;
		/* an ended job takes no new session, but still tells the old one how its last window went */
		memset(failure, 0, sizeof(*failure));
	}
	st = attempt(job, arg, slice, failure);
	if (!st)
		r->recoveries = 0;
	return st;
}

gacc_status session_run(struct gacc_job *job, const char *what, int timeout_ms, attempt_fn attempt, void *arg)
{
	struct retry r = { .deadline = timeout_ms < 0 ? -1 : now_ms() + timeout_ms,
			   .outage_start = -1,
			   .backoff_ms = BACKOFF_MIN_MS };
	struct rpc_failure failure, said = { 0 };
	char where[256];
	enum status st;

	do {
		memset(&failure, 0, sizeof(failure));
		st = one_attempt(job, &r, attempt, arg, &failure);
		if (!st) {
			tell_back(job, &r);
			return GACC_OK;
		}
		failure.status = st;
		if (st == ST_DEADLINE && *failure.reason)
			said = failure;
	} while (again(job, &r, &failure));
	/* gaccd says what a call waits for shortly before its deadline; in the rest there was no time for it */
	if (st == ST_STALLED && !*failure.reason && said.status)
		failure = said;
	explain_unreachable(job->client->endpoint, &failure);
	snprintf(where, sizeof(where), "%s (job %llu, rank %d)", what, (unsigned long long)job->id, job->rank);
	return failure_of_rpc(&job->failure, where, &failure);
}
