/* SPDX-License-Identifier: Apache-2.0 */
/* Creates and frees a struct job, gives it its tensors and the windows of the journal, and shows its state to
 * daemon/runtime and daemon/edge. Pure; loop thread. */
#include "control/job_impl.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool alloc_history(struct job *j)
{
	for (uint32_t i = 0; i < JOB_HISTORY; i++) {
		j->past[i].counted = calloc(j->mirror.n_words, sizeof(uint64_t));
		if (!j->past[i].counted)
			return false;
	}
	return true;
}

enum status job_new(struct job **out, uint64_t id, struct part_spec part, uint32_t owner_uid, uint64_t incarnation,
		    const struct job_ports *ports)
{
	const struct job_spec *spec = part.spec;
	assert(part.epoch && spec->ranks && part.world >= spec->ranks);
	assert(part.n_parts && part.n_parts <= PART_MAX && part.number < part.n_parts);
	for (uint32_t i = 0; i < spec->ranks; i++)
		assert(part_global(&part, i) < part.world && (!i || part_global(&part, i - 1) < part_global(&part, i)));
	struct job *j = calloc(1, sizeof(*j));
	if (!j)
		return ST_NO_MEMORY;
	j->id = id;
	j->part = part;
	j->spec = spec;
	j->epoch = part.epoch;
	j->owner_uid = owner_uid;
	j->incarnation = incarnation;
	j->ports = *ports;
	if (control_state_init(&j->mirror, spec->ranks, spec->max_micro_size))
		goto fail;
	j->mirror.r.micro_size = spec->micro_size;
	j->mirror.r.loss_scale = spec->loss_scale;
	j->closed_counted = calloc(j->mirror.n_words, sizeof(*j->closed_counted));
	j->rank = calloc(spec->ranks, sizeof(*j->rank));
	j->progress = calloc(spec->ranks, sizeof(*j->progress));
	j->missing = calloc(spec->max_micro_size, sizeof(*j->missing));
	j->missing_at = calloc(spec->max_micro_size, sizeof(*j->missing_at));
	if (!j->closed_counted || !j->rank || !j->progress || !j->missing || !j->missing_at || !alloc_history(j))
		goto fail;
	j->visited = &j->n_visited;
	for (uint32_t i = 0; i < spec->ranks; i++) {
		j->rank[i].index = i;
		j->rank[i].global = part_global(&part, i);
	}
	job_recount(j);
	*out = j;
	return ST_OK;
fail:
	job_free(j);
	return ST_NO_MEMORY;
}

void job_free(struct job *j)
{
	if (!j)
		return;
	for (uint32_t r = 0; j->rank && r < j->spec->ranks; r++) {
		for (int i = 0; i < RANK_MAX_PUSHES; i++)
			free(j->rank[r].push[i].present);
		for (int i = 0; i < RANK_MAX_SLOTS; i++)
			stream_free(&j->rank[r].stream[i]);
		coverage_fini(&j->rank[r].given);
	}
	for (uint32_t i = 0; i < JOB_HISTORY; i++)
		free(j->past[i].counted);
	control_state_fini(&j->mirror);
	tensor_set_fini(&j->set);
	comm_forget(j);
	free(j->restore);
	free(j->closed_counted);
	free(j->rank);
	free(j->progress);
	free(j->missing);
	free(j->missing_at);
	free(j->waiter);
	free(j);
}

void job_take_tensors(struct job *j, struct tensor_set *set)
{
	j->set = *set;
	j->has_tensors = true;
	*set = (struct tensor_set){ 0 };
}

void job_give_tensors(struct job *j, struct tensor_set *out)
{
	*out = j->set;
	j->set = (struct tensor_set){ 0 };
	j->has_tensors = false;
}

enum status job_set_tensors(struct job *j, const struct tensor_spec *t, uint64_t n, char *why, size_t n_why)
{
	struct tensor_set set;
	enum status st = tensor_set_init(&set, j->spec, t, n, why, n_why);
	if (!st)
		job_take_tensors(j, &set);
	return st;
}

void job_restore_window(struct job *j, const struct commit *k, const uint64_t *counted, uint32_t n_words)
{
	if (n_words != j->mirror.n_words)
		return;
	if (j->n_past && j->past[j->n_past - 1].commit.window + 1 == k->window)
		j->past[j->n_past - 1].commit.params_digest = k->params_before;
	past_add(j, k, counted);
}

void job_run_on(struct job *j)
{
	j->run = j->windows_due = true;
}

/* Before which of the windows that are kept it belongs. */
static uint32_t place_of(const struct job *j, uint64_t window)
{
	uint32_t i = 0;
	while (i < j->n_past && j->past[i].commit.window < window)
		i++;
	return i;
}

void job_learn_window(struct job *j, const struct commit *k, const uint64_t *counted, uint32_t n_words)
{
	uint32_t i = place_of(j, k->window);
	if (n_words != j->mirror.n_words || past_find(j, k->window) || (j->n_past == JOB_HISTORY && !i))
		return;
	uint32_t behind = j->n_past - i;
	past_add(j, k, counted);
	struct past_window *end = &j->past[j->n_past], is = end[-1];
	memmove(end - behind, end - behind - 1, behind * sizeof(is));
	end[-1 - (int)behind] = is;
}

void job_windows_known(struct job *j, struct now now)
{
	j->clock_ns = now.mono_ns;
	j->windows_due = false;
	for (uint32_t i = 1; i < j->n_past; i++)
		if (j->past[i - 1].commit.window + 1 == j->past[i].commit.window &&
		    !j->past[i - 1].commit.params_digest)
			j->past[i - 1].commit.params_digest = j->past[i].commit.params_before;
	if (j->engine_seen)
		job_learn_digest(j);
	job_answer_ready(j);
}

uint64_t job_id(const struct job *j)
{
	return j->id;
}

const struct job_spec *job_spec(const struct job *j)
{
	return j->spec;
}

bool job_ended(const struct job *j)
{
	return j->ended;
}

bool job_is_paused(const struct job *j)
{
	return j->have_order && j->order.paused;
}

bool job_has_tensors(const struct job *j)
{
	return j->has_tensors;
}

bool job_idle(const struct job *j)
{
	for (uint32_t i = 0; i < j->spec->ranks; i++)
		if (j->rank[i].has_session && !j->rank[i].detached && !j->rank[i].lost)
			return false;
	return true;
}

const struct part_spec *job_part(const struct job *j)
{
	return &j->part;
}

const struct arena *job_arena(const struct job *j)
{
	return &j->set.arena;
}

struct tensor_set *job_tensor_set(struct job *j)
{
	return j->has_tensors ? &j->set : NULL;
}

const struct tensor_spec *job_tensors(const struct job *j, uint64_t *n)
{
	*n = j->set.n;
	return j->set.tensor;
}

const struct control_state *job_record(const struct job *j)
{
	return j->engine_seen ? &j->mirror : NULL;
}

uint64_t job_epoch(const struct job *j)
{
	return j->epoch;
}

uint64_t job_term(const struct job *j)
{
	const uint64_t prepared = j->mirror.r.prepared_term, ordered = j->have_order ? j->order.term : 0;
	return ordered > prepared ? ordered : prepared;
}

bool job_norms_asked(const struct job *j)
{
	return j->have_order && j->order.want == WANT_GO && j->order.norms;
}

uint64_t job_window(const struct job *j)
{
	return j->mirror.r.window;
}

bool job_params_ready(const struct job *j)
{
	return j->mirror.r.params_ready && (!has_parts(j) || j->run);
}

bool job_can_checkpoint(const struct job *j)
{
	const struct control_record *r = &j->mirror.r;
	/* a part of a sharded job may be half through an update without a COMMIT on its way to it */
	return j->engine_up && r->params_ready && !r->params_nonfinite && !j->commit_command &&
	       r->phase != WINDOW_APPLYING;
}

uint64_t job_generation(const struct job *j, uint32_t rank)
{
	const struct rank *r = job_rank(j, rank);
	return r ? r->sgen : 0;
}

bool job_is_mapped(const struct job *j, uint32_t rank)
{
	const struct rank *r = job_rank(j, rank);
	return r && r->mapped_here;
}

bool job_session_is(const struct job *j, uint32_t rank, uint64_t generation)
{
	const struct rank *r = job_rank(j, rank);
	return r && r->sgen == generation && r->has_session && !r->detached;
}

bool job_rank_is_there(const struct job *j, uint32_t rank)
{
	const struct rank *r = job_rank(j, rank);
	return r && r->has_session && !r->detached && !r->lost;
}

void job_look_at_mailboxes(struct job *j)
{
	job_catch_up(j);
}

bool job_rank_has_begun(const struct job *j, uint32_t rank)
{
	const struct rank *r = job_rank(j, rank);
	return r && (rank_progress_count(j, r) || r->flush_wanted || j->mirror.rank[r->index].flushed);
}

uint32_t job_slots(const struct job *j)
{
	return spec_slots(j->spec);
}
