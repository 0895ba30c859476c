/* SPDX-License-Identifier: Apache-2.0 */
/* Decides when each rank's process is started, restarted, asked to end and killed, and which failure was the cause.
 * For launch/launcher.c: runs in the process `gaccd --launcher`, on its one thread. Pure. */
#include "control/launch.h"

#include <signal.h>
#include <stdlib.h>

#define RESTART_NS (INT64_C(100) * 1000000) /* before the first restart of a rank; doubles */
#define RESTART_MAX_SHIFT 6
#define CANNOT_START 126 /* as a shell says it */

struct launch {
	struct launch_summary sum;
	struct launch_ports ports;
	uint32_t n_ranks;
	bool final;				    /* no more restarts will be allowed */
	int64_t grace_ns, last_failure_ns, kill_ns; /* kill_ns 0: not stopping, or killed already */
	struct launch_rank *rank;
	uint32_t n_running, n_waiting;
};

enum status launch_new(struct launch **out, uint32_t n_ranks, uint32_t max_restarts, int64_t grace_ns,
		       const struct launch_ports *ports)
{
	struct launch *l = calloc(1, sizeof(*l));
	if (!l)
		return ST_NO_MEMORY;
	l->rank = calloc(n_ranks, sizeof(*l->rank));
	if (!l->rank) {
		free(l);
		return ST_NO_MEMORY;
	}
	l->ports = *ports;
	l->n_ranks = l->n_waiting = n_ranks;
	l->sum.allowed = max_restarts;
	l->final = true;
	l->grace_ns = grace_ns;
	for (uint32_t i = 0; i < n_ranks; i++)
		l->rank[i].exit_status = LAUNCH_NO_STATUS;
	*out = l;
	return ST_OK;
}

void launch_free(struct launch *l)
{
	if (!l)
		return;
	free(l->rank);
	free(l);
}

void launch_resume(struct launch *l, uint32_t rank, uint32_t restarts, uint32_t charged)
{
	l->rank[rank].restarts = restarts + 1;
	l->sum.charged = charged > l->sum.charged ? charged : l->sum.charged;
}

/* ---- the end ---- */

static void enter(struct launch *l, enum launch_phase phase)
{
	l->sum.phase = phase;
	l->sum.wanted = 0;
	for (uint32_t i = 0; i < l->n_ranks; i++)
		if (l->rank[i].state == LAUNCH_RANK_WAITING) {
			l->rank[i].state = LAUNCH_RANK_EXITED;
			l->n_waiting--;
			l->ports.changed(l->ports.ctx, i);
		}
}

static void end_if_over(struct launch *l)
{
	if (l->n_running || l->n_waiting)
		return;
	if (!l->sum.result)
		l->sum.result = l->sum.phase == LAUNCH_STOPPING ? LAUNCH_STOPPED : LAUNCH_SUCCEEDED;
	l->sum.phase = LAUNCH_OVER;
	l->kill_ns = 0;
	l->ports.changed(l->ports.ctx, 0);
}

static void signal_all(struct launch *l, int signal)
{
	for (uint32_t i = 0; i < l->n_ranks; i++)
		if (l->rank[i].state == LAUNCH_RANK_RUNNING)
			l->ports.signal(l->ports.ctx, i, l->rank[i].pid, signal);
}

void launch_stop(struct launch *l, int64_t grace_ns, struct now now)
{
	int64_t kill_ns = now.mono_ns + grace_ns;
	if (l->sum.phase == LAUNCH_STOPPING && kill_ns < l->kill_ns)
		l->kill_ns = kill_ns;
	if (l->sum.phase >= LAUNCH_STOPPING)
		return;
	enter(l, LAUNCH_STOPPING);
	l->kill_ns = kill_ns;
	signal_all(l, SIGTERM);
	end_if_over(l);
}

void launch_drain(struct launch *l, struct now now)
{
	if (l->sum.phase >= LAUNCH_DRAINING)
		return;
	enter(l, LAUNCH_DRAINING);
	end_if_over(l);
}

/* ---- failures ---- */

static void note_cause(struct launch *l, uint32_t rank, int32_t status, struct now now)
{
	struct launch_cause *c = &l->sum.cause;
	if (!c->known || now.mono_ns - l->last_failure_ns > LAUNCH_QUIET_NS)
		*c = (struct launch_cause){ true, rank, l->rank[rank].pid, status, now.unix_ns };
	l->last_failure_ns = now.mono_ns;
}

/* There is no restart for it, and it takes the others with it. */
static void give_up(struct launch *l, uint32_t rank, struct now now)
{
	l->rank[rank].state = LAUNCH_RANK_EXITED;
	l->sum.result = LAUNCH_FAILED;
	l->ports.changed(l->ports.ctx, rank);
	launch_stop(l, l->grace_ns, now);
}

/* A rank that is waiting. */
static void restart(struct launch *l, uint32_t rank, struct now now)
{
	struct launch_rank *r = &l->rank[rank];
	uint32_t shift = r->restarts < RESTART_MAX_SHIFT ? r->restarts : RESTART_MAX_SHIFT;
	l->sum.charged++;
	r->restarts++;
	r->due_ns = now.mono_ns + (RESTART_NS << shift);
	l->ports.changed(l->ports.ctx, rank);
}

/* The rank's process has failed, or could not be started. */
static void on_failure(struct launch *l, uint32_t rank, int32_t status, struct now now)
{
	struct launch_rank *r = &l->rank[rank];
	note_cause(l, rank, status, now);
	if (l->sum.charged >= l->sum.allowed && l->final) {
		give_up(l, rank, now);
		return;
	}
	r->state = LAUNCH_RANK_WAITING;
	l->n_waiting++;
	if (l->sum.charged < l->sum.allowed) {
		restart(l, rank, now);
		return;
	}
	r->due_ns = LAUNCH_HELD_NS;
	l->sum.wanted++;
	l->ports.changed(l->ports.ctx, rank);
}

/* Of the ranks that wait for it, those with the lowest numbers come first. */
static void answer_held(struct launch *l, struct now now)
{
	for (uint32_t i = 0; i < l->n_ranks && l->sum.wanted && l->sum.phase == LAUNCH_RUNNING; i++) {
		if (l->rank[i].state != LAUNCH_RANK_WAITING || l->rank[i].due_ns != LAUNCH_HELD_NS)
			continue;
		if (l->sum.charged < l->sum.allowed) {
			l->sum.wanted--;
			restart(l, i, now);
		} else if (l->final) {
			l->n_waiting--;
			give_up(l, i, now);
		}
	}
}

void launch_allow(struct launch *l, uint32_t allowed, bool final, struct now now)
{
	const bool idle = l->sum.phase == LAUNCH_IDLE;
	if (idle || allowed > l->sum.allowed)
		l->sum.allowed = allowed;
	l->final = idle ? final : l->final || final;
	answer_held(l, now);
	l->ports.changed(l->ports.ctx, 0);
}

void launch_on_exit(struct launch *l, uint32_t rank, int64_t pid, int32_t status, struct now now)
{
	struct launch_rank *r = &l->rank[rank];
	if (r->state != LAUNCH_RANK_RUNNING || r->pid != pid)
		return;
	l->n_running--;
	r->exit_status = status;
	if (status && l->sum.phase == LAUNCH_RUNNING) {
		on_failure(l, rank, status, now);
		return;
	}
	r->state = LAUNCH_RANK_EXITED;
	l->ports.changed(l->ports.ctx, rank);
	end_if_over(l);
}

/* ---- starts ---- */

static void start_rank(struct launch *l, uint32_t rank, struct now now)
{
	struct launch_rank *r = &l->rank[rank];
	int64_t pid = l->ports.start(l->ports.ctx, rank, r->restarts);
	l->n_waiting--;
	if (!pid) {
		r->pid = 0;
		r->exit_status = CANNOT_START;
		on_failure(l, rank, CANNOT_START, now);
		return;
	}
	r->pid = pid;
	r->state = LAUNCH_RANK_RUNNING;
	l->n_running++;
	l->ports.changed(l->ports.ctx, rank);
}

static int64_t start_due(struct launch *l, struct now now)
{
	int64_t next = INT64_MAX;
	for (uint32_t i = 0; i < l->n_ranks && l->n_waiting; i++) {
		struct launch_rank *r = &l->rank[i];
		if (r->state == LAUNCH_RANK_WAITING && r->due_ns <= now.mono_ns)
			start_rank(l, i, now);
		if (r->state == LAUNCH_RANK_WAITING && r->due_ns < next)
			next = r->due_ns;
	}
	return next;
}

void launch_start(struct launch *l, struct now now)
{
	if (l->sum.phase != LAUNCH_IDLE)
		return;
	l->sum.phase = LAUNCH_RUNNING;
	start_due(l, now);
}

int64_t launch_tick(struct launch *l, struct now now)
{
	if (l->sum.phase == LAUNCH_RUNNING)
		return start_due(l, now);
	if (l->sum.phase != LAUNCH_STOPPING || !l->kill_ns)
		return INT64_MAX;
	if (now.mono_ns < l->kill_ns)
		return l->kill_ns;
	l->kill_ns = 0;
	signal_all(l, SIGKILL);
	return INT64_MAX;
}

/* ---- looking ---- */

const struct launch_rank *launch_rank(const struct launch *l, uint32_t rank)
{
	return &l->rank[rank];
}

const struct launch_summary *launch_summary(const struct launch *l)
{
	return &l->sum;
}
