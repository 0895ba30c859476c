/* SPDX-License-Identifier: Apache-2.0 */
/* What all implementations of coll.h have in common: arguments are checked before the table of functions is used, and
 * shares are cut into pieces. Called by the engine's communication thread, or by any thread where coll.h says so. */
#include "coll/coll.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static int compare(uint64_t a, uint64_t b)
{
	return (a > b) - (a < b);
}

int coll_id_compare(const struct coll_id *a, const struct coll_id *b)
{
	int order = compare(a->job, b->job);
	if (!order)
		order = compare(a->epoch, b->epoch);
	if (!order)
		order = compare(a->term, b->term);
	return order ? order : compare(a->k, b->k);
}

void coll_failure_set(struct coll_failure *f, enum status st, uint64_t suspects, const char *text)
{
	f->status = st;
	f->n_suspects = 0;
	for (uint32_t s = 0; s < COLL_MAX_PARTS; s++)
		if (suspects >> s & 1)
			f->suspect[f->n_suspects++] = s;
	snprintf(f->text, sizeof(f->text), "%s", text);
}

/* ---- shares and pieces ---- */

uint64_t coll_n_pieces(const uint64_t *bounds, uint32_t share, uint64_t piece)
{
	uint64_t n = bounds[share + 1] - bounds[share];
	return n / piece + (n % piece != 0);
}

struct coll_piece coll_piece_at(const uint64_t *bounds, uint32_t share, uint64_t piece, uint64_t i)
{
	assert(i < coll_n_pieces(bounds, share, piece));
	uint64_t from = bounds[share] + i * piece, left = bounds[share + 1] - from;
	return (struct coll_piece){ .from = from, .n = left < piece ? left : piece };
}

uint32_t coll_share_of(const struct coll_division *d, uint32_t part)
{
	return d ? d->owns[part] : part;
}

bool coll_is_same_group(const struct coll_division *d, uint32_t a, uint32_t b)
{
	if (!d || !d->group)
		return true;
	return d->across ? a % d->group == b % d->group : a / d->group == b / d->group;
}

static uint32_t n_shares(const struct coll *c, const struct coll_division *d)
{
	return d ? d->n_shares : c->n_parts;
}

/* Each part owns a share, and no two parts of a group the same one. */
static bool is_division(const struct coll *c, const struct coll_division *d)
{
	if (!d)
		return true;
	if (!d->n_shares || d->n_shares > COLL_MAX_PARTS || d->across > 1 || (d->group && c->n_parts % d->group))
		return false;
	for (uint32_t a = 0; a < c->n_parts; a++) {
		if (d->owns[a] >= d->n_shares)
			return false;
		for (uint32_t b = 0; b < a; b++)
			if (d->owns[a] == d->owns[b] && coll_is_same_group(d, a, b))
				return false;
	}
	return true;
}

/* What is wrong with them; NULL: nothing. */
static const char *wrong_shares(const struct coll *c, const struct coll_division *d, const uint64_t *bounds,
				uint64_t piece, uint32_t element)
{
	if (!piece || piece > COLL_MAX_PIECE || piece % element)
		return "the size of a piece is 0, too large or no multiple of an element";
	if (!is_division(c, d))
		return "two parts of a group own the same share, or a part owns none";
	for (uint32_t s = 0; s <= n_shares(c, d); s++)
		if (bounds[s] % element || (s && bounds[s] < bounds[s - 1]))
			return "the bounds of the shares descend, or are no multiples of an element";
	return NULL;
}

#define LONGEST_NS (INT64_MAX / 4)

/* ---- members ---- */

enum status coll_open(struct coll_net *net, const struct coll_config *config, struct coll **out,
		      struct coll_failure *why)
{
	struct coll_failure unwanted;
	if (!why)
		why = &unwanted;
	if (!config->n_parts || config->n_parts > COLL_MAX_PARTS || config->part >= config->n_parts || !config->life ||
	    config->stall_ns <= 0 || config->join_ns <= 0 || config->small > COLL_MAX_SMALL) {
		coll_failure_set(why, ST_INVALID_ARGUMENT, 0, "part, life, small or a time limit is out of bounds");
		return ST_INVALID_ARGUMENT;
	}
	struct coll_config capped = *config; /* a time and a limit can be added */
	capped.stall_ns = config->stall_ns < LONGEST_NS ? config->stall_ns : LONGEST_NS;
	capped.join_ns = config->join_ns < LONGEST_NS ? config->join_ns : LONGEST_NS;
	*why = (struct coll_failure){ .status = ST_OK };
	return net->ops->open(net, &capped, out, why);
}

const void *coll_blob(const struct coll *c, size_t *n)
{
	const void *blob = c->ops->blob(c, n);
	assert(*n && *n <= COLL_MAX_BLOB);
	return blob;
}

bool coll_is_ordered(const struct coll *c)
{
	return c->ops->ordered;
}

enum status coll_join(struct coll *c, const struct coll_address *all)
{
	for (uint32_t s = 0; s < c->n_parts; s++)
		if (!all[s].life || !all[s].n_blob || all[s].n_blob > COLL_MAX_BLOB)
			return c->ops->fail(c, ST_INVALID_ARGUMENT,
					    "an address has no life, or its size is out of bounds");
	return c->ops->join(c, all);
}

enum status coll_exchange(struct coll *c, const struct coll_exchange *x)
{
	const char *wrong = "an element has 2, 4 or 8 bytes";
	if (x->element == 2 || x->element == 4 || x->element == 8)
		wrong = wrong_shares(c, x->division, x->bounds, x->piece, x->element);
	if (!wrong && x->division && (x->division->n_shares != c->n_parts || x->division->group))
		wrong = "a share of an exchange has no owner";
	return wrong ? c->ops->fail(c, ST_INVALID_ARGUMENT, wrong) : c->ops->exchange(c, x);
}

enum status coll_gather(struct coll *c, const struct coll_gather *g)
{
	const char *wrong = wrong_shares(c, g->division, g->bounds, g->piece, 1);
	return wrong ? c->ops->fail(c, ST_INVALID_ARGUMENT, wrong) : c->ops->gather(c, g);
}

enum status coll_sum_small(struct coll *c, const struct coll_sum_small *x)
{
	const bool fits = x->element == 2 || x->element == 4 || x->element == 8;
	if (!fits || x->n % x->element || x->n > c->small)
		return c->ops->fail(
			c, ST_INVALID_ARGUMENT,
			"an element has 2, 4 or 8 bytes, and there are no more of them than the members agreed on");
	return c->ops->sum_small(c, x);
}

enum status coll_broadcast(struct coll *c, void *buffer, size_t n, uint32_t root)
{
	if (root >= c->n_parts)
		return c->ops->fail(c, ST_INVALID_ARGUMENT, "the root of a broadcast is no part");
	return c->ops->broadcast(c, buffer, n, root);
}

enum status coll_barrier(struct coll *c)
{
	return c->ops->barrier(c);
}

void coll_poll(struct coll *c, struct coll_state *out)
{
	c->ops->poll(c, out);
}

void coll_at_work(struct coll *c)
{
	c->ops->at_work(c);
}

void coll_abort(struct coll *c)
{
	c->ops->fail(c, ST_CANCELLED, "aborted here");
}

void coll_leave(struct coll *c)
{
	if (c)
		c->ops->leave(c);
}

void coll_net_free(struct coll_net *net)
{
	if (net)
		net->ops->free(net);
}
