/* SPDX-License-Identifier: Apache-2.0 */
/* Takes the news of ranks that other nodes launch for a job which is coordinated here. For links, on the loop
 * thread. */
#include "edge/launching_impl.h"

#include "edge/hosted.h"
#include "edge/links.h"

#include <stdlib.h>
#include <string.h>

/* Of this site, and not overtaken. */
static bool concerns(const struct hosted *h, const struct launch_site *s, const struct launched *l)
{
	if (l->job_id != h->id || l->part != s->part || l->epoch != coord_epoch(h->coord) || l->first != s->first ||
	    l->n_ranks != s->n_ranks)
		return false;
	return l->incarnation > s->incarnation || (l->incarnation == s->incarnation && l->number > s->number);
}

static void take_ranks(struct hosted *h, struct launch_site *s, const struct launched *l)
{
	memcpy(h->launch->rank + s->first, l->rank, l->n_ranks * sizeof(*l->rank));
	s->summary = l->summary;
	s->n_tail = 0;
	if (l->n_tail && !s->tail)
		s->tail = malloc(LAUNCHED_MAX_TAIL);
	if (l->n_tail && s->tail) {
		memcpy(s->tail, l->tail, l->n_tail);
		s->n_tail = l->n_tail;
	}
}

static void take(struct hosted *h, struct launch_site *s, const struct launched *l)
{
	/* a launcher that was started to clean up does not know how the ranks ended; what was told before counts */
	const bool cleans_up = l->summary.phase == LAUNCH_IDLE && hosted_ended(h);
	s->incarnation = l->incarnation;
	s->number = l->number;
	s->heard_ns = daemon_now(h->d).mono_ns;
	s->taken = l->term == h->d->term ? l->order : 0;
	s->heard = true;
	s->over |= l->over;
	s->launcher_pid = l->launcher_pid;
	memcpy(s->failure, l->failure, sizeof(s->failure));
	if (!cleans_up)
		take_ranks(h, s, l);
	s->ended = s->over || l->summary.phase == LAUNCH_OVER;
	launching_changed(h);
}

static struct launch_site *site_of(const struct hosted *h, const struct link_message *m)
{
	struct launching *g = h->launch;
	for (uint32_t i = 0; g && i < g->n_sites; i++)
		if (g->site[i].node && g->site[i].part == m->part)
			return &g->site[i];
	return NULL;
}

void launching_take_news(struct daemon *d, const struct link_message *m)
{
	struct hosted *h = hosted_of_message(d, m);
	struct launch_site *s = h ? site_of(h, m) : NULL;
	struct launched l;
	char why[200];
	if (!s)
		return;
	enum status st =
		launched_unpack(m->bytes, m->n, h->spec->ranks, h->spec->launch.max_restarts, &l, why, sizeof(why));
	if (st == ST_VERSION_SKEW)
		links_refuse(m, why);
	if (st)
		return; /* without memory: it is repeated */
	if (concerns(h, s, &l))
		take(h, s, &l);
	free((void *)l.rank);
}
