/* SPDX-License-Identifier: Apache-2.0 */
/* Decides whether a checkpoint fits the job that is restored from it, and at which window the job begins; writes that
 * to the journal, and puts it into the job's placement. For Submit, the queue and the recovery after a restart. Loop
 * thread; restoring_read.c reads in the pool. */
#include "edge/restoring_impl.h"

#include "cluster/restore_message.h"
#include "edge/placing.h"
#include "edge/submitting.h"
#include "gacc/v1/common.pb-c.h"
#include "runtime/manifest_commit.h"
#include "runtime/manifest_updates.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- does it fit the job? ---- */

/* A sum goes on only with the coefficients and the tensors that it began with. In order of arrival a rank may have
 * gaps, in canonical order none. */
static const char *find_other_sum(const struct reading *r)
{
	const struct job_spec *is = r->h->spec, *was = &r->was;
	if (was->reduction != is->reduction || was->grad_of != is->grad_of)
		return "reduction or grad_of";
	if (was->ordering == ORDER_ARRIVAL && is->ordering == ORDER_CANONICAL)
		return "ordering";
	if (was->untouched != is->untouched)
		return "untouched";
	return r->same_frozen ? NULL : "param_groups.frozen";
}

static void tell_updates(struct hosted *h, const struct restored *b)
{
	struct values v = values_of(h->spec);
	char changes[160], text[256];
	for (uint32_t i = 0; i < b->n_updates; i++) {
		update_describe(&b->update[i], v, changes, sizeof(changes));
		update_apply(&v, &b->update[i]);
		snprintf(text, sizeof(text), "from window %llu on, as in the checkpoint's job: %s",
			 (unsigned long long)b->update[i].window, changes);
		hosted_event(h, false, "Updated", -1, text);
	}
}

static void tell_dropped(struct hosted *h, const struct job_spec *was, uint32_t set)
{
	const struct update u = { .set = set, .to = values_of(h->spec) };
	char changes[160], text[256];
	update_describe(&u, values_of(was), changes, sizeof(changes));
	snprintf(text, sizeof(text),
		 "the specification is not the checkpoint's (%s): what was updated of it there is dropped", changes);
	hosted_event(h, false, "UpdatesDropped", -1, text);
}

/* The values that were set while the checkpoint's job ran, as far as this job's specification leaves them alone. */
static enum status take_updates(struct reading *r)
{
	const struct job_spec *was = &r->was;
	struct hosted *h = r->h;
	struct restored *b = &r->base;
	const char *field, *unknown;
	char text[200];
	uint32_t n = manifest_take_updates(r->m, b->update, &unknown);
	if (unknown) {
		snprintf(r->why, sizeof(r->why), "%.200s: an update of \"%.40s\", which this gaccd does not know",
			 r->path, unknown);
		return ST_VERSION_SKEW;
	}
	if (!updates_ascend(b->update, n)) {
		snprintf(r->why, sizeof(r->why), "%.200s: its updates are not in the order of their windows", r->path);
		return ST_MALFORMED;
	}
	uint32_t dropped = updates_inherit(b->update, &n, was, h->spec);
	for (uint32_t i = 0; i < n; i++)
		if (update_check(&b->update[i], h->spec, &field, text, sizeof(text))) {
			snprintf(r->why, sizeof(r->why),
				 "restore_from: the update for window %llu in the checkpoint: %s",
				 (unsigned long long)b->update[i].window, text);
			return ST_INVALID_SPEC;
		}
	b->n_updates = n;
	if (!h->has_base)
		tell_updates(h, b);
	if (!h->has_base && dropped)
		tell_dropped(h, was, dropped);
	return ST_OK;
}

/* A job that is restored where it had completed would train one window too many before it noticed. */
static enum status check_steps(struct reading *r)
{
	uint64_t steps = r->h->spec->steps;
	if (r->h->has_base || !steps || r->m->applied_step < steps)
		return ST_OK;
	snprintf(r->why, sizeof(r->why),
		 "steps is %llu, and the checkpoint has %llu applied steps: nothing is left to do; raise steps",
		 (unsigned long long)steps, (unsigned long long)r->m->applied_step);
	return ST_INVALID_SPEC;
}

static enum status judge(struct reading *r)
{
	enum status st = check_steps(r);
	if (!st)
		st = take_updates(r);
	if (st)
		return st;
	r->other_sum = find_other_sum(r);
	r->was_dynamic = r->was.dynamic_loss_scale.enabled;
	return ST_OK;
}

/* ---- where the job begins ---- */

/* A scale that is not adapted, or was not, is the new job's. */
static struct loss_scale first_scale(const struct reading *r, const struct restored *b)
{
	const struct loss_scale_rules *rules = &r->h->spec->dynamic_loss_scale;
	return rules->enabled && r->was_dynamic && b->has_last ? b->last.next.scale
							       : loss_scale_first(rules, r->h->spec->loss_scale);
}

/* The sum goes with its shape: the same ranks and parts, micro-batches, type and loss scale; else the window begins
 * anew. */
static bool takes_carry(const struct reading *r, const struct commit *last)
{
	struct hosted *h = r->h;
	const struct manifest *m = r->m;
	char why[200] = "", text[300];
	double loss_scale = last->next.scale.scale;
	uint32_t micro_size = last->next_micro_size, was_parts = m->n_parts ? m->n_parts : 1;
	if (!m->inside_window)
		return false;
	if (m->ranks != h->spec->ranks || m->micro_size != micro_size || m->loss_scale != loss_scale ||
	    strcmp(m->accumulate_dtype, dtype_name(h->spec->accumulate_dtype)) != 0)
		snprintf(why, sizeof(why),
			 "they are of %u ranks, micro_size %u, %.8s and loss scale %g, the job has %u, %u, %s and %g",
			 m->ranks, m->micro_size, m->accumulate_dtype, m->loss_scale, h->spec->ranks, micro_size,
			 dtype_name(h->spec->accumulate_dtype), loss_scale);
	else if (was_parts != h->n_parts)
		snprintf(why, sizeof(why), "each part has a sum of its own: they are of %u part%s, the job has %u",
			 was_parts, was_parts == 1 ? "" : "s", h->n_parts);
	else if (h->spec->accumulate == ACCUMULATE_NONE)
		snprintf(why, sizeof(why), "the job has accumulate: none, and no accumulator for their sum");
	else if (r->other_sum)
		snprintf(why, sizeof(why), "they were added with other values of %s than the job's", r->other_sum);
	else
		return true;
	snprintf(text, sizeof(text), "%llu micro-batches of window %llu are dropped, the window begins anew: %s",
		 (unsigned long long)m->carry.count, (unsigned long long)m->window, why);
	hosted_event(h, true, "CarryDropped", -1, text);
	return false;
}

/* Puts the coordinator before the checkpoint's window, and the part when it is placed. */
static enum status stand_at(struct hosted *h, const struct restored *b)
{
	for (uint32_t i = 0; i < b->n_updates; i++)
		if (coord_restore_update(h->coord, &b->update[i]))
			return ST_NO_MEMORY;
	size_t n_words = control_words(h->spec->ranks, h->spec->max_micro_size);
	struct decided last = { b->last, calloc(n_words, sizeof(*last.counted)), (uint32_t)n_words };
	if (!last.counted)
		return ST_NO_MEMORY;
	coord_start_at(h->coord, b->window, b->applied_step, b->has_last ? &b->last : NULL);
	if (b->has_last && placing_note_window(h, &last))
		last.counted = NULL; /* it is the placement's */
	free(last.counted);
	h->has_base = true;
	h->base_window = b->window;
	return ST_OK;
}

static uint32_t first_micro_size(const struct hosted *h, const struct restored *b)
{
	struct values v = values_of(h->spec);
	for (uint32_t i = 0; i < b->n_updates && b->update[i].window <= b->window; i++)
		update_apply(&v, &b->update[i]);
	return v.micro_size;
}

/* The saved job may have had more ranks, or larger windows: what its last outcome says beyond this job's bounds would
 * be refused as nonsense wherever it is read. */
static void fit(struct commit *last, const struct job_spec *spec)
{
	const uint64_t most = (uint64_t)spec->ranks * spec->max_micro_size;
	if (last->last_rank >= spec->ranks)
		last->last_rank = 0;
	if (last->micro_size > spec->max_micro_size)
		last->micro_size = spec->max_micro_size;
	if (last->micro_count > most)
		last->micro_count = most;
}

/* Fills in all but the updates, which are there already. */
static void fill_base(const struct reading *r, struct restored *b)
{
	const struct hosted *h = r->h;
	const struct manifest *m = r->m;
	b->window = m->window;
	b->applied_step = m->applied_step;
	b->has_last = manifest_take_commit(m, &b->last) && b->last.window + 1 == m->window;
	b->last.job_id = h->id;
	b->last.epoch = coord_epoch(h->coord);
	b->last.final = 0;
	fit(&b->last, h->spec);
	b->last.next_micro_size = first_micro_size(h, b);
	b->last.next.scale = first_scale(r, b);
}

static void put_file(struct engine_file *to, const struct checkpoint_file *f)
{
	to->bytes = f->bytes;
	memcpy(to->sha256, f->sha256, sizeof(to->sha256));
}

static void put_files(struct engine_file *to, const struct checkpoint_file *f, int from)
{
	for (int i = from; i < ENGINE_FILES; i++)
		put_file(&to[i], &f[i]);
}

/* A part that had counted nothing begins with nothing. */
static void put_carry(struct engine_restore *to, const struct manifest_carry *c)
{
	to->carry = to->file[CHECKPOINT_CARRY].bytes > 0;
	to->count = c->count;
	to->sum_weight = c->sum_weight;
	to->sum_loss = c->sum_loss;
	to->last_rank = c->last_rank;
	to->window_lr = c->lr;
	to->lr_rank = c->lr_rank;
}

static bool give_to_nodes(const struct reading *r, const struct restored *b)
{
	const struct manifest *m = r->m;
	const bool carry = takes_carry(r, &b->last);
	struct part_restore to[MANIFEST_MAX_PARTS];
	struct engine_restore from = { .window = m->window,
				       .applied_step = m->applied_step,
				       .params_digest = m->params_digest,
				       .loss_scale = b->last.next.scale.scale,
				       .micro_size = b->last.next_micro_size,
				       .owner = r->owner,
				       .same_ranges = r->same_ranges };
	assert(r->h->n_parts <= MANIFEST_MAX_PARTS);
	put_files(from.file, m->file, CHECKPOINT_MODEL);
	from.n_shares = m->n_shares;
	for (uint32_t i = 0; i < m->n_shares; i++)
		put_file(&from.share[i], &m->part[i].file[CHECKPOINT_OPTIMIZER]);
	for (uint32_t i = 0; i < r->h->n_parts; i++) {
		to[i] = (struct part_restore){ from, r->path, strlen(r->path) };
		if (carry && m->n_parts)
			put_files(to[i].from.file, m->part[i].file, CHECKPOINT_CARRY);
		if (carry)
			put_carry(&to[i].from, m->n_parts ? &m->part[i].carry : &m->carry);
	}
	return placing_note_restore(r->h, to);
}

/* Nobody waits for it: it is before every COMMIT in the journal. */
static enum status put_base(struct hosted *h, const struct restored *b)
{
	size_t n = 0;
	void *bytes = restored_record_pack(b, &n);
	struct journal_record rec = { .kind = JOURNAL_RESTORED, .restored = { h->id, b->window, { bytes, n } } };
	enum status st = bytes ? persist_put(h->d->persist, &rec, hosted_on_written, h) : ST_NO_MEMORY;
	free(bytes);
	if (!st)
		hosted_hold(h);
	return st;
}

static enum status begin(struct reading *r)
{
	struct hosted *h = r->h;
	enum status st = judge(r);
	if (st)
		return st;
	struct restored *b = &r->base;
	fill_base(r, b);
	if (h->has_base && h->base_window != b->window) {
		snprintf(r->why, sizeof(r->why),
			 "restore_from %.200s is another checkpoint than the one that the job began with", r->path);
		return ST_LAYOUT_MISMATCH;
	}
	if (!give_to_nodes(r, b))
		return ST_NO_MEMORY;
	if (h->has_base)
		return ST_OK;
	st = put_base(h, b);
	return st ? st : stand_at(h, b);
}

/* ---- the job is placed ---- */

static void fail(struct hosted *h, enum status st, const char *why)
{
	hosted_event(h, true, "RestoreFailed", -1, why);
	submitting_done(h, st, why); /* ends the job, where somebody waits */
	if (coord_phase(h->coord) < COORD_ENDING)
		coord_end(h->coord, st, why, daemon_now(h->d));
}

/* It may have been cancelled meanwhile. */
static bool goes_on(const struct hosted *h)
{
	return !h->d->node.stopping && coord_phase(h->coord) < COORD_ENDING;
}

static void on_tensors_durable(void *arg, enum status st)
{
	struct hosted *h = arg;
	daemon_check_store(st);
	h->tensors_durable = st == ST_OK;
	if (goes_on(h) && st)
		fail(h, st, "the tensor set cannot be written to the journal");
	else if (goes_on(h))
		placing_send(h, daemon_now(h->d));
	hosted_drop(h);
}

/* A node makes memory only for tensors that are durable. */
static enum status keep_tensors(struct reading *r)
{
	struct hosted *h = r->h;
	struct shared *set = shared_new(r->packed, r->n_packed);
	if (!set)
		return ST_NO_MEMORY;
	r->packed = NULL;
	struct journal_record rec = { .kind = JOURNAL_TENSORS, .tensors = { h->id, { set->data, set->n } } };
	enum status st = persist_put_shared(h->d->persist, &rec, set, on_tensors_durable, h);
	h->tensors = set;
	if (!st)
		hosted_hold(h);
	return st;
}

static void take(struct reading *r)
{
	struct hosted *h = r->h;
	bool sets = r->packed != NULL;
	if (!r->status)
		r->status = begin(r);
	if (!r->status && sets)
		r->status = keep_tensors(r);
	if (r->status && !r->why[0])
		snprintf(r->why, sizeof(r->why), "restore_from: %s", status_info(r->status)->text);
	if (r->status)
		fail(h, r->status, r->why);
	else if (!sets)
		placing_send(h, daemon_now(h->d));
}

static void on_read(struct rpc_work *w)
{
	struct reading *r = (struct reading *)w;
	if (goes_on(r->h))
		take(r);
	hosted_drop(r->h);
	manifest_free(r->m);
	job_spec_fini(&r->was);
	tensor_set_fini(&r->set);
	shared_drop(r->known);
	free(r->packed);
	free(r);
}

bool restoring_awaits_base(const struct hosted *h)
{
	return h->spec->restores && !h->has_base;
}

static void read_then_place(struct hosted *h)
{
	struct reading *r = calloc(1, sizeof(*r));
	if (!r) {
		fail(h, ST_NO_MEMORY, "no memory");
		return;
	}
	r->h = h;
	r->uid = h->uid;
	r->state_dir = h->d->node.conf->state_dir;
	r->allowed = h->d->node.conf->checkpoint.allowed_dirs;
	snprintf(r->wanted, sizeof(r->wanted), "%s", h->text->pb->restore_from);
	r->known = h->tensors ? shared_hold(h->tensors) : NULL;
	hosted_hold(h);
	rpc_pool_put_kind(h->d->node.pool, RPC_POOL_DISK, &r->work, h->uid, restoring_read, on_read);
}

void restoring_place(struct hosted *h, struct now now)
{
	if (h->spec->restores && !h->params_durable)
		read_then_place(h);
	else
		placing_send(h, now);
}

enum status restoring_from_journal(struct hosted *h, const struct journal_bytes *bytes, char *why, size_t n_why)
{
	struct restored b;
	enum status st = restored_record_read(bytes->data, bytes->n, &b, why, n_why);
	return st ? st : stand_at(h, &b);
}
