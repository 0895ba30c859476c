#include "store/journal.h"

#include "base/log.h"

#include <sqlite3.h>

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define APPLICATION_ID 0x67616363 /* "gacc" */
#define CHECKPOINT_PAGES 4096     /* of the write-ahead log: 16 MiB */

/* Each makes the schema of its index + 1 from the one before; append, never change. Payloads lie apart, so that a job's history
 * stays a few dozen bytes per window. */
static const char *const schema_steps[] = {
	"CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;"
	"INSERT INTO meta VALUES ('term', 0), ('incarnation', 0), ('last_job', 0);"
	"CREATE TABLE jobs (id INTEGER PRIMARY KEY, uuid BLOB NOT NULL, request_id BLOB NOT NULL UNIQUE,"
	" uid INTEGER NOT NULL, user TEXT NOT NULL, created INTEGER NOT NULL, spec BLOB NOT NULL, tensors BLOB,"
	" params_ready INTEGER NOT NULL DEFAULT 0, epoch INTEGER NOT NULL DEFAULT 1,"
	" next_window INTEGER NOT NULL DEFAULT 0, end_state INTEGER, end_reason TEXT, ended INTEGER);"
	"CREATE TABLE epochs (job INTEGER, epoch INTEGER, base_window INTEGER NOT NULL, term INTEGER NOT NULL,"
	" reason TEXT NOT NULL, at INTEGER NOT NULL, PRIMARY KEY (job, epoch)) WITHOUT ROWID;"
	"CREATE TABLE windows (job INTEGER, window INTEGER, epoch INTEGER NOT NULL, applied_step INTEGER NOT NULL,"
	" term INTEGER NOT NULL, attempt INTEGER NOT NULL, outcome INTEGER NOT NULL, at INTEGER NOT NULL,"
	" PRIMARY KEY (job, window)) WITHOUT ROWID;"
	"CREATE TABLE payloads (id INTEGER PRIMARY KEY, job INTEGER NOT NULL, window INTEGER NOT NULL, data BLOB NOT NULL,"
	" UNIQUE (job, window));",
	"ALTER TABLE jobs ADD COLUMN hold TEXT;"
	"CREATE TABLE updates (id INTEGER PRIMARY KEY, job INTEGER NOT NULL, window INTEGER NOT NULL, data BLOB NOT NULL);"
	"CREATE INDEX updates_of_job ON updates (job);",
};
#define SCHEMA_VERSION ((int)(sizeof schema_steps / sizeof *schema_steps))

/* X(name, SQL) */
#define STATEMENTS(X)                                                                                                  \
	X(BEGIN, "BEGIN IMMEDIATE")                                                                                    \
	X(COMMIT, "COMMIT")                                                                                            \
	X(ROLLBACK, "ROLLBACK")                                                                                        \
	X(GET_META, "SELECT value FROM meta WHERE key = ?")                                                            \
	X(BUMP_META, "UPDATE meta SET value = value + 1 WHERE key = ? RETURNING value")                                \
	X(LAST_JOB, "UPDATE meta SET value = max(value, ?) WHERE key = 'last_job'")                                    \
	X(JOB, "INSERT INTO jobs (id, uuid, request_id, uid, user, created, spec) VALUES (?, ?, ?, ?, ?, ?, ?)")       \
	X(JOB_STATE, "SELECT epoch, next_window, ended IS NOT NULL FROM jobs WHERE id = ?")                            \
	X(TENSORS, "UPDATE jobs SET tensors = ? WHERE id = ?")                                                         \
	X(PARAMS_READY, "UPDATE jobs SET params_ready = 1 WHERE id = ?")                                               \
	X(EPOCH, "INSERT INTO epochs (job, epoch, base_window, term, reason, at) VALUES (?, ?, ?, ?, ?, ?)")           \
	X(EPOCH_JOB, "UPDATE jobs SET epoch = ?, next_window = ? WHERE id = ?")                                        \
	X(VOID_WINDOWS, "DELETE FROM windows WHERE job = ? AND window >= ?")                                           \
	X(VOID_PAYLOADS, "DELETE FROM payloads WHERE job = ? AND window >= ?")                                         \
	X(WINDOW, "INSERT INTO windows (job, window, epoch, applied_step, term, attempt, outcome, at)"                 \
		  " VALUES (?, ?, ?, ?, ?, ?, ?, ?)")                                                                  \
	X(PAYLOAD, "INSERT INTO payloads (job, window, data) VALUES (?, ?, ?)")                                        \
	X(OLD_PAYLOADS, "DELETE FROM payloads WHERE job = ? AND window <= ?")                                          \
	X(NEXT_WINDOW, "UPDATE jobs SET next_window = ? WHERE id = ?")                                                 \
	X(HOLD, "UPDATE jobs SET hold = ? WHERE id = ?")                                                               \
	X(UPDATE, "INSERT INTO updates (job, window, data) VALUES (?, ?, ?)")                                          \
	X(END, "UPDATE jobs SET end_state = ?, end_reason = ?, ended = ? WHERE id = ?")                                \
	X(EACH_JOB, "SELECT id, uuid, request_id, uid, user, created, spec, tensors, params_ready, epoch, next_window,"\
		    " end_state, end_reason, ended, hold FROM jobs WHERE ? OR ended IS NULL ORDER BY id")                    \
	X(EACH_WINDOW, "SELECT w.job, w.window, w.epoch, applied_step, term, attempt, outcome, at, data"               \
		       " FROM windows w LEFT JOIN payloads p ON p.job = w.job AND p.window = w.window"                 \
		       " WHERE w.job = ?1 AND w.window >= (SELECT next_window - ?2 FROM jobs WHERE id = ?1)"           \
		       " ORDER BY w.window")                                                                           \
	X(EACH_UPDATE, "SELECT job, window, data FROM updates WHERE job = ? ORDER BY id")

enum sql {
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

struct journal {
	sqlite3 *db;
	sqlite3_stmt *stmt[SQL_COUNT];
	int wal_pages;
	bool failed;
};

static enum status fail(struct journal *j, const char *what)
{
	j->failed = true;
	log_error("journal: %s: %s (%d)", what, sqlite3_errmsg(j->db), sqlite3_extended_errcode(j->db));
	return ST_STORE_FAILED;
}

/* Binds by `types` (i: int64_t, t: text, b: struct journal_bytes, u: 16 bytes) and takes one step. */
static int step(struct journal *j, enum sql q, const char *types, ...)
{
	sqlite3_stmt *s = j->stmt[q];
	int rc = SQLITE_OK;
	va_list ap;
	va_start(ap, types);
	for (int i = 1; types[i - 1] && rc == SQLITE_OK; i++) {
		struct journal_bytes b;
		switch (types[i - 1]) {
		case 'i':
			rc = sqlite3_bind_int64(s, i, va_arg(ap, int64_t));
			break;
		case 't':
			rc = sqlite3_bind_text(s, i, va_arg(ap, const char *), -1, SQLITE_STATIC);
			break;
		case 'u':
			rc = sqlite3_bind_blob(s, i, va_arg(ap, const void *), 16, SQLITE_STATIC);
			break;
		default: /* an empty blob needs an address, or it is NULL */
			b = va_arg(ap, struct journal_bytes);
			rc = sqlite3_bind_blob64(s, i, b.n ? b.data : "", b.n, SQLITE_STATIC);
		}
	}
	va_end(ap);
	return rc == SQLITE_OK ? sqlite3_step(s) : rc;
}

static void done(struct journal *j, enum sql q)
{
	sqlite3_reset(j->stmt[q]); /* repeats the error of the step, which was seen there */
	sqlite3_clear_bindings(j->stmt[q]);
}

/* A statement without rows. */
#define RUN(j, q, ...) finish((j), (q), step((j), (q), __VA_ARGS__))
static enum status finish(struct journal *j, enum sql q, int rc)
{
	enum status st = rc == SQLITE_DONE ? ST_OK : fail(j, sql_text[q]);
	done(j, q);
	return st;
}

/* A statement with one row of one integer. */
static enum status run_int(struct journal *j, enum sql q, const char *key, uint64_t *out)
{
	int rc = step(j, q, "t", key);
	enum status st = ST_OK;
	if (rc == SQLITE_ROW) {
		*out = (uint64_t)sqlite3_column_int64(j->stmt[q], 0);
		rc = sqlite3_step(j->stmt[q]);
	}
	if (rc != SQLITE_DONE)
		st = fail(j, sql_text[q]);
	done(j, q);
	return st;
}

/* Ends a transaction as `st` says. */
static enum status end(struct journal *j, enum status st)
{
	if (st == ST_OK)
		return RUN(j, SQL_COMMIT, "");
	if (!j->failed && RUN(j, SQL_ROLLBACK, "") != ST_OK)
		return ST_STORE_FAILED;
	return st;
}

/* --- open and close --- */

static int exec(struct journal *j, const char *sql)
{
	return sqlite3_exec(j->db, sql, NULL, NULL, NULL);
}

/* First column of the first row of a pragma, as text; "" on error. */
static int pragma(struct journal *j, const char *sql, char *out, size_t n_out)
{
	sqlite3_stmt *s = NULL;
	int rc = sqlite3_prepare_v2(j->db, sql, -1, &s, NULL);
	*out = 0;
	if (rc == SQLITE_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) {
		const unsigned char *text = sqlite3_column_text(s, 0);
		sqlite3_snprintf((int)n_out, out, "%s", text ? (const char *)text : "");
		rc = SQLITE_OK;
	}
	sqlite3_finalize(s);
	return rc;
}

static int on_wal(void *arg, sqlite3 *db, const char *name, int pages)
{
	((struct journal *)arg)->wal_pages = pages;
	return SQLITE_OK;
}

/* One connection, EXCLUSIVE: SQLite's WAL reset bug (3.7.0 to 3.51.2) needs two, and a second gaccd is kept out.
 * Checkpoints are our own, because SQLite's automatic one swallows its errors. */
static enum status configure(struct journal *j, const char *path)
{
	char text[128] = "";
	int rc = exec(j, "PRAGMA locking_mode = EXCLUSIVE");
	if (rc == SQLITE_OK)
		rc = pragma(j, "PRAGMA journal_mode = WAL", text, sizeof text);
	if (rc == SQLITE_OK && strcmp(text, "wal") != 0) {
		log_error("journal %s: no write-ahead log (%s): is this a local file system?", path, text);
		return ST_STORE_FAILED;
	}
	if (rc == SQLITE_OK)
		rc = exec(j, "PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0; BEGIN EXCLUSIVE; COMMIT");
	if ((rc & 0xff) == SQLITE_BUSY) {
		log_error("journal %s: another process has it", path);
		return ST_UNAVAILABLE;
	}
	if (rc == SQLITE_OK)
		rc = pragma(j, "PRAGMA quick_check(1)", text, sizeof text);
	if (rc == SQLITE_OK && strcmp(text, "ok") != 0) {
		log_error("journal %s is damaged: %s", path, text);
		return ST_STORE_FAILED;
	}
	sqlite3_wal_hook(j->db, on_wal, j);
	return rc == SQLITE_OK ? ST_OK : fail(j, path);
}

static enum status create_schema(struct journal *j, const char *path)
{
	char text[32];
	if (pragma(j, "PRAGMA user_version", text, sizeof text) != SQLITE_OK)
		return fail(j, path);
	int version = atoi(text), rc = SQLITE_OK;
	if (version > SCHEMA_VERSION) {
		log_error("journal %s has schema %d, this gaccd knows %d: it was written by a newer one", path, version,
			  SCHEMA_VERSION);
		return ST_VERSION_SKEW;
	}
	for (; version < SCHEMA_VERSION && rc == SQLITE_OK; version++) {
		char *sql = sqlite3_mprintf("BEGIN IMMEDIATE; %s PRAGMA application_id = %d; PRAGMA user_version = %d; COMMIT",
					    schema_steps[version], APPLICATION_ID, version + 1);
		rc = sql ? exec(j, sql) : SQLITE_NOMEM;
		sqlite3_free(sql);
	}
	return rc == SQLITE_OK ? ST_OK : fail(j, path);
}

static enum status prepare(struct journal *j)
{
	for (int q = 0; q < SQL_COUNT; q++)
		if (sqlite3_prepare_v3(j->db, sql_text[q], -1, SQLITE_PREPARE_PERSISTENT, &j->stmt[q], NULL))
			return fail(j, sql_text[q]);
	return ST_OK;
}

enum status journal_open(const char *path, struct journal **out)
{
	/* Our mode, not SQLite's 0644; its other files take the mode of this one. */
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0) {
		log_error("journal %s: %s", path, strerror(errno));
		return ST_STORE_FAILED;
	}
	close(fd);
	struct journal *j = calloc(1, sizeof *j);
	if (!j)
		return ST_NO_MEMORY;
	enum status st;
	if (sqlite3_open_v2(path, &j->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL)) {
		st = fail(j, path);
		goto fail;
	}
	sqlite3_extended_result_codes(j->db, 1);
	if ((st = configure(j, path)) || (st = create_schema(j, path)) || (st = prepare(j)))
		goto fail;
	*out = j;
	return ST_OK;
fail:
	journal_close(j);
	return st;
}

void journal_close(struct journal *j)
{
	if (!j)
		return;
	for (int q = 0; q < SQL_COUNT; q++)
		sqlite3_finalize(j->stmt[q]);
	if (j->failed) /* closing would sync once more what could not be synced */
		sqlite3_db_config(j->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
	sqlite3_close(j->db);
	free(j);
}

/* --- records --- */

static enum status take(struct journal *j, const char *key, uint64_t *out)
{
	if (j->failed)
		return ST_STORE_FAILED;
	uint64_t value = 0;
	enum status st = RUN(j, SQL_BEGIN, "");
	if (st == ST_OK)
		st = end(j, run_int(j, SQL_BUMP_META, key, &value));
	if (st == ST_OK)
		*out = value;
	return st;
}

enum status journal_take_incarnation(struct journal *j, uint64_t *out_incarnation)
{
	return take(j, "incarnation", out_incarnation);
}

enum status journal_take_term(struct journal *j, uint64_t *out_term)
{
	return take(j, "term", out_term);
}

enum status journal_last_job(struct journal *j, uint64_t *out_id)
{
	return j->failed ? ST_STORE_FAILED : run_int(j, SQL_GET_META, "last_job", out_id);
}

struct job_state {
	uint64_t epoch, next_window;
};

static enum status live_job(struct journal *j, uint64_t id, struct job_state *out)
{
	sqlite3_stmt *s = j->stmt[SQL_JOB_STATE];
	enum status st = ST_OK;
	int rc = step(j, SQL_JOB_STATE, "i", (int64_t)id);
	if (rc == SQLITE_ROW) {
		*out = (struct job_state){ (uint64_t)sqlite3_column_int64(s, 0), (uint64_t)sqlite3_column_int64(s, 1) };
		if (sqlite3_column_int(s, 2))
			st = ST_JOB_ENDED;
	} else {
		st = rc == SQLITE_DONE ? ST_JOB_NOT_FOUND : fail(j, sql_text[SQL_JOB_STATE]);
	}
	done(j, SQL_JOB_STATE);
	return st;
}

static enum status add_job(struct journal *j, const struct journal_job *b)
{
	if (b->id == 0 || b->id > INT64_MAX || b->spec.n > JOURNAL_MAX_BYTES)
		return ST_INVALID_ARGUMENT;
	int rc = step(j, SQL_JOB, "iuuitib", (int64_t)b->id, b->uuid, b->request_id, (int64_t)b->uid, b->user,
		      b->created_unix_ns, b->spec);
	enum status st = rc == SQLITE_DONE		    ? ST_OK
			 : (rc & 0xff) == SQLITE_CONSTRAINT ? ST_ALREADY_EXISTS
							    : fail(j, sql_text[SQL_JOB]);
	done(j, SQL_JOB);
	return st ? st : RUN(j, SQL_LAST_JOB, "i", (int64_t)b->id);
}

static enum status add_epoch(struct journal *j, uint64_t term, const struct journal_record *r, struct job_state is)
{
	int64_t job = (int64_t)r->epoch.job, epoch = (int64_t)r->epoch.epoch, base = (int64_t)r->epoch.base_window;
	if (r->epoch.epoch <= is.epoch)
		return ST_STALE_EPOCH;
	if (r->epoch.base_window > is.next_window)
		return ST_INVALID_ARGUMENT;
	enum status st = RUN(j, SQL_EPOCH, "iiiiti", job, epoch, base, (int64_t)term, r->epoch.reason, r->epoch.unix_ns);
	if (st == ST_OK)
		st = RUN(j, SQL_EPOCH_JOB, "iii", epoch, base, job);
	if (st == ST_OK)
		st = RUN(j, SQL_VOID_WINDOWS, "ii", job, base);
	return st ? st : RUN(j, SQL_VOID_PAYLOADS, "ii", job, base);
}

static enum status add_window(struct journal *j, uint64_t term, const struct journal_window *w, struct job_state is)
{
	int64_t job = (int64_t)w->job, window = (int64_t)w->window;
	if (w->epoch != is.epoch)
		return ST_STALE_EPOCH;
	if (w->window != is.next_window || w->term != term || w->payload.n > JOURNAL_MAX_BYTES)
		return ST_INVALID_ARGUMENT;
	enum status st = RUN(j, SQL_WINDOW, "iiiiiiii", job, window, (int64_t)w->epoch, (int64_t)w->applied_step,
			     (int64_t)w->term, (int64_t)w->attempt, (int64_t)w->outcome, w->unix_ns);
	if (st == ST_OK)
		st = RUN(j, SQL_PAYLOAD, "iib", job, window, w->payload);
	if (st == ST_OK)
		st = RUN(j, SQL_OLD_PAYLOADS, "ii", job, window - JOURNAL_KEEP_PAYLOADS);
	return st ? st : RUN(j, SQL_NEXT_WINDOW, "ii", window + 1, job);
}

static enum status add(struct journal *j, uint64_t term, const struct journal_record *r)
{
	if (r->kind == JOURNAL_JOB)
		return add_job(j, &r->job);
	uint64_t id = r->kind == JOURNAL_TENSORS	? r->tensors.job
		      : r->kind == JOURNAL_PARAMS_READY ? r->params_ready.job
		      : r->kind == JOURNAL_EPOCH	? r->epoch.job
		      : r->kind == JOURNAL_COMMIT	? r->commit.job
		      : r->kind == JOURNAL_HOLD		? r->hold.job
		      : r->kind == JOURNAL_UPDATE	? r->update.job
							: r->end.job;
	struct job_state is = { 0, 0 };
	enum status st = live_job(j, id, &is);
	if (st)
		return st;
	switch (r->kind) {
	case JOURNAL_TENSORS:
		if (r->tensors.set.n > JOURNAL_MAX_BYTES)
			return ST_INVALID_ARGUMENT;
		return RUN(j, SQL_TENSORS, "bi", r->tensors.set, (int64_t)id);
	case JOURNAL_PARAMS_READY:
		return RUN(j, SQL_PARAMS_READY, "i", (int64_t)id);
	case JOURNAL_EPOCH:
		return add_epoch(j, term, r, is);
	case JOURNAL_COMMIT:
		return add_window(j, term, &r->commit, is);
	case JOURNAL_HOLD:
		return RUN(j, SQL_HOLD, "ti", r->hold.reason, (int64_t)id);
	case JOURNAL_UPDATE:
		if (r->update.payload.n > JOURNAL_MAX_BYTES)
			return ST_INVALID_ARGUMENT;
		return RUN(j, SQL_UPDATE, "iib", (int64_t)id, (int64_t)r->update.window, r->update.payload);
	default:
		return RUN(j, SQL_END, "itii", (int64_t)r->end.state, r->end.reason, r->end.unix_ns, (int64_t)id);
	}
}

/* The batch before this is durable whatever happens here; a failure shows at the next call. */
static void checkpoint(struct journal *j)
{
	if (j->wal_pages < CHECKPOINT_PAGES)
		return;
	if (sqlite3_wal_checkpoint_v2(j->db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL))
		fail(j, "checkpoint");
	j->wal_pages = 0;
}

enum status journal_commit(struct journal *j, uint64_t term, const struct journal_record *records, size_t n)
{
	if (j->failed)
		return ST_STORE_FAILED;
	uint64_t is = 0;
	enum status st = RUN(j, SQL_BEGIN, "");
	if (st)
		return st;
	st = run_int(j, SQL_GET_META, "term", &is);
	if (st == ST_OK && term != is)
		st = ST_STALE_TERM;
	for (size_t i = 0; i < n && st == ST_OK; i++)
		st = add(j, term, &records[i]);
	st = end(j, st);
	if (st == ST_OK)
		checkpoint(j);
	return st;
}

/* --- reading --- */

static struct journal_bytes column_bytes(sqlite3_stmt *s, int i)
{
	const void *data = sqlite3_column_blob(s, i); /* before the length: SQLite's rule */
	return (struct journal_bytes){ data, (size_t)sqlite3_column_bytes(s, i) };
}

static const char *column_text(sqlite3_stmt *s, int i)
{
	const unsigned char *text = sqlite3_column_text(s, i);
	return text ? (const char *)text : "";
}

static uint64_t column_u64(sqlite3_stmt *s, int i)
{
	return (uint64_t)sqlite3_column_int64(s, i);
}

static void column_id(sqlite3_stmt *s, int i, uint8_t out[16])
{
	struct journal_bytes b = column_bytes(s, i);
	memcpy(out, b.data, b.n < 16 ? b.n : 16);
}

static struct journal_job read_job(sqlite3_stmt *s)
{
	struct journal_job b = {
		.id = column_u64(s, 0),
		.uid = (uint32_t)column_u64(s, 3),
		.user = column_text(s, 4),
		.created_unix_ns = sqlite3_column_int64(s, 5),
		.spec = column_bytes(s, 6),
		.tensors = column_bytes(s, 7),
		.params_ready = sqlite3_column_int(s, 8) != 0,
		.epoch = column_u64(s, 9),
		.next_window = column_u64(s, 10),
		.ended = sqlite3_column_type(s, 13) != SQLITE_NULL,
		.end_state = (uint32_t)column_u64(s, 11),
		.end_reason = column_text(s, 12),
		.ended_unix_ns = sqlite3_column_int64(s, 13),
		.hold_reason = (const char *)sqlite3_column_text(s, 14),
	};
	column_id(s, 1, b.uuid);
	column_id(s, 2, b.request_id);
	return b;
}

static struct journal_window read_window(sqlite3_stmt *s)
{
	return (struct journal_window){
		.job = column_u64(s, 0),
		.window = column_u64(s, 1),
		.epoch = column_u64(s, 2),
		.applied_step = column_u64(s, 3),
		.term = column_u64(s, 4),
		.attempt = column_u64(s, 5),
		.outcome = (uint32_t)column_u64(s, 6),
		.unix_ns = sqlite3_column_int64(s, 7),
		.payload = column_bytes(s, 8),
	};
}

enum status journal_each_job(struct journal *j, bool all, enum status (*fn)(void *arg, const struct journal_job *),
			     void *arg)
{
	if (j->failed)
		return ST_STORE_FAILED;
	sqlite3_stmt *s = j->stmt[SQL_EACH_JOB];
	enum status st = ST_OK;
	int rc;
	for (rc = step(j, SQL_EACH_JOB, "i", (int64_t)all); rc == SQLITE_ROW && st == ST_OK; rc = sqlite3_step(s)) {
		struct journal_job b = read_job(s);
		st = fn(arg, &b);
	}
	if (rc != SQLITE_ROW && rc != SQLITE_DONE)
		st = fail(j, sql_text[SQL_EACH_JOB]);
	done(j, SQL_EACH_JOB);
	return st;
}

enum status journal_each_window(struct journal *j, uint64_t job, uint64_t last,
				enum status (*fn)(void *arg, const struct journal_window *), void *arg)
{
	if (j->failed)
		return ST_STORE_FAILED;
	sqlite3_stmt *s = j->stmt[SQL_EACH_WINDOW];
	int64_t n = last < INT64_MAX ? (int64_t)last : INT64_MAX;
	enum status st = ST_OK;
	int rc;
	for (rc = step(j, SQL_EACH_WINDOW, "ii", (int64_t)job, n); rc == SQLITE_ROW && st == ST_OK; rc = sqlite3_step(s)) {
		struct journal_window w = read_window(s);
		st = fn(arg, &w);
	}
	if (rc != SQLITE_ROW && rc != SQLITE_DONE)
		st = fail(j, sql_text[SQL_EACH_WINDOW]);
	done(j, SQL_EACH_WINDOW);
	return st;
}

enum status journal_each_update(struct journal *j, uint64_t job, enum status (*fn)(void *arg, const struct journal_update *),
				void *arg)
{
	if (j->failed)
		return ST_STORE_FAILED;
	sqlite3_stmt *s = j->stmt[SQL_EACH_UPDATE];
	enum status st = ST_OK;
	int rc;
	for (rc = step(j, SQL_EACH_UPDATE, "i", (int64_t)job); rc == SQLITE_ROW && st == ST_OK; rc = sqlite3_step(s)) {
		struct journal_update u = { column_u64(s, 0), column_u64(s, 1), column_bytes(s, 2) };
		st = fn(arg, &u);
	}
	if (rc != SQLITE_ROW && rc != SQLITE_DONE)
		st = fail(j, sql_text[SQL_EACH_UPDATE]);
	done(j, SQL_EACH_UPDATE);
	return st;
}
