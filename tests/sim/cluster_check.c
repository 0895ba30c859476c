/* SPDX-License-Identifier: Apache-2.0 */
/* The invariants of a job on many nodes: those of each part and of the whole are sim_check.c's; what they are to each
 * other is here. */
#include "cluster.h"

#include <string.h>

/* ---- the job as one node would see it ---- */

static void add_part(struct sim *w, struct cluster *c, uint32_t p)
{
	struct sim *s = &c->part[p];
	uint32_t max = w->spec.max_micro_size;
	w->n_applied = s->n_applied < w->n_applied ? s->n_applied : w->n_applied;
	if (!s->durable) {
		w->n_applied = 0;
		return;
	}
	if (p == 0)
		w->d.r = s->d.r;
	if (s->d.r.window != w->d.r.window)
		w->d.r.window = s->d.r.window < w->d.r.window ? s->d.r.window : w->d.r.window;
	w->d.r.params_nonfinite |= s->d.r.params_nonfinite;
	w->n_acc += s->n_acc;
	w->n_void += s->n_void;
	part_place_bits(&c->ranks[p], max, s->d.counted, w->d.counted);
	part_place_bits(&c->ranks[p], max, s->d.voided, w->d.voided);
}

static void look_at_all(struct cluster *c)
{
	struct sim *w = &c->whole;
	size_t bytes = w->d.n_words * sizeof(*w->d.counted);
	w->n_acc = 0;
	w->n_void = 0;
	w->n_applied = UINT32_MAX;
	memset(&w->d.r, 0, sizeof(w->d.r));
	memset(w->d.counted, 0, bytes);
	memset(w->d.voided, 0, bytes);
	for (uint32_t p = 0; p < c->n_parts; p++)
		add_part(w, c, p);
}

/* ---- after every event ---- */

/* I2: parts that have applied the same windows have the same parameters. */
static void check_digest(struct cluster *c, const struct sim *s)
{
	uint64_t window = s->d.r.window;
	if (!window || window > SIM_MAX_WINDOWS)
		return;
	uint64_t *first = &c->digest[window - 1];
	if (!*first)
		*first = s->d.r.params_digest;
	if (*first != s->d.r.params_digest)
		sim_fail(&c->whole, "I2: part %u has other parameters than the first after window %llu",
			 cluster_part(s), (unsigned long long)window - 1);
}

static void check_part(struct cluster *c, struct sim *s)
{
	sim_check(s);
	if (s->durable)
		check_digest(c, s);
}

void cluster_check(struct cluster *c, struct sim *part)
{
	if (part && part != &c->whole) {
		check_part(c, part);
		return;
	}
	for (uint32_t p = 0; p < c->n_parts; p++)
		check_part(c, &c->part[p]);
}

/* ---- at a GO ---- */

/* No rank of the part owes anything in this window, and none ever will. */
static bool is_complete(const struct sim *s)
{
	uint32_t max = s->spec.max_micro_size, size = s->d.r.micro_size;
	for (uint32_t r = 0; r < s->spec.ranks; r++)
		if (!s->d.rank[r].flushed &&
		    control_count(s->d.counted, max, r, size) + control_count(s->d.voided, max, r, size) < size)
			return false;
	return true;
}

/* I18: no part begins to reduce before each is frozen, or has nothing more to come. */
void cluster_check_entry(struct cluster *c, const struct engine_command *go)
{
	for (uint32_t p = 0; p < c->n_parts; p++) {
		const struct sim *s = &c->part[p];
		if (s->d.r.window != go->window || (s->d.r.phase == WINDOW_OPEN && !is_complete(s)))
			sim_fail(&c->whole, "I18: attempt %llu of window %llu begins, and part %u may still add to it",
				 (unsigned long long)go->attempt, (unsigned long long)go->window, p);
	}
}

/* ---- at a report ---- */

/* I7, and: who is prepared for an attempt has not failed it, nor an earlier one that anybody could still wait for. */
void cluster_check_report(struct cluster *c, const struct sim *s, const struct report *r)
{
	struct cluster_member *m = &c->member[cluster_part(s)];
	const struct control_state *d = job_record(s->job);
	const struct control_record *is = d ? &d->r : NULL;
	if (m->said_in_life == s->gaccd_life && r->term < m->said_term)
		sim_fail(&c->whole, "I7: part %u goes back from term %llu to %llu", cluster_part(s),
			 (unsigned long long)m->said_term, (unsigned long long)r->term);
	m->said_in_life = s->gaccd_life;
	m->said_term = r->term;
	bool later = is && (is->prepared_term > r->vote_term ||
			    (is->prepared_term == r->vote_term && is->prepared_attempt >= r->vote_attempt));
	if (is && is->phase == WINDOW_PREPARED && r->vote_status && later)
		sim_fail(&c->whole, "I21: part %u says that attempt %llu has failed, and is prepared for attempt %llu",
			 cluster_part(s), (unsigned long long)r->vote_attempt,
			 (unsigned long long)is->prepared_attempt);
}

/* ---- at the commit point, and at the end ---- */

/* I19: only an operator, or the ranks themselves, make a window close with fewer micro-batches than micro_size. */
static void check_short(struct cluster *c, const struct commit *k)
{
	for (uint32_t p = 0; p < c->n_parts; p++)
		if (!is_complete(&c->part[p]) && c->flushed_window != k->window + 1)
			sim_fail(&c->whole, "I19: window %llu commits, nobody has flushed it, and part %u is short",
				 (unsigned long long)k->window, p);
}

/* I20: when a commit becomes durable, each part is prepared for just this attempt. */
static void check_prepared(struct cluster *c, const struct commit *k)
{
	for (uint32_t p = 0; p < c->n_parts; p++) {
		const struct control_record *r = &c->part[p].d.r;
		if (r->window != k->window || r->phase != WINDOW_PREPARED || r->prepared_term != k->term ||
		    r->prepared_attempt != k->attempt)
			sim_fail(&c->whole,
				 "I20: attempt %llu of term %llu commits window %llu, and part %u is in window %llu, "
				 "phase %u, prepared for attempt %llu of term %llu",
				 (unsigned long long)k->attempt, (unsigned long long)k->term,
				 (unsigned long long)k->window, p, (unsigned long long)r->window, r->phase,
				 (unsigned long long)r->prepared_attempt, (unsigned long long)r->prepared_term);
	}
}

void cluster_check_commit(struct cluster *c, const struct commit *k, const uint64_t *counted)
{
	struct sim *w = &c->whole;
	look_at_all(c);
	check_prepared(c, k);
	check_short(c, k);
	if (memcmp(counted, w->d.counted, w->d.n_words * sizeof(*counted)) || k->micro_count != w->n_acc)
		sim_fail(w, "I1: the commit of window %llu has %llu micro-batches, the engines hold %u",
			 (unsigned long long)k->window, (unsigned long long)k->micro_count, w->n_acc);
	sim_check_commit(w, k);
}

void cluster_check_end(struct cluster *c, enum status st, const char *reason)
{
	look_at_all(c);
	if (st != ST_SEGMENT_CORRUPT || !c->memory_lost)
		sim_check_end(&c->whole, st, reason);
}

/* ---- for people ---- */

void cluster_dump(struct cluster *c)
{
	struct coordinator *k = cluster_newest(c);
	fprintf(stderr, "term %llu, %u commits, coordinator in phase %d, held %d\n", (unsigned long long)c->whole.term,
		c->whole.n_windows, k ? (int)coord_phase(k->c) : -1, c->whole.held);
	for (uint32_t p = 0; p < c->n_parts; p++) {
		const struct sim *s = &c->part[p];
		const struct control_record *r = &s->d.r;
		fprintf(stderr,
			"part %u on node %u: gaccd %d, engine %d, window %llu, phase %u, prepared %llu/%llu, in an "
			"exchange %d, lost %d\n",
			p, c->node_of[p], s->gaccd_up, s->engine_up, (unsigned long long)r->window, r->phase,
			(unsigned long long)r->prepared_term, (unsigned long long)r->prepared_attempt,
			c->member[p].exchange != 0, s->lost);
		for (uint32_t i = 0; i < s->spec.ranks && s->durable; i++)
			fprintf(stderr, "  rank %u: sgen %llu flushed %u counted %u of %u\n", c->rank_of[p][i],
				(unsigned long long)s->d.rank[i].sgen, s->d.rank[i].flushed, s->d.rank[i].counted,
				r->micro_size);
		for (uint32_t i = 0; i < s->n_procs; i++)
			if (s->proc[i].state != PROC_DEAD)
				fprintf(stderr, "  process %u: rank %u state %d stopped %d window %llu at %u of %u\n",
					i, c->rank_of[p][s->proc[i].rank], s->proc[i].state, s->proc[i].stopped,
					(unsigned long long)s->proc[i].window, s->proc[i].at, s->proc[i].n_todo);
	}
}
