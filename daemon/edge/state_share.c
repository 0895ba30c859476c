/* SPDX-License-Identifier: Apache-2.0 */
/* What each user has in state_dir, and what that allows: for checkpoints, logs and GetNode. Loop thread; state_scan.c
 * in the pool. */
#include "edge/state_share.h"

#include "base/log.h"
#include "edge/checkpoints.h"
#include "edge/disk_watch.h"
#include "edge/hosted.h"
#include "edge/starter.h"
#include "edge/submitting.h"
#include "gacc/v1/common.pb-c.h"
#include "runtime/state_scan.h"
#include "store/checkpoint.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#define LOOK_NS (INT64_C(10) * 1000000000)
#define SOON_NS (INT64_C(1) * 1000000000)
#define MIB (UINT64_C(1) << 20)
#define MAX_ENTRIES 100000 /* of a user; some tenths of a second */

/* A checkpoint that the last look has not seen, or not whole. */
struct begun {
	uint32_t uid;
	uint64_t job, bytes;
	bool seen; /* it was over before the look that is under way */
};

struct state_share {
	uv_work_t work;
	struct daemon *d;
	bool looking, told_cut;
	int64_t due_ns, limits_due_ns;
	char root[PATH_MAX];	/* state_dir, resolved */
	struct state_scan scan; /* the pool's while looking */
	struct state_user *user;
	size_t n_users;
	struct begun *begun;
	size_t n_begun;
};

/* ---- the look ---- */

static void look(uv_work_t *w)
{
	struct state_share *s = w->data;
	state_scan_run(&s->scan);
}

/* The look has counted them, or what they came to. */
static void drop_seen(struct state_share *s)
{
	size_t n = 0;
	for (size_t i = 0; i < s->n_begun; i++)
		if (!s->begun[i].seen)
			s->begun[n++] = s->begun[i];
	s->n_begun = n;
}

static void tell_cut(struct state_share *s)
{
	const struct state_user *cut = NULL;
	for (size_t i = 0; i < s->scan.n_users && !cut; i++)
		cut = s->scan.user[i].cut ? &s->scan.user[i] : NULL;
	if (cut && !s->told_cut)
		log_warn("uid %u has more than %d files in %s, too many to count them all: there is no room for more "
			 "of this user",
			 cut->uid, MAX_ENTRIES, s->root);
	s->told_cut = cut != NULL;
}

static void on_looked(uv_work_t *w, int canceled)
{
	struct state_share *s = w->data;
	s->looking = false;
	tell_cut(s);
	if (s->scan.n_deleted)
		log_info("%u logs of forgotten jobs were deleted", s->scan.n_deleted);
	free(s->user);
	s->user = s->scan.user;
	s->n_users = s->scan.n_users;
	s->scan.user = NULL;
	state_scan_fini(&s->scan);
	drop_seen(s);
}

bool state_share_has_logs(const struct starter *s)
{
	return s->default_logs && !s->done && !s->ports->ended(s->owner);
}

static int compare_ids(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

/* Jobs of other gaccds are forgotten there, which nobody tells: of them a node keeps as many logs as its history has
 * jobs. */
static bool list_jobs(struct state_share *s)
{
	struct daemon *d = s->d;
	const struct hosted *p;
	size_t n_starters = 0;
	for (const struct starter *t = d->starter; t; t = t->next)
		n_starters++;
	s->scan = (struct state_scan){ .state_dir = s->root, .max_entries = MAX_ENTRIES, .first_new = d->last_job + 1 };
	s->scan.keep_newest = d->away ? d->node.conf->history.jobs : 0;
	s->scan.known = calloc(d->n_jobs + n_starters + 1, sizeof(*s->scan.known));
	s->scan.running = calloc(n_starters + 1, sizeof(*s->scan.running));
	if (!s->scan.known || !s->scan.running)
		return false;
	for (uint32_t i = 0; i < d->n_jobs; i++)
		s->scan.known[s->scan.n_known++] = d->job[i]->id;
	for (const struct starter *t = d->starter; t; t = t->next) {
		s->scan.known[s->scan.n_known++] = t->job.id;
		if (state_share_has_logs(t))
			s->scan.running[s->scan.n_running++] = t->job.id;
	}
	qsort(s->scan.known, s->scan.n_known, sizeof(*s->scan.known), compare_ids);
	qsort(s->scan.running, s->scan.n_running, sizeof(*s->scan.running), compare_ids);
	for (size_t i = 0; (p = submitting_pending(d, i)); i++)
		if (p->id < s->scan.first_new)
			s->scan.first_new = p->id;
	return true;
}

/* A job writes one checkpoint at a time: the last that it began. */
static bool is_under_way(const struct state_share *s, size_t at)
{
	const struct hosted *h = hosted_find(s->d, s->begun[at].job);
	for (size_t i = at + 1; i < s->n_begun; i++)
		if (s->begun[i].job == s->begun[at].job)
			return false;
	return h && h->saving && saving_under_way(h);
}

static void start_look(struct state_share *s)
{
	if (!list_jobs(s)) {
		state_scan_fini(&s->scan);
		return;
	}
	for (size_t i = 0; i < s->n_begun; i++)
		s->begun[i].seen = !is_under_way(s, i);
	s->looking = true;
	uv_queue_work(&s->d->node.loop, &s->work, look, on_looked);
}

/* ---- what a user has ---- */

static const struct state_user *find(const struct state_share *s, uint32_t uid)
{
	static const struct state_user none;
	for (size_t i = 0; i < s->n_users; i++)
		if (s->user[i].uid == uid)
			return &s->user[i];
	return &none;
}

struct state_use state_share_of(const struct daemon *d, uint32_t uid)
{
	const struct state_share *s = d->share;
	const struct state_user *u = find(s, uid);
	struct state_use use = { .checkpoints = u->checkpoints,
				 .logs = u->logs,
				 .limit = d->node.conf->limits.state_per_user };
	if (!use.limit)
		use.limit = disk_watch_state(d).total / 2;
	for (size_t i = 0; i < s->n_begun; i++)
		if (s->begun[i].uid == uid)
			use.checkpoints += s->begun[i].bytes;
	return use;
}

/* ---- checkpoints ---- */

enum status state_share_admit(struct hosted *h, const char *dir, uint64_t bytes, char *why, size_t n_why)
{
	struct state_share *s = h->d->share;
	if (!checkpoint_beneath(dir, s->root))
		return ST_OK;
	struct state_use use = state_share_of(h->d, h->uid);
	if (find(s, h->uid)->cut) {
		snprintf(why, n_why,
			 "%.60s has more than %d files in gaccd's state_dir, too many to count what they take: delete "
			 "some",
			 h->user, MAX_ENTRIES);
		return ST_RESOURCE_EXHAUSTED;
	}
	if (use.checkpoints + bytes > use.limit) {
		snprintf(why, n_why,
			 "%.60s has %.1f MiB of checkpoints in gaccd's state_dir, this one takes %.1f MiB, and "
			 "limits.state_per_user is %.1f MiB: delete old ones, or lower checkpoint.keep",
			 h->user, (double)use.checkpoints / MIB, (double)bytes / MIB, (double)use.limit / MIB);
		return ST_RESOURCE_EXHAUSTED;
	}
	enum status st = disk_watch_admit(h->d, "a checkpoint", bytes, why, n_why);
	struct begun *more = st ? NULL : realloc(s->begun, (s->n_begun + 1) * sizeof(*more));
	if (st || !more)
		return st ? st : ST_NO_MEMORY;
	s->begun = more;
	s->begun[s->n_begun++] = (struct begun){ .uid = h->uid, .job = h->id, .bytes = bytes };
	return ST_OK;
}

/* ---- logs ---- */

static bool has_most(const struct state_share *s, const struct state_user *u)
{
	for (size_t i = 0; i < s->n_users; i++)
		if (s->user[i].cut || s->user[i].logs + s->user[i].checkpoints > u->logs + u->checkpoints)
			return u->cut;
	return u->logs > 0;
}

/* What checkpoints and the logs of earlier jobs leave of the share, in equal parts for the user's jobs and their ranks.
 * While the disk is full the user who has most in it gets the least. */
uint64_t state_share_log_max(const struct daemon *d, uint32_t uid, uint32_t n_ranks)
{
	const struct state_user *u = find(d->share, uid);
	uint64_t jobs = 0, most = d->node.conf->log.rank_max;
	if (disk_watch_state(d).full && has_most(d->share, u))
		return 0; /* the writer of the logs knows the least */
	for (const struct starter *s = d->starter; s; s = s->next)
		jobs += s->job.uid == uid && state_share_has_logs(s);
	struct state_use use = state_share_of(d, uid);
	uint64_t taken = use.checkpoints + u->logs - u->running_logs;
	uint64_t left = use.limit > taken && !u->cut ? (use.limit - taken) / (jobs ? jobs : 1) / n_ranks / 2 : 0;
	return left < most ? left : most;
}

/* ---- life ---- */

enum status state_share_new(struct daemon *d)
{
	struct state_share *s = calloc(1, sizeof(*s));
	if (!s)
		return ST_NO_MEMORY;
	s->d = d;
	s->work.data = s;
	if (!realpath(d->node.conf->state_dir, s->root))
		snprintf(s->root, sizeof(s->root), "%.4000s", d->node.conf->state_dir);
	d->share = s;
	return ST_OK;
}

void state_share_changed(struct daemon *d)
{
	d->share->due_ns = 0;
}

bool state_share_limits_due(struct daemon *d, struct now now)
{
	struct state_share *s = d->share;
	bool due = now.mono_ns >= s->limits_due_ns;
	if (due)
		s->limits_due_ns = now.mono_ns + SOON_NS;
	return due;
}

void state_share_tick(struct daemon *d, struct now now)
{
	struct state_share *s = d->share;
	if (s->looking || now.mono_ns < s->due_ns)
		return;
	start_look(s);
	s->due_ns = now.mono_ns + (disk_watch_state(d).full || s->n_begun ? SOON_NS : LOOK_NS);
}

bool state_share_busy(const struct daemon *d)
{
	return d->share && d->share->looking;
}

void state_share_free(struct state_share *s)
{
	if (!s)
		return;
	free(s->user);
	free(s->begun);
	free(s);
}
