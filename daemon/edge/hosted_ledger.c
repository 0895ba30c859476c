/* SPDX-License-Identifier: Apache-2.0 */
/* Takes the portions of ledgers that the nodes of parts send, and keeps the newest ledger of each part. For links. Loop
 * thread. */
#include "edge/hosted_ledger.h"

#include "cluster/commit_message.h"
#include "cluster/ledger_message.h"
#include "edge/hosted.h"
#include "edge/hosted_nodes.h"

#include <stdio.h>
#include <stdlib.h>

/* A new ledger; the one before is no longer waited for. */
static void begin(struct hosted_ledger *to, const struct part_ledger *l)
{
	free(to->micro);
	*to = (struct hosted_ledger){ .incarnation = l->incarnation, .window = l->window, .total = l->total };
	to->micro = malloc((l->total + 1) * sizeof(*to->micro));
}

static bool is_older(const struct hosted_ledger *is, const struct part_ledger *l)
{
	return l->incarnation != is->incarnation ? l->incarnation < is->incarnation : l->window < is->window;
}

static void append(struct hosted_ledger *to, const struct part_ledger *l)
{
	for (uint32_t i = 0; i < l->n; i++)
		to->micro[to->n++] = (struct history_micro){ .rank = l->rank[i],
							     .micro = l->micro[i],
							     .voided = l->first + i >= l->counted,
							     .weight = l->weight[i],
							     .loss = l->loss[i],
							     .unix_ns = l->unix_nanos[i],
							     .data_key = l->data_key[i] };
}

/* A portion that does not follow the last one is of no use, and neither are those behind it. */
static void take(struct hosted *h, uint32_t part, const struct part_ledger *l)
{
	struct hosted_ledger *to = &h->part[part].ledger;
	if (l->job_id != h->id || l->part != part || l->epoch != coord_epoch(h->coord) || is_older(to, l))
		return;
	if (!l->first)
		begin(to, l);
	if (to->micro && to->incarnation == l->incarnation && to->window == l->window && to->total == l->total &&
	    to->n == l->first)
		append(to, l);
}

/* A node has nothing to say about the ranks of others. */
static enum status check_ranks(const struct hosted *h, uint32_t part, const struct part_ledger *l, char *why,
			       size_t n_why)
{
	uint32_t i = 0;
	while (i < l->n && hosted_part_has(h, part, l->rank[i]))
		i++;
	if (i == l->n)
		return ST_OK;
	snprintf(why, n_why, "PartLedger.rank has %u, which is not in the part", l->rank[i]);
	return ST_VERSION_SKEW;
}

void hosted_take_ledger(struct daemon *d, const struct link_message *m)
{
	struct hosted *h = hosted_of_message(d, m);
	struct part_ledger l;
	char why[200];
	if (!h)
		return;
	const struct message_bounds bounds = message_bounds_of(h->spec);
	enum status st = ledger_unpack(m->bytes, m->n, &bounds, &l, why, sizeof(why));
	if (st == ST_NO_MEMORY)
		return; /* the window has no micro-batches in the history */
	if (!st) {
		st = check_ranks(h, m->part, &l, why, sizeof(why));
		if (!st)
			take(h, m->part, &l);
		ledger_release(&l);
	}
	if (st)
		links_refuse(m, why);
}
