/* SPDX-License-Identifier: Apache-2.0 */
/* What the records of parts of jobs that another gaccd coordinates change in the tables. For journal_records.c, within
 * the transaction that journal_commit.c has begun and on its thread. */
#include "store/journal_impl.h"
#include "store/journal_sql.h"

#include <sqlite3.h>
#include <string.h>

/* ST_OK: *is_new: no other part of the job is here. */
static enum status check_job(struct journal *j, const struct journal_part *p, bool *is_new)
{
	sqlite3_stmt *s = j->sql.stmt[SQL_AWAY];
	enum status st = ST_OK;
	int rc = sql_step(&j->sql, SQL_AWAY, "i", (int64_t)p->job);
	if (rc == SQLITE_ROW) {
		const void *uuid = sqlite3_column_blob(s, 0);
		const int n = sqlite3_column_bytes(s, 0);
		*is_new = !uuid;
		if (sqlite3_column_int(s, 1) || (uuid && (n != sizeof(p->uuid) || memcmp(uuid, p->uuid, (size_t)n))))
			st = ST_ALREADY_EXISTS;
	} else {
		st = sql_fail(&j->sql, journal_sql_text[SQL_AWAY]);
	}
	sql_done(&j->sql, SQL_AWAY);
	return st;
}

static enum status add(struct journal *j, const struct journal_part *p)
{
	bool is_new;
	if (p->job == 0 || p->job > INT64_MAX || !p->placement.n || p->placement.n > JOURNAL_MAX_PLACEMENT)
		return ST_INVALID_ARGUMENT;
	enum status st = check_job(j, p, &is_new);
	if (!st && is_new)
		st = sql_run(&j->sql, SQL_ADD_AWAY, "iu", (int64_t)p->job, p->uuid);
	return st ? st
		  : sql_run(&j->sql, SQL_PART, "iib", (int64_t)p->job, (int64_t)p->part, p->placement.data,
			    p->placement.n);
}

/* The statement before has found its part, or there is none. */
static enum status found(const struct journal *j, enum status st)
{
	return !st && !sqlite3_changes(j->sql.db) ? ST_JOB_NOT_FOUND : st;
}

static enum status add_tensors(struct journal *j, const struct journal_record *r)
{
	const struct journal_bytes *set = &r->part_tensors.set;
	if (!set->n || set->n > JOURNAL_MAX_BYTES)
		return ST_INVALID_ARGUMENT;
	return found(j, sql_run(&j->sql, SQL_PART_TENSORS, "bii", set->data, set->n, (int64_t)r->part_tensors.job,
				(int64_t)r->part_tensors.part));
}

static enum status drop(struct journal *j, int64_t job, int64_t part)
{
	enum status st = found(j, sql_run(&j->sql, SQL_PART_GONE, "ii", job, part));
	return st ? st : sql_run(&j->sql, SQL_AWAY_GONE, "i", job);
}

bool journal_is_of_part(const struct journal_record *r)
{
	return r->kind == JOURNAL_PART || r->kind == JOURNAL_PART_TENSORS || r->kind == JOURNAL_PART_BEGUN ||
	       r->kind == JOURNAL_PART_GONE;
}

enum status journal_add_part(struct journal *j, const struct journal_record *r)
{
	if (r->kind == JOURNAL_PART)
		return add(j, &r->part);
	if (r->kind == JOURNAL_PART_TENSORS)
		return add_tensors(j, r);
	if (r->kind == JOURNAL_PART_BEGUN)
		return found(j, sql_run(&j->sql, SQL_PART_BEGUN, "ii", (int64_t)r->part_begun.job,
					(int64_t)r->part_begun.part));
	return drop(j, (int64_t)r->part_gone.job, (int64_t)r->part_gone.part);
}
