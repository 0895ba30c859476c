/* SPDX-License-Identifier: Apache-2.0 */
/* gaccctl completion: writes completion scripts for bash, zsh and fish from the table of commands. Runs at packaging
 * time or in a user's shell. */
#include "completion.h"

#include "output.h"

#include <string.h>

static bool takes_job(const struct command *c)
{
	return strstr(c->usage, "JOB") || strstr(c->usage, "job/ID");
}

/* ---- bash ---- */

static void bash_words(FILE *out, const struct option_row *rows)
{
	for (; rows->name; rows++) {
		if (rows->letter)
			fprintf(out, " -%c", rows->letter);
		fprintf(out, " --%s", rows->name);
	}
}

static void bash(FILE *out, const struct command_table *table)
{
	fputs("_gaccctl() {\n"
	      "\tlocal cur=${COMP_WORDS[COMP_CWORD]} cmd= i words=\n"
	      "\tfor ((i = 1; i < COMP_CWORD; i++)); do\n"
	      "\t\tcase ${COMP_WORDS[i]} in -*) ;; *) cmd=${COMP_WORDS[i]}; break ;; esac\n"
	      "\tdone\n"
	      "\tcase $cmd in\n"
	      "\t'') words='",
	      out);
	for (const struct command *c = table->commands; c->name; c++)
		fprintf(out, "%s%s", c == table->commands ? "" : " ", c->name);
	bash_words(out, table->options);
	fputs("' ;;\n", out);
	for (const struct command *c = table->commands; c->name; c++) {
		fprintf(out, "\t%s) words='", c->name);
		bash_words(out, c->options);
		bash_words(out, table->options);
		fputs("'", out);
		if (takes_job(c))
			fputs("; [[ $cur == -* ]] || words=$(gaccctl jobs -a -o name 2>/dev/null)", out);
		if (c->words)
			fprintf(out, "; words+=' %s'", c->words);
		fputs(" ;;\n", out);
	}
	fputs("\tesac\n"
	      "\tmapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
	      "}\n"
	      "complete -o default -F _gaccctl gaccctl\n",
	      out);
}

/* ---- zsh ---- */

/* In single quotes, where only they themselves end the word. */
static void zsh_quoted(FILE *out, const char *text)
{
	for (; *text; text++)
		if (*text == '\'')
			fputs("'\\''", out);
		else
			fputc(*text, out);
}

/* 'word:what it is', as _describe wants them. */
static void zsh_item(FILE *out, const char *dashes, const char *word, const char *help)
{
	fprintf(out, " '%s%s:", dashes, word);
	zsh_quoted(out, help);
	fputc('\'', out);
}

static void zsh_options(FILE *out, const struct option_row *rows)
{
	for (; rows->name; rows++) {
		const char letter[] = { rows->letter, '\0' };

		if (rows->letter)
			zsh_item(out, "-", letter, rows->help);
		zsh_item(out, "--", rows->name, rows->help);
	}
}

static void zsh_command(FILE *out, const struct command *c)
{
	fprintf(out, "\t%s)\n\t\tflags+=(", c->name);
	zsh_options(out, c->options);
	fputs(" )\n", out);
	if (takes_job(c))
		fputs("\t\tnames+=( ${(f)\"$(gaccctl jobs -a -o name 2>/dev/null)\"} )\n", out);
	if (c->words)
		fprintf(out, "\t\tnames+=( %s )\n", c->words);
	fputs("\t\t;;\n", out);
}

static void zsh(FILE *out, const struct command_table *table)
{
	fputs("#compdef gaccctl\n"
	      "_gaccctl() {\n"
	      "\tlocal cmd= i\n"
	      "\tlocal -a verbs flags names\n"
	      "\tfor ((i = 2; i < CURRENT; i++)); do\n"
	      "\t\tcase ${words[i]} in -*) ;; *) cmd=${words[i]}; break ;; esac\n"
	      "\tdone\n"
	      "\tflags=(",
	      out);
	zsh_options(out, table->options);
	fputs(" )\n"
	      "\tcase $cmd in\n"
	      "\t'')\n"
	      "\t\tverbs=(",
	      out);
	for (const struct command *c = table->commands; c->name; c++)
		zsh_item(out, "", c->name, c->summary);
	fputs(" )\n"
	      "\t\t;;\n",
	      out);
	for (const struct command *c = table->commands; c->name; c++)
		zsh_command(out, c);
	fputs("\tesac\n"
	      "\tif [[ $PREFIX == -* ]]; then\n"
	      "\t\t_describe -o option flags\n"
	      "\telif (( $#verbs )); then\n"
	      "\t\t_describe command verbs\n"
	      "\telse\n"
	      "\t\tcompadd -a names || _files\n"
	      "\tfi\n"
	      "}\n"
	      "if [[ ${funcstack[1]} == _gaccctl ]]; then\n"
	      "\t_gaccctl \"$@\"\n" /* autoloaded: this is its first call */
	      "else\n"
	      "\tcompdef _gaccctl gaccctl\n"
	      "fi\n",
	      out);
}

/* ---- fish ---- */

static void fish_options(FILE *out, const char *command, const struct option_row *rows)
{
	for (; rows->name; rows++) {
		fputs("complete -c gaccctl", out);
		if (command)
			fprintf(out, " -n '__fish_seen_subcommand_from %s'", command);
		fprintf(out, " -l %s", rows->name);
		if (rows->letter)
			fprintf(out, " -s %c", rows->letter);
		fprintf(out, "%s -d \"%s\"\n", rows->value ? " -r" : "", rows->help);
	}
}

static void fish(FILE *out, const struct command_table *table)
{
	for (const struct command *c = table->commands; c->name; c++)
		fprintf(out, "complete -c gaccctl -n __fish_use_subcommand -a %s -d \"%s\"\n", c->name, c->summary);
	fish_options(out, NULL, table->options);
	for (const struct command *c = table->commands; c->name; c++) {
		fish_options(out, c->name, c->options);
		if (c->words)
			fprintf(out, "complete -c gaccctl -f -n '__fish_seen_subcommand_from %s' -a '%s'\n", c->name,
				c->words);
		if (takes_job(c))
			fprintf(out,
				"complete -c gaccctl -f -n '__fish_seen_subcommand_from %s' -a "
				"'(gaccctl jobs -a -o name 2>/dev/null)'\n",
				c->name);
	}
}

bool print_completion(FILE *out, const struct command_table *table, const char *shell)
{
	static const struct {
		const char *name;
		void (*print)(FILE *out, const struct command_table *table);
	} shells[] = { { "bash", bash }, { "zsh", zsh }, { "fish", fish } };

	for (size_t i = 0; i < sizeof(shells) / sizeof(shells[0]); i++)
		if (!strcmp(shell, shells[i].name)) {
			shells[i].print(out, table);
			return true;
		}
	return false;
}

int cmd_completion(struct invocation *inv)
{
	if (!print_completion(inv->out, inv->table, inv->operand[0]))
		return fail_usage(inv, "%s: bash, zsh or fish is needed", inv->operand[0]);
	return EXIT_OK;
}
