/* SPDX-License-Identifier: Apache-2.0 */
/* What methods ask about their calls: who calls, which job is meant, whether the caller may change it; and errors that
 * several of them answer. Called by the method files and what they begin. Loop thread. */
#include "edge/caller.h"

#include <stdio.h>
#include <unistd.h>

uint32_t caller_uid(const struct rpc_call *call)
{
	const struct rpc_peer *p = rpc_peer(call);
	return p->is_unix || p->relayed ? p->uid : geteuid();
}

bool caller_is_local(const struct rpc_call *call)
{
	const struct rpc_peer *p = rpc_peer(call);
	return p->is_unix || (p->relayed && p->role == RPC_ROLE_NODE);
}

struct daemon *daemon_of(const struct rpc_call *call)
{
	return rpc_context(call);
}

struct now now_of(const struct rpc_call *call)
{
	return daemon_now(daemon_of(call));
}

/* ---- what a call points to ---- */

void keep_job(struct rpc_call *call, struct hosted *h)
{
	hosted_hold(h);
	rpc_set_data(call, h);
}

/* ---- the job that is meant ---- */

struct hosted *named_job(struct rpc_call *call, const char *name)
{
	struct hosted *h = hosted_find_named(daemon_of(call), name, caller_uid(call), false);
	if (h)
		return h;
	char text[160];
	snprintf(text, sizeof(text), "no job \"%.100s\" that you may see", name);
	struct rpc_error e = {
		.status = ST_JOB_NOT_FOUND, .message = text, .field = "job", .hint = "list jobs with: gaccctl jobs -a"
	};
	rpc_fail(call, &e);
	return NULL;
}

bool may_change(struct rpc_call *call, const struct hosted *h)
{
	if (hosted_is_of(h, caller_uid(call)))
		return true;
	rpc_failf(call, ST_PERMISSION_DENIED, "job %llu belongs to %s", (unsigned long long)h->id, h->user);
	return false;
}

#define ANSWER_NS (INT64_C(250) * 1000000) /* two ticks, and the way back */

int64_t answer_by_ns(const struct rpc_call *call)
{
	const int64_t left = rpc_deadline_left_ns(call);
	return left == INT64_MAX ? left : now_of(call).mono_ns + left - (left / 2 < ANSWER_NS ? left / 2 : ANSWER_NS);
}

/* ---- errors ---- */

void no_memory(struct rpc_call *call)
{
	rpc_failf(call, ST_NO_MEMORY, "no memory for the call");
}

void job_has_ended(struct rpc_call *call, const struct hosted *h)
{
	const char *reason;
	hosted_state(h, &reason, NULL);
	rpc_failf(call, ST_JOB_ENDED, "job %llu has ended: %s", (unsigned long long)h->id, reason);
}

enum status refusal_of(const struct hosted *h, enum status st)
{
	return st == ST_NOT_READY && h->params_durable ? ST_ENGINE_DOWN : st;
}
