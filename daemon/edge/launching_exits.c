/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps in the journal how a job's ranks ended, and reads it back after a restart of gaccd, so that it can still be
 * shown. For launching.c and hosted_recover.c. Loop thread. */
#include "edge/launching_impl.h"

#include "base/log.h"
#include "cluster/exits_record.h"
#include "edge/hosted.h"

#include <stdlib.h>
#include <string.h>

void launching_exits_keep(struct hosted *h)
{
	const struct launching *g = h->launch;
	const struct exits e = { g->summary, g->rank, h->spec->ranks, g->tail, g->n_tail };
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

/* What cannot be read is not shown: the job has ended, and nothing depends on it. */
void launching_exits_restore(struct hosted *h, const struct journal_bytes *b)
{
	struct exits e;
	char why[200] = "no memory";
	if (exits_record_read(b->data, b->n, h->spec->ranks, &e, why, sizeof(why))) {
		log_job(h->id, LOG_WARN, "ExitsUnreadable", "how its ranks ended is not known: its record EXITS: %s",
			why);
		return;
	}
	if (launching_make(h)) {
		struct launching *g = h->launch;
		memcpy(g->rank, e.rank, e.n_ranks * sizeof(*e.rank));
		g->n_tail = e.n_tail < sizeof(g->tail) ? (uint32_t)e.n_tail : sizeof(g->tail);
		memcpy(g->tail, e.tail, g->n_tail);
		g->summary = e.summary;
		g->done = true;
	}
	free(e.rank);
}
