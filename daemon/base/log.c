/* SPDX-License-Identifier: Apache-2.0 */
/* Writes log lines for all our processes: to stderr as text or JSON lines, or to the journal with searchable fields.
 * Any thread. */
#include "base/log.h" /* before syslog.h, whose macros have the names and values of our levels */

#include "proto/utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifdef GACC_SYSTEMD
#define SD_JOURNAL_SUPPRESS_LOCATION
#include <systemd/sd-journal.h>
#endif

#define MAX_MESSAGE 2048
/* waits once for the reader of stderr; then lines are dropped until it reads again */
#define PATIENCE_MS 100
#define MAX_LINE (6 * MAX_MESSAGE + 512) /* JSON writes a byte as up to six */

static const char *log_ident = "gaccd";
static enum log_format log_format = LOG_TEXT;
static atomic_int log_level = LOG_INFO;
static size_t log_piece = PIPE_BUF;    /* bytes that a pipe with room takes at once */
static atomic_bool log_stuck, log_cut; /* stderr has no room; the last line there has no end */
static atomic_uint log_lost;	       /* lines, since the last one that was written */

static const char *level_name(enum log_level level)
{
	static const char *const names[] = { [LOG_ERROR] = "ERROR",
					     [LOG_WARN] = "WARN",
					     [LOG_NOTICE] = "NOTICE",
					     [LOG_INFO] = "INFO",
					     [LOG_DEBUG] = "DEBUG" };
	return names[level];
}

#ifdef GACC_SYSTEMD
static bool journal_present(void)
{
	return access("/run/systemd/journal/socket", W_OK) == 0;
}

static void journal_send(enum log_level level, struct log_fields f, const char *msg)
{
	char field[7][MAX_MESSAGE + 32];
	struct iovec iov[7];
	int n = 0;
#define FIELD(...) (iov[n].iov_base = field[n], iov[n].iov_len = (size_t)sprintf(field[n], __VA_ARGS__), n++)
	FIELD("MESSAGE=%s", msg);
	FIELD("PRIORITY=%d", (int)level);
	FIELD("SYSLOG_IDENTIFIER=%.64s", log_ident);
	if (f.event)
		FIELD("GACC_EVENT=%.64s", f.event);
	if (f.job)
		FIELD("GACC_JOB=%" PRIu64, f.job);
	if (f.rank >= 0)
		FIELD("GACC_RANK=%" PRId64, f.rank);
	if (f.window != UINT64_MAX)
		FIELD("GACC_WINDOW=%" PRIu64, f.window);
#undef FIELD
	sd_journal_sendv(iov, n);
}
#else
static bool journal_present(void)
{
	return false;
}

static void journal_send(enum log_level level, struct log_fields f, const char *msg)
{
}
#endif

void log_init(const char *ident, enum log_format format, enum log_level max_level)
{
	struct stat st;
	log_ident = ident;
	/* a file never makes us wait for a reader */
	log_piece = !fstat(STDERR_FILENO, &st) && S_ISREG(st.st_mode) ? MAX_LINE : PIPE_BUF;
	log_format = format == LOG_JOURNAL && !journal_present() ? LOG_TEXT : format;
	atomic_store_explicit(&log_level, (int)max_level, memory_order_relaxed);
}

enum log_format log_auto_format(void)
{
	const char *stream = getenv("JOURNAL_STREAM"); /* "device:inode" of the stream that systemd gave us */
	unsigned long long dev, ino;
	struct stat st;
	if (!stream || sscanf(stream, "%llu:%llu", &dev, &ino) != 2 || fstat(STDERR_FILENO, &st))
		return LOG_TEXT;
	return st.st_dev == dev && st.st_ino == ino ? LOG_JOURNAL : LOG_TEXT;
}

/* A line under construction; what does not fit is cut. */
struct line {
	size_t n;
	char text[MAX_LINE];
};

__attribute__((format(printf, 2, 3))) static void put(struct line *l, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(l->text + l->n, sizeof(l->text) - l->n, fmt, ap);
	va_end(ap);
	if (n > 0)
		l->n += (size_t)n < sizeof(l->text) - l->n ? (size_t)n : sizeof(l->text) - l->n - 1;
}

static void put_time(struct line *l)
{
	struct timespec now;
	struct tm tm;
	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &tm);
	put(l, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour,
	    tm.tm_min, tm.tm_sec, (int)(now.tv_nsec / 1000000));
}

/* A client's words must not be able to forge a line or break a terminal: what acts is escaped. */
static void put_text(struct line *l, const char *s, bool json)
{
	const char *end = s + strlen(s);
	char escape[UTF8_ESCAPE_MAX];
	while (s < end) {
		size_t n = utf8_escape(s, end, json ? UTF8_JSON : UTF8_TEXT, escape);
		if (*escape)
			put(l, "%s", escape);
		else if (json && (*s == '"' || *s == '\\'))
			put(l, "\\%c", *s);
		else
			put(l, "%.*s", (int)n, s);
		s += n;
	}
}

static void format_text(struct line *l, enum log_level level, struct log_fields f, const char *msg)
{
	put_time(l);
	put(l, " %s %s", log_ident, level_name(level));
	if (f.event)
		put(l, " %s", f.event);
	if (f.job)
		put(l, " job=%" PRIu64, f.job);
	if (f.rank >= 0)
		put(l, " rank=%" PRId64, f.rank);
	if (f.window != UINT64_MAX)
		put(l, " window=%" PRIu64, f.window);
	put(l, ": ");
	put_text(l, msg, false);
}

static void format_json(struct line *l, enum log_level level, struct log_fields f, const char *msg)
{
	put(l, "{\"ts\":\"");
	put_time(l);
	put(l, "\",\"process\":\"%s\",\"level\":\"%s\"", log_ident, level_name(level));
	if (f.event)
		put(l, ",\"event\":\"%s\"", f.event);
	put(l, ",\"msg\":\"");
	put_text(l, msg, true);
	put(l, "\"");
	if (f.job)
		put(l, ",\"job\":%" PRIu64, f.job);
	if (f.rank >= 0)
		put(l, ",\"rank\":%" PRId64, f.rank);
	if (f.window != UINT64_MAX)
		put(l, ",\"window\":%" PRIu64, f.window);
	put(l, "}");
}

/* The reader of a pipe or a terminal may stop (less, ^S, a hanging collector). The event loop must not wait for it. */
static bool has_room(void)
{
	struct pollfd p = { .fd = STDERR_FILENO, .events = POLLOUT };
	int n;
	while ((n = poll(&p, 1, atomic_load(&log_stuck) ? 0 : PATIENCE_MS)) < 0 && errno == EINTR)
		;
	atomic_store(&log_stuck, n == 0);
	return n != 0;
}

/* false: not all of it was taken. */
static bool write_text(const char *text, size_t n)
{
	size_t at = 0;
	while (at < n && has_room()) {
		ssize_t w = write(STDERR_FILENO, text + at, n - at < log_piece ? n - at : log_piece);
		if (w < 0 && errno != EINTR)
			break;
		at += w > 0 ? (size_t)w : 0;
	}
	if (at)
		atomic_store(&log_cut, at < n);
	return at == n;
}

static bool write_line(enum log_level level, struct log_fields f, const char *msg)
{
	struct line l;
	l.n = 0;
	(log_format == LOG_JSON ? format_json : format_text)(&l, level, f, msg);
	l.text[l.n++] = '\n'; /* in the place of the terminating NUL, so it always fits */
	return write_text(l.text, l.n);
}

static void write_lines(enum log_level level, struct log_fields f, const char *msg)
{
	char said[80];
	unsigned lost = atomic_exchange(&log_lost, 0);
	bool goes_on = true;
	if (lost) {
		snprintf(said, sizeof(said), "%u lines of this log were lost: nobody read it", lost);
		goes_on = (!atomic_load(&log_cut) || write_text("\n", 1)) && write_line(LOG_WARN, LOG_NO_FIELDS, said);
		lost = goes_on ? 0 : lost;
	}
	if (!goes_on || !write_line(level, f, msg))
		atomic_fetch_add(&log_lost, lost + 1);
}

void log_line(enum log_level level, struct log_fields f, const char *fmt, ...)
{
	if ((int)level > atomic_load_explicit(&log_level, memory_order_relaxed))
		return;
	int saved = errno;
	char msg[MAX_MESSAGE];
	va_list ap;
	va_start(ap, fmt);
	if (vsnprintf(msg, sizeof(msg), fmt, ap) >= (int)sizeof(msg))
		memcpy(msg + sizeof(msg) - 4, "...", 4);
	va_end(ap);
	if (log_format == LOG_JOURNAL) {
		journal_send(level, f, msg);
	} else {
		write_lines(level, f, msg);
	}
	errno = saved;
}
