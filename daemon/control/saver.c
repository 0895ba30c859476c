/* SPDX-License-Identifier: Apache-2.0 */
/* Decides when a job's checkpoints are made, and takes each through its steps, one checkpoint at a time. For
 * edge/checkpoints.c and checkpoints_disk.c, which do the work. Pure; loop thread. */
#include "control/saver.h"

#include <string.h>

static const uint8_t no_request[16];

void saver_init(struct saver *s, uint64_t every_steps, bool save_at_end, const struct saver_ports *ports)
{
	*s = (struct saver){ .every_steps = every_steps, .save_at_end = save_at_end, .ports = *ports };
}

static void tell_end(struct saver *s)
{
	if (!s->ending || s->end_told || s->n_wants || s->state != SAVER_IDLE)
		return;
	s->end_told = true;
	s->state = SAVER_OVER;
	s->ports.end_ready(s->ports.ctx);
}

static void sweep(struct saver *s)
{
	s->state = SAVER_SWEEPING;
	s->ports.sweep(s->ports.ctx);
}

static void become_idle(struct saver *s)
{
	s->state = SAVER_IDLE;
	saver_kick(s);
	tell_end(s);
}

/* Higher than any that the journal and the directory have. */
static void give_id(struct saver *s)
{
	if (!s->want[0].id)
		s->want[0].id = ++s->last_id;
}

/* The first want is over. */
static void pop(struct saver *s, enum status st)
{
	give_id(s);
	struct save_want w = s->want[0];
	memmove(&s->want[0], &s->want[1], --s->n_wants * sizeof(s->want[0]));
	s->ports.ended(s->ports.ctx, &w, st);
}

static enum status push(struct saver *s, const uint8_t request_id[16], bool inside_window, bool at_end)
{
	if (s->n_wants == SAVER_MAX_WANTS)
		return ST_RESOURCE_EXHAUSTED;
	struct save_want *w = &s->want[s->n_wants++];
	*w = (struct save_want){ .inside_window = inside_window, .at_end = at_end };
	memcpy(w->request_id, request_id, sizeof(w->request_id));
	return ST_OK;
}

void saver_start(struct saver *s, uint64_t last_id, uint64_t saved_step)
{
	if (s->state != SAVER_NEW)
		return;
	s->last_id = last_id;
	s->saved_step = saved_step;
	sweep(s);
}

/* At the end a second checkpoint of the same step would only push out an older step's. */
static bool last_step_is_saved(const struct saver *s)
{
	return s->step && s->saved_step == s->step;
}

static void begin(struct saver *s)
{
	give_id(s);
	if (!s->ports.begin(s->ports.ctx, &s->want[0]))
		return;
	s->want[0].step = s->step;
	s->state = SAVER_WRITING;
}

void saver_kick(struct saver *s)
{
	if (s->state != SAVER_IDLE || !s->n_wants)
		return;
	if (s->want[0].at_end && last_step_is_saved(s)) /* the checkpoint at the end is always the last one */
		s->n_wants = 0;
	else
		begin(s);
}

void saver_on_boundary(struct saver *s, uint64_t applied_step, bool applied)
{
	s->step = applied_step;
	bool due = s->every_steps && applied && applied_step % s->every_steps == 0 && !s->ending &&
		   applied_step != s->saved_step;
	uint32_t begun = s->state >= SAVER_WRITING && s->state <= SAVER_RECORDING;
	for (uint32_t i = begun; i < s->n_wants; i++) /* one that is still waiting will save this step, too */
		due = due && memcmp(s->want[i].request_id, no_request, sizeof(no_request));
	if (due)
		push(s, no_request, false, false);
	saver_kick(s);
}

enum status saver_request(struct saver *s, const uint8_t request_id[16], bool inside_window)
{
	if (s->ending)
		return ST_JOB_ENDED;
	enum status st = push(s, request_id, inside_window, false);
	if (!st)
		saver_kick(s);
	return st;
}

const struct save_want *saver_find(const struct saver *s, const uint8_t request_id[16])
{
	for (uint32_t i = 0; i < s->n_wants; i++)
		if (!memcmp(s->want[i].request_id, request_id, sizeof(s->want[i].request_id)))
			return &s->want[i];
	return NULL;
}

bool saver_end(struct saver *s, bool completed)
{
	if (s->ending)
		return !s->end_told;
	s->ending = true;
	if (!completed) {
		s->end_told = true;
		while (s->n_wants)
			pop(s, ST_JOB_ENDED);
		if (s->state != SAVER_SEALING)
			s->state = SAVER_OVER;
		return false;
	}
	if (s->save_at_end && s->state != SAVER_NEW && !(s->state == SAVER_IDLE && last_step_is_saved(s)))
		push(s, no_request, false, true);
	if (!s->n_wants && s->state <= SAVER_IDLE) {
		s->end_told = true;
		s->state = SAVER_OVER;
		return false;
	}
	saver_kick(s);
	return true;
}

/* Wants that have not begun fail. */
static void give_up(struct saver *s, enum status st)
{
	if (s->state > SAVER_IDLE)
		return;
	while (s->n_wants)
		pop(s, st);
	if (s->ending)
		s->state = SAVER_IDLE;
	tell_end(s);
}

void saver_switch_off(struct saver *s, enum status st)
{
	s->every_steps = 0;
	s->save_at_end = false;
	give_up(s, st);
}

void saver_on_swept(struct saver *s, uint64_t last_id)
{
	if (s->state != SAVER_SWEEPING)
		return;
	s->last_id = last_id > s->last_id ? last_id : s->last_id;
	become_idle(s);
}

void saver_on_written(struct saver *s, enum status st)
{
	if (s->state != SAVER_WRITING)
		return;
	if (!st) {
		s->state = SAVER_SEALING;
		s->ports.seal(s->ports.ctx, &s->want[0]);
		return;
	}
	pop(s, st);
	sweep(s);
}

void saver_on_passed(struct saver *s, bool wrote)
{
	if (s->state != SAVER_WRITING)
		return;
	if (wrote)
		sweep(s); /* the next try writes under the same names */
	else
		s->state = SAVER_IDLE;
}

/* The checkpoint is tried once more, with the new engine's state. */
void saver_on_engine_lost(struct saver *s)
{
	if (s->state != SAVER_WRITING)
		return;
	if (s->want[0].retried)
		pop(s, ST_ENGINE_DOWN);
	else
		s->want[0].retried = true;
	sweep(s);
}

void saver_on_sealed(struct saver *s, enum status st)
{
	if (s->state != SAVER_SEALING)
		return;
	if (!s->n_wants) { /* the job was cancelled meanwhile */
		s->state = SAVER_OVER;
		if (!st)
			s->ports.discard(s->ports.ctx);
		return;
	}
	if (!st) {
		s->state = SAVER_RECORDING;
		s->ports.record(s->ports.ctx, &s->want[0]);
		return;
	}
	pop(s, st);
	sweep(s);
}

void saver_on_recorded(struct saver *s, enum status st)
{
	if (s->state != SAVER_RECORDING)
		return;
	s->state = SAVER_PRUNING;
	if (st)
		s->ports.discard(s->ports.ctx);
	else if (!s->want[0].inside_window)
		s->saved_step = s->want[0].step;
	pop(s, st);
	s->ports.prune(s->ports.ctx);
}

void saver_on_pruned(struct saver *s)
{
	if (s->state == SAVER_PRUNING)
		become_idle(s);
}
