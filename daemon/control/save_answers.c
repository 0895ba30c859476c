/* SPDX-License-Identifier: Apache-2.0 */
/* Collects and judges what the parts of a job answer to a Save, and tells whose trainers' states are missing. For
 * edge/checkpoints.c. Pure; loop thread. */
#include "control/save_answers.h"

#include <stdio.h>

void save_answers_begin(struct save_answers *a, uint32_t n, uint32_t n_files, uint32_t shards, uint64_t window)
{
	a->n = n;
	a->n_files = n_files;
	a->shards = shards;
	a->window = window;
	for (uint32_t i = 0; i < n; i++)
		a->part[i].answered = false;
}

bool save_answers_awaits(const struct save_answers *a, uint32_t part)
{
	return part < a->n && !a->part[part].answered;
}

static uint32_t count_awaited(const struct save_answers *a, uint32_t n)
{
	uint32_t awaited = 0;
	for (uint32_t i = 0; i < n; i++)
		awaited += !a->part[i].answered;
	return awaited;
}

void save_answers_take(struct save_answers *a, const struct part_saved *is, struct now now)
{
	a->part[is->part].answered = true;
	a->part[is->part].is = *is;
	if (is->part < a->n_files)
		a->files_ns = now.mono_ns;
}

bool save_answers_are_in(const struct save_answers *a, struct now now)
{
	if (!count_awaited(a, a->n))
		return true;
	for (uint32_t i = 0; i < a->n; i++)
		if (a->part[i].answered && (a->part[i].is.status || a->part[i].is.passed))
			return false; /* it will be tried again under the same names */
	return !count_awaited(a, a->n_files) && now.mono_ns - a->files_ns >= SAVE_STATES_NS;
}

/* ---- what came of it ---- */

static bool has_file(const struct part_saved *is)
{
	bool any = false;
	for (int i = 0; i < ENGINE_FILES; i++)
		any |= is->file[i].bytes != 0;
	return any;
}

/* Files that another part saves. */
static bool has_too_much(const struct save_answers *a, const struct part_saved *is)
{
	if (is->part >= a->n_files)
		return has_file(is);
	return (is->part && is->file[SAVE_FILE_MODEL].bytes) ||
	       (is->part >= a->shards && is->file[SAVE_FILE_OPTIMIZER].bytes);
}

/* The state is one: so must be what is equal in all parts. */
static enum status compare(const struct save_answers *a, const struct part_saved *is, char *why, size_t n_why)
{
	const struct part_saved *first = &a->part[0].is;
	if (is->window != a->window)
		snprintf(why, n_why, "part %u has saved window %llu, and window %llu was to be saved", is->part,
			 (unsigned long long)is->window, (unsigned long long)a->window);
	else if (is->part < a->n_files &&
		 (is->applied_step != first->applied_step || is->params_digest != first->params_digest ||
		  is->micro_size != first->micro_size || is->loss_scale != first->loss_scale))
		snprintf(why, n_why, "part %u and part 0 have other parameters, or another step", is->part);
	else if (has_too_much(a, is))
		snprintf(why, n_why, "part %u has saved what another part saves", is->part);
	else
		return ST_OK;
	return ST_INTERNAL;
}

static void take_worst(const struct save_answers *a, struct save_verdict *out)
{
	for (uint32_t i = 0; i < a->n; i++) {
		const struct part_saved *is = &a->part[i].is;
		if (!a->part[i].answered)
			continue;
		out->passed |= is->passed;
		out->wrote |= !is->passed && !is->status && (i < a->n_files || is->n_states);
		if (is->status && (!out->status || out->status == ST_ENGINE_DOWN)) {
			out->status = is->status;
			out->part = (int32_t)i;
			snprintf(out->why, sizeof(out->why), "%s", is->text);
		}
	}
}

void save_answers_judge(const struct save_answers *a, struct save_verdict *out)
{
	*out = (struct save_verdict){ .part = -1 };
	take_worst(a, out);
	for (uint32_t i = 0; i < a->n && !out->status && !out->passed; i++)
		if (a->part[i].answered)
			out->status = compare(a, &a->part[i].is, out->why, sizeof(out->why));
}

/* ---- the trainers' states ---- */

static uint32_t states_of(const struct save_answers *a, uint32_t part)
{
	return a->part[part].answered ? a->part[part].is.n_states : 0;
}

uint64_t save_answers_state_bytes(const struct save_answers *a)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < a->n; i++)
		bytes += states_of(a, i) ? a->part[i].is.states.bytes : 0;
	return bytes;
}

void save_answers_on_lost(struct save_answers *a, uint32_t part)
{
	a->lost |= UINT32_C(1) << part;
}

/* Somebody's states tell that the job uses them. */
static bool uses_states(const struct save_answers *a)
{
	bool any = false;
	for (uint32_t i = 0; i < a->n; i++)
		any |= states_of(a, i) || (a->part[i].had && (save_answers_awaits(a, i) || (a->lost >> i & 1)));
	return any;
}

bool save_answers_lacks(const struct save_answers *a, uint32_t part, char *why, size_t n_why)
{
	const bool lost = a->lost >> part & 1;
	const unsigned long long window = a->window;
	if (save_answers_awaits(a, part)) {
		snprintf(why, n_why,
			 "the checkpoint of window %llu is without the trainers' states of part %u, if it has any: its "
			 "node has not answered for %d s",
			 window, part, (int)(SAVE_STATES_NS / 1000000000));
		return true;
	}
	if (states_of(a, part) || !(lost || a->part[part].had) || !uses_states(a))
		return false;
	if (lost)
		snprintf(why, n_why,
			 "the checkpoint of window %llu has no trainers' states of part %u: its gaccd has been "
			 "restarted, "
			 "or the coordinator's, and with a gaccd is lost what was put to it",
			 window, part);
	else
		snprintf(why, n_why,
			 "the checkpoint of window %llu has no trainers' states of part %u, and the one before had %u",
			 window, part, a->part[part].had);
	return true;
}

void save_answers_on_complete(struct save_answers *a)
{
	for (uint32_t i = 0; i < a->n; i++)
		a->part[i].had = states_of(a, i);
	a->lost = 0;
}
