/* SPDX-License-Identifier: Apache-2.0 */
/* Reads back from the journal, after a restart of gaccd, how the ranks of an ended job ended. For hosted_recover.c, on
 * the loop thread. */
#include "edge/launching_impl.h"

#include "base/log.h"
#include "cluster/exits_record.h"
#include "edge/hosted.h"

#include <stdlib.h>
#include <string.h>

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
		struct launch_site *s = &g->site[0]; /* the only one of an ended job */
		struct starter *from = g->starter;
		memcpy(g->rank, e.rank, e.n_ranks * sizeof(*e.rank));
		s->n_tail = from->n_tail = e.n_tail < sizeof(from->tail) ? (uint32_t)e.n_tail : sizeof(from->tail);
		memcpy(from->tail, e.tail, from->n_tail);
		s->tail = from->tail;
		s->summary = from->summary = e.summary;
		s->over = from->done = true;
		g->cause = e.summary.cause.known ? s : NULL;
	}
	free(e.rank);
}
