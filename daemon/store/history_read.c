/* SPDX-License-Identifier: Apache-2.0 */
/* Reads windows, micro-batches and events of jobs back from the history. For gaccd's pool threads, through
 * runtime/recorder.c, one call at a time. Blocks. */
#include "store/history_impl.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Nothing can be read from a damaged file; it is replaced by a new one. */
static enum status read_failed(struct history *h, int q)
{
	enum status st = sql_fail(&h->sql, history_sql[q]);
	sql_done(&h->sql, q);
	history_recover(h);
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

static const char *column_text(sqlite3_stmt *s, int i)
{
	const unsigned char *text = sqlite3_column_text(s, i);
	return text ? (const char *)text : "";
}

/* Into the history's own. */
static enum status read_scalars(struct history *h, struct history_window *w)
{
	sqlite3_stmt *s = h->sql.stmt[SQL_SCALARS_OF];
	int rc = sql_step(&h->sql, SQL_SCALARS_OF, "ii", (int64_t)w->job, (int64_t)w->window);
	for (; rc == SQLITE_ROW && w->n_scalars < HISTORY_SCALARS; rc = sqlite3_step(s)) {
		struct history_scalar *v = &h->scalar[w->n_scalars++];
		int64_t bits = sqlite3_column_int64(s, 2);
		*v = (struct history_scalar){ w->job, w->window, .rank = (uint32_t)sqlite3_column_int64(s, 1) };
		memcpy(&v->value, &bits, sizeof(bits));
		snprintf(v->name, sizeof(v->name), "%s", column_text(s, 0));
	}
	if (rc != SQLITE_DONE && rc != SQLITE_ROW)
		return read_failed(h, SQL_SCALARS_OF);
	sql_done(&h->sql, SQL_SCALARS_OF);
	w->scalar = h->scalar;
	return ST_OK;
}

static int64_t at_most(uint64_t n)
{
	return n < INT64_MAX ? (int64_t)n : INT64_MAX;
}

static enum status each_window(struct history *h, int q, int rc, uint64_t job, bool micros,
			       enum status (*fn)(void *arg, const struct history_window *), void *arg)
{
	sqlite3_stmt *s = h->sql.stmt[q];
	enum status st = ST_OK;
	for (; rc == SQLITE_ROW && !st; rc = sqlite3_step(s)) {
		struct history_window w = { .job = job, .window = (uint64_t)sqlite3_column_int64(s, 0) };
		struct history_micro *copy = NULL;
		w.result = sqlite3_column_blob(s, 1); /* before the length: SQLite's rule */
		w.n_result = (size_t)sqlite3_column_bytes(s, 1);
		if (micros)
			st = read_micros(h, &w, &copy);
		if (!st)
			st = read_scalars(h, &w);
		if (!st)
			st = fn(arg, &w);
		free(copy);
		if (st)
			break; /* a damaged file is closed by now */
	}
	if (!st && rc != SQLITE_DONE)
		return read_failed(h, q);
	if (h->sql.db)
		sql_done(&h->sql, q);
	return st;
}

enum status history_each_window(struct history *h, uint64_t job, uint64_t before, uint64_t limit, bool micros,
				enum status (*fn)(void *arg, const struct history_window *), void *arg)
{
	enum status st = history_be_open(h);
	if (st)
		return st;
	int q = SQL_EACH_WINDOW,
	    rc = sql_step(&h->sql, q, "iii", (int64_t)job, at_most(before ? before : UINT64_MAX), at_most(limit));
	return each_window(h, q, rc, job, micros, fn, arg);
}

enum status history_each_of_whole(struct history *h, uint64_t job, uint64_t before, uint64_t limit,
				  enum status (*fn)(void *arg, const struct history_window *), void *arg)
{
	int64_t stride;
	enum status st = history_be_open(h);
	if (!st)
		st = history_stride(h, job, &stride);
	if (st)
		return st;
	int q = SQL_EACH_OF_WHOLE, rc = sql_step(&h->sql, q, "iiii", (int64_t)job,
						 at_most(before ? before : UINT64_MAX), stride, at_most(limit));
	return each_window(h, q, rc, job, false, fn, arg);
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
	enum status st = history_be_open(h);
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
	enum status st = history_be_open(h);
	return st ? st
		  : each_event(h, SQL_LAST_OF_JOB, sql_step(&h->sql, SQL_LAST_OF_JOB, "ii", (int64_t)job, (int64_t)n),
			       fn, arg);
}
