/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the command line by a table of commands into an invocation; what asks for help only is answered here.
 * gaccctl's main thread, before the handler runs. */
#include "parse.h"

#include "find.h"
#include "help.h"
#include "output.h"

#include <assert.h>
#include <getopt.h>
#include <string.h>

#define ROWS_MAX 40
#define FIRST_LONG 256 /* getopt values: index + FIRST_LONG */

static const char *const format_names[] = { "table", "wide", "json", "jsonl", "yaml", "name" };

/* ---- the options that count here, in getopt's form ---- */

struct grammar {
	const struct option_row *row[ROWS_MAX];
	size_t n;
	struct option longs[ROWS_MAX + 1];
	char shorts[2 * ROWS_MAX + 3];
};

static void add_rows(struct grammar *g, const struct option_row *rows)
{
	for (; rows->name; rows++) {
		assert(g->n < ROWS_MAX); /* of our own table */
		g->longs[g->n] = (struct option){ rows->name, rows->value ? required_argument : no_argument, NULL,
						  FIRST_LONG + (int)g->n };
		g->row[g->n++] = rows;
		if (rows->letter) {
			char *end = g->shorts + strlen(g->shorts);

			*end++ = rows->letter;
			if (rows->value)
				*end++ = ':';
			*end = '\0';
		}
	}
}

/* "+": options end at the first operand. ":": a missing value is told apart. */
static void build(struct grammar *g, const struct command_table *table, const struct command *c)
{
	*g = (struct grammar){ 0 };
	strcpy(g->shorts, !c || c->runs_program ? "+:" : ":");
	add_rows(g, table->options);
	if (c)
		add_rows(g, c->options);
}

static const struct option_row *row_of(const struct grammar *g, int value)
{
	if (value >= FIRST_LONG)
		return g->row[value - FIRST_LONG];
	for (size_t i = 0; i < g->n; i++)
		if (g->row[i]->letter == value)
			return g->row[i];
	return NULL;
}

static int unknown_option(struct invocation *inv, const struct grammar *g, const char *word)
{
	const char *names[ROWS_MAX];
	const char *near;
	char bare[64];

	for (size_t i = 0; i < g->n; i++)
		names[i] = g->row[i]->name;
	snprintf(bare, sizeof(bare), "%s", word + strspn(word, "-"));
	bare[strcspn(bare, "=")] = '\0';
	near = word[0] == '-' && word[1] == '-' ? nearest(bare, names, g->n) : NULL;
	if (near)
		return fail_usage(inv, "unknown option %s; did you mean --%s?", word, near);
	return fail_usage(inv, "unknown option %s", word);
}

/* Takes options from argv[1..] into inv; *rest is the index of what is left. -1: all is well. */
static int take_options(struct invocation *inv, const struct command *c, int argc, char **argv, int *rest)
{
	struct grammar g;
	char letter[3] = "-";
	int value;

	build(&g, inv->table, c);
	optind = 0; /* glibc: start afresh */
	opterr = 0;
	while ((value = getopt_long(argc, argv, g.shorts, g.longs, NULL)) != -1) {
		letter[1] = (char)optopt;
		if (value == ':')
			return fail_usage(inv, "option %s needs a value", argv[optind - 1]);
		if (value == '?')
			return unknown_option(inv, &g, optopt && optopt < FIRST_LONG ? letter : argv[optind - 1]);
		if (inv->n_given == GIVEN_MAX)
			return fail_usage(inv, "too many options");
		inv->given[inv->n_given].option = row_of(&g, value);
		inv->given[inv->n_given++].value = optarg;
	}
	*rest = optind;
	return -1;
}

/* ---- the whole line ---- */

static int read_format(struct invocation *inv)
{
	const char *text = opt(inv, "output");

	inv->headers = !opt_flag(inv, "no-headers");
	if (!text)
		return -1;
	for (size_t i = 0; i < sizeof(format_names) / sizeof(format_names[0]); i++)
		if (!strcmp(text, format_names[i])) {
			inv->format = (enum format)i;
			return -1;
		}
	return fail_usage(inv, "-o %s: table, wide, json, jsonl, yaml or name is needed", text);
}

static int unknown_command(struct invocation *inv, const char *word)
{
	const char *names[64];
	const char *near;
	size_t n = 0;

	for (const struct command *c = inv->table->commands; c->name; c++) {
		assert(n < sizeof(names) / sizeof(names[0])); /* of our own table */
		names[n++] = c->name;
	}
	near = nearest(word, names, n);
	if (near)
		return fail_usage(inv, "unknown command \"%s\"; did you mean \"%s\"?", word, near);
	return fail_usage(inv, "unknown command \"%s\"", word);
}

static int check_operands(struct invocation *inv)
{
	const struct command *c = inv->command;

	if (inv->n_operands < c->min_operands || (c->max_operands >= 0 && inv->n_operands > c->max_operands))
		return fail_usage(inv, "usage: gaccctl %s %s", c->name, c->usage);
	return -1;
}

static int parse_command(struct invocation *inv, int argc, char **argv)
{
	int rest, st;

	inv->command = command_find(inv->table, argv[0]);
	if (!inv->command)
		return unknown_command(inv, argv[0]);
	st = take_options(inv, inv->command, argc, argv, &rest);
	if (st >= 0)
		return st;
	if (opt_flag(inv, "help")) {
		print_command_help(inv->out, inv->table, inv->command);
		return EXIT_OK;
	}
	inv->operand = argv + rest;
	inv->n_operands = argc - rest;
	st = read_format(inv);
	return st >= 0 ? st : check_operands(inv);
}

int parse(const struct command_table *table, int argc, char **argv, struct invocation *inv)
{
	static char version[] = "version";
	int rest, st;

	inv->table = table;
	if (argc > 1 && !strcmp(argv[1], "--version"))
		argv[1] = version;
	if (argc > 1 && !strcmp(argv[1], "--man")) {
		print_man(inv->out, table);
		return EXIT_OK;
	}
	st = take_options(inv, NULL, argc, argv, &rest);
	if (st >= 0)
		return st;
	if (rest == argc) {
		print_help(opt_flag(inv, "help") ? inv->out : inv->err, table);
		return opt_flag(inv, "help") ? EXIT_OK : EXIT_USAGE;
	}
	return parse_command(inv, argc - rest, argv + rest);
}
