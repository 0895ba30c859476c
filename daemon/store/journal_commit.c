/* SPDX-License-Identifier: Apache-2.0 */
/* Writes batches of records and the two counters, each in one transaction; brings the mark and the anchor up to date,
 * and makes room on a full disk. For runtime/persist.c in the pool, and for gaccd's start; on the thread that calls
 * it. */
#include "store/journal_impl.h"
#include "store/journal_sql.h"
#include "base/log.h"

#include <sqlite3.h>
#include <stdlib.h>

/* ---- transactions ---- */

static enum status begin(struct journal *j)
{
	if (j->sql.failed)
		return ST_STORE_FAILED;
	journal_sum_clear(&j->sum);
	return sql_run(&j->sql, SQL_BEGIN, "");
}

static enum status add_to_sum(struct journal *j, const struct job_sum *of)
{
	enum status st = sql_run(&j->sql, SQL_JOB_SUM, "ii", (int64_t)of->sum, (int64_t)of->job);
	if (st || sqlite3_changes(j->sql.db))
		return st;
	return sql_run(&j->sql, SQL_AWAY_SUM, "ii", (int64_t)of->sum, (int64_t)of->job);
}

/* What the transaction has changed goes into the sums, and what it makes of the mark into the file. */
static enum status write_mark(struct journal *j, struct anchor_mark *m)
{
	enum status st = ST_OK;
	for (size_t i = 0; i < j->sum.n && !st; i++)
		st = add_to_sum(j, &j->sum.of[i]);
	m->sum = journal_mark_sum(m, j->rows + journal_sum_total(&j->sum));
	return st ? st
		  : sql_run(&j->sql, SQL_MARK, "iiiii", (int64_t)m->records, (int64_t)m->sum, (int64_t)m->term,
			    (int64_t)m->incarnation, (int64_t)m->last_job);
}

/* Ends a transaction as `st` says: it leads to the mark, whose last n records are the entries. The anchor notes it
 * before the caller learns of it. */
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

/* ---- counters ---- */

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

/* ---- batches ---- */

static struct anchor_entry entry_of(const struct journal_record *r)
{
	struct anchor_entry e = { .job = journal_job_of(r), .kind = r->kind };
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

static enum status commit(struct journal *j, uint64_t term, const struct journal_record *records, size_t n,
			  struct anchor_entry *e)
{
	struct anchor_mark m = j->mark;
	enum status st = begin(j);
	if (st)
		return st;
	st = term == m.term ? ST_OK : ST_STALE_TERM;
	for (size_t i = 0; i < n && st == ST_OK; i++) {
		st = journal_add(j, term, &records[i]);
		e[i] = entry_of(&records[i]);
		bool is_new = records[i].kind == JOURNAL_JOB || records[i].kind == JOURNAL_PART;
		if (is_new && e[i].job > m.last_job)
			m.last_job = e[i].job;
	}
	return end(j, st, &m, e, n);
}

/* New jobs, parts and their tensors are as large as users make them: they wait for room, and the reserve is left to
 * running jobs. */
static bool may_use_reserve(const struct journal_record *records, size_t n)
{
	for (size_t i = 0; i < n; i++)
		switch (records[i].kind) {
		case JOURNAL_JOB:
		case JOURNAL_TENSORS:
		case JOURNAL_PART:
		case JOURNAL_PART_TENSORS:
			return false;
		default:
			break;
		}
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
	case JOURNAL_PART:
		return r->part.placement.n;
	case JOURNAL_PART_TENSORS:
		return r->part_tensors.set.n;
	case JOURNAL_PART_BEGUN:
	case JOURNAL_PART_GONE:
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
	struct anchor_entry few[16], *e = n > sizeof(few) / sizeof(*few) ? calloc(n, sizeof(*e)) : few;
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
