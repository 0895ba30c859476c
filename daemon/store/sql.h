/* SPDX-License-Identifier: Apache-2.0 */
/* One SQLite file, as the stores of this room use it. Private to the room.
 *
 * One connection, EXCLUSIVE, write-ahead log; statements are prepared once and named by their number. Calls block,
 * never two at once on one file. What SQLite says is logged here, once for each failed call.
 */
#ifndef GACC_STORE_SQL_H
#define GACC_STORE_SQL_H

#include "proto/status.h"

#include <stdbool.h>
#include <stdint.h>

struct sqlite3;
struct sqlite3_stmt;
struct sql;

struct sql_file {
	const char *kind; /* "journal", for logs */
	/* SQL, each makes the schema of its index + 1 from the one before; append, never change */
	const char *const *schema_steps;
	int version; /* how many there are */
	/* a commit is on the disk when it returns, and the write-ahead log is laid out in advance and kept; else after
	 * the next checkpoint, never torn */
	bool full_sync;
	bool check;		 /* reads all of it when it is opened */
	const char *const *text; /* the statements */
	int n;
	/* Called by sql_open; each may be NULL. Before anything is written, with the version of the schema in the file,
	 * 0 for an empty one ... */
	enum status (*look)(struct sql *, int version);
	/* ... and when the schema is up to date, before the statements are prepared. */
	enum status (*begin)(struct sql *);
};

struct sql {
	const struct sql_file *file;
	struct sqlite3 *db;
	struct sqlite3_stmt **stmt;
	int wal_pages;	    /* in the write-ahead log, as of the last commit */
	int code;	    /* SQLite's extended code of the last failure */
	bool quiet;	    /* failures are not logged */
	bool full_is_quiet; /* nor is SQLITE_FULL, which the caller may cure */
	bool failed;	    /* a call has failed; closing syncs nothing then */
	bool damaged;	    /* sql_open failed because of what is in the file */
};

/* Opens or creates the file (mode 0600) and takes it for this process alone; of *s only `quiet` is read. `file` is
 * borrowed. ST_UNAVAILABLE: another process has it. ST_VERSION_SKEW: of a newer gaccd. ST_STORE_FAILED: damaged or
 * unreadable. On failure it is closed, and nothing of a damaged file has been changed. */
enum status sql_open(struct sql *s, const struct sql_file *file, const char *path);
void sql_close(struct sql *); /* takes a zeroed one */

/* Logs SQLite's last error and remembers it; ST_STORE_FAILED. */
enum status sql_fail(struct sql *, const char *what);
/* Binds statement q by `types` (i: int64_t, t: text, b: address and size_t, u: address of 16 bytes) and takes one step;
 * SQLite's code. sql_done afterwards. What is bound must live until then. */
int sql_step(struct sql *, int q, const char *types, ...);
void sql_done(struct sql *, int q);
/* The last failure was a lack of room, and nothing of its transaction is left, in the file or here: the caller may make
 * room and repeat it. false: the file has failed for good. */
bool sql_undo_full(struct sql *);
/* A statement without rows. */
enum status sql_run(struct sql *, int q, const char *types, ...);
bool sql_checkpoint_due(const struct sql *);
/* Moves the write-ahead log into the file when it is long. The transactions in it are safe whatever happens here. */
enum status sql_checkpoint(struct sql *);

#endif
