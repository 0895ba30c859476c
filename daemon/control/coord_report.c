/* SPDX-License-Identifier: Apache-2.0 */
/* What a coordinator takes from a report of one part: progress of its ranks, its bitmap, whether it is degraded or
 * has failed. Pure, like the rest of the coordinator; loop thread. */
#include "control/coord_impl.h"

#include "engine/control_page.h"

#include <stdio.h>
#include <string.h>

/* ---- bitmap ---- */

static bool asks_for_bitmap(const struct coord *c, const struct peer *p, const struct report *r)
{
	bool asked = c->phase == COORD_CLOSE || c->phase == COORD_GO || (c->phase == COORD_COLLECT && c->armed);
	return asked && !p->has_bitmap && r->window == c->window && r->phase >= WINDOW_CLOSED && r->counted &&
	       r->n_words == control_words(p->ranks.n, c->spec->max_micro_size);
}

/* The parts' ranks are disjoint; audit() counts the bits of the result. Whether there was one to take. */
static bool take_bitmap(struct coord *c, struct peer *p, const struct report *r)
{
	if (!asks_for_bitmap(c, p, r))
		return false;
	part_place_bits(&p->ranks, c->spec->max_micro_size, r->counted, c->counted);
	p->has_bitmap = true;
	return true;
}

/* ---- degraded and failed parts ---- */

/* The job is degraded while any part is; the reason names the part where there are several. */
static void take_hindrance(struct coord *c, struct now now)
{
	char text[REPORT_TEXT + 32] = "";
	bool by_node = false;
	COORD_EACH_PART(c, i)
	{
		const struct peer *p = &c->peer[i];
		const char *why = *p->away ? p->away : *p->unlike ? p->unlike : p->known ? p->last.hindrance : "";
		if (*text)
			break;
		by_node = *p->away || *p->unlike;
		if (*why && c->n_peers > 1)
			snprintf(text, sizeof(text), "part %u: %s", i, why);
		else
			snprintf(text, sizeof(text), "%s", why);
	}
	coord_hinder(c, text, by_node, now);
}

void coord_part_away(struct coord *c, uint32_t part, const char *why, struct now now)
{
	struct peer *p = &c->peer[part];
	char text[sizeof(p->away)];
	snprintf(text, sizeof(text), "%s", why);
	if (!strcmp(p->away, text))
		return;
	memcpy(p->away, text, sizeof(text));
	take_hindrance(c, now);
}

void coord_part_unlike(struct coord *c, uint32_t part, const char *why, struct now now)
{
	struct peer *p = &c->peer[part];
	char text[sizeof(p->unlike)];
	snprintf(text, sizeof(text), "%s", why);
	if (!strcmp(p->unlike, text))
		return;
	memcpy(p->unlike, text, sizeof(text));
	take_hindrance(c, now);
}

void coord_part_anew(struct coord *c, uint32_t part)
{
	c->peer[part].last.incarnation = 0;
}

static void take_failure(struct coord *c, const struct report *r, struct now now)
{
	char text[REPORT_TEXT + 192], saved[160] = "";
	if (!r->failed.status)
		return;
	if (r->failed.status == ST_PARAMS_ALTERED && c->ports.saved) /* all that is left of the parameters */
		c->ports.saved(c->ports.ctx, saved, sizeof(saved));
	if (c->n_peers > 1)
		snprintf(text, sizeof(text), "part %u: %s%s", r->part, r->failed.text, saved);
	else
		snprintf(text, sizeof(text), "%s%s", r->failed.text, saved);
	coord_end(c, r->failed.status, text, now);
}

/* Also those of an attempt that another part's vote has ended before: which parts name each other shows where the
 * network is broken. */
static void take_suspects(const struct coord *c, struct peer *p, const struct report *r)
{
	if (r->window == c->window && r->vote_term == c->term && r->vote_status)
		p->unreachable = r->vote_suspects & ~(UINT64_C(1) << r->part);
}

/* ---- a report ---- */

/* Within a window and an attempt a node's state only moves forward; an overtaken report must not take it back. A part
 * of several that begins with another attempt is not prepared any more. */
static bool is_older(const struct report *a, const struct report *b)
{
	if (a->number && b->number)
		return a->number < b->number;
	if (a->window != b->window)
		return a->window < b->window;
	if (a->vote_term != b->vote_term)
		return a->vote_term < b->vote_term;
	if (a->vote_attempt != b->vote_attempt)
		return a->vote_attempt < b->vote_attempt;
	if (a->phase != b->phase)
		return a->phase < b->phase;
	if (a->start != b->start)
		return a->start < b->start;
	return b->complete && !a->complete;
}

/* False: the report belongs to another job, part or coordinator, or a newer one has overtaken it. */
static bool concerns_us(struct coord *c, const struct report *r)
{
	if (c->superseded || r->part >= c->n_peers || r->job_id != c->job_id || r->epoch > c->epoch)
		return false;
	if (r->term > c->term) { /* another coordinator has taken over: the store would refuse us, too */
		c->superseded = true;
		return false;
	}
	if (r->epoch < c->epoch) { /* the node must learn the epoch before its reports count */
		coord_send_order(c, r->part);
		return false;
	}
	const struct peer *p = &c->peer[r->part];
	return !p->known || r->incarnation > p->last.incarnation ||
	       (r->incarnation == p->last.incarnation && !is_older(r, &p->last));
}

void coord_on_report(struct coord *c, const struct report *r, struct now now)
{
	if (!concerns_us(c, r))
		return;
	struct peer *p = &c->peer[r->part];
	bool restarted = p->known && r->incarnation > p->last.incarnation;
	bool got_on = r->connected > p->last.connected || r->pieces > p->last.pieces;
	bool hindrance_changed = strcmp(r->hindrance, p->last.hindrance) != 0;
	p->last = *r;
	p->last.rank = NULL;
	p->last.counted = NULL;
	p->known = true;
	coord_take_ranks(c, r, now.mono_ns);
	if (hindrance_changed)
		take_hindrance(c, now);
	if (c->phase == COORD_START && c->state == JOB_PENDING && !c->queued && r->start >= START_ALLOCATED)
		coord_set_state(c, JOB_STARTING, c->reason, now);
	take_bitmap(c, p, r);
	if (got_on) {
		c->progress_ns = now.mono_ns;
		c->slots.hindered_ns = 0;
	}
	coord_mark(c, p);
	take_suspects(c, p, r);
	coord_comm_report(c, p, now);
	take_failure(c, r, now);
	coord_step(c, now);
	if (take_bitmap(c, p, r)) { /* its window has been opened by this very report */
		coord_mark(c, p);
		coord_step(c, now);
	}
	if (restarted)
		coord_send_order(c, r->part);
}
