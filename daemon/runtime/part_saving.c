/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoints of a part: connects control/part_save.h with the part's engine. For part_engine.c, and for the port
 * that takes the coordinator's wish. Loop thread. */
#include "runtime/part_states.h"

#include <stdlib.h>
#include <string.h>

/* ---- the machine's ports ---- */

static bool on_begin(void *ctx, const struct save *w, uint64_t command)
{
	struct part *p = ctx;
	struct engine_command c = { .op = ENGINE_CHECKPOINT,
				    .id = command,
				    .inside_window = w->inside_window,
				    .own_only = w->own_only,
				    .n_present = (uint32_t)strlen(w->path) };
	if (w->states_alone)
		return part_states_ready(p) && part_states_begin_alone(p, command, w);
	if (!part_states_ready(p) || !part_engine_send(p, p->id, &c, w->path))
		return false;
	part_states_begin(p, w->window);
	return true;
}

static void on_tell(void *ctx, const struct part_saved *is)
{
	struct part *p = ctx;
	p->ports.saved(p, is);
}

/* ---- what comes in ---- */

static struct part_save *machine_of(struct part *p)
{
	const struct part_save_ports ports = { .ctx = p, .begin = on_begin, .tell = on_tell };
	if (p->save)
		return p->save;
	p->save = malloc(sizeof(*p->save));
	if (p->save)
		part_save_init(p->save, &ports);
	return p->save;
}

void part_saving_look(struct part *p)
{
	/* before its first start it is still coming */
	bool over = p->mem.released || job_ended(p->job) || (p->engine.starts && part_engine_is_over(p));
	const struct part_save_view is = { .window = job_window(p->job),
					   .can_save = job_can_checkpoint(p->job),
					   .is_over = over };
	if (!p->save)
		return;
	part_states_look(p);
	part_save_look(p->save, &is);
	part_states_look(p); /* one without an engine may have begun */
}

void part_on_save(struct part *p, const struct save *w)
{
	struct part_save *s = machine_of(p);
	if (!s || w->epoch != job_part(p->job)->epoch)
		return; /* it is asked for again; or it is for another placement */
	part_save_on_save(s, w);
	part_saving_look(p);
}

void part_saving_on_answer(struct part *p, const struct engine_answer *a)
{
	const struct part_spec *part = job_part(p->job);
	struct part_saved is = { .status = (enum status)a->status,
				 .window = a->window,
				 .applied_step = a->applied_step,
				 .params_digest = a->digest,
				 .count = a->count,
				 .loss_scale = a->loss_scale,
				 .sum_weight = a->sum_weight,
				 .sum_loss = a->sum_loss,
				 .window_lr = a->window_lr,
				 .micro_size = a->micro_size,
				 .last_rank = a->count ? part_global(part, a->last_rank) : a->last_rank,
				 .lr_rank = a->count ? part_global(part, a->lr_rank) : a->lr_rank,
				 .dir = a->dir };
	_Static_assert(sizeof(is.text) == sizeof(a->text) && sizeof(is.file) == sizeof(a->file), "copied whole");
	memcpy(is.text, a->text, sizeof(is.text));
	memcpy(is.file, a->file, sizeof(is.file));
	if (!p->save)
		return;
	if (p->save->state != PART_SAVE_WRITING || !part_states_take(p, a->id, &is, &p->save->wanted))
		part_save_on_answer(p->save, a->id, &is);
	part_saving_look(p); /* another may wait */
}

void part_saving_written(struct part *p, uint64_t command, const struct part_saved *is)
{
	part_save_on_answer(p->save, command, is);
	part_saving_look(p);
}

void part_saving_on_engine_lost(struct part *p)
{
	if (!p->save)
		return;
	part_save_on_engine_lost(p->save);
	part_states_on_engine_lost(p);
}

/* ---- what it takes on a disk ---- */

void part_save_bytes(const struct part *p, uint64_t *out_state, uint64_t *out_carry)
{
	const bool is_sharded = spec_is_sharded(p->spec);
	const bool saves_model = !p->number || !is_sharded;
	const bool saves_state = !is_sharded || p->number < spec_shards(p->spec);
	*out_state = *out_carry = 0;
	for (int i = 0; p->mem.wanted && i < p->mem.n; i++) {
		uint32_t role = p->mem.wanted[i].role;
		if (role == SEG_PARAMS && p->spec->device != DEVICE_HOST && !p->mem.wanted[i].on_device)
			continue; /* a copy for trainers */
		bool state = role == SEG_PARAMS
				     ? saves_model
				     : saves_state && (role == SEG_MASTER || role == SEG_STATE0 || role == SEG_STATE1);
		*out_state += state ? p->mem.wanted[i].bytes : 0;
		*out_carry += role == SEG_ACCUM0 ? p->mem.wanted[i].bytes : 0;
	}
}
