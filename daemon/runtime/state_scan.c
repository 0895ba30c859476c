/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the files in state_dir/logs and state_dir/checkpoints by owner, and deletes the logs of deleted jobs. For
 * edge/state_share.c, which runs it on a thread of libuv's pool, because it blocks. */
#include "runtime/state_scan.h"

#include "proto/path.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_DEPTH 6

struct walk {
	struct state_scan *s;
	bool logs, running;
};

static struct state_user *user_of(struct state_scan *s, uint32_t uid)
{
	for (size_t i = 0; i < s->n_users; i++)
		if (s->user[i].uid == uid)
			return &s->user[i];
	struct state_user *more = realloc(s->user, (s->n_users + 1) * sizeof(*more));
	if (!more)
		return NULL;
	s->user = more;
	more[s->n_users] = (struct state_user){ .uid = uid };
	return &more[s->n_users++];
}

static void count(const struct walk *w, const struct stat *st)
{
	struct state_user *u = user_of(w->s, st->st_uid);
	uint64_t bytes = (uint64_t)st->st_blocks * 512;
	if (!u)
		return;
	if (w->logs)
		u->logs += bytes;
	else
		u->checkpoints += bytes;
	if (w->logs && w->running)
		u->running_logs += bytes;
}

/* The directory, with its owner's rights where ours are not enough; *as: whose rights this thread has from now on. */
static DIR *enter(int at, const char *name, const struct stat *st, bool *as)
{
	const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
	int fd = openat(at, name, flags);
	*as = false;
	if (fd < 0 && errno == EACCES && st->st_uid != geteuid()) {
		setfsuid(st->st_uid);
		*as = true;
		fd = openat(at, name, flags);
	}
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	if (fd >= 0 && !dir)
		close(fd);
	return dir;
}

static void leave(DIR *dir, bool as)
{
	if (dir)
		closedir(dir);
	if (as)
		setfsuid(geteuid());
}

/* Counts one more entry in a directory of this user, whoever owns the entry; false: there have been too many. */
static bool may_look(struct state_scan *s, uint32_t uid)
{
	struct state_user *u = user_of(s, uid);
	if (!u || u->cut)
		return false;
	u->cut = u->n_entries == s->max_entries;
	u->n_entries += !u->cut;
	return !u->cut;
}

static bool is_dots(const char *name)
{
	return !strcmp(name, ".") || !strcmp(name, "..");
}

static void walk(const struct walk *w, int at, const char *name, const struct stat *st, int depth)
{
	struct stat in;
	bool as;
	DIR *dir = enter(at, name, st, &as);
	for (const struct dirent *e; dir && (e = readdir(dir));) {
		if (is_dots(e->d_name))
			continue;
		if (!may_look(w->s, st->st_uid))
			break;
		if (fstatat(dirfd(dir), e->d_name, &in, AT_SYMLINK_NOFOLLOW))
			continue;
		count(w, &in);
		if (S_ISDIR(in.st_mode) && depth < MAX_DEPTH)
			walk(w, dirfd(dir), e->d_name, &in, depth + 1);
	}
	leave(dir, as);
}

/* ---- logs of deleted jobs ---- */

/* "worker_12.log", ".log.1", ".log.new": what the writer of logs makes. */
static bool is_ours(const char *name)
{
	unsigned rank;
	int n = 0;
	if (sscanf(name, "worker_%u.log%n", &rank, &n) != 1 || !n)
		return false;
	return !strcmp(name + n, "") || !strcmp(name + n, ".1") || !strcmp(name + n, ".new");
}

/* Other files that the user has put there stay, and then the directory stays, too. */
static void delete_logs(struct state_scan *s, int at, const char *name, const struct stat *st)
{
	bool as;
	DIR *dir = enter(at, name, st, &as);
	for (const struct dirent *e; dir && (e = readdir(dir));)
		if (is_ours(e->d_name) && !unlinkat(dirfd(dir), e->d_name, 0))
			s->n_deleted++;
	leave(dir, as);
	unlinkat(at, name, AT_REMOVEDIR);
}

static bool is_in(const uint64_t *sorted, size_t n, uint64_t id)
{
	size_t lo = 0;
	while (n) {
		size_t half = n / 2;
		if (sorted[lo + half] == id)
			return true;
		if (sorted[lo + half] < id) {
			lo += half + 1;
			n -= half + 1;
		} else {
			n = half;
		}
	}
	return false;
}

/* The number of a job as gaccd writes it: ID, or ID-UUID for logs; 0: none. */
static uint64_t job_of(const char *name)
{
	char again[24];
	unsigned long long id = strtoull(name, NULL, 10);
	const size_t n = (size_t)snprintf(again, sizeof(again), "%llu", id);
	const char *uuid = name + n + 1;
	if (strncmp(again, name, n))
		return 0;
	bool whole =
		name[n] == '-' && strlen(uuid) == UUID_TEXT - 1 && strspn(uuid, "0123456789abcdef-") == UUID_TEXT - 1;
	return !name[n] || whole ? id : 0;
}

static void look_at_job(struct state_scan *s, int at, const char *name, bool logs)
{
	struct walk w = { .s = s, .logs = logs };
	uint64_t id = job_of(name);
	struct stat st;
	if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISDIR(st.st_mode))
		return;
	if (logs && id && id < s->first_new && !is_in(s->known, s->n_known, id)) {
		delete_logs(s, at, name, &st);
		if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW))
			return;
	}
	w.running = is_in(s->running, s->n_running, id);
	count(&w, &st);
	walk(&w, at, name, &st, 0);
}

static void look_in(struct state_scan *s, const char *what, bool logs)
{
	char path[4200];
	snprintf(path, sizeof(path), "%s/%s", s->state_dir, what);
	DIR *dir = opendir(path);
	for (const struct dirent *e; dir && (e = readdir(dir));)
		if (!is_dots(e->d_name))
			look_at_job(s, dirfd(dir), e->d_name, logs);
	if (dir)
		closedir(dir);
}

static int compare_down(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? 1 : x > y ? -1 : 0;
}

/* No log of the newest ones is below first_new. Without memory none is. */
static void spare_newest(struct state_scan *s)
{
	char path[4200];
	snprintf(path, sizeof(path), "%s/logs", s->state_dir);
	DIR *dir = opendir(path);
	uint64_t *id = NULL, n = 0;
	for (const struct dirent *e; dir && (e = readdir(dir));) {
		const uint64_t job = is_dots(e->d_name) ? 0 : job_of(e->d_name);
		uint64_t *more = job && !(n & (n - 1)) ? realloc(id, (n ? 2 * n : 1) * sizeof(*id)) : id;
		if (job && !more) {
			s->first_new = 0;
			break;
		}
		id = more;
		if (job)
			id[n++] = job;
	}
	if (dir)
		closedir(dir);
	if (n)
		qsort(id, n, sizeof(*id), compare_down);
	const uint64_t lowest = n <= s->keep_newest ? 0 : id[s->keep_newest - 1];
	if (lowest < s->first_new)
		s->first_new = lowest;
	free(id);
}

void state_scan_run(struct state_scan *s)
{
	if (s->keep_newest)
		spare_newest(s);
	look_in(s, "logs", true);
	look_in(s, "checkpoints", false);
}

void state_scan_fini(struct state_scan *s)
{
	free(s->known);
	free(s->running);
	free(s->user);
}
