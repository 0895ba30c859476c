/* SPDX-License-Identifier: Apache-2.0 */
/* Adds the processes of a job's ranks to its message: pids, exits, the root cause with the end of its log; and
 * expands the paths of a job. For views, launching*.c and checkpoints_disk.c. Loop thread. */
#include "edge/launching_impl.h"

#include "edge/hosted.h"
#include "gacc/v1/job.pb-c.h"
#include "host/log_tail.h"
#include "proto/path.h"
#include "store/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void launch_say_exit(uint32_t rank, int64_t pid, int32_t status, char *out, size_t n)
{
	char who[48];
	snprintf(who, sizeof(who), "rank %u (pid %lld)", rank, (long long)pid);
	if (!pid)
		snprintf(out, n, "rank %u could not be started", rank);
	else if (status > 128)
		snprintf(out, n, "%s was killed by signal %d (%s)", who, status - 128, strsignal(status - 128));
	else
		snprintf(out, n, "%s exited with code %d", who, status);
}

char *hosted_path(const struct hosted *h, const char *pattern)
{
	char uuid[UUID_TEXT];
	uuid_text(h->uuid, uuid);
	return path_expand(pattern, h->id, h->spec->name, uuid);
}

char *hosted_log_dir(const struct hosted *h)
{
	const char *pattern = h->text->pb->log_dir;
	char standard[CHECKPOINT_MAX_PATH];
	if (*pattern || h->spec->launch_mode != LAUNCH_DAEMON)
		return hosted_path(h, pattern);
	char uuid[UUID_TEXT];
	/* ids begin anew with the journal, and state_dir may have the logs of jobs before that */
	uuid_text(h->uuid, uuid);
	snprintf(standard, sizeof(standard), "%.4000s/logs/%llu-%s", h->d->node.conf->state_dir,
		 (unsigned long long)h->id, uuid);
	return strdup(standard);
}

static bool add_cause(const struct launching *g, Gacc__V1__Job *j)
{
	const struct launch_cause *c = &g->summary.cause;
	char text[96];
	if (!c->known)
		return true;
	if (j->root_cause)
		gacc__v1__root_cause__free_unpacked(j->root_cause, NULL);
	j->root_cause = malloc(sizeof(*j->root_cause));
	if (!j->root_cause)
		return false;
	gacc__v1__root_cause__init(j->root_cause);
	launch_say_exit(c->rank, c->pid, c->exit_status, text, sizeof(text));
	j->root_cause->rank = c->rank;
	j->root_cause->pid = c->pid;
	j->root_cause->exit_status = c->exit_status;
	j->root_cause->unix_nanos = c->unix_ns;
	j->root_cause->message = strdup(text);
	j->root_cause->log_tail = calloc(LAUNCH_TAIL_LINES, sizeof(*j->root_cause->log_tail));
	if (!j->root_cause->message || !j->root_cause->log_tail)
		return false;
	j->root_cause->n_log_tail = log_tail(g->tail, g->n_tail, j->root_cause->log_tail, LAUNCH_TAIL_LINES);
	return true;
}

bool launching_fill(const struct hosted *h, Gacc__V1__Job *j)
{
	const struct launching *g = h->launch;
	for (size_t i = 0; i < j->n_ranks && g; i++) {
		const struct launch_rank *r = &g->rank[i];
		if (r->exit_status != LAUNCH_NO_STATUS)
			j->ranks[i]->exit_status = r->exit_status;
		if (r->restarts)
			j->ranks[i]->restarts = r->restarts;
		if (!j->ranks[i]->pid)
			j->ranks[i]->pid = r->pid;
	}
	if (!g)
		return true;
	j->launcher_pid = g->proc ? launch_proc_pid(g->proc) : 0;
	return add_cause(g, j);
}
