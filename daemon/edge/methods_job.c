/* SPDX-License-Identifier: Apache-2.0 */
/* gacc.v1.JobService and NodeService, as far as no other file has their methods: Submit, Get, List, Watch, Wait,
 * Cancel, Flush and GetNode. Called by the RPC server. Loop thread; a large specification in Submit is prepared in the
 * pool. */
#include "edge/methods.h"

#include "edge/caller.h"
#include "edge/device_access.h"
#include "edge/disk_watch.h"
#include "edge/hosted_aside.h"
#include "edge/hosted_submit.h"
#include "edge/hosted_view.h"
#include "edge/hosted_waits.h"
#include "edge/launching.h"
#include "edge/state_share.h"
#include "edge/whole_job.h"
#include "gacc/v1/job.pb-c.h"
#include "gacc/v1/node.pb-c.h"
#include "math/kernels.h"
#include "proto/version.h"
#include "runtime/prepared.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Submit ---- */

struct pending {
	struct daemon *d;
	uint64_t call;
	bool restores;
};

static const char *submit_hint(enum status st, const char *why, bool restores)
{
	if (st == ST_RESOURCE_EXHAUSTED)
		return submit_hint_full(why);
	if (restores &&
	    (st == ST_INVALID_ARGUMENT || st == ST_MALFORMED || st == ST_LAYOUT_MISMATCH || st == ST_VERSION_SKEW))
		return "restore_from needs a whole checkpoint of a job with the same tensors and optimizer; see: "
		       "gaccctl checkpoint list JOB";
	return NULL;
}

static void answer_submit(struct rpc_call *call, Gacc__V1__Job *job, int existed)
{
	Gacc__V1__SubmitResponse m = GACC__V1__SUBMIT_RESPONSE__INIT;
	m.existed = existed;
	m.job = job;
	rpc_finish(call, &m.base);
}

static void on_submitted(void *arg, struct hosted *h, bool existed, enum status st, const char *why, const char *field)
{
	struct pending *p = arg;
	struct rpc_call *call = rpc_find(p->d->rpc, p->call);
	bool restores = p->restores;
	free(p);
	if (!call)
		return;
	if (!h) {
		struct rpc_error e = {
			.status = st, .message = why, .field = field, .hint = submit_hint(st, why, restores)
		};
		rpc_fail(call, &e);
		return;
	}
	with_whole_job(call, h, 0, answer_submit, existed);
}

static void *prepare_submit(const struct ProtobufCMessage *m)
{
	return prepare_spec(((const Gacc__V1__SubmitRequest *)m)->spec);
}

static void submit(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__SubmitRequest *q = (const Gacc__V1__SubmitRequest *)m;
	struct prepared *spec = rpc_prepared(call);
	if (!q->spec || q->request_id.len != 16) {
		if (q->spec)
			rpc_failf(call, ST_INVALID_ARGUMENT, "request_id has %zu bytes, must have 16",
				  q->request_id.len);
		else
			rpc_failf(call, ST_INVALID_ARGUMENT, "spec is missing");
		return;
	}
	struct pending *p = spec ? malloc(sizeof(*p)) : NULL;
	if (!p) {
		no_memory(call);
		return;
	}
	*p = (struct pending){ daemon_of(call), rpc_id(call), q->spec->restore_from[0] != '\0' };
	char user[64];
	hosted_user_name(caller_uid(call), user, sizeof(user));
	struct submit s = { .prepared = spec,
			    .uid = caller_uid(call),
			    .user = user,
			    .local = caller_is_local(call),
			    .cb = on_submitted,
			    .arg = p,
			    .by_ns = answer_by_ns(call) };
	memcpy(s.request_id, q->request_id.data, 16);
	hosted_submit(p->d, &s);
}

/* ---- looking ---- */

static void answer_get(struct rpc_call *call, Gacc__V1__Job *job, int arg)
{
	Gacc__V1__GetResponse r = GACC__V1__GET_RESPONSE__INIT;
	r.job = job;
	rpc_finish(call, &r.base);
}

static void get(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__GetRequest *q = (const Gacc__V1__GetRequest *)m;
	struct hosted *h = named_job(call, q->job);
	if (h)
		with_whole_job(call, h, VIEW_EVENTS, answer_get, 0);
}

#define LIST_MAX 1000 /* newest first; a page is not worth a protocol yet */

static void list(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__ListRequest *q = (const Gacc__V1__ListRequest *)m;
	struct daemon *d = daemon_of(call);
	uint32_t uid = caller_uid(call), ranks_left = VIEW_MAX_RANKS;
	Gacc__V1__ListResponse r = GACC__V1__LIST_RESPONSE__INIT;
	r.jobs = calloc(LIST_MAX, sizeof(*r.jobs));
	for (uint32_t i = d->n_jobs; r.jobs && i-- > 0 && r.n_jobs < LIST_MAX;) {
		struct hosted *h = d->job[i];
		if (!hosted_is_of(h, uid) || (hosted_ended(h) && !q->all))
			continue;
		bool brief = h->spec->ranks > ranks_left;
		Gacc__V1__Job *j = hosted_view(h, brief ? 0 : VIEW_RANKS, now_of(call));
		if (!j)
			break;
		ranks_left -= brief ? 0 : h->spec->ranks;
		r.jobs[r.n_jobs++] = j;
	}
	rpc_finish(call, &r.base);
	for (size_t i = 0; i < r.n_jobs; i++)
		gacc__v1__job__free_unpacked(r.jobs[i], NULL);
	free(r.jobs);
}

/* A watch ends before its job only when the client leaves. */
static void watch_over(struct rpc_call *call, bool completed)
{
	struct hosted *h = rpc_data(call);
	if (!h)
		return;
	calls_remove(&h->watchers, rpc_id(call));
	hosted_drop(h);
}

static void send_first(struct rpc_call *call, Gacc__V1__Job *job, int goes_on)
{
	Gacc__V1__WatchResponse r = GACC__V1__WATCH_RESPONSE__INIT;
	r.job = job;
	rpc_send(call, &r.base);
	if (!goes_on)
		rpc_finish(call, NULL);
}

static void watch(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__WatchRequest *q = (const Gacc__V1__WatchRequest *)m;
	struct hosted *h = named_job(call, q->job);
	if (!h)
		return;
	bool goes_on = !hosted_ended(h);
	if (goes_on && !calls_add(&h->watchers, rpc_id(call), RANK_NONE)) {
		no_memory(call);
		return;
	}
	if (goes_on)
		keep_job(call, h);
	with_whole_job(call, h, 0, send_first, goes_on);
}

/* ---- waiting ---- */

static void wait_for(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__WaitRequest *q = (const Gacc__V1__WaitRequest *)m;
	struct hosted *h = named_job(call, q->job);
	if (!h)
		return;
	if (q->state < 0 || q->state > GACC__V1__JOB_STATE__JOB_STATE_NODE_FAIL) {
		rpc_failf(call, ST_INVALID_ARGUMENT, "state %d is unknown: name one of gacc.v1.JobState",
			  (int)q->state);
		return;
	}
	struct wait_for w = { .state = (enum job_state)q->state,
			      .applied_step = q->applied_step,
			      .until_ns = INT64_MAX };
	if (q->timeout_ms && q->timeout_ms < INT64_MAX / 2000000)
		w.until_ns = now_of(call).mono_ns + (int64_t)q->timeout_ms * 1000000;
	hosted_wait(call, h, &w);
}

/* ---- changing ---- */

static void answer_cancelled(struct rpc_call *call, Gacc__V1__Job *job, int arg)
{
	Gacc__V1__CancelResponse r = GACC__V1__CANCEL_RESPONSE__INIT;
	r.job = job;
	rpc_finish(call, &r.base);
}

/* Why the job ends: the failure in the caller's words, or who cancelled it and why. */
static void describe_cancel(const Gacc__V1__CancelRequest *q, uint32_t uid, char *out, size_t n)
{
	char user[64];
	if (q->failed) {
		snprintf(out, n, "%.200s", q->reason);
		return;
	}
	hosted_user_name(uid, user, sizeof(user));
	snprintf(out, n, "cancelled by %s%s%.150s", user, *q->reason ? ": " : "", q->reason);
}

static void cancel(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__CancelRequest *q = (const Gacc__V1__CancelRequest *)m;
	struct hosted *h = named_job(call, q->job);
	if (!h || !may_change(call, h))
		return;
	if (q->grace_ms > SPEC_MAX_GRACE_NS / 1000000) {
		rpc_failf(call, ST_INVALID_ARGUMENT, "grace_ms is %llu, at most an hour is allowed",
			  (unsigned long long)q->grace_ms);
		return;
	}
	if (q->failed && !*q->reason) {
		rpc_failf(call, ST_INVALID_ARGUMENT,
			  "failed is set, but reason is empty: name the rank that has failed");
		return;
	}
	launching_cancel(h, (int64_t)q->grace_ms * 1000000);
	if (h->aside) {
		char reason[256];
		describe_cancel(q, caller_uid(call), reason, sizeof(reason));
		hosted_aside_give_up(h, reason);
	}
	if (!hosted_ended(h)) {
		enum status end = q->failed ? ST_RANK_FAILED : ST_CANCELLED;
		char reason[256];
		describe_cancel(q, caller_uid(call), reason, sizeof(reason));
		coord_end(h->coord, end, reason, now_of(call));
		if (coord_end_status(h->coord) == end) { /* else it ends anyway, after a last checkpoint perhaps */
			hosted_wait_cancelled(call, h);
			return;
		}
	}
	with_whole_job(call, h, 0, answer_cancelled, 0);
}

static void flush(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__FlushJobRequest *q = (const Gacc__V1__FlushJobRequest *)m;
	struct hosted *h = named_job(call, q->job);
	Gacc__V1__FlushJobResponse r = GACC__V1__FLUSH_JOB_RESPONSE__INIT;
	if (!h || !may_change(call, h))
		return;
	enum status st = hosted_ended(h) ? ST_JOB_ENDED : refusal_of(h, coord_flush(h->coord, &r.window, now_of(call)));
	if (st)
		rpc_failf(call, st, "job %llu: %s", (unsigned long long)h->id, status_info(st)->text);
	else
		rpc_finish(call, &r.base);
}

/* ---- the node ---- */

static void fill_disk(const struct daemon *d, uint32_t uid, Gacc__V1__StateDisk *out)
{
	struct state_use use = state_share_of(d, uid);
	struct disk_state is = disk_watch_state(d);
	out->total = is.total;
	out->free = is.free;
	out->full = is.full;
	out->journal_reserve = is.reserve;
	out->journal_reserve_limit = is.wanted;
	out->user_checkpoints = use.checkpoints;
	out->user_logs = use.logs;
	out->user_limit = use.limit;
}

struct access_messages {
	Gacc__V1__DeviceAccess all;
	Gacc__V1__DeviceNode node[DEVICE_NODES_MAX], *nodes[DEVICE_NODES_MAX];
};

/* The messages borrow from `access`. */
static void fill_access(struct device_access *access, struct access_messages *out)
{
	gacc__v1__device_access__init(&out->all);
	out->all.memlock_limit = access->memlock;
	out->all.n_nodes = access->n;
	out->all.nodes = out->nodes;
	for (uint32_t i = 0; i < access->n; i++) {
		gacc__v1__device_node__init(&out->node[i]);
		out->node[i].path = access->node[i].path;
		out->node[i].error = (char *)access->node[i].error;
		out->nodes[i] = &out->node[i];
	}
}

static void get_node(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const struct daemon *d = daemon_of(call);
	Gacc__V1__GetNodeResponse r = GACC__V1__GET_NODE_RESPONSE__INIT;
	const struct kernels *k =
		kernels_get(strcmp(d->node.conf->engine.kernels, "auto") ? d->node.conf->engine.kernels : NULL);
	r.name = d->node.conf->node.name;
	r.version = (char *)GACC_VERSION;
	r.protocol = PROTOCOL_VERSION;
	r.pid = getpid();
	r.started_unix_nanos = d->started_unix_ns;
	r.incarnation = d->node.incarnation;
	for (uint32_t i = 0; i < d->n_jobs; i++)
		r.jobs += !hosted_ended(d->job[i]);
	r.host_bytes_used = d->node.host_bytes;
	r.host_bytes_limit = d->node.conf->limits.host_memory;
	r.kernels = (char *)(k ? k->name : "none");
	r.cpus = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
	r.draining = d->node.stopping;
	r.term = d->term;
	Gacc__V1__StateDisk disk = GACC__V1__STATE_DISK__INIT;
	fill_disk(d, caller_uid(call), &disk);
	r.state_disk = &disk;
	r.longest_turn_ns = (int64_t)d->turns.longest_ns;
	r.recent_turn_ns = (int64_t)turns_recent_ns(&d->turns);
	r.certificate_fault = (char *)d->certificate.fault;
	r.certificate_note = (char *)d->certificate.note;
	r.certificate_expires_unix = d->certificate.expires_unix;
	struct device_access access;
	struct access_messages told;
	device_access_read("/dev", &access);
	fill_access(&access, &told);
	r.device_access = &told.all;
	rpc_finish(call, &r.base);
}

#define JOB(name_, handler, flags_)                                                                                    \
	{                                                                                                              \
		.service = &gacc__v1__job_service__descriptor, .name = name_, .kind = RPC_UNARY,                       \
		.flags = RPC_RELAY | (flags_), .on_message = handler                                                   \
	}

const struct rpc_method job_methods[] = {
	{ .service = &gacc__v1__job_service__descriptor,
	  .name = "Submit",
	  .kind = RPC_UNARY,
	  .flags = RPC_NEEDS_DEADLINE | RPC_RELAY,
	  .prepare = prepare_submit,
	  .discard = discard_spec,
	  .on_message = submit },
	JOB("Get", get, 0),
	JOB("List", list, 0),
	{ .service = &gacc__v1__job_service__descriptor,
	  .name = "Cancel",
	  .kind = RPC_UNARY,
	  .flags = RPC_NEEDS_DEADLINE | RPC_RELAY,
	  .on_message = cancel,
	  .on_end = hosted_wait_over },
	JOB("Flush", flush, RPC_NEEDS_DEADLINE),
	{ .service = &gacc__v1__job_service__descriptor,
	  .name = "Wait",
	  .kind = RPC_UNARY,
	  .flags = RPC_NEEDS_DEADLINE | RPC_ENDS_ON_DRAIN | RPC_RELAY,
	  .on_message = wait_for,
	  .on_end = hosted_wait_over },
	{ .service = &gacc__v1__job_service__descriptor,
	  .name = "Watch",
	  .kind = RPC_SERVER_STREAM,
	  .flags = RPC_ENDS_ON_DRAIN | RPC_RELAY,
	  .on_message = watch,
	  .on_end = watch_over },
};
const size_t n_job_methods = sizeof(job_methods) / sizeof(*job_methods);

const struct rpc_method node_methods[] = {
	{ .service = &gacc__v1__node_service__descriptor,
	  .name = "GetNode",
	  .kind = RPC_UNARY,
	  .on_message = get_node },
};
const size_t n_node_methods = sizeof(node_methods) / sizeof(*node_methods);
