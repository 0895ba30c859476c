/* SPDX-License-Identifier: Apache-2.0 */
/* Counts what the newest reports of all parts and ranks say, for the coordinator's other files. The counts are kept
 * up to date, so a report costs only what it says, however many parts and ranks there are. Pure; loop thread. */
#include "control/coord_impl.h"

#include <stdio.h>

/* ---- parts ---- */

static uint32_t bit(enum mark m, bool is)
{
	return (uint32_t)is << m;
}

/* A part that is behind the open window, or ahead of it, says nothing about that window. */
static uint32_t marks_of(const struct coord *c, const struct peer *p)
{
	const struct report *r = &p->last;
	bool here = r->window == c->window, frozen = here && r->phase >= WINDOW_CLOSED;
	bool voted = here && r->vote_term == c->term && r->vote_attempt == c->attempt;
	if (!p->known)
		return 0;
	return bit(MARK_ALLOCATED, r->start >= START_ALLOCATED && r->life) |
	       bit(MARK_JOINED, c->comm.k && r->comm == c->comm.k && r->term == c->term) |
	       bit(MARK_STARTED, r->start >= START_PARAMS) | bit(MARK_COMPLETE, here && r->complete) |
	       bit(MARK_FROZEN, frozen) | bit(MARK_CLOSED, frozen && p->has_bitmap) |
	       bit(MARK_LEFT, here && r->all_left) | bit(MARK_VOTED, voted) |
	       bit(MARK_FAILED, voted && r->vote_status) | bit(MARK_AHEAD, r->window > c->window) |
	       bit(MARK_FAR_AHEAD, r->window > c->window + 1) |
	       bit(MARK_REFUSES, r->refused && r->refused != ST_NOT_READY);
}

void coord_mark(struct coord *c, struct peer *p)
{
	uint32_t is = marks_of(c, p);
	for (uint32_t changed = is ^ p->marks; changed; changed &= changed - 1) {
		int m = __builtin_ctz(changed);
		c->n_marked[m] += (is >> m & 1) ? 1 : -1u;
	}
	p->marks = is;
}

void coord_mark_all(struct coord *c)
{
	COORD_EACH_PART(c, i)
	coord_mark(c, &c->peer[i]);
}

/* ---- ranks ---- */

/* The time of an event that was this old when the report was sent; how long the message took is ignored. */
static int64_t since(int64_t heard_ns, int64_t age_ns)
{
	return !age_ns ? 0 : age_ns < heard_ns ? heard_ns - age_ns : 1;
}

static void take_rank(struct coord *c, const struct rank_progress *p, int64_t heard_ns)
{
	struct rank_times *t = &c->times[p->rank];
	t->waiting_ns = since(heard_ns, p->waiting_ns);
	t->lost_ns = since(heard_ns, p->lost_ns);
	if (p->ready_ns && !t->ready_ns) { /* it gets ready once in a window: later reports do not move that time */
		t->ready_ns = since(heard_ns, p->ready_ns);
		t->ready_ran_ns = coord_ran_ns(c, t->ready_ns);
	}
	const struct rank_progress *was = &c->rank[p->rank];
	c->n_counted += (uint64_t)p->counted - was->counted;
	c->n_voided += (uint64_t)p->voided - was->voided;
	if (t->waiting_ns && (!c->waiting_since_ns || t->waiting_ns < c->waiting_since_ns))
		c->waiting_since_ns = t->waiting_ns;
	c->rank[p->rank] = *p;
}

/* A report is taken as a whole. A node may be one window ahead, while the commit before is still being applied
 * elsewhere or not known here: what it says of its ranks is kept until that window opens. */
void coord_take_ranks(struct coord *c, const struct report *r, int64_t heard_ns)
{
	bool open = r->window == c->window && c->phase != COORD_START;
	*c->visited += r->n_ranks;
	for (uint32_t i = 0; i < r->n_ranks; i++) {
		const struct rank_progress *p = &r->rank[i];
		if (p->rank >= c->spec->ranks || c->part_of[p->rank] != r->part)
			continue;
		if (!open)
			c->early[p->rank] = (struct early_rank){ true, r->window, heard_ns, *p };
		if (open || c->phase == COORD_START) /* START: which ranks have attached */
			take_rank(c, p, heard_ns);
	}
}

void coord_take_early(struct coord *c)
{
	COORD_EACH_RANK(c, r)
	if (c->early[r].known && c->early[r].window == c->window)
		take_rank(c, &c->early[r].progress, c->early[r].heard_ns);
}

void coord_find_waiting(struct coord *c)
{
	c->waiting_since_ns = 0;
	COORD_EACH_RANK(c, r)
	{
		int64_t t = c->times[r].waiting_ns;
		if (t && (!c->waiting_since_ns || t < c->waiting_since_ns))
			c->waiting_since_ns = t;
	}
}

/* ---- are the counts right? ---- */

bool coord_counts_wrong(const struct coord *c, char *why, size_t n)
{
	uint32_t marked[N_MARKS] = { 0 };
	uint64_t counted = 0, voided = 0;
	for (uint32_t i = 0; i < c->n_peers; i++) {
		uint32_t is = marks_of(c, &c->peer[i]);
		if (is != c->peer[i].marks) {
			snprintf(why, n, "part %u has the marks %#x, kept are %#x", i, is, c->peer[i].marks);
			return true;
		}
		for (int m = 0; m < N_MARKS; m++)
			marked[m] += is >> m & 1;
	}
	for (int m = 0; m < N_MARKS; m++)
		if (marked[m] != c->n_marked[m]) {
			snprintf(why, n, "%u parts have mark %d, kept are %u", marked[m], m, c->n_marked[m]);
			return true;
		}
	for (uint32_t r = 0; r < c->spec->ranks; r++) {
		counted += c->rank[r].counted;
		voided += c->rank[r].voided;
	}
	if (c->phase == COORD_START || (counted == c->n_counted && voided == c->n_voided))
		return false;
	snprintf(why, n, "%llu counted, %llu void: kept are %llu, %llu", (unsigned long long)counted,
		 (unsigned long long)voided, (unsigned long long)c->n_counted, (unsigned long long)c->n_voided);
	return true;
}
