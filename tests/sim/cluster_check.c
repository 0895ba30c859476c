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

/* I27: a communicator has one life of each engine. */
void cluster_check_life(struct cluster *c, struct cluster_comm *x, uint32_t part, uint64_t life)
{
	if (!x->life[part])
		x->life[part] = life;
	if (x->life[part] != life)
		sim_fail(&c->whole,
			 "I27: communicator %llu of term %llu has two lives of the engine of part %u: %llx, %llx",
			 (unsigned long long)x->k, (unsigned long long)x->term, part, (unsigned long long)x->life[part],
			 (unsigned long long)life);
}

/* ---- at an order ---- */

/* I27: what the coordinator knows to be dead is not on its board. */
void cluster_check_board(struct coordinator *k, const struct part_board *b)
{
	for (uint32_t p = 0; p < b->n_parts; p++)
		if (k->said[p].life && k->said[p].life != b->address[p].life)
			sim_fail(&k->cluster->whole,
				 "I27: the board of communicator %llu has an engine of part %u that is gone",
				 (unsigned long long)b->comm, p);
}

/* I27: no attempt begins in a communicator that somebody has left, as far as the coordinator was told. */
static void check_warm(struct coordinator *k, const struct order *o)
{
	struct cluster *c = k->cluster;
	for (uint32_t p = 0; p < c->n_parts && o->comm != o->attempt; p++) {
		const struct cluster_said *is = &k->said[p];
		if (is->comm != o->comm || is->term != k->term || !is->life)
			sim_fail(&c->whole,
				 "I27: attempt %llu is to use communicator %llu, and part %u has said that it is in "
				 "%llu",
				 (unsigned long long)o->attempt, (unsigned long long)o->comm, p,
				 (unsigned long long)is->comm);
	}
}

static const struct cluster_comm *find_comm(const struct cluster *c, uint64_t term, uint64_t k)
{
	for (uint32_t i = 0; i < c->n_comms; i++)
		if (c->comm[i].term == term && c->comm[i].k == k)
			return &c->comm[i];
	return NULL;
}

/* I33: an attempt that a part has voted against has failed: its communicator is broken, or not whole any more. */
void cluster_check_failure(const struct coordinator *k, const char *why)
{
	struct cluster *c = k->cluster;
	const struct cluster_comm *x = find_comm(c, k->term, k->comm);
	bool is_broken = x && (x->broken || x->gone);
	bool is_late =
		strstr(why, " has not said ") || strstr(why, " has not joined ") || strstr(why, "no part has got on");
	if (c->n_parts > 1 && !is_broken && !is_late)
		sim_fail(&c->whole, "I33: communicator %llu of term %llu is whole, and %s", (unsigned long long)k->comm,
			 (unsigned long long)k->term, why);
}

/* I30: nothing is computed before all parts have the same parameters. */
static void check_run(struct cluster *c, const struct order *o)
{
	if (!o->run || c->whole.n_windows || c->n_parts == 1)
		return;
	for (uint32_t p = 0; p < c->n_parts; p++) {
		const struct control_record *r = &c->part[p].d.r;
		if (!c->part[p].durable || !r->params_ready || r->params_digest != c->part[0].d.r.params_digest)
			sim_fail(&c->whole,
				 "I30: the job is to run, and part %u has parameters %llx (ready %u), part 0 %llx", p,
				 (unsigned long long)r->params_digest, r->params_ready,
				 (unsigned long long)c->part[0].d.r.params_digest);
	}
}

void cluster_check_order(struct coordinator *k, const struct order *o)
{
	check_run(k->cluster, o);
	if (k->cluster->n_parts > 1 && o->want == WANT_GO && o->attempt != k->attempt) {
		check_warm(k, o);
		k->attempt = o->attempt;
	}
	k->comm = o->comm;
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
	if (c->n_parts > 1 && r->complete && r->window == s->d.r.window && s->d.r.client_pending)
		sim_fail(&c->whole, "I18: part %u is complete, and trainers read what its GO would overwrite",
			 cluster_part(s));
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

/* I28, I29: each part holds the sum of this attempt, in part order, of just what all parts have frozen. */
static void check_sums(struct cluster *c, const struct commit *k)
{
	struct cluster_op op = { .kind = OP_SUM };
	for (uint32_t p = 0; p < c->n_parts; p++)
		op.sums[p] = engine_sums(&c->part[p]);
	const struct sim_sums all = cluster_sum_up(c, &op);
	for (uint32_t p = 0; p < c->n_parts && c->n_parts > 1; p++) {
		const struct cluster_half *h = &c->member[p].half;
		if (!h->whole || h->term != k->term || h->attempt != k->attempt || h->digest != all.digest ||
		    k->digest != all.digest)
			sim_fail(&c->whole, "I29: window %llu commits, and part %u does not hold the sum of it",
				 (unsigned long long)k->window, p);
	}
}

void cluster_check_commit(struct cluster *c, const struct commit *k, const uint64_t *counted)
{
	struct sim *w = &c->whole;
	look_at_all(c);
	check_prepared(c, k);
	check_sums(c, k);
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
			"part %u on node %u: gaccd %d, engine %d, window %llu, phase %u, prepared %llu/%llu, "
			"communicator %llu in state %d, sum %d, fill %d, lost %d\n",
			p, c->node_of[p], s->gaccd_up, s->engine_up, (unsigned long long)r->window, r->phase,
			(unsigned long long)r->prepared_term, (unsigned long long)r->prepared_attempt,
			(unsigned long long)(c->member[p].engine.comm ? c->comm[c->member[p].engine.comm - 1].k : 0),
			c->member[p].engine.state, c->member[p].engine.sum.stage, c->member[p].engine.fill_stage,
			s->lost);
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
