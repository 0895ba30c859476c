/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of gacc.v1.JobService that steer a running job or look into it: Pause, Resume, Update and TensorNorms.
 * Called by the RPC server. Loop thread; the first three answer when the journal has their record. */
#include "edge/methods.h"

#include "cluster/job_records.h"
#include "edge/caller.h"
#include "edge/hosted_norms.h"
#include "edge/hosted_view.h"
#include "edge/restoring.h"
#include "gacc/v1/job.pb-c.h"
#include "runtime/persist.h"

#include <stdio.h>
#include <stdlib.h>

/* The job that this caller may change and that goes on; NULL: answered. */
static struct hosted *running_job(struct rpc_call *call, const char *name)
{
	struct hosted *h = named_job(call, name);
	if (!h || !may_change(call, h))
		return NULL;
	if (!hosted_ended(h) && coord_phase(h->coord) < COORD_ENDING)
		return h;
	job_has_ended(call, h);
	return NULL;
}

/* ---- Pause, Resume ---- */

/* A call that is answered when its record is durable. `then` gets NULL when the caller has gone meanwhile. */
struct durable_call {
	struct hosted *h;
	uint64_t call;
	void (*then)(struct rpc_call *, const struct durable_call *);
	uint64_t window; /* of an update */
	bool pause;	 /* of a hold; else it is a resume */
	char who[256];	 /* pauses or resumes, and why */
};

static void on_durable(void *arg, enum status st)
{
	const struct durable_call *p = arg;
	daemon_check_store(st);
	hosted_drop(p->h);
	struct rpc_call *call = rpc_find(p->h->d->rpc, p->call);
	if (call && st)
		rpc_failf(call, st, "job %llu: %s", (unsigned long long)p->h->id, status_info(st)->text);
	else if (!st)
		p->then(call, p);
}

/* Queues the record; false: answered with an error, nothing has changed. `d` is copied. */
static bool persist_then(struct rpc_call *call, const struct durable_call *d, const struct journal_record *r)
{
	struct durable_call *p = malloc(sizeof(*p));
	if (p)
		*p = *d;
	if (p && persist_put_own(d->h->d->persist, r, on_durable, p) == ST_OK) {
		hosted_hold(d->h);
		return true;
	}
	rpc_failf(call, ST_NO_MEMORY, "no memory to write to the journal");
	return false;
}

/* Pauses the job, or lets it go on. In the order of the journal, and only when durable: a window that closed before its
 * resume is on the disk would have closed in a paused job, if gaccd died in between. */
static void hold_now(struct rpc_call *call, const struct durable_call *d)
{
	struct now now = daemon_now(d->h->d);
	if (d->pause)
		coord_pause(d->h->coord, d->who, now);
	else
		coord_resume(d->h->coord, d->who, now);
	if (!call)
		return;
	Gacc__V1__PauseResponse paused = GACC__V1__PAUSE_RESPONSE__INIT;
	Gacc__V1__ResumeResponse resumed = GACC__V1__RESUME_RESPONSE__INIT;
	Gacc__V1__Job *job = hosted_view(d->h, VIEW_RANKS | VIEW_SPEC, now);
	if (!job) {
		no_memory(call);
		return;
	}
	paused.job = resumed.job = job;
	rpc_finish(call, d->pause ? &paused.base : &resumed.base);
	gacc__v1__job__free_unpacked(job, NULL);
}

static void hold_job(struct rpc_call *call, const char *name, bool pause, const char *why)
{
	struct hosted *h = running_job(call, name);
	if (!h)
		return;
	struct durable_call d = { .h = h, .call = rpc_id(call), .then = hold_now, .pause = pause };
	char user[64];
	hosted_user_name(caller_uid(call), user, sizeof(user));
	snprintf(d.who, sizeof(d.who), "%s by %s%s%.150s", pause ? "paused" : "resumed", user, *why ? ": " : "", why);
	struct journal_record r = { .kind = JOURNAL_HOLD, .hold = { h->id, pause ? d.who : NULL } };
	persist_then(call, &d, &r);
}

static void pause_job(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__PauseRequest *q = (const Gacc__V1__PauseRequest *)m;
	hold_job(call, q->job, true, q->reason);
}

static void resume_job(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__ResumeRequest *q = (const Gacc__V1__ResumeRequest *)m;
	hold_job(call, q->job, false, "");
}

/* ---- Update ---- */

static struct update update_of(const Gacc__V1__UpdateRequest *q)
{
	struct update u = { .window = q->window };
	const Gacc__V1__JobValues *v = q->values;
	if (!v)
		return u;
	if (v->micro_size)
		u.set |= VALUE_MICRO_SIZE;
	if (v->lr_value_case == GACC__V1__JOB_VALUES__LR_VALUE_LR)
		u.set |= VALUE_LR;
	if (v->clip_norm_value_case == GACC__V1__JOB_VALUES__CLIP_NORM_VALUE_CLIP_NORM)
		u.set |= VALUE_CLIP_NORM;
	if (v->clip_value_value_case == GACC__V1__JOB_VALUES__CLIP_VALUE_VALUE_CLIP_VALUE)
		u.set |= VALUE_CLIP_VALUE;
	u.to.micro_size = v->micro_size;
	u.to.lr = u.set & VALUE_LR ? v->lr : 0;
	u.to.clip_norm = u.set & VALUE_CLIP_NORM ? v->clip_norm : 0;
	u.to.clip_value = u.set & VALUE_CLIP_VALUE ? v->clip_value : 0;
	return u;
}

static void answer_update(struct rpc_call *call, const struct durable_call *d)
{
	Gacc__V1__UpdateResponse r = GACC__V1__UPDATE_RESPONSE__INIT;
	r.window = d->window;
	if (call)
		rpc_finish(call, &r.base);
}

static void update_job(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__UpdateRequest *q = (const Gacc__V1__UpdateRequest *)m;
	struct hosted *h = running_job(call, q->job);
	if (!h)
		return;
	if (restoring_awaits_base(h)) {
		rpc_failf(call, ST_NOT_READY,
			  "job %llu has not read its checkpoint yet: its values can change when it is RUNNING",
			  (unsigned long long)h->id);
		return;
	}
	struct update u = update_of(q);
	char why[256] = "";
	const char *field;
	enum status st = coord_prepare_update(h->coord, &u, &field, why, sizeof(why));
	if (st) {
		struct rpc_error e = { .status = st, .message = why[0] ? why : NULL, .field = field };
		rpc_fail(call, &e);
		return;
	}
	size_t n;
	void *payload = update_record_pack(&u, &n);
	if (!payload) {
		no_memory(call);
		return;
	}
	struct journal_record r = { .kind = JOURNAL_UPDATE, .update = { h->id, u.window, { payload, n } } };
	struct durable_call d = { .h = h, .call = rpc_id(call), .then = answer_update, .window = u.window };
	if (persist_then(call, &d, &r))
		coord_take_update(h->coord, &u);
	free(payload);
}

/* ---- TensorNorms ---- */

static void tensor_norms(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__TensorNormsRequest *q = (const Gacc__V1__TensorNormsRequest *)m;
	struct hosted *h = named_job(call, q->job);
	char why[200];
	if (!h)
		return;
	enum status st = hosted_norms_add(h, rpc_id(call), why, sizeof(why));
	if (!st)
		keep_job(call, h);
	else if (st == ST_NO_MEMORY)
		no_memory(call);
	else
		rpc_failf(call, st, "job %llu: %s", (unsigned long long)h->id, *why ? why : status_info(st)->text);
}

static void norms_over(struct rpc_call *call, bool completed)
{
	struct hosted *h = rpc_data(call);
	if (!h)
		return;
	hosted_norms_remove(h, rpc_id(call));
	hosted_drop(h);
}

#define JOB(name_, handler, ...)                                                                                       \
	{                                                                                                              \
		.service = &gacc__v1__job_service__descriptor, .name = name_, .kind = RPC_UNARY,                       \
		.flags = RPC_NEEDS_DEADLINE | RPC_RELAY, .on_message = handler, __VA_ARGS__                            \
	}

const struct rpc_method control_methods[] = {
	JOB("Pause", pause_job),
	JOB("Resume", resume_job),
	JOB("Update", update_job),
	JOB("TensorNorms", tensor_norms, .on_end = norms_over),
};
const size_t n_control_methods = sizeof(control_methods) / sizeof(*control_methods);
