/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the journal: its statements, by name. Their numbers are the places in journal_sql_text and in struct sql's
 * `stmt`. */
#ifndef GACC_STORE_JOURNAL_SQL_H
#define GACC_STORE_JOURNAL_SQL_H

#include "store/sql.h"

#define JOB_COLUMNS                                                                                                    \
	"id, uuid, request_id, uid, user, created, s.spec, s.tensors, params_ready, epoch, next_window, end_state,"    \
	" end_reason, ended, hold, base, exits, view"

/* X(name, SQL) */
#define STATEMENTS(X)                                                                                                  \
	X(BEGIN, "BEGIN IMMEDIATE")                                                                                    \
	X(COMMIT, "COMMIT")                                                                                            \
	X(ROLLBACK, "ROLLBACK")                                                                                        \
	X(MARK, "UPDATE meta SET value = CASE key WHEN 'records' THEN ?1 WHEN 'sum' THEN ?2 WHEN 'term' THEN ?3"       \
		" WHEN 'incarnation' THEN ?4 ELSE ?5 END"                                                              \
		" WHERE key IN ('records', 'sum', 'term', 'incarnation', 'last_job')")                                 \
	X(JOB_SUM, "UPDATE jobs SET sum = gacc_plus(sum, ?) WHERE id = ?")                                             \
	X(AWAY_SUM, "UPDATE away SET sum = gacc_plus(sum, ?) WHERE job = ?")                                           \
	X(JOB, "INSERT INTO jobs (id, uuid, request_id, uid, user, created) VALUES (?, ?, ?, ?, ?, ?)")                \
	X(SPEC, "INSERT INTO specs (job, spec) VALUES (?, ?)")                                                         \
	X(JOB_STATE, "SELECT epoch, next_window, ended IS NOT NULL FROM jobs WHERE id = ?")                            \
	X(TENSORS, "UPDATE specs SET tensors = ? WHERE job = ?")                                                       \
	X(PARAMS_READY, "UPDATE jobs SET params_ready = 1 WHERE id = ?")                                               \
	X(EPOCH, "INSERT INTO epochs (job, epoch, base_window, term, reason, at) VALUES (?, ?, ?, ?, ?, ?)")           \
	X(EPOCH_JOB, "UPDATE jobs SET epoch = ?, next_window = ? WHERE id = ?")                                        \
	X(VOID_WINDOWS, "DELETE FROM windows WHERE job = ? AND window >= ?")                                           \
	X(VOID_PAYLOADS, "DELETE FROM recent WHERE job = ? AND window >= ?")                                           \
	X(WINDOW, "INSERT INTO windows (job, window, epoch, applied_step, term, attempt, outcome, at)"                 \
		  " VALUES (?, ?, ?, ?, ?, ?, ?, ?)")                                                                  \
	X(PAYLOAD, "INSERT OR REPLACE INTO recent (job, place, window, data) VALUES (?, ?, ?, ?)")                     \
	X(NEXT_WINDOW, "UPDATE jobs SET next_window = ? WHERE id = ?")                                                 \
	X(FORGET_WINDOWS, "DELETE FROM windows WHERE job = ?1"                                                         \
			  " AND window < ?2 + (SELECT min(window) FROM windows WHERE job = ?1)")                       \
	X(FORGET_PAYLOADS, "DELETE FROM recent WHERE job = ?")                                                         \
	X(FORGET_UPDATES, "DELETE FROM updates WHERE job = ?")                                                         \
	X(FORGET_CHECKPOINTS, "DELETE FROM checkpoints WHERE job = ?")                                                 \
	X(FORGET_EPOCHS, "DELETE FROM epochs WHERE job = ?")                                                           \
	X(FORGET_JOB, "DELETE FROM jobs WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM windows WHERE job = ?1)")          \
	X(FORGET_SPEC, "DELETE FROM specs WHERE job = ?1 AND NOT EXISTS (SELECT 1 FROM jobs WHERE id = ?1)")           \
	X(HOLD, "UPDATE jobs SET hold = ? WHERE id = ?")                                                               \
	X(UPDATE, "INSERT INTO updates (job, window, data) VALUES (?, ?, ?)")                                          \
	X(RESTORED, "UPDATE jobs SET next_window = ?, base = ? WHERE id = ?")                                          \
	X(HAS_WINDOW, "SELECT count(*) FROM (SELECT 1 FROM windows WHERE job = ? LIMIT 1)")                            \
	X(CHECKPOINT, "INSERT INTO checkpoints (job, id, request_id, path, sha256, window, applied_step, carried,"     \
		      " bytes, started, ended) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")                              \
	X(GONE, "DELETE FROM checkpoints WHERE job = ? AND id = ?")                                                    \
	X(EXITS, "UPDATE jobs SET exits = ? WHERE id = ?")                                                             \
	X(VIEW, "UPDATE jobs SET view = ? WHERE id = ?")                                                               \
	X(END, "UPDATE jobs SET end_state = ?, end_reason = ?, ended = ?, view = nullif(?, x'') WHERE id = ?")         \
	X(AWAY, "SELECT (SELECT uuid FROM away WHERE job = ?1), EXISTS (SELECT 1 FROM jobs WHERE id = ?1)")            \
	X(ADD_AWAY, "INSERT INTO away (job, uuid) VALUES (?, ?)")                                                      \
	X(PART, "INSERT OR REPLACE INTO parts (job, part, placement) VALUES (?, ?, ?)")                                \
	X(PART_TENSORS, "UPDATE parts SET tensors = ? WHERE job = ? AND part = ?")                                     \
	X(PART_BEGUN, "UPDATE parts SET begun = 1 WHERE job = ? AND part = ?")                                         \
	X(PART_GONE, "DELETE FROM parts WHERE job = ? AND part = ?")                                                   \
	X(AWAY_GONE, "DELETE FROM away WHERE job = ?1 AND NOT EXISTS (SELECT 1 FROM parts WHERE job = ?1)")            \
	X(EACH_PART,                                                                                                   \
	  "SELECT job, part, uuid, placement, tensors, begun FROM parts JOIN away USING (job) ORDER BY 1, 2")          \
	X(EACH_JOB,                                                                                                    \
	  "SELECT " JOB_COLUMNS " FROM jobs LEFT JOIN specs s ON s.job = id AND (ended IS NULL OR view IS NULL)"       \
	  " WHERE ? OR ended IS NULL ORDER BY id")                                                                     \
	X(ONE_JOB, "SELECT " JOB_COLUMNS " FROM jobs JOIN specs s ON s.job = id WHERE id = ?")                         \
	X(EACH_WINDOW, "SELECT w.job, w.window, w.epoch, applied_step, term, attempt, outcome, at, data"               \
		       " FROM windows w LEFT JOIN recent p"                                                            \
		       " ON p.job = w.job AND p.place = w.window % 16 AND p.window = w.window"                         \
		       " WHERE w.job = ?1 AND w.window >= (SELECT next_window - ?2 FROM jobs WHERE id = ?1)"           \
		       " ORDER BY w.window")                                                                           \
	X(EACH_CHECKPOINT, "SELECT job, id, request_id, path, sha256, window, applied_step, carried, bytes, started,"  \
			   " ended FROM checkpoints WHERE job = ? ORDER BY id")                                        \
	X(EACH_UPDATE, "SELECT job, window, data FROM updates WHERE job = ? ORDER BY id")

enum {
#define X(name, text) SQL_##name,
	STATEMENTS(X)
#undef X
		SQL_COUNT
};

extern const char *const journal_sql_text[SQL_COUNT];
extern const struct sql_file journal_file; /* what sql_open needs to know of the journal */

#endif
