/* SPDX-License-Identifier: Apache-2.0 */
/* Records windows, micro-batches and events of jobs in an SQLite file, for display only, and prunes old ones. For
 * gaccd: at its start on the loop thread, later in the pool through runtime/recorder.c, one call at a time. Blocks. */
#include "store/history.h"

#include "base/log.h"
#include "store/sql.h"

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
};

#define EVENT_COLUMNS "id, job, uid, at, warning, reason, object, message, window"

/* X(name, SQL) */
#define STATEMENTS(X)                                                                                                  \
	X(BEGIN, "BEGIN IMMEDIATE")                                                                                    \
	X(COMMIT, "COMMIT")                                                                                            \
	X(ROLLBACK, "ROLLBACK")                                                                                        \
	X(JOB, "INSERT INTO jobs VALUES (?1, ?2, ?3)"                                                                  \
	       " ON CONFLICT DO UPDATE SET events = events + ?2, last = max(last, ?3) RETURNING events")               \
	X(JOB_EVENTS, "UPDATE jobs SET events = ? WHERE job = ?")                                                      \
	X(NEXT_JOB, "SELECT job FROM jobs WHERE job > ? ORDER BY job LIMIT 1")                                         \
	X(FORGET_JOB, "DELETE FROM jobs WHERE job = ?")                                                                \
	X(FORGET_EVENTS, "DELETE FROM events WHERE job = ?")                                                           \
	X(WINDOW, "INSERT OR REPLACE INTO windows VALUES (?, ?, ?)")                                                   \
	X(WINDOW_IF_MISSING, "INSERT OR IGNORE INTO windows VALUES (?, ?, ?)")                                         \
	X(MICROS, "INSERT OR REPLACE INTO micros (job, window, data) VALUES (?, ?, ?)")                                \
	X(OLD_WINDOWS, "DELETE FROM windows WHERE job = ? AND window <= ?")                                            \
	X(OLD_MICROS, "DELETE FROM micros WHERE job = ? AND window <= ?")                                              \
	X(EVENT, "INSERT OR REPLACE INTO events (" EVENT_COLUMNS ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)")               \
	X(OLD_EVENTS, "DELETE FROM events WHERE job = ?1 AND id <="                                                    \
		      " (SELECT id FROM events WHERE job = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)")                    \
	X(EACH_WINDOW, "SELECT window, result FROM windows WHERE job = ? AND window < ? ORDER BY window DESC LIMIT ?") \
	X(MICROS_OF, "SELECT data FROM micros WHERE job = ? AND window = ?")                                           \
	X(EACH_EVENT, "SELECT " EVENT_COLUMNS " FROM events WHERE id > ?1 AND (?2 OR uid = ?3 OR job = 0)"             \
		      " ORDER BY id LIMIT ?4")                                                                         \
	X(EACH_OF_JOB, "SELECT " EVENT_COLUMNS " FROM events WHERE job = ? AND id > ? ORDER BY id LIMIT ?")            \
	X(LAST_OF_JOB, "SELECT * FROM (SELECT " EVENT_COLUMNS " FROM events WHERE job = ? ORDER BY id DESC LIMIT ?)"   \
		       " ORDER BY id")

enum {
#define X(name, text) SQL_##name,
	STATEMENTS(X)
#undef X
		SQL_COUNT
};

static const char *const sql_text[SQL_COUNT] = {
#define X(name, text) [SQL_##name] = text,
	STATEMENTS(X)
#undef X
};

static const struct sql_file file = { .kind = "history",
				      .schema_steps = schema_steps,
				      .version = sizeof(schema_steps) / sizeof(*schema_steps),
				      .text = sql_text,
				      .n = SQL_COUNT };

struct history {
	struct sql sql;
	char *path;
	struct history_limits limits;
};

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

static enum status be_open(struct history *h)
{
	if (h->sql.db)
		return ST_OK;
	if (open_file(h))
		return ST_STORE_FAILED;
	log_notice("history: %s can be written again", h->path);
	return ST_OK;
}

/* After a failed call; true: there is a fresh file, and the call may be tried once more. */
static bool recover(struct history *h)
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

/* A statement with at most one row of one integer; 0 without. */
static enum status get_int(struct history *h, int q, int rc, int64_t *out)
{
	enum status st = ST_OK;
	int64_t v = 0;
	if (rc == SQLITE_ROW) {
		v = sqlite3_column_int64(h->sql.stmt[q], 0);
		rc = sqlite3_step(h->sql.stmt[q]);
	}
	if (rc != SQLITE_DONE)
		st = sql_fail(&h->sql, sql_text[q]);
	else
		*out = v;
	sql_done(&h->sql, q);
	return st;
}

static enum status forget_windows(struct history *h, uint64_t job, int64_t last, int64_t last_micros)
{
	enum status st = sql_run(&h->sql, SQL_OLD_MICROS, "ii", (int64_t)job, last_micros);
	return st ? st : sql_run(&h->sql, SQL_OLD_WINDOWS, "ii", (int64_t)job, last);
}

static enum status forget_job(struct history *h, uint64_t job)
{
	enum status st = forget_windows(h, job, INT64_MAX, INT64_MAX);
	if (!st)
		st = sql_run(&h->sql, SQL_FORGET_EVENTS, "i", (int64_t)job);
	return st ? st : sql_run(&h->sql, SQL_FORGET_JOB, "i", (int64_t)job);
}

/* The first job after this one; 0: there is none. */
static enum status next_job(struct history *h, uint64_t job, uint64_t *out)
{
	int64_t next = 0;
	enum status st = get_int(h, SQL_NEXT_JOB, sql_step(&h->sql, SQL_NEXT_JOB, "i", (int64_t)job), &next);
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
	return get_int(h, SQL_JOB, sql_step(&h->sql, SQL_JOB, "iii", (int64_t)job, n, unix_ns), out);
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
	return forget_windows(h, w->job, before_last(w->window, h->limits.windows), before_last(w->window, keep));
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
	enum status st = be_open(h);
	if (st)
		return st;
	st = write_all(h, w, n_windows, e, n_events);
	if (st && recover(h))
		st = write_all(h, w, n_windows, e, n_events);
	if (!st)
		worked(h);
	return st;
}

/* Forgets this job, or with 0 all but those to keep. A damaged file is replaced by an empty one. */
static enum status forget(struct history *h, uint64_t job, const uint64_t *keep, size_t n)
{
	enum status st = be_open(h);
	if (st)
		return st;
	st = sql_run(&h->sql, SQL_BEGIN, "");
	if (!st)
		st = job ? forget_job(h, job) : forget_others(h, keep, n);
	if (!st)
		st = sql_run(&h->sql, SQL_COMMIT, "");
	if (!st || recover(h))
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

/* ---- reading ---- */

/* Nothing can be read from a damaged file; it is replaced by a new one. */
static enum status read_failed(struct history *h, int q)
{
	enum status st = sql_fail(&h->sql, sql_text[q]);
	sql_done(&h->sql, q);
	recover(h);
	return st;
}

static enum status read_micros(struct history *h, struct history_window *w, struct history_micro **out)
{
	sqlite3_stmt *s = h->sql.stmt[SQL_MICROS_OF];
	int rc = sql_step(&h->sql, SQL_MICROS_OF, "ii", (int64_t)w->job, (int64_t)w->window);
	if (rc == SQLITE_DONE) {
		sql_done(&h->sql, SQL_MICROS_OF);
		return ST_OK;
	}
	const void *data = rc == SQLITE_ROW ? sqlite3_column_blob(s, 0) : NULL;
	size_t n = data ? (size_t)sqlite3_column_bytes(s, 0) / sizeof(**out) : 0;
	if (!n)
		return read_failed(h, SQL_MICROS_OF);
	*out = malloc(n * sizeof(**out)); /* a blob is not aligned */
	if (*out)
		memcpy(*out, data, n * sizeof(**out));
	sql_done(&h->sql, SQL_MICROS_OF);
	w->micro = *out;
	w->n_micros = *out ? n : 0;
	return *out ? ST_OK : ST_NO_MEMORY;
}

enum status history_each_window(struct history *h, uint64_t job, uint64_t before, uint64_t limit, bool micros,
				enum status (*fn)(void *arg, const struct history_window *), void *arg)
{
	enum status st = be_open(h);
	if (st)
		return st;
	sqlite3_stmt *s = h->sql.stmt[SQL_EACH_WINDOW];
	int64_t below = before && before < INT64_MAX ? (int64_t)before : INT64_MAX;
	int64_t n = limit < INT64_MAX ? (int64_t)limit : INT64_MAX;
	int rc = sql_step(&h->sql, SQL_EACH_WINDOW, "iii", (int64_t)job, below, n);
	for (; rc == SQLITE_ROW && !st; rc = sqlite3_step(s)) {
		struct history_window w = { .job = job, .window = (uint64_t)sqlite3_column_int64(s, 0) };
		struct history_micro *copy = NULL;
		w.result = sqlite3_column_blob(s, 1); /* before the length: SQLite's rule */
		w.n_result = (size_t)sqlite3_column_bytes(s, 1);
		if (micros)
			st = read_micros(h, &w, &copy);
		if (!st)
			st = fn(arg, &w);
		free(copy);
		if (st)
			break; /* a damaged file is closed by now */
	}
	if (!st && rc != SQLITE_DONE)
		return read_failed(h, SQL_EACH_WINDOW);
	if (h->sql.db)
		sql_done(&h->sql, SQL_EACH_WINDOW);
	return st;
}

static const char *column_text(sqlite3_stmt *s, int i)
{
	const unsigned char *text = sqlite3_column_text(s, i);
	return text ? (const char *)text : "";
}

static struct history_event read_event(sqlite3_stmt *s)
{
	return (struct history_event){
		.id = (uint64_t)sqlite3_column_int64(s, 0),
		.job = (uint64_t)sqlite3_column_int64(s, 1),
		.uid = (uint32_t)sqlite3_column_int64(s, 2),
		.unix_ns = sqlite3_column_int64(s, 3),
		.warning = sqlite3_column_int(s, 4) != 0,
		.reason = column_text(s, 5),
		.object = column_text(s, 6),
		.message = column_text(s, 7),
		.window = (uint64_t)sqlite3_column_int64(s, 8),
	};
}

static enum status each_event(struct history *h, int q, int rc,
			      enum status (*fn)(void *arg, const struct history_event *), void *arg)
{
	sqlite3_stmt *s = h->sql.stmt[q];
	enum status st = ST_OK;
	for (; rc == SQLITE_ROW && !st; rc = sqlite3_step(s)) {
		struct history_event e = read_event(s);
		st = fn(arg, &e);
	}
	if (!st && rc != SQLITE_DONE)
		return read_failed(h, q);
	sql_done(&h->sql, q);
	return st;
}

enum status history_each_event(struct history *h, const struct history_query *k,
			       enum status (*fn)(void *arg, const struct history_event *), void *arg)
{
	enum status st = be_open(h);
	if (st)
		return st;
	int q = k->of_job ? SQL_EACH_OF_JOB : SQL_EACH_EVENT;
	int64_t after = k->after_id < INT64_MAX ? (int64_t)k->after_id : INT64_MAX;
	int64_t n = k->limit < INT64_MAX ? (int64_t)k->limit : INT64_MAX;
	int rc = k->of_job ? sql_step(&h->sql, q, "iii", (int64_t)k->job, after, n)
			   : sql_step(&h->sql, q, "iiii", after, (int64_t)!k->of_user, (int64_t)k->uid, n);
	return each_event(h, q, rc, fn, arg);
}

enum status history_last_events(struct history *h, uint64_t job, uint64_t n,
				enum status (*fn)(void *arg, const struct history_event *), void *arg)
{
	enum status st = be_open(h);
	return st ? st
		  : each_event(h, SQL_LAST_OF_JOB, sql_step(&h->sql, SQL_LAST_OF_JOB, "ii", (int64_t)job, (int64_t)n),
			       fn, arg);
}
