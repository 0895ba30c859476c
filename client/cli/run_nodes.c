/* SPDX-License-Identifier: Apache-2.0 */
/* gaccctl run --nodes: submits a job whose ranks the gaccds of its nodes start, and follows it to its end, as if they
 * ran here. gaccctl's main thread. */
#include "run_nodes.h"

#include "job_file.h"
#include "output.h"
#include "signals.h"
#include "submit.h"

#include <inttypes.h>

int run_on_nodes(struct invocation *inv)
{
	FILE *say = wants_data(inv) ? inv->err : inv->out;
	const gacc_job_info *job;
	gacc_spec *spec;
	gacc_jobs *jobs;
	int st;

	signals_block(); /* before the library makes threads */
	if (!open_client_for(inv, SUBMIT_TIMEOUT_MS, &st))
		return st;
	spec = nodes_spec(inv, &st);
	if (!spec)
		return st;
	st = gacc_job_submit(inv->client, spec, &jobs) ? fail_client(inv) : EXIT_OK;
	gacc_spec_free(spec);
	if (st)
		return st;
	job = &jobs->job[0];
	tell(say, "job %" PRIu64 " (%s) registered   ranks %u   micro_size %u   nodes %s\n", job->id, job->name,
	     job->ranks, job->micro_size, opt(inv, "nodes"));
	tell(say, "logs on each node in its state_dir   follow elsewhere: gaccctl logs %" PRIu64 " -f\n", job->id);
	fflush(say);
	st = submit_follow(inv, job, true);
	gacc_jobs_free(jobs);
	return st;
}
