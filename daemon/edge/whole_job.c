/* SPDX-License-Identifier: Apache-2.0 */
/* Answers that carry a whole job: at once, or, when the job has been retired, with its specification read from the
 * journal. For the job methods. Loop thread; the journal's thread reads. */
#include "edge/whole_job.h"

#include "edge/caller.h"
#include "edge/hosted_past.h"
#include "edge/hosted_view.h"
#include "gacc/v1/job.pb-c.h"
#include "runtime/persist.h"

#include <stdlib.h>

struct past_answer {
	struct persist_read read; /* first */
	struct hosted *h;
	uint64_t job, call;
	unsigned parts;
	whole_job_fn *then;
	int arg;
	enum status status;
	struct hosted_past_whole whole;
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
	return hosted_past_read(arg, b);
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
		struct rpc_call *call = rpc_find(p->h->d->rpc, p->call);
		daemon_check_store(p->status);
		hosted_drop(p->h);
		if (call && p->status)
			rpc_failf(call, p->status, "job %llu cannot be read from the journal: gaccd's log says why",
				  (unsigned long long)p->job);
		else if (call)
			give(call, hosted_past_whole(p->h, &p->whole, p->parts), p->then, p->arg);
	}
	hosted_past_free(&p->whole);
	free(p);
}

void with_whole_job(struct rpc_call *call, struct hosted *h, unsigned parts, whole_job_fn *then, int arg)
{
	parts |= VIEW_RANKS | VIEW_SPEC;
	if (h->text->pb) {
		give(call, hosted_view(h, parts, daemon_now(h->d)), then, arg);
		return;
	}
	struct past_answer *p = malloc(sizeof(*p));
	if (!p) {
		no_memory(call);
		return;
	}
	*p = (struct past_answer){ .read = { .read = read_job, .done = job_read },
				   .h = h,
				   .job = h->id,
				   .call = rpc_id(call),
				   .parts = parts,
				   .then = then,
				   .arg = arg };
	hosted_hold(h);
	persist_read(h->d->persist, &p->read);
}
