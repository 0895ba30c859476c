/* SPDX-License-Identifier: Apache-2.0 */
/* Collects the ledger of a window from the engine's control segment and sends it in portions. For the part's ports.
 * Loop thread. */
#include "edge/part_ledgers.h"

#include "cluster/ledger_message.h"
#include "edge/links.h"
#include "runtime/part.h"

#include <stdlib.h>

/* A portion that is being filled, and where from. */
struct collected {
	struct part *part;
	struct control_page page;
	struct part_ledger to;
	uint32_t room; /* micro-batches that its columns have space for */
};

static uint64_t bits_in(const uint64_t *map, size_t n_words)
{
	uint64_t n = 0;
	for (size_t i = 0; i < n_words; i++)
		n += (uint64_t)__builtin_popcountll(map[i]);
	return n;
}

static void send_portion(struct collected *c)
{
	size_t n = 0;
	void *bytes = ledger_pack(&c->to, &n);
	links_send(daemon_of_node(c->part->node), LINK_LEDGER, c->to.job_id, c->to.part, bytes, n);
	c->to.first += c->to.n;
	c->to.n = 0;
}

static void add(struct collected *c, uint32_t rank, uint32_t micro)
{
	const struct ledger_cell *cell = control_page_ledger(&c->page, rank, micro);
	struct part_ledger *to = &c->to;
	uint32_t i = to->n++;
	to->rank[i] = part_global(job_part(c->part->job), rank);
	to->micro[i] = micro;
	to->weight[i] = cell->weight;
	to->loss[i] = cell->loss;
	to->data_key[i] = cell->data_key;
	to->unix_nanos[i] = cell->unix_nanos;
	if (to->n == c->room)
		send_portion(c);
}

/* The micro-batches that these bits stand for. */
static void add_all(struct collected *c, const uint64_t *map, size_t n_words)
{
	for (size_t i = 0; i < n_words; i++)
		for (uint64_t left = map[i]; left; left &= left - 1) {
			uint64_t bit = i * 64 + (uint64_t)__builtin_ctzll(left);
			add(c, (uint32_t)(bit / c->page.max_micro_size), (uint32_t)(bit % c->page.max_micro_size));
		}
}

/* One block, the widest columns first. NULL: no memory. */
static void *make_room(struct collected *c)
{
	struct part_ledger *to = &c->to;
	c->room = to->total < LEDGER_PORTION ? (uint32_t)to->total : LEDGER_PORTION;
	size_t n = c->room;
	uint64_t *block = malloc((n + 1) * (4 * sizeof(*to->weight) + 2 * sizeof(*to->rank)));
	if (!block)
		return NULL;
	to->data_key = block;
	to->unix_nanos = (int64_t *)(block + n);
	to->weight = (double *)(block + 2 * n);
	to->loss = (double *)(block + 3 * n);
	to->rank = (uint32_t *)(block + 4 * n);
	to->micro = to->rank + n;
	return block;
}

static void send_all(struct collected *c, const struct control_state *s)
{
	c->to.counted = bits_in(s->counted, s->n_words);
	c->to.total = c->to.counted + bits_in(s->voided, s->n_words);
	void *block = c->to.total <= ledger_most(c->part->n_parts) ? make_room(c) : NULL;
	if (!block)
		return;
	add_all(c, s->counted, s->n_words);
	add_all(c, s->voided, s->n_words);
	if (c->to.n || !c->to.total)
		send_portion(c);
	free(block);
}

void part_ledger_send(struct part *p, const struct report *r)
{
	if (r->phase != WINDOW_PREPARED || r->vote_status || p->told.ledger == r->window + 1)
		return;
	p->told.ledger = r->window + 1; /* a later report may come when the next window is open */
	struct collected c = { .part = p,
			       .to = { .job_id = p->id,
				       .epoch = job_part(p->job)->epoch,
				       .incarnation = r->incarnation,
				       .window = r->window,
				       .part = r->part } };
	if (part_control_page(p, &c.page))
		send_all(&c, job_record(p->job));
}
