/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps room on the disk for the journal: pages of the file itself that commits may use when the disk is full. For
 * journal.c and journal_commit.c, on the thread that calls the journal. */
#include "store/reserve.h"

#include "base/log.h"

#include <sqlite3.h>
#include <stdio.h>

#define PAGE 4096u
#define CHUNK_BYTES (256u << 10) /* by which the file grows, and to which SQLite shortens it */
/* beyond what is in use: so many new pages cost no repeated commit */
#define AHEAD_PAGES 64u
/* a batch may take so many times its payload before the reserve is touched */
#define ESTIMATE_OFF 8u
#define ROW_PAGES (RESERVE_ROW_BYTES / PAGE + 8)

static enum status number(struct sql *s, const char *text, uint64_t *out)
{
	sqlite3_stmt *q = NULL;
	int rc = sqlite3_prepare_v2(s->db, text, -1, &q, NULL);
	if (rc == SQLITE_OK && (rc = sqlite3_step(q)) == SQLITE_ROW) {
		*out = (uint64_t)sqlite3_column_int64(q, 0);
		rc = SQLITE_OK;
	}
	int end = sqlite3_finalize(q);
	return rc == SQLITE_OK && end == SQLITE_OK ? ST_OK : ST_STORE_FAILED;
}

/* SQLite never sets it below what is in use. */
static enum status pin(struct reserve *r, uint64_t pages)
{
	char text[64];
	snprintf(text, sizeof(text), "PRAGMA max_page_count = %llu", (unsigned long long)(pages ? pages : 1));
	return number(r->sql, text, &r->pinned);
}

/* Lets SQLite use `more` pages than are in use, when the file has them on the disk. The pin stays true, whatever
 * fails. */
static bool extend(struct reserve *r, uint64_t more)
{
	uint64_t used = 0;
	if (number(r->sql, "PRAGMA page_count", &used))
		return false;
	sqlite3_int64 bytes = (sqlite3_int64)((used + more) * PAGE);
	if (sqlite3_file_control(r->sql->db, "main", SQLITE_FCNTL_SIZE_HINT, &bytes) != SQLITE_OK)
		return false;
	return pin(r, used + more) == ST_OK;
}

enum status reserve_open(struct reserve *r, struct sql *s)
{
	int chunk = CHUNK_BYTES;
	uint64_t rows = 0;
	*r = (struct reserve){ .sql = s };
	sqlite3_file_control(s->db, "main", SQLITE_FCNTL_CHUNK_SIZE, &chunk);
	if (number(s, "SELECT count(*) FROM sqlite_schema WHERE name = 'reserve'", &rows))
		return sql_fail(s, "reserve");
	if (rows && number(s, "SELECT count(*) FROM reserve", &rows))
		return sql_fail(s, "reserve");
	r->rows = (uint32_t)rows;
	if (pin(r, 1))
		return sql_fail(s, "reserve");
	extend(r, AHEAD_PAGES);
	return ST_OK;
}

/* A transaction of its own, undone when it fails; for lack of room this is no failure of the file. */
static bool run(struct reserve *r, const char *text)
{
	struct sql *s = r->sql;
	int rc = sqlite3_exec(s->db, text, NULL, NULL, NULL);
	if (rc == SQLITE_OK)
		return true;
	bool undone = sqlite3_get_autocommit(s->db) || sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL) == SQLITE_OK;
	if ((rc & 0xff) != SQLITE_FULL || !undone)
		sql_fail(s, "reserve");
	return false;
}

bool reserve_more(struct reserve *r, uint64_t bytes, bool release)
{
	uint64_t pages = bytes / PAGE + bytes / PAGE / 4 + AHEAD_PAGES, most = pages * ESTIMATE_OFF, had = r->pinned,
		 used = 0;
	if (number(r->sql, "PRAGMA page_count", &used))
		return false;
	while (used + pages <= had &&
	       pages < most) /* they were not enough: a row may be written anew with all that is in it */
		pages *= 2;
	if (used + pages > had && extend(r, pages))
		return true;
	if (!release || !r->rows || !run(r, "DELETE FROM reserve WHERE id = (SELECT max(id) FROM reserve)"))
		return false;
	r->rows--;
	log_warn("%s: the disk is full: %u KiB of the reserve are used, %u MiB are left", r->sql->file->kind,
		 RESERVE_ROW_BYTES >> 10, r->rows);
	return true;
}

void reserve_after_checkpoint(struct reserve *r)
{
	if (!extend(r, AHEAD_PAGES))
		pin(r, 1);
}

bool reserve_fill(struct reserve *r, uint32_t wanted)
{
	char text[160];
	if (r->rows >= wanted || r->sql->failed || !extend(r, AHEAD_PAGES + ROW_PAGES))
		return false;
	snprintf(text, sizeof(text),
		 "BEGIN IMMEDIATE; CREATE TABLE IF NOT EXISTS reserve (id INTEGER PRIMARY KEY, room BLOB NOT NULL);"
		 "INSERT INTO reserve (room) VALUES (zeroblob(%u)); COMMIT",
		 RESERVE_ROW_BYTES - PAGE);
	if (!run(r, text))
		return false;
	r->rows++;
	return true;
}
