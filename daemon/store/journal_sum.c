/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the sum over the journal's rows, inside SQLite: see journal_sum.h. For the journal's other files only, on
 * the thread that calls the journal. */
#include "store/journal_sum.h"

#include "base/array.h"

#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- the sums ---- */

void journal_sum_clear(struct journal_sum *s)
{
	s->n = s->at = 0;
}

uint64_t journal_sum_total(const struct journal_sum *s)
{
	uint64_t total = 0;
	for (size_t i = 0; i < s->n; i++)
		total += s->of[i].sum;
	return total;
}

/* Rows come job by job for the most part: the last place is tried first. */
static bool find(struct journal_sum *s, uint64_t job)
{
	if (s->at < s->n && s->of[s->at].job == job)
		return true;
	size_t lo = 0, hi = s->n;
	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		if (s->of[mid].job < job)
			lo = mid + 1;
		else
			hi = mid;
	}
	s->at = lo;
	return lo < s->n && s->of[lo].job == job;
}

static bool add(struct journal_sum *s, uint64_t job, uint64_t hash)
{
	if (!find(s, job)) {
		struct job_sum *of = array_grow(s->of, s->n, &s->capacity, sizeof(*of));
		if (!of)
			return false;
		s->of = of;
		memmove(&s->of[s->at + 1], &s->of[s->at], (s->n - s->at) * sizeof(*s->of));
		s->of[s->at] = (struct job_sum){ job, 0 };
		s->n++;
	}
	s->of[s->at].sum += hash;
	return true;
}

/* ---- the functions of SQL ---- */

/* False: no memory. */
static bool hash_value(XXH3_state_t *h, sqlite3_value *v)
{
	int64_t head[2] = { sqlite3_value_type(v), 0 };
	bool text = head[0] == SQLITE_TEXT;
	if (head[0] == SQLITE_INTEGER) {
		head[1] = sqlite3_value_int64(v);
	} else if (head[0] == SQLITE_FLOAT) {
		double real = sqlite3_value_double(v);
		memcpy(&head[1], &real, sizeof(real));
	} else if (text || head[0] == SQLITE_BLOB) {
		/* before the length: SQLite's rule */
		const void *data = text ? (const void *)sqlite3_value_text(v) : sqlite3_value_blob(v);
		head[1] = sqlite3_value_bytes(v);
		if (!data && (text || head[1]))
			return false;
		XXH3_64bits_update(h, data, (size_t)head[1]);
	}
	XXH3_64bits_update(h, head, sizeof(head));
	return true;
}

/* gacc_row(sign, job, table, columns ...) */
static void row_function(sqlite3_context *c, int n, sqlite3_value **v)
{
	struct journal_sum *s = sqlite3_user_data(c);
	bool ok = true;
	XXH3_64bits_reset(s->state);
	for (int i = 2; i < n && ok; i++)
		ok = hash_value(s->state, v[i]);
	uint64_t hash = XXH3_64bits_digest(s->state);
	if (!ok || !add(s, (uint64_t)sqlite3_value_int64(v[1]), sqlite3_value_int(v[0]) < 0 ? -hash : hash))
		sqlite3_result_error_nomem(c);
}

/* gacc_plus(a, b): SQL's own sum becomes a real number where it overflows. */
static void plus_function(sqlite3_context *c, int n, sqlite3_value **v)
{
	sqlite3_result_int64(c, (int64_t)((uint64_t)sqlite3_value_int64(v[0]) + (uint64_t)sqlite3_value_int64(v[1])));
}

enum status journal_sum_open(struct journal_sum *s, struct sql *q)
{
	*s = (struct journal_sum){ .state = XXH3_createState() };
	if (s->state &&
	    !sqlite3_create_function_v2(q->db, "gacc_row", -1, SQLITE_UTF8, s, row_function, NULL, NULL, NULL) &&
	    !sqlite3_create_function_v2(q->db, "gacc_plus", 2, SQLITE_UTF8, NULL, plus_function, NULL, NULL, NULL))
		return ST_OK;
	journal_sum_close(s);
	return ST_NO_MEMORY;
}

void journal_sum_close(struct journal_sum *s)
{
	XXH3_freeState(s->state);
	free(s->of);
	*s = (struct journal_sum){ .state = NULL };
}

/* ---- all tables ---- */

/* A text of SQL that grows. */
struct builder {
	sqlite3_str *text;
	sqlite3_stmt *columns; /* of a table, without those that do not count */
	int rc;		       /* SQLite's code of the first failure */
};

/* ", PREFIXa, PREFIXb", quoted. */
static void append_columns(struct builder *b, sqlite3_str *to, const char *table, const char *prefix)
{
	int rc = sqlite3_bind_text(b->columns, 1, table, -1, SQLITE_STATIC);
	while (!rc && (rc = sqlite3_step(b->columns)) == SQLITE_ROW) {
		const unsigned char *name = sqlite3_column_text(b->columns, 0);
		rc = name ? SQLITE_OK : SQLITE_NOMEM;
		if (name)
			sqlite3_str_appendf(to, ", %s\"%w\"", prefix, (const char *)name);
	}
	if (!b->rc && rc != SQLITE_DONE) /* columns would be missing in it */
		b->rc = rc;
	sqlite3_reset(b->columns);
}

static void append_row(struct builder *b, const char *table, const char *prefix, int sign)
{
	sqlite3_str_appendf(b->text, "SELECT gacc_row(%d, %s%s, %Q", sign, prefix, strcmp(table, "jobs") ? "job" : "id",
			    table);
	append_columns(b, b->text, table, prefix);
	sqlite3_str_appendall(b->text, ")");
}

static void append_query(struct builder *b, const char *table)
{
	append_row(b, table, "", 1);
	sqlite3_str_appendf(b->text, " FROM main.\"%w\"; ", table);
}

/* A change of the column `sum` is no change. */
static void append_update_of(struct builder *b, const char *table)
{
	sqlite3_str *list = sqlite3_str_new(NULL);
	append_columns(b, list, table, "");
	char *text = sqlite3_str_finish(list);
	if (text)
		sqlite3_str_appendall(b->text, text + 2);
	else if (!b->rc)
		b->rc = SQLITE_NOMEM;
	sqlite3_free(text);
}

static void append_triggers(struct builder *b, const char *table)
{
	static const char *const event[] = { "INSERT", "DELETE", "UPDATE OF " };
	for (int i = 0; i < 3; i++) {
		sqlite3_str_appendf(b->text, "CREATE TEMP TRIGGER \"sum_%w_%d\" AFTER %s", table, i, event[i]);
		if (i == 2)
			append_update_of(b, table);
		sqlite3_str_appendf(b->text, " ON main.\"%w\" BEGIN ", table);
		if (i != 0) {
			append_row(b, table, "OLD.", -1);
			sqlite3_str_appendall(b->text, "; ");
		}
		if (i != 1) {
			append_row(b, table, "NEW.", 1);
			sqlite3_str_appendall(b->text, "; ");
		}
		sqlite3_str_appendall(b->text, "END; ");
	}
}

/* One text for all tables. */
static int build(struct builder *b, struct sql *q, void (*append)(struct builder *, const char *table))
{
	sqlite3_stmt *tables = NULL;
	int rc = sqlite3_prepare_v2(
		q->db,
		"SELECT name FROM main.sqlite_schema WHERE type = 'table' AND name NOT IN ('meta', 'reserve')"
		" AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name",
		-1, &tables, NULL);
	if (!rc)
		rc = sqlite3_prepare_v2(q->db, "SELECT name FROM pragma_table_info(?) WHERE name <> 'sum' ORDER BY cid",
					-1, &b->columns, NULL);
	while (!rc && (rc = sqlite3_step(tables)) == SQLITE_ROW) {
		const char *table = (const char *)sqlite3_column_text(tables, 0);
		if (table)
			append(b, table);
		rc = table ? b->rc : SQLITE_NOMEM;
	}
	sqlite3_finalize(tables);
	sqlite3_finalize(b->columns);
	return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

static enum status for_all(struct sql *q, void (*append)(struct builder *, const char *table))
{
	struct builder b = { .text = sqlite3_str_new(q->db) };
	int rc = build(&b, q, append);
	char *text = sqlite3_str_finish(b.text);
	if (!rc)
		rc = text ? sqlite3_exec(q->db, text, NULL, NULL, NULL) : SQLITE_NOMEM;
	sqlite3_free(text);
	return rc ? sql_fail(q, "the sums over the rows") : ST_OK;
}

enum status journal_sum_read(struct journal_sum *s, struct sql *q)
{
	journal_sum_clear(s);
	return for_all(q, append_query);
}

/* A row that replaces another deletes it, and only recursive triggers notice that. The triggers are kept in memory:
 * they must not become part of the file. */
enum status journal_sum_watch(struct journal_sum *s, struct sql *q)
{
	if (sqlite3_exec(q->db, "PRAGMA recursive_triggers = ON; PRAGMA temp_store = MEMORY", NULL, NULL, NULL))
		return sql_fail(q, "watching the rows");
	return for_all(q, append_triggers);
}
