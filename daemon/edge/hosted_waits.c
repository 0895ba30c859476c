/* SPDX-License-Identifier: Apache-2.0 */
/* Parks calls until their job has reached what they wait for: Wait a state or a step, Cancel the durable end; and
 * answers them. For their methods, the tick, and when a job's end is durable. Loop thread. */
#include "edge/hosted_waits.h"

#include "edge/caller.h"
#include "edge/whole_job.h"
#include "gacc/v1/job.pb-c.h"

#include <stdlib.h>
#include <string.h>

/* Time in one turn for the waiting calls of a job; each answer carries all its ranks. */
#define ANSWERS_NS (INT64_C(1) * 1000000)

struct wait_call {
	struct wait_call *next;
	uint64_t call;
	enum job_state state;  /* 0: any end, if no step is asked for either */
	uint64_t applied_step; /* 0: not asked for */
	int64_t until_ns;
	bool cancel; /* Cancel's answer, of a job that has ended */
};

static const char *state_name(enum job_state state)
{
	const ProtobufCEnumValue *v =
		protobuf_c_enum_descriptor_get_value(&gacc__v1__job_state__descriptor, (int)state);
	return v ? v->name + strlen("JOB_STATE_") : "UNKNOWN";
}

static uint64_t step_of(const struct hosted *h)
{
	return h->coord ? coord_applied_step(h->coord) : h->end.step;
}

/* Has a job in state `now` come as far as `asked`? A failed one may never have run, so it does not count, and one
 * that is COMPLETING may still fail. */
static bool state_reached(enum job_state asked, enum job_state now)
{
	bool past_start = now >= JOB_RUNNING && now <= JOB_COMPLETED && now != JOB_COMPLETING;
	switch (asked) {
	case JOB_PENDING:
		return true;
	case JOB_STARTING:
		return now == JOB_STARTING || past_start;
	case JOB_RUNNING:
		return past_start;
	default:
		return now == asked;
	}
}

static bool reached(const struct wait_call *w, const struct hosted *h)
{
	if (w->applied_step && step_of(h) >= w->applied_step)
		return true;
	if (w->state)
		return state_reached(w->state, hosted_state(h, NULL, NULL));
	return !w->applied_step && hosted_ended(h);
}

static void answer_reached(struct rpc_call *call, Gacc__V1__Job *job, int cancel)
{
	Gacc__V1__WaitResponse waited = GACC__V1__WAIT_RESPONSE__INIT;
	Gacc__V1__CancelResponse cancelled = GACC__V1__CANCEL_RESPONSE__INIT;
	waited.job = cancelled.job = job;
	rpc_finish(call, cancel ? &cancelled.base : &waited.base);
}

/* Answers it if there is an answer; false: it goes on waiting. */
static bool answer(const struct wait_call *w, struct rpc_call *call, struct hosted *h, struct now now)
{
	const char *reason;
	enum job_state state = hosted_state(h, &reason, NULL);
	unsigned long long step = step_of(h);
	if (reached(w, h)) {
		with_whole_job(call, h, 0, answer_reached, w->cancel);
	} else if (hosted_ended(h)) {
		rpc_failf(call, ST_JOB_ENDED, "job %llu has ended as %s at step %llu: %s", (unsigned long long)h->id,
			  state_name(state), step, reason);
	} else if (now.mono_ns >= w->until_ns) {
		rpc_failf(call, ST_DEADLINE, "job %llu is %s at step %llu: %s", (unsigned long long)h->id,
			  state_name(state), step, *reason ? reason : "nothing is wrong with it");
	} else {
		return false;
	}
	return true;
}

static void forget(struct hosted *h, uint64_t call)
{
	for (struct wait_call **at = &h->waits; *at; at = &(*at)->next)
		if ((*at)->call == call) {
			struct wait_call *w = *at;
			*at = w->next;
			free(w);
			return;
		}
}

struct rest {
	struct posted posted; /* first */
	struct daemon *d;
	uint64_t job;
};

static void answer_rest(struct posted *p)
{
	struct rest *r = (struct rest *)p;
	struct hosted *h = hosted_find(r->d, r->job);
	if (h)
		hosted_waits(h, daemon_now(h->d));
	free(r);
}

/* In the next turn; without memory with the next tick. */
static void answer_later(struct hosted *h)
{
	struct rest *r = malloc(sizeof(*r));
	if (!r)
		return;
	*r = (struct rest){ .d = h->d, .job = h->id };
	daemon_post(h->d, &r->posted, answer_rest);
}

void hosted_waits(struct hosted *h, struct now now)
{
	int64_t until = daemon_now(h->d).mono_ns + ANSWERS_NS;
	for (struct wait_call *w = h->waits, *next; w; w = next) {
		struct rpc_call *call = rpc_find(h->d->rpc, w->call);
		next = w->next;
		if (call && !answer(w, call, h, now))
			continue;
		forget(h, w->call);
		if (next && daemon_now(h->d).mono_ns >= until) {
			answer_later(h);
			return;
		}
	}
}

void hosted_wait_over(struct rpc_call *call, bool completed)
{
	struct hosted *h = rpc_data(call);
	if (!h)
		return;
	forget(h, rpc_id(call));
	hosted_drop(h);
}

static void park(const struct wait_call *w, struct rpc_call *call, struct hosted *h)
{
	if (answer(w, call, h, daemon_now(h->d)))
		return;
	struct wait_call *kept = malloc(sizeof(*kept));
	if (!kept) {
		no_memory(call);
		return;
	}
	*kept = *w;
	kept->next = h->waits;
	h->waits = kept;
	keep_job(call, h);
}

void hosted_wait(struct rpc_call *call, struct hosted *h, const struct wait_for *f)
{
	struct wait_call w = {
		.call = rpc_id(call), .state = f->state, .applied_step = f->applied_step, .until_ns = f->until_ns
	};
	park(&w, call, h);
}

void hosted_wait_cancelled(struct rpc_call *call, struct hosted *h)
{
	struct wait_call w = { .call = rpc_id(call), .until_ns = INT64_MAX, .cancel = true };
	park(&w, call, h);
}
