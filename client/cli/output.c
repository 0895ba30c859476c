/* SPDX-License-Identifier: Apache-2.0 */
/* How every command writes: tables, JSON, sizes and times as people read them, untrusted text escaped, and errors
 * with their exit status. gaccctl's main thread. */
#include "output.h"

#include "proto/utf8.h"
#include "status_line.h"
#include "yaml.h"

#include <errno.h>
#include <jansson.h>
#include <libsmartcols/libsmartcols.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void put_one(FILE *out, const char *at, size_t n, const char *escape)
{
	if (*escape)
		fputs(escape, out);
	else
		fwrite(at, 1, n, out);
}

void put_text(FILE *out, const char *text, size_t n)
{
	char escape[UTF8_ESCAPE_MAX];

	for (const char *end = text + n; text < end;) {
		size_t one = utf8_escape(text, end, UTF8_TEXT, escape);

		put_one(out, text, one, *text == '\n' || *text == '\t' ? "" : escape);
		text += one;
	}
}

/* JSON or YAML, whose writers know nothing of what lies beyond ASCII. */
static void put_data(FILE *out, const char *text, enum utf8_style style)
{
	char escape[UTF8_ESCAPE_MAX];

	for (const char *end = text + strlen(text); text < end;) {
		size_t one = utf8_escape(text, end, style, escape);

		put_one(out, text, one, *text >= 0 && *text < 0x7f ? "" : escape);
		text += one;
	}
}

void tell(FILE *out, const char *fmt, ...)
{
	char *text;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vasprintf(&text, fmt, ap);
	va_end(ap);
	if (n < 0)
		return;
	status_line_clear();
	put_text(out, text, (size_t)n);
	free(text);
}

/* ---- errors ---- */

int exit_status_of(gacc_status st)
{
	switch (st) {
	case GACC_OK:
	case GACC_EDONE:
		return EXIT_OK;
	case GACC_EINVAL:
	case GACC_ELAYOUT:
		return EXIT_USAGE;
	case GACC_EUNAVAIL:
		return EXIT_UNREACHABLE;
	case GACC_ENOTFOUND:
		return EXIT_NOT_FOUND;
	case GACC_ETIMEOUT:
		return EXIT_TIMED_OUT;
	case GACC_EPERM:
		return EXIT_NO_PERMISSION;
	default:
		return EXIT_FAILED;
	}
}

const char *status_name(gacc_status st)
{
	switch (st) {
	case GACC_OK:
		return "OK";
	case GACC_EAGAIN:
		return "TRY_AGAIN";
	case GACC_ETIMEOUT:
		return "TIMED_OUT";
	case GACC_EUNAVAIL:
		return "UNAVAILABLE";
	case GACC_EINVAL:
		return "INVALID_ARGUMENT";
	case GACC_ENOTFOUND:
		return "NOT_FOUND";
	case GACC_EPERM:
		return "PERMISSION_DENIED";
	case GACC_ENOMEM:
		return "RESOURCE_EXHAUSTED";
	case GACC_ECANCELLED:
		return "CANCELLED";
	case GACC_ENOSYS:
		return "UNIMPLEMENTED";
	default:
		return "FAILED";
	}
}

static const char *exit_name(int exit_status)
{
	static const char *const names[] = { "OK",	  "FAILED",    "INVALID_ARGUMENT",  "UNAVAILABLE",
					     "NOT_FOUND", "TIMED_OUT", "PERMISSION_DENIED", "JOB_FAILED",
					     "UNHEALTHY" };

	return exit_status >= 0 && exit_status <= EXIT_UNHEALTHY ? names[exit_status] : "FAILED";
}

/* GACC_EXIT_ERROR moves our own statuses out of the way of a program's. */
static int own_status(int exit_status)
{
	const char *text = getenv("GACC_EXIT_ERROR");
	int v = text ? atoi(text) : 0;

	return v > 0 && v < 256 ? v : exit_status;
}

static size_t json_flags(const struct invocation *inv)
{
	return inv->format == FORMAT_JSON ? JSON_INDENT(2) : JSON_COMPACT;
}

static bool dump_yaml(const char *json, FILE *out)
{
	char *text = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n);
	bool ok = f && yaml_of_json(json, f);

	if (f)
		ok = !fclose(f) && ok;
	if (ok)
		put_data(out, text, UTF8_TEXT);
	free(text);
	return ok;
}

static bool dump(struct invocation *inv, const json_t *value)
{
	char *text = value ? json_dumps(value, json_flags(inv)) : NULL;
	bool ok = text != NULL;

	if (ok && inv->format == FORMAT_YAML) {
		ok = dump_yaml(text, inv->out);
	} else if (ok) {
		put_data(inv->out, text, UTF8_JSON);
		ok = fputc('\n', inv->out) != EOF;
	}
	free(text);
	return ok;
}

static void print_error(struct invocation *inv, const char *code, const char *reason, const char *message,
			const char *hint)
{
	json_t *error;

	if (!wants_data(inv)) {
		tell(inv->err, "error: %s\n", message);
		if (*hint)
			tell(inv->err, "  %s\n", hint);
		return;
	}
	error = json_pack("{s:{s:s, s:s, s:s, s:s}}", "error", "code", code, "reason", reason, "message", message,
			  "hint", hint);
	(void)dump(inv, error); /* there is no other place to say it */
	json_decref(error);
}

int fail_with(struct invocation *inv, int exit_status, const char *reason, const char *hint, const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	print_error(inv, exit_name(exit_status), reason, text, hint ? hint : "");
	return own_status(exit_status);
}

int fail_usage(struct invocation *inv, const char *fmt, ...)
{
	char text[1024], hint[80];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	snprintf(hint, sizeof(hint), "see: gaccctl %s%s--help", inv->command ? inv->command->name : "",
		 inv->command ? " " : "");
	print_error(inv, exit_name(EXIT_USAGE), "USAGE", text, hint);
	return own_status(EXIT_USAGE);
}

int fail_client(struct invocation *inv)
{
	gacc_failure_info f = gacc_failure(inv->client);

	print_error(inv, status_name(f.status), f.reason, f.message, f.hint);
	return own_status(exit_status_of(f.status));
}

const char *job_operand(const char *text)
{
	return strncmp(text, "job/", 4) ? text : text + 4;
}

#define FILE_MAX_BYTES (64u << 20) /* more than any job file */

int fail_denied(struct invocation *inv, const char *path)
{
	const struct passwd *me = getpwuid(geteuid());

	return fail_with(inv, EXIT_NO_PERMISSION, "PERMISSION_DENIED", "its owner can change that",
			 "%s: %s (uid %u) may not read it, or not enter a directory on the way", path,
			 me ? me->pw_name : "this user", (unsigned)geteuid());
}

/* The text; NULL, and in *out_wrong what is wrong with it. */
static char *read_all(FILE *in, const char **out_wrong)
{
	char *text = NULL;
	size_t n, room;
	FILE *copy = open_memstream(&text, &room);
	char piece[4096];
	const char *wrong = copy ? NULL : strerror(errno);

	while (!wrong && (n = fread(piece, 1, sizeof(piece), in)) > 0)
		if (memchr(piece, 0, n))
			wrong = "byte 0x00: this is no text";
		else if (fwrite(piece, 1, n, copy) < n || ftell(copy) > (long)FILE_MAX_BYTES)
			wrong = strerror(EFBIG);
	if (!wrong && ferror(in))
		wrong = strerror(errno);
	if (copy && fclose(copy) && !wrong)
		wrong = strerror(ENOMEM);
	if (!wrong)
		return text;
	free(text);
	*out_wrong = wrong;
	return NULL;
}

char *read_file(struct invocation *inv, const char *path, int *exit_status)
{
	FILE *in = strcmp(path, "-") ? fopen(path, "re") : stdin;
	const char *wrong = NULL;
	char *text = NULL;

	if (in)
		text = read_all(in, &wrong);
	else
		wrong = strerror(errno);
	if (!in && errno == EACCES)
		*exit_status = fail_denied(inv, path);
	else if (!text)
		*exit_status = fail_with(inv, EXIT_USAGE, "FILE", NULL, "%s: %s", path, wrong);
	if (in && in != stdin)
		fclose(in);
	return text;
}

/* ---- tables ---- */

struct sheet {
	struct libscols_table *table;
	struct libscols_line *line;
	bool shown[COLUMNS_MAX];
	size_t n_columns;
	size_t cell, shown_cell; /* of the row being filled */
};

bool may_color(FILE *f)
{
	const char *no = getenv("NO_COLOR");

	return !(no && *no) && isatty(fileno(f)) == 1;
}

void clear_screen(struct invocation *inv)
{
	if (may_color(inv->out) && !wants_data(inv))
		fputs("\033[H\033[2J", inv->out);
}

struct sheet *sheet_new(struct invocation *inv, const struct column *columns)
{
	struct sheet *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->table = scols_new_table();
	if (!s->table)
		goto fail;
	for (; columns->name; columns++) {
		bool shown = !columns->wide || inv->format == FORMAT_WIDE;

		s->shown[s->n_columns++] = shown;
		if (shown && !scols_table_new_column(s->table, columns->name, 0, columns->right ? SCOLS_FL_RIGHT : 0))
			goto fail;
	}
	scols_table_enable_noheadings(s->table, !inv->headers);
	scols_table_set_termforce(s->table, SCOLS_TERMFORCE_NEVER); /* never cut a cell */
	scols_table_enable_colors(s->table, may_color(inv->out));
	scols_table_set_stream(s->table, inv->out);
	return s;
fail:
	scols_unref_table(s->table);
	free(s);
	return NULL;
}

void sheet_row(struct sheet *s, const char *color)
{
	if (!s)
		return;
	s->line = scols_table_new_line(s->table, NULL);
	s->cell = s->shown_cell = 0;
	if (s->line && color)
		scols_line_set_color(s->line, color);
}

/* libsmartcols escapes what is not printable, but most format characters are to it. */
static void set_cell(struct libscols_line *line, size_t column, const char *text)
{
	char *shown = NULL;
	size_t n;
	FILE *f = open_memstream(&shown, &n);

	if (!f)
		return;
	put_data(f, text, UTF8_TEXT);
	if (!fclose(f))
		scols_line_set_data(line, column, shown);
	free(shown);
}

void sheet_cell(struct sheet *s, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	if (!s || !s->line || s->cell >= s->n_columns)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (s->shown[s->cell++])
		set_cell(s->line, s->shown_cell++, text);
}

void sheet_print(struct sheet *s)
{
	if (!s)
		return;
	scols_print_table(s->table);
	scols_unref_table(s->table);
	free(s);
}

/* ---- data ---- */

static int print_value(struct invocation *inv, json_t *value)
{
	bool ok = dump(inv, value);

	json_decref(value);
	return ok ? EXIT_OK : fail_with(inv, EXIT_FAILED, "OUTPUT", NULL, "the answer could not be written");
}

int print_jsonf(struct invocation *inv, const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return print_json(inv, text);
}

int print_json(struct invocation *inv, const char *json)
{
	return print_value(inv, json_loads(json, 0, NULL));
}

/* The i-th of such structs, by its text. */
static const char *json_of_item(const void *items, size_t i, size_t item_bytes, size_t json_at)
{
	return *(const char *const *)((const char *)items + i * item_bytes + json_at);
}

int print_json_items(struct invocation *inv, const char *key, const void *items, size_t n, size_t item_bytes,
		     size_t json_at)
{
	json_t *list;
	int st = EXIT_OK;

	if (inv->format == FORMAT_JSONL) {
		for (size_t i = 0; i < n && st == EXIT_OK; i++)
			st = print_json(inv, json_of_item(items, i, item_bytes, json_at));
		return st;
	}
	list = json_array();
	for (size_t i = 0; i < n && list; i++)
		if (json_array_append_new(list, json_loads(json_of_item(items, i, item_bytes, json_at), 0, NULL))) {
			json_decref(list);
			list = NULL;
		}
	return print_value(inv, list ? json_pack("{s:o}", key, list) : NULL);
}

/* ---- for people ---- */

char *age(char out[SHORT], int64_t s)
{
	if (s < 0)
		s = 0;
	if (s < 120)
		snprintf(out, SHORT, "%llds", (long long)s);
	else if (s < 3600)
		snprintf(out, SHORT, "%lldm", (long long)(s / 60));
	else if (s < 86400)
		snprintf(out, SHORT, "%lldh%lldm", (long long)(s / 3600), (long long)(s % 3600 / 60));
	else
		snprintf(out, SHORT, "%lldd%lldh", (long long)(s / 86400), (long long)(s % 86400 / 3600));
	return out;
}

int64_t unix_nanos_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

char *age_since(char out[SHORT], int64_t unix_nanos)
{
	if (!unix_nanos)
		return strcpy(out, "-");
	return age(out, (unix_nanos_now() - unix_nanos) / 1000000000);
}

char *bytes(char out[SHORT], uint64_t n)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" };
	double v = (double)n;
	size_t i = 0;

	while (v >= 1024 && i < 5) {
		v /= 1024;
		i++;
	}
	snprintf(out, SHORT, i ? "%.2f %s" : "%.0f %s", v, units[i]);
	return out;
}
