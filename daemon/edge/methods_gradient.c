/* SPDX-License-Identifier: Apache-2.0 */
/* gacc.v1.GradientService, except its inline streams: finds the session's part and passes the call to its state
 * machine. Called by the RPC server. Loop thread; a large specification in Attach is prepared in the pool. */
#include "edge/methods_gradient.h"

#include "edge/caller.h"
#include "edge/ended.h"
#include "edge/hosted_nodes.h"
#include "edge/hosted_submit.h"
#include "edge/methods.h"
#include "edge/registering.h"
#include "edge/reply.h"
#include "edge/unknown_job.h"
#include "gacc/v1/gradient.pb-c.h"
#include "proto/version.h"
#include "runtime/spec_message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct part *session_find(struct rpc_call *call, const Gacc__V1__Session *s, struct session_key *out)
{
	struct node *n = &daemon_of(call)->node;
	struct part *part = s ? part_for_rank(n, session_job_id(s->id), session_rank(s->id)) : NULL;
	if (!part || s->token.len != 16)
		return NULL;
	part_hear_engine(part);
	part = part_for_rank(n, session_job_id(s->id),
			     session_rank(s->id)); /* what the engine has said may be the end of it */
	if (!part)
		return NULL;
	out->rank = session_rank(s->id);
	out->uid = caller_uid(call);
	out->pid = rpc_peer(call)->is_unix ? rpc_peer(call)->pid : 0;
	memcpy(out->token, s->token.data, 16);
	return part;
}

struct part *checked_session(struct rpc_call *call, const Gacc__V1__Session *s, struct session_key *out)
{
	struct reply why;
	struct part *part = session_find(call, s, out);
	if (!part)
		session_refuse(call, s);
	else if (job_session_ok(part->job, out, &why))
		return part;
	else
		reply_fail(call, &why);
	return NULL;
}

/* The call points to the part from now on; forget_call ends that. */
static void keep_part(struct rpc_call *call, struct part *part)
{
	part_hold(part);
	rpc_set_data(call, part);
}

/* session_find for a unary call, which then keeps the part, and the rank as its number. */
static struct part *session_part(struct rpc_call *call, const Gacc__V1__Session *s, struct session_key *out)
{
	struct part *part = session_find(call, s, out);
	if (!part)
		return NULL;
	keep_part(call, part);
	rpc_set_number(call, out->rank);
	return part;
}

/* The same; NULL: answered with an error. */
static struct part *needed_part(struct rpc_call *call, const Gacc__V1__Session *s, struct session_key *out)
{
	struct part *part = session_part(call, s, out);
	if (!part)
		session_refuse(call, s);
	return part;
}

/* on_end of a unary call: the part forgets it. */
static void forget_call(struct rpc_call *call, bool completed)
{
	struct part *part = rpc_data(call);
	if (!part)
		return;
	if (!completed)
		job_on_call_gone(part->job, rpc_id(call), rpc_number(call));
	part_drop(part);
}

/* ---- Attach ---- */

struct pending_attach {
	struct daemon *d;
	uint64_t call;
	struct attach_args args;
};

static void attach_to(struct rpc_call *call, struct part *part, const struct attach_args *a)
{
	keep_part(call, part);
	rpc_set_number(call, a->rank);
	job_attach(part->job, rpc_id(call), a, now_of(call));
}

static void wrong_node(struct rpc_call *call, uint64_t job, uint32_t rank, uint32_t part, const char *node)
{
	rpc_failf(call, ST_WRONG_NODE,
		  "rank %u of job %llu is in part %u, which is on node %s: attach at the gaccd there", rank,
		  (unsigned long long)job, part, node);
}

/* Has another gaccd placed the job of this part here, and is it the one that the caller names and may see? */
static bool is_named(const struct part *p, const char *name, const struct attach_args *a)
{
	uint64_t id;
	const bool named = hosted_name_is_id(name, &id) ? id == p->id : !strcmp(name, p->text->spec.name);
	return named && !hosted_find(daemon_of_node(p->node), p->id) && (a->uid == 0 || a->uid == p->uid);
}

/* To a part here of a job that another gaccd coordinates, the newest of its name. false: there is none that this user
 * may see. */
static bool attach_away(struct rpc_call *call, const struct daemon *d, const char *name, const struct attach_args *a)
{
	char node[NODE_NAME_MAX + 1];
	uint32_t i = d->node.n_parts;
	while (i && !is_named(d->node.part[i - 1], name, a))
		i--;
	if (!i)
		return false;
	const struct part *any = d->node.part[i - 1];
	const struct job_spec *s = &any->text->spec;
	struct part *part = part_for_rank(&d->node, any->id, a->rank);
	uint32_t number = 0;
	while (number + 1 < any->n_parts && a->rank >= part_block(s->ranks, any->n_parts, number + 1))
		number++;
	if (part) {
		attach_to(call, part, a);
	} else {
		spec_node_of(s, number, node);
		wrong_node(call, any->id, a->rank, number, node);
	}
	return true;
}

static void do_attach(struct rpc_call *call, struct hosted *h, const struct attach_args *a)
{
	struct part *part = hosted_part_for_rank(h, a->rank);
	const uint32_t number = h->coord && a->rank < h->spec->ranks ? hosted_part_with(h, a->rank) : 0;
	char node[NODE_NAME_MAX + 1];
	if (hosted_ended(h)) {
		job_has_ended(call, h);
		return;
	}
	if (h->admission.queued) {
		const char *reason;
		hosted_state(h, &reason, NULL);
		rpc_failf(call, ST_NOT_READY, "job %llu waits in the queue: %s", (unsigned long long)h->id, reason);
		return;
	}
	if (part) {
		attach_to(call, part, a);
	} else if (h->part[number].node) {
		hosted_node_name(h, number, node);
		wrong_node(call, h->id, a->rank, number, node);
	} else {
		rpc_failf(call, ST_ENGINE_DOWN, "job %llu is being placed on its node", (unsigned long long)h->id);
	}
}

static const char *create_hint(enum status st, const char *why)
{
	if (st == ST_RESOURCE_EXHAUSTED)
		return submit_hint_full(why);
	return st == ST_INVALID_SPEC || st == ST_INVALID_ARGUMENT || st == ST_ALREADY_EXISTS
		       ? "correct create_if_missing, or leave it out and submit the job"
		       : NULL;
}

static void on_created(void *arg, struct hosted *h, bool existed, enum status st, const char *why, const char *field)
{
	struct pending_attach *p = arg;
	struct rpc_call *call = rpc_find(p->d->rpc, p->call);
	if (call && h)
		do_attach(call, h, &p->args);
	else if (call) {
		struct rpc_error e = { .status = st, .message = why, .field = field, .hint = create_hint(st, why) };
		rpc_fail(call, &e);
	}
	free(p);
}

static void create_then_attach(struct rpc_call *call, const Gacc__V1__AttachRequest *q, const struct attach_args *a)
{
	struct prepared *spec = rpc_prepared(call);
	struct pending_attach *p = spec ? malloc(sizeof(*p)) : NULL;
	if (!p) {
		no_memory(call);
		return;
	}
	*p = (struct pending_attach){ daemon_of(call), rpc_id(call), *a };
	char user[64];
	hosted_user_name(a->uid, user, sizeof(user));
	struct submit s = { .prepared = spec,
			    .uid = a->uid,
			    .user = user,
			    .local = caller_is_local(call),
			    .by_name = true,
			    .cb = on_created,
			    .arg = p,
			    .by_ns = answer_by_ns(call) };
	memcpy(s.request_id, a->nonce, 16);
	hosted_submit(p->d, &s);
}

static void *prepare_attach(const struct ProtobufCMessage *m)
{
	return prepare_spec(((const Gacc__V1__AttachRequest *)m)->create_if_missing);
}

static void attach(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__AttachRequest *q = (const Gacc__V1__AttachRequest *)m;
	const struct rpc_peer *peer = rpc_peer(call);
	struct attach_args a = { .rank = q->rank,
				 .world_size = q->world_size,
				 .uid = caller_uid(call),
				 .pid = peer->is_unix ? peer->pid : 0,
				 .start_time = peer->start_time,
				 .shown_pid = q->pid > 0 ? q->pid : 0,
				 .shared_memory = q->wants_shared_memory && peer->is_unix,
				 .resume_generation = q->resume_generation };
	if (q->protocol_min > PROTOCOL_VERSION || q->protocol_max < PROTOCOL_VERSION) {
		rpc_failf(call, ST_VERSION_SKEW, "client speaks protocol %u..%u, this daemon %d", q->protocol_min,
			  q->protocol_max, PROTOCOL_VERSION);
		return;
	}
	if (q->nonce.len != 16) {
		rpc_failf(call, ST_INVALID_ARGUMENT, "nonce has %zu bytes, must have 16", q->nonce.len);
		return;
	}
	memcpy(a.nonce, q->nonce.data, 16);
	struct hosted *h = hosted_find_named(daemon_of(call), q->job, a.uid, q->create_if_missing != NULL);
	if (!h && attach_away(call, daemon_of(call), q->job, &a))
		return;
	if (q->create_if_missing && (!h || (h->uid == a.uid && hosted_is_over(h)))) {
		create_then_attach(call, q, &a);
		return;
	}
	if (!h) {
		job_is_unknown(call, q->job, q->rank);
		return;
	}
	do_attach(call, h, &a);
}

/* ---- start ---- */

static void register_tensors(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__RegisterTensorsRequest *q = (const Gacc__V1__RegisterTensorsRequest *)m;
	struct session_key k;
	struct part *part = needed_part(call, q->session, &k);
	if (part)
		registering_begin(call, q, part, &k);
}

static void put_parameters(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__PutParametersRequest *q = (const Gacc__V1__PutParametersRequest *)m;
	struct session_key k;
	struct part *part = needed_part(call, q->session, &k);
	if (part)
		job_put_params(part->job, rpc_id(call), &k, q->slot, q->offset, q->bytes, q->last, now_of(call));
}

#define ANSWER_NS (INT64_C(200) * 1000000) /* two ticks of the daemon, which looks at deadlines */

/* The shorter of what the request says and what the call's deadline leaves, a little before it, so that the answer
 * names the ranks that it waited for instead of a bare DEADLINE_EXCEEDED. */
static int64_t timeout_of(const struct rpc_call *call, uint64_t ms)
{
	int64_t asked = ms ? spec_ms(ms) : INT64_MAX;
	int64_t left = rpc_deadline_left_ns(call);
	if (left != INT64_MAX)
		left -= left / 2 < ANSWER_NS ? left / 2 : ANSWER_NS;
	int64_t t = asked < left ? asked : left;
	return t == INT64_MAX ? 0 : t > 0 ? t : 1;
}

static void wait_ready(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__WaitReadyRequest *q = (const Gacc__V1__WaitReadyRequest *)m;
	struct session_key k;
	struct part *part = needed_part(call, q->session, &k);
	if (part)
		job_wait_ready(part->job, rpc_id(call), &k, timeout_of(call, q->timeout_ms), now_of(call));
}

/* ---- the window ---- */

struct push_args push_args_of(const Gacc__V1__PushRequest *q)
{
	return (struct push_args){ .window = q->window,
				   .micro = q->micro,
				   .slot = q->slot,
				   .weight = q->weight,
				   .loss = q->loss,
				   .loss_scale = q->loss_scale,
				   .lr = q->lr,
				   .data_key = q->data_key,
				   .present = q->present.data,
				   .n_present = (uint32_t)q->present.len,
				   .zero_after = q->zero_after };
}

static void push(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__PushRequest *q = (const Gacc__V1__PushRequest *)m;
	struct session_key k;
	struct part *part = session_part(call, q->session, &k);
	if (part) {
		struct push_args a = push_args_of(q);
		job_push(part->job, rpc_id(call), &k, &a, now_of(call));
	} else if (!push_is_over(call, q)) {
		session_refuse(call, q->session);
	}
}

static void flush(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__FlushRequest *q = (const Gacc__V1__FlushRequest *)m;
	struct session_key k;
	struct part *part = needed_part(call, q->session, &k);
	if (part)
		job_flush(part->job, rpc_id(call), &k, q->window, now_of(call));
}

static void wait_step(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__WaitStepRequest *q = (const Gacc__V1__WaitStepRequest *)m;
	struct session_key k;
	struct part *part = session_part(call, q->session, &k);
	if (part)
		job_wait_step(part->job, rpc_id(call), &k, q->window, timeout_of(call, q->timeout_ms), now_of(call));
	else if (!wait_step_is_over(call, q))
		session_refuse(call, q->session);
}

static void ack_step(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__AckStepRequest *q = (const Gacc__V1__AckStepRequest *)m;
	struct session_key k;
	struct part *part = needed_part(call, q->session, &k);
	if (part)
		job_ack_step(part->job, rpc_id(call), &k, q->window, now_of(call));
}

static void detach(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__DetachRequest *q = (const Gacc__V1__DetachRequest *)m;
	struct session_key k;
	struct part *part = session_part(call, q->session, &k);
	struct reply unused;
	if (part && q->device_is_quiet && job_session_ok(part->job, &k, &unused))
		part_slots_quiet(part, k.rank);
	if (part)
		job_detach(part->job, rpc_id(call), &k, q->done, now_of(call));
	else if (!detach_is_over(call, q))
		session_refuse(call, q->session);
}

/* ---- WatchSession: events, and a lifeline; for sessions without an attach socket the only one ---- */

struct session_watch {
	struct hosted *h;  /* whose changes it hears; NULL: another gaccd coordinates, and it is a lifeline alone */
	struct part *part; /* which it is a lifeline of */
	uint32_t rank;
	uint64_t generation;
};

static void watch_session(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__WatchSessionRequest *q = (const Gacc__V1__WatchSessionRequest *)m;
	struct session_key k;
	struct part *part = checked_session(call, q->session, &k);
	if (!part)
		return;
	struct hosted *h = hosted_find(daemon_of(call), part->id);
	struct session_watch *w = malloc(sizeof(*w));
	if (!w || (h && !calls_add(&h->watchers, rpc_id(call), k.rank))) {
		free(w);
		no_memory(call);
		return;
	}
	*w = (struct session_watch){ h, part, k.rank, job_generation(part->job, k.rank) };
	rpc_set_data(call, w);
	if (h)
		hosted_hold(h);
	part_hold(part);
	job_on_link(part->job, k.rank, w->generation, true, now_of(call));
}

static void watch_session_over(struct rpc_call *call, bool completed)
{
	struct session_watch *w = rpc_data(call);
	if (!w)
		return;
	if (w->h)
		calls_remove(&w->h->watchers, rpc_id(call));
	if (!daemon_of(call)->node.stopping)
		job_on_link(w->part->job, w->rank, w->generation, false, now_of(call));
	part_drop(w->part);
	if (w->h)
		hosted_drop(w->h);
	free(w);
}

#define SERVICE &gacc__v1__gradient_service__descriptor
#define UNARY(name_, handler)                                                                                          \
	{                                                                                                              \
		.service = SERVICE, .name = name_, .kind = RPC_UNARY, .flags = RPC_NEEDS_DEADLINE,                     \
		.on_message = handler, .on_end = forget_call                                                           \
	}

const struct rpc_method gradient_methods[] = {
	{ .service = SERVICE,
	  .name = "Attach",
	  .kind = RPC_UNARY,
	  .flags = RPC_NEEDS_DEADLINE,
	  .prepare = prepare_attach,
	  .discard = discard_spec,
	  .on_message = attach,
	  .on_end = forget_call },
	UNARY("RegisterTensors", register_tensors),
	UNARY("PutParameters", put_parameters),
	UNARY("WaitReady", wait_ready),
	UNARY("Push", push),
	UNARY("Flush", flush),
	UNARY("WaitStep", wait_step),
	UNARY("AckStep", ack_step),
	UNARY("Detach", detach),
	{ .service = SERVICE,
	  .name = "WatchSession",
	  .kind = RPC_SERVER_STREAM,
	  .flags = RPC_ENDS_ON_DRAIN,
	  .on_message = watch_session,
	  .on_end = watch_session_over },
};
const size_t n_gradient_methods = sizeof(gradient_methods) / sizeof(*gradient_methods);
