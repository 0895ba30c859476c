/* SPDX-License-Identifier: Apache-2.0 */
/* Answers TensorNorms: asks the node of part 0 for the norms of a decided window, puts them together, and sends them
 * with the tensors' names to all calls that wait for them. For the coordinator's ports, the links, the tick and
 * methods_control.c. Loop thread; names are read and messages are made in the pool. */
#include "edge/hosted_norms.h"

#include "cluster/norms_message.h"
#include "control/norms_fetch.h"
#include "edge/caller.h"
#include "edge/hosted_nodes.h"
#include "edge/node_facts.h"
#include "gacc/v1/job.pb-c.h"
#include "rpc/pool.h"
#include "rpc/rpc.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* On their way. */
struct norms_fetching {
	struct norms_fetch is;
	struct norms_ask ask;
	double scale; /* of the gradients' norms; 0: the window is empty */
	double *grad, *param;
	struct calls calls;
};

static struct rpc_call *next_call(const struct daemon *d, struct calls *calls)
{
	struct rpc_call *call = NULL;
	uint64_t id;
	while (!call && calls_take(calls, &id))
		call = rpc_find(d->rpc, id);
	return call;
}

static void fail(struct hosted *h, struct calls *calls, enum status st, const char *why)
{
	struct rpc_call *call;
	while ((call = next_call(h->d, calls)))
		rpc_failf(call, st, "job %llu: %s", (unsigned long long)h->id, why);
}

/* ---- the answer: names, then a message for each call ---- */

/* The norms of one window for all calls that wait. */
struct norms_reply {
	struct rpc_work work;
	struct hosted *h; /* held by each call, and by this */
	struct calls calls;
	uint32_t n_calls;
	double scale;
	uint64_t window, n;
	double *grad, *param; /* [n], sums of squares */
	struct shared *set;   /* has the tensors, packed; NULL: they are in the specification */
	struct Gacc__V1__JobSpec *own;
	const struct Gacc__V1__JobSpec *names; /* own, or the specification's; NULL: they could not be read */
};

struct norms_call {
	struct norms_reply *reply;
	Gacc__V1__TensorNorm *row, **list;
	Gacc__V1__TensorNormsResponse m;
};

static const ProtobufCMessage *make_norms(void *arg)
{
	struct norms_call *c = arg;
	const struct norms_reply *p = c->reply;
	c->row = calloc(p->n, sizeof(*c->row));
	c->list = calloc(p->n, sizeof(*c->list));
	if (!c->row || !c->list)
		return NULL;
	for (uint64_t i = 0; i < p->n; i++) {
		gacc__v1__tensor_norm__init(c->list[i] = &c->row[i]);
		c->row[i].name = p->names->tensors[i]->name;
		if (p->scale != 0)
			c->row[i].grad_norm = sqrt(p->grad[i]) / p->scale;
		c->row[i].param_norm = sqrt(p->param[i]);
	}
	c->m.n_norms = p->n;
	c->m.norms = c->list;
	return &c->m.base;
}

static void drop_reply(struct norms_reply *p)
{
	hosted_drop(p->h);
	if (--p->n_calls)
		return;
	if (p->own)
		gacc__v1__job_spec__free_unpacked(p->own, NULL);
	shared_drop(p->set);
	calls_fini(&p->calls);
	free(p->grad);
	free(p->param);
	free(p);
}

static void release_norms(void *arg)
{
	struct norms_call *c = arg;
	drop_reply(c->reply);
	free(c->list);
	free(c->row);
	free(c);
}

static void send_norms(struct norms_reply *p, struct rpc_call *call)
{
	struct norms_call *c = calloc(1, sizeof(*c));
	if (!c) {
		rpc_failf(call, ST_NO_MEMORY, "no memory for the norms");
		return;
	}
	gacc__v1__tensor_norms_response__init(&c->m);
	c->m.window = p->window;
	c->reply = p;
	p->n_calls++;
	hosted_hold(p->h);
	rpc_finish_made(call, make_norms, release_norms, c);
}

static void read_names(struct rpc_work *w)
{
	struct norms_reply *p = (struct norms_reply *)w;
	p->own = p->set ? gacc__v1__job_spec__unpack(NULL, p->set->n, p->set->data) : NULL;
	if (p->set)
		p->names = p->own;
}

static void on_names(struct rpc_work *w)
{
	struct norms_reply *p = (struct norms_reply *)w;
	struct rpc_call *call;
	if (!p->names)
		fail(p->h, &p->calls, ST_NO_MEMORY, "no memory for the names of its tensors");
	else if (p->names->n_tensors != p->n)
		fail(p->h, &p->calls, ST_INTERNAL, "the node of part 0 has norms of another number of tensors");
	while ((call = next_call(p->h->d, &p->calls)))
		send_norms(p, call);
	drop_reply(p);
}

static void reply(struct hosted *h, struct norms_fetching *f)
{
	struct norms_reply *p = calloc(1, sizeof(*p));
	if (!p) {
		fail(h, &f->calls, ST_NO_MEMORY, "no memory for the norms");
		return;
	}
	*p = (struct norms_reply){ .h = h,
				   .calls = f->calls,
				   .n_calls = 1, /* this one */
				   .scale = f->scale,
				   .window = f->ask.window,
				   .n = f->is.total,
				   .grad = f->grad,
				   .param = f->param,
				   .set = h->tensors ? shared_hold(h->tensors) : NULL,
				   .names = h->text->pb };
	f->calls = (struct calls){ 0 };
	f->grad = f->param = NULL;
	hosted_hold(h);
	rpc_pool_put(h->d->node.pool, &p->work, h->uid, read_names, on_names);
}

/* ---- on their way ---- */

static void ask(struct hosted *h)
{
	struct norms_fetching *f = h->norms;
	size_t n = 0;
	if (hosted_node_protocol(h, 0) < PEER_PROTOCOL_NORMS)
		return; /* an older gaccd is there since: it would end its link, and is given up as a silent one */
	f->ask.first = f->is.have;
	void *bytes = norms_ask_pack(&f->ask, &n);
	links_send_down(h->d, h->part[0].node, LINK_NORMS_ASK, h->id, 0, bytes, n, NULL);
}

/* Those that have come meanwhile want a later window's. */
static void want(struct hosted *h)
{
	enum status st = h->norms_calls.n ? coord_want_norms(h->coord) : ST_OK;
	if (st)
		fail(h, &h->norms_calls, st, status_info(st)->text);
}

static void end(struct hosted *h)
{
	struct norms_fetching *f = h->norms;
	calls_fini(&f->calls);
	free(f->grad);
	free(f->param);
	f->grad = f->param = NULL;
	want(h);
	hosted_drop(h);
}

static void give_up(struct hosted *h, enum status st, const char *why)
{
	fail(h, &h->norms->calls, st, why);
	end(h);
}

void hosted_norms(void *ctx, const struct commit *k)
{
	struct hosted *h = ctx;
	if (!k)
		fail(h, &h->norms_calls, ST_ATTEMPT_FAILED,
		     "two attempts of the window have failed that asked for its norms; ask again");
	if (!k || (h->norms && h->norms->is.asking)) /* not both: none is asked for meanwhile */
		return;
	if (!h->norms)
		h->norms = calloc(1, sizeof(*h->norms));
	struct norms_fetching *f = h->norms;
	if (!f) {
		fail(h, &h->norms_calls, ST_NO_MEMORY, "no memory for the norms");
		return;
	}
	norms_fetch_begin(&f->is, daemon_now(h->d).mono_ns);
	f->ask = (struct norms_ask){ .job_id = h->id,
				     .epoch = coord_epoch(h->coord),
				     .number = f->is.number,
				     .window = k->window,
				     .term = k->term,
				     .attempt = k->attempt };
	node_uuid_halves(h->uuid, &f->ask.uuid_high, &f->ask.uuid_low);
	f->scale = k->divisor * k->loss_scale;
	f->calls = h->norms_calls;
	h->norms_calls = (struct calls){ 0 };
	hosted_hold(h);
	ask(h);
}

/* Room for all of them, with the first portion. false: no memory. */
static bool make_room(struct norms_fetching *f, uint64_t total)
{
	if (!f->grad)
		f->grad = malloc(total * sizeof(*f->grad));
	if (!f->param)
		f->param = malloc(total * sizeof(*f->param));
	return f->grad && f->param;
}

static void take(struct hosted *h, const struct part_norms *n)
{
	struct norms_fetching *f = h->norms;
	const enum norms_move move =
		norms_fetch_take(&f->is, n->number, n->first, n->n, n->total, daemon_now(h->d).mono_ns);
	if (move == NORMS_FAILED)
		give_up(h, n->status, n->text);
	if (move == NORMS_NOTHING || move == NORMS_FAILED)
		return;
	if (!make_room(f, n->total)) {
		f->is.asking = false;
		give_up(h, ST_NO_MEMORY, "no memory for the norms");
		return;
	}
	memcpy(f->grad + n->first, n->grad, n->n * sizeof(*n->grad));
	memcpy(f->param + n->first, n->param, n->n * sizeof(*n->param));
	if (move == NORMS_ASK) {
		ask(h);
		return;
	}
	reply(h, f);
	end(h);
}

void hosted_take_norms(struct daemon *d, const struct link_message *m)
{
	struct hosted *h = hosted_of_message(d, m);
	struct part_norms n;
	char why[200];
	if (!h)
		return;
	enum status st = norms_unpack(m->bytes, m->n, &n, why, sizeof(why));
	if (st == ST_VERSION_SKEW)
		links_refuse(m, why);
	if (st)
		return; /* asked again */
	if (h->norms && n.job_id == h->id && !n.part && !m->part && n.epoch == coord_epoch(h->coord))
		take(h, &n);
	norms_release(&n);
}

void hosted_norms_tick(struct hosted *h, struct now now)
{
	char node[NODE_NAME_MAX + 1], why[NODE_NAME_MAX + 120];
	if (h->norms_calls.n && hosted_ended(h))
		fail(h, &h->norms_calls, ST_JOB_ENDED, "it has ended");
	switch (h->norms ? norms_fetch_tick(&h->norms->is, now.mono_ns) : NORMS_NOTHING) {
	case NORMS_ASK:
		ask(h);
		break;
	case NORMS_FAILED:
		hosted_node_name(h, 0, node);
		snprintf(why, sizeof(why), "node %s, which has part 0, has not sent the norms for 10 s; ask again",
			 node);
		give_up(h, ST_UNAVAILABLE, why);
		break;
	default:
		break;
	}
}

void hosted_norms_free(struct hosted *h)
{
	if (h->norms) {
		calls_fini(&h->norms->calls);
		free(h->norms->grad);
		free(h->norms->param);
	}
	free(h->norms);
	h->norms = NULL;
}

/* ---- who asks ---- */

/* The first part whose node is known, and too old for it; n_parts: there is none. Shares are put together by all parts,
 * and part 0 has the result. */
static uint32_t first_too_old(const struct hosted *h)
{
	const uint32_t n = spec_is_sharded(h->spec) ? h->n_parts : 1;
	for (uint32_t i = 0; i < n && i < h->n_parts; i++)
		if (hosted_node_protocol(h, i) < PEER_PROTOCOL_NORMS)
			return i;
	return h->n_parts;
}

enum status hosted_norms_add(struct hosted *h, uint64_t call, char *why, size_t n_why)
{
	char node[NODE_NAME_MAX + 1];
	const bool fetching = h->norms && h->norms->is.asking;
	const uint32_t waiting = h->norms_calls.n + (h->norms ? h->norms->calls.n : 0);
	const uint32_t old = first_too_old(h);
	*why = '\0';
	if (hosted_ended(h))
		return ST_JOB_ENDED;
	if (old < h->n_parts) {
		hosted_node_name(h, old, node);
		snprintf(why, n_why, "node %s, which has part %u, runs a gaccd that sends no norms: upgrade it", node,
			 old);
		return ST_NOT_SUPPORTED;
	}
	if (waiting >= HOSTED_MAX_NORMS_CALLS) {
		snprintf(why, n_why, "%d calls wait for its norms already", HOSTED_MAX_NORMS_CALLS);
		return ST_RESOURCE_EXHAUSTED;
	}
	enum status st = fetching ? ST_OK : refusal_of(h, coord_want_norms(h->coord));
	if (!st && !calls_add(&h->norms_calls, call, RANK_NONE))
		st = ST_NO_MEMORY;
	return st;
}

void hosted_norms_remove(struct hosted *h, uint64_t call)
{
	calls_remove(&h->norms_calls, call);
	if (h->norms)
		calls_remove(&h->norms->calls, call);
}
