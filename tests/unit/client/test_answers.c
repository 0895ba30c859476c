/* SPDX-License-Identifier: Apache-2.0 */
/* gaccctl with the answers of a gaccd that is a script (-Wl,--wrap): another version of it, or one with other users. */
#include "cli/bench_size.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/parse.h"
#include "support/suite.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ODD "a\x1b[2Jb"
#define ODD_SHOWN "a\\x1b[2Jb"

gacc_status __wrap_gacc_job_list(gacc_client *client, int ended_too, gacc_jobs **out);
void __wrap_gacc_jobs_free(gacc_jobs *jobs);
gacc_failure_info __wrap_gacc_failure(const gacc_client *client);
gacc_status __wrap_gacc_node_config(gacc_client *client, gacc_config **out);
void __wrap_gacc_config_free(gacc_config *config);
gacc_status __wrap_gacc_node_get(gacc_client *client, gacc_node_info **out);
void __wrap_gacc_node_free(gacc_node_info *node);
gacc_status __wrap_gacc_node_buffers(gacc_client *client, const char *job, gacc_buffers **out);
void __wrap_gacc_buffers_free(gacc_buffers *buffers);
gacc_status __wrap_gacc_job_history(gacc_client *client, const char *job, uint64_t before_window, uint32_t limit,
				    int micros, gacc_history **out);
void __wrap_gacc_history_free(gacc_history *history);
gacc_status __wrap_bench_size_run(gacc_client *client, const struct bench_size *size, int signals,
				  struct bench_result *out, char *why, size_t n_why);
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout);

static gacc_jobs *lists; /* what List says, one after the other; then no permission */
static size_t n_lists, listed, freed;

gacc_status __wrap_gacc_job_list(gacc_client *client, int ended_too, gacc_jobs **out)
{
	if (listed == n_lists)
		return GACC_EPERM;
	*out = &lists[listed++];
	return GACC_OK;
}

void __wrap_gacc_jobs_free(gacc_jobs *jobs)
{
	freed += jobs != NULL;
}

gacc_failure_info __wrap_gacc_failure(const gacc_client *client)
{
	return (gacc_failure_info){ GACC_EPERM, "PERMISSION_DENIED", "no more", "" };
}

gacc_status __wrap_gacc_node_config(gacc_client *client, gacc_config **out)
{
	static const gacc_config_value value = { ODD, "1", "default" };
	static gacc_config config = { 1, &value, "{}" };

	*out = &config;
	return GACC_OK;
}

void __wrap_gacc_config_free(gacc_config *config)
{
}

gacc_status __wrap_gacc_node_get(gacc_client *client, gacc_node_info **out)
{
	static gacc_node_info node = { .name = ODD, .version = ODD };

	*out = &node;
	return GACC_OK;
}

void __wrap_gacc_node_free(gacc_node_info *node)
{
}

static gacc_buffers *memory;

gacc_status __wrap_gacc_node_buffers(gacc_client *client, const char *job, gacc_buffers **out)
{
	*out = memory;
	return GACC_OK;
}

void __wrap_gacc_buffers_free(gacc_buffers *buffers)
{
}

static gacc_history past;

gacc_status __wrap_gacc_job_history(gacc_client *client, const char *job, uint64_t before_window, uint32_t limit,
				    int micros, gacc_history **out)
{
	*out = &past;
	return GACC_OK;
}

void __wrap_gacc_history_free(gacc_history *history)
{
}

gacc_status __wrap_bench_size_run(gacc_client *client, const struct bench_size *size, int signals,
				  struct bench_result *out, char *why, size_t n_why)
{
	return GACC_EAGAIN;
}

int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout)
{
	return 0;
}

static struct invocation inv;
static char *out, *err;
static size_t n_out, n_err;

static void setup(void)
{
	inv = (struct invocation){ .headers = true };
	inv.out = open_memstream(&out, &n_out);
	inv.err = open_memstream(&err, &n_err);
	unsetenv("GACC_EXIT_ERROR");
	n_lists = listed = freed = 0;
}

static void teardown(void)
{
	gacc_close(inv.client);
	fclose(inv.out);
	fclose(inv.err);
	free(out);
	free(err);
}

static int command(const char *const *words)
{
	static char text[10][16];
	char *argv[11] = { NULL };
	int argc = 0, st;

	gacc_close(inv.client); /* of the command before, which leaves it to the end of the process */
	inv.client = NULL;
	for (; words[argc]; argc++) {
		snprintf(text[argc], sizeof(text[argc]), "%s", words[argc]);
		argv[argc] = text[argc];
	}
	ck_assert_int_eq(parse(&gaccctl_commands, argc, argv, &inv), -1);
	st = inv.command->run(&inv);
	fflush(inv.out);
	fflush(inv.err);
	return st;
}

#define COMMAND(...) command((const char *const[]){ "gaccctl", "--endpoint", "/nowhere", __VA_ARGS__, NULL })

static void say(gacc_jobs *list, size_t n)
{
	lists = list;
	n_lists = n;
}

#define JOB(number, who, how, text)                                                                                    \
	{                                                                                                              \
		.id = number, .user = who, .state = how, .json = text                                                  \
	}

START_TEST(what_changes_elsewhere_is_not_news)
{
	gacc_job_info ours = JOB(1, "ann", GACC_JOB_RUNNING, "1"), later = JOB(1, "ann", GACC_JOB_STALLED, "2");
	gacc_job_info other = JOB(2, "bob", GACC_JOB_RUNNING, "3"), changed = JOB(2, "bob", GACC_JOB_PAUSED, "4");
	gacc_job_info second = JOB(3, "ann", GACC_JOB_PENDING, "5");
	gacc_jobs script[] = {
		{ 2, (gacc_job_info[]){ ours, other } }, /* first */
		{ 2, (gacc_job_info[]){ ours, changed } },
		{ 1, (gacc_job_info[]){ ours } },
		{ 2, (gacc_job_info[]){ other, later } },	    /* ours has changed */
		{ 3, (gacc_job_info[]){ changed, later, second } }, /* there is one more */
		{ 2, (gacc_job_info[]){ later, second } },
		{ 1, (gacc_job_info[]){ second } }, /* there is one less */
		{ 1, (gacc_job_info[]){ other } },  /* none is left */
	};

	say(script, 8);
	ck_assert_int_eq(COMMAND("jobs", "-w", "--user", "ann", "-o", "name"), EXIT_NO_PERMISSION);
	ck_assert_str_eq(out, "job/1\n"
			      "job/1\n"
			      "job/1\njob/3\n"
			      "job/3\n");
	ck_assert_uint_eq(listed, 8);
	ck_assert_uint_eq(freed, 8);
}
END_TEST

START_TEST(states_of_a_newer_gaccd)
{
	gacc_job_info jobs[] = { JOB(1, "ann", (gacc_job_state)(1 << 30), ""), JOB(2, "ann", GACC_JOB_RUNNING, ""),
				 JOB(3, "ann", (gacc_job_state)-1 * (1 << 30), "") };
	gacc_jobs script = { 3, jobs };

	say(&script, 1);
	ck_assert_int_eq(COMMAND("jobs", "--state", "running", "-o", "name"), EXIT_OK);
	ck_assert_str_eq(out, "job/2\n");
}
END_TEST

START_TEST(names_of_keys_are_only_shown)
{
	ck_assert_int_eq(COMMAND("config", "show", "-o", "name"), EXIT_OK);
	ck_assert_str_eq(out, ODD_SHOWN "\n");
}
END_TEST

START_TEST(values_of_keys_are_only_shown)
{
	ck_assert_int_eq(COMMAND("config", "show"), EXIT_OK);
	ck_assert_ptr_nonnull(strstr(out, "default"));
	ck_assert_ptr_null(strchr(out, 0x1b));
}
END_TEST

START_TEST(memory_of_an_older_gaccd)
{
	static const gacc_buffer_info slots = { 7, "slots", 2, 1, 3, 1024, "", 0 };
	static gacc_buffers older = {
		.n = 1, .buffer = &slots, .host_bytes_used = 2048, .user_bytes_used = 1024, .user_bytes_limit = 4096
	};

	memory = &older;
	ck_assert_int_eq(COMMAND("buffers"), EXIT_OK);
	ck_assert_str_eq(out, "JOB NODE PART KIND  SEGMENTS TENSORS    BYTES CLIENTS\n"
			      "  7 -       - slots        2       3 1.00 KiB       1\n"
			      "node: 2.00 KiB   yours: 1.00 KiB of 4.00 KiB\n");
}
END_TEST

/* Each part has its rows, and one node has not been heard. */
START_TEST(memory_of_several_nodes)
{
	static const gacc_buffer_info rows[] = { { 7, "control", 1, 1, 0, 512, "a", 0 },
						 { 7, "slots", 2, 1, 3, 1024, "a", 0 },
						 { 7, "slots", 4, 2, 3, 2048, "b", 1 },
						 { 8, "slots", 2, 1, 3, 1024, "a", 0 } };
	static const gacc_node_memory nodes[] = { { "a", 1, 4096, 8192, 2560, 8192 },
						  { "b", 1, 2048, 0, 2048, 0 },
						  { .name = "c" } };
	static gacc_buffers several = { .n = 4, .buffer = rows, .node = nodes, .n_node = 3 };

	memory = &several;
	ck_assert_int_eq(COMMAND("buffers"), EXIT_OK);
	ck_assert_str_eq(out, "JOB NODE PART KIND    SEGMENTS TENSORS    BYTES CLIENTS\n"
			      "  7 a       0 control        1       0    512 B       1\n"
			      "  7 a       0 slots          2       3 1.00 KiB       1\n"
			      "  7 b       1 slots          4       3 2.00 KiB       2\n"
			      "  8 a       0 slots          2       3 1.00 KiB       1\n"
			      "node a: 4.00 KiB of 8.00 KiB   yours: 2.50 KiB of 8.00 KiB\n"
			      "node b: 2.00 KiB   yours: 2.00 KiB\n"
			      "node c: not heard yet\n");
	const size_t n = n_out;
	inv.n_given = 0;
	ck_assert_int_eq(COMMAND("buffers", "-o", "name"), EXIT_OK);
	ck_assert_str_eq(out + n, "job/7/control\njob/7/slots\njob/8/slots\n");
}
END_TEST

static const struct {
	const char *last, *short_node[4];
	const char *shown, *shown_micro;
} pasts[] = {
	{ "", { "", "", "", "" }, " 3 -     0.0 ms 0,1,3,5 ", " 3 -        0 " }, /* an older gaccd */
	{ "b", { "a", "a", "b", "c" }, " 3 b     0.0 ms 0,1 (a), 3 (b), 5 (c) ", " 3 b        0 " },
	{ "a", { "a", "a", "a", "a" }, " 3 a     0.0 ms 0,1,3,5 (a) ", " 3 a        0 " },
};

START_TEST(nodes_of_a_window)
{
	static const uint32_t short_rank[] = { 0, 1, 3, 5 };
	const gacc_micro_info micro = { .rank = 3, .node = pasts[_i].last };
	const gacc_window_info window = { .outcome = "APPLIED",
					  .skip_reason = "",
					  .last_rank = 3,
					  .last_node = pasts[_i].last,
					  .short_rank = short_rank,
					  .short_node = pasts[_i].short_node,
					  .n_short = 4,
					  .micro = &micro,
					  .n_micro = 1 };

	past = (gacc_history){ 1, &window };
	ck_assert_int_eq(COMMAND("history", "7"), EXIT_OK);
	ck_assert_msg(strstr(out, pasts[_i].shown) != NULL, "%s", out);
	inv.n_given = 0;
	ck_assert_int_eq(COMMAND("history", "7", "--micros"), EXIT_OK);
	ck_assert_msg(strstr(out, pasts[_i].shown_micro) != NULL, "%s", out);
}
END_TEST

START_TEST(the_head_of_bench_is_only_shown)
{
	ck_assert_int_eq(COMMAND("bench"), EXIT_INTERRUPTED);
	ck_assert_ptr_nonnull(strstr(out, "gaccd " ODD_SHOWN "  node " ODD_SHOWN "  path"));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("gaccctl and answers");
	TCase *tc = tcase_create("all");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, what_changes_elsewhere_is_not_news);
	tcase_add_test(tc, states_of_a_newer_gaccd);
	tcase_add_test(tc, names_of_keys_are_only_shown);
	tcase_add_test(tc, values_of_keys_are_only_shown);
	tcase_add_test(tc, memory_of_an_older_gaccd);
	tcase_add_test(tc, memory_of_several_nodes);
	tcase_add_loop_test(tc, nodes_of_a_window, 0, sizeof(pasts) / sizeof(pasts[0]));
	tcase_add_test(tc, the_head_of_bench_is_only_shown);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
