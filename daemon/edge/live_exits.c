/* SPDX-License-Identifier: Apache-2.0 */
/* How a job's ranks ended, in the journal: so that who looks back after a restart of gaccd sees it, too. */
#include "edge/live_job.h"

#include "base/log.h"
#include "edge/live_launch.h"

#include <stdlib.h>
#include <string.h>

/* The record: this, the ranks, and what the cause's rank wrote last. Readers check the size. */
struct exits {
	uint32_t version, n_ranks, n_tail, reserved;
	struct launch_summary summary;
	struct launch_rank rank[];
};
#define EXITS_VERSION 1

void live_exits_keep(struct live_job *l)
{
	const struct live_launch *g = l->launch;
	size_t n_ranks = l->spec->ranks * sizeof(*g->rank), n = sizeof(struct exits) + n_ranks + g->n_tail;
	struct exits *e = calloc(1, n);
	if (e) {
		*e = (struct exits){ EXITS_VERSION, l->spec->ranks, g->n_tail, 0, g->summary };
		memcpy(e->rank, g->rank, n_ranks);
		memcpy((char *)e->rank + n_ranks, g->tail, g->n_tail);
	}
	struct journal_record r = { .kind = JOURNAL_EXITS, .exits = { l->id, { e, n } } };
	if (e && !persist_put(l->d->persist, &r, live_on_written, l))
		live_hold(l);
	else
		log_job(l->id, LOG_WARN, "ExitsLost",
			"no memory to write down how its ranks ended: the next gaccd will not know");
	free(e);
}

void live_exits_restore(struct live_job *l, const struct journal_bytes *b)
{
	const struct exits *e = b->data;
	if (b->n < sizeof(*e) || e->version != EXITS_VERSION || e->n_ranks != l->spec->ranks ||
	    e->n_tail > LAUNCH_MAX_TAIL || b->n != sizeof(*e) + e->n_ranks * sizeof(*e->rank) + e->n_tail ||
	    !live_launch_make(l))
		return;
	struct live_launch *g = l->launch;
	memcpy(g->rank, e->rank, e->n_ranks * sizeof(*e->rank));
	memcpy(g->tail, e->rank + e->n_ranks, e->n_tail);
	g->n_tail = e->n_tail;
	g->summary = e->summary;
	g->done = true;
}
