#include "store/journal_impl.h"

#include "base/log.h"
#include "store/reserve.h"

#include <sqlite3.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* Payloads lie apart, so that a job's history stays a few dozen bytes per window. From step 7 on, meta's `sealed` says of which schema
 * the sums are: after a step they are computed anew (journal_seal.c). */
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
	"ALTER TABLE jobs ADD COLUMN base BLOB;"
	"CREATE TABLE checkpoints (job INTEGER, id INTEGER, request_id BLOB NOT NULL, path TEXT NOT NULL,"
	" sha256 BLOB NOT NULL, window INTEGER NOT NULL, applied_step INTEGER NOT NULL, carried INTEGER NOT NULL,"
	" bytes INTEGER NOT NULL, started INTEGER NOT NULL, ended INTEGER NOT NULL, PRIMARY KEY (job, id)) WITHOUT ROWID;",
	"ALTER TABLE jobs ADD COLUMN exits BLOB;",
	/* each window takes the place of the one 16 before it: a commit then changes one page here instead of three */
	"CREATE TABLE recent (job INTEGER, place INTEGER, window INTEGER NOT NULL, data BLOB NOT NULL,"
	" PRIMARY KEY (job, place)) WITHOUT ROWID;"
	"INSERT INTO recent SELECT job, window % 16, window, data FROM payloads; DROP TABLE payloads;",
	/* what may be large lies apart: each commit changes the job's row, and a start reads those of all */
	"CREATE TABLE specs (job INTEGER PRIMARY KEY, spec BLOB NOT NULL, tensors BLOB);"
	"INSERT INTO specs SELECT id, spec, tensors FROM jobs;"
	"ALTER TABLE jobs DROP COLUMN spec; ALTER TABLE jobs DROP COLUMN tensors; ALTER TABLE jobs ADD COLUMN view BLOB;",
	/* a request id is unique per user, not across users: SQLite changes a constraint only by making the table anew */
	"CREATE TABLE new_jobs (id INTEGER PRIMARY KEY, uuid BLOB NOT NULL, request_id BLOB NOT NULL, uid INTEGER NOT NULL,"
	" user TEXT NOT NULL, created INTEGER NOT NULL, params_ready INTEGER NOT NULL DEFAULT 0, epoch INTEGER NOT NULL DEFAULT 1,"
	" next_window INTEGER NOT NULL DEFAULT 0, end_state INTEGER, end_reason TEXT, ended INTEGER, hold TEXT, base BLOB,"
	" exits BLOB, view BLOB, UNIQUE (uid, request_id));"
	"INSERT INTO new_jobs SELECT id, uuid, request_id, uid, user, created, params_ready, epoch, next_window, end_state,"
	" end_reason, ended, hold, base, exits, view FROM jobs;"
	"DROP TABLE jobs; ALTER TABLE new_jobs RENAME TO jobs;",
	/* a job's sum is that of its rows in all tables (journal_sum.h) */
	("ALTER TABLE jobs ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;"
	 "INSERT INTO meta VALUES ('identity', 0), ('records', 0), ('sum', 0), ('sealed', 0);"),
};
_Static_assert(sizeof schema_steps / sizeof *schema_steps >= JOURNAL_SUMS_VERSION, "the step that brings the sums");
_Static_assert(JOURNAL_KEEP_PAYLOADS == 16, "the places in the schema");

#define JOB_COLUMNS                                                                                                    \
	"id, uuid, request_id, uid, user, created, s.spec, s.tensors, params_ready, epoch, next_window, end_state,"    \
	" end_reason, ended, hold, base, exits, view"

/* X(name, SQL) */
#define STATEMENTS(X)                                                                                                  \
	X(BEGIN, "BEGIN IMMEDIATE")                                                                                    \
	X(COMMIT, "COMMIT")                                                                                            \
	X(ROLLBACK, "ROLLBACK")                                                                                        \
	X(MARK, "UPDATE meta SET value = CASE key WHEN 'records' THEN ?1 WHEN 'sum' THEN ?2 WHEN 'term' THEN ?3"        \
		" WHEN 'incarnation' THEN ?4 ELSE ?5 END"                                                               \
		" WHERE key IN ('records', 'sum', 'term', 'incarnation', 'last_job')")                                 \
	X(JOB_SUM, "UPDATE jobs SET sum = gacc_plus(sum, ?) WHERE id = ?")                                             \
	X(JOB, "INSERT INTO jobs (id, uuid, request_id, uid, user, created) VALUES (?, ?, ?, ?, ?, ?)")                \
	X(SPEC, "INSERT INTO specs (job, spec) VALUES (?, ?)")                                                         \
	X(JOB_STATE, "SELECT epoch, next_window, ended IS NOT NULL FROM jobs WHERE id = ?")                            \
	X(TENSORS, "UPDATE specs SET tensors = ? WHERE job = ?")                                                       \
	X(PARAMS_READY, "UPDATE jobs SET params_ready = 1 WHERE id = ?")                                               \
	X(EPOCH, "INSERT INTO epochs (job, epoch, base_window, term, reason, at) VALUES (?, ?, ?, ?, ?, ?)")           \
	X(EPOCH_JOB, "UPDATE jobs SET epoch = ?, next_window = ? WHERE id = ?")                                        \
	X(VOID_WINDOWS, "DELETE FROM windows WHERE job = ? AND window >= ?")                                           \
	X(VOID_PAYLOADS, "DELETE FROM recent WHERE job = ? AND window >= ?")                                           \
	X(WINDOW, "INSERT INTO windows (job, window, epoch, applied_step, term, attempt, outcome, at)"                 \
		  " VALUES (?, ?, ?, ?, ?, ?, ?, ?)")                                                                  \
	X(PAYLOAD, "INSERT OR REPLACE INTO recent (job, place, window, data) VALUES (?, ?, ?, ?)")                     \
	X(NEXT_WINDOW, "UPDATE jobs SET next_window = ? WHERE id = ?")                                                 \
	X(FORGET_WINDOWS, "DELETE FROM windows WHERE job = ?1"                                                         \
			  " AND window < ?2 + (SELECT min(window) FROM windows WHERE job = ?1)")                       \
	X(FORGET_PAYLOADS, "DELETE FROM recent WHERE job = ?")                                                         \
	X(FORGET_UPDATES, "DELETE FROM updates WHERE job = ?")                                                         \
	X(FORGET_CHECKPOINTS, "DELETE FROM checkpoints WHERE job = ?")                                                 \
	X(FORGET_EPOCHS, "DELETE FROM epochs WHERE job = ?")                                                           \
	X(FORGET_JOB, "DELETE FROM jobs WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM windows WHERE job = ?1)")          \
	X(FORGET_SPEC, "DELETE FROM specs WHERE job = ?1 AND NOT EXISTS (SELECT 1 FROM jobs WHERE id = ?1)")           \
	X(HOLD, "UPDATE jobs SET hold = ? WHERE id = ?")                                                               \
	X(UPDATE, "INSERT INTO updates (job, window, data) VALUES (?, ?, ?)")                                          \
	X(RESTORED, "UPDATE jobs SET next_window = ?, base = ? WHERE id = ?")                                          \
	X(HAS_WINDOW, "SELECT count(*) FROM (SELECT 1 FROM windows WHERE job = ? LIMIT 1)")                            \
	X(CHECKPOINT, "INSERT INTO checkpoints (job, id, request_id, path, sha256, window, applied_step, carried,"     \
		      " bytes, started, ended) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")                              \
	X(GONE, "DELETE FROM checkpoints WHERE job = ? AND id = ?")                                                    \
	X(EXITS, "UPDATE jobs SET exits = ? WHERE id = ?")                                                             \
	X(VIEW, "UPDATE jobs SET view = ? WHERE id = ?")                                                               \
	X(END, "UPDATE jobs SET end_state = ?, end_reason = ?, ended = ?, view = nullif(?, x'') WHERE id = ?")         \
	X(EACH_JOB, "SELECT " JOB_COLUMNS " FROM jobs LEFT JOIN specs s ON s.job = id AND (ended IS NULL OR view IS NULL)" \
		    " WHERE ? OR ended IS NULL ORDER BY id")                                                           \
	X(ONE_JOB, "SELECT " JOB_COLUMNS " FROM jobs JOIN specs s ON s.job = id WHERE id = ?")                         \
	X(EACH_WINDOW, "SELECT w.job, w.window, w.epoch, applied_step, term, attempt, outcome, at, data"               \
		       " FROM windows w LEFT JOIN recent p"                                                             \
		       " ON p.job = w.job AND p.place = w.window % 16 AND p.window = w.window"                         \
		       " WHERE w.job = ?1 AND w.window >= (SELECT next_window - ?2 FROM jobs WHERE id = ?1)"           \
		       " ORDER BY w.window")                                                                           \
	X(EACH_CHECKPOINT, "SELECT job, id, request_id, path, sha256, window, applied_step, carried, bytes, started,"  \
			   " ended FROM checkpoints WHERE job = ? ORDER BY id")                                        \
	X(EACH_UPDATE, "SELECT job, window, data FROM updates WHERE job = ? ORDER BY id")

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

static const struct sql_file file = { .kind = "journal", .schema_steps = schema_steps,
				      .version = sizeof schema_steps / sizeof *schema_steps, .full_sync = true,
				      .check = true, .text = sql_text, .n = SQL_COUNT, .look = journal_check_content,
				      .begin = journal_begin };

/* ---- transactions ---- */

static enum status begin(struct journal *j)
{
	if (j->sql.failed)
		return ST_STORE_FAILED;
	journal_sum_clear(&j->sum);
	return sql_run(&j->sql, SQL_BEGIN, "");
}

/* What the transaction has changed goes into the sums, and what it makes of the mark into the file. */
static enum status write_mark(struct journal *j, struct anchor_mark *m)
{
	enum status st = ST_OK;
	for (size_t i = 0; i < j->sum.n && !st; i++)
		st = sql_run(&j->sql, SQL_JOB_SUM, "ii", (int64_t)j->sum.of[i].sum, (int64_t)j->sum.of[i].job);
	m->sum = journal_mark_sum(m, j->rows + journal_sum_total(&j->sum));
	return st ? st : sql_run(&j->sql, SQL_MARK, "iiiii", (int64_t)m->records, (int64_t)m->sum, (int64_t)m->term,
				 (int64_t)m->incarnation, (int64_t)m->last_job);
}

/* Ends a transaction as `st` says: it leads to the mark, whose last n records are the entries. Noted outside before anybody hears of it. */
static enum status end(struct journal *j, enum status st, struct anchor_mark *m, struct anchor_entry *e, size_t n)
{
	if (!st) {
		m->records += n;
		st = write_mark(j, m);
	}
	if (st) {
		bool back = j->sql.failed || sql_run(&j->sql, SQL_ROLLBACK, "") == ST_OK;
		return back ? st : ST_STORE_FAILED;
	}
	st = sql_run(&j->sql, SQL_COMMIT, "");
	if (st)
		return st;
	for (size_t i = 0; i < n; i++)
		e[i].number = j->mark.records + i + 1;
	j->mark = *m;
	j->rows += journal_sum_total(&j->sum);
	if (anchor_note(&j->anchor, m, e, n)) {
		j->sql.failed = true;
		return ST_STORE_FAILED;
	}
	return ST_OK;
}

/* ---- open and close ---- */

/* Of the directory: the journal's files may come and go under whoever has it. */
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

/* As the operator has said, whatever the copies say. */
static enum status accept(struct journal *j)
{
	enum status st = journal_raise(j, &j->anchor.file);
	return st ? st : journal_raise(j, &j->anchor.kept);
}

static enum status open_files(struct journal *j, const char *anchor)
{
	enum status st = j->forced ? ST_OK : journal_check_files(j);
	if (!st)
		st = sql_open(&j->sql, &file, j->path);
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
	if (!st && !j->forced && anchor_begin(&j->anchor, anchor, j->keep, &j->mark))
		st = ST_STORE_FAILED;
	j->sql.full_is_quiet = true;
	return st;
}

/* With its lock, and what was noted of it. */
static enum status lock_and_read(const char *path, const char *anchor, int kept, struct journal **out)
{
	struct journal *j = calloc(1, sizeof *j);
	if (!j) {
		if (kept >= 0)
			close(kept);
		return ST_NO_MEMORY;
	}
	*j = (struct journal){ .path = strdup(path), .lock = -1, .anchor = { .file = { .fd = -1 }, .kept = { .fd = kept } } };
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

/* ---- records ---- */

static enum status take(struct journal *j, uint64_t *counter, struct anchor_mark *m, uint64_t *out)
{
	struct anchor_entry e = { .kind = 0 };
	uint64_t value = ++*counter;
	enum status st = begin(j);
	if (st == ST_OK)
		st = end(j, st, m, &e, 1);
	if (st == ST_OK)
		*out = value;
	return st;
}

enum status journal_take_incarnation(struct journal *j, uint64_t *out_incarnation)
{
	struct anchor_mark m = j->mark;
	return take(j, &m.incarnation, &m, out_incarnation);
}

enum status journal_take_term(struct journal *j, uint64_t *out_term)
{
	struct anchor_mark m = j->mark;
	return take(j, &m.term, &m, out_term);
}

enum status journal_last_job(struct journal *j, uint64_t *out_id)
{
	if (j->sql.failed)
		return ST_STORE_FAILED;
	*out_id = j->mark.last_job;
	return ST_OK;
}

struct job_state {
	uint64_t epoch, next_window;
};

static enum status live_job(struct journal *j, uint64_t id, struct job_state *out)
{
	sqlite3_stmt *s = j->sql.stmt[SQL_JOB_STATE];
	enum status st = ST_OK;
	int rc = sql_step(&j->sql, SQL_JOB_STATE, "i", (int64_t)id);
	if (rc == SQLITE_ROW) {
		*out = (struct job_state){ (uint64_t)sqlite3_column_int64(s, 0), (uint64_t)sqlite3_column_int64(s, 1) };
		if (sqlite3_column_int(s, 2))
			st = ST_JOB_ENDED;
	} else {
		st = rc == SQLITE_DONE ? ST_JOB_NOT_FOUND : sql_fail(&j->sql, sql_text[SQL_JOB_STATE]);
	}
	sql_done(&j->sql, SQL_JOB_STATE);
	return st;
}

static enum status add_job(struct journal *j, const struct journal_job *b)
{
	if (b->id == 0 || b->id > INT64_MAX || b->spec.n > JOURNAL_MAX_BYTES)
		return ST_INVALID_ARGUMENT;
	int rc = sql_step(&j->sql, SQL_JOB, "iuuiti", (int64_t)b->id, b->uuid, b->request_id, (int64_t)b->uid, b->user,
		      b->created_unix_ns);
	enum status st = rc == SQLITE_DONE		    ? ST_OK
			 : (rc & 0xff) == SQLITE_CONSTRAINT ? ST_ALREADY_EXISTS
							    : sql_fail(&j->sql, sql_text[SQL_JOB]);
	sql_done(&j->sql, SQL_JOB);
	if (!st)
		st = sql_run(&j->sql, SQL_SPEC, "ib", (int64_t)b->id, b->spec.data, b->spec.n);
	return st;
}

static enum status add_epoch(struct journal *j, uint64_t term, const struct journal_record *r, struct job_state is)
{
	int64_t job = (int64_t)r->epoch.job, epoch = (int64_t)r->epoch.epoch, base = (int64_t)r->epoch.base_window;
	if (r->epoch.epoch <= is.epoch)
		return ST_STALE_EPOCH;
	if (r->epoch.base_window > is.next_window)
		return ST_INVALID_ARGUMENT;
	enum status st = sql_run(&j->sql, SQL_EPOCH, "iiiiti", job, epoch, base, (int64_t)term, r->epoch.reason, r->epoch.unix_ns);
	if (st == ST_OK)
		st = sql_run(&j->sql, SQL_EPOCH_JOB, "iii", epoch, base, job);
	if (st == ST_OK)
		st = sql_run(&j->sql, SQL_VOID_WINDOWS, "ii", job, base);
	return st ? st : sql_run(&j->sql, SQL_VOID_PAYLOADS, "ii", job, base);
}

static enum status add_window(struct journal *j, uint64_t term, const struct journal_window *w, struct job_state is)
{
	int64_t job = (int64_t)w->job, window = (int64_t)w->window;
	if (w->epoch != is.epoch)
		return ST_STALE_EPOCH;
	if (w->window != is.next_window || w->term != term || w->payload.n > JOURNAL_MAX_BYTES)
		return ST_INVALID_ARGUMENT;
	enum status st = sql_run(&j->sql, SQL_WINDOW, "iiiiiiii", job, window, (int64_t)w->epoch, (int64_t)w->applied_step,
			     (int64_t)w->term, (int64_t)w->attempt, (int64_t)w->outcome, w->unix_ns);
	if (st == ST_OK)
		st = sql_run(&j->sql, SQL_PAYLOAD, "iiib", job, window % JOURNAL_KEEP_PAYLOADS, window, w->payload.data,
			     w->payload.n);
	return st ? st : sql_run(&j->sql, SQL_NEXT_WINDOW, "ii", window + 1, job);
}

static enum status forget(struct journal *j, uint64_t id)
{
	static const int of_job[] = { SQL_FORGET_PAYLOADS, SQL_FORGET_UPDATES, SQL_FORGET_CHECKPOINTS,
				      SQL_FORGET_EPOCHS, SQL_FORGET_JOB, SQL_FORGET_SPEC };
	struct job_state is;
	enum status st = live_job(j, id, &is);
	if (st != ST_JOB_ENDED)
		return st ? st : ST_NOT_READY;
	st = sql_run(&j->sql, SQL_FORGET_WINDOWS, "ii", (int64_t)id, (int64_t)JOURNAL_FORGET_WINDOWS);
	for (size_t i = 0; i < sizeof of_job / sizeof *of_job && !st; i++)
		st = sql_run(&j->sql, of_job[i], "i", (int64_t)id);
	return st;
}

static enum status add_restored(struct journal *j, const struct journal_record *r)
{
	int64_t job = (int64_t)r->restored.job, window = (int64_t)r->restored.window;
	sqlite3_stmt *s = j->sql.stmt[SQL_HAS_WINDOW];
	enum status st = ST_OK;
	int rc = sql_step(&j->sql, SQL_HAS_WINDOW, "i", job);
	if (rc != SQLITE_ROW)
		st = sql_fail(&j->sql, sql_text[SQL_HAS_WINDOW]);
	else if (sqlite3_column_int(s, 0) || r->restored.base.n == 0 || r->restored.base.n > JOURNAL_MAX_BYTES)
		st = ST_INVALID_ARGUMENT;
	sql_done(&j->sql, SQL_HAS_WINDOW);
	return st ? st : sql_run(&j->sql, SQL_RESTORED, "ibi", window, r->restored.base.data, r->restored.base.n, job);
}

static enum status add_checkpoint(struct journal *j, const struct journal_checkpoint *k)
{
	int rc = sql_step(&j->sql, SQL_CHECKPOINT, "iiutbiiiiii", (int64_t)k->job, (int64_t)k->id, k->request_id, k->path,
			  k->sha256.data, k->sha256.n, (int64_t)k->window, (int64_t)k->applied_step, (int64_t)k->carried,
			  (int64_t)k->bytes, k->started_unix_ns, k->ended_unix_ns);
	enum status st = rc == SQLITE_DONE		    ? ST_OK
			 : (rc & 0xff) == SQLITE_CONSTRAINT ? ST_ALREADY_EXISTS
							    : sql_fail(&j->sql, sql_text[SQL_CHECKPOINT]);
	sql_done(&j->sql, SQL_CHECKPOINT);
	return st;
}

/* A statement that files bytes under a job. */
static enum status put_bytes(struct journal *j, int q, const struct journal_bytes *b, uint64_t job)
{
	return b->n > JOURNAL_MAX_BYTES ? ST_INVALID_ARGUMENT : sql_run(&j->sql, q, "bi", b->data, b->n, (int64_t)job);
}

static enum status add_update(struct journal *j, const struct journal_update *u)
{
	if (u->payload.n > JOURNAL_MAX_BYTES)
		return ST_INVALID_ARGUMENT;
	return sql_run(&j->sql, SQL_UPDATE, "iib", (int64_t)u->job, (int64_t)u->window, u->payload.data, u->payload.n);
}

static enum status add_end(struct journal *j, const struct journal_record *r)
{
	const struct journal_bytes *v = &r->end.view;
	return v->n > JOURNAL_MAX_BYTES ? ST_INVALID_ARGUMENT :
					  sql_run(&j->sql, SQL_END, "itibi", (int64_t)r->end.state, r->end.reason, r->end.unix_ns,
						  v->data, v->n, (int64_t)r->end.job);
}

static uint64_t job_of(const struct journal_record *r)
{
	switch (r->kind) {
	case JOURNAL_JOB:
		return r->job.id;
	case JOURNAL_TENSORS:
		return r->tensors.job;
	case JOURNAL_PARAMS_READY:
		return r->params_ready.job;
	case JOURNAL_EPOCH:
		return r->epoch.job;
	case JOURNAL_COMMIT:
		return r->commit.job;
	case JOURNAL_END:
		return r->end.job;
	case JOURNAL_FORGET:
		return r->forget.job;
	case JOURNAL_HOLD:
		return r->hold.job;
	case JOURNAL_UPDATE:
		return r->update.job;
	case JOURNAL_RESTORED:
		return r->restored.job;
	case JOURNAL_CHECKPOINT:
		return r->checkpoint.job;
	case JOURNAL_CHECKPOINT_GONE:
		return r->gone.job;
	case JOURNAL_EXITS:
		return r->exits.job;
	case JOURNAL_VIEW:
		return r->view.job;
	}
	return 0;
}

/* A record of a job that is there. */
static enum status add_of_job(struct journal *j, uint64_t term, const struct journal_record *r, struct job_state is)
{
	const uint64_t id = job_of(r);
	switch (r->kind) {
	case JOURNAL_TENSORS:
		return put_bytes(j, SQL_TENSORS, &r->tensors.set, id);
	case JOURNAL_PARAMS_READY:
		return sql_run(&j->sql, SQL_PARAMS_READY, "i", (int64_t)id);
	case JOURNAL_EPOCH:
		return add_epoch(j, term, r, is);
	case JOURNAL_COMMIT:
		return add_window(j, term, &r->commit, is);
	case JOURNAL_HOLD:
		return sql_run(&j->sql, SQL_HOLD, "ti", r->hold.reason, (int64_t)id);
	case JOURNAL_UPDATE:
		return add_update(j, &r->update);
	case JOURNAL_RESTORED:
		return add_restored(j, r);
	case JOURNAL_CHECKPOINT:
		return add_checkpoint(j, &r->checkpoint);
	case JOURNAL_CHECKPOINT_GONE:
		return sql_run(&j->sql, SQL_GONE, "ii", (int64_t)id, (int64_t)r->gone.id);
	case JOURNAL_EXITS:
		return put_bytes(j, SQL_EXITS, &r->exits.exits, id);
	case JOURNAL_END:
		return add_end(j, r);
	case JOURNAL_VIEW:
		return put_bytes(j, SQL_VIEW, &r->view.view, id);
	case JOURNAL_JOB:
	case JOURNAL_FORGET:
		break;
	}
	return ST_INVALID_ARGUMENT;
}

static enum status add(struct journal *j, uint64_t term, const struct journal_record *r)
{
	if (r->kind == JOURNAL_JOB)
		return add_job(j, &r->job);
	if (r->kind == JOURNAL_FORGET)
		return forget(j, r->forget.job);
	struct job_state is = { 0, 0 };
	enum status st = live_job(j, job_of(r), &is);
	bool late = r->kind == JOURNAL_EXITS || r->kind == JOURNAL_VIEW;
	bool may = late ? !st || st == ST_JOB_ENDED : !st;
	return may ? add_of_job(j, term, r, is) : st;
}

static struct anchor_entry entry_of(const struct journal_record *r)
{
	struct anchor_entry e = { .job = job_of(r), .kind = r->kind };
	if (r->kind == JOURNAL_JOB)
		e.uid = r->job.uid;
	else if (r->kind == JOURNAL_COMMIT)
		e.window = r->commit.window;
	else if (r->kind == JOURNAL_UPDATE)
		e.window = r->update.window;
	else if (r->kind == JOURNAL_CHECKPOINT)
		e.window = r->checkpoint.id;
	return e;
}

static enum status commit(struct journal *j, uint64_t term, const struct journal_record *records, size_t n, struct anchor_entry *e)
{
	struct anchor_mark m = j->mark;
	enum status st = begin(j);
	if (st)
		return st;
	st = term == m.term ? ST_OK : ST_STALE_TERM;
	for (size_t i = 0; i < n && st == ST_OK; i++) {
		st = add(j, term, &records[i]);
		e[i] = entry_of(&records[i]);
		if (records[i].kind == JOURNAL_JOB && records[i].job.id > m.last_job)
			m.last_job = records[i].job.id;
	}
	return end(j, st, &m, e, n);
}

/* New jobs and their tensors are as large as users make them: these wait for room, what is left is for jobs that run. */
static bool may_use_reserve(const struct journal_record *records, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (records[i].kind == JOURNAL_JOB || records[i].kind == JOURNAL_TENSORS)
			return false;
	return true;
}

/* What a record holds besides the fields of its kind. */
static size_t payload_bytes(const struct journal_record *r)
{
	switch (r->kind) {
	case JOURNAL_JOB:
		return r->job.spec.n;
	case JOURNAL_TENSORS:
		return r->tensors.set.n;
	case JOURNAL_COMMIT:
		return r->commit.payload.n;
	case JOURNAL_UPDATE:
		return r->update.payload.n;
	case JOURNAL_RESTORED:
		return r->restored.base.n;
	case JOURNAL_END:
		return r->end.view.n;
	case JOURNAL_EXITS:
		return r->exits.exits.n;
	case JOURNAL_VIEW:
		return r->view.view.n;
	case JOURNAL_PARAMS_READY:
	case JOURNAL_EPOCH:
	case JOURNAL_FORGET:
	case JOURNAL_HOLD:
	case JOURNAL_CHECKPOINT:
	case JOURNAL_CHECKPOINT_GONE:
		break;
	}
	return 0;
}

static uint64_t bytes_of(const struct journal_record *records, size_t n)
{
	uint64_t bytes = 0;
	for (size_t i = 0; i < n; i++)
		bytes += payload_bytes(&records[i]);
	return bytes;
}

/* Ends with the last failure, or with ST_OK. */
static enum status commit_with_room(struct journal *j, uint64_t term, const struct journal_record *records, size_t n,
				    struct anchor_entry *e)
{
	bool release = may_use_reserve(records, n);
	enum status st;
	while ((st = commit(j, term, records, n, e)) && sql_undo_full(&j->sql))
		if (!reserve_more(&j->reserve, bytes_of(records, n), release)) {
			if (!release && !j->sql.failed)
				return ST_RESOURCE_EXHAUSTED;
			log_error("journal: the disk is full and its reserve is used up");
			j->sql.failed = true;
			return ST_STORE_FAILED;
		}
	return st;
}

enum status journal_commit(struct journal *j, uint64_t term, const struct journal_record *records, size_t n)
{
	if (j->sql.failed)
		return ST_STORE_FAILED;
	struct anchor_entry few[16], *e = n > sizeof few / sizeof *few ? calloc(n, sizeof *e) : few;
	if (!e)
		return ST_NO_MEMORY;
	enum status st = commit_with_room(j, term, records, n, e);
	if (e != few)
		free(e);
	if (st == ST_OK) {
		bool due = sql_checkpoint_due(&j->sql);
		sql_checkpoint(&j->sql); /* a failure shows at the next call */
		if (due)
			reserve_after_checkpoint(&j->reserve);
	}
	return st;
}

uint32_t journal_reserve(struct journal *j, uint32_t wanted_mib)
{
	if (!j->sql.failed && wanted_mib && reserve_fill(&j->reserve, wanted_mib) && sql_checkpoint_due(&j->sql)) {
		sql_checkpoint(&j->sql);
		reserve_after_checkpoint(&j->reserve);
	}
	return j->reserve.rows;
}

/* ---- reading ---- */

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
		.base = column_bytes(s, 15),
		.exits = column_bytes(s, 16),
		.view = column_bytes(s, 17),
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

static struct journal_checkpoint read_checkpoint(sqlite3_stmt *s)
{
	struct journal_checkpoint k = {
		.job = column_u64(s, 0),
		.id = column_u64(s, 1),
		.path = column_text(s, 3),
		.sha256 = column_bytes(s, 4),
		.window = column_u64(s, 5),
		.applied_step = column_u64(s, 6),
		.carried = column_u64(s, 7),
		.bytes = column_u64(s, 8),
		.started_unix_ns = sqlite3_column_int64(s, 9),
		.ended_unix_ns = sqlite3_column_int64(s, 10),
	};
	column_id(s, 2, k.request_id);
	return k;
}

/* Who wants to see the rows: one of the functions. */
struct visitor {
	enum status (*job)(void *arg, const struct journal_job *);
	enum status (*window)(void *arg, const struct journal_window *);
	enum status (*checkpoint)(void *arg, const struct journal_checkpoint *);
	enum status (*update)(void *arg, const struct journal_update *);
	void *arg;
};

static enum status show(const struct visitor *v, sqlite3_stmt *s)
{
	if (v->job) {
		struct journal_job b = read_job(s);
		return v->job(v->arg, &b);
	}
	if (v->window) {
		struct journal_window w = read_window(s);
		return v->window(v->arg, &w);
	}
	if (v->checkpoint) {
		struct journal_checkpoint k = read_checkpoint(s);
		return v->checkpoint(v->arg, &k);
	}
	struct journal_update u = { column_u64(s, 0), column_u64(s, 1), column_bytes(s, 2) };
	return v->update(v->arg, &u);
}

/* All rows of statement q, which has taken its first step. */
static enum status each(struct journal *j, int q, int rc, const struct visitor *v)
{
	sqlite3_stmt *s = j->sql.stmt[q];
	enum status st = ST_OK;
	for (; rc == SQLITE_ROW && st == ST_OK; rc = sqlite3_step(s))
		st = show(v, s);
	if (rc != SQLITE_ROW && rc != SQLITE_DONE)
		st = sql_fail(&j->sql, sql_text[q]);
	sql_done(&j->sql, q);
	return st;
}

enum status journal_each_job(struct journal *j, bool all, enum status (*fn)(void *arg, const struct journal_job *),
			     void *arg)
{
	const struct visitor v = { .job = fn, .arg = arg };
	if (j->sql.failed)
		return ST_STORE_FAILED;
	return each(j, SQL_EACH_JOB, sql_step(&j->sql, SQL_EACH_JOB, "i", (int64_t)all), &v);
}

enum status journal_read_job(struct journal *j, uint64_t job, enum status (*fn)(void *arg, const struct journal_job *), void *arg)
{
	const struct visitor v = { .job = fn, .arg = arg };
	if (j->sql.failed)
		return ST_STORE_FAILED;
	int rc = sql_step(&j->sql, SQL_ONE_JOB, "i", (int64_t)job);
	enum status st = each(j, SQL_ONE_JOB, rc, &v);
	return rc == SQLITE_DONE ? ST_JOB_NOT_FOUND : st;
}

enum status journal_each_window(struct journal *j, uint64_t job, uint64_t last,
				enum status (*fn)(void *arg, const struct journal_window *), void *arg)
{
	const struct visitor v = { .window = fn, .arg = arg };
	int64_t n = last < INT64_MAX ? (int64_t)last : INT64_MAX;
	if (j->sql.failed)
		return ST_STORE_FAILED;
	return each(j, SQL_EACH_WINDOW, sql_step(&j->sql, SQL_EACH_WINDOW, "ii", (int64_t)job, n), &v);
}

enum status journal_each_checkpoint(struct journal *j, uint64_t job,
				    enum status (*fn)(void *arg, const struct journal_checkpoint *), void *arg)
{
	const struct visitor v = { .checkpoint = fn, .arg = arg };
	if (j->sql.failed)
		return ST_STORE_FAILED;
	return each(j, SQL_EACH_CHECKPOINT, sql_step(&j->sql, SQL_EACH_CHECKPOINT, "i", (int64_t)job), &v);
}

enum status journal_each_update(struct journal *j, uint64_t job, enum status (*fn)(void *arg, const struct journal_update *),
				void *arg)
{
	const struct visitor v = { .update = fn, .arg = arg };
	if (j->sql.failed)
		return ST_STORE_FAILED;
	return each(j, SQL_EACH_UPDATE, sql_step(&j->sql, SQL_EACH_UPDATE, "i", (int64_t)job), &v);
}
