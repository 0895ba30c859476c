/* SPDX-License-Identifier: Apache-2.0 */
/* Accounts for the trainers' own states of a part, and reads those of the checkpoint that its job began with, when a
 * rank asks for one. For part_states.c. Loop thread, but for the work in the pool. */
#include "runtime/part_states_impl.h"

#include "gacc/v1/common.pb-c.h"
#include "proto/bytes.h"
#include "rpc/pool.h"
#include "runtime/saving_disk.h"
#include "store/checkpoint_states.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what the user is charged ---- */

bool part_states_charge(struct part *p, size_t more)
{
	if (!rpc_quota_take(&p->node->collected, p->uid, more))
		return false;
	p->states->charged += more;
	return true;
}

void part_states_settle(struct part *p)
{
	struct part_states *s = p->states;
	const size_t is = rank_states_bytes(s->all);
	if (s->charged <= is)
		return;
	rpc_quota_give(&p->node->collected, p->uid, s->charged - is);
	s->charged = is;
}

/* ---- the checkpoint ---- */

struct base_work {
	struct rpc_work work;
	struct part *p;
	void *spec; /* packed: it has the path */
	size_t n_spec;
	char path[CHECKPOINT_MAX_PATH];
	uint64_t window;
	uint32_t ranks, n_states;
	struct trainer_states states;
	enum status status;
	char why[320];
};

/* Where restore_from leads. */
static void find_path(struct base_work *w)
{
	struct ProtobufCMessage *m = NULL;
	w->status = bytes_decode(&gacc__v1__job_spec__descriptor, w->spec, w->n_spec, &m);
	if (!w->status)
		w->status = checkpoint_resolve(((const Gacc__V1__JobSpec *)m)->restore_from, w->path, w->why,
					       sizeof(w->why));
	bytes_free(m);
}

static void read_manifest(struct base_work *w, struct manifest **out, uint32_t *out_owner)
{
	const struct conf *c = w->p->node->conf;
	const uint32_t uid = w->p->uid;
	find_path(w);
	if (!w->status && !disk_place_allowed(c->state_dir, c->checkpoint.allowed_dirs, uid, w->path)) {
		snprintf(w->why, sizeof(w->why), "%.200s is in none of the directories that are allowed", w->path);
		w->status = ST_PERMISSION_DENIED;
	}
	if (!w->status)
		w->status = checkpoint_load(w->path, out, out_owner, w->why, sizeof(w->why));
	if (!w->status && !disk_may_read(uid, *out_owner, *out)) {
		snprintf(w->why, sizeof(w->why), "%.200s: the checkpoint belongs to uid %u", w->path, *out_owner);
		w->status = ST_PERMISSION_DENIED;
	}
}

static void read_base(struct rpc_work *work)
{
	struct base_work *w = (struct base_work *)work;
	struct manifest *m = NULL;
	uint32_t owner = 0;
	read_manifest(w, &m, &owner);
	if (!w->status && m->ranks == w->ranks)
		w->status = checkpoint_read_states(w->path, m, owner, &w->states, w->why, sizeof(w->why));
	if (!w->status && m->n_states && m->ranks != w->ranks) {
		snprintf(w->why, sizeof(w->why), "the trainers' states in it are of %u ranks, and this job has %u",
			 m->ranks, w->ranks);
		w->status = ST_NOT_SUPPORTED;
	}
	if (!w->status)
		w->window = m->window;
	manifest_free(m);
}

/* Those of the part's ranks: the file has all of the job's. */
static enum status take_base(struct part *p, struct base_work *w)
{
	struct part_states *s = p->states;
	enum status st = ST_OK;
	for (uint32_t i = 0; i < w->states.n && !st; i++) {
		const struct trainer_state *t = &w->states.state[i];
		const uint32_t rank = part_local(job_part(p->job), t->rank);
		if (rank == PART_NO_RANK)
			continue;
		const size_t before = rank_states_bytes(s->all);
		if (!part_states_charge(p, t->n)) {
			snprintf(w->why, sizeof(w->why),
				 "the user's part of %zu MiB for states and tensor sets is full",
				 p->node->collected.most >> 20);
			return ST_RESOURCE_EXHAUSTED;
		}
		st = rank_states_restore(s->all, rank, w->window, t->data, t->n);
		if (rank_states_bytes(s->all) == before)
			part_states_settle(p);
	}
	return st;
}

static void on_base_read(struct rpc_work *work)
{
	struct base_work *w = (struct base_work *)work;
	struct part *p = w->p;
	struct part_states *s = p->states;
	if (!w->status)
		w->status = take_base(p, w);
	s->base = w->status ? BASE_UNREADABLE : BASE_READ;
	s->base_status = w->status;
	snprintf(s->base_why, sizeof(s->base_why), "restore_from: %.320s",
		 w->why[0] ? w->why : status_info(w->status)->text);
	trainer_states_fini(&w->states);
	free(w->spec);
	free(w);
	part_drop(p);
}

static enum status start_reading(struct part *p)
{
	struct base_work *w = calloc(1, sizeof(*w));
	if (w)
		w->spec = specification_pack(p->text, &w->n_spec);
	if (!w || !w->spec) {
		free(w);
		return ST_NO_MEMORY;
	}
	w->p = p;
	w->ranks = job_part(p->job)->world;
	p->states->base = BASE_READING;
	part_hold(p);
	rpc_pool_put_kind(p->node->pool, RPC_POOL_DISK, &w->work, p->uid, read_base, on_base_read);
	return ST_OK;
}

enum status part_states_look_at_base(struct part *p, const char **out_hint, char *why, size_t n_why)
{
	struct part_states *s = p->states;
	enum status st = ST_OK;
	if (s->base == BASE_NOT_READ && p->spec->restores)
		st = start_reading(p);
	if (!st && s->base == BASE_READING) {
		snprintf(why, n_why, "the trainers' states of the checkpoint are being read");
		st = ST_ENGINE_DOWN;
	}
	if (s->base != BASE_UNREADABLE)
		return st;
	if (s->base_status == ST_NOT_SUPPORTED)
		*out_hint = "restore it with as many ranks, or begin without these states";
	snprintf(why, n_why, "%s", s->base_why);
	return s->base_status;
}
