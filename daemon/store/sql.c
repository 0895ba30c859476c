/* SPDX-License-Identifier: Apache-2.0 */
/* Opens, configures and closes an SQLite file, runs its prepared statements and keeps its write-ahead log in bounds.
 * For the journal and the history, on the thread that calls them; blocks. */
#include "store/sql.h"

#include "base/log.h"
#include "store/wal_file.h"

#include <sqlite3.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define APPLICATION_ID 0x67616363 /* "gacc" */
#define CHECKPOINT_PAGES 1024	  /* of the write-ahead log: 4 MiB, some 250 commits of a step */
/* what one commit may add to that without needing room on the disk */
#define LAST_COMMIT_PAGES 1024

#define complain(s_, ...)                                                                                              \
	do {                                                                                                           \
		if (!(s_)->quiet)                                                                                      \
			log_error(__VA_ARGS__);                                                                        \
	} while (0)

enum status sql_fail(struct sql *s, const char *what)
{
	s->failed = true;
	s->code = sqlite3_extended_errcode(s->db);
	if (!s->full_is_quiet || (s->code & 0xff) != SQLITE_FULL)
		complain(s, "%s: %s: %s (%d)", s->file->kind, what, sqlite3_errmsg(s->db), s->code);
	return ST_STORE_FAILED;
}

/* A write that found no room has not written the frame that makes a transaction count. A failed sync has another
 * code. */
bool sql_undo_full(struct sql *s)
{
	if (!s->failed || (s->code & 0xff) != SQLITE_FULL)
		return false;
	if (!sqlite3_get_autocommit(s->db) && sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL) != SQLITE_OK)
		return false;
	s->failed = false;
	return true;
}

/* ---- statements ---- */

static int bind_and_step(struct sql *f, int q, const char *types, va_list ap)
{
	sqlite3_stmt *s = f->stmt[q];
	int rc = SQLITE_OK;
	for (int i = 1; types[i - 1] && rc == SQLITE_OK; i++) {
		const void *data;
		size_t n;
		switch (types[i - 1]) {
		case 'i':
			rc = sqlite3_bind_int64(s, i, va_arg(ap, int64_t));
			break;
		case 't':
			rc = sqlite3_bind_text(s, i, va_arg(ap, const char *), -1, SQLITE_STATIC);
			break;
		case 'u':
			rc = sqlite3_bind_blob(s, i, va_arg(ap, const void *), 16, SQLITE_STATIC);
			break;
		default: /* an empty blob needs an address, or it is NULL */
			data = va_arg(ap, const void *);
			n = va_arg(ap, size_t);
			rc = sqlite3_bind_blob64(s, i, n ? data : "", n, SQLITE_STATIC);
		}
	}
	return rc == SQLITE_OK ? sqlite3_step(s) : rc;
}

int sql_step(struct sql *f, int q, const char *types, ...)
{
	va_list ap;
	va_start(ap, types);
	int rc = bind_and_step(f, q, types, ap);
	va_end(ap);
	return rc;
}

void sql_done(struct sql *f, int q)
{
	sqlite3_reset(f->stmt[q]); /* repeats the error of the step, which was seen there */
	sqlite3_clear_bindings(f->stmt[q]);
}

enum status sql_run(struct sql *f, int q, const char *types, ...)
{
	va_list ap;
	va_start(ap, types);
	int rc = bind_and_step(f, q, types, ap);
	va_end(ap);
	enum status st = rc == SQLITE_DONE ? ST_OK : sql_fail(f, f->file->text[q]);
	sql_done(f, q);
	return st;
}

bool sql_checkpoint_due(const struct sql *s)
{
	return s->wal_pages >= CHECKPOINT_PAGES;
}

enum status sql_checkpoint(struct sql *s)
{
	if (!sql_checkpoint_due(s))
		return ST_OK;
	s->wal_pages = 0;
	int rc = sqlite3_wal_checkpoint_v2(s->db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
	return rc ? sql_fail(s, "checkpoint") : ST_OK;
}

/* ---- open and close ---- */

static int exec(struct sql *s, const char *text)
{
	return sqlite3_exec(s->db, text, NULL, NULL, NULL);
}

/* First column of the first row of a pragma, as text; "" on error. */
static int pragma(struct sql *f, const char *text, char *out, size_t n_out)
{
	sqlite3_stmt *s = NULL;
	int rc = sqlite3_prepare_v2(f->db, text, -1, &s, NULL);
	*out = 0;
	if (rc == SQLITE_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) {
		const unsigned char *value = sqlite3_column_text(s, 0);
		sqlite3_snprintf((int)n_out, out, "%s", value ? (const char *)value : "");
		rc = SQLITE_OK;
	}
	int end = sqlite3_finalize(s); /* what the pragma has changed is committed here */
	return rc == SQLITE_OK ? end : rc;
}

static int on_wal(void *arg, sqlite3 *db, const char *name, int pages)
{
	((struct sql *)arg)->wal_pages = pages;
	return SQLITE_OK;
}

/* Indexes, too. What is not "ok" is read again: want of memory, too, is told as damage. */
static int check_all(struct sql *s, char *text, size_t n_text)
{
	int rc = pragma(s, "PRAGMA integrity_check(1)", text, n_text);
	if (rc == SQLITE_OK && strcmp(text, "ok") != 0)
		rc = pragma(s, "PRAGMA integrity_check(1)", text, n_text);
	return rc;
}

/* One connection, EXCLUSIVE: SQLite's WAL reset bug (3.7.0 to 3.51.2) needs two, and a second gaccd is kept out.
 * Checkpoints are our own, because SQLite's automatic one swallows its errors. */
static enum status configure(struct sql *s, const char *path)
{
	char text[128] = "";
	int rc = exec(s, "PRAGMA locking_mode = EXCLUSIVE");
	if (rc == SQLITE_OK)
		rc = pragma(s, "PRAGMA journal_mode = WAL", text, sizeof(text));
	if (rc == SQLITE_OK && strcmp(text, "wal") != 0) {
		complain(s, "%s %s: no write-ahead log (%s): is this a local file system?", s->file->kind, path, text);
		return ST_STORE_FAILED;
	}
	if (rc == SQLITE_OK)
		rc = exec(s, s->file->full_sync ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL");
	if (rc == SQLITE_OK)
		rc = exec(s, "PRAGMA wal_autocheckpoint = 0; BEGIN EXCLUSIVE; COMMIT");
	if ((rc & 0xff) == SQLITE_BUSY) {
		complain(s, "%s %s: another process has it", s->file->kind, path);
		return ST_UNAVAILABLE;
	}
	if (rc == SQLITE_OK && s->file->check)
		rc = check_all(s, text, sizeof(text));
	if (rc == SQLITE_OK && s->file->check && strcmp(text, "ok") != 0) {
		complain(s, "%s %s is damaged: %s", s->file->kind, path, text);
		s->failed = s->damaged = true;
		return ST_STORE_FAILED;
	}
	int keep = s->file->full_sync;
	sqlite3_file_control(s->db, "main", SQLITE_FCNTL_PERSIST_WAL, &keep); /* so that its room stays its own */
	sqlite3_wal_hook(s->db, on_wal, s);
	return rc == SQLITE_OK ? ST_OK : sql_fail(s, path);
}

static enum status update_schema(struct sql *s, const char *path)
{
	char text[32];
	if (pragma(s, "PRAGMA user_version", text, sizeof(text)) != SQLITE_OK)
		return sql_fail(s, path);
	int version = atoi(text), rc = SQLITE_OK;
	if (version > s->file->version) {
		complain(s, "%s %s has schema %d, this gaccd knows %d: it was written by a newer one", s->file->kind,
			 path, version, s->file->version);
		return ST_VERSION_SKEW;
	}
	enum status st = s->file->look ? s->file->look(s, version) : ST_OK;
	if (st)
		return st;
	for (; version < s->file->version && rc == SQLITE_OK; version++) {
		char *sql = sqlite3_mprintf(
			"BEGIN IMMEDIATE; %s PRAGMA application_id = %d; PRAGMA user_version = %d; COMMIT",
			s->file->schema_steps[version], APPLICATION_ID, version + 1);
		rc = sql ? exec(s, sql) : SQLITE_NOMEM;
		sqlite3_free(sql);
	}
	return rc == SQLITE_OK ? ST_OK : sql_fail(s, path);
}

static enum status prepare(struct sql *s)
{
	s->stmt = calloc((size_t)s->file->n, sizeof(sqlite3_stmt *));
	if (!s->stmt)
		return ST_NO_MEMORY;
	for (int q = 0; q < s->file->n; q++)
		if (sqlite3_prepare_v3(s->db, s->file->text[q], -1, SQLITE_PREPARE_PERSISTENT, &s->stmt[q], NULL))
			return sql_fail(s, s->file->text[q]);
	return ST_OK;
}

/* Lays the write-ahead log out to the length it will have: while a file grows, each fdatasync writes its size, too, and
 * takes twice as long; and commits need no room on the disk then. SQLite reads a log up to the first frame whose
 * checksum is wrong, so zeros behind the last one mean nothing. */
static void lay_log(const char *kind, const char *path)
{
	const size_t frame_header = 24, log_header = 32, page = 4096;
	size_t size = log_header + CHECKPOINT_PAGES * (frame_header + page);
	char *name = sqlite3_mprintf("%s-wal", path), *zeros = NULL;
	int fd = name ? open(name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
	struct stat st;
	if (fd < 0 || fstat(fd, &st) || (size_t)st.st_size >= size)
		goto done;
	size -= (size_t)st.st_size;
	zeros = calloc(1, size);
	ssize_t n = zeros ? pwrite(fd, zeros, size, st.st_size) : -1;
	if (n == (ssize_t)size)
		posix_fallocate(fd, (off_t)(st.st_size + n), LAST_COMMIT_PAGES * (frame_header + page));
	if (n != (ssize_t)size || fdatasync(fd)) {
		log_warn("%s %s: its log cannot be laid out in advance (%s): commits need room on the disk, and are "
			 "slower at first",
			 kind, path, strerror(n >= 0 && n < (ssize_t)size ? ENOSPC : errno));
		if (n > 0 && ftruncate(fd, st.st_size) < 0) /* the little that there is belongs to commits */
			log_error("%s %s: shortening its log: %s", kind, path, strerror(errno));
	}
done:
	if (fd >= 0)
		close(fd);
	free(zeros);
	sqlite3_free(name);
}

/* A process that was killed may have written commits to the log and not synced them. They have been read now, and
 * count. */
static enum status sync_log(struct sql *s, const char *path)
{
	char *name = sqlite3_mprintf("%s-wal", path);
	int fd = name ? open(name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
	bool ok = name && (fd >= 0 ? fdatasync(fd) == 0 : errno == ENOENT);
	if (!ok) {
		complain(s, "%s %s: syncing its log: %s", s->file->kind, path, strerror(errno));
		s->failed = true;
	}
	if (fd >= 0)
		close(fd);
	sqlite3_free(name);
	return ok ? ST_OK : ST_STORE_FAILED;
}

/* Not the disk, nor the machine: what SQLite has read cannot be right. */
static bool is_damage(int code)
{
	int rc = code & 0xff;
	return rc == SQLITE_CORRUPT || rc == SQLITE_NOTADB || rc == SQLITE_ERROR || rc == SQLITE_CONSTRAINT ||
	       rc == SQLITE_MISMATCH || rc == SQLITE_FORMAT || rc == SQLITE_RANGE || rc == SQLITE_TOOBIG;
}

enum status sql_open(struct sql *s, const struct sql_file *file, const char *path)
{
	*s = (struct sql){ .file = file, .quiet = s->quiet };
	/* Our mode, not SQLite's 0644; its other files take the mode of this one. */
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0) {
		complain(s, "%s %s: %s", file->kind, path, strerror(errno));
		return ST_STORE_FAILED;
	}
	close(fd);
	enum status st = ST_OK;
	const char *vfs = file->full_sync ? wal_file_vfs() : NULL;
	if (sqlite3_open_v2(path, &s->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, vfs))
		st = sql_fail(s, path);
	else
		sqlite3_extended_result_codes(s->db, 1);
	if (!st)
		st = configure(s, path);
	if (!st)
		st = update_schema(s, path);
	if (!st && file->begin)
		st = file->begin(s);
	if (!st)
		st = prepare(s);
	s->damaged |= st == ST_STORE_FAILED && is_damage(s->code);
	if (!st && file->full_sync) {
		lay_log(file->kind, path);
		st = sync_log(s, path);
	}
	if (st)
		sql_close(s);
	return st;
}

/* Leaves `code` and `damaged` to be read. */
void sql_close(struct sql *s)
{
	for (int q = 0; s->stmt && q < s->file->n; q++)
		sqlite3_finalize(s->stmt[q]);
	free(s->stmt);
	s->stmt = NULL;
	if (s->failed && s->db) /* closing would sync once more what could not be synced */
		sqlite3_db_config(s->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
	sqlite3_close(s->db);
	s->db = NULL;
}
