/* SPDX-License-Identifier: Apache-2.0 */
/* gaccctl without a daemon: its command line, its help, its errors. */
#include "cli/commands.h"
#include "cli/completion.h"
#include "cli/find.h"
#include "cli/help.h"
#include "cli/output.h"
#include "cli/parse.h"
#include "cli/view.h"
#include "support/suite.h"
#include "cli_rig.h" /* after the headers whose parameters have the names of its variables */

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static int parse_words(const char *const *words)
{
	static char copies[20][64];
	char *argv[20];
	int argc = 0;

	for (; words[argc]; argc++) {
		snprintf(copies[argc], sizeof(copies[argc]), "%s", words[argc]);
		argv[argc] = copies[argc];
	}
	argv[argc] = NULL;
	int st = parse(&gaccctl_commands, argc, argv, &inv);
	/* operands point into argv, which is gone: keep the strings */
	static char *kept[20];
	for (int i = 0; st < 0 && i < inv.n_operands; i++)
		kept[i] = inv.operand[i];
	inv.operand = kept;
	fflush(inv.out);
	fflush(inv.err);
	return st;
}

#define PARSE(...) parse_words((const char *const[]){ "gaccctl", __VA_ARGS__, NULL })

/* ---- the command line ---- */

START_TEST(options_and_operands)
{
	uint64_t n;
	int st;

	ck_assert_int_eq(PARSE("--endpoint", "/s", "status", "42", "-w", "-o", "jsonl"), -1);
	ck_assert_str_eq(inv.command->name, "status");
	ck_assert_str_eq(opt(&inv, "endpoint"), "/s");
	ck_assert(opt_flag(&inv, "watch"));
	ck_assert_int_eq(inv.format, FORMAT_JSONL);
	ck_assert(inv.n_operands == 1 && !strcmp(inv.operand[0], "42"));
	ck_assert(opt_uint(&inv, "tail", 0, 9, 5, &n, &st) && n == 5);
}
END_TEST

START_TEST(run_stops_at_the_program)
{
	uint64_t n;
	int st;

	ck_assert_int_eq(PARSE("run", "-n4", "--set", "a=1", "--set=b=2", "--", "./mlp", "--batch", "3", "-n", "9"),
			 -1);
	ck_assert_int_eq(inv.n_operands, 5);
	ck_assert_str_eq(inv.operand[1], "--batch");
	ck_assert(opt_uint(&inv, "ranks", 1, 100, 1, &n, &st) && n == 4);
	ck_assert_str_eq(opt_each(&inv, "set", 0), "a=1");
	ck_assert_str_eq(opt_each(&inv, "set", 1), "b=2");
	ck_assert_ptr_null(opt_each(&inv, "set", 2));
	ck_assert_ptr_null(opt(&inv, "batch"));
}
END_TEST

START_TEST(run_needs_no_dashes)
{
	ck_assert_int_eq(PARSE("run", "-n", "2", "python3", "-u", "train.py"), -1);
	ck_assert_int_eq(inv.n_operands, 3);
	ck_assert_str_eq(inv.operand[1], "-u");
}
END_TEST

static const struct {
	const char *words[8];
	const char *says;
} mistakes[] = {
	{ { "gaccctl", "stauts" }, "did you mean \"status\"" },
	{ { "gaccctl", "xyzzy" }, "unknown command \"xyzzy\"\n" },
	{ { "gaccctl", "jobs",
	    "--al"
	    "x" },
	  "did you mean --all" },
	{ { "gaccctl", "jobs", "-q" }, "unknown option -q" },
	{ { "gaccctl", "jobs", "extra" }, "usage: gaccctl jobs" },
	{ { "gaccctl", "logs" }, "usage: gaccctl logs JOB" },
	{ { "gaccctl", "run", "-n" }, "option -n needs a value" },
	{ { "gaccctl", "run", "-n", "2" }, "usage: gaccctl run" },
	{ { "gaccctl", "jobs", "-o", "xml" }, "-o xml: table, wide, json, jsonl, yaml or name" },
	{ { "gaccctl" }, "Examples:" },
};

START_TEST(mistake)
{
	ck_assert_int_eq(parse_words(mistakes[_i].words), EXIT_USAGE);
	ck_assert_msg(strstr(err, mistakes[_i].says) != NULL, "said: %s", err);
	ck_assert_uint_eq(n_out, 0);
}
END_TEST

START_TEST(numbers)
{
	static const char *const bad[] = { "0", "-1", "5", "x", "1x", "", " 1", "99999999999999999999" };
	static const char *const good[] = { "1", "4" }; /* the ends of the range */
	uint64_t n;
	int st = 0;

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		ck_assert_int_eq(PARSE("run", "--ranks", good[i], "x"), -1);
		ck_assert(opt_uint(&inv, "ranks", 1, 4, 1, &n, &st) && n == (uint64_t)(*good[i] - '0'));
		inv.n_given = 0;
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		ck_assert_int_eq(PARSE("run", "--ranks", bad[i], "x"), -1);
		ck_assert_msg(!opt_uint(&inv, "ranks", 1, 4, 1, &n, &st), "%s was taken", bad[i]);
		ck_assert_int_eq(st, EXIT_USAGE);
		inv.n_given = 0;
	}
}
END_TEST

START_TEST(durations)
{
	static const struct {
		const char *text;
		int64_t ms; /* -1: refused */
	} cases[] = { { "10s", 10000 },
		      { "250ms", 250 },
		      { "1h30m", 5400000 },
		      { "2d", 172800000 },
		      { "5m", 300000 },
		      { "10", -1 },
		      { "", -1 },
		      { "s", -1 },
		      { "-1s", -1 },
		      { "1y", -1 },
		      { "1.5s", -1 },
		      { "100d", -1 },
		      { "2147483647d2147483647d", -1 } };
	int64_t ms;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		bool ok = parse_duration(cases[i].text, &ms);

		ck_assert_msg(ok == (cases[i].ms >= 0), "%s", cases[i].text);
		if (ok)
			ck_assert_int_eq(ms, cases[i].ms);
	}
}
END_TEST

START_TEST(near_words)
{
	static const char *const names[] = { "run", "jobs", "status", "describe", "cancel" };

	ck_assert_str_eq(nearest("stauts", names, 5), "status");
	ck_assert_str_eq(nearest("desribe", names, 5), "describe");
	ck_assert_str_eq(nearest("rnu", names, 5), "run");
	ck_assert_ptr_null(nearest("flush", names, 5));
	ck_assert_ptr_null(nearest("an-extremely-long-word-that-nobody-would-ever-type-here", names, 5));
}
END_TEST

/* What a command refuses by itself, before it looks for a gaccd. */
static const struct {
	const char *words[8];
	const char *says;
} refused[] = {
	{ { "gaccctl", "update", "1", "lr" }, "lr: lr=X, clip_norm=X, clip_value=X or micro_size=1..65536" },
	{ { "gaccctl", "update", "1", "lr=" }, "lr=:" },
	{ { "gaccctl", "update", "1", "clip_norm=1x" }, "clip_norm=1x:" },
	{ { "gaccctl", "update", "1", "micro_size=0" }, "micro_size=0:" },
	{ { "gaccctl", "update", "1", "micro_size=1.5" }, "micro_size=1.5:" },
	{ { "gaccctl", "update", "1", "lr=1", "--window", "0" }, "--window 0: a number from 1" },
	{ { "gaccctl", "wait", "1", "--for", "state=done" }, "--for state=done: state=running" },
	{ { "gaccctl", "wait", "1", "--for", "step=0" }, "--for step=0:" },
	{ { "gaccctl", "wait", "1", "--for", "completed" }, "--for completed:" },
	{ { "gaccctl", "history", "1", "-n", "0" }, "--count 0:" },
	{ { "gaccctl", "events", "--since", "5" }, "--since 5: a time such as" },
	{ { "gaccctl", "checkpoint", "sav", "1" }, "checkpoint sav: save, list or restore" },
	{ { "gaccctl", "cluster", "on" }, "cluster on: up, down or status" },
	{ { "gaccctl", "cluster", "up", "--nodes", "99" }, "--nodes 99: a number from 1 to 32" },
	{ { "gaccctl", "cluster", "up", "--dir", "here" }, "--dir here: an absolute path" },
	{ { "gaccctl", "config", "validate" }, "usage: gaccctl config validate FILE" },
	{ { "gaccctl", "config", "show", "x" }, "usage: gaccctl config" },
	{ { "gaccctl", "bench", "-b", "1T" }, "--begin 1T: a size such as" },
	{ { "gaccctl", "bench", "-b", "3" }, "--begin 3:" },
	{ { "gaccctl", "bench", "-b", "1M", "-e", "1K" }, "--end is less than --begin" },
	{ { "gaccctl", "bench", "--path", "tcp" }, "--path tcp: shm or inline" },
	{ { "gaccctl", "bench", "-c", "2" }, "--check 2:" },
	{ { "gaccctl", "top", "-o", "name" }, "top is for people" },
	{ { "gaccctl", "submit", "--set", "x=1" }, "unknown key \"x\"" },
	{ { "gaccctl", "submit", "-f", "/nonexistent.yaml" }, "/nonexistent.yaml: No such file" },
	{ { "gaccctl", "submit", "--dry-run" }, "no optimizer" },
};

START_TEST(refusal)
{
	ck_assert_int_eq(parse_words(refused[_i].words), -1);
	ck_assert_int_eq(inv.command->run(&inv), EXIT_USAGE);
	fflush(inv.err);
	ck_assert_msg(strstr(err, refused[_i].says) != NULL, "said: %s", err);
	ck_assert_ptr_null(inv.client);
}
END_TEST

START_TEST(dry_run_prints_the_whole_specification)
{
	json_t *j;

	ck_assert_int_eq(PARSE("submit", "--set", "optimizer.type=adamw", "-n", "3", "--name", "mlp", "--dry-run"), -1);
	ck_assert_int_eq(inv.command->run(&inv), EXIT_OK);
	fflush(inv.out);
	j = json_loads(out, 0, NULL);
	ck_assert_int_eq(json_integer_value(json_object_get(j, "ranks")), 3);
	ck_assert_str_eq(json_string_value(json_object_get(j, "name")), "mlp");
	ck_assert_double_eq(json_real_value(json_object_get(json_object_get(j, "optimizer"), "beta2")), 0.999);
	json_decref(j);
}
END_TEST

/* ---- help: whatever the table has must be in all that is made from it ---- */

static void check_mentions(const char *text, const char *word)
{
	ck_assert_msg(strstr(text, word) != NULL, "%s is missing", word);
}

/* The options of every command. */
static void check_global_options(const char *text)
{
	for (const struct option_row *o = gaccctl_commands.options; o->name; o++)
		check_mentions(text, o->name);
}

START_TEST(help_covers_the_table)
{
	print_help(inv.out, &gaccctl_commands);
	fflush(inv.out);
	for (const struct command *c = gaccctl_commands.commands; c->name; c++) {
		check_mentions(out, c->name);
		check_mentions(out, c->summary);
	}
	check_global_options(out);
}
END_TEST

START_TEST(command_help_is_the_same_both_ways)
{
	char *once;

	ck_assert_int_eq(PARSE("run", "--help"), EXIT_OK);
	once = strdup(out);
	for (const struct option_row *o = command_find(&gaccctl_commands, "run")->options; o->name; o++)
		check_mentions(once, o->help);
	check_global_options(once);
	rewind(inv.out);
	inv.n_given = 0;
	ck_assert_int_eq(PARSE("help", "run"), -1);
	ck_assert_int_eq(inv.command->run(&inv), EXIT_OK);
	fflush(inv.out);
	ck_assert_str_eq(out, once);
	free(once);
}
END_TEST

START_TEST(man_and_completion_cover_the_table)
{
	static const char *const shells[] = { "bash", "zsh", "fish" };

	print_man(inv.out, &gaccctl_commands);
	fflush(inv.out);
	for (const struct command *c = gaccctl_commands.commands; c->name; c++)
		check_mentions(out, c->name);
	ck_assert_ptr_nonnull(strstr(out, "no\\-headers")); /* a global option, as roff wants it */
	ck_assert_ptr_null(strstr(out, "\n'"));
	for (size_t i = 0; i < 3; i++) {
		rewind(inv.out);
		ck_assert(print_completion(inv.out, &gaccctl_commands, shells[i]));
		fflush(inv.out);
		for (const struct command *c = gaccctl_commands.commands; c->name; c++) {
			check_mentions(out, c->name);
			if (c->words)
				check_mentions(out, c->words);
			for (const struct option_row *o = c->options; o->name; o++)
				check_mentions(out, o->name);
		}
		check_global_options(out);
	}
	ck_assert(!print_completion(inv.out, &gaccctl_commands, "tcsh"));
}
END_TEST

START_TEST(the_table_is_sound)
{
	for (const struct command *c = gaccctl_commands.commands; c->name; c++) {
		ck_assert_ptr_nonnull(c->run);
		ck_assert(c->max_operands < 0 || c->max_operands >= c->min_operands);
		ck_assert_ptr_eq(command_find(&gaccctl_commands, c->name), c);
		for (const struct option_row *o = c->options; o->name; o++)
			for (const struct option_row *g = gaccctl_commands.options; g->name; g++)
				ck_assert(strcmp(o->name, g->name) && (!o->letter || o->letter != g->letter));
	}
	ck_assert_str_eq(command_find(&gaccctl_commands, "ps")->name, "jobs");
	ck_assert_str_eq(command_find(&gaccctl_commands, "list")->name, "jobs");
	ck_assert_ptr_null(command_find(&gaccctl_commands, "p"));
}
END_TEST

/* ---- errors and exit statuses ---- */

START_TEST(exit_statuses)
{
	ck_assert_int_eq(exit_status_of(GACC_OK), 0);
	ck_assert_int_eq(exit_status_of(GACC_EINTERNAL), 1);
	ck_assert_int_eq(exit_status_of(GACC_EINVAL), 2);
	ck_assert_int_eq(exit_status_of(GACC_EUNAVAIL), 3);
	ck_assert_int_eq(exit_status_of(GACC_ENOTFOUND), 4);
	ck_assert_int_eq(exit_status_of(GACC_ETIMEOUT), 5);
	ck_assert_int_eq(exit_status_of(GACC_EPERM), 6);
	ck_assert_int_eq(exit_status_of(GACC_ENOSYS), 1);
	ck_assert_int_eq(fail_with(&inv, EXIT_NOT_FOUND, "X", NULL, "x"), 4);
	setenv("GACC_EXIT_ERROR", "77", 1);
	ck_assert_int_eq(fail_with(&inv, EXIT_NOT_FOUND, "X", NULL, "x"), 77);
	ck_assert_int_eq(fail_usage(&inv, "x"), 77);
	setenv("GACC_EXIT_ERROR", "no number", 1);
	ck_assert_int_eq(fail_with(&inv, EXIT_NOT_FOUND, "X", NULL, "x"), 4);
}
END_TEST

START_TEST(errors_as_text_and_json)
{
	json_t *j, *e;

	fail_with(&inv, EXIT_NOT_FOUND, "JOB_NOT_FOUND", "see: gaccctl jobs -a", "no such job: %d", 42);
	fflush(inv.err);
	ck_assert_str_eq(err, "error: no such job: 42\n  see: gaccctl jobs -a\n");
	inv.format = FORMAT_JSON;
	fail_with(&inv, EXIT_NOT_FOUND, "JOB_NOT_FOUND", NULL, "no \"job\"");
	fflush(inv.out);
	j = json_loads(out, 0, NULL);
	e = json_object_get(j, "error");
	ck_assert_str_eq(json_string_value(json_object_get(e, "code")), "NOT_FOUND");
	ck_assert_str_eq(json_string_value(json_object_get(e, "reason")), "JOB_NOT_FOUND");
	ck_assert_str_eq(json_string_value(json_object_get(e, "message")), "no \"job\"");
	ck_assert_str_eq(json_string_value(json_object_get(e, "hint")), "");
	json_decref(j);
}
END_TEST

START_TEST(nobody_there)
{
	ck_assert_int_eq(PARSE("--endpoint", "/nonexistent/gaccd.sock", "jobs"), -1);
	ck_assert_int_eq(inv.command->run(&inv), EXIT_UNREACHABLE);
	fflush(inv.err);
	ck_assert_ptr_nonnull(strstr(err, "cannot reach gaccd at unix:/nonexistent/gaccd.sock: No such file"));
	gacc_close(inv.client);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("gaccctl");
	TCase *tc = tcase_create("all");

	tcase_add_checked_fixture(tc, cli_setup, cli_teardown);
	tcase_add_test(tc, options_and_operands);
	tcase_add_test(tc, run_stops_at_the_program);
	tcase_add_test(tc, run_needs_no_dashes);
	tcase_add_loop_test(tc, mistake, 0, sizeof(mistakes) / sizeof(mistakes[0]));
	tcase_add_loop_test(tc, refusal, 0, sizeof(refused) / sizeof(refused[0]));
	tcase_add_test(tc, dry_run_prints_the_whole_specification);
	tcase_add_test(tc, numbers);
	tcase_add_test(tc, durations);
	tcase_add_test(tc, near_words);
	tcase_add_test(tc, help_covers_the_table);
	tcase_add_test(tc, command_help_is_the_same_both_ways);
	tcase_add_test(tc, man_and_completion_cover_the_table);
	tcase_add_test(tc, the_table_is_sound);
	tcase_add_test(tc, exit_statuses);
	tcase_add_test(tc, errors_as_text_and_json);
	tcase_add_test(tc, nobody_there);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
