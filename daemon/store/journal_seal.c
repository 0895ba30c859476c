/* SPDX-License-Identifier: Apache-2.0 */
/* The journal's mark: how many records it has had, and the sum over all of its rows. For the journal's other files, on
 * the thread that calls the journal. */
#include "store/journal_impl.h"

#include "base/log.h"

#include <sqlite3.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/random.h>
#include <xxhash.h>

uint64_t journal_mark_sum(const struct anchor_mark *m, uint64_t rows)
{
	const uint64_t fields[] = { m->identity, m->records, m->term, m->incarnation, m->last_job };
	return rows + XXH3_64bits(fields, sizeof(fields));
}

static enum status read_value(struct journal *j, const char *key, uint64_t *out)
{
	sqlite3_stmt *s = NULL;
	int rc = sqlite3_prepare_v2(j->sql.db, "SELECT value FROM main.meta WHERE key = ?", -1, &s, NULL);
	if (!rc)
		rc = sqlite3_bind_text(s, 1, key, -1, SQLITE_STATIC);
	if (!rc && (rc = sqlite3_step(s)) == SQLITE_ROW)
		*out = (uint64_t)sqlite3_column_int64(s, 0);
	sqlite3_finalize(s);
	if (rc == SQLITE_ROW)
		return ST_OK;
	if (rc != SQLITE_DONE)
		return sql_fail(&j->sql, key);
	log_error("journal %s is damaged: it does not say its %s", j->path, key);
	j->sql.failed = j->sql.damaged = true;
	return ST_STORE_FAILED;
}

/* What cannot be read is not 0: a journal without sums would be taken as it is. */
static enum status read_version(struct journal *j, uint64_t *out)
{
	sqlite3_stmt *s = NULL;
	int rc = sqlite3_prepare_v2(j->sql.db, "PRAGMA main.user_version", -1, &s, NULL);
	if (!rc && (rc = sqlite3_step(s)) == SQLITE_ROW)
		*out = (uint64_t)sqlite3_column_int64(s, 0);
	sqlite3_finalize(s);
	return rc == SQLITE_ROW ? ST_OK : sql_fail(&j->sql, "user_version");
}

enum status journal_read_mark(struct journal *j, struct anchor_mark *out, bool *sealed)
{
	uint64_t version = 0, for_version = 0;
	const struct {
		const char *key;
		uint64_t *to;
	} all[] = {
		{ "identity", &out->identity }, { "records", &out->records },	      { "sum", &out->sum },
		{ "term", &out->term },		{ "incarnation", &out->incarnation }, { "last_job", &out->last_job },
		{ "sealed", &for_version }
	};
	enum status st = ST_OK;
	for (size_t i = 0; i < sizeof(all) / sizeof(*all) && !st; i++)
		st = read_value(j, all[i].key, all[i].to);
	if (!st)
		st = read_version(j, &version);
	*sealed = version && version == for_version;
	return st;
}

static enum status run_text(struct journal *j, char *text)
{
	int rc = text ? sqlite3_exec(j->sql.db, text, NULL, NULL, NULL) : SQLITE_NOMEM;
	sqlite3_free(text);
	return rc ? sql_fail(&j->sql, "writing the sums") : ST_OK;
}

static enum status write_sums(struct journal *j)
{
	enum status st = ST_OK;
	for (size_t i = 0; i < j->sum.n && !st; i++)
		st = run_text(j, sqlite3_mprintf("UPDATE jobs SET sum = %lld WHERE id = %lld;"
						 "UPDATE away SET sum = %lld WHERE job = %lld",
						 (long long)j->sum.of[i].sum, (long long)j->sum.of[i].job,
						 (long long)j->sum.of[i].sum, (long long)j->sum.of[i].job));
	return st;
}

/* `m` has all but the sum. */
static enum status write_mark(struct journal *j, struct anchor_mark *m)
{
	j->rows = journal_sum_total(&j->sum);
	m->sum = journal_mark_sum(m, j->rows);
	const struct {
		const char *key;
		uint64_t value;
	} all[] = { { "identity", m->identity }, { "records", m->records },	    { "sum", m->sum },
		    { "term", m->term },	 { "incarnation", m->incarnation }, { "last_job", m->last_job } };
	enum status st = ST_OK;
	for (size_t i = 0; i < sizeof(all) / sizeof(*all) && !st; i++)
		st = run_text(j, sqlite3_mprintf("INSERT OR REPLACE INTO meta VALUES (%Q, %lld)", all[i].key,
						 (long long)all[i].value));
	return st ? st
		  : run_text(j, sqlite3_mprintf("INSERT OR REPLACE INTO meta SELECT 'sealed', user_version FROM "
						"pragma_user_version"));
}

enum status journal_seal(struct journal *j)
{
	struct anchor_mark m = j->mark;
	while (!m.identity)
		if (getrandom(&m.identity, sizeof(m.identity), 0) != sizeof(m.identity))
			abort(); /* Linux always has these */
	enum status st = run_text(j, sqlite3_mprintf("BEGIN IMMEDIATE"));
	if (!st)
		st = journal_sum_read(&j->sum, &j->sql);
	if (!st)
		st = write_sums(j);
	if (!st)
		st = write_mark(j, &m);
	if (!st)
		st = run_text(j, sqlite3_mprintf("COMMIT"));
	if (!st) {
		j->mark = m;
		j->sealed = true;
	}
	return st;
}

enum status journal_begin(struct sql *s)
{
	struct journal *j = (struct journal *)s;
	enum status st = j->sum.state ? ST_OK : journal_sum_open(&j->sum, s);
	bool sealed = false;
	if (!st)
		st = journal_read_mark(j, &j->mark, &sealed);
	if (st)
		return st;
	if (!sealed && j->mark.identity && !j->forced) {
		/* the sum changes: if gaccd died before the anchor has it, the same number would look like damage to
		 * the next start */
		j->mark.records++;
		j->resealed = true;
	}
	if (!sealed)
		st = journal_seal(j);
	return st ? st : journal_sum_watch(&j->sum, s);
}
