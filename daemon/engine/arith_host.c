/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of arith.h on host memory: turns the numbers of slots and halves into pointers into the mapped
 * segments; pass.c, sum_parts.c, update.c, norms.c and params.c do the work. For the engine; main thread, with the
 * workers; reads also on the thread that writes checkpoints, `reduce`, `broadcast` and the like on the communication
 * thread. */
#include "engine/arith_host.h"

#include "engine/finite.h"
#include "engine/norms.h"
#include "engine/params.h"
#include "engine/pass.h"
#include "engine/share_params.h"
#include "engine/sum_parts.h"
#include "engine/update.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct host {
	struct arith arith;
	const struct memory *m;
	const struct kernels *kernels;
	struct workers *workers;
	struct gaps *gaps;
	struct pass *pass;
	struct sum_parts *sum_parts; /* NULL: the job has one part */
	struct update *update;
	struct norms *norms;
};

static struct host *host(struct arith *a)
{
	return (struct host *)a;
}

static unsigned char *slot_of(const struct host *h, uint32_t slot)
{
	assert(slot < h->m->plan->slots);
	return h->m->slot[slot];
}

static unsigned char *half_of(const struct host *h, uint32_t half)
{
	assert(half < 2);
	return h->m->accum[half];
}

static struct sum_view sum_of(const struct host *h, uint32_t half)
{
	const struct plan *p = h->m->plan;
	if (half < ARITH_IN_SLOT(0))
		return sum_view_of_half(p, h->kernels, half_of(h, half));
	const struct ledger_cell *pushed = control_page_ledger(&h->m->page, 0, 0);
	return sum_view_of_slot(p, h->kernels, slot_of(h, half - ARITH_IN_SLOT(0)),
				reduce_coefficient(p->reduction, p->grad_of, pushed->weight));
}

/* ---- passes ---- */

static enum status add(struct arith *a, uint32_t dst, uint32_t src, bool first, const struct arith_source *s,
		       uint32_t n, uint64_t *nonfinite, struct arith_norm *norm)
{
	const struct host *h = host(a);
	struct pass_source source[KERNEL_MAX_SLOTS];
	assert(n <= KERNEL_MAX_SLOTS);
	for (uint32_t i = 0; i < n; i++)
		source[i] = (struct pass_source){ slot_of(h, s[i].slot), s[i].coefficient, s[i].present };
	pass_add(h->pass, half_of(h, dst), half_of(h, src), first, source, n, nonfinite, norm);
	return ST_OK;
}

static enum status take(struct arith *a, const struct arith_source *s, uint64_t *nonfinite, struct arith_norm *norm)
{
	const struct pass_source source = { slot_of(host(a), s->slot), s->coefficient, s->present };
	pass_take(host(a)->pass, &source, nonfinite, norm);
	return ST_OK;
}

static enum status inspect(struct arith *a, uint32_t half, struct arith_norm *out)
{
	const struct sum_view sum = sum_of(host(a), half);
	pass_inspect(host(a)->pass, &sum, out);
	return ST_OK;
}

static enum status scale(struct arith *a, uint32_t dst, uint32_t src, double factor, double clip_value)
{
	const struct host *h = host(a);
	pass_scale(h->pass, half_of(h, dst), half_of(h, src), factor, clip_value);
	return ST_OK;
}

static enum status zero_slot(struct arith *a, uint32_t slot)
{
	pass_zero(host(a)->pass, slot_of(host(a), slot));
	return ST_OK;
}

static enum status reduce(struct arith *a, struct coll *coll, uint32_t dst, uint32_t src, bool filled,
			  struct arith_norm *norm)
{
	const struct host *h = host(a);
	return sum_parts_run(h->sum_parts, coll, half_of(h, dst), half_of(h, src), filled, norm);
}

/* Where it is wanted already. */
static enum status reduced(struct arith *a, uint32_t dst)
{
	(void)a;
	(void)dst;
	return ST_OK;
}

static enum status filled(struct arith *a)
{
	(void)a;
	return ST_OK;
}

/* ---- the first parameters ---- */

static enum status broadcast(struct arith *a, struct coll *coll, uint32_t root)
{
	const struct memory *m = host(a)->m;
	enum status st = coll_broadcast(coll, m->params, plan_role_bytes(m->plan, SEG_PARAMS), root);
	if (!st && plan_is_sharded(m->plan) && root != m->plan->part)
		params_derive_masters(m, host(a)->kernels); /* uploaded ones are no more precise */
	else if (!st && m->master && !plan_is_sharded(m->plan))
		st = coll_broadcast(coll, m->master, plan_role_bytes(m->plan, SEG_MASTER), root);
	return st;
}

static enum status put(struct arith *a, uint32_t slot, uint64_t offset, uint64_t bytes)
{
	const struct host *h = host(a);
	params_put(h->m, h->gaps, h->kernels, slot, offset, bytes);
	return ST_OK;
}

static enum status init(struct arith *a)
{
	const struct host *h = host(a);
	params_init(h->m, h->kernels, h->workers);
	return ST_OK;
}

/* ---- the update ---- */

static enum status begin_update(struct arith *a, uint64_t window)
{
	update_begin(host(a)->update, window);
	return ST_OK;
}

static enum status can_resume_update(struct arith *a, uint64_t window, bool *out)
{
	*out = update_can_resume(host(a)->update, window);
	return ST_OK;
}

static enum status run_update(struct arith *a, const struct control_record *r, uint32_t half, struct arith_params *out)
{
	const struct host *h = host(a);
	const struct sum_view sum = sum_of(h, half);
	*out = (struct arith_params){ .digest = update_run(h->update, r, &sum) };
	if (update_is_suspect(h->update) && !plan_is_sharded(h->m->plan)) /* other parts' values come while it runs */
		out->nonfinite = finite_find(h->m, h->kernels, h->workers);
	return ST_OK;
}

static enum status inspect_params(struct arith *a, struct arith_params *out)
{
	const struct host *h = host(a);
	*out = (struct arith_params){ update_digest(h->update), finite_find(h->m, h->kernels, h->workers) };
	return ST_OK;
}

static enum status digest_seen(struct arith *a, uint64_t *digest)
{
	*digest = update_own_digest(host(a)->update, true);
	return ST_OK;
}

/* ---- sharded ---- */

static enum status digests(struct arith *a, bool known, struct arith_share *out)
{
	const struct host *h = host(a);
	if (!known)
		out->values = update_own_digest(h->update, false);
	out->seen = h->m->master ? update_own_digest(h->update, true) : out->values;
	front_end(update_front(h->update), out);
	return ST_OK;
}

static enum status gather(struct arith *a, struct coll *coll, bool whole, struct arith_share *table)
{
	const struct host *h = host(a);
	return share_params_gather(h->m, coll, update_front(h->update), whole, table);
}

static enum status gathered(struct arith *a, const struct arith_share *table, struct arith_params *out)
{
	const struct host *h = host(a);
	const uint64_t others = update_others_digest(h->update);
	*out = (struct arith_params){ .digest = share_params_digest(h->m->plan, table, others) };
	if (update_is_suspect(h->update))
		out->nonfinite = finite_find(h->m, h->kernels, h->workers);
	return ST_OK;
}

static enum status take_norms(struct arith *a, uint32_t half)
{
	const struct host *h = host(a);
	if (half == ARITH_NO_HALF) {
		norms_take(h->norms, NULL);
		return ST_OK;
	}
	const struct sum_view sum = sum_of(h, half);
	norms_take(h->norms, &sum);
	return ST_OK;
}

static enum status take_norms_of_shares(struct arith *a, struct coll *coll, uint32_t half)
{
	const struct sum_view sum = sum_of(host(a), half);
	return norms_take_shares(host(a)->norms, coll, &sum);
}

/* ---- bytes ---- */

static unsigned char *bytes_of(const struct host *h, enum segment_role role, uint64_t offset, uint64_t n)
{
	const struct memory *m = h->m;
	assert(offset <= plan_role_bytes(m->plan, role) && n <= plan_role_bytes(m->plan, role) - offset);
	switch (role) {
	case SEG_ACCUM0:
	case SEG_ACCUM1:
		return m->accum[role - SEG_ACCUM0] + offset;
	case SEG_MASTER:
		return (unsigned char *)m->master + offset;
	case SEG_STATE0:
	case SEG_STATE1:
		return (unsigned char *)m->state[role - SEG_STATE0] + offset;
	default:
		assert(role == SEG_PARAMS);
		return m->params + offset;
	}
}

static enum status read_bytes(struct arith *a, enum segment_role role, uint64_t offset, uint64_t n, void *to)
{
	memcpy(to, bytes_of(host(a), role, offset, n), n);
	return ST_OK;
}

static enum status write_bytes(struct arith *a, enum segment_role role, uint64_t offset, uint64_t n, const void *from)
{
	memcpy(bytes_of(host(a), role, offset, n), from, n);
	return ST_OK;
}

/* ---- life ---- */

static void close_host(struct arith *a)
{
	struct host *h = host(a);
	norms_free(h->norms);
	update_free(h->update);
	pass_free(h->pass);
	sum_parts_free(h->sum_parts);
	gaps_free(h->gaps);
	free(h);
}

static const struct arith_ops operations = {
	.close = close_host,
	.add = add,
	.take = take,
	.inspect = inspect,
	.reduce = reduce,
	.broadcast = broadcast,
	.reduced = reduced,
	.filled = filled,
	.scale = scale,
	.zero_slot = zero_slot,
	.put = put,
	.init = init,
	.update_begin = begin_update,
	.update_can_resume = can_resume_update,
	.update_run = run_update,
	.inspect_params = inspect_params,
	.digest_seen = digest_seen,
	.digests = digests,
	.gather = gather,
	.gathered = gathered,
	.read = read_bytes,
	.write = write_bytes,
	.norms = take_norms,
	.norms_of_shares = take_norms_of_shares,
};

enum status arith_host_open(struct arith **out, const struct memory *m, const char *kernels, struct workers *workers)
{
	const struct kernels *k = kernels_get(*kernels ? kernels : NULL);
	if (!k)
		return ST_INVALID_CONFIG;
	struct host *h = calloc(1, sizeof(*h));
	if (!h)
		return ST_NO_MEMORY;
	*h = (struct host){
		.arith = { .ops = &operations, .name = k->name }, .m = m, .kernels = k, .workers = workers
	};
	enum status st = gaps_new(&h->gaps, m->plan);
	if (!st)
		st = pass_new(&h->pass, m->plan, h->gaps, k, workers);
	if (!st && m->plan->n_parts > 1)
		st = sum_parts_new(&h->sum_parts, m->plan, k);
	if (!st)
		st = update_new(&h->update, m, k, workers);
	if (!st)
		st = norms_new(&h->norms, m, k, workers);
	if (st)
		close_host(&h->arith);
	else
		*out = &h->arith;
	return st;
}
