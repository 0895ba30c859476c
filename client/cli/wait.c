/* SPDX-License-Identifier: Apache-2.0 */
/* gaccctl wait: blocks until a job reaches a state or a step, or can never reach it, with an exit status that tells
 * which. gaccctl's main thread. */
#include "command.h"
#include "output.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_MS 200
#define CALL_MS 10000 /* of each call to gaccd; --timeout is for the whole wait */

struct goal {
	gacc_job_state state;
	uint64_t step;
};

static bool read_step(const char *text, uint64_t *out)
{
	char *end;

	*out = strtoull(text, &end, 10);
	return *text >= '0' && *text <= '9' && !*end && *out;
}

/* "state=completed" or "step=100". */
static bool read_goal(struct invocation *inv, struct goal *goal, int *st)
{
	const char *text = opt(inv, "for");

	*goal = (struct goal){ 0 };
	if (!text)
		return true;
	if (!strncmp(text, "state=", 6)) {
		goal->state = gacc_job_state_named(text + 6);
		if (goal->state)
			return true;
	} else if (!strncmp(text, "step=", 5) && read_step(text + 5, &goal->step)) {
		return true;
	}
	*st = fail_usage(inv, "--for %s: state=running, state=completed and the like, or step=100 is needed", text);
	return false;
}

static int say_reached(struct invocation *inv, const struct goal *goal, const gacc_job_info *job)
{
	if (wants_data(inv))
		print_json(inv, job->json);
	else if (inv->format == FORMAT_NAME)
		fprintf(inv->out, "job/%" PRIu64 "\n", job->id);
	else
		tell(inv->out, "job %" PRIu64 " (%s) is %s, %" PRIu64 " steps applied\n", job->id, job->name,
		     job->state_name, job->applied_step);
	return goal->state || goal->step || job->state == GACC_JOB_COMPLETED ? EXIT_OK : EXIT_JOB_FAILED;
}

static int never(struct invocation *inv, const gacc_job_info *job)
{
	char see[64];

	snprintf(see, sizeof(see), "see: gaccctl describe job/%" PRIu64, job->id);
	return fail_with(inv, EXIT_JOB_FAILED, "JOB_ENDED", see, "job %" PRIu64 " (%s) is %s%s%s", job->id, job->name,
			 job->state_name, *job->reason ? ": " : "", job->reason);
}

/* Who waits for long should know what for. */
static void say_if_away(struct invocation *inv)
{
	gacc_node_info *node = NULL;

	gacc_set_timeout(inv->client, LOOK_MS);
	if (gacc_node_get(inv->client, &node) == GACC_EUNAVAIL)
		tell(inv->err, "%s; waiting for it\n", gacc_failure(inv->client).message);
	gacc_node_free(node);
}

int cmd_wait(struct invocation *inv)
{
	struct goal goal;
	int64_t timeout_ms;
	gacc_jobs *jobs = NULL;
	int st = EXIT_OK;

	if (!read_goal(inv, &goal, &st) || !opt_duration(inv, "timeout", -1, &timeout_ms, &st) ||
	    !open_client(inv, &st))
		return st;
	say_if_away(inv);
	gacc_set_timeout(inv->client, CALL_MS);
	switch (gacc_job_wait(inv->client, job_operand(inv->operand[0]), goal.state, goal.step, (int)timeout_ms,
			      &jobs)) {
	case GACC_OK:
		st = say_reached(inv, &goal, &jobs->job[0]);
		break;
	case GACC_ECANCELLED:
		st = never(inv, &jobs->job[0]);
		break;
	default:
		return fail_client(inv);
	}
	gacc_jobs_free(jobs);
	return st;
}
