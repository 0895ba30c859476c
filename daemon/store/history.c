/* SPDX-License-Identifier: Apache-2.0 */
/* Records windows, micro-batches and events of jobs in an SQLite file, for display only, and prunes old ones. For
 * gaccd: at its start on the loop thread, later in the pool through runtime/recorder.c, one call at a time. Blocks. */
#include "store/history_impl.h"

#include "base/log.h"

#include <sqlite3.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PRUNE_EVERY 32 /* windows of a job */

_Static_assert(sizeof(struct history_micro) == 56, "history_micro is a format");

/* Micro-batches lie apart, so that a look at a thousand windows does not read past them. `jobs` is what pruning needs
 * to know. */
static const char *const schema_steps[] = {
	"CREATE TABLE jobs (job INTEGER PRIMARY KEY, events INTEGER NOT NULL, last INTEGER NOT NULL);"
	"CREATE TABLE windows (job INTEGER, window INTEGER, result BLOB NOT NULL, PRIMARY KEY (job, window)) WITHOUT "
	"ROWID;"
	"CREATE TABLE micros (id INTEGER PRIMARY KEY, job INTEGER NOT NULL, window INTEGER NOT NULL, data BLOB NOT "
	"NULL,"
	" UNIQUE (job, window));"
	"CREATE TABLE events (id INTEGER PRIMARY KEY, job INTEGER NOT NULL, uid INTEGER NOT NULL, at INTEGER NOT NULL,"
	" warning INTEGER NOT NULL, reason TEXT NOT NULL, object TEXT NOT NULL, message TEXT NOT NULL, window INTEGER "
	"NOT NULL);"
	"CREATE INDEX events_of_job ON events (job, id);",
	/* bits: of a double, as SQLite has no NaN */
	"CREATE TABLE scalars (job INTEGER, window INTEGER, name TEXT, rank INTEGER NOT NULL, bits INTEGER NOT NULL,"
	" PRIMARY KEY (job, window, name)) WITHOUT ROWID;",
};

const char *const history_sql[SQL_COUNT] = {
#define X(name, text) [SQL_##name] = text,
	STATEMENTS(X)
#undef X
};

static const struct sql_file file = { .kind = "history",
				      .schema_steps = schema_steps,
				      .version = sizeof(schema_steps) / sizeof(*schema_steps),
				      .text = history_sql,
				      .n = SQL_COUNT };

/* ---- trouble ---- */

static bool is_damaged(int code)
{
	return (code & 0xff) == SQLITE_CORRUPT || (code & 0xff) == SQLITE_NOTADB;
}

/* Its log must not be played into the new file. */
static void move_aside(const struct history *h)
{
	static const char *const parts[] = { "", "-wal", "-journal" };
	for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
		char from[4200], to[4224];
		snprintf(from, sizeof(from), "%s%s", h->path, parts[i]);
		snprintf(to, sizeof(to), "%s.damaged%s", h->path, parts[i]);
		if (rename(from, to) && errno != ENOENT)
			log_error("history: cannot move %s aside: %s", from, strerror(errno));
	}
	log_warn("history: %s is damaged; it is now %s.damaged, and a new one is begun", h->path, h->path);
}

/* The file, a new one if that in place is damaged. */
static enum status open_file(struct history *h)
{
	enum status st = sql_open(&h->sql, &file, h->path);
	if (st == ST_VERSION_SKEW || (st && is_damaged(h->sql.code))) {
		move_aside(h);
		st = sql_open(&h->sql, &file, h->path);
	}
	h->sql.quiet = st != ST_OK;
	return st;
}

enum status history_be_open(struct history *h)
{
	if (h->sql.db)
		return ST_OK;
	if (open_file(h))
		return ST_STORE_FAILED;
	log_notice("history: %s can be written again", h->path);
	return ST_OK;
}

bool history_recover(struct history *h)
{
	if (is_damaged(h->sql.code)) {
		sql_close(&h->sql);
		move_aside(h);
		return open_file(h) == ST_OK;
	}
	if (!sqlite3_get_autocommit(h->sql.db))
		sql_run(&h->sql, SQL_ROLLBACK, "");
	h->sql.quiet = true;
	return false;
}

static void worked(struct history *h)
{
	if (h->sql.quiet)
		log_notice("history: %s can be written again", h->path);
	h->sql.quiet = h->sql.failed = false;
	sql_checkpoint(&h->sql);
}

/* ---- helpers ---- */

enum status history_int(struct history *h, int q, int rc, int64_t *out)
{
	enum status st = ST_OK;
	int64_t v = 0;
	if (rc == SQLITE_ROW) {
		v = sqlite3_column_int64(h->sql.stmt[q], 0);
		rc = sqlite3_step(h->sql.stmt[q]);
	}
	if (rc != SQLITE_DONE)
		st = sql_fail(&h->sql, history_sql[q]);
	else
		*out = v;
	sql_done(&h->sql, q);
	return st;
}

/* Of a job that began with a checkpoint the first window may have any number. */
enum status history_stride(struct history *h, uint64_t job, int64_t *out)
{
	int64_t span = 0;
	enum status st = history_int(h, SQL_SPAN, sql_step(&h->sql, SQL_SPAN, "i", (int64_t)job), &span);
	for (*out = 1; span / *out >= HISTORY_WHOLE; *out *= 2)
		;
	return st;
}

/* ---- open and close ---- */

enum status history_open(const char *path, const struct history_limits *limits, struct history **out)
{
	struct history *h = calloc(1, sizeof(*h));
	if (!h)
		return ST_NO_MEMORY;
	h->limits = *limits;
	h->path = strdup(path);
	if (!h->path) {
		history_close(h);
		return ST_NO_MEMORY;
	}
	open_file(h);
	*out = h;
	return ST_OK;
}

void history_close(struct history *h)
{
	if (!h)
		return;
	sql_close(&h->sql);
	free(h->path);
	free(h);
}

/* ---- writing ---- */

/* Micro-batches until one window, and the windows until another that are not in the thinned series. */
static enum status forget_old(struct history *h, uint64_t job, int64_t last, int64_t last_micros)
{
	int64_t stride;
	enum status st = history_stride(h, job, &stride);
	if (!st)
		st = sql_run(&h->sql, SQL_OLD_MICROS, "ii", (int64_t)job, last_micros);
	if (!st)
		st = sql_run(&h->sql, SQL_OLD_SCALARS, "iii", (int64_t)job, last, stride);
	return st ? st : sql_run(&h->sql, SQL_OLD_WINDOWS, "iii", (int64_t)job, last, stride);
}

static enum status forget_job(struct history *h, uint64_t job)
{
	enum status st = sql_run(&h->sql, SQL_OLD_MICROS, "ii", (int64_t)job, INT64_MAX);
	if (!st)
		st = sql_run(&h->sql, SQL_FORGET_WINDOWS, "i", (int64_t)job);
	if (!st)
		st = sql_run(&h->sql, SQL_FORGET_SCALARS, "i", (int64_t)job);
	if (!st)
		st = sql_run(&h->sql, SQL_FORGET_EVENTS, "i", (int64_t)job);
	return st ? st : sql_run(&h->sql, SQL_FORGET_JOB, "i", (int64_t)job);
}

/* The first job after this one; 0: there is none. */
static enum status next_job(struct history *h, uint64_t job, uint64_t *out)
{
	int64_t next = 0;
	enum status st = history_int(h, SQL_NEXT_JOB, sql_step(&h->sql, SQL_NEXT_JOB, "i", (int64_t)job), &next);
	if (!st)
		*out = (uint64_t)next;
	return st;
}

static enum status forget_others(struct history *h, const uint64_t *keep, size_t n)
{
	uint64_t job = 0;
	for (enum status st;;) {
		st = next_job(h, job, &job);
		if (st || !job)
			return st;
		while (n && *keep < job) {
			keep++;
			n--;
		}
		if (!(n && *keep == job))
			st = forget_job(h, job);
		if (st)
			return st;
	}
}

/* Counts n more events of a job; *out is how many there are. */
static enum status touch_job(struct history *h, uint64_t job, int64_t n, int64_t unix_ns, int64_t *out)
{
	return history_int(h, SQL_JOB, sql_step(&h->sql, SQL_JOB, "iii", (int64_t)job, n, unix_ns), out);
}

static int64_t before_last(uint64_t last, uint64_t keep)
{
	return last >= keep ? (int64_t)(last - keep) : -1;
}

static enum status write_window(struct history *h, const struct history_window *w)
{
	int64_t events, bytes = (int64_t)(w->n_micros * sizeof(*w->micro));
	int q = w->if_missing ? SQL_WINDOW_IF_MISSING : SQL_WINDOW;
	enum status st = touch_job(h, w->job, 0, w->unix_ns, &events);
	if (!st)
		st = sql_run(&h->sql, q, "iib", (int64_t)w->job, (int64_t)w->window, w->result, w->n_result);
	if (!st && w->n_micros)
		st = sql_run(&h->sql, SQL_MICROS, "iib", (int64_t)w->job, (int64_t)w->window, (const void *)w->micro,
			     (size_t)bytes);
	uint64_t fit = bytes ? HISTORY_MICRO_BYTES / (uint64_t)bytes : h->limits.windows;
	uint64_t keep = fit == 0 ? 1 : fit < h->limits.windows ? fit : h->limits.windows;
	if (st || (w->window % PRUNE_EVERY && keep > PRUNE_EVERY))
		return st;
	return forget_old(h, w->job, before_last(w->window, h->limits.windows), before_last(w->window, keep));
}

static enum status write_event(struct history *h, const struct history_event *e)
{
	int64_t events = 0, keep = (int64_t)h->limits.events;
	enum status st = touch_job(h, e->job, 1, e->unix_ns, &events);
	if (!st)
		st = sql_run(&h->sql, SQL_EVENT, "iiiiittti", (int64_t)e->id, (int64_t)e->job, (int64_t)e->uid,
			     e->unix_ns, (int64_t)e->warning, e->reason, e->object, e->message, (int64_t)e->window);
	if (st || events <= keep + keep / 8)
		return st;
	st = sql_run(&h->sql, SQL_OLD_EVENTS, "ii", (int64_t)e->job, keep);
	return st ? st : sql_run(&h->sql, SQL_JOB_EVENTS, "ii", keep, (int64_t)e->job);
}

static enum status write_all(struct history *h, const struct history_window *w, size_t n_windows,
			     const struct history_event *e, size_t n_events)
{
	enum status st = sql_run(&h->sql, SQL_BEGIN, "");
	for (size_t i = 0; i < n_windows && !st; i++)
		st = write_window(h, &w[i]);
	for (size_t i = 0; i < n_events && !st; i++)
		st = write_event(h, &e[i]);
	return st ? st : sql_run(&h->sql, SQL_COMMIT, "");
}

enum status history_write(struct history *h, const struct history_window *w, size_t n_windows,
			  const struct history_event *e, size_t n_events)
{
	enum status st = history_be_open(h);
	if (st)
		return st;
	st = write_all(h, w, n_windows, e, n_events);
	if (st && history_recover(h))
		st = write_all(h, w, n_windows, e, n_events);
	if (!st)
		worked(h);
	return st;
}

static enum status write_scalar(struct history *h, const struct history_scalar *v)
{
	int64_t bits;
	memcpy(&bits, &v->value, sizeof(bits));
	return sql_run(&h->sql, SQL_SCALAR, "iitiii", (int64_t)v->job, (int64_t)v->window, v->name, (int64_t)v->rank,
		       bits, (int64_t)HISTORY_SCALARS);
}

static enum status write_scalars(struct history *h, const struct history_scalar *v, size_t n)
{
	enum status st = sql_run(&h->sql, SQL_BEGIN, "");
	for (size_t i = 0; i < n && !st; i++)
		st = write_scalar(h, &v[i]);
	return st ? st : sql_run(&h->sql, SQL_COMMIT, "");
}

enum status history_write_scalars(struct history *h, const struct history_scalar *v, size_t n)
{
	enum status st = history_be_open(h);
	if (st)
		return st;
	st = write_scalars(h, v, n);
	if (st && history_recover(h))
		st = write_scalars(h, v, n);
	if (!st)
		worked(h);
	return st;
}

/* Forgets this job, or with 0 all but those to keep. A damaged file is replaced by an empty one. */
static enum status forget(struct history *h, uint64_t job, const uint64_t *keep, size_t n)
{
	enum status st = history_be_open(h);
	if (st)
		return st;
	st = sql_run(&h->sql, SQL_BEGIN, "");
	if (!st)
		st = job ? forget_job(h, job) : forget_others(h, keep, n);
	if (!st)
		st = sql_run(&h->sql, SQL_COMMIT, "");
	if (!st || history_recover(h))
		worked(h);
	return st;
}

enum status history_forget(struct history *h, uint64_t job)
{
	return forget(h, job, NULL, 0);
}

enum status history_forget_others(struct history *h, const uint64_t *job, size_t n)
{
	return forget(h, 0, job, n);
}
