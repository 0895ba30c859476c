/* SPDX-License-Identifier: Apache-2.0 */
/* Does the disk work of checkpoints besides the engine's files: sweeps leftovers, seals, deletes old ones; and
 * decides which directories a user may use. For edge's checkpoints and restores. The work runs in the pool, the
 * question of directories on any thread, the rest on the loop thread. */
#include "runtime/saving_disk.h"

#include "base/log.h"
#include "proto/failpoint.h"

#include <errno.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- directories that a user may use ---- */

/* `path` beneath one of the directories; `really`: of what their names lead to. */
static bool beneath_any(const char *state_dir, const char *allowed, const char *path, bool really)
{
	char root[PATH_MAX + 16], real[PATH_MAX];
	snprintf(root, sizeof(root), "%s/checkpoints", state_dir);
	for (const char *next = allowed;;) {
		const char *dir = really ? realpath(root, real) : root;
		if (dir && root[0] == '/' && checkpoint_beneath(path, dir))
			return true;
		if (!*next)
			return false;
		size_t n = strcspn(next, ":");
		snprintf(root, sizeof(root), "%.*s", (int)n, next);
		next += n + (next[n] == ':');
	}
}

bool disk_text_allowed(const char *state_dir, const char *allowed, uint32_t uid, const char *path)
{
	return uid == geteuid() || uid == 0 || beneath_any(state_dir, allowed, path, false);
}

bool disk_place_allowed(const char *state_dir, const char *allowed, uint32_t uid, const char *resolved)
{
	return uid == geteuid() || uid == 0 || beneath_any(state_dir, allowed, resolved, true);
}

bool disk_may_read(uint32_t uid, uint32_t owner, const struct manifest *m)
{
	return uid == 0 || uid == geteuid() || owner == uid || (owner == geteuid() && m->uid == uid);
}

/* ---- in the pool ---- */

/* Lets other users pass through state_dir to their own directories in it; gaccd's own files there have modes that
 * keep them out. */
static void let_others_through(const struct disk_work *w, const char *state_dir)
{
	struct stat s;
	if (w->uid != geteuid() && checkpoint_beneath(w->dir, state_dir) && !stat(state_dir, &s) &&
	    (s.st_mode & 0111) != 0111 && chmod(state_dir, (s.st_mode & 07777) | 0111) < 0)
		log_error("chmod a+x %s: %s", state_dir, strerror(errno));
}

/* The names in it reveal the jobs of all users, and an older gaccd has made it so that everybody could list it. */
static void close_to_listing(int fd)
{
	struct stat s;
	if (!fstat(fd, &s) && s.st_uid == geteuid() && (s.st_mode & 0044) && fchmod(fd, s.st_mode & 07777 & ~0044u))
		log_error("chmod go-r of the checkpoints' directory: %s", strerror(errno));
}

/* state_dir/checkpoints is ours to make; what else is missing on the way is made when the first checkpoint is written.
 */
static void run_sweep(struct disk_work *w)
{
	char root[PATH_MAX] = "", ours[PATH_MAX + 16];
	int fd;
	if (realpath(w->state_dir, root)) {
		snprintf(ours, sizeof(ours), "%s/checkpoints", root);
		if (!checkpoint_open_dir(ours, true, &fd, w->why, sizeof(w->why))) {
			close_to_listing(fd);
			close(fd);
		}
	}
	w->status = FAILPOINT_ERROR(gaccd_save_sweep_before);
	if (!w->status)
		w->status = checkpoint_resolve(w->wanted, w->dir, w->why, sizeof(w->why));
	if (!w->status && !disk_place_allowed(w->state_dir, w->allowed, w->uid, w->dir)) {
		snprintf(w->why, sizeof(w->why), "%.200s is in none of the directories of checkpoint.allowed_dirs",
			 w->dir);
		w->status = ST_PERMISSION_DENIED;
	}
	if (!w->status && *root)
		let_others_through(w, root);
	if (!w->status)
		w->status = checkpoint_sweep(w->dir, w->uuid, &w->last_id, w->why, sizeof(w->why));
}

/* The spec with the tensor set, as a restore needs it: the bytes of two messages behind each other are one message. */
static enum status join_spec(struct disk_work *w)
{
	size_t n = w->manifest.n_spec, more = w->tensors ? w->tensors->n : 0;
	uint8_t *whole = more ? realloc(w->spec, n + more) : w->spec;
	if (!whole)
		return ST_NO_MEMORY;
	if (more)
		memcpy(whole + n, w->tensors->data, more);
	w->manifest.spec = w->spec = whole;
	w->manifest.n_spec = n + more;
	return ST_OK;
}

static enum status gather(struct disk_work *w)
{
	enum status st = ST_OK;
	for (uint32_t i = 0; i < w->n_made && !st; i++)
		st = checkpoint_gather(w->partial, &w->made[0], &w->made[i], i, &w->manifest, w->why, sizeof(w->why));
	return st;
}

static void remove_partial(const struct disk_work *w)
{
	char path[CHECKPOINT_MAX_PATH], ignored[320];
	for (uint32_t i = 0; i < w->n_made || i < w->n_states; i++) {
		checkpoint_part_path(path, w->partial, i);
		if (i < w->n_made || w->states[i].has_dir)
			checkpoint_remove(path, ignored, sizeof(ignored));
	}
}

static void run_seal(struct disk_work *w)
{
	struct passwd p, *found = NULL;
	char buf[4096];
	uint32_t gid = getegid();
	if (w->uid != geteuid() && !getpwuid_r(w->uid, &p, buf, sizeof(buf), &found) && found)
		gid = p.pw_gid;
	w->status = join_spec(w);
	if (!w->status)
		w->status = checkpoint_join_states(w->partial, &w->made[0], w->states, w->n_states, w->n_made,
						   &w->manifest, w->why, sizeof(w->why));
	if (!w->status && w->n_made > 1)
		w->status = gather(w);
	if (!w->status)
		w->status = checkpoint_seal(w->partial, &w->made[0], w->final, &w->manifest, w->uid, gid, w->sha256,
					    w->why, sizeof(w->why));
	if (w->status)
		remove_partial(w);
	FAILPOINT(gaccd_save_sealed);
}

/* Deletes all that it can and skips the others: otherwise one that its user has moved away would keep all later ones
 * on the disk. Afterwards the deleted ones are first in the list. */
static void run_prune(struct disk_work *w)
{
	for (size_t i = 0; i < w->n; i++) {
		char why[sizeof(w->why)] = "", *path = w->path[i];
		uint64_t id = w->id[i];
		enum status st = checkpoint_remove(path, why, sizeof(why));
		if (st) {
			if (!w->status)
				memcpy(w->why, why, sizeof(why));
			w->status = st;
			continue;
		}
		w->path[i] = w->path[w->n_done];
		w->id[i] = w->id[w->n_done];
		w->path[w->n_done] = path;
		w->id[w->n_done++] = id;
	}
}

static void run(struct rpc_work *u)
{
	struct disk_work *w = (struct disk_work *)u;
	switch (w->kind) {
	case DISK_SWEEP:
		run_sweep(w);
		break;
	case DISK_SEAL:
		run_seal(w);
		break;
	case DISK_PRUNE:
		run_prune(w);
		break;
	case DISK_DISCARD:
		w->status = checkpoint_remove(w->final, w->why, sizeof(w->why));
		break;
	}
	if (w->status && !w->why[0])
		snprintf(w->why, sizeof(w->why), "%s", status_info(w->status)->text);
}

/* ---- on the loop ---- */

void disk_free(struct disk_work *w)
{
	if (!w)
		return;
	for (size_t i = 0; i < w->n; i++)
		free(w->path[i]);
	free(w->path);
	free(w->id);
	free(w->spec);
	shared_drop(w->tensors);
	free(w);
}

static void after(struct rpc_work *u)
{
	struct disk_work *w = (struct disk_work *)u;
	w->done(w);
	disk_free(w);
}

struct disk_work *disk_new(enum disk_kind kind, void (*done)(struct disk_work *), void *arg)
{
	struct disk_work *w = calloc(1, sizeof(*w));
	if (!w)
		return NULL;
	w->kind = kind;
	w->done = done;
	w->arg = arg;
	return w;
}

void disk_start(struct rpc_pool *pool, struct disk_work *w)
{
	rpc_pool_put_kind(pool, RPC_POOL_DISK, &w->work, w->uid, run, after);
}
