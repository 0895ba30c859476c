/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's tensor set: built and matched with the specification's rules, or compared with the set that the job has, in
 * the pool. Then job_register has only to take it. Portions of a set are collected on the way (control/collected.h),
 * those of a job one after the other. */
#include "edge/registering.h"

#include "control/collected.h"
#include "edge/caller.h"
#include "edge/reply.h"
#include "gacc/v1/gradient.pb-c.h"
#include "rpc/pool.h"
#include "rpc/quota.h"
#include "runtime/spec_message.h"

#include <stdio.h>
#include <stdlib.h>

struct registering {
	struct rpc_work work;
	struct registering *next; /* of the same job, behind this one */
	struct rpc_server *rpc;
	struct part *part;
	uint64_t call;
	struct session_key key;
	struct layout_part layout;
	struct portion portion; /* total 0: the whole set in one message */
	uint64_t keep;		/* tensors of the portions before it that still count */
	Gacc__V1__RegisterTensorsRequest *request;
	const struct tensor_set *known; /* the job's, when this began; NULL: it had none */
	struct tensor_set set;		/* built, when it had none */
	void *packed;			/* likewise, for the journal */
	size_t n_packed;
	size_t n_set; /* bytes of both, when they came in portions */
	enum status status;
	const char *hint; /* NULL: the status's own */
	char why[320];
};

/* What a job's ranks have given in portions. */
struct collecting {
	struct collected set; /* the pool's while `busy`, except for what is kept of the ranks */
	size_t charged;	      /* of its bytes, to the job's owner */
	bool busy;
	struct registering *waiting, **tail;
};

static bool is_whole(const struct registering *r)
{
	return !r->portion.total;
}

/* ---- in the pool ---- */

static void compare(struct registering *r, const struct tensor_spec *t, uint64_t n)
{
	char text[256];
	if (!tensor_set_differs(r->known->tensor, r->known->n, t, n, text, sizeof(text)))
		return;
	snprintf(r->why, sizeof(r->why), "rank %u: %s", r->key.rank, text);
	r->status = ST_LAYOUT_MISMATCH;
}

static void build(struct registering *r, const struct tensor_spec *t, uint64_t n)
{
	r->status = tensor_set_init(&r->set, r->part->spec, t, n, r->why, sizeof(r->why));
	if (!r->status)
		r->status = tensor_set_match(&r->set, r->part->spec, r->why, sizeof(r->why));
	if (!r->status && !(r->packed = tensors_to_message(t, n, &r->n_packed)))
		r->status = ST_NO_MEMORY;
}

/* All portions are there. A set that cannot be the job's is not kept, so that its ranks can begin again. */
static void build_collected(struct registering *r, struct collected *p)
{
	struct tensor_spec *all = collected_join(p);
	if (all)
		build(r, all, p->n);
	else
		r->status = ST_NO_MEMORY;
	r->n_set = r->status ? 0 : p->bytes + p->n * sizeof(struct arena_tensor) + r->n_packed;
	free(all);
	collected_trim(p, 0);
}

static void take(struct registering *r, const struct tensor_spec *t, uint64_t n)
{
	struct collected *p = &r->part->collecting->set;
	collected_trim(p, r->known ? 0 : r->keep);
	r->status = collected_take(p, &r->portion, t, r->known, r->why, sizeof(r->why));
	if (!r->status && !r->known && p->n == r->portion.total)
		build_collected(r, p);
}

static void work(struct registering *r)
{
	struct tensor_spec *t = NULL;
	uint64_t n = r->request->n_tensors;
	r->status = tensors_from_message(r->request->tensors, n, &t, r->why, sizeof(r->why));
	if (!r->status && !is_whole(r))
		take(r, t, n);
	else if (!r->status && r->known)
		compare(r, t, n);
	else if (!r->status)
		build(r, t, n);
	free(t);
}

static void run(struct rpc_work *w)
{
	struct registering *r = (struct registering *)w;
	if (!r->status)
		work(r);
	bytes_free(&r->request->base);
}

/* ---- answers ---- */

static void fail(struct registering *r, struct rpc_call *call)
{
	const char *hint = r->hint			     ? r->hint
			   : r->status == ST_LAYOUT_MISMATCH ? JOB_SAME_TENSORS
			   : r->status == ST_OUT_OF_ORDER
				   ? "send the portions in order, beginning with the tensor that is expected"
			   : r->status == ST_INVALID_ARGUMENT ? "correct the tensor set"
							      : NULL;
	rpc_fail(call, &(struct rpc_error){ .status = r->status, .message = r->why[0] ? r->why : NULL, .hint = hint });
}

static void answer_received(struct rpc_call *call, uint64_t received)
{
	Gacc__V1__RegisterTensorsResponse m = GACC__V1__REGISTER_TENSORS_RESPONSE__INIT;
	m.received = received;
	rpc_finish(call, &m.base);
}

/* Of the first set that a rank declares. */
static void keep_packed(struct registering *r)
{
	struct part *part = r->part;
	if (job_has_tensors(part->job) || part->tensors.packed)
		return;
	part->tensors.packed = shared_new(r->packed, r->n_packed);
	if (part->tensors.packed)
		r->packed = NULL;
}

/* The rank has given all of its set. */
static void declare(struct registering *r)
{
	keep_packed(r);
	job_register(r->part->job, r->call, &r->key, r->set.n ? &r->set : NULL, r->layout, node_now());
}

static bool is_last(const struct registering *r)
{
	return is_whole(r) || r->portion.first + r->portion.n == r->portion.total;
}

static void answer(struct registering *r)
{
	struct part *part = r->part;
	struct rpc_call *call = rpc_find(r->rpc, r->call);
	struct reply why;
	if (!call || !part->job)
		return; /* nobody waits for it */
	if (!job_session_ok(part->job, &r->key,
			    &why)) /* the session's end comes before what is wrong with its tensors */
		reply_fail(call, &why);
	else if (r->status)
		fail(r, call);
	else if (is_last(r))
		declare(r);
	else
		answer_received(call, r->portion.first + r->portion.n);
}

static void registering_free(struct registering *r)
{
	part_drop(r->part);
	tensor_set_fini(&r->set);
	free(r->packed);
	free(r);
}

static void done(struct rpc_work *w)
{
	answer((struct registering *)w);
	registering_free((struct registering *)w);
}

/* ---- portions ---- */

/* Memory of portions on its way out. */
struct dropping {
	struct rpc_work work;
	struct collected set;
};

static void run_drop(struct rpc_work *w)
{
	collected_fini(&((struct dropping *)w)->set);
}

static void on_dropped(struct rpc_work *w)
{
	free(w);
}

static void give_back(struct part *part)
{
	rpc_quota_give(&part->node->collected, part->uid, part->collecting->charged);
	part->collecting->charged = 0;
}

void registering_drop(struct part *part)
{
	struct collecting *c = part->collecting;
	if (!c)
		return;
	give_back(part);
	part->collecting = NULL;
	struct dropping *drop = part->node->stopping ? NULL : calloc(1, sizeof(*drop));
	if (drop) {
		drop->set = c->set;
		rpc_pool_put(part->node->pool, &drop->work, part->uid, run_drop, on_dropped);
	} else {
		collected_fini(&c->set);
	}
	free(c);
}

void registering_tick(struct part *part, struct now now)
{
	const struct collecting *c = part->collecting;
	if (c && !c->busy && (job_ended(part->job) || collected_over(&c->set, now.mono_ns)))
		registering_drop(part);
}

static bool is_current(const void *ctx, uint32_t rank, uint64_t generation)
{
	return job_session_is(ctx, rank, generation);
}

/* A set came from elsewhere: what is here has not been compared with it. */
static bool is_stale(const struct part *part)
{
	const struct collecting *c = part->collecting;
	return job_has_tensors(part->job) && !c->set.declared;
}

static void admit(struct registering *r)
{
	struct part *part = r->part;
	struct collected *p = &part->collecting->set;
	r->known = job_tensor_set(part->job);
	if (is_stale(part)) {
		p->n_ranks = 0;
		p->declared = true;
	}
	r->keep = collected_prune(p, is_current, part->job);
	r->portion.generation = job_generation(part->job, r->portion.rank);
	r->status = collected_admit(p, &r->portion, r->known, r->why, sizeof(r->why));
}

static void start_next(struct part *part);

static void too_much(struct registering *r)
{
	r->status = ST_RESOURCE_EXHAUSTED;
	r->hint = "end other jobs, repeat the call when they have registered their tensors, or raise "
		  "limits.request_memory";
	snprintf(r->why, sizeof(r->why),
		 "rank %u: the tensors that this user's jobs register in portions would take more than the user's part "
		 "of %zu MiB",
		 r->portion.rank, r->part->node->collected.most >> 20);
}

/* Charges the job's owner for what the pool has kept: portions, then the set that replaces them. */
static void charge(struct registering *r)
{
	struct part *part = r->part;
	struct collecting *c = part->collecting;
	struct rpc_quota *all = &part->node->collected;
	size_t more = c->set.bytes > c->charged ? c->set.bytes - c->charged : 0;
	if (!rpc_quota_take(all, part->uid, more)) {
		collected_trim(&c->set, r->keep);
		too_much(r);
		more = 0;
	}
	rpc_quota_give(all, part->uid, c->charged + more - c->set.bytes);
	c->charged = c->set.bytes;
	if (!r->status && r->n_set && !rpc_quota_take(all, part->uid, r->n_set))
		too_much(r);
	else if (!r->status)
		part->tensors.bytes += r->n_set;
}

static void note(struct registering *r)
{
	struct collected *p = &r->part->collecting->set;
	if (r->status && !r->known && !p->n)
		p->n_ranks = 0; /* the whole set was wrong, and has been dropped */
	if (r->status)
		return;
	p->declared = r->known || r->set.n;
	r->status = collected_note(p, &r->portion, node_now().mono_ns);
}

/* The set was built and is not the job's: another came before it, or its caller has gone. */
static void not_taken(struct registering *r)
{
	part_tensors_gone(r->part);
	r->part->collecting->set.n_ranks = 0;
	r->part->collecting->set.declared = false;
}

static void portion_done(struct rpc_work *w)
{
	struct registering *r = (struct registering *)w;
	struct part *part = r->part;
	bool had = job_has_tensors(part->job);
	part->collecting->busy = false;
	charge(r);
	note(r);
	answer(r);
	if (r->n_set && (had || !job_has_tensors(part->job)))
		not_taken(r);
	part_hold(part);
	registering_free(r);
	start_next(part);
	part_drop(part);
}

static void start_next(struct part *part)
{
	struct collecting *c = part->collecting;
	struct registering *r = c->waiting;
	if (!r)
		return;
	c->waiting = r->next;
	if (!c->waiting)
		c->tail = &c->waiting;
	c->busy = true;
	admit(r);
	rpc_pool_put(part->node->pool, &r->work, r->key.uid, run, portion_done);
}

static struct collecting *collecting_of(struct part *part)
{
	if (!part->collecting && (part->collecting = calloc(1, sizeof(*part->collecting))))
		part->collecting->tail = &part->collecting->waiting;
	return part->collecting;
}

static void wait_turn(struct registering *r)
{
	struct collecting *c = r->part->collecting;
	*c->tail = r;
	c->tail = &r->next;
	if (!c->busy)
		start_next(r->part);
}

/* ---- the call ---- */

static uint64_t received(const struct part *part, uint32_t rank)
{
	return part->collecting && !is_stale(part)
		       ? collected_from(&part->collecting->set, rank, job_generation(part->job, rank))
		       : 0;
}

static void begin(struct rpc_call *call, const Gacc__V1__RegisterTensorsRequest *q, struct part *part,
		  const struct session_key *key)
{
	struct registering *r = calloc(1, sizeof(*r));
	if (!r || (q->total && !collecting_of(part))) {
		free(r);
		no_memory(call);
		return;
	}
	r->rpc = daemon_of(call)->rpc;
	r->part = part;
	r->call = rpc_id(call);
	r->key = *key;
	r->layout = (struct layout_part){ q->layout_first, q->layout_limit };
	r->portion = (struct portion){ .rank = key->rank, .first = q->first, .n = q->n_tensors, .total = q->total };
	r->known = job_tensor_set(part->job);
	r->request = (Gacc__V1__RegisterTensorsRequest *)rpc_take_request(call);
	part_hold(part);
	if (is_whole(r))
		rpc_pool_put(part->node->pool, &r->work, key->uid, run, done);
	else
		wait_turn(r);
}

void registering_begin(struct rpc_call *call, const Gacc__V1__RegisterTensorsRequest *q, struct part *part,
		       const struct session_key *key)
{
	struct reply why;
	if (!job_session_ok(part->job, key, &why)) /* a caller without a valid session costs nothing */
		reply_fail(call, &why);
	else if (q->first && !q->total)
		rpc_fail(
			call,
			&(struct rpc_error){
				.status = ST_INVALID_ARGUMENT,
				.field = "total",
				.message = "a portion of a tensor set needs total, the number of tensors in the set" });
	else if (q->n_tensors)
		begin(call, q, part, key);
	else if (q->total)
		answer_received(call, received(part, key->rank));
	else
		job_register(part->job, rpc_id(call), key, NULL,
			     (struct layout_part){ q->layout_first, q->layout_limit }, node_now());
}
