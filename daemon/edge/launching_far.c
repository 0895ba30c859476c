/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of a job that other nodes launch: sends what is wanted there, until it is taken or the node is given up.
 * For launching.c and node_serve.c. Loop thread. */
#include "edge/launching_impl.h"

#include "base/log.h"
#include "control/members.h"
#include "edge/hosted.h"
#include "edge/links.h"

#include <string.h>

#define AGAIN_NS (INT64_C(1000) * 1000000)   /* what has not been taken is sent again */
#define SILENT_NS (INT64_C(60) * 1000000000) /* of an ended job: then nobody waits for the node's ranks */

/* ---- what is wanted ---- */

const char *launching_address(const struct hosted *h, const struct launch_site *s)
{
	return s->node ? members_at(h->d->members, s->node - 1)->facts.data_address
		       : h->d->node.conf->node.data_address;
}

static bool is_same(const struct launch_wish *a, const struct launch_wish *b)
{
	return a->want == b->want && a->grace_ns == b->grace_ns && a->allowed == b->allowed && a->final == b->final &&
	       a->fresh == b->fresh && a->first == b->first && a->n_ranks == b->n_ranks && a->group == b->group &&
	       a->n_groups == b->n_groups && a->master_port == b->master_port &&
	       !strcmp(a->master_addr, b->master_addr);
}

static void send_wish(struct hosted *h, struct launch_site *s, struct now now)
{
	struct launch_wanted w = { .job_id = h->id,
				   .epoch = coord_epoch(h->coord),
				   .term = h->d->term,
				   .number = s->order,
				   .part = s->part,
				   .wish = s->sent };
	size_t n = 0;
	memcpy(w.uuid, h->uuid, sizeof(w.uuid));
	void *bytes = launch_wanted_pack(&w, &n);
	s->sent_ns = now.mono_ns;
	links_send_down(h->d, s->node, LINK_LAUNCH, h->id, s->part, bytes, n, NULL);
}

/* A node that has died stays away, and with it what it had: its launcher ends the ranks by itself. */
static void give_up_silent(struct hosted *h, struct launch_site *s, struct now now)
{
	const int64_t since = s->heard_ns > h->launch->ended_ns ? s->heard_ns : h->launch->ended_ns;
	if (!hosted_ended(h) || s->over || now.mono_ns - since < SILENT_NS)
		return;
	s->over = s->ended = true;
	log_job(h->id, LOG_WARN, "RanksUnknown",
		"the node of part %u has not said for a minute how the ended job's ranks are: nobody waits for them",
		s->part);
}

void launching_far_wish(struct hosted *h, struct launch_site *s, const struct launch_wish *w, struct now now)
{
	if (!h->coord || s->over)
		return;
	if (!s->order || !is_same(&s->sent, w)) {
		s->sent = *w;
		s->order++;
		send_wish(h, s, now);
	} else if (s->taken != s->order && now.mono_ns - s->sent_ns >= AGAIN_NS) {
		send_wish(h, s, now);
	}
	give_up_silent(h, s, now);
}

void launching_linked(struct hosted *h, uint32_t part, bool from_the_beginning)
{
	struct launching *g = h->launch;
	for (uint32_t i = 0; g && i < g->n_sites; i++) {
		struct launch_site *s = &g->site[i];
		if (s->part != part || !s->node)
			continue;
		s->taken = 0;
		s->sent_ns = 0;
		if (from_the_beginning)
			s->incarnation = s->number = 0;
	}
}
