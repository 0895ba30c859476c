/* SPDX-License-Identifier: Apache-2.0 */
/* Makes and frees jobs with their machines: the coordinator and the checkpoints. For Submit, the recovery after a
 * restart, and all that lets a job go. Loop thread. */
#include "edge/hosted_life.h"

#include "base/array.h"
#include "edge/checkpoints.h"
#include "edge/exchanging.h"
#include "edge/hosted_nodes.h"
#include "edge/hosted_ports.h"
#include "edge/hosted_norms.h"
#include "edge/hosted_scalars.h"
#include "edge/launching.h"
#include "edge/placing.h"
#include "gacc/v1/common.pb-c.h"
#include "runtime/prepared.h"

#include <stdlib.h>

void hosted_drop_machines(struct hosted *h)
{
	if (h->coord)
		placing_drop(h);
	exchanging_remove(h);
	hosted_nodes_forget(h);
	coord_free(h->coord);
	h->coord = NULL;
	shared_drop(h->tensors);
	h->tensors = NULL;
	for (uint32_t i = 0; i < h->n_parts; i++) { /* they are no longer this job's */
		free(h->part[i].seen);
		free(h->part[i].refusal);
		free(h->part[i].ledger.micro);
	}
	free(h->part);
	h->part = NULL;
	h->n_parts = 0;
}

void hosted_free(struct hosted *h)
{
	if (!h)
		return;
	launching_free(h);
	hosted_history_fini(h);
	saving_free(h);
	hosted_norms_free(h);
	hosted_scalars_end(h);
	saved_fini(&h->saved);
	hosted_drop_machines(h);
	hosted_unmake(h);
}

void hosted_free_all(struct daemon *d)
{
	while (d->n_jobs) { /* one that is freed looks at those that are left (hosted_nodes_forget) */
		struct hosted *last = d->job[--d->n_jobs];
		hosted_free(last);
	}
	free(d->job);
	d->job = NULL;
}

/* Where all are on this node, which one goes without saying. */
static void name_nodes(const struct hosted *h)
{
	const bool elsewhere = hosted_parts_here(h) < h->n_parts;
	for (uint32_t i = 0; i < h->n_parts && elsewhere; i++)
		coord_part_on(h->coord, i, hosted_node(h, i));
}

/* Its coordinator and its parts, each of which has a block of the ranks. ST_NO_MEMORY. */
static enum status make_parts(struct hosted *h)
{
	const uint32_t n = h->spec->parts, ranks = h->spec->ranks;
	struct part_ranks *part = calloc(n, sizeof(*part));
	uint32_t *rank = malloc(ranks * sizeof(*rank));
	const struct coord_ports ports = hosted_coord_ports(h);
	enum status st = ST_NO_MEMORY;
	h->part = calloc(n, sizeof(*h->part));
	h->n_parts = h->part ? n : 0;
	for (uint32_t r = 0; rank && r < ranks; r++)
		rank[r] = r;
	for (uint32_t i = 0; part && rank && i < n; i++) {
		uint32_t first = part_block(ranks, n, i);
		part[i] = (struct part_ranks){ part_block(ranks, n, i + 1) - first, rank + first };
	}
	if (h->part)
		st = hosted_nodes_assign(h);
	if (h->part && !st)
		st = exchanging_add(h);
	if (part && rank && h->part && !st)
		st = coord_new(&h->coord, h->id, h->spec, h->d->term, n, part, &ports);
	if (!st)
		name_nodes(h);
	if (!st && n > 1)
		st = coord_set_collectives(h->coord, (int64_t)h->d->node.conf->coll.stall_ms * 1000000);
	free(part);
	free(rank);
	return st;
}

enum status hosted_new(struct daemon *d, uint64_t id, uint32_t uid, const char *user, struct prepared *p,
		       struct hosted **out)
{
	if (p->status)
		return p->status;
	struct hosted *h = hosted_make(d, id, uid, user, specification_new(p), HOSTED_EVENTS);
	if (!h)
		return ST_NO_MEMORY;
	enum status st = saving_new(h);
	if (!st)
		st = make_parts(h);
	if (st) {
		hosted_free(h);
		return st;
	}
	if (p->set.n)
		st = hosted_need(h, &p->set.arena, &h->place.need);
	if (st)
		hosted_free(h);
	else
		*out = h;
	return st;
}

enum status hosted_add(struct daemon *d, struct hosted *h)
{
	struct hosted **j = array_grow(d->job, d->n_jobs, &d->jobs_capacity, sizeof(*j));
	if (!j)
		return ST_NO_MEMORY;
	d->job = j;
	d->job[d->n_jobs++] = h;
	return ST_OK;
}
