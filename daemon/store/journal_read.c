/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the journal: rows of the tables as the structs of journal.h, handed to the caller's functions. For gaccd, at
 * its start and when it looks up ended jobs; on the thread that calls it. */
#include "store/journal_impl.h"
#include "store/journal_sql.h"

#include <sqlite3.h>
#include <string.h>

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

static struct journal_part read_part(sqlite3_stmt *s)
{
	struct journal_part p = {
		.job = column_u64(s, 0),
		.part = (uint32_t)column_u64(s, 1),
		.placement = column_bytes(s, 3),
		.tensors = column_bytes(s, 4),
		.begun = sqlite3_column_int(s, 5) != 0,
	};
	column_id(s, 2, p.uuid);
	return p;
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

/* What the caller does with the rows: exactly one function is set. */
struct visitor {
	enum status (*job)(void *arg, const struct journal_job *);
	enum status (*window)(void *arg, const struct journal_window *);
	enum status (*checkpoint)(void *arg, const struct journal_checkpoint *);
	enum status (*update)(void *arg, const struct journal_update *);
	enum status (*part)(void *arg, const struct journal_part *);
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
	if (v->part) {
		struct journal_part p = read_part(s);
		return v->part(v->arg, &p);
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
		st = sql_fail(&j->sql, journal_sql_text[q]);
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

enum status journal_read_job(struct journal *j, uint64_t job, enum status (*fn)(void *arg, const struct journal_job *),
			     void *arg)
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

enum status journal_each_part(struct journal *j, enum status (*fn)(void *arg, const struct journal_part *), void *arg)
{
	const struct visitor v = { .part = fn, .arg = arg };
	if (j->sql.failed)
		return ST_STORE_FAILED;
	return each(j, SQL_EACH_PART, sql_step(&j->sql, SQL_EACH_PART, ""), &v);
}

enum status journal_each_update(struct journal *j, uint64_t job,
				enum status (*fn)(void *arg, const struct journal_update *), void *arg)
{
	const struct visitor v = { .update = fn, .arg = arg };
	if (j->sql.failed)
		return ST_STORE_FAILED;
	return each(j, SQL_EACH_UPDATE, sql_step(&j->sql, SQL_EACH_UPDATE, "i", (int64_t)job), &v);
}
