/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of a running job: takes requests, asks the nodes of the parts for the files until they have answered,
 * writes the record to the journal, answers the calls. The ports of control/saver.h, except those of the disk. For the
 * checkpoint methods, the links and the coordinator's ports. Loop thread. */
#include "edge/checkpoints_impl.h"

#include "cluster/save_message.h"
#include "edge/hosted_journal.h"
#include "edge/state_share.h"
#include "gacc/v1/common.pb-c.h"
#include "runtime/saving_disk.h"
#include "store/checkpoint_states.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the machine's ports (those of the disk: checkpoints_disk.c) ---- */

#define ASK_AGAIN_NS (INT64_C(1000) * 1000000) /* a wish that no node has answered is repeated */

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
	uint64_t bytes = s->save_bytes + (w->inside_window ? h->n_parts * s->carry_bytes : 0);
	for (uint32_t i = 1; i < h->n_parts; i++)
		bytes += s->share_bytes[i];
	enum status st = state_share_admit(h, s->dir, bytes, why, sizeof(why));
	struct refused *r = st == ST_RESOURCE_EXHAUSTED ? malloc(sizeof(*r)) : NULL;
	if (!r)
		return false;
	*r = (struct refused){ .d = h->d, .job = h->id };
	saving_set_why(h, why);
	s->refused = true;
	daemon_post(h->d, &r->posted, on_refused);
	return true;
}

/* What is equal in all parts comes from the first. */
static void ask_part(struct hosted *h, uint32_t part)
{
	const struct saving *s = h->saving;
	struct save asked = s->asked;
	size_t n = 0;
	asked.part = part;
	asked.own_only = part > 0;
	asked.states = true;
	asked.states_alone = part >= s->answers.n_files;
	checkpoint_part_path(asked.path, s->asked.path, part);
	void *bytes = save_pack(&asked, &n);
	links_send_down(h->d, h->part[part].node, LINK_SAVE, h->id, part, bytes, n, NULL);
}

/* To the nodes of the parts; again, until they have answered. */
static void ask(struct hosted *h)
{
	struct saving *s = h->saving;
	s->sent_ns = daemon_now(h->d).mono_ns;
	for (uint32_t i = 0; i < s->answers.n; i++)
		if (save_answers_awaits(&s->answers, i))
			ask_part(h, i);
}

/* The state before `window` is to be saved. */
static void begin(struct hosted *h, const struct save_want *w, uint64_t window)
{
	struct saving *s = h->saving;
	s->asked = (struct save){ .job_id = h->id,
				  .epoch = coord_epoch(h->coord),
				  .term = h->d->term,
				  .number = ++s->n_asked,
				  .window = window,
				  .inside_window = w->inside_window };
	checkpoint_partial_path(s->asked.path, s->dir, h->uuid, w->id);
	const uint32_t n_files = w->inside_window || spec_is_sharded(h->spec) ? h->n_parts : 1;
	const bool have_states = h->spec->optim.type != OPTIM_CLIENT;
	save_answers_begin(&s->answers, have_states ? h->n_parts : n_files, n_files, spec_shards(h->spec), window);
	s->have_before = s->have_last && s->last.window + 1 == window;
	s->before = s->last;
	s->n_updates =
		updates_beyond_spec(coord_updates(h->coord), *coord_values(h->coord), h->spec, window, s->update);
	ask(h);
}

static bool on_begin(void *ctx, const struct save_want *w)
{
	struct hosted *h = ctx;
	struct saving *s = h->saving;
	uint64_t window;
	if (!s->dir[0] || !h->part[0].wanted || !coord_window_at_parts(h->coord, &window))
		return false;
	if (!s->answers.part)
		s->answers.part = calloc(h->n_parts, sizeof(*s->answers.part));
	if (!s->answers.part)
		return false;
	struct saved *k = saved_find(&h->saved, w->id);
	if (!k)
		k = saved_add(&h->saved, w->id, w->request_id);
	if (!k)
		return false;
	k->started_unix_ns = daemon_now(h->d).unix_ns;
	k->window = window;
	s->asked.number = 0; /* an answer to the one before is too late */
	if (!refuse(h, w))
		begin(h, w, window);
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

static void tell_complete(const struct hosted *h, const struct saved *k, char *text, size_t n)
{
	const uint32_t n_states = h->saving->n_states;
	int at = snprintf(text, n, "checkpoint %llu of step %llu is complete: %.300s, %llu bytes",
			  (unsigned long long)k->id, (unsigned long long)k->applied_step, k->path ? k->path : "",
			  (unsigned long long)k->bytes);
	if (n_states)
		snprintf(text + at, n - (size_t)at, ", with the state of %u of %u trainers", n_states, h->spec->ranks);
}

static void on_ended(void *ctx, const struct save_want *want, enum status st)
{
	struct hosted *h = ctx;
	struct saved *k = saved_find(&h->saved, want->id);
	char text[480];
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
		tell_complete(h, k, text, sizeof(text));
	if (!st)
		save_answers_on_complete(&h->saving->answers);
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

_Static_assert(SAVE_FILE_MODEL == CHECKPOINT_MODEL && SAVE_FILE_OPTIMIZER == CHECKPOINT_OPTIMIZER, "one numbering");

/* What came of it at the parts; why, where they have failed for another reason than a death. */
static void judge(struct hosted *h, struct save_verdict *v)
{
	const struct saving *s = h->saving;
	char why[240];
	save_answers_judge(&s->answers, v);
	if (!v->status || v->status == ST_ENGINE_DOWN)
		return;
	if (v->part < 0 || s->answers.n == 1)
		snprintf(why, sizeof(why), "%s", v->why);
	else
		hosted_part_text(h, (uint32_t)v->part, v->why, why, sizeof(why));
	saving_set_why(h, why);
}

/* What trainers put is not known when a checkpoint begins: the user's share is asked for it when it is there. */
static enum status admit_states(struct hosted *h)
{
	const struct saving *s = h->saving;
	const uint64_t bytes = save_answers_state_bytes(&s->answers);
	char why[320];
	enum status st = bytes ? state_share_admit(h, s->dir, bytes, why, sizeof(why)) : ST_OK;
	if (st)
		saving_set_why(h, why);
	return st;
}

static void tell_lacking(struct hosted *h)
{
	char why[240];
	for (uint32_t i = 0; i < h->saving->answers.n; i++)
		if (save_answers_lacks(&h->saving->answers, i, why, sizeof(why)))
			hosted_event(h, true, "StatesMissing", -1, why);
}

/* The files are there, or will not be. */
static void take_answers(struct hosted *h)
{
	struct saving *s = h->saving;
	struct save_verdict v;
	judge(h, &v);
	s->asked.number = 0;
	if (!v.status && !v.passed)
		v.status = admit_states(h);
	if (!v.status && !v.passed)
		tell_lacking(h);
	if (v.status == ST_ENGINE_DOWN)
		saver_on_engine_lost(&s->saver);
	else if (!v.status && v.passed)
		saver_on_passed(&s->saver, v.wrote);
	else
		saver_on_written(&s->saver, v.status);
}

static void take_answer(struct hosted *h, const struct part_saved *is)
{
	struct saving *s = h->saving;
	const struct now now = daemon_now(h->d);
	save_answers_take(&s->answers, is, now);
	if (save_answers_are_in(&s->answers, now))
		take_answers(h);
}

void saving_part_lost(struct hosted *h, uint32_t part)
{
	struct saving *s = h->saving;
	struct part_saved is = { .part = part, .status = ST_ENGINE_DOWN };
	if (s && part < h->n_parts)
		save_answers_on_lost(&s->answers, part);
	if (!s || !s->asked.number || !save_answers_awaits(&s->answers, part))
		return;
	snprintf(is.text, sizeof(is.text), "the gaccd of its node has started anew");
	take_answer(h, &is);
}

void saving_take_saved(struct daemon *d, const struct link_message *m)
{
	struct hosted *h = hosted_of_message(d, m);
	struct part_saved is;
	char why[200];
	if (!h || !h->saving)
		return; /* it is over */
	enum status st = saved_unpack(m->bytes, m->n, h->spec->ranks, &is, why, sizeof(why));
	const struct saving *s = h->saving;
	const struct save *asked = &s->asked;
	if (st == ST_VERSION_SKEW)
		links_refuse(m, why);
	if (!asked->number || !save_answers_awaits(&s->answers, m->part))
		return;		     /* it is repeated, or of an earlier one */
	if (st == ST_VERSION_SKEW) { /* repeated, it would be the same */
		is = (struct part_saved){ .part = m->part, .status = st };
		snprintf(is.text, sizeof(is.text), "%.*s", (int)sizeof(is.text) - 1, why);
		take_answer(h, &is);
		return;
	}
	if (st || is.job_id != h->id || is.epoch != asked->epoch || is.part != m->part || is.term != asked->term ||
	    is.number != asked->number)
		return;
	take_answer(h, &is);
}

/* Of the journal: the newest one that has no sum, and so is nothing but the state after a step. */
static uint64_t saved_step(const struct hosted *h)
{
	uint64_t step = 0;
	for (size_t i = 0; i < h->saved.n; i++)
		if (h->saved.saved[i].state == SAVED_COMPLETE && !h->saved.saved[i].carried)
			step = h->saved.saved[i].applied_step;
	return step;
}

static void start(struct hosted *h)
{
	struct saving *s = h->saving;
	uint64_t last = h->saved.n ? h->saved.saved[h->saved.n - 1].id : 0;
	if (s->saver.state == SAVER_NEW)
		saver_start(&s->saver, last, saved_step(h));
}

void saving_on_placed(struct hosted *h, uint32_t part, uint64_t save_bytes, uint64_t carry_bytes)
{
	struct saving *s = h->saving;
	if (!save_bytes)
		return; /* it has no memory yet */
	if (part) {
		s->share_bytes[part] = spec_is_sharded(h->spec) ? save_bytes : 0;
		return;
	}
	s->save_bytes = save_bytes;
	s->carry_bytes = carry_bytes;
	start(h);
	saver_kick(&s->saver);
}

/* What a job began with is on a disk already. */
static bool is_base(const struct hosted *h, const struct commit *k)
{
	return h->has_base && k->window + 1 == h->base_window;
}

void saving_look(struct hosted *h)
{
	struct saving *s = h->saving;
	const struct commit *k = coord_last_commit(h->coord);
	uint64_t window;
	bool fails = coord_phase(h->coord) >= COORD_ENDING && coord_end_status(h->coord);
	if (fails || !coord_window_at_parts(h->coord, &window))
		return;
	start(h);
	if (!k || k->window + 1 != window || (s->have_last && s->last.window == k->window))
		return;
	s->last = *k;
	s->have_last = true;
	if (!is_base(h, k))
		saver_on_boundary(&s->saver, k->applied_step, k->outcome == OUTCOME_APPLIED);
}

void saving_tick(struct hosted *h, struct now now)
{
	struct saving *s = h->saving;
	if (s->saver.state == SAVER_SWEEPING && !s->n_working)
		saving_sweep(h);
	saving_look(h);
	saver_kick(&s->saver);
	if (s->saver.state != SAVER_WRITING || !s->asked.number)
		return;
	if (save_answers_are_in(&s->answers, now))
		take_answers(h);
	else if (now.mono_ns - s->sent_ns >= ASK_AGAIN_NS)
		ask(h);
}

bool saving_hold_end(struct hosted *h, enum status end, const char *reason)
{
	struct saving *s = h->saving;
	s->end = end;
	snprintf(s->end_reason, sizeof(s->end_reason), "%s", reason);
	saving_look(h);	    /* the last window may be due */
	s->end_held = true; /* before: end_ready may come at once */
	s->end_held = saver_end(&s->saver, end == ST_OK);
	return s->end_held;
}

bool saving_ready(const struct hosted *h)
{
	return h->saving && h->saving->saver.state != SAVER_NEW;
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
	to->state_bytes = checkpoint_states_bytes(k->path);
	to->started_unix_ns = k->started_unix_ns;
	to->ended_unix_ns = k->ended_unix_ns;
	return to->path ? ST_OK : ST_NO_MEMORY;
}

enum status saving_from_journal(struct hosted *h)
{
	for (uint32_t i = 0; h->saving && i < PART_MAX; i++) /* who was restarted meanwhile is not known */
		save_answers_on_lost(&h->saving->answers, i);
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
	free(s->answers.part);
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
