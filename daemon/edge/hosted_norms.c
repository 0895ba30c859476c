/* SPDX-License-Identifier: Apache-2.0 */
/* Answers TensorNorms: reads the norms of a decided window from the engine's control segment and sends them to all
 * calls that wait for them. For the coordinator's ports. Loop thread; the messages are made in the pool. */
#include "edge/hosted_norms.h"

#include "gacc/v1/job.pb-c.h"
#include "rpc/rpc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct rpc_call *next_call(struct hosted *h)
{
	struct rpc_call *call = NULL;
	uint64_t id;
	while (!call && calls_take(&h->norms_calls, &id))
		call = rpc_find(h->d->rpc, id);
	return call;
}

void hosted_fail_norms(struct hosted *h, enum status st, const char *why)
{
	struct rpc_call *call;
	while ((call = next_call(h)))
		rpc_failf(call, st, "job %llu: %s", (unsigned long long)h->id, why);
}

/* The rows that the engine left with the vote for this commit; NULL: it has left none. */
static const struct tensor_norm *norms_of(struct part *p, const struct commit *k)
{
	struct control_state state;
	struct control_page page;
	bool corrupt;
	if (!p || !part_control_page(p, &page) || control_state_init(&state, p->spec->ranks, p->spec->max_micro_size))
		return NULL;
	bool ok = control_page_read(&page, &state, &corrupt) && state.r.prepared_norms && state.r.window == k->window &&
		  state.r.prepared_term == k->term && state.r.prepared_attempt == k->attempt;
	control_state_fini(&state);
	return ok ? control_page_norms(&page) : NULL;
}

/* The norms of one window for all calls that wait: filled in and packed in the pool. */
struct norms_reply {
	struct hosted *h; /* held by each call, as is */
	struct part *part;
	uint32_t calls;
	double scale; /* of the gradients' norms; 0: the window is empty */
	struct tensor_norm *norms;
};

struct norms_call {
	struct norms_reply *reply;
	Gacc__V1__TensorNorm *row, **list;
	Gacc__V1__TensorNormsResponse m;
};

static void fill_norm(const struct norms_reply *p, const struct tensor_spec *t, uint64_t tensor,
		      Gacc__V1__TensorNorm *out)
{
	const struct arena *a = job_arena(p->part->job);
	uint64_t row = a->tensor[tensor].alias >= 0 ? (uint64_t)a->tensor[tensor].alias : tensor;
	gacc__v1__tensor_norm__init(out);
	out->name = (char *)t[tensor].name;
	if (p->scale != 0)
		out->grad_norm = sqrt(p->norms[row].grad_sumsq) / p->scale;
	out->param_norm = sqrt(p->norms[row].param_sumsq);
}

static const ProtobufCMessage *make_norms(void *arg)
{
	struct norms_call *c = arg;
	uint64_t n;
	const struct tensor_spec *t = job_tensors(c->reply->part->job, &n);
	c->row = calloc(n, sizeof(*c->row));
	c->list = calloc(n, sizeof(*c->list));
	if (!c->row || !c->list)
		return NULL;
	for (uint64_t i = 0; i < n; i++) {
		fill_norm(c->reply, t, i, &c->row[i]);
		c->list[i] = &c->row[i];
	}
	c->m.n_norms = n;
	c->m.norms = c->list;
	return &c->m.base;
}

static void drop_reply(struct norms_reply *p)
{
	if (--p->calls)
		return;
	free(p->norms);
	free(p);
}

static void release_norms(void *arg)
{
	struct norms_call *c = arg;
	hosted_drop(c->reply->h);
	part_drop(c->reply->part);
	drop_reply(c->reply);
	free(c->list);
	free(c->row);
	free(c);
}

static void send_norms(struct norms_reply *p, struct rpc_call *call, uint64_t window)
{
	struct norms_call *c = calloc(1, sizeof(*c));
	if (!c) {
		rpc_failf(call, ST_NO_MEMORY, "no memory for the norms");
		return;
	}
	gacc__v1__tensor_norms_response__init(&c->m);
	c->m.window = window;
	c->reply = p;
	p->calls++;
	hosted_hold(p->h);
	part_hold(p->part);
	rpc_finish_made(call, make_norms, release_norms, c);
}

void hosted_norms(void *ctx, const struct commit *k)
{
	struct hosted *h = ctx;
	struct part *part = hosted_part_here(h, 0); /* each has those of the sum over all parts */
	const struct tensor_norm *norms = norms_of(part, k);
	uint64_t n = norms ? job_arena(part->job)->n_tensors : 0;
	struct norms_reply *p = calloc(1, sizeof(*p));
	struct rpc_call *call;
	if (p && norms)
		p->norms = malloc(n * sizeof(*norms));
	if (!p || !p->norms) {
		hosted_fail_norms(h, norms ? ST_NO_MEMORY : ST_ATTEMPT_FAILED,
				  norms ? "no memory for the norms" : "the engine has left no norms of this window");
		free(p);
		return;
	}
	p->h = h;
	p->part = part;
	p->calls = 1; /* this one */
	p->scale = k->divisor * k->loss_scale;
	memcpy(p->norms, norms, n * sizeof(*norms)); /* the next window has its own */
	while ((call = next_call(h)))
		send_norms(p, call, k->window);
	drop_reply(p);
}
