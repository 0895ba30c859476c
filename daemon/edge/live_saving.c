#include "edge/live_saving.h"

#include "base/array.h"
#include "base/log.h"
#include "control/saver.h"
#include "edge/live_launch.h"
#include "edge/manifest_commit.h"
#include "edge/manifest_updates.h"
#include "edge/saved_list.h"
#include "edge/saving_disk.h"
#include "edge/state_share.h"
#include "math/optim.h"

#include "gacc/v1/common.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct saving_call {
	uint64_t call, id;
	bool wait;
};

struct saving {
	struct saver saver;
	char dir[CHECKPOINT_MAX_PATH];  /* "": not known, nothing can be saved there */
	uint32_t n_working;             /* of the pool */
	uint64_t command;               /* CHECKPOINT under way; 0: none */
	bool have_last;
	struct commit last;             /* the outcome before the window of the checkpoint under way */
	struct update update[UPDATES_MAX_PENDING + 1]; /* what its values are besides the spec's */
	uint32_t n_updates;
	struct engine_answer answer;
	char final[CHECKPOINT_MAX_PATH]; /* of the one that is sealed */
	uint8_t sha256[SHA256_BYTES];
	bool refused;                   /* the one under way; on_refused follows */
	bool end_held;
	enum status end;
	char end_reason[256];
	struct saving_call *call;
	size_t n_calls;
	uint32_t calls_capacity;
};

/* ---- what was saved ---- */

const struct saved *saving_find(const struct live_job *l, uint64_t id)
{
	return saved_find(&l->saved, id);
}

const struct saved *saving_at(const struct live_job *l, size_t i)
{
	return i < l->saved.n ? &l->saved.saved[i] : NULL;
}

/* ---- who waits ---- */

bool saving_wait(struct live_job *l, uint64_t call, uint64_t id, bool wait)
{
	struct saving *s = l->saving;
	struct saving_call *list = array_grow(s->call, s->n_calls, &s->calls_capacity, sizeof *list);
	if (!list)
		return false;
	s->call = list;
	s->call[s->n_calls++] = (struct saving_call){ call, id, wait };
	return true;
}

/* The checkpoint has begun, or is over: those who wait for that are answered. */
static void answer_calls(struct live_job *l, uint64_t id, bool over)
{
	struct saving *s = l->saving;
	const struct saved *k = saved_find(&l->saved, id);
	for (size_t i = s->n_calls; i-- > 0;) {
		struct saving_call c = s->call[i];
		if (c.id != id || (c.wait && !over))
			continue;
		s->call[i] = s->call[--s->n_calls];
		if (k)
			saving_answer(l, c.call, k);
	}
}

/* ---- the machine's ports ---- */

static void on_disk(struct disk_work *w);

static struct disk_work *new_work(struct live_job *l, enum disk_kind kind)
{
	struct saving *s = l->saving;
	struct disk_work *w = disk_new(kind, on_disk, l);
	if (!w)
		return NULL;
	memcpy(w->uuid, l->uuid, 16);
	w->uid = l->uid;
	w->state_dir = l->d->conf->state_dir;
	w->allowed = l->d->conf->checkpoint.allowed_dirs;
	memcpy(w->dir, s->dir, sizeof w->dir);
	if (s->saver.n_wants)
		checkpoint_partial_path(w->partial, s->dir, l->uuid, s->saver.want[0].id);
	return w;
}

static void start_work(struct live_job *l, struct disk_work *w)
{
	l->saving->n_working++;
	live_hold(l);
	disk_start(rpc_server_pool(l->d->rpc), w);
}

static void saving_dir(const struct live_job *l, char *out, size_t n)
{
	const Gacc__V1__CheckpointPolicy *c = l->spec_pb->checkpoint;
	if (!c || !*c->dir) {
		snprintf(out, n, "%.4000s/checkpoints/%llu", l->d->conf->state_dir, (unsigned long long)l->id);
		return;
	}
	char *dir = live_path(l, c->dir);
	snprintf(out, n, "%s", dir ? dir : "");
	free(dir);
}

static void on_sweep(void *ctx)
{
	struct live_job *l = ctx;
	struct disk_work *w = new_work(l, DISK_SWEEP);
	if (!w)
		return; /* the tick asks again */
	saving_dir(l, w->wanted, sizeof w->wanted);
	start_work(l, w);
}

/* What the engine would write of it. */
static uint64_t bytes_of(const struct live_job *l, bool inside_window)
{
	uint64_t bytes = 0;
	for (int i = 0; l->wanted && i < l->n_segments; i++) {
		uint32_t role = l->wanted[i].role;
		bool state = role == SEG_PARAMS || role == SEG_MASTER || role == SEG_STATE0 || role == SEG_STATE1;
		bytes += state || (inside_window && role == SEG_ACCUM0) ? l->wanted[i].bytes : 0;
	}
	return bytes;
}

struct refused {
	struct posted posted; /* first */
	struct daemon *d;
	uint64_t job;
};

static void fail_under_way(struct live_job *l, const char *why);

/* Behind the call that began it. */
static void on_refused(struct posted *p)
{
	struct refused *r = (struct refused *)p;
	struct live_job *l = live_find(r->d, r->job);
	if (l && l->saving && l->saving->refused) {
		l->saving->refused = false;
		saver_on_written(&l->saving->saver, ST_RESOURCE_EXHAUSTED);
	}
	free(r);
}

/* Without room, or beyond the user's share. false: it may begin. */
static bool refuse(struct live_job *l, const struct save_want *w)
{
	struct saving *s = l->saving;
	char why[320];
	enum status st = state_share_admit(l, s->dir, bytes_of(l, w->inside_window), why, sizeof why);
	struct refused *r = st == ST_RESOURCE_EXHAUSTED ? malloc(sizeof *r) : NULL;
	if (!r)
		return false;
	*r = (struct refused){ .d = l->d, .job = l->id };
	fail_under_way(l, why);
	s->refused = true;
	daemon_post(l->d, &r->posted, on_refused);
	return true;
}

bool live_is_saving(const struct live_job *l)
{
	return l->saving->saver.state >= SAVER_WRITING && l->saving->saver.state <= SAVER_RECORDING;
}

static bool on_begin(void *ctx, const struct save_want *w)
{
	struct live_job *l = ctx;
	struct saving *s = l->saving;
	char path[CHECKPOINT_MAX_PATH];
	if (!s->dir[0] || !job_can_checkpoint(l->job))
		return false;
	struct saved *k = saved_find(&l->saved, w->id);
	if (!k)
		k = saved_add(&l->saved, w->id, w->request_id);
	if (!k)
		return false;
	k->started_unix_ns = daemon_now(l->d).unix_ns;
	if (refuse(l, w)) {
		answer_calls(l, w->id, false);
		return true;
	}
	checkpoint_partial_path(path, s->dir, l->uuid, w->id);
	struct engine_command c = { .op = ENGINE_CHECKPOINT, .id = w->id, .inside_window = w->inside_window,
				    .n_present = (uint32_t)strlen(path) };
	if (!live_engine_send(l, &c, path))
		return false;
	s->command = w->id;
	const struct commit *last = job_last_commit(l->job);
	s->have_last = last != NULL;
	if (last)
		s->last = *last;
	k->window = job_window(l->job);
	s->n_updates = updates_beyond_spec(coord_updates(l->coord), *coord_values(l->coord), &l->spec, k->window, s->update);
	answer_calls(l, w->id, false);
	return true;
}

/* The spec, without tensors that did not come with it: disk_work.tensors. */
static void *pack_spec(struct live_job *l, size_t *out_n)
{
	size_t n = l->spec_field ? l->n_spec_field - l->spec_at : gacc__v1__job_spec__get_packed_size(l->spec_pb);
	if (!l->spec_pb->n_tensors && live_pack_tensors(l))
		return NULL;
	uint8_t *bytes = malloc(n + 1);
	if (!bytes)
		return NULL;
	if (l->spec_field)
		memcpy(bytes, l->spec_field + l->spec_at, n);
	else
		gacc__v1__job_spec__pack(l->spec_pb, bytes);
	*out_n = n;
	return bytes;
}

static void fill_manifest(const struct live_job *l, const struct save_want *want, struct manifest *m)
{
	const struct saving *s = l->saving;
	const struct engine_answer *a = &s->answer;
	bool inside = a->file[CHECKPOINT_CARRY].bytes != 0;
	*m = (struct manifest){ .id = want->id, .job = l->id, .name = l->spec.name, .uid = l->uid,
				.created_unix_ns = daemon_now(l->d).unix_ns, .window = a->window,
				.applied_step = a->applied_step, .inside_window = inside, .ranks = l->spec.ranks,
				.micro_size = a->micro_size, .optimizer = optim_info(l->spec.optim.type)->name,
				.accumulate_dtype = dtype_name(l->spec.accumulate_dtype), .loss_scale = a->loss_scale,
				.params_digest = a->digest };
	memcpy(m->uuid, l->uuid, 16);
	if (inside) {
		m->count = a->count;
		m->sum_weight = a->sum_weight;
		m->sum_loss = a->sum_loss;
		m->last_rank = a->last_rank;
		m->lr = a->window_lr;
		m->lr_rank = a->lr_rank;
	}
	if (s->have_last)
		manifest_put_commit(m, &s->last);
	manifest_put_updates(m, s->update, s->n_updates);
	for (int i = 0; i < ENGINE_FILES; i++) {
		m->file[i].bytes = a->file[i].bytes;
		memcpy(m->file[i].sha256, a->file[i].sha256, SHA256_BYTES);
	}
}

static void on_seal(void *ctx, const struct save_want *want)
{
	struct live_job *l = ctx;
	struct saving *s = l->saving;
	struct disk_work *w = new_work(l, DISK_SEAL);
	struct saved *k = saved_find(&l->saved, want->id);
	if (w)
		w->spec = pack_spec(l, &w->manifest.n_spec);
	if (!w || !w->spec || !k) {
		disk_free(w);
		saver_on_sealed(&s->saver, ST_NO_MEMORY); /* the next sweep takes the files */
		return;
	}
	size_t n_spec = w->manifest.n_spec;
	fill_manifest(l, want, &w->manifest);
	w->manifest.n_spec = n_spec;
	w->tensors = l->tensors_packed ? shared_hold(l->tensors_packed) : NULL;
	w->made = (struct checkpoint_dir){ s->answer.dir.dev, s->answer.dir.ino };
	checkpoint_final_path(w->final, s->dir, l->uuid, s->answer.applied_step, want->id);
	memcpy(s->final, w->final, sizeof s->final);
	saved_set_text(&k->path, w->final);
	k->window = s->answer.window;
	k->applied_step = s->answer.applied_step;
	k->carried = w->manifest.count;
	for (int i = 0; i < ENGINE_FILES; i++)
		k->bytes += s->answer.file[i].bytes;
	start_work(l, w);
}

static void on_recorded(void *arg, enum status st)
{
	struct live_job *l = arg;
	live_check_store(st);
	live_drop(l);
	saver_on_recorded(&l->saving->saver, st);
}

static void on_record(void *ctx, const struct save_want *want)
{
	struct live_job *l = ctx;
	struct saving *s = l->saving;
	struct saved *k = saved_find(&l->saved, want->id);
	k->ended_unix_ns = daemon_now(l->d).unix_ns;
	struct journal_record r = { .kind = JOURNAL_CHECKPOINT,
				    .checkpoint = { .job = l->id, .id = k->id, .path = k->path ? k->path : "",
						    .sha256 = { s->sha256, SHA256_BYTES }, .window = k->window,
						    .applied_step = k->applied_step, .carried = k->carried,
						    .bytes = k->bytes, .started_unix_ns = k->started_unix_ns,
						    .ended_unix_ns = k->ended_unix_ns } };
	memcpy(r.checkpoint.request_id, want->request_id, 16);
	if (persist_put(l->d->persist, &r, on_recorded, l))
		saver_on_recorded(&s->saver, ST_NO_MEMORY);
	else
		live_hold(l);
}

static bool list_old(const struct live_job *l, struct disk_work *w)
{
	size_t n = saved_complete(&l->saved), keep = l->spec.checkpoint.keep;
	w->path = calloc(n + 1, sizeof *w->path);
	w->id = calloc(n + 1, sizeof *w->id);
	for (size_t i = 0; w->path && w->id && i < l->saved.n && n - w->n > keep; i++) {
		const struct saved *k = &l->saved.saved[i];
		if (k->state != SAVED_COMPLETE || !k->path)
			continue;
		w->id[w->n] = k->id;
		w->path[w->n] = strdup(k->path);
		if (!w->path[w->n])
			return false;
		w->n++;
	}
	return w->path && w->id;
}

static void on_prune(void *ctx)
{
	struct live_job *l = ctx;
	struct saving *s = l->saving;
	struct disk_work *w = NULL;
	if (l->spec.checkpoint.keep && saved_complete(&l->saved) > l->spec.checkpoint.keep)
		w = new_work(l, DISK_PRUNE);
	if (w && list_old(l, w)) {
		start_work(l, w);
		return;
	}
	disk_free(w);
	saver_on_pruned(&s->saver); /* nothing to do, or no memory: next time */
}

static void on_discard(void *ctx)
{
	struct live_job *l = ctx;
	struct disk_work *w = new_work(l, DISK_DISCARD);
	if (!w)
		return; /* without a record nobody is offered it */
	memcpy(w->final, l->saving->final, sizeof w->final);
	start_work(l, w);
}

static void on_ended(void *ctx, const struct save_want *want, enum status st)
{
	struct live_job *l = ctx;
	struct saved *k = saved_find(&l->saved, want->id);
	char text[400];
	if (!k)
		k = saved_add(&l->saved, want->id, want->request_id);
	if (!k)
		return;
	k->state = st ? SAVED_FAILED : SAVED_COMPLETE;
	if (st)
		k->ended_unix_ns = daemon_now(l->d).unix_ns;
	if (st)
		saved_set_text(&k->path, ""); /* it was to have this name */
	if (st && !k->message)
		saved_set_text(&k->message, status_info(st)->text);
	if (st)
		snprintf(text, sizeof text, "checkpoint %llu failed: %.300s", (unsigned long long)k->id, k->message ? k->message : "");
	else
		snprintf(text, sizeof text, "checkpoint %llu of step %llu is complete: %.300s, %llu bytes",
			 (unsigned long long)k->id, (unsigned long long)k->applied_step, k->path ? k->path : "",
			 (unsigned long long)k->bytes);
	live_event(l, st != ST_OK, st ? "CheckpointFailed" : "CheckpointSaved", -1, text);
	answer_calls(l, want->id, true);
	if (st)
		saved_forget_failures(&l->saved, want->id);
}

static void on_end_ready(void *ctx)
{
	struct live_job *l = ctx;
	if (l->saving->end_held)
		live_write_end(l, l->saving->end, l->saving->end_reason);
}

/* ---- what comes back ---- */

static void fail_under_way(struct live_job *l, const char *why)
{
	struct saving *s = l->saving;
	struct saved *k = s->saver.n_wants ? saved_find(&l->saved, s->saver.want[0].id) : NULL;
	if (k)
		saved_set_text(&k->message, why);
}

static void swept(struct live_job *l, const struct disk_work *w)
{
	struct saving *s = l->saving;
	char text[400];
	if (w->status) {
		s->dir[0] = '\0';
		snprintf(text, sizeof text, "checkpoints of this job cannot be saved: %.320s", w->why);
		live_event(l, true, "CheckpointFailed", -1, text);
		saver_on_swept(&s->saver, w->last_id);
		saver_switch_off(&s->saver, w->status);
		return;
	}
	memcpy(s->dir, w->dir, sizeof s->dir);
	saver_on_swept(&s->saver, w->last_id);
}

static void pruned(struct live_job *l, const struct disk_work *w)
{
	struct saving *s = l->saving;
	for (size_t i = 0; i < w->n_done; i++) {
		struct journal_record r = { .kind = JOURNAL_CHECKPOINT_GONE, .gone = { l->id, w->id[i] } };
		persist_put(l->d->persist, &r, NULL, NULL); /* a row without its directory is dropped at the next start */
		saved_remove(&l->saved, w->id[i]);
	}
	if (w->status)
		live_event(l, true, "CheckpointNotDeleted", -1, w->why);
	saver_on_pruned(&s->saver);
}

static void on_disk(struct disk_work *w)
{
	struct live_job *l = w->arg;
	struct saving *s = l->saving;
	s->n_working--;
	live_drop(l);
	switch (w->kind) {
	case DISK_SWEEP:
		swept(l, w);
		break;
	case DISK_SEAL:
		memcpy(s->sha256, w->sha256, sizeof s->sha256);
		if (w->status)
			fail_under_way(l, w->why);
		saver_on_sealed(&s->saver, w->status);
		break;
	case DISK_PRUNE:
		pruned(l, w);
		break;
	case DISK_DISCARD:
		break;
	}
}

void saving_on_answer(struct live_job *l, const struct engine_answer *a)
{
	struct saving *s = l->saving;
	enum status st = (enum status)a->status;
	if (a->id != s->command)
		return;
	s->command = 0;
	s->answer = *a;
	if (!st && s->have_last && s->last.window + 1 != a->window)
		st = ST_INTERNAL; /* it may begin only when no COMMIT is on its way */
	if (st)
		fail_under_way(l, a->text);
	saver_on_written(&s->saver, st);
}

/* ---- events ---- */

void saving_on_engine_up(struct live_job *l)
{
	struct saving *s = l->saving;
	if (s->saver.state == SAVER_NEW) {
		uint64_t last = l->saved.n ? l->saved.saved[l->saved.n - 1].id : 0;
		saver_start(&s->saver, last);
	}
	saver_kick(&s->saver);
}

void saving_on_engine_down(struct live_job *l)
{
	l->saving->command = 0;
	saver_on_engine_lost(&l->saving->saver);
}

void saving_on_committed(struct live_job *l)
{
	const struct commit *k = job_last_commit(l->job);
	if (k)
		saver_on_boundary(&l->saving->saver, k->applied_step, k->outcome == OUTCOME_APPLIED);
}

void saving_tick(struct live_job *l)
{
	struct saving *s = l->saving;
	if (s->saver.state == SAVER_SWEEPING && !s->n_working)
		on_sweep(l);
	saver_kick(&s->saver);
	if (s->end_held && !l->engine && !l->restarts.due_ns)
		saver_give_up(&s->saver, ST_ENGINE_DOWN);
}

bool saving_hold_end(struct live_job *l, enum status end, const char *reason)
{
	struct saving *s = l->saving;
	s->end = end;
	snprintf(s->end_reason, sizeof s->end_reason, "%s", reason);
	s->end_held = true; /* before: end_ready may come at once */
	s->end_held = saver_end(&s->saver, end == ST_OK);
	return s->end_held;
}

enum status saving_request(struct live_job *l, const uint8_t request_id[16], bool inside_window, uint64_t *out_id)
{
	struct saving *s = l->saving;
	const struct save_want *w = saver_find(&s->saver, request_id);
	for (size_t i = 0; i < l->saved.n; i++)
		if (!memcmp(l->saved.saved[i].request_id, request_id, 16)) {
			*out_id = l->saved.saved[i].id;
			return ST_OK;
		}
	if (w) {
		*out_id = w->id;
		return ST_OK;
	}
	if (s->saver.state != SAVER_NEW && s->saver.state != SAVER_SWEEPING && !s->dir[0])
		return ST_NOT_SUPPORTED;
	return saver_request(&s->saver, request_id, inside_window, out_id);
}

/* ---- life ---- */

static enum status restore_saved(void *arg, const struct journal_checkpoint *k)
{
	if (!checkpoint_exists(k->path)) /* deleted, or half of it, and gaccd died before the record */
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

enum status saving_from_journal(struct live_job *l)
{
	return journal_each_checkpoint(l->d->journal, l->id, restore_saved, &l->saved);
}

enum status saving_new(struct live_job *l)
{
	static const struct saver_ports ports = { .sweep = on_sweep, .begin = on_begin, .seal = on_seal, .record = on_record,
						  .prune = on_prune, .discard = on_discard, .ended = on_ended,
						  .end_ready = on_end_ready };
	struct saver_ports mine = ports;
	l->saving = calloc(1, sizeof *l->saving);
	if (!l->saving)
		return ST_NO_MEMORY;
	mine.ctx = l;
	saver_init(&l->saving->saver, l->spec.checkpoint.every_steps, l->spec.checkpoint.at_end, &mine);
	return ST_OK;
}

void saving_free(struct live_job *l)
{
	struct saving *s = l->saving;
	if (!s)
		return;
	free(s->call);
	free(s);
	l->saving = NULL;
}

bool saving_busy(const struct live_job *l)
{
	return l->saving && l->saving->n_working;
}

static enum status check_dir(const struct live_job *l, const char *path, const char *name, const char **field, char *why,
			     size_t n_why)
{
	const struct conf *c = l->d->conf;
	if (!*path || disk_text_allowed(c->state_dir, c->checkpoint.allowed_dirs, l->uid, path))
		return ST_OK;
	*field = name;
	snprintf(why, n_why, "%s %.150s lies neither in %.60s/checkpoints nor in a directory of checkpoint.allowed_dirs", name, path,
		 c->state_dir);
	return ST_PERMISSION_DENIED;
}

enum status saving_check_dirs(const struct live_job *l, const char **field, char *why, size_t n_why)
{
	const Gacc__V1__CheckpointPolicy *c = l->spec_pb->checkpoint;
	enum status st = check_dir(l, c ? c->dir : "", "checkpoint.dir", field, why, n_why);
	return st ? st : check_dir(l, l->spec_pb->restore_from, "restore_from", field, why, n_why);
}
