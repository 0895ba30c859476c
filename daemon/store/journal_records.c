/* SPDX-License-Identifier: Apache-2.0 */
/* What each kind of record changes in the tables. For journal_commit.c, within the transaction that it has begun and
 * on its thread. */
#include "store/journal_impl.h"
#include "store/journal_sql.h"

#include <sqlite3.h>

struct job_state {
	uint64_t epoch, next_window;
};

static enum status hosted(struct journal *j, uint64_t id, struct job_state *out)
{
	sqlite3_stmt *s = j->sql.stmt[SQL_JOB_STATE];
	enum status st = ST_OK;
	int rc = sql_step(&j->sql, SQL_JOB_STATE, "i", (int64_t)id);
	if (rc == SQLITE_ROW) {
		*out = (struct job_state){ (uint64_t)sqlite3_column_int64(s, 0), (uint64_t)sqlite3_column_int64(s, 1) };
		if (sqlite3_column_int(s, 2))
			st = ST_JOB_ENDED;
	} else {
		st = rc == SQLITE_DONE ? ST_JOB_NOT_FOUND : sql_fail(&j->sql, journal_sql_text[SQL_JOB_STATE]);
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
							    : sql_fail(&j->sql, journal_sql_text[SQL_JOB]);
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
	enum status st = sql_run(&j->sql, SQL_EPOCH, "iiiiti", job, epoch, base, (int64_t)term, r->epoch.reason,
				 r->epoch.unix_ns);
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
	enum status st =
		sql_run(&j->sql, SQL_WINDOW, "iiiiiiii", job, window, (int64_t)w->epoch, (int64_t)w->applied_step,
			(int64_t)w->term, (int64_t)w->attempt, (int64_t)w->outcome, w->unix_ns);
	if (st == ST_OK)
		st = sql_run(&j->sql, SQL_PAYLOAD, "iiib", job, window % JOURNAL_KEEP_PAYLOADS, window, w->payload.data,
			     w->payload.n);
	return st ? st : sql_run(&j->sql, SQL_NEXT_WINDOW, "ii", window + 1, job);
}

static enum status forget(struct journal *j, uint64_t id)
{
	static const int of_job[] = { SQL_FORGET_PAYLOADS, SQL_FORGET_UPDATES, SQL_FORGET_CHECKPOINTS,
				      SQL_FORGET_EPOCHS,   SQL_FORGET_JOB,     SQL_FORGET_SPEC };
	struct job_state is;
	enum status st = hosted(j, id, &is);
	if (st != ST_JOB_ENDED)
		return st ? st : ST_NOT_READY;
	st = sql_run(&j->sql, SQL_FORGET_WINDOWS, "ii", (int64_t)id, (int64_t)JOURNAL_FORGET_WINDOWS);
	for (size_t i = 0; i < sizeof(of_job) / sizeof(*of_job) && !st; i++)
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
		st = sql_fail(&j->sql, journal_sql_text[SQL_HAS_WINDOW]);
	else if (sqlite3_column_int(s, 0) || r->restored.base.n == 0 || r->restored.base.n > JOURNAL_MAX_BYTES)
		st = ST_INVALID_ARGUMENT;
	sql_done(&j->sql, SQL_HAS_WINDOW);
	return st ? st : sql_run(&j->sql, SQL_RESTORED, "ibi", window, r->restored.base.data, r->restored.base.n, job);
}

static enum status add_checkpoint(struct journal *j, const struct journal_checkpoint *k)
{
	int rc = sql_step(&j->sql, SQL_CHECKPOINT, "iiutbiiiiii", (int64_t)k->job, (int64_t)k->id, k->request_id,
			  k->path, k->sha256.data, k->sha256.n, (int64_t)k->window, (int64_t)k->applied_step,
			  (int64_t)k->carried, (int64_t)k->bytes, k->started_unix_ns, k->ended_unix_ns);
	enum status st = rc == SQLITE_DONE		    ? ST_OK
			 : (rc & 0xff) == SQLITE_CONSTRAINT ? ST_ALREADY_EXISTS
							    : sql_fail(&j->sql, journal_sql_text[SQL_CHECKPOINT]);
	sql_done(&j->sql, SQL_CHECKPOINT);
	return st;
}

/* Runs a statement that stores bytes of a job. */
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
	return v->n > JOURNAL_MAX_BYTES ? ST_INVALID_ARGUMENT
					: sql_run(&j->sql, SQL_END, "itibi", (int64_t)r->end.state, r->end.reason,
						  r->end.unix_ns, v->data, v->n, (int64_t)r->end.job);
}

uint64_t journal_job_of(const struct journal_record *r)
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
	case JOURNAL_PART:
		return r->part.job;
	case JOURNAL_PART_TENSORS:
		return r->part_tensors.job;
	case JOURNAL_PART_BEGUN:
		return r->part_begun.job;
	case JOURNAL_PART_GONE:
		return r->part_gone.job;
	}
	return 0;
}

/* A record of a job that exists. */
static enum status add_of_job(struct journal *j, uint64_t term, const struct journal_record *r, struct job_state is)
{
	const uint64_t id = journal_job_of(r);
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
	case JOURNAL_PART:
	case JOURNAL_PART_TENSORS:
	case JOURNAL_PART_BEGUN:
	case JOURNAL_PART_GONE:
		break;
	}
	return ST_INVALID_ARGUMENT;
}

enum status journal_add(struct journal *j, uint64_t term, const struct journal_record *r)
{
	if (r->kind == JOURNAL_JOB)
		return add_job(j, &r->job);
	if (journal_is_of_part(r))
		return journal_add_part(j, r);
	if (r->kind == JOURNAL_FORGET)
		return forget(j, r->forget.job);
	struct job_state is = { 0, 0 };
	enum status st = hosted(j, journal_job_of(r), &is);
	bool late = r->kind == JOURNAL_EXITS || r->kind == JOURNAL_VIEW;
	bool may = late ? !st || st == ST_JOB_ENDED : !st;
	return may ? add_of_job(j, term, r, is) : st;
}
