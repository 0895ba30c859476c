/* SPDX-License-Identifier: Apache-2.0 */
/* Adds the processes of a job's ranks to its message: pids, exits, the root cause with the end of its log; and
 * expands the paths of a job. For views, launching*.c and checkpoints_disk.c. Loop thread. */
#include "edge/launching_impl.h"

#include "edge/hosted.h"
#include "edge/hosted_nodes.h"
#include "gacc/v1/job.pb-c.h"
#include "host/log_tail.h"
#include "proto/path.h"
#include "store/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* `where`: " on node b", or nothing. */
static void say_exit(uint32_t rank, int64_t pid, const char *where, int32_t status, char *out, size_t n)
{
	char who[64 + NODE_NAME_MAX];
	snprintf(who, sizeof(who), "rank %u (pid %lld)%s", rank, (long long)pid, where);
	if (!pid)
		snprintf(out, n, "rank %u could not be started%s", rank, where);
	else if (status > 128)
		snprintf(out, n, "%s was killed by signal %d (%s)", who, status - 128, strsignal(status - 128));
	else
		snprintf(out, n, "%s exited with code %d", who, status);
}

void launch_say_exit(uint32_t rank, int64_t pid, int32_t status, char *out, size_t n)
{
	say_exit(rank, pid, "", status, out, n);
}

void launching_say_cause(const struct hosted *h, const struct launch_site *s, char *out, size_t n)
{
	const struct launch_cause *c = &s->summary.cause;
	char name[NODE_NAME_MAX + 1], where[NODE_NAME_MAX + 16] = "";
	if (h->n_parts && (s->node || h->launch->n_sites > 1)) {
		hosted_node_name(h, s->part, name);
		snprintf(where, sizeof(where), " on node %s", name);
	}
	say_exit(c->rank, c->pid, where, c->exit_status, out, n);
}

char *starter_path(uint64_t id, const char *name, const uint8_t uuid[16], const char *pattern)
{
	char text[UUID_TEXT];
	uuid_text(uuid, text);
	return path_expand(pattern, id, name, text);
}

char *starter_log_dir(const struct daemon *d, uint64_t id, const char *name, const uint8_t uuid[16],
		      const char *pattern)
{
	char standard[CHECKPOINT_MAX_PATH], text[UUID_TEXT];
	if (*pattern)
		return starter_path(id, name, uuid, pattern);
	uuid_text(uuid, text);
	/* ids begin anew with the journal, and state_dir may have the logs of jobs before that */
	snprintf(standard, sizeof(standard), "%.4000s/logs/%llu-%s", d->node.conf->state_dir, (unsigned long long)id,
		 text);
	return strdup(standard);
}

char *hosted_path(const struct hosted *h, const char *pattern)
{
	return starter_path(h->id, h->spec->name, h->uuid, pattern);
}

char *hosted_log_dir(const struct hosted *h)
{
	const char *pattern = h->text->pb->log_dir;
	if (!*pattern && h->spec->launch_mode != LAUNCH_DAEMON)
		return strdup("");
	return starter_log_dir(h->d, h->id, h->spec->name, h->uuid, pattern);
}

static bool add_cause(const struct hosted *h, Gacc__V1__Job *j)
{
	const struct launch_site *s = h->launch->cause;
	const struct launch_cause *c = s ? &s->summary.cause : NULL;
	char text[96 + NODE_NAME_MAX];
	if (!c)
		return true;
	if (j->root_cause)
		gacc__v1__root_cause__free_unpacked(j->root_cause, NULL);
	j->root_cause = malloc(sizeof(*j->root_cause));
	if (!j->root_cause)
		return false;
	gacc__v1__root_cause__init(j->root_cause);
	launching_say_cause(h, s, text, sizeof(text));
	j->root_cause->rank = c->rank;
	j->root_cause->pid = c->pid;
	j->root_cause->exit_status = c->exit_status;
	j->root_cause->unix_nanos = c->unix_ns;
	j->root_cause->message = strdup(text);
	j->root_cause->log_tail = calloc(LAUNCH_TAIL_LINES, sizeof(*j->root_cause->log_tail));
	if (!j->root_cause->message || !j->root_cause->log_tail)
		return false;
	if (s->tail)
		j->root_cause->n_log_tail = log_tail(s->tail, s->n_tail, j->root_cause->log_tail, LAUNCH_TAIL_LINES);
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
	for (uint32_t i = g->n_sites; i--;)
		if (g->site[i].launcher_pid)
			j->launcher_pid = g->site[i].launcher_pid;
	return add_cause(h, j);
}
