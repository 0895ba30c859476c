/* SPDX-License-Identifier: Apache-2.0 */
/* The disk's side of a running job's checkpoints: prepares what control/saver.h asks for, lets the pool do it
 * (runtime/saving_disk.h), and tells the saver what came of it. Loop thread. */
#include "edge/checkpoints_impl.h"

#include "edge/launching.h"
#include "gacc/v1/common.pb-c.h"
#include "math/optim.h"
#include "runtime/manifest_commit.h"
#include "runtime/manifest_updates.h"
#include "runtime/saving_disk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void on_disk(struct disk_work *w);

static struct disk_work *new_work(struct hosted *h, enum disk_kind kind)
{
	struct saving *s = h->saving;
	struct disk_work *w = disk_new(kind, on_disk, h);
	if (!w)
		return NULL;
	memcpy(w->uuid, h->uuid, 16);
	w->uid = h->uid;
	w->state_dir = h->d->node.conf->state_dir;
	w->allowed = h->d->node.conf->checkpoint.allowed_dirs;
	memcpy(w->dir, s->dir, sizeof(w->dir));
	if (s->saver.n_wants)
		checkpoint_partial_path(w->partial, s->dir, h->uuid, s->saver.want[0].id);
	return w;
}

static void start_work(struct hosted *h, struct disk_work *w)
{
	h->saving->n_working++;
	hosted_hold(h);
	disk_start(h->d->node.pool, w);
}

/* ---- what the machine asks for ---- */

static void saving_dir(const struct hosted *h, char *out, size_t n)
{
	const Gacc__V1__CheckpointPolicy *c = h->text->pb->checkpoint;
	if (!c || !*c->dir) {
		snprintf(out, n, "%.4000s/checkpoints/%llu", h->d->node.conf->state_dir, (unsigned long long)h->id);
		return;
	}
	char *dir = hosted_path(h, c->dir);
	snprintf(out, n, "%s", dir ? dir : "");
	free(dir);
}

void saving_sweep(void *ctx)
{
	struct hosted *h = ctx;
	struct disk_work *w = new_work(h, DISK_SWEEP);
	if (!w)
		return; /* the tick asks again */
	saving_dir(h, w->wanted, sizeof(w->wanted));
	start_work(h, w);
}

/* The specification, without tensors that did not come with it: these are in disk_work.tensors. */
static void *pack_spec(const struct hosted *h, size_t *out_n)
{
	return h->text->pb->n_tensors || h->tensors ? specification_pack(h->text, out_n) : NULL;
}

static struct manifest_carry carry_of(const struct part_saved *a)
{
	return (struct manifest_carry){ .count = a->count,
					.sum_weight = a->sum_weight,
					.sum_loss = a->sum_loss,
					.last_rank = a->last_rank,
					.lr = a->window_lr,
					.lr_rank = a->lr_rank };
}

static void add_carry(struct manifest_carry *to, const struct manifest_carry *more)
{
	if (!to->count) {
		*to = *more;
		return;
	}
	to->count += more->count;
	to->sum_weight += more->sum_weight;
	to->sum_loss += more->sum_loss;
}

/* Files [from, end). */
static void put_files(struct checkpoint_file *to, const struct part_saved *a, int from, int end)
{
	for (int i = from; i < end; i++) {
		to[i].bytes = a->file[i].bytes;
		memcpy(to[i].sha256, a->file[i].sha256, SHA256_BYTES);
	}
}

static bool has_carry(const struct part_saved *a)
{
	return a->file[CHECKPOINT_CARRY].bytes != 0;
}

/* The open window, by part where there are several. */
static void put_window(const struct saving *s, struct manifest *m)
{
	for (uint32_t i = 0; i < s->answers.n_files; i++) {
		const struct part_saved *a = &s->answers.part[i].is;
		const struct manifest_carry c = carry_of(a);
		if (!has_carry(a))
			continue;
		m->inside_window = true;
		add_carry(&m->carry, &c);
		m->part[i].carry = c;
		put_files(m->part[i].file, a, CHECKPOINT_CARRY, CHECKPOINT_PARTS);
	}
	if (m->inside_window && s->answers.n_files > 1) {
		m->n_parts = s->answers.n_files;
		memset(&m->file[CHECKPOINT_CARRY], 0, (ENGINE_FILES - CHECKPOINT_CARRY) * sizeof(m->file[0]));
	}
}

/* The optimizer state of a sharded job: each part has a share of it. */
static void put_shares(const struct saving *s, struct manifest *m)
{
	m->n_shares = s->answers.n_files;
	for (uint32_t i = 0; i < s->answers.n_files; i++)
		put_files(m->part[i].file, &s->answers.part[i].is, CHECKPOINT_OPTIMIZER, CHECKPOINT_CARRY);
	m->file[CHECKPOINT_OPTIMIZER].bytes = 0;
}

static void fill_manifest(const struct hosted *h, const struct save_want *want, struct manifest *m)
{
	const struct saving *s = h->saving;
	const struct part_saved *a = &s->answers.part[0].is;
	*m = (struct manifest){ .id = want->id,
				.job = h->id,
				.name = h->spec->name,
				.uid = h->uid,
				.created_unix_ns = daemon_now(h->d).unix_ns,
				.window = a->window,
				.applied_step = a->applied_step,
				.ranks = h->spec->ranks,
				.micro_size = a->micro_size,
				.optimizer = optim_info(h->spec->optim.type)->name,
				.accumulate_dtype = dtype_name(h->spec->accumulate_dtype),
				.loss_scale = a->loss_scale,
				.params_digest = a->params_digest };
	memcpy(m->uuid, h->uuid, 16);
	if (s->have_before)
		manifest_put_commit(m, &s->before);
	manifest_put_updates(m, s->update, s->n_updates);
	put_files(m->file, a, CHECKPOINT_MODEL, CHECKPOINT_PARTS);
	if (spec_is_sharded(h->spec))
		put_shares(s, m);
	put_window(s, m);
}

/* The trainers' states, by part; those that come too late are left to the next sweep. */
static void put_states(const struct saving *s, struct disk_work *w)
{
	w->n_states = s->answers.n;
	for (uint32_t i = 0; i < w->n_states; i++) {
		const struct save_answer *a = &s->answers.part[i];
		if (!a->answered)
			continue;
		w->states[i].has_dir = a->is.dir.ino != 0;
		w->states[i].n = a->is.n_states;
		w->states[i].file.bytes = a->is.states.bytes;
		memcpy(w->states[i].file.sha256, a->is.states.sha256, SHA256_BYTES);
	}
}

static uint64_t manifest_bytes(const struct manifest *m)
{
	const struct checkpoint_file *f;
	char name[CHECKPOINT_FILE_NAME];
	uint64_t bytes = 0;
	for (uint32_t i = 0; (f = manifest_file(m, i, name)); i++)
		bytes += f->bytes;
	return bytes;
}

void saving_seal(void *ctx, const struct save_want *want)
{
	struct hosted *h = ctx;
	struct saving *s = h->saving;
	struct disk_work *w = new_work(h, DISK_SEAL);
	struct saved *k = saved_find(&h->saved, want->id);
	if (w)
		w->spec = pack_spec(h, &w->manifest.n_spec);
	if (!w || !w->spec || !k) {
		disk_free(w);
		saver_on_sealed(&s->saver, ST_NO_MEMORY); /* the next sweep deletes the files */
		return;
	}
	size_t n_spec = w->manifest.n_spec;
	fill_manifest(h, want, &w->manifest);
	w->manifest.n_spec = n_spec;
	w->tensors = h->text->pb->n_tensors ? NULL : shared_hold(h->tensors);
	put_states(s, w);
	const struct part_saved *first = &s->answers.part[0].is;
	w->n_made = s->answers.n_files;
	for (uint32_t i = 0; i < w->n_made; i++)
		w->made[i] = (struct checkpoint_dir){ s->answers.part[i].is.dir.dev, s->answers.part[i].is.dir.ino };
	checkpoint_final_path(w->final, s->dir, h->uuid, first->applied_step, want->id);
	memcpy(s->final, w->final, sizeof(s->final));
	saved_set_text(&k->path, w->final);
	k->window = first->window;
	k->applied_step = first->applied_step;
	k->carried = w->manifest.carry.count;
	k->bytes += manifest_bytes(&w->manifest);
	start_work(h, w);
}

static bool list_old(const struct hosted *h, struct disk_work *w)
{
	size_t n = saved_complete(&h->saved), keep = h->spec->checkpoint.keep;
	w->path = calloc(n + 1, sizeof(*w->path));
	w->id = calloc(n + 1, sizeof(*w->id));
	for (size_t i = 0; w->path && w->id && i < h->saved.n && n - w->n > keep; i++) {
		const struct saved *k = &h->saved.saved[i];
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

void saving_prune(void *ctx)
{
	struct hosted *h = ctx;
	struct saving *s = h->saving;
	struct disk_work *w = NULL;
	if (h->spec->checkpoint.keep && saved_complete(&h->saved) > h->spec->checkpoint.keep)
		w = new_work(h, DISK_PRUNE);
	if (w && list_old(h, w)) {
		start_work(h, w);
		return;
	}
	disk_free(w);
	saver_on_pruned(&s->saver); /* nothing to do, or no memory: next time */
}

void saving_discard(void *ctx)
{
	struct hosted *h = ctx;
	struct disk_work *w = new_work(h, DISK_DISCARD);
	if (!w)
		return; /* without a record nobody is offered it */
	memcpy(w->final, h->saving->final, sizeof(w->final));
	start_work(h, w);
}

/* ---- what comes back ---- */

static void swept(struct hosted *h, const struct disk_work *w)
{
	struct saving *s = h->saving;
	char text[400];
	if (w->status) {
		s->dir[0] = '\0';
		snprintf(text, sizeof(text), "checkpoints of this job cannot be saved: %.320s", w->why);
		hosted_event(h, true, "CheckpointFailed", -1, text);
		saver_on_swept(&s->saver, w->last_id);
		saver_switch_off(&s->saver, w->status);
		return;
	}
	memcpy(s->dir, w->dir, sizeof(s->dir));
	saver_on_swept(&s->saver, w->last_id);
}

static void pruned(struct hosted *h, const struct disk_work *w)
{
	struct saving *s = h->saving;
	for (size_t i = 0; i < w->n_done; i++) {
		struct journal_record r = { .kind = JOURNAL_CHECKPOINT_GONE, .gone = { h->id, w->id[i] } };
		/* a row without its directory is dropped at the next start */
		persist_put(h->d->persist, &r, NULL, NULL);
		saved_remove(&h->saved, w->id[i]);
	}
	if (w->status)
		hosted_event(h, true, "CheckpointNotDeleted", -1, w->why);
	saver_on_pruned(&s->saver);
}

static void sealed(struct hosted *h, const struct disk_work *w)
{
	struct saving *s = h->saving;
	struct saved *k = saved_find(&h->saved, w->manifest.id);
	memcpy(s->sha256, w->sha256, sizeof(s->sha256));
	s->n_states = w->manifest.n_states;
	if (w->status)
		saving_set_why(h, w->why);
	else if (k) {
		k->state_bytes = w->manifest.states.bytes;
		k->bytes += k->state_bytes;
	}
	saver_on_sealed(&s->saver, w->status);
}

static void on_disk(struct disk_work *w)
{
	struct hosted *h = w->arg;
	struct saving *s = h->saving;
	s->n_working--;
	hosted_drop(h);
	switch (w->kind) {
	case DISK_SWEEP:
		swept(h, w);
		break;
	case DISK_SEAL:
		sealed(h, w);
		break;
	case DISK_PRUNE:
		pruned(h, w);
		break;
	case DISK_DISCARD:
		break;
	}
}
