/* SPDX-License-Identifier: Apache-2.0 */
/* The log of the job that all coordinators write to, guarded by the term, and the coordinators' other ports. For
 * cluster.c. */
#include "cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- writing ---- */

/* A write takes time; it counts at one instant, if the term is still the writer's. */
struct item *cluster_write(struct coordinator *k, enum event_type type)
{
	struct sim *s = &k->cluster->whole;
	int64_t at = s->now + (int64_t)sim_random(s, 8 * MS) + 1;
	s->store_at = at > s->store_at ? at : s->store_at + 1;
	struct item *i = cluster_item(k->cluster, s->store_at - s->now, ITEM_STORE);
	i->e.type = type;
	i->e.life = k->term;
	return i;
}

static void port_persist(void *ctx, const struct commit *k, const uint64_t *counted, uint32_t n_words)
{
	struct item *i = cluster_write(ctx, EV_PERSISTED);
	i->e.commit = *k;
	i->counted = calloc(CLUSTER_WORDS, sizeof(*i->counted));
	memcpy(i->counted, counted, n_words * sizeof(*counted));
}

static void port_persist_end(void *ctx, uint64_t job, enum status st, const char *reason)
{
	struct item *i = cluster_write(ctx, EV_ENDED);
	i->e.status = st;
	snprintf(i->e.reply.text, sizeof(i->e.reply.text), "%s", reason);
}

/* Nothing here stays broken: a job is held only if its coordinator is wrong. */
static void port_hold(void *ctx, uint64_t job, const char *reason)
{
	struct coordinator *k = ctx;
	sim_fail(&k->cluster->whole, "I34: the job is %s", reason);
}

/* ---- the log ---- */

/* What a part keeps of a window: the bits of its ranks. */
static void give_to_parts(struct cluster *c, uint32_t n, const uint64_t *counted)
{
	for (uint32_t p = 0; p < c->n_parts; p++) {
		struct sim *s = &c->part[p];
		struct store_window *w = &s->window[n];
		w->commit = c->log[n].commit;
		part_pick_bits(&c->ranks[p], s->spec.max_micro_size, counted, w->counted);
		w->commit.micro_count = 0; /* of this part, as sim_check_apply() counts it */
		for (uint32_t i = 0; i < control_words(s->spec.ranks, s->spec.max_micro_size); i++)
			w->commit.micro_count += (uint64_t)__builtin_popcountll(w->counted[i]);
		s->n_windows = n + 1;
	}
}

static void on_persisted(struct cluster *c, const struct item *i)
{
	struct sim *s = &c->whole;
	const struct commit *k = &i->e.commit;
	enum status st = i->e.life != s->term || s->ended ? ST_STALE_TERM : ST_OK;
	uint32_t n = s->n_windows;
	if (!st && k->window != n) {
		sim_fail(s, "I2: the log has %u windows, then window %llu", n, (unsigned long long)k->window);
	} else if (!st && n < SIM_MAX_WINDOWS) {
		cluster_check_commit(c, k, i->counted);
		c->log[n].commit = s->window[n].commit = *k;
		memcpy(c->log[n].counted, i->counted, sizeof(c->log[n].counted));
		s->n_windows++;
		give_to_parts(c, n, i->counted);
		c->moved_at = s->now;
		cluster_say(c, "window %llu is in the log: term %llu, attempt %llu, outcome %u",
			    (unsigned long long)k->window, (unsigned long long)k->term, (unsigned long long)k->attempt,
			    k->outcome);
	}
	struct coordinator *by = cluster_find(c, i->e.life);
	if (by)
		coord_on_persisted(by->c, k->window, st, sim_now(s));
}

static void on_ended(struct cluster *c, const struct item *i)
{
	struct sim *s = &c->whole;
	bool mine = i->e.life == s->term && !s->ended;
	if (mine) {
		s->ended = true;
		s->end_status = i->e.status;
		c->ended_by = i->e.life;
		c->ended_at = s->now;
		snprintf(c->end_reason, sizeof(c->end_reason), "%.250s", i->e.reply.text);
		cluster_say(c, "the job has ended: %s", i->e.reply.text);
		cluster_check_end(c, i->e.status, i->e.reply.text);
	}
	struct coordinator *by = cluster_find(c, i->e.life);
	if (by)
		coord_on_ended(by->c, mine ? ST_OK : ST_STALE_TERM, sim_now(s));
}

static void on_updated(struct cluster *c, const struct item *i)
{
	struct sim *s = &c->whole;
	if (i->e.life != s->term || s->ended || s->n_updates == SIM_MAX_UPDATES)
		return;
	sim_check_update(s, &i->e.update);
	s->update[s->n_updates++] = i->e.update;
}

static void on_held(struct cluster *c, const struct item *i)
{
	struct sim *s = &c->whole;
	struct coordinator *by = cluster_find(c, i->e.life);
	bool collects = by && s->term == 1 && coord_phase(by->c) == COORD_COLLECT;
	if (i->e.life != s->term || s->ended)
		return;
	/* the open window may be closing; orders of an earlier coordinator may close it later, too */
	if (i->e.hold && !s->held)
		s->held_bound = s->n_windows - collects;
	s->held = i->e.hold;
	if (by && i->e.hold)
		coord_pause(by->c, "held", sim_now(s));
	else if (by)
		coord_resume(by->c, "goes on", sim_now(s));
}

void cluster_on_store(struct cluster *c, const struct item *i)
{
	switch ((int)i->e.type) {
	case EV_PERSISTED:
		on_persisted(c, i);
		break;
	case EV_ENDED:
		on_ended(c, i);
		break;
	case EV_UPDATED:
		on_updated(c, i);
		break;
	case EV_HELD:
		on_held(c, i);
		break;
	default:
		break;
	}
}

void cluster_store_ports(struct coord_ports *p)
{
	p->persist_commit = port_persist;
	p->persist_end = port_persist_end;
	p->hold = port_hold;
}
