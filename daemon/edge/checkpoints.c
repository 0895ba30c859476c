/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of a running job: takes requests, sends the engine its command, writes the record to the journal,
 * answers the calls. The ports of control/saver.h, except those of the disk. For the checkpoint methods and
 * part_ports.c. Loop thread. */
#include "edge/checkpoints_impl.h"

#include "edge/hosted_journal.h"
#include "edge/state_share.h"
#include "gacc/v1/common.pb-c.h"
#include "runtime/saving_disk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the machine's ports (those of the disk: checkpoints_disk.c) ---- */

/* How many bytes the engine would write. */
static uint64_t bytes_of(const struct hosted *h, bool inside_window)
{
	uint64_t bytes = 0;
	const struct part *p = hosted_part(h);
	for (int i = 0; p && p->mem.wanted && i < p->mem.n; i++) {
		uint32_t role = p->mem.wanted[i].role;
		bool state = role == SEG_PARAMS || role == SEG_MASTER || role == SEG_STATE0 || role == SEG_STATE1;
		bytes += state || (inside_window && role == SEG_ACCUM0) ? p->mem.wanted[i].bytes : 0;
	}
	return bytes;
}

struct refused {
	struct posted posted; /* first */
	struct daemon *d;
	uint64_t job;
};

/* Runs after the call that began it has returned. */
static void on_refused(struct posted *p)
{
	struct refused *r = (struct refused *)p;
	struct hosted *h = hosted_find(r->d, r->job);
	if (h && h->saving && h->saving->refused) {
		h->saving->refused = false;
		saver_on_written(&h->saving->saver, ST_RESOURCE_EXHAUSTED);
	}
	free(r);
}

/* Refuses a checkpoint for which there is no room, or that would exceed the user's share. false: it may begin. */
static bool refuse(struct hosted *h, const struct save_want *w)
{
	struct saving *s = h->saving;
	char why[320];
	enum status st = state_share_admit(h, s->dir, bytes_of(h, w->inside_window), why, sizeof(why));
	struct refused *r = st == ST_RESOURCE_EXHAUSTED ? malloc(sizeof(*r)) : NULL;
	if (!r)
		return false;
	*r = (struct refused){ .d = h->d, .job = h->id };
	saving_set_why(h, why);
	s->refused = true;
	daemon_post(h->d, &r->posted, on_refused);
	return true;
}

static bool on_begin(void *ctx, const struct save_want *w)
{
	struct hosted *h = ctx;
	struct saving *s = h->saving;
	char path[CHECKPOINT_MAX_PATH];
	struct part *part = hosted_part(h);
	if (!part || !s->dir[0] || !job_can_checkpoint(part->job))
		return false;
	struct saved *k = saved_find(&h->saved, w->id);
	if (!k)
		k = saved_add(&h->saved, w->id, w->request_id);
	if (!k)
		return false;
	k->started_unix_ns = daemon_now(h->d).unix_ns;
	if (refuse(h, w)) {
		saving_answer_calls(h, k, false);
		return true;
	}
	checkpoint_partial_path(path, s->dir, h->uuid, w->id);
	struct engine_command c = { .op = ENGINE_CHECKPOINT,
				    .id = w->id,
				    .inside_window = w->inside_window,
				    .n_present = (uint32_t)strlen(path) };
	if (!part_engine_send(part, h->id, &c, path))
		return false;
	s->command = w->id;
	const struct commit *last = job_last_commit(part->job);
	s->have_last = last != NULL;
	if (last)
		s->last = *last;
	k->window = job_window(part->job);
	s->n_updates =
		updates_beyond_spec(coord_updates(h->coord), *coord_values(h->coord), h->spec, k->window, s->update);
	saving_answer_calls(h, k, false);
	return true;
}

static void on_recorded(void *arg, enum status st)
{
	struct hosted *h = arg;
	daemon_check_store(st);
	hosted_drop(h);
	saver_on_recorded(&h->saving->saver, st);
}

static void on_record(void *ctx, const struct save_want *want)
{
	struct hosted *h = ctx;
	struct saving *s = h->saving;
	struct saved *k = saved_find(&h->saved, want->id);
	k->ended_unix_ns = daemon_now(h->d).unix_ns;
	struct journal_record r = { .kind = JOURNAL_CHECKPOINT,
				    .checkpoint = { .job = h->id,
						    .id = k->id,
						    .path = k->path ? k->path : "",
						    .sha256 = { s->sha256, SHA256_BYTES },
						    .window = k->window,
						    .applied_step = k->applied_step,
						    .carried = k->carried,
						    .bytes = k->bytes,
						    .started_unix_ns = k->started_unix_ns,
						    .ended_unix_ns = k->ended_unix_ns } };
	memcpy(r.checkpoint.request_id, want->request_id, 16);
	if (persist_put(h->d->persist, &r, on_recorded, h))
		saver_on_recorded(&s->saver, ST_NO_MEMORY);
	else
		hosted_hold(h);
}

static void on_ended(void *ctx, const struct save_want *want, enum status st)
{
	struct hosted *h = ctx;
	struct saved *k = saved_find(&h->saved, want->id);
	char text[400];
	if (!k)
		k = saved_add(&h->saved, want->id, want->request_id);
	if (!k)
		return;
	k->state = st ? SAVED_FAILED : SAVED_COMPLETE;
	if (st)
		k->ended_unix_ns = daemon_now(h->d).unix_ns;
	if (st)
		saved_set_text(&k->path, ""); /* it was to have this name */
	if (st && !k->message)
		saved_set_text(&k->message, status_info(st)->text);
	if (st)
		snprintf(text, sizeof(text), "checkpoint %llu failed: %.300s", (unsigned long long)k->id,
			 k->message ? k->message : "");
	else
		snprintf(text, sizeof(text), "checkpoint %llu of step %llu is complete: %.300s, %llu bytes",
			 (unsigned long long)k->id, (unsigned long long)k->applied_step, k->path ? k->path : "",
			 (unsigned long long)k->bytes);
	hosted_event(h, st != ST_OK, st ? "CheckpointFailed" : "CheckpointSaved", -1, text);
	saving_answer_calls(h, k, true);
	if (st)
		saved_forget_failures(&h->saved, want->id);
}

static void on_end_ready(void *ctx)
{
	struct hosted *h = ctx;
	if (h->saving->end_held)
		hosted_write_end(h, h->saving->end, h->saving->end_reason);
}

/* ---- events ---- */

void saving_on_answer(struct hosted *h, const struct engine_answer *a)
{
	struct saving *s = h->saving;
	enum status st = (enum status)a->status;
	if (a->id != s->command)
		return;
	s->command = 0;
	s->answer = *a;
	if (!st && s->have_last && s->last.window + 1 != a->window)
		st = ST_INTERNAL; /* it may begin only when no COMMIT is on its way */
	if (st)
		saving_set_why(h, a->text);
	saver_on_written(&s->saver, st);
}

void saving_on_engine_up(struct hosted *h)
{
	struct saving *s = h->saving;
	if (s->saver.state == SAVER_NEW) {
		uint64_t last = h->saved.n ? h->saved.saved[h->saved.n - 1].id : 0;
		saver_start(&s->saver, last);
	}
	saver_kick(&s->saver);
}

void saving_on_engine_down(struct hosted *h)
{
	h->saving->command = 0;
	saver_on_engine_lost(&h->saving->saver);
}

void saving_on_committed(struct hosted *h)
{
	const struct part *p = hosted_part(h);
	const struct commit *k = p ? job_last_commit(p->job) : NULL;
	if (k)
		saver_on_boundary(&h->saving->saver, k->applied_step, k->outcome == OUTCOME_APPLIED);
}

void saving_tick(struct hosted *h)
{
	struct saving *s = h->saving;
	if (s->saver.state == SAVER_SWEEPING && !s->n_working)
		saving_sweep(h);
	saver_kick(&s->saver);
	const struct part *p = hosted_part(h);
	if (s->end_held && (!p || part_engine_is_over(p)))
		saver_give_up(&s->saver, ST_ENGINE_DOWN);
}

bool saving_hold_end(struct hosted *h, enum status end, const char *reason)
{
	struct saving *s = h->saving;
	s->end = end;
	snprintf(s->end_reason, sizeof(s->end_reason), "%s", reason);
	s->end_held = true; /* before: end_ready may come at once */
	s->end_held = saver_end(&s->saver, end == ST_OK);
	return s->end_held;
}

enum status saving_request(struct hosted *h, const uint8_t request_id[16], bool inside_window)
{
	struct saving *s = h->saving;
	if (saving_of(h, request_id) || saver_find(&s->saver, request_id))
		return ST_OK;
	if (s->saver.state != SAVER_NEW && s->saver.state != SAVER_SWEEPING && !s->dir[0])
		return ST_NOT_SUPPORTED;
	return saver_request(&s->saver, request_id, inside_window);
}

/* ---- life ---- */

static enum status restore_saved(void *arg, const struct journal_checkpoint *k)
{
	if (!checkpoint_exists(k->path)) /* it was deleted, wholly or in part, and gaccd died before it recorded that */
		return ST_OK;
	struct saved *to = saved_add(arg, k->id, k->request_id);
	if (!to)
		return ST_NO_MEMORY;
	to->state = SAVED_COMPLETE;
	to->path = strdup(k->path);
	to->window = k->window;
	to->applied_step = k->applied_step;
	to->carried = k->carried;
	to->bytes = k->bytes;
	to->started_unix_ns = k->started_unix_ns;
	to->ended_unix_ns = k->ended_unix_ns;
	return to->path ? ST_OK : ST_NO_MEMORY;
}

enum status saving_from_journal(struct hosted *h)
{
	return journal_each_checkpoint(h->d->journal, h->id, restore_saved, &h->saved);
}

enum status saving_new(struct hosted *h)
{
	static const struct saver_ports ports = { .sweep = saving_sweep,
						  .begin = on_begin,
						  .seal = saving_seal,
						  .record = on_record,
						  .prune = saving_prune,
						  .discard = saving_discard,
						  .ended = on_ended,
						  .end_ready = on_end_ready };
	struct saver_ports mine = ports;
	h->saving = calloc(1, sizeof(*h->saving));
	if (!h->saving)
		return ST_NO_MEMORY;
	mine.ctx = h;
	saver_init(&h->saving->saver, h->spec->checkpoint.every_steps, h->spec->checkpoint.at_end, &mine);
	return ST_OK;
}

void saving_free(struct hosted *h)
{
	struct saving *s = h->saving;
	if (!s)
		return;
	free(s->call);
	free(s);
	h->saving = NULL;
}

bool saving_busy(const struct hosted *h)
{
	return h->saving && h->saving->n_working;
}

static enum status check_dir(const struct hosted *h, const char *path, const char *name, const char **field, char *why,
			     size_t n_why)
{
	const struct conf *c = h->d->node.conf;
	if (!*path || disk_text_allowed(c->state_dir, c->checkpoint.allowed_dirs, h->uid, path))
		return ST_OK;
	*field = name;
	snprintf(why, n_why,
		 "%s %.150s lies neither in %.60s/checkpoints nor in a directory of checkpoint.allowed_dirs", name,
		 path, c->state_dir);
	return ST_PERMISSION_DENIED;
}

enum status saving_check_dirs(const struct hosted *h, const char **field, char *why, size_t n_why)
{
	const Gacc__V1__CheckpointPolicy *c = h->text->pb->checkpoint;
	enum status st = check_dir(h, c ? c->dir : "", "checkpoint.dir", field, why, n_why);
	return st ? st : check_dir(h, h->text->pb->restore_from, "restore_from", field, why, n_why);
}
