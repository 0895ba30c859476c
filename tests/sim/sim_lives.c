/* SPDX-License-Identifier: Apache-2.0 */
/* Fake trainers begin, stop, go on and die. */
#include "sim.h"

void trainer_spawn(struct sim *s, uint32_t rank)
{
	if (s->n_procs == SIM_MAX_PROCS) {
		s->faults = false; /* enough deaths for one run */
		return;
	}
	struct proc *p = &s->proc[s->n_procs++];
	*p = (struct proc){ .state = PROC_ATTACH, .rank = rank, .windows_left = 4 + (int)sim_random(s, 10) };
	p->streams = sim_chance(s, 300) && !s->puts;
	p->wants_box = !p->streams && sim_chance(s, 700);
	p->box_limit = sim_chance(s, 500) ? 0 : 1 + (int64_t)sim_random(s, 60 * MS);
	trainer_nonce(s, p);
	trainer_wake(s, p, (int64_t)sim_random(s, s->restless && sim_chance(s, 100) ? 1500 * MS : 30 * MS));
}

/* All of them die, and nobody starts others: the job is abandoned, unless it completes with what it has. */
void trainers_desert(struct sim *s)
{
	for (uint32_t i = 0; i < s->n_procs; i++) {
		struct proc *p = &s->proc[i];
		if (p->state == PROC_DEAD || p->state == PROC_DONE)
			continue;
		p->state = PROC_DEAD;
		if (s->gaccd_up)
			job_on_link(s->job, sim_rank(s, p), p->generation, false, sim_now(s));
	}
}

static bool has_live(const struct sim *s, uint32_t rank)
{
	for (uint32_t i = 0; i < s->n_procs; i++)
		if (s->proc[i].rank == rank && s->proc[i].state != PROC_DEAD && s->proc[i].state != PROC_DONE)
			return true;
	return false;
}

void trainers_kill_stopped(struct sim *s)
{
	for (uint32_t i = 0; i < s->n_procs; i++) {
		struct proc *p = &s->proc[i];
		if (!p->stopped || p->state == PROC_DEAD)
			continue;
		p->state = PROC_DEAD;
		if (!has_live(s, p->rank))
			sim_event(s, 50 * MS, EV_START_PROC)->proc = p->rank;
	}
}

/* A stopped trainer whose delayed Attach has fenced its successor holds the job up: it is continued in the end. */
void trainer_continue_all(struct sim *s)
{
	for (uint32_t i = 0; i < s->n_procs; i++)
		if (s->proc[i].stopped) {
			s->proc[i].stopped = false;
			trainer_wake(s, &s->proc[i], 1);
		}
}

/* The launcher starts another one. */
static void succeed(struct sim *s, const struct proc *p)
{
	struct event *e = sim_event(s, (int64_t)sim_random(s, 100 * MS) + 1, EV_START_PROC);
	e->proc = p->rank;
	if (s->gaccd_up)
		job_on_link(s->job, sim_rank(s, p), p->generation, false, sim_now(s));
}

void trainer_dies(struct sim *s, struct proc *p)
{
	p->state = PROC_DEAD;
	succeed(s, p);
}

/* Kills or stops a random live trainer; a stopped one wakes up later, when a new process may have its rank. */
void trainer_fault(struct sim *s)
{
	uint32_t i = (uint32_t)sim_random(s, s->n_procs);
	struct proc *p = &s->proc[i];
	if (p->state == PROC_DEAD || p->state == PROC_DONE)
		return;
	s->n_kills++;
	if (p->stopped) {
		p->stopped = false;
		trainer_wake(s, p, 1);
		return;
	}
	if (!sim_chance(s, 300)) {
		trainer_dies(s, p);
		return;
	}
	if (sim_chance(s, 500)) { /* only slept */
		trainer_wake(s, p, 400 * MS);
		return;
	}
	p->stopped = true;
	succeed(s, p);
}
