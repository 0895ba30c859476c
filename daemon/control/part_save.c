/* SPDX-License-Identifier: Apache-2.0 */
/* Takes what the coordinator wants saved of a part, gives it to the engine when its turn has come, and tells what
 * became of it. For runtime/part_saving.c. Pure; loop thread. */
#include "control/part_save.h"

#include <assert.h>
#include <stdio.h>

void part_save_init(struct part_save *s, const struct part_save_ports *ports)
{
	*s = (struct part_save){ .ports = *ports };
}

/* It is over like this. */
static void tell(struct part_save *s, struct part_saved is)
{
	const struct save *w = &s->wanted;
	assert(s->state == PART_SAVE_WAITING || s->state == PART_SAVE_WRITING);
	is.job_id = w->job_id;
	is.epoch = w->epoch;
	is.part = w->part;
	is.term = w->term;
	is.number = w->number;
	s->told = is;
	s->state = PART_SAVE_OVER;
	s->ports.tell(s->ports.ctx, &s->told);
}

static void tell_no_engine(struct part_save *s, const char *why)
{
	struct part_saved is = { .status = ST_ENGINE_DOWN };
	snprintf(is.text, sizeof(is.text), "%s", why);
	tell(s, is);
}

static bool is_newer(const struct save *a, const struct save *b)
{
	return a->term != b->term ? a->term > b->term : a->number > b->number;
}

void part_save_on_save(struct part_save *s, const struct save *w)
{
	bool none = s->state == PART_SAVE_NONE;
	if (none || is_newer(w, &s->wanted)) {
		s->wanted = *w;
		s->state = PART_SAVE_WAITING;
	} else if (!is_newer(&s->wanted, w) && s->state == PART_SAVE_OVER) {
		s->ports.tell(s->ports.ctx, &s->told); /* the first answer was lost */
	}
}

void part_save_look(struct part_save *s, const struct part_save_view *is)
{
	if (s->state != PART_SAVE_WAITING)
		return;
	if (is->is_over) {
		tell_no_engine(s, "the part has no engine any more");
	} else if (is->window > s->wanted.window) {
		tell(s, (struct part_saved){ .passed = true });
	} else if ((is->can_save || s->wanted.states_alone) && is->window == s->wanted.window && !s->busy &&
		   s->ports.begin(s->ports.ctx, &s->wanted, s->command + 1)) {
		s->command++;
		s->busy = true;
		s->by_engine = !s->wanted.states_alone;
		s->state = PART_SAVE_WRITING;
	}
}

void part_save_on_answer(struct part_save *s, uint64_t command, const struct part_saved *is)
{
	if (!s->busy || command != s->command)
		return;
	s->busy = false;
	if (s->state == PART_SAVE_WRITING)
		tell(s, *is);
}

void part_save_on_engine_lost(struct part_save *s)
{
	if (s->busy && !s->by_engine)
		return; /* it has no part in this */
	s->busy = false;
	if (s->state == PART_SAVE_WRITING)
		tell_no_engine(s, "its engine has died");
}
