/* SPDX-License-Identifier: Apache-2.0 */
/* Answers trainers whose session has no part here: their job has been retired (hosted_retire.c), or there is none. For
 * the methods of sessions. Loop thread. */
#include "edge/ended.h"

#include "edge/caller.h"
#include "edge/reply.h"
#include "gacc/v1/gradient.pb-c.h"

#include <stdio.h>

/* Its sessions are gone; its owner may be told how it ended. */
static const struct hosted *ended_job(struct rpc_call *call, const Gacc__V1__Session *s)
{
	const struct hosted *h = s ? hosted_find(daemon_of(call), session_job_id(s->id)) : NULL;
	return h && !h->coord && hosted_is_of(h, caller_uid(call)) ? h : NULL;
}

static void no_session(struct rpc_call *call, const Gacc__V1__Session *s)
{
	char text[128];
	struct rpc_error e = { .status = ST_SESSION_UNKNOWN, .message = text, .field = "session" };
	if (!s)
		snprintf(text, sizeof(text), "session is missing");
	else if (s->token.len != 16)
		snprintf(text, sizeof(text), "session.token has %zu bytes, must have 16", s->token.len);
	else
		snprintf(text, sizeof(text), "session %llu is of no job here", (unsigned long long)s->id);
	rpc_fail(call, &e);
}

void session_refuse(struct rpc_call *call, const Gacc__V1__Session *s)
{
	const struct hosted *h = ended_job(call, s);
	if (h)
		job_has_ended(call, h);
	else
		no_session(call, s);
}

bool push_is_over(struct rpc_call *call, const Gacc__V1__PushRequest *q)
{
	const struct hosted *h = ended_job(call, q->session);
	uint32_t rank = q->session ? session_rank(q->session->id) : 0;
	if (!h || !h->end.counted || q->window != h->end.commit.window || rank >= h->spec->ranks ||
	    q->micro >= h->spec->max_micro_size ||
	    !control_bit(h->end.counted, h->spec->max_micro_size, rank, q->micro))
		return false;
	Gacc__V1__PushResponse r = GACC__V1__PUSH_RESPONSE__INIT;
	r.result = GACC__V1__PUSH_RESULT__PUSH_RESULT_ALREADY_COMMITTED;
	r.window = q->window;
	r.micro_size = h->end.commit.micro_size;
	r.parked_for_rank = rank;
	rpc_finish(call, &r.base);
	return true;
}

bool wait_step_is_over(struct rpc_call *call, const Gacc__V1__WaitStepRequest *q)
{
	const struct hosted *h = ended_job(call, q->session);
	if (!h || !h->end.commit.outcome || h->end.commit.window != q->window)
		return false;
	struct reply r = { .kind = REPLY_STEP };
	r.step.commit = h->end.commit;
	r.step.micro_size = h->end.commit.next_micro_size;
	r.step.done = true;
	reply_now(NULL, call, &r);
	return true;
}

bool detach_is_over(struct rpc_call *call, const Gacc__V1__DetachRequest *q)
{
	if (!ended_job(call, q->session))
		return false;
	reply_now(NULL, call, &(struct reply){ .kind = REPLY_EMPTY });
	return true;
}
