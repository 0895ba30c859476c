/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of parts.h, for tests and benchmarks: their reports are made from what the newest order wants; single
 * threaded. */
#include "support/parts.h"

#include "engine/control_page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TICK_NS (INT64_C(100) * 1000000)

struct parts {
	struct job_spec spec;
	struct coord *coord;
	struct now now;
	uint32_t n, per_part;
	struct part_ranks *ranks;
	uint32_t *list; /* [ranks] */
	struct report *report;
	struct rank_progress *progress; /* [ranks] */
	uint64_t *full;			/* bits of a part that has given all */
	struct order order;		/* the newest, of any part: all get the same */
	bool persist;
	uint64_t n_reports, n_orders;
};

static void need(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "parts: %s\n", what);
	abort();
}

/* ---- ports ---- */

static void on_order(void *ctx, uint32_t part, const struct order *o)
{
	struct parts *p = ctx;
	p->order = *o;
	p->n_orders++;
}

static void on_persist(void *ctx, const struct commit *k, const uint64_t *counted, uint32_t n_words)
{
	((struct parts *)ctx)->persist = true;
}

static void on_persist_end(void *ctx, uint64_t job, enum status st, const char *reason)
{
	need(false, reason);
}

static void on_event(void *ctx, uint64_t job, bool warning, const char *reason, int64_t rank, const char *text)
{
}

static void on_norms(void *ctx, const struct commit *k)
{
}

static void on_changed(void *ctx, uint64_t job)
{
}

/* ---- reports ---- */

static void tell(struct parts *p, uint32_t i)
{
	struct report *r = &p->report[i];
	r->number++;
	r->term = p->order.term;
	r->order = p->order.number;
	r->rank = &p->progress[i * p->per_part];
	r->n_ranks = p->per_part;
	r->counted = r->phase >= WINDOW_CLOSED ? p->full : NULL;
	r->n_words = (uint32_t)control_words(p->per_part, PARTS_MICRO_SIZE);
	p->n_reports++;
	coord_on_report(p->coord, r, p->now);
}

static void give(struct parts *p, uint32_t i, uint32_t counted)
{
	bool all = counted == PARTS_MICRO_SIZE;
	for (uint32_t k = 0; k < p->per_part; k++) {
		struct rank_progress *r = &p->progress[i * p->per_part + k];
		r->counted = counted;
		r->ready_ns = r->waiting_ns = all;
	}
	p->report[i].complete = all;
	tell(p, i);
}

/* What the order in force wants of this part. */
static void obey(struct parts *p, uint32_t i)
{
	struct report *r = &p->report[i];
	uint64_t pushes = (uint64_t)p->per_part * PARTS_MICRO_SIZE;
	if (p->order.want == WANT_COMMIT) {
		uint64_t number = r->number;
		*r = (struct report){ .job_id = 1, .epoch = 1, .incarnation = 1, .part = i, .start = START_PARAMS };
		r->number = number;
		r->window = p->order.window + 1;
		give(p, i, 0);
		return;
	}
	r->phase = p->order.want == WANT_CLOSE ? WINDOW_CLOSED : WINDOW_PREPARED;
	r->count = pushes;
	r->sum_weight = (double)pushes;
	r->sumsq = 1;
	if (p->order.want == WANT_GO) {
		r->vote_term = p->order.term;
		r->vote_attempt = p->order.attempt;
	}
	tell(p, i);
}

void parts_window(struct parts *p)
{
	uint64_t window = coord_window(p->coord);
	p->n_reports = p->n_orders = 0;
	for (uint32_t i = 0; i < p->n; i++)
		give(p, i, PARTS_MICRO_SIZE / 2);
	for (uint32_t i = 0; i < p->n; i++)
		give(p, i, PARTS_MICRO_SIZE);
	while (coord_window(p->coord) == window) {
		need(p->order.want != WANT_NOTHING, "the window does not close");
		for (uint32_t i = 0; i < p->n; i++)
			obey(p, i);
		if (p->persist) {
			p->persist = false;
			coord_on_persisted(p->coord, window, ST_OK, p->now);
		}
		p->now.mono_ns += 1000;
	}
}

void parts_await_last(struct parts *p, uint32_t ticks)
{
	p->n_reports = p->n_orders = 0;
	for (uint32_t i = 0; i + 1 < p->n; i++)
		give(p, i, PARTS_MICRO_SIZE);
	for (uint32_t i = 0; i < ticks; i++) {
		p->now.mono_ns += TICK_NS;
		coord_tick(p->coord, p->now);
	}
}

uint64_t parts_reports(const struct parts *p)
{
	return p->n_reports;
}

uint64_t parts_orders(const struct parts *p)
{
	return p->n_orders;
}

struct coord *parts_coord(struct parts *p)
{
	return p->coord;
}

/* ---- life ---- */

static void *room(size_t n, size_t size)
{
	void *p = calloc(n, size);
	need(p, "no memory");
	return p;
}

struct parts *parts_new(uint32_t ranks, uint32_t n_parts)
{
	struct parts *p = room(1, sizeof(*p));
	const char *field;
	char why[200];
	need(n_parts && ranks % n_parts == 0, "parts are of equal size");
	p->spec = (struct job_spec){ .name = "parts", .ranks = ranks, .micro_size = PARTS_MICRO_SIZE };
	p->spec.max_micro_size = PARTS_MICRO_SIZE;
	p->spec.master_f32 = true;
	p->spec.optim = (struct optim_config){ .type = OPTIM_SGD, .lr = 0.1 };
	need(!job_spec_check(&p->spec, &field, why, sizeof(why)), why);
	p->now = (struct now){ INT64_C(1000000000000), 1000 };
	p->n = n_parts;
	p->per_part = ranks / n_parts;
	p->ranks = room(n_parts, sizeof(*p->ranks));
	p->list = room(ranks, sizeof(*p->list));
	p->report = room(n_parts, sizeof(*p->report));
	p->progress = room(ranks, sizeof(*p->progress));
	p->full = room(control_words(p->per_part, PARTS_MICRO_SIZE), sizeof(*p->full));
	for (uint32_t r = 0; r < ranks; r++) {
		p->list[r] = r;
		p->progress[r] = (struct rank_progress){ .rank = r, .attached = 1, .known = 1, .pid = 1 + r };
	}
	for (uint32_t r = 0; r < p->per_part; r++)
		for (uint32_t m = 0; m < PARTS_MICRO_SIZE; m++)
			control_set_bit(p->full, PARTS_MICRO_SIZE, r, m);
	for (uint32_t i = 0; i < n_parts; i++) {
		p->ranks[i] = (struct part_ranks){ p->per_part, &p->list[i * p->per_part] };
		p->report[i] =
			(struct report){ .job_id = 1, .epoch = 1, .incarnation = 1, .part = i, .start = START_PARAMS };
	}
	const struct coord_ports ports = { .ctx = p,
					   .order = on_order,
					   .persist_commit = on_persist,
					   .persist_end = on_persist_end,
					   .event = on_event,
					   .norms = on_norms,
					   .changed = on_changed };
	need(!coord_new(&p->coord, 1, &p->spec, 1, n_parts, p->ranks, &ports), "no memory");
	for (uint32_t i = 0; i < n_parts; i++)
		tell(p, i);
	need(coord_phase(p->coord) == COORD_COLLECT, "the job does not run");
	return p;
}

void parts_free(struct parts *p)
{
	coord_free(p->coord);
	free(p->ranks);
	free(p->list);
	free(p->report);
	free(p->progress);
	free(p->full);
	free(p);
}
