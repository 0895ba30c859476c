/* SPDX-License-Identifier: Apache-2.0 */
/* Prints help and the man page from the table of commands. For `gaccctl help`, --help, and the package build.
 * gaccctl's main thread. */
#include "help.h"

#include "find.h"
#include "output.h"

#include <string.h>

#define WIDTH 100

static void print_groups(FILE *out, const struct command *commands)
{
	const char *done[16];
	size_t n = 0;

	for (const struct command *c = commands; c->name; c++) {
		bool seen = false;

		for (size_t i = 0; i < n; i++)
			seen = seen || !strcmp(done[i], c->group);
		if (seen)
			continue;
		done[n++] = c->group;
		fprintf(out, "\n%s:\n", c->group);
		for (const struct command *d = c; d->name; d++)
			if (!strcmp(d->group, c->group))
				fprintf(out, "  %-11s %s\n", d->name, d->summary);
	}
}

static void print_options(FILE *out, const struct option_row *rows)
{
	for (; rows->name; rows++) {
		char left[64];

		snprintf(left, sizeof(left), "%c%c%s --%s%s%s", rows->letter ? '-' : ' ',
			 rows->letter ? rows->letter : ' ', rows->letter ? "," : " ", rows->name,
			 rows->value ? " " : "", rows->value ? rows->value : "");
		fprintf(out, "  %-24s %s\n", left, rows->help);
	}
}

/* Each line of `text` behind `prefix`. */
static void print_lines(FILE *out, const char *prefix, const char *text)
{
	while (text && *text) {
		int n = (int)strcspn(text, "\n");

		fprintf(out, "%s%.*s\n", prefix, n, text);
		text += n + (text[n] == '\n');
	}
}

static void print_wrapped(FILE *out, const char *text)
{
	size_t at = 0;

	while (*text) {
		size_t n = strcspn(text, " ");

		if (at && at + 1 + n > WIDTH) {
			fputc('\n', out);
			at = 0;
		}
		at += (size_t)fprintf(out, "%s%.*s", at ? " " : "", (int)n, text);
		text += n;
		text += strspn(text, " ");
	}
	fputc('\n', out);
}

void print_help(FILE *out, const struct command_table *table)
{
	fputs("Submit and watch gradient-accumulation jobs.         (gaccctl COMMAND --help for one command)\n"
	      "\nExamples:\n"
	      "  gaccctl run -n 4 --micro-size 8 --set optimizer.type=sgd -- ./mlp --data fashion-mnist\n"
	      "  gaccctl submit -f job.yaml && gaccctl status -w\n"
	      "  gaccctl logs 42 -f --rank 3\n",
	      out);
	print_groups(out, table->commands);
	fputs("\nGlobal options:\n", out);
	print_options(out, table->options);
	fputs("\nExit status: 0 ok; 1 failed; 2 usage or bad job file; 3 gaccd unreachable; 4 not found; 5 timed out;\n"
	      "6 permission denied; 7 job failed; 8 unhealthy; 130 interrupted; run: the highest status of a rank;\n"
	      "submit --wait: that of the rank that failed first. "
	      "GACC_EXIT_ERROR=N replaces 1 to 6.\n",
	      out);
}

void print_command_help(FILE *out, const struct command_table *table, const struct command *c)
{
	if (c->examples) {
		fputs("Examples:\n", out);
		print_lines(out, "  ", c->examples);
		fputc('\n', out);
	}
	fprintf(out, "Usage: gaccctl %s%s%s\n\n%s", c->name, *c->usage ? " " : "", c->usage, c->summary);
	for (const char *alias = c->aliases; alias && *alias; alias += strcspn(alias, " "), alias += strspn(alias, " "))
		fprintf(out, "%s%.*s", alias == c->aliases ? " (also: " : ", ", (int)strcspn(alias, " "), alias);
	if (c->aliases)
		fputs(")", out);
	fputs("\n", out);
	if (c->details) {
		fputc('\n', out);
		print_wrapped(out, c->details);
	}
	if (c->options->name) {
		fputs("\nOptions:\n", out);
		print_options(out, c->options);
	}
	fputs("\nGlobal options:\n", out);
	print_options(out, table->options);
}

/* ---- man page ---- */

/* Text for roff: hyphens, backslashes and leading dots must not be taken for more. */
static void roff(FILE *out, const char *text)
{
	for (const char *p = text; *p; p++) {
		if (*p == '-')
			fputs("\\-", out);
		else if (*p == '\\')
			fputs("\\e", out);
		else if (p == text && (*p == '.' || *p == '\''))
			fprintf(out, "\\&%c", *p);
		else
			fputc(*p, out);
	}
}

static void roff_options(FILE *out, const struct option_row *rows)
{
	for (; rows->name; rows++) {
		fputs(".TP\n.B ", out);
		if (rows->letter)
			fprintf(out, "\\-%c, ", rows->letter);
		fputs("\\-\\-", out);
		roff(out, rows->name);
		if (rows->value)
			fprintf(out, " \\fI%s\\fR", rows->value);
		fputc('\n', out);
		roff(out, rows->help);
		fputc('\n', out);
	}
}

static void roff_command(FILE *out, const struct command *c)
{
	fprintf(out, ".SS gaccctl %s ", c->name);
	roff(out, c->usage);
	fputc('\n', out);
	roff(out, c->summary);
	fputs(".\n", out);
	if (c->details) {
		fputs(".PP\n", out);
		roff(out, c->details);
		fputc('\n', out);
	}
	roff_options(out, c->options);
}

void print_man(FILE *out, const struct command_table *table)
{
	fprintf(out,
		".TH GACCCTL 1 \"\" \"gacc %s\"\n.SH NAME\ngaccctl \\- submit and watch gradient-accumulation jobs\n",
		gacc_version());
	fputs(".SH SYNOPSIS\n.B gaccctl\n[\\fIglobal options\\fR] \\fICOMMAND\\fR [\\fIoptions\\fR]\n.SH COMMANDS\n",
	      out);
	for (const struct command *c = table->commands; c->name; c++)
		roff_command(out, c);
	fputs(".SH GLOBAL OPTIONS\n", out);
	roff_options(out, table->options);
	fputs(".SH EXIT STATUS\n0 ok; 1 failed; 2 usage or bad job file; 3 gaccd unreachable; 4 not found; 5 timed "
	      "out; "
	      "6 permission denied; 7 job failed; 8 unhealthy; 130 interrupted.\n"
	      ".B run\nends with the highest status of a rank,\n.B submit \\-\\-wait\nwith that of the rank that "
	      "failed first, "
	      "128 plus the signal for a killed one.\n"
	      ".B GACC_EXIT_ERROR\nreplaces 1 to 6.\n.SH SEE ALSO\n.BR gaccd (8)\n",
	      out);
}

/* ---- handlers ---- */

int cmd_help(struct invocation *inv)
{
	const struct command *c;

	if (!inv->n_operands) {
		print_help(inv->out, inv->table);
		return EXIT_OK;
	}
	c = command_find(inv->table, inv->operand[0]);
	if (!c)
		return fail_usage(inv, "unknown command \"%s\"", inv->operand[0]);
	print_command_help(inv->out, inv->table, c);
	return EXIT_OK;
}
