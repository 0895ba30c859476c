/* SPDX-License-Identifier: Apache-2.0 */
/* Takes and gives the trainers' own states of a part, waits for those of a checkpoint's window, and has the pool write
 * and read their file. For edge/methods_state.c and part_saving.c. Loop thread, but for the work in the pool. */
#include "runtime/part_states.h"

#include "gacc/v1/common.pb-c.h"
#include "proto/bytes.h"
#include "rpc/pool.h"
#include "rpc/quota.h"
#include "runtime/saving_disk.h"
#include "store/checkpoint_states.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* for a state, after the engine's files are on the disk: a trainer puts it at once when its window has opened */
#define WAIT_NS (INT64_C(10) * 1000000000)

enum base { BASE_NOT_READ, BASE_READING, BASE_READ, BASE_UNREADABLE };

struct part_states {
	struct rank_states *all;
	size_t charged; /* of node->collected */
	/* of the checkpoint that the job began with */
	enum base base;
	enum status base_status;
	char base_why[400];
	/* of a checkpoint under way, whose engine has done its part */
	bool waiting, writing;
	uint64_t command;
	struct part_saved is;
	char path[SAVE_MAX_PATH + 1];
	int64_t until_ns;
};

static struct part_states *states_of(struct part *p)
{
	struct part_states *s = p->states ? p->states : calloc(1, sizeof(*s));
	if (!s || s->all)
		return s;
	s->all = rank_states_new(p->spec->ranks, (struct rank_states_limits){ TRAINER_STATE_MAX, TRAINER_STATES_MAX });
	if (!s->all) {
		free(s);
		return NULL;
	}
	p->states = s;
	if (p->save && p->save->state == PART_SAVE_WRITING)
		rank_states_capture(s->all, p->save->wanted.window);
	return s;
}

/* ---- what the user is charged ---- */

static bool charge(struct part *p, size_t more)
{
	if (!rpc_quota_take(&p->node->collected, p->uid, more))
		return false;
	p->states->charged += more;
	return true;
}

/* Gives back what is no longer kept. */
static void settle(struct part *p)
{
	struct part_states *s = p->states;
	const size_t is = rank_states_bytes(s->all);
	if (s->charged <= is)
		return;
	rpc_quota_give(&p->node->collected, p->uid, s->charged - is);
	s->charged = is;
}

void part_states_free(struct part *p)
{
	struct part_states *s = p->states;
	if (!s)
		return;
	rpc_quota_give(&p->node->collected, p->uid, s->charged);
	rank_states_free(s->all);
	free(s);
	p->states = NULL;
}

/* ---- from the trainers ---- */

static enum status check_job(const struct part *p, const char **out_hint, char *why, size_t n_why)
{
	if (p->spec->optim.type == OPTIM_CLIENT) {
		snprintf(why, n_why, "job %llu: with optimizer client the trainers hold the parameters and save them",
			 (unsigned long long)p->id);
		*out_hint = "save the trainer's state with them";
		return ST_NOT_SUPPORTED;
	}
	if (p->n_parts > 1) {
		snprintf(why, n_why,
			 "job %llu has %u parts: trainers' own states are kept and saved of jobs with one part only",
			 (unsigned long long)p->id, p->n_parts);
		*out_hint = "have each rank save its state itself, under the job's step";
		return ST_NOT_SUPPORTED;
	}
	return ST_OK;
}

static enum status check_window(const struct part *p, const struct state_portion *q, char *why, size_t n_why)
{
	const unsigned long long open = job_window(p->job), named = q->window;
	if (named != open) {
		snprintf(why, n_why, "a state belongs to the open window, which is %llu, not %llu", open, named);
		return named > open ? ST_NOT_CURRENT_WINDOW : ST_WINDOW_CLOSED;
	}
	job_look_at_mailboxes(p->job);
	if (job_rank_has_begun(p->job, q->rank)) {
		snprintf(why, n_why,
			 "rank %u has given something to window %llu: a state is that before its first push", q->rank,
			 open);
		return ST_WINDOW_BEGUN;
	}
	return ST_OK;
}

enum status part_put_state(struct part *p, const struct state_portion *q, uint64_t *out_received, const char **out_hint,
			   char *why, size_t n_why)
{
	enum status st = check_job(p, out_hint, why, n_why);
	if (!st)
		st = check_window(p, q, why, n_why);
	struct part_states *s = st ? NULL : states_of(p);
	if (st || !s)
		return st ? st : ST_NO_MEMORY;
	*out_hint = "save less: what can be made again, or the same on all ranks, need not be in it";
	if (q->total <= TRAINER_STATE_MAX && !charge(p, rank_states_need(s->all, q))) {
		snprintf(why, n_why,
			 "rank %u: the states and tensor sets of this user's jobs would take more than the user's part "
			 "of %zu MiB",
			 q->rank, p->node->collected.most >> 20);
		*out_hint = "end other jobs, save less, or raise limits.request_memory";
		return ST_RESOURCE_EXHAUSTED;
	}
	st = rank_states_put(s->all, q, out_received, why, n_why);
	if (st != ST_RESOURCE_EXHAUSTED)
		*out_hint = NULL;
	settle(p);
	return st; /* a checkpoint that waits for it is looked at with the next tick: that takes all ranks' time */
}

/* ---- the checkpoint that the job began with ---- */

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

static enum status take_base(struct part *p, struct base_work *w)
{
	struct part_states *s = p->states;
	enum status st = ST_OK;
	for (uint32_t i = 0; i < w->states.n && !st; i++) {
		const struct trainer_state *t = &w->states.state[i];
		const size_t before = rank_states_bytes(s->all);
		if (!charge(p, t->n)) {
			snprintf(w->why, sizeof(w->why),
				 "the user's part of %zu MiB for states and tensor sets is full",
				 p->node->collected.most >> 20);
			return ST_RESOURCE_EXHAUSTED;
		}
		st = rank_states_restore(s->all, t->rank, w->window, t->data, t->n);
		if (rank_states_bytes(s->all) == before)
			settle(p);
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
	w->ranks = p->spec->ranks;
	p->states->base = BASE_READING;
	part_hold(p);
	rpc_pool_put_kind(p->node->pool, RPC_POOL_DISK, &w->work, p->uid, read_base, on_base_read);
	return ST_OK;
}

/* What there is to say of a rank that has put none. */
static enum status look_at_base(struct part *p, const char **out_hint, char *why, size_t n_why)
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

enum status part_get_state(struct part *p, uint32_t rank, struct rank_state *out, const char **out_hint, char *why,
			   size_t n_why)
{
	*out = (struct rank_state){ 0 };
	enum status st = check_job(p, out_hint, why, n_why);
	struct part_states *s = st ? NULL : states_of(p);
	if (st || !s)
		return st ? st : ST_NO_MEMORY;
	return rank_states_get(s->all, rank, out) ? ST_OK : look_at_base(p, out_hint, why, n_why);
}

/* ---- a checkpoint ---- */

bool part_states_ready(const struct part *p)
{
	return !p->states || !p->states->writing;
}

void part_states_begin(struct part *p, uint64_t window)
{
	if (p->states)
		rank_states_capture(p->states->all, window);
}

struct file_work {
	struct rpc_work work;
	struct part *p;
	struct checkpoint_dir made;
	char path[SAVE_MAX_PATH + 1];
	struct trainer_state *state;
	uint32_t n;
	struct checkpoint_file file;
	enum status status;
	char why[160];
};

static void write_file(struct rpc_work *work)
{
	struct file_work *w = (struct file_work *)work;
	w->status = checkpoint_write_states(w->path, &w->made, w->state, w->n, &w->file, w->why, sizeof(w->why));
}

/* The checkpoint goes on with what is in `is`. */
static void conclude(struct part *p)
{
	struct part_states *s = p->states;
	s->waiting = s->writing = false;
	rank_states_release(s->all);
	settle(p);
	part_saving_written(p, s->command, &s->is);
}

static void fail(struct part *p, enum status st, const char *why)
{
	struct part_states *s = p->states;
	s->is.status = st;
	snprintf(s->is.text, sizeof(s->is.text), "%s", *why ? why : status_info(st)->text);
}

static void on_written(struct rpc_work *work)
{
	struct file_work *w = (struct file_work *)work;
	struct part *p = w->p;
	struct part_saved *is = &p->states->is;
	if (w->status) {
		fail(p, w->status, w->why);
	} else {
		is->n_states = w->n;
		is->states.bytes = w->file.bytes;
		memcpy(is->states.sha256, w->file.sha256, sizeof(is->states.sha256));
	}
	free(w->state);
	free(w);
	conclude(p);
	part_drop(p);
}

static uint32_t list_states(const struct part *p, struct trainer_state *out)
{
	struct rank_state is;
	uint32_t n = 0;
	for (uint32_t i = 0; i < p->spec->ranks; i++)
		if (rank_states_captured(p->states->all, i, &is))
			out[n++] = (struct trainer_state){ i, is.n, is.data };
	return n;
}

/* They stay as they are, whatever is put meanwhile. */
static void start_writing(struct part *p)
{
	struct part_states *s = p->states;
	struct file_work *w = calloc(1, sizeof(*w));
	s->waiting = false;
	if (w)
		w->state = calloc(p->spec->ranks, sizeof(*w->state));
	if (w && w->state)
		w->n = list_states(p, w->state);
	if (w && w->n) {
		w->p = p;
		w->made = (struct checkpoint_dir){ s->is.dir.dev, s->is.dir.ino };
		memcpy(w->path, s->path, sizeof(w->path));
		s->writing = true;
		part_hold(p);
		rpc_pool_put_kind(p->node->pool, RPC_POOL_DISK, &w->work, p->uid, write_file, on_written);
		return;
	}
	if (!w || !w->state)
		fail(p, ST_NO_MEMORY, "");
	if (w)
		free(w->state);
	free(w);
	conclude(p);
}

static bool can_come(const void *ctx, uint32_t rank)
{
	const struct part *p = ctx;
	return job_rank_is_there(p->job, rank) && !job_rank_has_begun(p->job, rank) &&
	       job_window(p->job) == p->states->is.window;
}

bool part_states_take(struct part *p, uint64_t command, const struct part_saved *is, const char *path)
{
	struct part_states *s = p->states;
	if (!s || is->status || s->writing)
		return false;
	s->waiting = true;
	s->command = command;
	s->is = *is;
	snprintf(s->path, sizeof(s->path), "%s", path);
	s->until_ns = node_now().mono_ns + WAIT_NS;
	return true;
}

static void tell_missing(struct part *p, uint32_t n, uint32_t first)
{
	char text[200];
	snprintf(text, sizeof(text),
		 "the checkpoint of window %llu is without the trainers' states of %u rank%s, the first is rank %u: "
		 "they "
		 "have put none for it within 10 s",
		 (unsigned long long)p->states->is.window, n, n == 1 ? "" : "s", first);
	p->ports.event(p, true, "StatesMissing", -1, text);
}

void part_states_look(struct part *p)
{
	struct part_states *s = p->states;
	uint32_t first = 0;
	if (!s || !s->waiting)
		return;
	if (p->save->state != PART_SAVE_WRITING) { /* the coordinator wants another one by now */
		conclude(p);
		return;
	}
	const uint32_t n = rank_states_awaited(s->all, can_come, p, &first);
	if (n && node_now().mono_ns < s->until_ns)
		return;
	if (n)
		tell_missing(p, n, first);
	start_writing(p);
}

void part_states_on_engine_lost(struct part *p)
{
	if (p->states && p->states->waiting)
		conclude(p);
}
