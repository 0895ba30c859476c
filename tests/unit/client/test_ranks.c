/* SPDX-License-Identifier: Apache-2.0 */
/* The rank processes of `gaccctl run` and their log files. This program is also what is executed for a rank. */
#include "cli/follow.h"
#include "cli/ranks.h"
#include "support/suite.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[] = "/tmp/gacc-ranks-XXXXXX";
static struct ranks ranks;
static struct rank_process processes[2];

/* ---- environment ---- */

static const char *find(char *const *environment, const char *name)
{
	const char *found = NULL;
	size_t n = strlen(name);

	for (; *environment; environment++)
		if (!strncmp(*environment, name, n) && (*environment)[n] == '=') {
			ck_assert_msg(!found, "%s is there twice", name);
			found = *environment + n + 1;
		}
	return found;
}

static const struct rank_environment e = {
	.job_id = 7, .ranks = 4, .micro_size = 8, .endpoint = "unix:/s", .log_dir = "/logs", .master_port = 1234
};

START_TEST(environment_is_torchruns)
{
	char *ours[] = { (char[]){ "PATH=/bin" }, (char[]){ "RANK=9" }, (char[]){ "WORLD_SIZE=9" }, NULL };
	char variables[RANK_VARIABLES][RANK_VARIABLE_MAX];
	char **list = rank_environment(ours, &e);

	ck_assert_str_eq(find(list, "PATH"), "/bin");
	ck_assert_ptr_null(find(list, "RANK")); /* each rank's own */
	ck_assert_str_eq(find(list, "WORLD_SIZE"), "4");
	ck_assert_str_eq(find(list, "LOCAL_WORLD_SIZE"), "4");
	ck_assert_str_eq(find(list, "GROUP_RANK"), "0");
	ck_assert_str_eq(find(list, "MASTER_ADDR"), "127.0.0.1");
	ck_assert_str_eq(find(list, "MASTER_PORT"), "1234");
	ck_assert_str_eq(find(list, "GACC_JOB_ID"), "7");
	ck_assert_str_eq(find(list, "GACC_MICRO_SIZE"), "8");
	ck_assert_str_eq(find(list, "GACC_ENDPOINT"), "unix:/s");
	ck_assert_str_eq(find(list, "GACC_LOG_DIR"), "/logs");
	ck_assert_str_eq(find(list, "OMP_NUM_THREADS"), "1");
	ck_assert_str_eq(find(list, "PYTHONUNBUFFERED"), "1");
	rank_environment_free(list);
	ck_assert_uint_eq(rank_variables(3, 2, false, variables), 4);
	ck_assert_str_eq(variables[0], "GACC_RANK=3");
	ck_assert_str_eq(variables[1], "GACC_RESTART_COUNT=2");
	ck_assert_str_eq(variables[2], "RANK=3");
	ck_assert_str_eq(variables[3], "LOCAL_RANK=3");
}
END_TEST

/* Nor what a launcher around gaccctl has set. */
START_TEST(nothing_starts_torch_distributed)
{
	char *ours[] = { (char[]){ "PATH=/bin" },
			 (char[]){ "RANK=9" },
			 (char[]){ "LOCAL_RANK=9" },
			 (char[]){ "MASTER_ADDR=far" },
			 (char[]){ "TORCHELASTIC_RUN_ID=x" },
			 (char[]){ "NODE_RANK=0" },
			 (char[]){ "RANKS=1" },
			 NULL };
	static const char *const absent[] = { "RANK",	    "LOCAL_RANK",  "WORLD_SIZE",  "LOCAL_WORLD_SIZE",
					      "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
					      "NODE_RANK" };
	char variables[RANK_VARIABLES][RANK_VARIABLE_MAX];
	struct rank_environment alone = e;
	char **list;

	alone.no_torch = true;
	list = rank_environment(ours, &alone);
	for (size_t i = 0; i < sizeof(absent) / sizeof(absent[0]); i++)
		ck_assert_msg(!find(list, absent[i]), "%s", absent[i]);
	ck_assert_str_eq(find(list, "PATH"), "/bin");
	ck_assert_str_eq(find(list, "RANKS"), "1");
	ck_assert_str_eq(find(list, "GACC_WORLD_SIZE"), "4");
	ck_assert_str_eq(find(list, "GACC_JOB_ID"), "7");
	rank_environment_free(list);
	ck_assert_uint_eq(rank_variables(3, 2, true, variables), 2);
	ck_assert_str_eq(variables[0], "GACC_RANK=3");
	ck_assert_str_eq(variables[1], "GACC_RESTART_COUNT=2");
}
END_TEST

START_TEST(what_is_set_is_kept)
{
	char *ours[] = { (char[]){ "OMP_NUM_THREADS=6" }, (char[]){ "PYTHONUNBUFFERED=" }, NULL };
	char **list = rank_environment(ours, &e);

	ck_assert_str_eq(find(list, "OMP_NUM_THREADS"), "6");
	ck_assert_str_eq(find(list, "PYTHONUNBUFFERED"), "");
	rank_environment_free(list);
}
END_TEST

/* ---- processes ---- */

static void setup(void)
{
	static char *none[] = { NULL };

	ck_assert_ptr_nonnull(mkdtemp(dir));
	memset(processes, 0, sizeof(processes));
	ranks = (struct ranks){ .rank = processes, .n = 2, .log_dir = dir, .common = rank_environment(none, &e) };
}

static void teardown(void)
{
	char command[128];

	rank_environment_free(ranks.common);
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	ck_assert_int_eq(system(command), 0);
	strcpy(dir, "/tmp/gacc-ranks-XXXXXX");
}

/* Blocks until the process is a zombie, and leaves it for ranks_reap. */
static void await(pid_t pid)
{
	siginfo_t info;

	ck_assert_int_eq(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
}

static void read_log(uint32_t rank, char *text, size_t n)
{
	struct follower f;
	FILE *out = fmemopen(text, n, "w");

	follower_init(&f, dir, rank, false, FOLLOW_ALL);
	follower_pump(&f, out, true);
	follower_fini(&f);
	fclose(out);
}

static void start(uint32_t rank, const char *script)
{
	char *argv[] = { (char[]){ "/bin/sh" }, (char[]){ "-c" }, (char *)(uintptr_t)script, NULL };

	ranks.argv = argv;
	ck_assert_int_eq(ranks_start(&ranks, rank), 0);
}

/* As gaccctl logs shows it on a terminal. */
START_TEST(an_escaped_log_is_only_shown)
{
	char path[256], text[256] = "";
	struct follower f;
	FILE *out = fmemopen(text, sizeof(text), "w"), *log;

	snprintf(path, sizeof(path), "%s/worker_7.log", dir);
	log = fopen(path, "w");
	fputs("a\tb\033[2J\302\233\342\200\256c\303\251\n", log);
	fclose(log);
	follower_init(&f, dir, 7, false, FOLLOW_ALL);
	f.escaped = true;
	follower_pump(&f, out, true);
	follower_fini(&f);
	fclose(out);
	ck_assert_str_eq(text, "a\tb\\x1b[2J\\u009b\\u202ec\303\251\n");
	read_log(7, text, sizeof(text));
	ck_assert_str_eq(text, "a\tb\033[2J\302\233\342\200\256c\303\251\n");
	unlink(path);
}
END_TEST

START_TEST(runs_with_output_and_status)
{
	char text[256];
	uint32_t rank;

	start(1, "echo $RANK of $WORLD_SIZE; echo oops >&2; read x || echo no input; exit 3");
	ck_assert_uint_eq(ranks_running(&ranks), 1);
	await(processes[1].pid);
	ck_assert(ranks_reap(&ranks, &rank));
	ck_assert(rank == 1 && processes[1].ended && processes[1].status == 3 && !processes[1].signal);
	ck_assert(!ranks_reap(&ranks, &rank));
	ck_assert_uint_eq(ranks_running(&ranks), 0);
	read_log(1, text, sizeof(text));
	ck_assert_str_eq(text, "1 of 4\noops\nno input\n");
	processes[1].restarts = 1; /* a second life adds to the file, a new run begins it */
	start(1, "echo again $GACC_RESTART_COUNT");
	await(processes[1].pid);
	ck_assert(ranks_reap(&ranks, &rank) && processes[1].status == 0);
	read_log(1, text, sizeof(text));
	ck_assert_str_eq(text, "1 of 4\noops\nno input\nagain 1\n");
}
END_TEST

START_TEST(signals_reach_the_group)
{
	uint32_t rank;

	/* the shell waits for a child of its own; both are in the group */
	start(0, "sleep 1000 & wait");
	ranks_signal(&ranks, SIGTERM);
	await(processes[0].pid);
	ck_assert(ranks_reap(&ranks, &rank));
	ck_assert_int_eq(processes[0].signal, SIGTERM);
	ck_assert_int_eq(processes[0].status, 128 + SIGTERM);
	/* whether the child of the shell is gone too can only be seen by its absence */
	ck_assert(kill(-processes[0].last_pid, 0) || waitpid(-processes[0].last_pid, NULL, 0));
}
END_TEST

/* It exits and leaves a process behind: that goes with it. */
START_TEST(what_a_rank_leaves_behind_ends_with_it)
{
	int status = 0, found = 0;
	uint32_t rank;
	pid_t group;

	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	start(0, "sleep 1000 & exit 3");
	group = processes[0].pid;
	await(group);
	ck_assert(ranks_reap(&ranks, &rank) && processes[0].status == 3);
	for (int i = 0; i < 200 && !found; i++) {
		found = waitpid(-group, &status, WNOHANG);
		poll(NULL, 0, 10);
	}
	kill(-group, SIGKILL);
	ck_assert(found > 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}
END_TEST

START_TEST(a_program_that_is_not_there)
{
	char *argv[] = { (char[]){ "/nonexistent/program" }, NULL };
	char text[256];
	uint32_t rank;

	ranks.argv = argv;
	ck_assert_int_eq(ranks_start(&ranks, 0), 0);
	await(processes[0].pid);
	ck_assert(ranks_reap(&ranks, &rank));
	ck_assert_int_eq(processes[0].status, 127);
	read_log(0, text, sizeof(text));
	ck_assert_str_eq(text, "gaccctl: cannot run /nonexistent/program: No such file or directory\n");
}
END_TEST

/* ---- following ---- */

static void write_log(const char *text)
{
	char path[128];
	FILE *f;

	snprintf(path, sizeof(path), "%s/worker_5.log", dir);
	f = fopen(path, "a");
	fputs(text, f);
	fclose(f);
}

static void expect(struct follower *f, bool at_end, const char *want)
{
	char *text;
	size_t n;
	FILE *out = open_memstream(&text, &n);

	follower_pump(f, out, at_end);
	fclose(out);
	ck_assert_str_eq(text, want);
	free(text);
}

START_TEST(follows_whole_lines)
{
	struct follower f;

	follower_init(&f, dir, 5, true, FOLLOW_ALL);
	ck_assert(!follower_exists(&f));
	expect(&f, false, "");
	write_log("one\ntwo");
	ck_assert(follower_exists(&f));
	expect(&f, false, "[rank5] one\n");
	write_log(" and a half\n\n");
	expect(&f, false, "[rank5] two and a half\n[rank5] \n");
	write_log("last");
	expect(&f, false, "");
	expect(&f, true, "[rank5] last\n");
	follower_fini(&f);
}
END_TEST

START_TEST(tails)
{
	static const char *const want[] = { "", "c\n", "b\nc\n", "a\nb\nc\n", "a\nb\nc\n" };
	struct follower f;

	write_log("a\nb\nc\n");
	for (uint64_t tail = 0; tail < 5; tail++) {
		follower_init(&f, dir, 5, false, tail);
		expect(&f, true, want[tail]);
		follower_fini(&f);
	}
	write_log("unfinished");
	follower_init(&f, dir, 5, false, 2);
	expect(&f, true, "c\nunfinished\n");
	follower_fini(&f);
}
END_TEST

/* Lines that lie over the pieces in which the file is scanned backwards. */
START_TEST(tails_of_large_files)
{
	static char line[50001];
	struct follower f;
	char *want = malloc(3 * sizeof(line) + 1);

	memset(line, 'x', 49999);
	line[49999] = '\n';
	for (int i = 0; i < 7; i++) {
		line[0] = (char)('0' + i);
		write_log(line);
	}
	want[0] = '\0';
	for (int i = 4; i < 7; i++) {
		line[0] = (char)('0' + i);
		strcat(want, line);
	}
	follower_init(&f, dir, 5, false, 3);
	expect(&f, true, want);
	follower_fini(&f);
	free(want);
}
END_TEST

START_TEST(lists_of_ranks)
{
	ck_assert(rank_listed("all", 9) && !rank_listed("none", 0));
	ck_assert(rank_listed("0,2", 2) && !rank_listed("0,2", 1) && !rank_listed("12", 1));
	ck_assert(rank_list_ok("all", 1) && rank_list_ok("none", 1) && rank_list_ok("0,2", 3));
	ck_assert(!rank_list_ok("0,3", 3) && !rank_list_ok("", 3) && !rank_list_ok("a", 3) && !rank_list_ok("1-2", 3));
}
END_TEST

int main(int argc, char **argv)
{
	Suite *suite;
	TCase *tc;

	if (argc > 1 && !strcmp(argv[1], "--exec-rank"))
		return exec_rank(argc, argv);
	suite = suite_create("gaccctl ranks");
	tc = tcase_create("all");
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, environment_is_torchruns);
	tcase_add_test(tc, nothing_starts_torch_distributed);
	tcase_add_test(tc, what_is_set_is_kept);
	tcase_add_test(tc, an_escaped_log_is_only_shown);
	tcase_add_test(tc, runs_with_output_and_status);
	tcase_add_test(tc, signals_reach_the_group);
	tcase_add_test(tc, what_a_rank_leaves_behind_ends_with_it);
	tcase_add_test(tc, a_program_that_is_not_there);
	tcase_add_test(tc, follows_whole_lines);
	tcase_add_test(tc, tails);
	tcase_add_test(tc, tails_of_large_files);
	tcase_add_test(tc, lists_of_ranks);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
