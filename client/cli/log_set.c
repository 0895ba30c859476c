/* SPDX-License-Identifier: Apache-2.0 */
/* The log files of a job's ranks, all or some, as one stream of lines. For `gaccctl logs` and `gaccctl submit --wait`;
 * gaccctl's only thread. */
#include "log_set.h"

#include "output.h"

#include <stdlib.h>
#include <string.h>

void log_set_update(struct log_set *set, const gacc_job_info *job)
{
	if (set->dir || !*job->log_dir)
		return;
	set->dir = strdup(job->log_dir);
	for (uint32_t r = 0; set->dir && r < job->ranks; r++)
		if (rank_listed(set->list, r)) {
			struct follower *f = &set->follower[set->n++];

			follower_init(f, set->dir, r, true, set->tail);
			f->escaped = set->escaped;
			if (job->n_part && r < job->n_rank && *job->rank[r].node)
				follower_on_node(f, set->client, job->id, job->rank[r].node);
			set->far |= f->client != NULL;
		}
	if (set->n == 1)
		set->follower[0].prefix = false;
}

bool log_set_open(struct invocation *inv, const gacc_job_info *job, struct log_set *set, int *exit_status)
{
	set->follower = calloc(job->ranks + 1, sizeof(*set->follower));
	if (!set->follower) {
		*exit_status = fail_with(inv, EXIT_FAILED, "NO_MEMORY", NULL, "out of memory");
		return false;
	}
	set->client = inv->client;
	log_set_update(set, job);
	return true;
}

bool log_set_failed(const struct log_set *set)
{
	for (size_t i = 0; i < set->n; i++)
		if (set->follower[i].failed)
			return true;
	return false;
}

bool log_set_exists(const struct log_set *set)
{
	for (size_t i = 0; i < set->n; i++)
		if (follower_exists(&set->follower[i]))
			return true;
	return false;
}

void log_set_pump(struct log_set *set, FILE *out, bool at_end)
{
	for (size_t i = 0; i < set->n; i++)
		follower_pump(&set->follower[i], out, at_end);
}

void log_set_fini(struct log_set *set)
{
	for (size_t i = 0; i < set->n; i++)
		follower_fini(&set->follower[i]);
	free(set->follower);
	free(set->dir);
	*set = (struct log_set){ 0 };
}
