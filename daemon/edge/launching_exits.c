/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps in the journal how a job's ranks ended, so that it can still be shown after a restart of gaccd. For
 * launching.c; launching_recall.c reads it. Loop thread. */
#include "edge/launching_impl.h"

#include "base/log.h"
#include "cluster/exits_record.h"
#include "edge/hosted.h"

#include <stdlib.h>

void launching_exits_keep(struct hosted *h)
{
	const struct launching *g = h->launch;
	struct exits e = { .rank = g->rank, .n_ranks = h->spec->ranks };
	for (uint32_t i = 0; i < g->n_sites; i++)
		e.summary.charged += g->site[i].summary.charged;
	e.summary.phase = g->n_sites == 1 ? g->site[0].summary.phase : LAUNCH_OVER;
	e.summary.result = g->cause ? g->cause->summary.result : g->site[0].summary.result;
	if (g->cause) {
		e.summary.cause = g->cause->summary.cause;
		e.tail = g->cause->tail;
		e.n_tail = g->cause->n_tail;
	} else if (g->n_sites == 1) {
		e.tail = g->site[0].tail;
		e.n_tail = g->site[0].n_tail;
	}
	size_t n = 0;
	void *bytes = exits_record_pack(&e, &n);
	struct journal_record r = { .kind = JOURNAL_EXITS, .exits = { h->id, { bytes, n } } };
	if (bytes && !persist_put(h->d->persist, &r, hosted_on_written, h))
		hosted_hold(h);
	else
		log_job(h->id, LOG_WARN, "ExitsLost",
			"no memory to write down how its ranks ended: the next gaccd will not know");
	free(bytes);
}
