/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps in the journal how a job's ranks ended, and reads it back after a restart of gaccd, so that it can still be
 * shown. For launching.c and hosted_journal.c. Loop thread. */
#include "edge/hosted.h"

#include "base/log.h"
#include "edge/launching.h"

#include <stdlib.h>
#include <string.h>

/* The record: this, the ranks, and what the cause's rank wrote last. Readers check the size. */
struct exits {
	uint32_t version, n_ranks, n_tail, reserved;
	struct launch_summary summary;
	struct launch_rank rank[];
};
#define EXITS_VERSION 1

void launching_exits_keep(struct hosted *h)
{
	const struct launching *g = h->launch;
	size_t n_ranks = h->spec->ranks * sizeof(*g->rank), n = sizeof(struct exits) + n_ranks + g->n_tail;
	struct exits *e = calloc(1, n);
	if (e) {
		*e = (struct exits){ EXITS_VERSION, h->spec->ranks, g->n_tail, 0, g->summary };
		memcpy(e->rank, g->rank, n_ranks);
		memcpy((char *)e->rank + n_ranks, g->tail, g->n_tail);
	}
	struct journal_record r = { .kind = JOURNAL_EXITS, .exits = { h->id, { e, n } } };
	if (e && !persist_put(h->d->persist, &r, hosted_on_written, h))
		hosted_hold(h);
	else
		log_job(h->id, LOG_WARN, "ExitsLost",
			"no memory to write down how its ranks ended: the next gaccd will not know");
	free(e);
}

void launching_exits_restore(struct hosted *h, const struct journal_bytes *b)
{
	const struct exits *e = b->data;
	if (b->n < sizeof(*e) || e->version != EXITS_VERSION || e->n_ranks != h->spec->ranks ||
	    e->n_tail > LAUNCH_MAX_TAIL || b->n != sizeof(*e) + e->n_ranks * sizeof(*e->rank) + e->n_tail ||
	    !launching_make(h))
		return;
	struct launching *g = h->launch;
	memcpy(g->rank, e->rank, e->n_ranks * sizeof(*e->rank));
	memcpy(g->tail, e->rank + e->n_ranks, e->n_tail);
	g->n_tail = e->n_tail;
	g->summary = e->summary;
	g->done = true;
}
