/* SPDX-License-Identifier: Apache-2.0 */
/* A run of the cluster: its parts and nodes are drawn, then event follows event until the job has ended everywhere. */
#include "cluster.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define CONTINUE_NS (6000 * MS) /* then stopped trainers go on */
#define STILL_NS (9000 * MS)	/* and the job commits a window, or ends, within this time */
#define TELL_NS (2000 * MS)	/* ... and all nodes have heard of the end */
#define LIMIT_NS (60000 * MS)

/* ---- events ---- */

struct event *sim_event(struct sim *s, int64_t delay, enum event_type type)
{
	struct item *i = (struct item *)sim_event_in(s->whole ? s->whole : s, delay, type, sizeof(*i));
	i->of = s;
	return &i->e;
}

struct item *cluster_item(struct cluster *c, int64_t delay, enum item_kind kind)
{
	struct item *i = (struct item *)sim_event_in(&c->whole, delay, EV_TICK, sizeof(*i));
	i->kind = kind;
	return i;
}

void cluster_say(const struct cluster *c, const char *fmt, ...)
{
	va_list ap;
	if (!c->whole.verbose)
		return;
	fprintf(stderr, "%9.3f ", (double)c->whole.now / 1e9);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
}

static void tick(struct cluster *c)
{
	struct sim *s = &c->whole;
	for (uint32_t p = 0; p < c->n_parts; p++) {
		if (s->now > CONTINUE_NS)
			trainer_continue_all(&c->part[p]);
		if (c->part[p].gaccd_up)
			job_tick(c->part[p].job, sim_now(s));
	}
	cluster_resume(c);
	cluster_give_params(c);
	for (uint32_t i = 0; i < CLUSTER_COORDS; i++)
		if (c->coord[i].c)
			coord_tick(c->coord[i].c, sim_now(s));
	cluster_item(c, 100 * MS, ITEM_TICK);
}

static void handle_part(struct cluster *c, struct item *i)
{
	switch (i->e.type) {
	case EV_ENGINE_COMMAND:
	case EV_ENGINE_ANSWER:
	case EV_ENGINE_UP:
	case EV_PASS:
	case EV_PASSED:
	case EV_BOX_BELL:
	case EV_BOX_RING:
		engine_event(i->of, &i->e);
		break;
	case EV_REQUEST:
		trainer_request(i->of, &i->e);
		break;
	case EV_CHUNK:
		stream_event(i->of, &i->e);
		break;
	case EV_START_PROC:
		if (!c->node[c->node_of[cluster_part(i->of)]].up) { /* there is no machine to start it on */
			sim_event(i->of, 50 * MS, EV_START_PROC)->proc = i->e.proc;
			break;
		}
		/* fallthrough */
	case EV_REPLY:
	case EV_PROC:
		trainer_event(i->of, &i->e);
		break;
	default:
		sim_fail(&c->whole, "an event of type %d", i->e.type);
	}
}

static void handle(struct cluster *c, struct item *i)
{
	switch (i->kind) {
	case ITEM_SIM:
		handle_part(c, i);
		break;
	case ITEM_CALL:
		cluster_on_call(c, i);
		break;
	case ITEM_REPORT:
		cluster_on_report(c, i);
		break;
	case ITEM_ORDER:
		cluster_on_order(c, i);
		break;
	case ITEM_BLOB:
		cluster_on_blob(c, i);
		break;
	case ITEM_BOARD:
		cluster_on_board(c, i);
		break;
	case ITEM_STORE:
		cluster_on_store(c, i);
		break;
	case ITEM_NODE_UP:
		cluster_node_up(c, i->node);
		break;
	case ITEM_GACCD_UP:
		cluster_start_gaccd(c, i->node);
		break;
	case ITEM_TICK:
		tick(c);
		break;
	case ITEM_FAULT:
		cluster_fault(c);
		break;
	case ITEM_AIMED:
		cluster_aimed(c, i->of);
		break;
	}
}

/* ---- a job and its nodes ---- */

/* Ranks are dealt in blocks, or one by one as some launchers do. */
static void deal_ranks(struct cluster *c, const uint32_t *size, uint32_t n)
{
	bool one_by_one = sim_chance(&c->whole, 500);
	uint32_t had[CLUSTER_MAX] = { 0 };
	for (uint32_t r = 0, p = 0; r < n; r++) {
		while (had[p] == size[p])
			p = (p + 1) % c->n_parts;
		c->rank_of[p][had[p]++] = r;
		p = one_by_one ? (p + 1) % c->n_parts : p;
	}
	for (uint32_t p = 0; p < c->n_parts; p++)
		c->ranks[p] = (struct part_ranks){ size[p], c->rank_of[p] };
}

static void make_part(struct cluster *c, uint32_t p)
{
	struct sim *s = &c->part[p], *w = &c->whole;
	s->whole = w;
	s->seed = w->seed;
	s->verbose = w->verbose;
	s->faults = true;
	s->deserted = w->deserted;
	s->extreme = w->extreme;
	s->restless = w->restless;
	s->lost_window = w->lost_window;
	s->level_window = w->level_window;
	s->puts = w->puts;
	s->drawn = w->drawn + (w->seed % 8 == 3 ? p : 0); /* in some runs machines do not draw alike */
	s->spec = w->spec;
	s->spec.ranks = c->ranks[p].n;
	s->part = (struct part_spec){ .number = p,
				      .n_parts = c->n_parts,
				      .world = w->spec.ranks,
				      .epoch = 1,
				      .spec = &s->spec,
				      .global = c->ranks[p].rank };
}

/* As many nodes as parts, or as it comes: several parts on one, none on another. */
static void place(struct cluster *c)
{
	struct sim *s = &c->whole;
	bool one_each = sim_chance(s, 600);
	uint32_t most = c->n_parts + 2 < CLUSTER_MAX ? c->n_parts + 2 : CLUSTER_MAX;
	c->n_nodes = one_each ? c->n_parts : 1 + (uint32_t)sim_random(s, most);
	for (uint32_t p = 0; p < c->n_parts; p++)
		c->node_of[p] = one_each ? p : (uint32_t)sim_random(s, c->n_nodes);
	for (uint32_t n = 0; n < c->n_nodes; n++)
		c->node[n].up = true;
	c->home = (uint32_t)sim_random(s, c->n_nodes);
}

static void draw_sharding(struct sim *s, uint32_t parts)
{
	uint32_t size = 1 + (uint32_t)sim_random(s, parts);
	while (parts % size)
		size--;
	s->spec.sharding = size == parts ? SHARDING_FULL : SHARDING_HYBRID;
	s->spec.shard_size = size == parts ? 0 : size;
}

static void set_up(struct cluster *c, uint32_t parts)
{
	struct sim *s = &c->whole;
	uint32_t size[CLUSTER_MAX], n = 0;
	c->n_parts = parts ? parts : 1 + (uint32_t)sim_random(s, CLUSTER_MAX);
	for (uint32_t p = 0; p < c->n_parts; p++)
		n += size[p] = 1 + (uint32_t)sim_random(s, SIM_MAX_RANKS);
	sim_setup(s, n);
	if (s->spec.steps)
		s->spec.steps += sim_random(s, 10);
	if (c->n_parts > 1 && s->spec.optim.type != OPTIM_CLIENT && sim_chance(s, 500))
		draw_sharding(s, c->n_parts);
	s->spec.parts = c->n_parts;
	s->puts = c->n_parts > 1 && sim_chance(s, 400);
	if (s->puts)
		s->spec.n_init = 0;
	s->drawn = 7;
	c->givers = 1 + (uint32_t)sim_random(s, (UINT64_C(1) << c->n_parts) - 1);
	c->slow_window = sim_chance(s, 100) ? sim_random(s, 6) : UINT64_MAX;
	deal_ranks(c, size, n);
	place(c);
	c->fault_every = (30 * MS) << sim_random(s, 5);
	for (uint32_t p = 0; p < c->n_parts; p++)
		make_part(c, p);
	if (control_state_init(&s->d, n, s->spec.max_micro_size))
		sim_fail(s, "no memory");
}

/* ---- a run ---- */

/* Time goes on for all parts; faults end for all of them at once. */
static void share(struct cluster *c)
{
	struct sim *s = &c->whole;
	for (uint32_t p = 0; p < c->n_parts; p++)
		s->faults &= c->part[p].faults;
	for (uint32_t p = 0; p < c->n_parts; p++) {
		c->part[p].now = s->now;
		c->part[p].faults = s->faults;
	}
}

static bool all_told(const struct cluster *c)
{
	for (uint32_t p = 0; p < c->n_parts; p++)
		if (!c->part[p].gaccd_up || !job_ended(c->part[p].job))
			return false;
	return true;
}

/* I9: nothing that is left when the faults have ended holds the job up for long. */
static void check_moves(struct cluster *c)
{
	struct sim *s = &c->whole;
	int64_t from = c->moved_at > CONTINUE_NS ? c->moved_at : CONTINUE_NS, still = s->now - from;
	if (s->faults || s->ended)
		return;
	/* steps that nobody is there to acknowledge hold a commit up for as long */
	int64_t bound = s->deserted ? s->spec.stall_abort_ns + STILL_NS : STILL_NS;
	if (!s->deserted)
		c->longest_still = still > c->longest_still ? still : c->longest_still;
	if (still > bound)
		sim_fail(s, "I9: the job has not moved for %.1f s: window %u is not committed", (double)still / 1e9,
			 s->n_windows);
}

/* False: the run is over. */
static bool goes_on(struct cluster *c)
{
	struct sim *s = &c->whole;
	if (s->failure[0])
		return false;
	if (!s->ended && s->now >= LIMIT_NS)
		sim_fail(s, "I9: the job has not ended after %.0f s", (double)s->now / 1e9);
	if (!s->ended)
		return true;
	/* a coordinator that has died since cannot tell anybody; the next one has no job to coordinate */
	if (all_told(c) || !c->ended_by || !cluster_find(c, c->ended_by))
		return false;
	if (s->now - c->ended_at > TELL_NS)
		sim_fail(s, "I9: a part has not heard of the job's end for %.1f s", (double)TELL_NS / 1e9);
	return true;
}

static void drop(struct item *i)
{
	free(i->counted);
	free(i->bytes);
	free(i);
}

static void tear_down(struct cluster *c)
{
	struct sim *s = &c->whole;
	for (uint32_t i = 0; i < CLUSTER_COORDS; i++)
		coord_free(c->coord[i].c);
	for (uint32_t p = 0; p < c->n_parts; p++) {
		job_free(c->part[p].job);
		if (c->part[p].engine_up)
			accum_fini(&c->part[p].accum);
		sim_boxes_free(&c->part[p]);
		if (c->part[p].durable)
			control_state_fini(&c->part[p].d);
	}
	control_state_fini(&s->d);
	while (s->n_events)
		drop((struct item *)s->heap[--s->n_events]);
	free(s->heap);
	s->heap = NULL;
}

bool cluster_run(struct cluster *c, uint64_t seed, uint32_t parts, char *why, size_t n_why)
{
	struct sim *s = &c->whole;
	bool verbose = s->verbose;
	memset(c, 0, sizeof(*c));
	s->verbose = verbose;
	s->seed = s->rng = seed;
	s->faults = true;
	set_up(c, parts);
	for (uint32_t n = 0; n < c->n_nodes; n++)
		cluster_start_gaccd(c, n);
	for (uint32_t p = 0; p < c->n_parts; p++)
		for (uint32_t r = 0; r < c->part[p].spec.ranks; r++)
			trainer_spawn(&c->part[p], r);
	cluster_item(c, 0, ITEM_TICK);
	cluster_item(c, 50 * MS, ITEM_FAULT);
	while (goes_on(c)) {
		struct item *i = (struct item *)sim_pop(s);
		s->now = i->e.at;
		s->n_handled++;
		share(c);
		handle(c, i);
		cluster_check(c, i->of);
		check_moves(c);
		drop(i);
	}
	if (s->failure[0] && s->verbose)
		cluster_dump(c);
	snprintf(why, n_why, "%s", s->failure);
	tear_down(c);
	return !why[0];
}
