/* SPDX-License-Identifier: Apache-2.0 */
/* One simulated node: the messages between its job and its coordinators, what is in the store, what dies and lives
 * again; and one run from its seed to its end. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

#define FAULTY_NS (3000 * MS)	 /* then the faults stop, and the job must end */
#define CONTINUE_NS (10000 * MS) /* then stopped trainers go on */
#define LIMIT_NS (60000 * MS)

/* ---- ports ---- */

static void port_event(void *ctx, uint64_t job, bool warning, const char *reason, int64_t rank, const char *text)
{
	struct sim *s = ctx;
	if (s->verbose)
		fprintf(stderr, "%9.3f %s rank %lld: %s\n", (double)s->now / 1e9, reason, (long long)rank, text);
}

/* Copies of a message between job and coordinator: none, one or two, and to every coordinator that still runs. */
static int copies(struct sim *s)
{
	return !s->faults ? 1 : sim_chance(s, 100) ? 0 : sim_chance(s, 100) ? 2 : 1;
}

static void port_report(void *ctx, const struct report *r)
{
	struct sim *s = ctx;
	sim_note_report(s, r);
	for (uint32_t c = 0; c < s->n_coords; c++)
		for (int i = copies(s); i > 0; i--) {
			struct event *e = sim_event(s, sim_net_delay(s), EV_REPORT);
			e->coord = c;
			e->report = *r;
			memcpy(e->progress, r->rank, r->n_ranks * sizeof(*r->rank));
			if (r->counted)
				memcpy(e->counted, r->counted, r->n_words * 8);
		}
}

/* A coordinator's ports know which coordinator they serve. */
struct coord_ctx {
	struct sim *s;
	uint32_t index;
	uint64_t term;
};
static struct coord_ctx coord_ctx[SIM_MAX_COORDS];

static void port_order(void *ctx, uint32_t node, const struct order *o)
{
	struct coord_ctx *c = ctx;
	for (int i = copies(c->s); i > 0; i--) {
		struct event *e = sim_event(c->s, sim_net_delay(c->s), EV_ORDER);
		e->order = *o;
		e->order.late = NULL;
		e->order.n_late = 0;
	}
}

/* The store: a write takes time; it counts at one instant, if the term is still the writer's. */
static struct event *store_event(const struct coord_ctx *c, enum event_type type)
{
	struct sim *s = c->s;
	int64_t at = s->now + (int64_t)sim_random(s, 8 * MS) + 1;
	s->store_at = at > s->store_at ? at : s->store_at + 1;
	struct event *e = sim_event(s, s->store_at - s->now, type);
	e->coord = c->index;
	e->life = c->term;
	return e;
}

static void port_persist(void *ctx, const struct commit *k, const uint64_t *counted, uint32_t n_words)
{
	struct coord_ctx *c = ctx;
	struct event *e = store_event(c, EV_PERSISTED);
	e->commit = *k;
	e->status = ST_UNAVAILABLE; /* not on the disk yet */
	memcpy(e->counted, counted, n_words * 8);
}

static void port_persist_end(void *ctx, uint64_t job, enum status st, const char *reason)
{
	struct coord_ctx *c = ctx;
	struct event *e = store_event(c, EV_ENDED);
	e->status = st;
	snprintf(e->reply.text, sizeof(e->reply.text), "%s", reason);
}

/* Nothing here stays broken: a job is held only if its coordinator is wrong. */
static void port_hold(void *ctx, uint64_t job, const char *reason)
{
	sim_fail(((struct coord_ctx *)ctx)->s, "I34: the job is %s", reason);
}

static void port_coord_event(void *ctx, uint64_t job, bool warning, const char *reason, int64_t rank, const char *text)
{
	port_event(((struct coord_ctx *)ctx)->s, job, warning, reason, rank, text);
}

/* ---- lives ---- */

/* A new coordinator: takes a term first, then reads the log. The earlier ones go on as zombies. False: no memory. */
static bool start_coordinator(struct sim *s)
{
	if (s->n_coords == SIM_MAX_COORDS || s->ended)
		return true;
	uint32_t i = s->n_coords;
	coord_ctx[i] = (struct coord_ctx){ s, i, ++s->term };
	struct coord_ports ports = { .ctx = &coord_ctx[i],
				     .order = port_order,
				     .persist_commit = port_persist,
				     .persist_end = port_persist_end,
				     .hold = port_hold,
				     .event = port_coord_event,
				     .changed = sim_port_changed,
				     .norms = sim_port_norms };
	if (coord_new(&s->coord[i], 1, &s->spec, s->term, 1, NULL, &ports))
		return false;
	s->n_coords++;
	if (s->held)
		coord_restore_hold(s->coord[i], "held");
	for (uint32_t k = 0; k < s->n_updates; k++)
		if (coord_restore_update(s->coord[i], &s->update[k])) {
			coord_free(s->coord[--s->n_coords]);
			return false;
		}
	if (s->n_windows)
		coord_restore(s->coord[i], &s->window[s->n_windows - 1].commit);
	return true;
}

static void forget_gaccd(struct sim *s)
{
	s->gaccd_up = false;
	sim_boxes_gone(s);
	job_free(s->job);
	s->job = NULL;
	for (uint32_t i = 0; i < s->n_coords; i++)
		coord_free(s->coord[i]);
	s->n_coords = 0;
	sim_event(s, (int64_t)sim_random(s, 300 * MS) + 1, EV_GACCD_UP);
}

static void start_gaccd(struct sim *s)
{
	s->gaccd_up = true;
	s->gaccd_life++;
	enum status st = sim_job_new(s, port_report, port_event);
	if (st) {
		if (st != ST_NO_MEMORY)
			sim_fail(s, "cannot make the job");
		forget_gaccd(s); /* it exits and is started again */
		return;
	}
	for (uint32_t i = 0; i < s->n_windows; i++)
		job_restore_window(s->job, &s->window[i].commit, s->window[i].counted, (uint32_t)s->d.n_words);
	if (!start_coordinator(s)) {
		forget_gaccd(s);
		return;
	}
	if (s->gaccd_life == 1)
		job_allocate(s->job);
	else
		job_take_over(s->job);
}

static void kill_gaccd(struct sim *s)
{
	engine_kill(s); /* its socket ends with gaccd */
	s->engine_starting = false;
	forget_gaccd(s);
}

/* ---- operators: they speak with the coordinator in force ---- */

static void operator_holds(struct sim *s, bool hold)
{
	store_event(&coord_ctx[s->n_coords - 1], EV_HELD)->hold = hold;
}

static void operator_updates(struct sim *s)
{
	uint32_t i = s->n_coords - 1;
	const char *field;
	char why[256];
	struct update u;
	sim_draw_update(s, coord_window(s->coord[i]), &u);
	enum status st = coord_prepare_update(s->coord[i], &u, &field, why, sizeof(why));
	if (st == ST_WINDOW_BEGUN || st == ST_JOB_ENDED || st == ST_NO_MEMORY)
		return;
	if (st) {
		sim_fail(s, "an update is refused: %s", why);
		return;
	}
	store_event(&coord_ctx[i], EV_UPDATED)->update = u;
	coord_take_update(s->coord[i], &u);
}

static void operator_acts(struct sim *s)
{
	if (!s->gaccd_up || !s->n_coords)
		return;
	if (sim_chance(s, 600)) {
		operator_updates(s);
	} else {
		s->hold_until = s->now + (int64_t)sim_random(s, 400 * MS);
		operator_holds(s, true);
	}
}

static void fault(struct sim *s)
{
	if (!s->faults)
		return;
	if (s->now > FAULTY_NS) {
		s->faults = false;
		if (s->deserted)
			trainers_desert(s);
		return;
	}
	if (s->operators && sim_chance(s, 300))
		operator_acts(s);
	uint64_t what = sim_random(s, 100);
	s->n_kills++;
	if (what < 45) {
		trainer_fault(s);
	} else if (what < 70) {
		engine_dies(s);
	} else if (what < 85) {
		if (s->gaccd_up)
			kill_gaccd(s);
	} else if (what < 93) {
		if (s->gaccd_up && !start_coordinator(s))
			kill_gaccd(s);
	} else if (s->gaccd_up && s->n_coords) {
		uint64_t window;
		coord_flush(s->coord[s->n_coords - 1], &window, sim_now(s));
	}
	sim_event(s, (int64_t)sim_random(s, 150 * MS) + 1, EV_FAULT);
}

/* ---- events of store and coordinators ---- */

static void on_persisted(struct sim *s, const struct event *e)
{
	enum status st = ST_OK;
	if (e->life != s->term || s->ended)
		st = ST_STALE_TERM;
	else if (s->n_windows && s->window[s->n_windows - 1].commit.window + 1 != e->commit.window)
		sim_fail(s, "I2: the log has window %llu, then %llu",
			 (unsigned long long)s->window[s->n_windows - 1].commit.window,
			 (unsigned long long)e->commit.window);
	else if (s->n_windows < SIM_MAX_WINDOWS) {
		sim_check_commit(s, &e->commit);
		struct store_window *w = &s->window[s->n_windows++];
		w->commit = e->commit;
		memcpy(w->counted, e->counted, sizeof(w->counted));
	}
	if (s->gaccd_up && e->coord < s->n_coords && coord_ctx[e->coord].term == e->life)
		coord_on_persisted(s->coord[e->coord], e->commit.window, st, sim_now(s));
}

static void on_updated(struct sim *s, const struct event *e)
{
	if (e->life != s->term || s->ended || s->n_updates == SIM_MAX_UPDATES)
		return;
	sim_check_update(s, &e->update);
	s->update[s->n_updates++] = e->update;
}

static void on_held(struct sim *s, const struct event *e)
{
	if (e->life != s->term || s->ended)
		return;
	bool there = s->gaccd_up && e->coord < s->n_coords && coord_ctx[e->coord].term == e->life;
	struct coord *c = there ? s->coord[e->coord] : NULL;
	/* the open window may be closing; orders of an earlier coordinator may close it later, too */
	if (e->hold && !s->held)
		s->held_bound = s->n_windows - (c && s->term == 1 && coord_phase(c) == COORD_COLLECT);
	s->held = e->hold;
	if (c && e->hold)
		coord_pause(c, "held", sim_now(s));
	else if (c)
		coord_resume(c, "goes on", sim_now(s));
}

static void on_ended(struct sim *s, const struct event *e)
{
	bool mine = e->life == s->term && !s->ended;
	if (mine) {
		s->ended = true;
		s->end_status = e->status;
		sim_check_end(s, e->status, e->reply.text);
	}
	if (s->gaccd_up && e->coord < s->n_coords && coord_ctx[e->coord].term == e->life)
		coord_on_ended(s->coord[e->coord], mine ? ST_OK : ST_STALE_TERM, sim_now(s));
}

static void on_report(struct sim *s, struct event *e)
{
	if (!s->gaccd_up || e->coord >= s->n_coords)
		return;
	e->report.rank = e->progress;
	if (e->report.counted)
		e->report.counted = e->counted;
	coord_on_report(s->coord[e->coord], &e->report, sim_now(s));
}

static void on_tick(struct sim *s)
{
	if (s->now > CONTINUE_NS)
		trainer_continue_all(s);
	if (s->gaccd_up) {
		job_tick(s->job, sim_now(s));
		if (s->n_coords && s->now >= s->hold_until && s->now >= s->store_at &&
		    coord_held(s->coord[s->n_coords - 1]))
			operator_holds(s, false);
		for (uint32_t i = 0; i < s->n_coords; i++)
			coord_tick(s->coord[i], sim_now(s));
	}
	sim_event(s, TICK_NS, EV_TICK);
}

static void handle(struct sim *s, struct event *e)
{
	switch (e->type) {
	case EV_ENGINE_COMMAND:
	case EV_ENGINE_ANSWER:
	case EV_ENGINE_UP:
	case EV_PASS:
	case EV_PASSED:
	case EV_BOX_BELL:
	case EV_BOX_RING:
		engine_event(s, e);
		break;
	case EV_REPORT:
		on_report(s, e);
		break;
	case EV_ORDER:
		if (s->gaccd_up)
			sim_on_order(s, &e->order);
		break;
	case EV_PERSISTED:
		on_persisted(s, e);
		break;
	case EV_ENDED:
		on_ended(s, e);
		break;
	case EV_UPDATED:
		on_updated(s, e);
		break;
	case EV_HELD:
		on_held(s, e);
		break;
	case EV_REQUEST:
		trainer_request(s, e);
		break;
	case EV_CHUNK:
		stream_event(s, e);
		break;
	case EV_REPLY:
	case EV_PROC:
	case EV_START_PROC:
		trainer_event(s, e);
		break;
	case EV_TICK:
		on_tick(s);
		break;
	case EV_FAULT:
		fault(s);
		break;
	case EV_GACCD_UP:
		start_gaccd(s);
		break;
	}
}

/* ---- a run ---- */

/* What a stuck run looks like. */
static void dump(const struct sim *s)
{
	fprintf(stderr, "window %llu phase %u, term %llu, %u commits, engine %d, gaccd %d, coordinators %u",
		(unsigned long long)s->d.r.window, s->d.r.phase, (unsigned long long)s->term, s->n_windows,
		s->engine_up, s->gaccd_up, s->n_coords);
	if (s->n_coords)
		fprintf(stderr, ", phase %d", coord_phase(s->coord[s->n_coords - 1]));
	fprintf(stderr, "\n");
	for (uint32_t r = 0; r < s->spec.ranks; r++)
		fprintf(stderr, "rank %u: sgen %llu flushed %u counted %u of %u\n", r,
			(unsigned long long)s->d.rank[r].sgen, s->d.rank[r].flushed, s->d.rank[r].counted,
			s->spec.micro_size);
	for (uint32_t i = 0; i < s->n_procs; i++)
		fprintf(stderr,
			"process %u: rank %u state %d stopped %d window %llu at %u of %u call %llu, session %llu\n", i,
			s->proc[i].rank, s->proc[i].state, s->proc[i].stopped, (unsigned long long)s->proc[i].window,
			s->proc[i].at, s->proc[i].n_todo, (unsigned long long)s->proc[i].call,
			(unsigned long long)s->proc[i].generation);
}

static void teardown(struct sim *s)
{
	for (uint32_t i = 0; i < s->n_coords; i++)
		coord_free(s->coord[i]);
	job_free(s->job);
	if (s->engine_up)
		accum_fini(&s->accum);
	sim_boxes_free(s);
	if (s->durable)
		control_state_fini(&s->d);
	while (s->n_events)
		free(s->heap[--s->n_events]);
	free(s->heap);
	s->heap = NULL;
}

bool sim_run(uint64_t seed, struct sim *s, char *why, size_t n_why)
{
	bool verbose = s->verbose;
	memset(s, 0, sizeof(*s));
	s->verbose = verbose;
	s->seed = s->rng = seed;
	s->faults = true;
	sim_setup(s, 1 + (uint32_t)sim_random(s, SIM_MAX_RANKS));
	s->part = part_whole(&s->spec);
	start_gaccd(s);
	for (uint32_t r = 0; r < s->spec.ranks; r++)
		trainer_spawn(s, r);
	sim_event(s, 0, EV_TICK);
	sim_event(s, 50 * MS, EV_FAULT);
	while (!s->failure[0] && !s->ended && s->now < LIMIT_NS) {
		struct event *e = sim_pop(s);
		s->now = e->at;
		s->n_handled++;
		handle(s, e);
		sim_check(s);
		free(e);
	}
	if (!s->failure[0] && !s->ended)
		sim_fail(s, "I9: the job has not ended %.0f s after the last fault (window %llu, phase %u)",
			 (double)(s->now - FAULTY_NS) / 1e9, (unsigned long long)s->d.r.window, s->d.r.phase);
	if (s->failure[0] && s->verbose)
		dump(s);
	snprintf(why, n_why, "%s", s->failure);
	teardown(s);
	return !why[0];
}
