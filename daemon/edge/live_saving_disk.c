/* SPDX-License-Identifier: Apache-2.0 */
/* What a live job's checkpoints need of the disk besides the engine's files: asked for by control/saver.h, done by the
 * pool (saving_disk.h), and what came of it told back. */
#include "edge/live_saving_impl.h"

#include "edge/live_launch.h"
#include "gacc/v1/common.pb-c.h"
#include "math/optim.h"
#include "runtime/manifest_commit.h"
#include "runtime/manifest_updates.h"
#include "runtime/saving_disk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void on_disk(struct disk_work *w);

static struct disk_work *new_work(struct live_job *l, enum disk_kind kind)
{
	struct saving *s = l->saving;
	struct disk_work *w = disk_new(kind, on_disk, l);
	if (!w)
		return NULL;
	memcpy(w->uuid, l->uuid, 16);
	w->uid = l->uid;
	w->state_dir = l->d->node.conf->state_dir;
	w->allowed = l->d->node.conf->checkpoint.allowed_dirs;
	memcpy(w->dir, s->dir, sizeof(w->dir));
	if (s->saver.n_wants)
		checkpoint_partial_path(w->partial, s->dir, l->uuid, s->saver.want[0].id);
	return w;
}

static void start_work(struct live_job *l, struct disk_work *w)
{
	l->saving->n_working++;
	live_hold(l);
	disk_start(l->d->node.pool, w);
}

/* ---- what the machine asks for ---- */

static void saving_dir(const struct live_job *l, char *out, size_t n)
{
	const Gacc__V1__CheckpointPolicy *c = l->text->pb->checkpoint;
	if (!c || !*c->dir) {
		snprintf(out, n, "%.4000s/checkpoints/%llu", l->d->node.conf->state_dir, (unsigned long long)l->id);
		return;
	}
	char *dir = live_path(l, c->dir);
	snprintf(out, n, "%s", dir ? dir : "");
	free(dir);
}

void saving_sweep(void *ctx)
{
	struct live_job *l = ctx;
	struct disk_work *w = new_work(l, DISK_SWEEP);
	if (!w)
		return; /* the tick asks again */
	saving_dir(l, w->wanted, sizeof(w->wanted));
	start_work(l, w);
}

/* The specification, without tensors that did not come with it: these are in disk_work.tensors. */
static void *pack_spec(struct live_job *l, size_t *out_n)
{
	if (!l->text->pb->n_tensors && part_pack_tensors(l->part))
		return NULL;
	return specification_pack(l->text, out_n);
}

static void fill_manifest(const struct live_job *l, const struct save_want *want, struct manifest *m)
{
	const struct saving *s = l->saving;
	const struct engine_answer *a = &s->answer;
	bool inside = a->file[CHECKPOINT_CARRY].bytes != 0;
	*m = (struct manifest){ .id = want->id,
				.job = l->id,
				.name = l->spec->name,
				.uid = l->uid,
				.created_unix_ns = daemon_now(l->d).unix_ns,
				.window = a->window,
				.applied_step = a->applied_step,
				.inside_window = inside,
				.ranks = l->spec->ranks,
				.micro_size = a->micro_size,
				.optimizer = optim_info(l->spec->optim.type)->name,
				.accumulate_dtype = dtype_name(l->spec->accumulate_dtype),
				.loss_scale = a->loss_scale,
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

void saving_seal(void *ctx, const struct save_want *want)
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
	w->tensors = l->part->tensors.packed ? shared_hold(l->part->tensors.packed) : NULL;
	w->made = (struct checkpoint_dir){ s->answer.dir.dev, s->answer.dir.ino };
	checkpoint_final_path(w->final, s->dir, l->uuid, s->answer.applied_step, want->id);
	memcpy(s->final, w->final, sizeof(s->final));
	saved_set_text(&k->path, w->final);
	k->window = s->answer.window;
	k->applied_step = s->answer.applied_step;
	k->carried = w->manifest.count;
	for (int i = 0; i < ENGINE_FILES; i++)
		k->bytes += s->answer.file[i].bytes;
	start_work(l, w);
}

static bool list_old(const struct live_job *l, struct disk_work *w)
{
	size_t n = saved_complete(&l->saved), keep = l->spec->checkpoint.keep;
	w->path = calloc(n + 1, sizeof(*w->path));
	w->id = calloc(n + 1, sizeof(*w->id));
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

void saving_prune(void *ctx)
{
	struct live_job *l = ctx;
	struct saving *s = l->saving;
	struct disk_work *w = NULL;
	if (l->spec->checkpoint.keep && saved_complete(&l->saved) > l->spec->checkpoint.keep)
		w = new_work(l, DISK_PRUNE);
	if (w && list_old(l, w)) {
		start_work(l, w);
		return;
	}
	disk_free(w);
	saver_on_pruned(&s->saver); /* nothing to do, or no memory: next time */
}

void saving_discard(void *ctx)
{
	struct live_job *l = ctx;
	struct disk_work *w = new_work(l, DISK_DISCARD);
	if (!w)
		return; /* without a record nobody is offered it */
	memcpy(w->final, l->saving->final, sizeof(w->final));
	start_work(l, w);
}

/* ---- what comes back ---- */

static void swept(struct live_job *l, const struct disk_work *w)
{
	struct saving *s = l->saving;
	char text[400];
	if (w->status) {
		s->dir[0] = '\0';
		snprintf(text, sizeof(text), "checkpoints of this job cannot be saved: %.320s", w->why);
		live_event(l, true, "CheckpointFailed", -1, text);
		saver_on_swept(&s->saver, w->last_id);
		saver_switch_off(&s->saver, w->status);
		return;
	}
	memcpy(s->dir, w->dir, sizeof(s->dir));
	saver_on_swept(&s->saver, w->last_id);
}

static void pruned(struct live_job *l, const struct disk_work *w)
{
	struct saving *s = l->saving;
	for (size_t i = 0; i < w->n_done; i++) {
		struct journal_record r = { .kind = JOURNAL_CHECKPOINT_GONE, .gone = { l->id, w->id[i] } };
		/* a row without its directory is dropped at the next start */
		persist_put(l->d->persist, &r, NULL, NULL);
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
		memcpy(s->sha256, w->sha256, sizeof(s->sha256));
		if (w->status)
			saving_set_why(l, w->why);
		saver_on_sealed(&s->saver, w->status);
		break;
	case DISK_PRUNE:
		pruned(l, w);
		break;
	case DISK_DISCARD:
		break;
	}
}
