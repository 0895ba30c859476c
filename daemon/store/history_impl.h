/* SPDX-License-Identifier: Apache-2.0 */
/* What the writing and the reading half of the history share: the object and its statements. */
#ifndef GACC_STORE_HISTORY_IMPL_H
#define GACC_STORE_HISTORY_IMPL_H

#include "store/history.h"
#include "store/sql.h"

#define EVENT_COLUMNS "id, job, uid, at, warning, reason, object, message, window"

/* Job ?1's first window, and every ?3-rd. */
#define IN_WHOLE "(window % ?3 = 0 OR window = (SELECT min(window) FROM windows WHERE job = ?1))"

/* X(name, SQL) */
#define STATEMENTS(X)                                                                                                  \
	X(BEGIN, "BEGIN IMMEDIATE")                                                                                    \
	X(COMMIT, "COMMIT")                                                                                            \
	X(ROLLBACK, "ROLLBACK")                                                                                        \
	X(JOB, "INSERT INTO jobs VALUES (?1, ?2, ?3)"                                                                  \
	       " ON CONFLICT DO UPDATE SET events = events + ?2, last = max(last, ?3) RETURNING events")               \
	X(JOB_EVENTS, "UPDATE jobs SET events = ? WHERE job = ?")                                                      \
	X(NEXT_JOB, "SELECT job FROM jobs WHERE job > ? ORDER BY job LIMIT 1")                                         \
	X(FORGET_JOB, "DELETE FROM jobs WHERE job = ?")                                                                \
	X(FORGET_EVENTS, "DELETE FROM events WHERE job = ?")                                                           \
	X(WINDOW, "INSERT OR REPLACE INTO windows VALUES (?, ?, ?)")                                                   \
	X(WINDOW_IF_MISSING, "INSERT OR IGNORE INTO windows VALUES (?, ?, ?)")                                         \
	X(MICROS, "INSERT OR REPLACE INTO micros (job, window, data) VALUES (?, ?, ?)")                                \
	X(FORGET_WINDOWS, "DELETE FROM windows WHERE job = ?")                                                         \
	X(OLD_WINDOWS, "DELETE FROM windows WHERE job = ?1 AND window <= ?2 AND NOT " IN_WHOLE)                        \
	X(OLD_MICROS, "DELETE FROM micros WHERE job = ? AND window <= ?")                                              \
	X(EVENT, "INSERT OR REPLACE INTO events (" EVENT_COLUMNS ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)")               \
	X(OLD_EVENTS, "DELETE FROM events WHERE job = ?1 AND id <="                                                    \
		      " (SELECT id FROM events WHERE job = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)")                    \
	X(SCALAR, "INSERT INTO scalars SELECT ?1, ?2, ?3, ?4, ?5 WHERE (SELECT count(*) FROM scalars WHERE job = ?1 "  \
		  "AND window = ?2) < ?6 ON CONFLICT DO UPDATE SET rank = ?4, bits = ?5 WHERE ?4 <= rank")             \
	X(FORGET_SCALARS, "DELETE FROM scalars WHERE job = ?")                                                         \
	X(OLD_SCALARS, "DELETE FROM scalars WHERE job = ?1 AND window <= ?2 AND NOT " IN_WHOLE)                        \
	X(SCALARS_OF, "SELECT name, rank, bits FROM scalars WHERE job = ? AND window = ? ORDER BY name")               \
	X(EACH_WINDOW, "SELECT window, result FROM windows WHERE job = ? AND window < ? ORDER BY window DESC LIMIT ?") \
	X(SPAN, "SELECT max(window) - min(window) FROM windows WHERE job = ?")                                         \
	X(EACH_OF_WHOLE,                                                                                               \
	  "SELECT window, result FROM windows WHERE job = ?1 AND window < ?2 AND (" IN_WHOLE                           \
	  " OR window = (SELECT max(window) FROM windows WHERE job = ?1)) ORDER BY window DESC LIMIT ?4")              \
	X(MICROS_OF, "SELECT data FROM micros WHERE job = ? AND window = ?")                                           \
	X(EACH_EVENT, "SELECT " EVENT_COLUMNS " FROM events WHERE id > ?1 AND (?2 OR uid = ?3 OR job = 0)"             \
		      " ORDER BY id LIMIT ?4")                                                                         \
	X(EACH_OF_JOB, "SELECT " EVENT_COLUMNS " FROM events WHERE job = ? AND id > ? ORDER BY id LIMIT ?")            \
	X(LAST_OF_JOB, "SELECT * FROM (SELECT " EVENT_COLUMNS " FROM events WHERE job = ? ORDER BY id DESC LIMIT ?)"   \
		       " ORDER BY id")

enum {
#define X(name, text) SQL_##name,
	STATEMENTS(X)
#undef X
		SQL_COUNT
};

extern const char *const history_sql[SQL_COUNT];

struct history {
	struct sql sql;
	char *path;
	struct history_limits limits;
	struct history_scalar scalar[HISTORY_SCALARS]; /* of the window that is being read */
};

/* ST_STORE_FAILED: it cannot be written now. */
enum status history_be_open(struct history *);
/* After a failed call; true: there is a fresh file, and the call may be tried once more. */
bool history_recover(struct history *);
/* Of a statement with at most one row of one integer, whose first sql_step has returned rc; 0 without. */
enum status history_int(struct history *, int q, int rc, int64_t *out);
/* Of the thinned series of this job, whose windows are its multiples: a power of two. ST_STORE_FAILED. */
enum status history_stride(struct history *, uint64_t job, int64_t *out);

#endif
