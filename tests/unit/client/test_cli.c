/* SPDX-License-Identifier: Apache-2.0 */
/* gaccctl without a daemon: its command line, its help, its tables, its errors. */
#include "cli/command.h"
#include "cli/output.h"
#include "cli/view.h"
#include "support/suite.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static struct invocation inv;
static char *out, *err;
static size_t n_out, n_err;

static void setup(void)
{
	inv = (struct invocation){ .headers = true };
	inv.out = open_memstream(&out, &n_out);
	inv.err = open_memstream(&err, &n_err);
	unsetenv("GACC_EXIT_ERROR");
}

static void teardown(void)
{
	fclose(inv.out);
	fclose(inv.err);
	free(out);
	free(err);
}

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
	int st = parse(argc, argv, &inv);
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
	{ { "gaccctl", "cluster", "up", "--nodes", "2" }, "--nodes 2: this version runs jobs on one node" },
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

START_TEST(help_covers_the_table)
{
	print_help(inv.out);
	fflush(inv.out);
	for (const struct command *c = commands; c->name; c++) {
		check_mentions(out, c->name);
		check_mentions(out, c->summary);
	}
}
END_TEST

START_TEST(command_help_is_the_same_both_ways)
{
	char *once;

	ck_assert_int_eq(PARSE("run", "--help"), EXIT_OK);
	once = strdup(out);
	for (const struct option_row *o = command_find("run")->options; o->name; o++)
		check_mentions(once, o->help);
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

	print_man(inv.out);
	fflush(inv.out);
	for (const struct command *c = commands; c->name; c++)
		check_mentions(out, c->name);
	ck_assert_ptr_null(strstr(out, "\n'"));
	for (size_t i = 0; i < 3; i++) {
		rewind(inv.out);
		ck_assert(print_completion(inv.out, shells[i]));
		fflush(inv.out);
		for (const struct command *c = commands; c->name; c++) {
			check_mentions(out, c->name);
			if (c->words)
				check_mentions(out, c->words);
			for (const struct option_row *o = c->options; o->name; o++)
				check_mentions(out, o->name);
		}
	}
	ck_assert(!print_completion(inv.out, "tcsh"));
}
END_TEST

START_TEST(the_table_is_sound)
{
	for (const struct command *c = commands; c->name; c++) {
		ck_assert_ptr_nonnull(c->run);
		ck_assert(c->max_operands < 0 || c->max_operands >= c->min_operands);
		ck_assert_ptr_eq(command_find(c->name), c);
		for (const struct option_row *o = c->options; o->name; o++)
			for (const struct option_row *g = global_options; g->name; g++)
				ck_assert(strcmp(o->name, g->name) && (!o->letter || o->letter != g->letter));
	}
	ck_assert_str_eq(command_find("ps")->name, "jobs");
	ck_assert_str_eq(command_find("list")->name, "jobs");
	ck_assert_ptr_null(command_find("p"));
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

/* ---- what people see ---- */

static gacc_rank_info ranks[] = {
	{ .rank = 0,
	  .node = "gpu-01",
	  .pid = 81422,
	  .state = "WAITING",
	  .micro_count = 8,
	  .weight = 16384,
	  .detail = "" },
	{ .rank = 1,
	  .node = "gpu-01",
	  .pid = 81423,
	  .state = "LATE",
	  .micro_count = 6,
	  .weight = 12288,
	  .late_ns = INT64_C(41000000000),
	  .detail = "pid alive, 0% CPU" },
	{ .rank = 2, .node = "", .state = "ABSENT", .detail = "" },
	{ .rank = 3, .node = "gpu-02", .pid = 7, .state = "WAITING", .micro_count = 2, .detail = "" },
	{ .rank = 4, .node = "gpu-02", .pid = 8, .state = "LOST", .late_ns = INT64_C(5000000000), .detail = "" },
	{ .rank = 5, .node = "gpu-02", .pid = 9, .state = "WAITING", .micro_count = 1, .flushed = 1, .detail = "" },
};
static const uint32_t missing[] = { 1, 2 };
static const gacc_job_event events[] = {
	{ .warning = 1, .reason = "RankLate", .object = "rank 1", .message = "6/8", .window = 1203 }
};

static gacc_job_info sample(void)
{
	return (gacc_job_info){
		.id = 42,
		.uuid = "u",
		.name = "gpt2-124m",
		.state = GACC_JOB_STALLED,
		.state_name = "STALLED",
		.reason = "",
		.window = 1203,
		.applied_step = 1200,
		.steps = 5000,
		.ranks = 6,
		.micro_size = 8,
		.batch = 32,
		.log_dir = "/logs/42",
		.optimizer = "ADAMW",
		.reduction = "WEIGHTED_MEAN",
		.launch = "EXTERNAL",
		.rank = ranks,
		.n_rank = 6,
		.missing = missing,
		.n_missing = 2,
		.event = events,
		.n_event = 1,
		.window_opened_unix_nanos = unix_nanos_now(),
		.user = "ana",
		.has_last = 1,
		.last_outcome = "APPLIED",
		.last_loss = 3.2914,
		.steps_per_second = 0.2,
		.wait_fraction = 0.06,
		.stall_abort_ms = 600000,
		.json = "{\"id\":42}",
	};
}

START_TEST(status_names_who_is_late)
{
	gacc_job_info job = sample();

	view_status(&inv, &job);
	fflush(inv.out);
	ck_assert_str_eq(out,
			 "JOB 42  gpt2-124m  STALLED  step 1200/5000  window 1203 open 0s  WAITING FOR 2 OF 6 RANKS\n"
			 "RANK NODE     PID MICRO WEIGHT LAST PUSH STATE\n"
			 "   0 gpu-01 81422 8/8    16384         - ready\n"
			 "   1 gpu-01 81423 6/8    12288         - LATE (pid alive, 0% CPU)\n"
			 "   2 -          - 0/8        0         - absent\n"
			 "   3 gpu-02     7 2/8        0         - waiting\n"
			 "   4 gpu-02     8 0/8        0         - LOST 5s\n"
			 "   5 gpu-02     9 1/8        0         - flushed\n"
			 "hint: gaccctl logs 42 --rank 1 --tail 50; the job aborts at stall_abort 10m\n");
}
END_TEST

START_TEST(jobs_table)
{
	gacc_job_info job = sample();
	gacc_jobs jobs = { 1, &job };

	view_jobs(&inv, &jobs);
	fflush(inv.out);
	ck_assert_str_eq(out, "ID NAME      STATE   RANKS STEP      MICRO   LOSS STEP/S WAIT% AGE USER\n"
			      "42 gpt2-124m STALLED 4/6   1200/5000     8 3.2914   0.20     6   - ana\n");
	rewind(inv.out);
	inv.headers = false;
	inv.format = FORMAT_WIDE;
	view_jobs(&inv, &jobs);
	fflush(inv.out);
	ck_assert_ptr_null(strstr(out, "NAME"));
	ck_assert_ptr_nonnull(strstr(out, "ADAMW"));
}
END_TEST

START_TEST(describe_ends_with_the_story)
{
	gacc_job_info job = sample();

	view_job(&inv, &job);
	fflush(inv.out);
	ck_assert_ptr_nonnull(strstr(out, "Effective batch:  32 x 8 x 6 = 1536\n"));
	ck_assert_ptr_nonnull(strstr(out, "Events:\nAGE TYPE    REASON   OBJECT WINDOW MESSAGE\n"));
	ck_assert_ptr_nonnull(strstr(out, "Warning RankLate rank 1   1203 6/8\n"));
}
END_TEST

/* Names, reasons and logs are other people's: they must not act on this terminal. */
START_TEST(words_of_others_are_only_shown)
{
	static const char *const lines[] = { "\033]0;x\007" };
	static const gacc_root_cause cause = { .message = "\033[31mred", .log_line = lines, .n_log_line = 1 };
	gacc_job_info job = sample();

	job.reason = "\033[2J";
	job.root_cause = &cause;
	view_job(&inv, &job);
	view_status(&inv, &job);
	view_jobs(&inv, &(gacc_jobs){ 1, &job });
	fail_with(&inv, EXIT_FAILED, "X", "\033[0m", "\302\233 \302\251\tfine\nboth");
	fflush(inv.out);
	fflush(inv.err);
	ck_assert_ptr_nonnull(strstr(out, "Root cause:       \\x1b[31mred\n  | \\x1b]0;x\\x07\n"));
	ck_assert_ptr_null(strchr(out, '\033'));
	ck_assert_ptr_null(strchr(out, '\007'));
	ck_assert_str_eq(err, "error: \\u009b \302\251\tfine\nboth\n  \\x1b[0m\n");
}
END_TEST

#define RLO "\342\200\256" /* U+202E: what follows is shown from right to left */
#define CSI "\302\233"	   /* U+009B: ESC [ in one character */

static bool has_none(const char *text)
{
	return !strstr(text, RLO) && !strstr(text, CSI);
}

START_TEST(format_characters_are_only_shown)
{
	static const char *const lines[] = { "log" RLO CSI };
	static const gacc_root_cause cause = { .message = "cause" RLO, .log_line = lines, .n_log_line = 1 };
	gacc_job_info job = sample();

	job.name = "a" RLO "b";
	job.reason = "why" CSI;
	job.root_cause = &cause;
	view_job(&inv, &job);
	view_status(&inv, &job);
	view_jobs(&inv, &(gacc_jobs){ 1, &job });
	fail_with(&inv, EXIT_FAILED, "X", "hint" RLO, "text" CSI);
	fflush(inv.out);
	fflush(inv.err);
	ck_assert_ptr_nonnull(strstr(out, "cause\\u202e\n  | log\\u202e\\u009b\n"));
	ck_assert_ptr_nonnull(strstr(out, "a\\u202eb ")); /* in a table */
	ck_assert(has_none(out));
	ck_assert_str_eq(err, "error: text\\u009b\n  hint\\u202e\n");
}
END_TEST

START_TEST(format_characters_in_data_are_escaped)
{
	static const enum format formats[] = { FORMAT_JSON, FORMAT_JSONL, FORMAT_YAML };
	inv.format = formats[_i];
	ck_assert_int_eq(print_json(&inv, "{\"name\":\"a" RLO "b" CSI "\303\251\177\"}"), EXIT_OK);
	fflush(inv.out);
	ck_assert_msg(has_none(out) && !strchr(out, '\177'), "%s", out);
	ck_assert_ptr_nonnull(strstr(out, "\303\251")); /* text stays text */
	ck_assert_ptr_nonnull(strstr(out, "a\\u202eb"));
	if (_i == 2)
		return;
	json_t *read = json_loads(out, 0, NULL); /* and means the same */
	ck_assert_str_eq(json_string_value(json_object_get(read, "name")), "a" RLO "b" CSI "\303\251\177");
	json_decref(read);
}
END_TEST

START_TEST(lists_as_json)
{
	const gacc_job_info two[] = { { .json = "{\"id\":1}" }, { .json = "{\"id\":2}" } };
	json_t *j;

	inv.format = FORMAT_JSON;
	ck_assert_int_eq(print_json_list(&inv, "jobs", two, 2), EXIT_OK);
	fflush(inv.out);
	j = json_loads(out, 0, NULL);
	ck_assert_int_eq(json_integer_value(json_object_get(json_array_get(json_object_get(j, "jobs"), 1), "id")), 2);
	json_decref(j);
	rewind(inv.out);
	inv.format = FORMAT_JSONL;
	ck_assert_int_eq(print_json_list(&inv, "jobs", two, 2), EXIT_OK);
	fflush(inv.out);
	ck_assert_int_eq(strncmp(out, "{\"id\":1}\n{\"id\":2}\n", 18), 0);
}
END_TEST

START_TEST(data_as_yaml)
{
	inv.format = FORMAT_YAML;
	ck_assert_int_eq(
		print_json(&inv,
			   "{\"id\":42,\"name\":\"gpt2\",\"on\":true,\"x\":null,\"f\":0.5,\"s\":\"true\",\"n\":\"12\","
			   "\"e\":\"\",\"c\":\"a: b\",\"l\":[1,{\"a\":[]}],\"o\":{}}"),
		EXIT_OK);
	fflush(inv.out);
	ck_assert_str_eq(
		out,
		"id: 42\nname: gpt2\n\"on\": true\nx: null\nf: 0.5\ns: \"true\"\n\"n\": \"12\"\ne: \"\"\nc: \"a: b\"\n"
		"l:\n- 1\n- a: []\no: {}\n");
	rewind(inv.out);
	fail_with(&inv, EXIT_NOT_FOUND, "JOB_NOT_FOUND", "h", "no \"job\"");
	fflush(inv.out);
	ck_assert_int_eq(strncmp(out, "error:\n  code: NOT_FOUND\n", 25), 0);
}
END_TEST

START_TEST(states_by_name)
{
	ck_assert_int_eq(gacc_job_state_named("completed"), GACC_JOB_COMPLETED);
	ck_assert_int_eq(gacc_job_state_named("NODE_FAIL"), GACC_JOB_NODE_FAIL);
	ck_assert_int_eq(gacc_job_state_named("complete"), 0);
	ck_assert_int_eq(gacc_job_state_named("UNKNOWN"), 0);
}
END_TEST

START_TEST(sizes_and_ages)
{
	char text[SHORT];

	ck_assert_str_eq(age(text, 41), "41s");
	ck_assert_str_eq(age(text, 119), "119s");
	ck_assert_str_eq(age(text, 720), "12m");
	ck_assert_str_eq(age(text, 6000), "1h40m");
	ck_assert_str_eq(age(text, 183600), "2d3h");
	ck_assert_str_eq(age(text, -5), "0s");
	ck_assert_str_eq(age_since(text, 0), "-");
	ck_assert_str_eq(bytes(text, 1023), "1023 B");
	ck_assert_str_eq(bytes(text, 2678824), "2.55 MiB");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("gaccctl");
	TCase *tc = tcase_create("all");

	tcase_add_checked_fixture(tc, setup, teardown);
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
	tcase_add_test(tc, status_names_who_is_late);
	tcase_add_test(tc, jobs_table);
	tcase_add_test(tc, describe_ends_with_the_story);
	tcase_add_test(tc, words_of_others_are_only_shown);
	tcase_add_test(tc, format_characters_are_only_shown);
	tcase_add_loop_test(tc, format_characters_in_data_are_escaped, 0, 3);
	tcase_add_test(tc, lists_as_json);
	tcase_add_test(tc, data_as_yaml);
	tcase_add_test(tc, states_by_name);
	tcase_add_test(tc, sizes_and_ages);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
