/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines: one per event, levels as syslog, to stderr as text or JSON lines, or to the journal.
 *
 * Any thread. A line carries fields that the machine can search (job, rank, window); they are arguments of the line
 * itself, never global state. The format is chosen once, before threads start. An error is logged once, by the function
 * that translates the foreign error (errno, SQL, gRPC); others hand it up silently.
 */
#ifndef GACC_BASE_LOG_H
#define GACC_BASE_LOG_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_ERROR = 3, LOG_WARN = 4, LOG_NOTICE = 5, LOG_INFO = 6, LOG_DEBUG = 7 };
enum log_format { LOG_TEXT, LOG_JSON, LOG_JOURNAL };

/* Optional fields of a line: job 0, rank -1 and window UINT64_MAX mean "not set". */
struct log_fields {
	uint64_t job;
	int64_t rank;
	uint64_t window;
	const char *event; /* CamelCase, stable; NULL: none */
};
#define LOG_NO_FIELDS ((struct log_fields){ 0, -1, UINT64_MAX, NULL })

/* `ident` (static storage) names the process in text lines: "gaccd", "engine 7". LOG_JOURNAL falls back to text when
 * the journal's socket is absent. Not thread-safe; call it first. */
void log_init(const char *ident, enum log_format format, enum log_level max_level);
/* LOG_JOURNAL when stderr is the journal (JOURNAL_STREAM), else LOG_TEXT. */
enum log_format log_auto_format(void);

void log_line(enum log_level level, struct log_fields f, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#define log_error(...) log_line(LOG_ERROR, LOG_NO_FIELDS, __VA_ARGS__)
#define log_warn(...) log_line(LOG_WARN, LOG_NO_FIELDS, __VA_ARGS__)
#define log_notice(...) log_line(LOG_NOTICE, LOG_NO_FIELDS, __VA_ARGS__)
#define log_info(...) log_line(LOG_INFO, LOG_NO_FIELDS, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, LOG_NO_FIELDS, __VA_ARGS__)
/* log_job(job, LOG_WARN, "RankLate", "rank %d is late", r) */
#define log_job(job_, level, event_, ...)                                                                              \
	log_line(level, ((struct log_fields){ (job_), -1, UINT64_MAX, (event_) }), __VA_ARGS__)

#endif
