/* SPDX-License-Identifier: Apache-2.0 */
/* Takes and gives the trainers' own states of a part, waits for those of a checkpoint's window, and has the pool write
 * their file. For edge/methods_state.c and part_saving.c. Loop thread, but for the work in the pool. */
#include "runtime/part_states_impl.h"

#include "proto/failpoint.h"
#include "rpc/pool.h"
#include "rpc/quota.h"
#include "runtime/saving_disk.h"
#include "store/checkpoint_states.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A job has them in equal parts: a rank's must fit in one of as many as there may be. */
_Static_assert(TRAINER_STATES_MAX / PART_MAX >= TRAINER_STATE_MAX, "a rank's state would not fit");

/* for a state, after the engine's files are on the disk: a trainer puts it at once when its window has opened */
#define WAIT_NS (INT64_C(10) * 1000000000)

static struct part_states *states_of(struct part *p)
{
	struct part_states *s = p->states ? p->states : calloc(1, sizeof(*s));
	if (!s || s->all)
		return s;
	s->all = rank_states_new(p->spec->ranks,
				 (struct rank_states_limits){ TRAINER_STATE_MAX, TRAINER_STATES_MAX / p->n_parts,
							      p->n_parts > 1 ? "this part's ranks" : "all ranks" });
	if (!s->all) {
		free(s);
		return NULL;
	}
	p->states = s;
	if (p->save && p->save->state == PART_SAVE_WRITING)
		rank_states_capture(s->all, p->save->wanted.window);
	return s;
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

enum status part_put_state(struct part *p, const struct state_portion *given, uint64_t *out_received,
			   const char **out_hint, char *why, size_t n_why)
{
	struct state_portion here = *given, *q = &here;
	here.called = given->rank;
	here.rank = part_local(job_part(p->job), given->rank);
	enum status st = check_job(p, out_hint, why, n_why);
	if (!st)
		st = check_window(p, given, why, n_why);
	struct part_states *s = st ? NULL : states_of(p);
	if (st || !s)
		return st ? st : ST_NO_MEMORY;
	*out_hint = "save less: what can be made again, or the same on all ranks, need not be in it";
	if (q->total <= TRAINER_STATE_MAX && !part_states_charge(p, rank_states_need(s->all, q))) {
		snprintf(why, n_why,
			 "rank %u: the states and tensor sets of this user's jobs would take more than the user's part "
			 "of %zu MiB",
			 q->called, p->node->collected.most >> 20);
		*out_hint = "end other jobs, save less, or raise limits.request_memory";
		return ST_RESOURCE_EXHAUSTED;
	}
	st = rank_states_put(s->all, q, out_received, why, n_why);
	if (st != ST_RESOURCE_EXHAUSTED)
		*out_hint = NULL;
	part_states_settle(p);
	return st; /* a checkpoint that waits for it is looked at with the next tick: that takes all ranks' time */
}

enum status part_get_state(struct part *p, uint32_t rank, struct rank_state *out, const char **out_hint, char *why,
			   size_t n_why)
{
	*out = (struct rank_state){ 0 };
	enum status st = check_job(p, out_hint, why, n_why);
	struct part_states *s = st ? NULL : states_of(p);
	if (st || !s)
		return st ? st : ST_NO_MEMORY;
	if (rank_states_get(s->all, part_local(job_part(p->job), rank), out))
		return ST_OK;
	return part_states_look_at_base(p, out_hint, why, n_why);
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
	bool alone; /* `made` is yet to be made */
	char path[SAVE_MAX_PATH + 1];
	struct trainer_state *state;
	uint32_t n;
	struct checkpoint_file file;
	enum status status;
	char why[160];
};

/* What is there is of an earlier try under this name, which is over: of a gaccd that has died, perhaps. */
static enum status make_own_dir(struct file_work *w)
{
	int fd;
	enum status st = access(w->path, F_OK) == 0 ? checkpoint_remove(w->path, w->why, sizeof(w->why)) : ST_OK;
	if (!st)
		st = checkpoint_make_dir(w->path, &w->made, &fd, w->why, sizeof(w->why));
	if (!st)
		close(fd);
	return st;
}

static void write_file(struct rpc_work *work)
{
	struct file_work *w = (struct file_work *)work;
	w->status = FAILPOINT_ERROR(gaccd_save_states_before);
	if (!w->status && w->alone)
		w->status = make_own_dir(w);
	if (!w->status)
		w->status =
			checkpoint_write_states(w->path, &w->made, w->state, w->n, &w->file, w->why, sizeof(w->why));
	FAILPOINT(gaccd_save_states_written);
}

/* The checkpoint goes on with what is in `is`. */
static void conclude(struct part *p)
{
	struct part_states *s = p->states;
	s->waiting = s->writing = false;
	rank_states_release(s->all);
	part_states_settle(p);
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
		is->dir = (struct engine_dir){ w->made.dev, w->made.ino };
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
			out[n++] = (struct trainer_state){ part_global(job_part(p->job), i), is.n, is.data };
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
		w->alone = s->alone;
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

static bool can_come(const void *ctx, uint32_t i)
{
	const struct part *p = ctx;
	const uint32_t rank = part_global(job_part(p->job), i);
	return job_rank_is_there(p->job, rank) && !job_rank_has_begun(p->job, rank) &&
	       job_window(p->job) == p->states->is.window;
}

/* An older coordinator takes no notice of other parts' states, so a checkpoint would have some of the window's. */
static void tell_uncollected(struct part *p, uint64_t window)
{
	char text[200];
	struct rank_state is;
	bool any = false;
	for (uint32_t i = 0; i < p->spec->ranks; i++)
		any |= rank_states_captured(p->states->all, i, &is);
	snprintf(text, sizeof(text),
		 "the checkpoint of window %llu is without the trainers' states of part %u: the coordinator's gaccd is "
		 "of "
		 "a version that does not collect those of several parts",
		 (unsigned long long)window, p->number);
	if (any)
		p->ports.event(p, true, "StatesMissing", -1, text);
}

static void wait_for_states(struct part *p, uint64_t command, const struct part_saved *is, const char *path)
{
	struct part_states *s = p->states;
	s->waiting = true;
	s->command = command;
	s->is = *is;
	snprintf(s->path, sizeof(s->path), "%s", path);
	s->until_ns = node_now().mono_ns + WAIT_NS;
}

bool part_states_take(struct part *p, uint64_t command, const struct part_saved *is, const struct save *wanted)
{
	struct part_states *s = p->states;
	if (!s || is->status || s->writing)
		return false;
	if (p->n_parts > 1 && !wanted->states) {
		tell_uncollected(p, wanted->window);
		rank_states_release(s->all);
		part_states_settle(p);
		return false;
	}
	s->alone = false;
	wait_for_states(p, command, is, wanted->path);
	return true;
}

bool part_states_begin_alone(struct part *p, uint64_t command, const struct save *wanted)
{
	const struct part_saved is = { .status = ST_OK, .window = wanted->window };
	struct part_states *s = states_of(p);
	if (!s)
		return false;
	rank_states_capture(s->all, wanted->window);
	s->alone = true;
	wait_for_states(p, command, &is, wanted->path);
	return true;
}

static void tell_missing(struct part *p, uint32_t n, uint32_t first)
{
	char text[200];
	snprintf(text, sizeof(text),
		 "the checkpoint of window %llu is without the trainers' states of %u rank%s, the first is rank %u: "
		 "they have put none for it within 10 s",
		 (unsigned long long)p->states->is.window, n, n == 1 ? "" : "s", part_global(job_part(p->job), first));
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
	if (p->states && p->states->waiting && !p->states->alone)
		conclude(p);
}
