/* SPDX-License-Identifier: Apache-2.0 */
/* Answers that carry a whole job: at once, or, when it is over, with its specification from the journal. */
#include "edge/methods.h"

#include "edge/live_past.h"
#include "gacc/v1/job.pb-c.h"
#include "runtime/persist.h"

#include <stdlib.h>

struct past_answer {
	struct persist_read read; /* first */
	struct live_job *l;
	uint64_t job, call;
	unsigned parts;
	whole_job_fn *then;
	int arg;
	enum status status;
	struct live_past_whole whole;
};

static void give(struct rpc_call *call, Gacc__V1__Job *j, whole_job_fn *then, int arg)
{
	if (!j) {
		no_memory(call);
		return;
	}
	then(call, j, arg);
	gacc__v1__job__free_unpacked(j, NULL);
}

static enum status on_job(void *arg, const struct journal_job *b)
{
	return live_past_read(arg, b);
}

static void read_job(struct persist_read *r, struct journal *journal)
{
	struct past_answer *p = (struct past_answer *)r;
	p->status = journal_read_job(journal, p->job, on_job, &p->whole);
}

static void job_read(struct persist_read *r, bool muted)
{
	struct past_answer *p = (struct past_answer *)r;
	if (!muted) { /* else the job is gone */
		struct rpc_call *call = rpc_find(p->l->d->rpc, p->call);
		live_check_store(p->status);
		live_drop(p->l);
		if (call && p->status)
			rpc_failf(call, p->status, "job %llu cannot be read from the journal: gaccd's log says why",
				  (unsigned long long)p->job);
		else if (call)
			give(call, live_past_whole(p->l, &p->whole, p->parts), p->then, p->arg);
	}
	live_past_free(&p->whole);
	free(p);
}

void with_whole_job(struct rpc_call *call, struct live_job *l, unsigned parts, whole_job_fn *then, int arg)
{
	parts |= VIEW_RANKS | VIEW_SPEC;
	if (l->text->pb) {
		give(call, live_view(l, parts, daemon_now(l->d)), then, arg);
		return;
	}
	struct past_answer *p = malloc(sizeof(*p));
	if (!p) {
		no_memory(call);
		return;
	}
	*p = (struct past_answer){ .read = { .read = read_job, .done = job_read },
				   .l = l,
				   .job = l->id,
				   .call = rpc_id(call),
				   .parts = parts,
				   .then = then,
				   .arg = arg };
	live_hold(l);
	persist_read(l->d->persist, &p->read);
}
