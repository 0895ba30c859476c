/* SPDX-License-Identifier: Apache-2.0 */
/* What gaccctl shows: tables, JSON and YAML of jobs, and text of others that could harm a terminal. */
#include "cli/output.h"
#include "cli/view.h"
#include "support/suite.h"
#include "cli_rig.h" /* after the headers whose parameters have the names of its variables */

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

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
	ck_assert_str_eq(out, "ID NAME      STATE   RANKS NODES STEP      MICRO   LOSS STEP/S WAIT% AGE USER\n"
			      "42 gpt2-124m STALLED 4/6   -     1200/5000     8 3.2914   0.20     6   - ana\n");
	rewind(inv.out);
	inv.headers = false;
	inv.format = FORMAT_WIDE;
	view_jobs(&inv, &jobs);
	fflush(inv.out);
	ck_assert_ptr_null(strstr(out, "NAME"));
	ck_assert_ptr_nonnull(strstr(out, "ADAMW"));
}
END_TEST

static const char long_name[] = "a-node-with-a-rather-long-name";
static const struct {
	const char *const node[3];
	size_t n;
	const char *shown;
} placements[] = {
	{ { "gpu-01" }, 1, "gpu-01" },
	{ { "gpu-01", "gpu-02" }, 2, "gpu-01,gpu-02" },
	{ { "gpu-01", "gpu-02", "gpu-03" }, 3, "gpu-01,gpu-02,gpu-03" },
	{ { "gpu-01", "gpu-02", "gpu-003" }, 3, "3 nodes" },
	{ { long_name }, 1, long_name },
};

START_TEST(nodes_of_a_job)
{
	gacc_job_info job = sample();
	char row[80];

	job.node = placements[_i].node;
	job.n_node = placements[_i].n;
	snprintf(row, sizeof(row), " 4/6   %s 1200/5000 ", placements[_i].shown);
	view_jobs(&inv, &(gacc_jobs){ 1, &job });
	fflush(inv.out);
	ck_assert_msg(strstr(out, row) != NULL, "%s", out);
}
END_TEST

/* An older gaccd has ranks without nodes, or without ranks. */
START_TEST(the_last_rank_and_its_node)
{
	gacc_job_info job = sample();

	for (job.last_rank = 1; job.last_rank < 9; job.last_rank += job.last_rank == 1 ? 1 : 6)
		view_job(&inv, &job);
	fflush(inv.out);
	ck_assert_ptr_nonnull(strstr(out, "Last rank in:     1 on gpu-01, 0.0 ms after"));
	ck_assert_ptr_nonnull(strstr(out, "Last rank in:     2, 0.0 ms after"));
	ck_assert_ptr_nonnull(strstr(out, "Last rank in:     8, 0.0 ms after"));
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
	Suite *suite = suite_create("gaccctl views");
	TCase *tc = tcase_create("all");

	tcase_add_checked_fixture(tc, cli_setup, cli_teardown);
	tcase_add_test(tc, status_names_who_is_late);
	tcase_add_test(tc, jobs_table);
	tcase_add_loop_test(tc, nodes_of_a_job, 0, sizeof(placements) / sizeof(placements[0]));
	tcase_add_test(tc, the_last_rank_and_its_node);
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
