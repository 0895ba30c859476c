#include "edge/live_restoring.h"

#include "base/log.h"
#include "edge/convert.h"
#include "edge/manifest_commit.h"
#include "edge/manifest_updates.h"
#include "edge/saving_disk.h"
#include "math/optim.h"
#include "proto/bytes.h"
#include "proto/failpoint.h"
#include "rpc/pool.h"

#include "gacc/v1/common.pb-c.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What the journal keeps of the checkpoint that a job began with. Version 1 ends before n_updates. */
struct base {
	uint32_t version, has_last;
	uint64_t window, applied_step;
	struct commit last;
	uint64_t n_updates;
	struct update update[MANIFEST_MAX_UPDATES]; /* the journal has the first n_updates */
};
#define BASE_VERSION 2

struct reading {
	struct rpc_work work;
	struct live_job *l;
	void (*done)(struct live_job *, enum status, const char *why);
	char wanted[CHECKPOINT_MAX_PATH], path[CHECKPOINT_MAX_PATH];
	const char *state_dir, *allowed;
	uint32_t uid, owner;                 /* of the submitter; of the files */
	struct manifest *m;
	struct job_spec was;                 /* of the checkpoint's job */
	const struct tensor_set *known;      /* the job's, when this began; NULL: it had none */
	struct tensor_set set;               /* the checkpoint's, matched with the job's rules */
	void *packed;                        /* the set, for the journal, if the job had none */
	size_t n_packed;
	struct base base;
	enum status status;
	char why[320];
	const char *other_sum;               /* what makes the job's sum another than the checkpoint's; NULL: nothing */
	bool was_dynamic;                    /* the checkpoint's loss scale was adapted */
	bool same_ranges;                    /* of the update */
	bool same_frozen;
};

/* ---- in the pool ---- */

/* Readable by the submitter: his own files, or those that gaccd has written for a job of his. */
static bool may_read(const struct reading *r)
{
	return r->uid == 0 || r->uid == geteuid() || r->owner == r->uid ||
	       (r->owner == geteuid() && r->m->uid == r->uid);
}

static int n_states(const struct job_spec *s)
{
	return optim_info(s->optim.type)->n_state(&s->optim);
}

static enum status compare(const struct live_job *l, const struct job_spec *was, char *why, size_t n_why)
{
	if (was->optim.type != l->spec.optim.type || n_states(was) != n_states(&l->spec)) {
		snprintf(why, n_why, "restore_from: the checkpoint is of optimizer %s with %d states, the job's is %s with %d: use the same "
			 "type, momentum with momentum", optim_info(was->optim.type)->name, n_states(was),
			 optim_info(l->spec.optim.type)->name, n_states(&l->spec));
		return ST_INVALID_SPEC;
	}
	if (was->master_f32 != l->spec.master_f32) {
		snprintf(why, n_why, "restore_from: the checkpoint is of a job with master: %s", was->master_f32 ? "f32" : "none");
		return ST_INVALID_SPEC;
	}
	return ST_OK;
}

static enum status convert_was(struct reading *r, const Gacc__V1__JobSpec *pb)
{
	char text[256] = "";
	const char *field;
	enum status st = convert_spec(pb, &r->was, &field, text, sizeof text);
	if (st)
		snprintf(r->why, sizeof r->why, "%.200s: its spec is none: %.80s", r->path, text[0] ? text : status_info(st)->text);
	return st ? ST_MALFORMED : ST_OK;
}

/* What the rules of both specifications make of the tensors. Ranges of the update end where the group changes. */
static enum status compare_rules(struct reading *r, char *why, size_t n_why)
{
	struct spec_match was;
	enum status st = tensor_set_match(&r->set, &r->l->spec, why, n_why);
	if (!st)
		st = spec_match(&r->was, r->set.tensor, r->set.n, &was, why, n_why);
	if (st)
		return st;
	r->same_ranges = r->same_frozen = true;
	for (uint64_t i = 0; i < r->set.n; i++) {
		int a = spec_match_group(&was, i), b = spec_match_group(&r->set.match, i);
		r->same_ranges &= a == b;
		r->same_frozen &= (a >= 0 && r->was.group[a].values.frozen) == (b >= 0 && r->l->spec.group[b].values.frozen);
	}
	spec_match_fini(&was);
	return ST_OK;
}

static enum status take_set(struct reading *r, const Gacc__V1__JobSpec *pb)
{
	struct tensor_spec *t = NULL;
	char text[256] = "";
	enum status st = convert_tensors(pb->tensors, pb->n_tensors, &t, text, sizeof text);
	if (!st && r->known && tensor_set_differs(r->known->tensor, r->known->n, t, pb->n_tensors, text, sizeof text))
		st = ST_LAYOUT_MISMATCH;
	if (!st)
		st = tensor_set_init(&r->set, &r->l->spec, t, pb->n_tensors, text, sizeof text);
	if (!st)
		st = compare_rules(r, text, sizeof text);
	if (!st && !r->known && !(r->packed = convert_pack_tensors(r->set.tensor, r->set.n, &r->n_packed)))
		st = ST_NO_MEMORY;
	if (st)
		snprintf(r->why, sizeof r->why, "restore_from: the job's tensors and the checkpoint's: %s", text);
	free(t);
	return st;
}

static enum status take_was(struct reading *r)
{
	struct ProtobufCMessage *m = NULL;
	enum status st = bytes_decode(&gacc__v1__job_spec__descriptor, r->m->spec, r->m->n_spec, &m);
	if (st) {
		snprintf(r->why, sizeof r->why, "%.200s: its spec is none: %.80s", r->path, status_info(st)->text);
		return ST_MALFORMED;
	}
	st = convert_was(r, (Gacc__V1__JobSpec *)m);
	if (!st)
		st = compare(r->l, &r->was, r->why, sizeof r->why);
	if (!st)
		st = take_set(r, (Gacc__V1__JobSpec *)m);
	bytes_free(m);
	return st;
}

static enum status check_numbers(struct reading *r)
{
	if (r->m->window <= INT64_MAX / 2 && r->m->applied_step <= r->m->window)
		return ST_OK;
	snprintf(r->why, sizeof r->why, "%.200s: window or applied_step is out of range", r->path);
	return ST_MALFORMED;
}

static void read_manifest(struct rpc_work *w)
{
	struct reading *r = (struct reading *)w;
	r->status = FAILPOINT_ERROR(gaccd_load_manifest_before);
	if (!r->status)
		r->status = checkpoint_resolve(r->wanted, r->path, r->why, sizeof r->why);
	if (!r->status && !disk_place_allowed(r->state_dir, r->allowed, r->uid, r->path)) {
		snprintf(r->why, sizeof r->why, "restore_from %.200s leads out of the directories that are allowed", r->wanted);
		r->status = ST_PERMISSION_DENIED;
	}
	if (!r->status)
		r->status = checkpoint_load(r->path, &r->m, &r->owner, r->why, sizeof r->why);
	if (!r->status && !may_read(r)) {
		snprintf(r->why, sizeof r->why, "restore_from %.200s: the checkpoint belongs to uid %u", r->path, r->owner);
		r->status = ST_PERMISSION_DENIED;
	}
	if (!r->status)
		r->status = check_numbers(r);
	if (!r->status)
		r->status = take_was(r);
	FAILPOINT(gaccd_load_manifest_after);
}

/* ---- does it fit the job? ---- */

static enum status take_tensors(struct reading *r)
{
	struct live_job *l = r->l;
	const struct tensor_set *now = job_tensor_set(l->job);
	char text[256];
	if (!now) {
		job_take_tensors(l->job, &r->set);
		l->tensors_packed = shared_new(r->packed, r->n_packed);
		if (l->tensors_packed)
			r->packed = NULL;
	} else if (!r->known && now->arena.fingerprint != r->set.arena.fingerprint) { /* a rank has declared it meanwhile */
		tensor_set_differs(now->tensor, now->n, r->set.tensor, r->set.n, text, sizeof text);
		snprintf(r->why, sizeof r->why, "restore_from: the job's tensors and the checkpoint's: %s", text);
		return ST_LAYOUT_MISMATCH;
	}
	return ST_OK;
}

/* A sum goes on only with the coefficients and the tensors that it began with. In order of arrival a rank may have gaps, in
 * canonical order none. */
static const char *find_other_sum(const struct reading *r)
{
	const struct job_spec *is = &r->l->spec, *was = &r->was;
	if (was->reduction != is->reduction || was->grad_of != is->grad_of)
		return "reduction or grad_of";
	if (was->ordering == ORDER_ARRIVAL && is->ordering == ORDER_CANONICAL)
		return "ordering";
	return r->same_frozen ? NULL : "param_groups.frozen";
}

static void tell_updates(struct live_job *l, const struct base *b)
{
	struct values v = values_of(&l->spec);
	char changes[160], text[256];
	for (uint64_t i = 0; i < b->n_updates; i++) {
		update_describe(&b->update[i], v, changes, sizeof changes);
		update_apply(&v, &b->update[i]);
		snprintf(text, sizeof text, "from window %llu on, as in the checkpoint's job: %s",
			 (unsigned long long)b->update[i].window, changes);
		live_event(l, false, "Updated", -1, text);
	}
}

static void tell_dropped(struct live_job *l, const struct job_spec *was, uint32_t set)
{
	const struct update u = { .set = set, .to = values_of(&l->spec) };
	char changes[160], text[256];
	update_describe(&u, values_of(was), changes, sizeof changes);
	snprintf(text, sizeof text, "the specification is not the checkpoint's (%s): what was updated of it there is dropped", changes);
	live_event(l, false, "UpdatesDropped", -1, text);
}

/* The values that were set while the checkpoint's job ran, as far as this job's specification leaves them alone. */
static enum status take_updates(struct reading *r)
{
	const struct job_spec *was = &r->was;
	struct live_job *l = r->l;
	struct base *b = &r->base;
	const char *field, *unknown;
	char text[200];
	uint32_t n = manifest_take_updates(r->m, b->update, &unknown);
	if (unknown) {
		snprintf(r->why, sizeof r->why, "%.200s: an update of \"%.40s\", which this gaccd does not know", r->path, unknown);
		return ST_VERSION_SKEW;
	}
	if (!updates_ascend(b->update, n)) {
		snprintf(r->why, sizeof r->why, "%.200s: its updates are not in the order of their windows", r->path);
		return ST_MALFORMED;
	}
	uint32_t dropped = updates_inherit(b->update, &n, was, &l->spec);
	for (uint32_t i = 0; i < n; i++)
		if (update_check(&b->update[i], &l->spec, &field, text, sizeof text)) {
			snprintf(r->why, sizeof r->why, "restore_from: the update for window %llu in the checkpoint: %s",
				 (unsigned long long)b->update[i].window, text);
			return ST_INVALID_SPEC;
		}
	b->n_updates = n;
	if (!l->has_base)
		tell_updates(l, b);
	if (!l->has_base && dropped)
		tell_dropped(l, was, dropped);
	return ST_OK;
}

/* A job that is restored where it had completed would train one window too many before it noticed. */
static enum status check_steps(struct reading *r)
{
	uint64_t steps = r->l->spec.steps;
	if (r->l->has_base || !steps || r->m->applied_step < steps)
		return ST_OK;
	snprintf(r->why, sizeof r->why, "steps is %llu, and the checkpoint has %llu applied steps: nothing is left to do; raise steps",
		 (unsigned long long)steps, (unsigned long long)r->m->applied_step);
	return ST_INVALID_SPEC;
}

static enum status judge(struct reading *r)
{
	enum status st = check_steps(r);
	if (!st)
		st = take_tensors(r);
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
static struct loss_scale first_scale(const struct reading *r, const struct base *b)
{
	const struct loss_scale_rules *rules = &r->l->spec.dynamic_loss_scale;
	return rules->enabled && r->was_dynamic && b->has_last ? b->last.next.scale
							       : loss_scale_first(rules, r->l->spec.loss_scale);
}

/* The sum goes with its shape: the same ranks, micro-batches, type and loss scale; else the window begins anew. */
static bool takes_carry(const struct reading *r, const struct commit *last)
{
	struct live_job *l = r->l;
	const struct manifest *m = r->m;
	char why[200] = "", text[300];
	double loss_scale = last->next.scale.scale;
	uint32_t micro_size = last->next_micro_size;
	if (!m->inside_window)
		return false;
	if (m->ranks != l->spec.ranks || m->micro_size != micro_size || m->loss_scale != loss_scale ||
	    strcmp(m->accumulate_dtype, dtype_name(l->spec.accumulate_dtype)) != 0)
		snprintf(why, sizeof why, "they are of %u ranks, micro_size %u, %.8s and loss scale %g, the job has %u, %u, %s and %g", m->ranks,
			 m->micro_size, m->accumulate_dtype, m->loss_scale, l->spec.ranks, micro_size,
			 dtype_name(l->spec.accumulate_dtype), loss_scale);
	else if (r->other_sum)
		snprintf(why, sizeof why, "they were added with other values of %s than the job's", r->other_sum);
	else
		return true;
	snprintf(text, sizeof text, "%llu micro-batches of window %llu are dropped, the window begins anew: %s", (unsigned long long)m->count,
		 (unsigned long long)m->window, why);
	live_event(l, true, "CarryDropped", -1, text);
	return false;
}

/* Coordinator and job stand before the checkpoint's window. */
static enum status stand_at(struct live_job *l, const struct base *b)
{
	for (uint64_t i = 0; i < b->n_updates; i++)
		if (coord_restore_update(l->coord, &b->update[i]))
			return ST_NO_MEMORY;
	size_t n_words = control_words(l->spec.ranks, l->spec.max_micro_size);
	uint64_t *none = calloc(n_words, sizeof *none);
	if (!none)
		return ST_NO_MEMORY;
	coord_start_at(l->coord, b->window, b->applied_step, b->has_last ? &b->last : NULL);
	if (b->has_last)
		job_restore_window(l->job, &b->last, none, (uint32_t)n_words);
	free(none);
	l->has_base = true;
	l->base_window = b->window;
	return ST_OK;
}

static uint32_t first_micro_size(const struct live_job *l, const struct base *b)
{
	struct values v = values_of(&l->spec);
	for (uint64_t i = 0; i < b->n_updates && b->update[i].window <= b->window; i++)
		update_apply(&v, &b->update[i]);
	return v.micro_size;
}

/* But for the updates, which are there. */
static void fill_base(const struct reading *r, struct base *b)
{
	const struct live_job *l = r->l;
	const struct manifest *m = r->m;
	b->version = BASE_VERSION;
	b->window = m->window;
	b->applied_step = m->applied_step;
	b->has_last = manifest_take_commit(m, &b->last) && b->last.window + 1 == m->window;
	b->last.job_id = l->id;
	b->last.epoch = 1;
	b->last.final = 0;
	b->last.next_micro_size = first_micro_size(l, b);
	b->last.next.scale = first_scale(r, b);
}

static bool give_to_job(const struct reading *r, const struct base *b)
{
	const struct manifest *m = r->m;
	double scale = b->last.next.scale.scale;
	struct engine_restore to = { .window = m->window, .applied_step = m->applied_step, .params_digest = m->params_digest,
				     .loss_scale = scale, .micro_size = b->last.next_micro_size, .count = m->count,
				     .sum_weight = m->sum_weight, .sum_loss = m->sum_loss, .last_rank = m->last_rank,
				     .window_lr = m->lr, .lr_rank = m->lr_rank,
				     .carry = takes_carry(r, &b->last), .owner = r->owner,
				     .same_ranges = r->same_ranges };
	for (int i = 0; i < ENGINE_FILES; i++) {
		to.file[i].bytes = m->file[i].bytes;
		memcpy(to.file[i].sha256, m->file[i].sha256, sizeof to.file[i].sha256);
	}
	size_t n = sizeof to + strlen(r->path);
	char *tail = malloc(n);
	if (!tail)
		return false;
	memcpy(tail, &to, sizeof to);
	memcpy(tail + sizeof to, r->path, n - sizeof to);
	job_begin_with(r->l->job, tail, (uint32_t)n);
	return true;
}

static size_t base_bytes(const struct base *b)
{
	return offsetof(struct base, update) + b->n_updates * sizeof b->update[0];
}

/* Nobody waits for it: it is before every COMMIT in the journal. */
static enum status put_base(struct live_job *l, const struct base *b)
{
	struct journal_record rec = { .kind = JOURNAL_RESTORED, .restored = { l->id, b->window, { b, base_bytes(b) } } };
	enum status st = persist_put(l->d->persist, &rec, live_on_written, l);
	if (!st)
		live_hold(l);
	return st;
}

static enum status begin(struct reading *r)
{
	struct live_job *l = r->l;
	enum status st = judge(r);
	if (st)
		return st;
	struct base *b = &r->base;
	fill_base(r, b);
	if (l->has_base && l->base_window != b->window) {
		snprintf(r->why, sizeof r->why, "restore_from %.200s is another checkpoint than the one that the job began with", r->path);
		return ST_LAYOUT_MISMATCH;
	}
	if (!give_to_job(r, b))
		return ST_NO_MEMORY;
	if (l->has_base)
		return ST_OK;
	st = put_base(l, b);
	return st ? st : stand_at(l, b);
}

static void on_read(struct rpc_work *w)
{
	struct reading *r = (struct reading *)w;
	struct live_job *l = r->l;
	if (!r->status)
		r->status = begin(r);
	if (r->status && !r->why[0])
		snprintf(r->why, sizeof r->why, "restore_from: %s", status_info(r->status)->text);
	l->restore_read = true;
	r->done(l, r->status, r->status ? r->why : NULL);
	manifest_free(r->m);
	job_spec_fini(&r->was);
	tensor_set_fini(&r->set);
	free(r->packed);
	free(r);
}

bool restoring_awaits_base(const struct live_job *l)
{
	return l->spec.restores && !l->has_base;
}

bool restoring_due(const struct live_job *l)
{
	return l->spec.restores && !l->params_durable && !l->restore_read;
}

void restoring_begin(struct live_job *l, void (*done)(struct live_job *, enum status, const char *why))
{
	struct reading *r = calloc(1, sizeof *r);
	if (!r) {
		done(l, ST_NO_MEMORY, "no memory");
		return;
	}
	r->l = l;
	r->done = done;
	r->uid = l->uid;
	r->state_dir = l->d->conf->state_dir;
	r->allowed = l->d->conf->checkpoint.allowed_dirs;
	snprintf(r->wanted, sizeof r->wanted, "%s", l->spec_pb->restore_from);
	r->known = job_tensor_set(l->job);
	rpc_pool_put_kind(rpc_server_pool(l->d->rpc), RPC_POOL_DISK, &r->work, l->uid, read_manifest, on_read);
}

enum status restoring_from_journal(struct live_job *l, const struct journal_bytes *bytes)
{
	const size_t old = offsetof(struct base, n_updates);
	struct base b;
	memset(&b, 0, sizeof b);
	memcpy(&b, bytes->data, bytes->n < sizeof b ? bytes->n : sizeof b);
	if (!(bytes->n == old && b.version == 1) &&
	    !(b.version == BASE_VERSION && b.n_updates <= MANIFEST_MAX_UPDATES && bytes->n == base_bytes(&b)))
		return ST_VERSION_SKEW;
	return stand_at(l, &b);
}

void restoring_on_answer(struct live_job *l, const struct engine_answer *a)
{
	char why[384];
	struct now now = daemon_now(l->d);
	struct control_state state;
	if (a->status) {
		snprintf(why, sizeof why, "restore_from %.120s: %s; others: gaccctl checkpoint list JOB", l->spec_pb->restore_from,
			 a->text);
		live_event(l, true, "RestoreFailed", -1, why);
		coord_end(l->coord, (enum status)a->status, why, now);
		return;
	}
	if (live_read_control(l, &state)) {
		coord_end(l->coord, ST_SEGMENT_CORRUPT, "the control segment cannot be read", now);
		return;
	}
	snprintf(why, sizeof why, "step %llu, window %llu with %llu micro-batches, from %.160s",
		 (unsigned long long)state.r.applied_step, (unsigned long long)state.r.window, (unsigned long long)state.r.count,
		 l->spec_pb->restore_from);
	live_event(l, false, "Restored", -1, why);
	job_on_restored(l->job, &state, now);
	control_state_fini(&state);
}
