/* SPDX-License-Identifier: Apache-2.0 */
/* Answers an Attach to a job that is not known here: a node asks its coordinator, since a job that waits in the queue
 * is placed nowhere yet. For methods_gradient.c. Loop thread. */
#include "edge/unknown_job.h"

#include "edge/caller.h"
#include "edge/node_dial.h"
#include "gacc/v1/common.pb-c.h"
#include "gacc/v1/job.pb-c.h"
#include "proto/bytes.h"
#include "rpc/upstream.h"

#include <stdio.h>
#include <string.h>

/* `own`: the name of this node. */
static void say(struct rpc_call *call, const Gacc__V1__Job *j, const char *own)
{
	const uint32_t rank = rpc_number(call);
	const unsigned long long id = j->id;
	if (rank >= j->n_ranks)
		rpc_failf(call, ST_INVALID_ARGUMENT, "rank is %u, and job %llu has %zu ranks", rank, id, j->n_ranks);
	else if (j->state >= GACC__V1__JOB_STATE__JOB_STATE_COMPLETED)
		rpc_failf(call, ST_JOB_ENDED, "job %llu has ended: %.200s", id, j->reason);
	else if (j->queue_position)
		rpc_failf(call, ST_NOT_READY, "job %llu waits in the queue: %.200s", id, j->reason);
	else if (strcmp(j->ranks[rank]->node, own) != 0)
		rpc_failf(call, ST_WRONG_NODE, "rank %u of job %llu is on node %.64s: attach at the gaccd there", rank,
			  id, j->ranks[rank]->node);
	else
		rpc_failf(call, ST_ENGINE_DOWN, "job %llu is being placed on this node", id);
}

/* The coordinator knows the job. */
static void on_known(struct rpc_call *call, struct grpc_byte_buffer *answer)
{
	struct ProtobufCMessage *m = NULL;
	const enum status st = bytes_from_buffer(&gacc__v1__get_response__descriptor, answer, &m);
	const Gacc__V1__GetResponse *r = (const Gacc__V1__GetResponse *)m;
	if (!st && r->job)
		say(call, r->job, daemon_of(call)->node.conf->node.name);
	else
		rpc_failf(call, st ? st : ST_MALFORMED, "the coordinator's answer to Get cannot be read");
	bytes_free(m);
}

static bool ask(struct rpc_call *call, const char *name, uint32_t rank)
{
	Gacc__V1__GetRequest q = GACC__V1__GET_REQUEST__INIT;
	q.job = (char *)name; /* not written to */
	rpc_set_number(call, rank);
	return rpc_ask(call, "/gacc.v1.JobService/Get", &q.base, on_known);
}

/* A node whose coordinator is away does not know the jobs that were placed on it meanwhile. */
void job_is_unknown(struct rpc_call *call, const char *name, uint32_t rank)
{
	struct daemon *d = daemon_of(call);
	if (d->away && (!node_dial_link(d) || !ask(call, name, rank))) {
		rpc_failf(call, ST_ENGINE_DOWN,
			  "no part of job \"%.100s\" is here so far, and there is no link to the coordinator at %.200s",
			  name, d->node.conf->cluster.coordinator);
		return;
	}
	if (d->away)
		return;
	struct rpc_error e = { .status = ST_JOB_NOT_FOUND,
			       .field = "job",
			       .hint = "check GACC_JOB_ID, or list jobs with: gaccctl jobs -a" };
	char text[160];
	snprintf(text, sizeof(text), "no job \"%.100s\" that you may see", name);
	e.message = text;
	rpc_fail(call, &e);
}
