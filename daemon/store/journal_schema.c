/* SPDX-License-Identifier: Apache-2.0 */
/* The journal's tables, how each version of them is made from the one before, and the texts of the statements: for
 * sql_open and the journal's other parts. Data alone.
 */
#include "store/journal_impl.h"
#include "store/journal_sql.h"

/* Parts of jobs that another gaccd coordinates; their job's sum is in `away`. */
#define TABLES_OF_PARTS                                                                                                \
	"CREATE TABLE away (job INTEGER PRIMARY KEY, uuid BLOB NOT NULL, sum INTEGER NOT NULL DEFAULT 0);"             \
	"CREATE TABLE parts (id INTEGER PRIMARY KEY, job INTEGER NOT NULL, part INTEGER NOT NULL,"                     \
	" placement BLOB NOT NULL, tensors BLOB, begun INTEGER NOT NULL DEFAULT 0, UNIQUE (job, part));"

/* Payloads lie apart, so that a job's history stays a few dozen bytes per window. From step 7 on, meta's `sealed` says
 * of which schema the sums are: after a step they are computed anew (journal_seal.c). */
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
	"CREATE TABLE payloads (id INTEGER PRIMARY KEY, job INTEGER NOT NULL, window INTEGER NOT NULL, data BLOB NOT "
	"NULL,"
	" UNIQUE (job, window));",
	"ALTER TABLE jobs ADD COLUMN hold TEXT;"
	"CREATE TABLE updates (id INTEGER PRIMARY KEY, job INTEGER NOT NULL, window INTEGER NOT NULL, data BLOB NOT "
	"NULL);"
	"CREATE INDEX updates_of_job ON updates (job);",
	"ALTER TABLE jobs ADD COLUMN base BLOB;"
	"CREATE TABLE checkpoints (job INTEGER, id INTEGER, request_id BLOB NOT NULL, path TEXT NOT NULL,"
	" sha256 BLOB NOT NULL, window INTEGER NOT NULL, applied_step INTEGER NOT NULL, carried INTEGER NOT NULL,"
	" bytes INTEGER NOT NULL, started INTEGER NOT NULL, ended INTEGER NOT NULL, PRIMARY KEY (job, id)) WITHOUT "
	"ROWID;",
	"ALTER TABLE jobs ADD COLUMN exits BLOB;",
	/* each window takes the place of the one 16 before it: a commit then changes one page here instead of three */
	"CREATE TABLE recent (job INTEGER, place INTEGER, window INTEGER NOT NULL, data BLOB NOT NULL,"
	" PRIMARY KEY (job, place)) WITHOUT ROWID;"
	"INSERT INTO recent SELECT job, window % 16, window, data FROM payloads; DROP TABLE payloads;",
	/* what may be large lies apart: each commit changes the job's row, and a start reads those of all */
	"CREATE TABLE specs (job INTEGER PRIMARY KEY, spec BLOB NOT NULL, tensors BLOB);"
	"INSERT INTO specs SELECT id, spec, tensors FROM jobs;"
	"ALTER TABLE jobs DROP COLUMN spec; ALTER TABLE jobs DROP COLUMN tensors; ALTER TABLE jobs ADD COLUMN view "
	"BLOB;",
	/* a request id is unique per user, not across users; SQLite changes constraints only by making a table anew */
	"CREATE TABLE new_jobs (id INTEGER PRIMARY KEY, uuid BLOB NOT NULL, request_id BLOB NOT NULL, uid INTEGER NOT "
	"NULL,"
	" user TEXT NOT NULL, created INTEGER NOT NULL, params_ready INTEGER NOT NULL DEFAULT 0, epoch INTEGER NOT "
	"NULL DEFAULT 1,"
	" next_window INTEGER NOT NULL DEFAULT 0, end_state INTEGER, end_reason TEXT, ended INTEGER, hold TEXT, base "
	"BLOB,"
	" exits BLOB, view BLOB, UNIQUE (uid, request_id));"
	"INSERT INTO new_jobs SELECT id, uuid, request_id, uid, user, created, params_ready, epoch, next_window, "
	"end_state,"
	" end_reason, ended, hold, base, exits, view FROM jobs;"
	"DROP TABLE jobs; ALTER TABLE new_jobs RENAME TO jobs;",
	/* a job's sum is that of its rows in all tables (journal_sum.h) */
	("ALTER TABLE jobs ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;"
	 "INSERT INTO meta VALUES ('identity', 0), ('records', 0), ('sum', 0), ('sealed', 0);"),
	TABLES_OF_PARTS,
};
_Static_assert(sizeof(schema_steps) / sizeof(*schema_steps) >= JOURNAL_SUMS_VERSION, "the step that brings the sums");
_Static_assert(JOURNAL_KEEP_PAYLOADS == 16, "the places in the schema");

const char *const journal_sql_text[SQL_COUNT] = {
#define X(name, text) [SQL_##name] = (text),
	STATEMENTS(X)
#undef X
};

const struct sql_file journal_file = { .kind = "journal",
				       .schema_steps = schema_steps,
				       .version = sizeof(schema_steps) / sizeof(*schema_steps),
				       .full_sync = true,
				       .check = true,
				       .text = journal_sql_text,
				       .n = SQL_COUNT,
				       .look = journal_check_content,
				       .begin = journal_begin };

uint32_t journal_schema(void)
{
	return (uint32_t)journal_file.version;
}
