/* SPDX-License-Identifier: Apache-2.0 */
/* Creates, restores and frees the coordinator of a job that daemon/edge hosts, and runs its tick, which bounds how
 * long the start may take. Marks the job degraded while an engine does not come up. Pure; loop thread. */
#include "control/coord_impl.h"

#include "coll/board.h"
#include "engine/control_page.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- time ---- */

/* What the first part that has no parameters waits for, as reported. */
static void describe_waits(const struct coord *c, char *text, size_t n)
{
	uint32_t i = 0;
	while (i + 1 < c->n_peers && (c->peer[i].marks & 1u << MARK_STARTED))
		i++;
	const char *waits = c->peer[i].known ? c->peer[i].last.start_waits : "";
	if (*waits && c->n_peers > 1)
		snprintf(text, n, "part %u waits for %s", i, waits);
	else if (*waits)
		snprintf(text, n, "it waits for %s", waits);
	else
		snprintf(text, n, "no rank gave the initial parameters");
}

static void describe_start(const struct coord *c, char *text, size_t n, struct now now)
{
	uint32_t there = 0, first = c->spec->ranks;
	for (uint32_t r = c->spec->ranks; r-- > 0;) {
		there += c->rank[r].attached;
		if (!c->rank[r].attached)
			first = r;
	}
	if (first < c->spec->ranks)
		snprintf(text, n, "%u of %u ranks attached, rank %u did not", there, c->spec->ranks, first);
	else if (!coord_describe_comm(c, text, n, now))
		describe_waits(c, text, n);
}

/* A job must not stay for ever if some of its ranks never attach, or if it gets no parameters. While no rank is
 * attached, coord_watch_abandoned() watches it instead. */
static void watch_start(struct coord *c, bool alone, struct now now)
{
	char text[256], what[200];
	if (!c->phase_since_ns || alone || c->queued || c->held || *c->hindrance)
		c->phase_since_ns = now.mono_ns;
	int64_t ns = now.mono_ns - c->phase_since_ns;
	if (ns < c->spec->stall_warn_ns && ns < c->spec->stall_abort_ns)
		return;
	describe_start(c, what, sizeof(what), now);
	if (ns >= c->spec->stall_abort_ns) {
		snprintf(text, sizeof(text), "did not start within %g s: %s", (double)c->spec->stall_abort_ns / 1e9,
			 what);
		coord_end(c, ST_STALLED, text, now);
		return;
	}
	snprintf(text, sizeof(text), "has not started: %s", what);
	if (c->state == JOB_STARTING)
		coord_set_state(c, c->state, text, now);
}

void coord_tick(struct coord *c, struct now now)
{
	char why[160];
	coord_comm_tick(c, now);
	if (c->superseded) {
		coord_slots_give(c, now);
		return;
	}
	assert(!coord_counts_wrong(c, why, sizeof(why)));
	(void)why;
	coord_find_waiting(c);
	bool alone = coord_watch_abandoned(c, now);
	if (c->phase == COORD_COLLECT && !alone)
		coord_watch_late(c, now);
	if (c->phase == COORD_START)
		watch_start(c, alone, now);
	const bool gives_up = coord_slots_watch(c, now);
	if (c->phase == COORD_GO)
		coord_watch_attempt(c, gives_up, now);
	coord_watch_phase(c, now);
	coord_repeat(c, now);
}

static void tell_hindrance(struct coord *c, const char *why, bool by_node)
{
	const bool was_by_node = c->hindered_by_node;
	c->hindered_by_node = *why && by_node;
	if (*why)
		coord_event(c, true, by_node ? "NodeAwaited" : "EngineFailing", -1, why);
	else if (was_by_node)
		coord_event(c, false, "NodeHeard", -1, "all nodes of its parts can be heard again");
	else
		coord_event(c, false, "EngineBack", -1, "the engine is up again");
}

void coord_hinder(struct coord *c, const char *why, bool by_node, struct now now)
{
	if (c->phase >= COORD_ENDING || !strcmp(c->hindrance, why))
		return;
	snprintf(c->hindrance, sizeof(c->hindrance), "%s", why);
	tell_hindrance(c, why, by_node);
	c->late_from_ns = now.mono_ns;
	if (c->phase == COORD_START)
		coord_set_state(c, c->state, why, now);
	else
		coord_set_running(c, now);
	coord_broadcast(c, now);
}

/* ---- life ---- */

/* Each rank is in exactly one part. */
static void take_parts(struct coord *c, const struct part_ranks *part)
{
	uint32_t at = 0;
	COORD_EACH_RANK(c, r)
	c->part_of[r] = PART_NO_RANK;
	COORD_EACH_PART(c, i)
	{
		uint32_t n = part ? part[i].n : c->spec->ranks;
		assert(at + n <= c->spec->ranks);
		c->peer[i].ranks = (struct part_ranks){ n, &c->part_ranks[at] };
		for (uint32_t k = 0; k < n; k++) {
			uint32_t r = part && part[i].rank ? part[i].rank[k] : k;
			assert(r < c->spec->ranks && c->part_of[r] == PART_NO_RANK);
			c->part_of[r] = i;
			c->part_ranks[at++] = r;
		}
	}
	assert(at == c->spec->ranks);
}

enum status coord_new(struct coord **out, uint64_t job_id, const struct job_spec *spec, uint64_t term, uint32_t n_parts,
		      const struct part_ranks *part, const struct coord_ports *ports)
{
	assert(n_parts && (part || n_parts == 1));
	struct coord *c = calloc(1, sizeof(*c));
	if (!c)
		return ST_NO_MEMORY;
	c->job_id = job_id;
	c->epoch = 1;
	c->term = term;
	c->spec = spec;
	c->ports = *ports;
	c->n_peers = n_parts;
	c->visited = &c->n_visited;
	c->n_words = (uint32_t)control_words(spec->ranks, spec->max_micro_size);
	c->state = JOB_PENDING;
	c->values = values_of(spec);
	c->carry = carry_first(spec);
	c->peer = calloc(n_parts, sizeof(*c->peer));
	c->part_ranks = calloc(spec->ranks, sizeof(*c->part_ranks));
	c->part_of = calloc(spec->ranks, sizeof(*c->part_of));
	c->rank = calloc(spec->ranks, sizeof(*c->rank));
	c->times = calloc(spec->ranks, sizeof(*c->times));
	c->early = calloc(spec->ranks, sizeof(*c->early));
	c->late = calloc(spec->ranks, sizeof(*c->late));
	c->counted = calloc(c->n_words, sizeof(*c->counted));
	if (!c->peer || !c->part_ranks || !c->part_of || !c->rank || !c->times || !c->early || !c->late ||
	    !c->counted) {
		coord_free(c);
		return ST_NO_MEMORY;
	}
	take_parts(c, part);
	for (uint32_t r = 0; r < spec->ranks; r++)
		c->rank[r].rank = r;
	*out = c;
	return ST_OK;
}

const struct part_ranks *coord_part_ranks(const struct coord *c, uint32_t part)
{
	assert(part < c->n_peers);
	return &c->peer[part].ranks;
}

uint64_t coord_part_comm(const struct coord *c, uint32_t part)
{
	assert(part < c->n_peers);
	return c->peer[part].last.comm;
}

uint64_t coord_part_unreachable(const struct coord *c, uint32_t part)
{
	assert(part < c->n_peers);
	return c->peer[part].unreachable;
}

void coord_free(struct coord *c)
{
	if (!c)
		return;
	board_free(c->comm.board);
	free(c->peer);
	free(c->rank);
	free(c->early);
	free(c->part_ranks);
	free(c->part_of);
	free(c->times);
	free(c->late);
	free(c->counted);
	updates_fini(&c->updates);
	free(c);
}

void coord_restore(struct coord *c, const struct commit *last)
{
	c->commit = *last;
	c->have_commit = true;
	c->epoch = last->epoch > c->epoch ? last->epoch : c->epoch;
	c->window = last->window;
	c->applied_step = last->applied_step;
	c->carry = last->next;
	c->values = updates_take(&c->updates, c->values, last->window);
	c->phase = COORD_COMMIT; /* a node may not have applied it: send it until all have */
	c->state = c->held ? JOB_PAUSED : JOB_RUNNING;
}

void coord_start_at(struct coord *c, uint64_t window, uint64_t applied_step, const struct commit *last)
{
	c->window = window;
	c->applied_step = applied_step;
	c->values = updates_take(&c->updates, c->values, window);
	if (!last)
		return;
	c->commit = *last;
	c->have_commit = true;
	c->carry = last->next;
}

void coord_restore_hold(struct coord *c, const char *reason)
{
	c->held = true;
	snprintf(c->hold_reason, sizeof(c->hold_reason), "%s", reason);
	snprintf(c->reason, sizeof(c->reason), "%s", reason);
}

void coord_restore_since(struct coord *c, int64_t unix_ns)
{
	c->state_since_unix_ns = unix_ns;
}

enum status coord_restore_update(struct coord *c, const struct update *u)
{
	return updates_put(&c->updates, u);
}
