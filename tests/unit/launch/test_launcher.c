/* SPDX-License-Identifier: Apache-2.0 */
/* What launchers read and note: orders, the state file, the ends of logs. Real files and processes. */
#include "host/log_tail.h"
#include "host/process.h"
#include "launch/start.h"
#include "launch/state.h"
#include "base/log.h"
#include "support/suite.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- orders ---- */

static struct {
	struct launch_order order;
	char words[512];
} packet;
static size_t n_packet;

static void word(const char *text)
{
	memcpy((char *)&packet + n_packet, text, strlen(text) + 1);
	n_packet += strlen(text) + 1;
}

static void make_order(void)
{
	packet.order = (struct launch_order){ .version = 1,
					      .op = LAUNCH_OP_START,
					      .job_id = 7,
					      .n_ranks = 2,
					      .first = 4,
					      .world = 6,
					      .group = 1,
					      .n_groups = 3,
					      .master_port = 4711,
					      .micro_size = 8,
					      .uid = getuid(),
					      .n_command = 2,
					      .n_environment = 3 };
	n_packet = sizeof(packet.order);
	word("unix:/run/g.sock");
	word("");
	word("/logs");
	word("10.1.2.3");
	word("python3");
	word("train.py");
	word("RANK=99");
	word("PATH=/mine");
	word("A=b=c");
}

static const char *value(char **environment, const char *name)
{
	const char *found = NULL;
	size_t n = strlen(name);
	for (; *environment; environment++)
		if (!strncmp(*environment, name, n) && (*environment)[n] == '=') {
			ck_assert_msg(!found, "%s is there twice", name);
			found = *environment + n + 1;
		}
	ck_assert_msg(found, "no %s", name);
	return found;
}

START_TEST(an_order_becomes_an_environment)
{
	struct launch_start s;
	make_order();
	ck_assert_int_eq(launch_start_parse(&packet, n_packet, &s), ST_OK);
	ck_assert_str_eq(s.command[0], "python3");
	ck_assert_str_eq(s.command[1], "train.py");
	ck_assert_ptr_null(s.command[2]);
	ck_assert_str_eq(s.log_dir, "/logs");
	char **e = launch_environment(&s, 1, 3);
	ck_assert_str_eq(value(e, "RANK"), "5");     /* ours wins */
	ck_assert_str_eq(value(e, "PATH"), "/mine"); /* theirs wins */
	ck_assert_str_eq(value(e, "A"), "b=c");
	ck_assert_str_eq(value(e, "PYTHONUNBUFFERED"), "1");
	static const char *const ours[][2] = { { "WORLD_SIZE", "6" },	    { "LOCAL_RANK", "1" },
					       { "LOCAL_WORLD_SIZE", "2" }, { "GROUP_RANK", "1" },
					       { "GROUP_WORLD_SIZE", "3" }, { "NODE_RANK", "1" },
					       { "MASTER_PORT", "4711" },   { "MASTER_ADDR", "10.1.2.3" },
					       { "GACC_RANK", "5" },	    { "GACC_WORLD_SIZE", "6" } };
	for (size_t i = 0; i < sizeof(ours) / sizeof(*ours); i++)
		ck_assert_str_eq(value(e, ours[i][0]), ours[i][1]);
	ck_assert_str_eq(value(e, "GACC_ENDPOINT"), "unix:/run/g.sock");
	ck_assert_str_eq(value(e, "GACC_RESTART_COUNT"), "3");
	ck_assert_str_eq(value(e, "HOME"), s.home);
	ck_assert_str_eq(s.reason[0], "");
	launch_environment_free(e);
	launch_start_fini(&s);
}
END_TEST

/* The job's own RANK=99 is what it has asked for. */
START_TEST(ranks_may_get_nothing_of_torch)
{
	static const char *const absent[] = { "WORLD_SIZE=",  "LOCAL_",	      "GROUP_",	      "NODE_RANK=",
					      "MASTER_ADDR=", "MASTER_PORT=", "TORCHELASTIC_" };
	struct launch_start s;
	make_order();
	word(LAUNCH_NO_TORCH);
	packet.order.n_environment++;
	ck_assert_int_eq(launch_start_parse(&packet, n_packet, &s), ST_OK);
	char **e = launch_environment(&s, 1, 3);
	for (char **v = e; *v; v++)
		for (size_t i = 0; i < sizeof(absent) / sizeof(*absent); i++)
			ck_assert_msg(strncmp(*v, absent[i], strlen(absent[i])) != 0, "%s", *v);
	ck_assert_str_eq(value(e, "RANK"), "99");
	ck_assert_str_eq(value(e, "GACC_RANK"), "5");
	ck_assert_str_eq(value(e, "GACC_WORLD_SIZE"), "6");
	ck_assert_str_eq(value(e, "GACC_JOB_ID"), "7");
	launch_environment_free(e);
	launch_start_fini(&s);
}
END_TEST

START_TEST(every_cut_order_is_refused)
{
	struct launch_start s;
	make_order();
	for (size_t n = 0; n < n_packet; n++)
		ck_assert_int_eq(launch_start_parse(&packet, n, &s), ST_MALFORMED);
	packet.order.n_environment = UINT32_MAX;
	ck_assert_int_eq(launch_start_parse(&packet, n_packet, &s), ST_MALFORMED);
	make_order();
	packet.order.n_ranks = 0;
	ck_assert_int_eq(launch_start_parse(&packet, n_packet, &s), ST_MALFORMED);
	make_order();
	packet.order.first = 5; /* the last one would be beyond the job's */
	ck_assert_int_eq(launch_start_parse(&packet, n_packet, &s), ST_MALFORMED);
	packet.order.first = UINT32_MAX;
	ck_assert_int_eq(launch_start_parse(&packet, n_packet, &s), ST_MALFORMED);
	make_order();
	packet.order.master_port = 65536;
	ck_assert_int_eq(launch_start_parse(&packet, n_packet, &s), ST_MALFORMED);
	make_order();
	packet.order.uid = 4000000001u;
	ck_assert_int_eq(launch_start_parse(&packet, n_packet, &s), ST_PERMISSION_DENIED);
}
END_TEST

/* ---- the state file ---- */

static char dir[64], path[96];

static void setup(void)
{
	strcpy(dir, "/tmp/gacc-launcher-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/state", dir);
}

static void teardown(void)
{
	unlink(path);
	ck_assert_int_eq(rmdir(dir), 0);
}

/* Number of notes of earlier launchers; the first of them in *first. */
static uint32_t open_state(int *fd, struct launch_note *first)
{
	struct launch_note *note;
	uint32_t n;
	ck_assert_int_eq(launch_state_open(path, fd, &note, &n), ST_OK);
	if (n)
		*first = note[0];
	free(note);
	return n;
}

START_TEST(the_last_note_of_a_rank_counts)
{
	struct launch_note first;
	int fd;
	ck_assert_uint_eq(open_state(&fd, &first), 0);
	ck_assert_int_eq(launch_state_note(fd, &(struct launch_note){ 0, 4000001, 5, 0, 0, 9, 1 }), ST_OK);
	ck_assert_int_eq(launch_state_note(fd, &(struct launch_note){ 1, 4000002, 6, 0, 0, 9, 1 }), ST_OK);
	ck_assert_int_eq(launch_state_note(fd, &(struct launch_note){ 0, 4000003, 7, 1, 2, 4000000, 65534 }), ST_OK);
	ck_assert_int_eq(write(fd, "0 40", 4), 4); /* killed in the middle of it */
	close(fd);
	for (int i = 0; i < 2; i++) { /* and it is handed on from launcher to launcher */
		ck_assert_uint_eq(open_state(&fd, &first), 2);
		ck_assert_uint_eq(first.rank, 0);
		ck_assert_int_eq(first.pid, 4000003);
		ck_assert_uint_eq(first.start_time, 7);
		ck_assert_uint_eq(first.restarts, 1);
		ck_assert_uint_eq(first.charged, 2);
		ck_assert_int_eq(first.session, 4000000);
		ck_assert_uint_eq(first.uid, 65534);
		close(fd);
	}
}
END_TEST

START_TEST(notes_of_another_boot_are_forgotten)
{
	struct launch_note first;
	int fd;
	FILE *f = fopen(path, "w");
	fputs("boot another\n0 2 3 0 0\n", f);
	fclose(f);
	ck_assert_uint_eq(open_state(&fd, &first), 0);
	close(fd);
}
END_TEST

/* Of a launcher before it noted session and user. */
START_TEST(a_shorter_note_is_read)
{
	struct launch_note first;
	int fd;
	ck_assert_uint_eq(open_state(&fd, &first), 0);
	ck_assert_int_eq(write(fd, "0 4000001 5 1 2\n0 4000001 5 1 2 4000", 36), 36);
	close(fd);
	ck_assert_uint_eq(open_state(&fd, &first), 1);
	ck_assert_int_eq(first.pid, 4000001);
	ck_assert_uint_eq(first.charged, 2);
	ck_assert_int_eq(first.session, 0);
	close(fd);
}
END_TEST

START_TEST(a_directory_that_is_not_there)
{
	struct launch_note *note;
	uint32_t n;
	int fd;
	ck_assert_int_eq(launch_state_open("/nonexistent/state", &fd, &note, &n), ST_IO_ERROR);
}
END_TEST

/* A process that leads a session and a group with one more process in it; its number is both's. What loses its parent
 * becomes a child of the test. The test's own session would not do: in a container its leader may be outside, and it is
 * 0. */
static pid_t start_group(bool leader_ends)
{
	int ready[2];
	char byte;
	ck_assert_int_eq(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
	ck_assert_int_eq(pipe(ready), 0);
	pid_t pid = fork();
	if (pid == 0) {
		if (setsid() < 0)
			_exit(1);
		if (fork() == 0) {
			if (write(ready[1], "", 1) != 1)
				_exit(1);
			close(ready[1]);
			for (;;)
				pause();
		}
		if (leader_ends)
			_exit(0);
		for (;;)
			pause();
	}
	close(ready[1]);
	ck_assert_int_eq(read(ready[0], &byte, 1), 1);
	close(ready[0]);
	return pid;
}

START_TEST(groups_are_killed_with_or_without_their_leader)
{
	pid_t a = start_group(false), b = start_group(true);
	int status;
	struct launch_note note[] = { { 0, a, process_start_time(a), 0, 0, 0, 0 }, { 1, b, 1, 0, 0, b, getuid() } };
	waitpid(b, &status, 0); /* its pid is free but for the group */
	launch_state_kill(note, 2);
	waitpid(a, &status, 0);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	ck_assert_uint_eq(process_start_time(a), 0);
	ck_assert_int_gt(waitpid(-b, &status, 0), 0);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	ck_assert_int_eq(waitpid(-a, NULL, WNOHANG), 0); /* without a session only the leader is known for sure */
	kill(-a, SIGKILL);
}
END_TEST

START_TEST(a_stranger_with_an_old_pid_lives)
{
	pid_t a = start_group(false);
	struct launch_note note = { 0, a, process_start_time(a) - 1, 0, 0, a, getuid() };
	ck_assert_uint_ne(process_start_time(a), 0);
	launch_state_kill(&note, 1);
	ck_assert_int_eq(waitpid(a, NULL, WNOHANG), 0);
	ck_assert_int_eq(kill(-a, SIGKILL), 0);
	waitpid(a, NULL, 0);
}
END_TEST

/* The number of a rank's group was given out again, and the process that had it has ended, too: what it started is in
 * that group. */
START_TEST(a_strangers_group_without_its_leader_lives)
{
	pid_t group = start_group(true);
	uint64_t now = process_start_time(getpid());
	const struct launch_note wrong[] = {
		{ 0, group, 1, 0, 0, group + 1, getuid() },	    /* of another session */
		{ 0, group, now + 1000000, 0, 0, group, getuid() }, /* started before the rank */
		{ 0, group, 1, 0, 0, group, getuid() + 1 },	    /* of another user */
		{ 0, group, 1, 0, 0, 0, 0 },			    /* nothing known */
	};
	waitpid(group, NULL, 0);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		launch_state_kill(&wrong[i], 1);
		ck_assert_msg(!waitpid(-group, NULL, WNOHANG), "note %zu", i);
	}
	struct launch_note right = { 0, group, 1, 0, 0, group, 0 };
	launch_state_kill(&right, 1); /* ranks of root may change their user */
	ck_assert_int_gt(waitpid(-group, NULL, 0), 0);
}
END_TEST

static bool is_any(const void *arg, int64_t pid)
{
	return true;
}

static bool is_none(const void *arg, int64_t pid)
{
	return false;
}

START_TEST(signals_reach_the_process_that_is_meant)
{
	pid_t a = start_group(false);
	int status;
	ck_assert(!process_signal_if(a, SIGKILL, is_none, NULL));
	ck_assert(process_signal_child(a, 0));
	ck_assert(!process_signal_child(getppid(), 0)); /* no child of ours */
	ck_assert(!process_is_gaccd(a, "--launcher", "1"));
	ck_assert(process_signal_if(a, SIGKILL, is_any, NULL));
	ck_assert_int_eq(waitpid(a, &status, 0), a);
	ck_assert(!process_signal_if(a, 0, is_any, NULL));
	ck_assert(!process_signal_child(a, 0));
	kill(-a, SIGKILL);
}
END_TEST

/* ---- the end of a log ---- */

static void expect_tail(const char *text, size_t max, const char *joined)
{
	char *line[8], all[2048] = "";
	size_t n = log_tail(text, strlen(text), line, max);
	ck_assert_uint_le(n, max);
	for (size_t i = 0; i < n; i++) {
		strcat(strcat(all, i ? "|" : ""), line[i]);
		free(line[i]);
	}
	ck_assert_str_eq(all, joined);
}

START_TEST(last_lines)
{
	expect_tail("", 3, "");
	expect_tail("\n\n \n", 3, "");
	expect_tail("one", 3, "one");
	expect_tail("one\ntwo\nthree\nfour\n", 3, "two|three|four");
	expect_tail("one\r\n\r\nthree\r\n\n\n", 3, "one||three");
	expect_tail("one\ntwo", 1, "two");
	expect_tail("a\tb\033[1mc\x7f", 1, "a\tb?[1mc?");
	expect_tail("caf\xc3\xa9 \xff\xc3", 1, "caf\xc3\xa9 ??");
	expect_tail("a\xe2\x80\xae"
		    "b\xc2\x9b"
		    "c",
		    1, "a?b?c");
}
END_TEST

START_TEST(a_long_line_is_cut_between_characters)
{
	char text[LOG_TAIL_LINE + 10], *line;
	memset(text, 'x', sizeof(text));
	memcpy(text + LOG_TAIL_LINE - 2, "\xc3\xa9", 2); /* across the limit */
	ck_assert_uint_eq(log_tail(text, sizeof(text), &line, 1), 1);
	ck_assert_uint_eq(strlen(line), LOG_TAIL_LINE - 2);
	free(line);
}
END_TEST

int main(void)
{
	log_init("test", LOG_TEXT, LOG_ERROR);
	Suite *s = suite_create("launcher");
	TCase *c = tcase_create("launcher");
	tcase_add_checked_fixture(c, setup, teardown);
	suite_add_tcase(s, c);
	tcase_add_test(c, an_order_becomes_an_environment);
	tcase_add_test(c, ranks_may_get_nothing_of_torch);
	tcase_add_test(c, every_cut_order_is_refused);
	tcase_add_test(c, the_last_note_of_a_rank_counts);
	tcase_add_test(c, notes_of_another_boot_are_forgotten);
	tcase_add_test(c, a_shorter_note_is_read);
	tcase_add_test(c, a_directory_that_is_not_there);
	tcase_add_test(c, groups_are_killed_with_or_without_their_leader);
	tcase_add_test(c, a_stranger_with_an_old_pid_lives);
	tcase_add_test(c, a_strangers_group_without_its_leader_lives);
	tcase_add_test(c, signals_reach_the_process_that_is_meant);
	tcase_add_test(c, last_lines);
	tcase_add_test(c, a_long_line_is_cut_between_characters);
	return suite_run(s);
}
