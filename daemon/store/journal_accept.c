/* SPDX-License-Identifier: Apache-2.0 */
/* Copies the journal's files aside, keeps what can be read, and ends jobs that have lost records. For gaccd
 * --accept-journal-loss, a process of its own with one thread; journal_raise also for journal.c. Blocks. */
#include "store/journal_impl.h"

#include "base/log.h"

#include <sqlite3.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LOCK_TRIES 200 /* a gaccd that fails has the journal for a moment at each start */
#define LOCK_WAIT_NS 50000000
#define MAX_PATH 4300

static const char *const suffix[] = { "", "-wal", "-shm", ".anchor" };
enum { SUFFIXES = sizeof(suffix) / sizeof(*suffix) };

/* ---- the copy ---- */

static enum status failed(const char *what)
{
	log_error("%s: %s", what, strerror(errno));
	return ST_STORE_FAILED;
}

/* 1: there is none. */
static int copy_file(const char *from, const char *to)
{
	int in = open(from, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (in < 0)
		return errno == ENOENT ? 1 : -1;
	int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	ssize_t n = out < 0 ? -1 : 1;
	while (n > 0)
		n = sendfile(out, in, NULL, 1 << 20);
	if (!n && fsync(out))
		n = -1;
	if (out >= 0)
		close(out);
	close(in);
	return n ? -1 : 0;
}

static enum status sync_dir(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	enum status st = fd >= 0 && !fsync(fd) ? ST_OK : failed(path);
	if (fd >= 0)
		close(fd);
	return st;
}

enum status journal_copy_aside(const struct journal *j, char *dir, size_t n_dir)
{
	char from[MAX_PATH], to[MAX_PATH], when[32];
	const char *slash = strrchr(j->path, '/'), *name = slash ? slash + 1 : j->path;
	time_t now = time(NULL);
	struct tm t;
	strftime(when, sizeof(when), "%Y%m%dT%H%M%SZ", gmtime_r(&now, &t));
	snprintf(dir, n_dir, "%s.damaged-%s", j->path, when);
	for (int i = 2; mkdir(dir, 0700); i++) {
		if (errno != EEXIST || i > 99)
			return failed(dir);
		snprintf(dir, n_dir, "%s.damaged-%s.%d", j->path, when, i);
	}
	for (int i = 0; i < SUFFIXES; i++) {
		snprintf(from, sizeof(from), "%s%s", j->path, suffix[i]);
		snprintf(to, sizeof(to), "%.4000s/%.200s%s", dir, name, suffix[i]);
		if (copy_file(from, to) < 0)
			return failed(to);
	}
	enum status st = sync_dir(dir);
	/* its name: the files that it is a copy of may be deleted next */
	return st || !fsync(j->lock) ? st : failed(dir);
}

/* Durably; a file that is not there is fine. */
static enum status give(const char *name, const struct stat *to)
{
	int fd = open(name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? ST_OK : failed(name);
	enum status st = fchown(fd, to->st_uid, to->st_gid) || fsync(fd) ? failed(name) : ST_OK;
	close(fd);
	return st;
}

/* The operator may be root: the files must belong to the directory's owner, which could not open them otherwise. */
static enum status give_to_owner(const char *path, const char *aside)
{
	char name[MAX_PATH];
	struct stat st;
	snprintf(name, sizeof(name), "%s", path);
	char *slash = strrchr(name, '/');
	if (slash)
		slash[slash == name] = '\0';
	if (stat(slash ? name : ".", &st))
		return failed(name);
	if (st.st_uid == geteuid())
		return ST_OK;
	enum status given = ST_OK;
	for (int i = 0; i < 2 * SUFFIXES && !given; i++) {
		if (i < SUFFIXES)
			snprintf(name, sizeof(name), "%s%s", path, suffix[i]);
		else
			snprintf(name, sizeof(name), "%.4000s/%.200s%s", aside,
				 strrchr(path, '/') ? strrchr(path, '/') + 1 : path, suffix[i - SUFFIXES]);
		given = give(name, &st);
	}
	return given ? given : give(aside, &st);
}

/* ---- jobs that have lost something ---- */

struct acceptance {
	struct journal *j;
	uint32_t end_state;
	int64_t unix_ns;
	journal_tell tell;
	void *arg;
};

static void tell(const struct acceptance *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void tell(const struct acceptance *a, const char *fmt, ...)
{
	char line[1024];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	a->tell(a->arg, line);
}

static enum status run(struct journal *j, char *text)
{
	int rc = text ? sqlite3_exec(j->sql.db, text, NULL, NULL, NULL) : SQLITE_NOMEM;
	sqlite3_free(text);
	return rc ? sql_fail(&j->sql, "accepting the loss") : ST_OK;
}

/* Ends one job, or with 0 all that have not ended; returns how many. */
static int end_jobs(struct acceptance *a, uint64_t job, const char *reason)
{
	char one[48] = "";
	if (job)
		snprintf(one, sizeof(one), " AND id = %" PRId64, (int64_t)job);
	if (run(a->j, sqlite3_mprintf("UPDATE jobs SET end_state = %u, end_reason = %Q, ended = %lld, view = NULL "
				      "WHERE ended IS NULL%s",
				      a->end_state, reason, (long long)a->unix_ns, one)))
		return -1;
	return sqlite3_changes(a->j->sql.db);
}

/* Forgets the parts here of one job that another gaccd coordinates, or with 0 of all; returns of how many jobs. */
static int forget_parts(struct acceptance *a, uint64_t job)
{
	char one[48] = "";
	if (job)
		snprintf(one, sizeof(one), " WHERE job = %" PRId64, (int64_t)job);
	if (run(a->j, sqlite3_mprintf("DELETE FROM parts%s", one)) ||
	    run(a->j, sqlite3_mprintf("DELETE FROM away%s", one)))
		return -1;
	return sqlite3_changes(a->j->sql.db);
}

static bool is_there(struct journal *j, uint64_t job)
{
	sqlite3_stmt *s = NULL;
	bool there = !sqlite3_prepare_v2(j->sql.db, "SELECT 1 FROM jobs WHERE id = ?", -1, &s, NULL) &&
		     !sqlite3_bind_int64(s, 1, (int64_t)job) && sqlite3_step(s) == SQLITE_ROW;
	sqlite3_finalize(s);
	return there;
}

static void lose(struct acceptance *a, uint64_t job, const char *what)
{
	char reason[300];
	snprintf(reason, sizeof(reason),
		 "records of this job in the journal %s, and the operator has accepted the loss", what);
	int ended = job ? end_jobs(a, job, reason) : 0, parts = job ? forget_parts(a, job) : 0;
	if (parts > 0)
		tell(a, "job %" PRIu64 ", which another gaccd coordinates: records %s: its parts here are lost", job,
		     what);
	else if (ended > 0)
		tell(a, "job %" PRIu64 ": records %s: it ends", job, what);
	else if (job && is_there(a->j, job))
		tell(a, "job %" PRIu64 ", which is over: records %s: what is shown of it may be wrong", job, what);
	else if (job)
		tell(a, "job %" PRIu64 " is lost whole", job);
}

static void lose_missing(struct acceptance *a, const struct anchor_copy *of)
{
	uint64_t have = a->j->mark.records, told[64];
	size_t n = 0;
	if (!of || of->mark.records <= have)
		return;
	tell(a, "the last %" PRIu64 " records are missing", of->mark.records - have);
	bool all_named = of->mark.records - have <= sizeof(told) / sizeof(*told);
	for (uint64_t number = have + 1; all_named && number <= of->mark.records; number++) {
		struct anchor_entry e;
		all_named = anchor_entry(of, number, &e);
		bool seen = !all_named;
		for (size_t i = 0; i < n && !seen; i++)
			seen = told[i] == e.job;
		if (seen)
			continue;
		told[n++] = e.job;
		lose(a, e.job, "are missing");
	}
	if (!all_named) {
		int ended = end_jobs(a, 0,
				     "records in the journal are missing, perhaps of this job, and the operator has "
				     "accepted the loss");
		tell(a, "of which jobs all of them were is not known: the %d jobs that were not over end", ended);
		int parts = forget_parts(a, 0);
		if (parts > 0)
			tell(a, "the parts here of %d jobs that another gaccd coordinates are lost", parts);
	}
}

static enum status lose_altered(struct acceptance *a)
{
	static const char *const of_job[] = { "specs", "windows", "recent", "updates", "checkpoints", "epochs" };
	uint64_t *job = NULL;
	size_t n = 0;
	enum status st = journal_altered_jobs(a->j, &job, &n);
	for (size_t i = 0; i < n && !st; i++)
		lose(a, job[i], "have been altered or are missing");
	free(job);
	if (!st)
		st = run(a->j, sqlite3_mprintf("DELETE FROM parts WHERE job NOT IN (SELECT job FROM away)"));
	for (size_t i = 0; i < sizeof(of_job) / sizeof(*of_job) && !st; i++)
		st = run(a->j, sqlite3_mprintf("DELETE FROM %s WHERE job NOT IN (SELECT id FROM jobs)", of_job[i]));
	return st;
}

/* Counters never go back. */
static void raise_counters(struct anchor_mark *m, const struct anchor_mark *to)
{
	uint64_t *counter[] = { &m->records, &m->term, &m->incarnation, &m->last_job };
	const uint64_t least[] = { to->records, to->term, to->incarnation, to->last_job };
	for (int i = 0; i < 4; i++)
		*counter[i] = *counter[i] > least[i] ? *counter[i] : least[i];
}

enum status journal_raise(struct journal *j, const struct anchor_copy *to)
{
	if (!to || !to->found)
		return ST_OK;
	raise_counters(&j->mark, &to->mark);
	return journal_seal(j);
}

/* ---- all of it ---- */

static enum status make(const char *path, char *aside, size_t n_aside, struct journal **out)
{
	const struct timespec wait = { .tv_nsec = LOCK_WAIT_NS };
	enum status st = ST_UNAVAILABLE;
	for (int i = 0; i < LOCK_TRIES && st == ST_UNAVAILABLE; i++) {
		if (i)
			nanosleep(&wait, NULL);
		st = journal_force(path, aside, n_aside, out);
	}
	return st;
}

/* Nothing of it can be read, and all of it has been copied. */
static enum status make_anew(const char *path, struct journal **out)
{
	char name[MAX_PATH];
	for (int i = 0; i < SUFFIXES; i++) {
		snprintf(name, sizeof(name), "%s%s", path, suffix[i]);
		if (strcmp(suffix[i], ".anchor") != 0 && unlink(name) && errno != ENOENT)
			return failed(name);
	}
	return journal_force(path, NULL, 0, out);
}

enum status journal_accept(const char *path, uint32_t end_state, int64_t unix_ns, journal_tell to, void *arg)
{
	struct acceptance a = { .end_state = end_state, .unix_ns = unix_ns, .tell = to, .arg = arg };
	char aside[MAX_PATH] = "", anchor[MAX_PATH];
	enum status st = make(path, aside, sizeof(aside), &a.j);
	bool anew = st == ST_MALFORMED;
	if (*aside)
		tell(&a, "the files as they were are in %s", aside);
	if (anew)
		st = make_anew(path, &a.j);
	if (st)
		return st;
	const struct anchor_copy *newest = anchor_newest(&a.j->anchor);
	if (anew || !a.j->mark.records)
		tell(&a, "nothing of the journal can be read: all jobs that it had are lost%s",
		     newest ? "" : ", and so are their numbers");
	else
		st = lose_altered(&a);
	if (!st && !anew)
		lose_missing(&a, newest);
	if (!st)
		st = a.j->sql.failed ? ST_STORE_FAILED : newest ? journal_raise(a.j, newest) : journal_seal(a.j);
	snprintf(anchor, sizeof(anchor), "%s.anchor", path);
	if (!st && anchor_accept(&a.j->anchor, anchor, &a.j->mark))
		st = ST_STORE_FAILED;
	journal_close(a.j);
	return st ? st : give_to_owner(path, aside);
}
