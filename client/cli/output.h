/* SPDX-License-Identifier: Apache-2.0 */
/* How gaccctl writes: tables, JSON, sizes and times as people read them, errors. */
#ifndef GACCCTL_OUTPUT_H
#define GACCCTL_OUTPUT_H

#include "command.h"

/* --- errors: one per invocation, or per job where several are named, as text on the error stream, or as JSON on the
 * output with -o json, jsonl or yaml. All return the exit status; GACC_EXIT_ERROR replaces it. */

/* `hint` may be NULL. */
int fail_with(struct invocation *inv, int exit_status, const char *reason, const char *hint, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));
int fail_usage(struct invocation *inv, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* What the library reported last. */
int fail_client(struct invocation *inv);
/* A file or directory that this user may not read. */
int fail_denied(struct invocation *inv, const char *path);
int exit_status_of(gacc_status st);
const char *status_name(gacc_status st);

/* inv->client by --endpoint and --timeout. False: *exit_status is set. */
bool open_client(struct invocation *inv, int *exit_status);
#define SUBMIT_TIMEOUT_MS 120000 /* the answer comes when the job has its memory, page by page */
/* The same for calls that last so long unless --timeout says otherwise. */
bool open_client_for(struct invocation *inv, int timeout_ms, int *exit_status);

/* For commands that ask gaccd again and again. */
struct contact {
	bool made, lost;
};
/* After an answer. */
static inline void contact_made(struct contact *c)
{
	*c = (struct contact){ .made = true };
}
/* After a failure: EXIT_OK when gaccd has answered before and is only away, which is said once; else fail_client(). */
int contact_failed(struct invocation *inv, struct contact *c);

/* "job/42" is 42. */
const char *job_operand(const char *text);
/* The job file, "-" being the standard input; malloc'ed, NULL: fail_with() was called. */
char *read_file(struct invocation *inv, const char *path, int *exit_status);

/* ---- tables ---- */

struct column {
	const char *name; /* NULL ends the array */
	bool right;	  /* numbers */
	bool wide;	  /* only with -o wide */
};

#define COLUMNS_MAX 40

struct sheet;
/* NULL without memory. */
struct sheet *sheet_new(struct invocation *inv, const struct column *columns);
/* Starts a row; `color` ("red", "yellow", ...) or NULL. */
void sheet_row(struct sheet *s, const char *color);
/* The row's next cell. */
void sheet_cell(struct sheet *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Prints and frees. */
void sheet_print(struct sheet *s);

/* ---- data ---- */

/* Prints n structs of libgacc, each by its member `json`, as {"KEY":[...]} in JSON or YAML, or one per line with -o
 * jsonl. */
#define print_json_list(inv, key, items, n)                                                                            \
	print_json_items(inv, key, items, n, sizeof(*(items)), offsetof(__typeof__(*(items)), json))
int print_json_items(struct invocation *inv, const char *key, const void *items, size_t n, size_t item_bytes,
		     size_t json_at);
/* Prints one object, in the format that was asked for. */
int print_json(struct invocation *inv, const char *json);
/* The same for one that is made here. */
int print_jsonf(struct invocation *inv, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static inline bool wants_data(const struct invocation *inv)
{
	return inv->format == FORMAT_JSON || inv->format == FORMAT_JSONL || inv->format == FORMAT_YAML;
}

/* ---- for people ---- */

/* Text of others (names, reasons, lines of logs): what would act on a terminal (proto/utf8.h) is shown as \x1b or
 * \u202e. Line breaks and tabs stay. */
void put_text(FILE *out, const char *text, size_t n);
/* fprintf in the same way. */
void tell(FILE *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* These write to out[n] and return it. */

#define SHORT 32
/* "41s", "12m", "1h40m", "2d3h". */
char *age(char out[SHORT], int64_t seconds);
/* Since a time of day; "-" for 0. */
char *age_since(char out[SHORT], int64_t unix_nanos);
/* "2.55 MiB". */
char *bytes(char out[SHORT], uint64_t n);
int64_t unix_nanos_now(void);
/* Escape sequences may be used on `f`. */
bool may_color(FILE *f);
/* Before a picture that replaces the one before: on a terminal, and not before data. */
void clear_screen(struct invocation *inv);

#endif
