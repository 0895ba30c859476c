/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and closes the journal: takes its lock, opens its files, and checks them in the right order. For gaccd's start
 * and end and for journal_accept.c; on the thread that calls it. */
#include "store/journal_impl.h"
#include "store/journal_sql.h"
#include "base/log.h"

#include <sqlite3.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* Locks the directory: the journal's files may be replaced while the lock is held. */
static enum status take_lock(struct journal *j)
{
	const char *slash = strrchr(j->path, '/');
	char *dir = slash ? strndup(j->path, slash > j->path ? (size_t)(slash - j->path) : 1) : strdup(".");
	if (!dir)
		return ST_NO_MEMORY;
	enum status st = ST_STORE_FAILED;
	j->lock = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (j->lock < 0)
		log_error("journal %s: %s: %s", j->path, dir, strerror(errno));
	else if (!flock(j->lock, LOCK_EX | LOCK_NB))
		st = ST_OK;
	else if (errno == EWOULDBLOCK)
		st = ST_UNAVAILABLE;
	else
		log_error("journal %s: locking %s: %s", j->path, dir, strerror(errno));
	free(dir);
	return st;
}

/* The operator has accepted the loss: the journal goes on with counters at least as high as the copies'. */
static enum status accept(struct journal *j)
{
	enum status st = journal_raise(j, &j->anchor.file);
	return st ? st : journal_raise(j, &j->anchor.kept);
}

static enum status open_files(struct journal *j, const char *anchor)
{
	enum status st = j->forced ? ST_OK : journal_check_files(j);
	if (!st)
		st = sql_open(&j->sql, &journal_file, j->path);
	if (st == ST_STORE_FAILED && j->sql.damaged) {
		if (!j->forced)
			journal_say_remedy(j);
		st = ST_MALFORMED;
	}
	j->accepted = j->anchor.accepted;
	if (!st && j->accepted)
		st = accept(j);
	if (!st && !j->forced)
		st = reserve_open(&j->reserve, &j->sql);
	const struct anchor_entry last = { .number = j->mark.records };
	if (!st && !j->forced && anchor_begin(&j->anchor, anchor, j->keep, &j->mark, j->resealed ? &last : NULL))
		st = ST_STORE_FAILED;
	j->sql.full_is_quiet = true;
	return st;
}

/* Takes the lock, and reads the anchor's copies. */
static enum status lock_and_read(const char *path, const char *anchor, int kept, struct journal **out)
{
	struct journal *j = calloc(1, sizeof(*j));
	if (!j) {
		if (kept >= 0)
			close(kept);
		return ST_NO_MEMORY;
	}
	*j = (struct journal){ .path = strdup(path),
			       .lock = -1,
			       .anchor = { .file = { .fd = -1 }, .kept = { .fd = kept } } };
	enum status st = j->path && anchor ? take_lock(j) : ST_NO_MEMORY;
	if (!st && anchor_read(&j->anchor, anchor, kept))
		st = ST_STORE_FAILED;
	if (!st)
		*out = j;
	else
		journal_close(j);
	return st;
}

static enum status make(const char *path, bool keep, int kept, struct journal **out)
{
	struct journal *j = NULL;
	char *anchor = sqlite3_mprintf("%s.anchor", path);
	enum status st = lock_and_read(path, anchor, kept, &j);
	if (st == ST_UNAVAILABLE)
		log_error("journal %s: another process has it", path);
	if (!st) {
		j->keep = keep;
		st = open_files(j, anchor);
	}
	sqlite3_free(anchor);
	if (!st)
		*out = j;
	else
		journal_close(j);
	return st;
}

enum status journal_open(const char *path, struct journal **out)
{
	return make(path, false, -1, out);
}

enum status journal_open_kept(const char *path, int kept, struct journal **out)
{
	return make(path, true, kept, out);
}

enum status journal_force(const char *path, char *aside, size_t n_aside, struct journal **out)
{
	struct journal *j = NULL;
	char *anchor = sqlite3_mprintf("%s.anchor", path);
	enum status st = lock_and_read(path, anchor, -1, &j);
	if (!st && aside)
		st = journal_copy_aside(j, aside, n_aside);
	if (!st) {
		j->forced = true;
		j->anchor.accepted = false;
		st = open_files(j, anchor);
	}
	sqlite3_free(anchor);
	if (!st)
		*out = j;
	else
		journal_close(j);
	return st;
}

bool journal_was_accepted(const struct journal *j)
{
	return j->accepted;
}

int journal_kept(const struct journal *j)
{
	return j->anchor.kept.fd;
}

void journal_close(struct journal *j)
{
	if (!j)
		return;
	if (j->sql.stmt && !j->sql.failed)
		anchor_sync(&j->anchor);
	sql_close(&j->sql);
	journal_sum_close(&j->sum);
	anchor_close(&j->anchor);
	if (j->lock >= 0)
		close(j->lock);
	free(j->path);
	free(j);
}

enum status journal_settle(struct journal *j)
{
	if (j->sql.failed || !anchor_sync(&j->anchor))
		return j->sql.failed ? ST_STORE_FAILED : ST_OK;
	j->sql.failed = true;
	return ST_STORE_FAILED;
}
