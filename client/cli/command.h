/* SPDX-License-Identifier: Apache-2.0 */
/* What a command of gaccctl is, and what its handler gets and may ask.
 *
 * A handler gets an invocation: what was given on the command line, by option name, and where to write. It returns the
 * exit status. Everything a handler prints goes to inv->out; errors go through fail_with() (output.h).
 */
#ifndef GACCCTL_COMMAND_H
#define GACCCTL_COMMAND_H

#include "gacc/gacc_admin.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Exit statuses; interfaces that scripts rely on. */
enum {
	EXIT_OK = 0,
	EXIT_FAILED = 1,
	EXIT_USAGE = 2,
	EXIT_UNREACHABLE = 3,
	EXIT_NOT_FOUND = 4,
	EXIT_TIMED_OUT = 5,
	EXIT_NO_PERMISSION = 6,
	EXIT_JOB_FAILED = 7,
	EXIT_UNHEALTHY = 8,
	EXIT_INTERRUPTED = 130
};

struct option_row {
	const char *name;  /* "micro-size"; NULL ends a table */
	char letter;	   /* 0: none */
	const char *value; /* what the value is called in help; NULL: a flag */
	const char *help;
};

enum format { FORMAT_TABLE, FORMAT_WIDE, FORMAT_JSON, FORMAT_JSONL, FORMAT_YAML, FORMAT_NAME };

#define GIVEN_MAX 64

struct invocation {
	const struct command_table *table; /* by which it was parsed */
	const struct command *command;	   /* a row of it; NULL before one is known */
	struct {
		const struct option_row *option;
		const char *value; /* NULL for a flag */
	} given[GIVEN_MAX];	   /* in order; options may be repeated */
	size_t n_given;
	char **operand; /* what is left */
	int n_operands;
	enum format format;
	bool headers;
	FILE *out, *err;
	gacc_client *client; /* open_client() */
};

struct command {
	const char *name;
	const char *aliases; /* other names, separated by spaces; NULL: none */
	const char *group;
	const char *summary;
	const char *usage;    /* after "gaccctl NAME " */
	const char *words;    /* what the first operand may be, separated by spaces; NULL: anything */
	const char *examples; /* lines; NULL: none */
	const char *details;  /* paragraphs for help and man page; NULL: none */
	const struct option_row *options;
	int min_operands, max_operands; /* max -1: any */
	bool runs_program;		/* operands are another program's command line: options end at the first one */
	int (*run)(struct invocation *);
};

/* Parsing, help, completion and the man page come from one table. */
struct command_table {
	const struct command *commands;	  /* ends with a NULL name */
	const struct option_row *options; /* of every command */
};

/* ---- options.c ---- */

/* Value of the last such option, "" for a flag, or NULL. */
const char *opt(const struct invocation *inv, const char *name);
bool opt_flag(const struct invocation *inv, const char *name);
/* The i-th value of a repeated option, or NULL. */
const char *opt_each(const struct invocation *inv, const char *name, size_t i);
/* A number in min..max; `fallback` when not given. False: fail_with() was called, *exit_status is set. */
bool opt_uint(struct invocation *inv, const char *name, uint64_t min, uint64_t max, uint64_t fallback, uint64_t *out,
	      int *exit_status);
/* "10s", "5m", "1h30m", "250ms" as milliseconds. */
bool opt_duration(struct invocation *inv, const char *name, int64_t fallback_ms, int64_t *out_ms, int *exit_status);
bool parse_duration(const char *text, int64_t *out_ms);

/* ---- handlers, each in its command's file ---- */

int cmd_run(struct invocation *);
int cmd_submit(struct invocation *);
int cmd_cluster(struct invocation *);
int cmd_jobs(struct invocation *);
int cmd_status(struct invocation *);
int cmd_describe(struct invocation *);
int cmd_logs(struct invocation *);
int cmd_top(struct invocation *);
int cmd_history(struct invocation *);
int cmd_norms(struct invocation *);
int cmd_comms(struct invocation *);
int cmd_events(struct invocation *);
int cmd_wait(struct invocation *);
int cmd_cancel(struct invocation *);
int cmd_pause(struct invocation *);
int cmd_resume(struct invocation *);
int cmd_update(struct invocation *);
int cmd_flush(struct invocation *);
int cmd_checkpoint(struct invocation *);
int cmd_bench(struct invocation *);
int cmd_buffers(struct invocation *);
int cmd_nodes(struct invocation *);
int cmd_health(struct invocation *);
int cmd_version(struct invocation *);
int cmd_config(struct invocation *);
int cmd_completion(struct invocation *);
int cmd_help(struct invocation *);

#endif
