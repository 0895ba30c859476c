/* SPDX-License-Identifier: Apache-2.0 */
/* Real processes: the child of the supervisor is this program again, in one of the roles below. It reports on a
 * descriptor with a fixed number, which the supervisor hands down like any other that is not close-on-exec. */
#include "host/supervise.h"

#include "base/log.h"
#include "host/fdstore.h"
#include "support/scratch.h"
#include "support/suite.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#define REPORT_FD 500
#define MANY 200

static char *self;

/* ---- roles ---- */

static struct fdstore *store;
static struct fdstore_fd *fds;
static size_t n_fds;
static uv_loop_t loop;

static void report(const char *text)
{
	if (write(REPORT_FD, text, strlen(text)) != (ssize_t)strlen(text))
		_exit(90);
}

static _Noreturn void last_report(const char *text)
{
	report(text);
	_exit(0);
}

static void open_store(void)
{
	if (fdstore_open(&store, &fds, &n_fds) || uv_loop_init(&loop) || fdstore_start(store, &loop))
		_exit(91);
}

/* Nothing was stored by an earlier one. */
static bool first_life(void)
{
	open_store();
	return n_fds == 0;
}

static void on_kept(void *arg, enum status st)
{
	if (st)
		_exit(92);
}

static struct fdstore_fd new_item(const char *name, const char *content)
{
	struct fdstore_fd item = { .fd = memfd_create(name, MFD_CLOEXEC) };
	snprintf(item.name, sizeof(item.name), "%s", name);
	if (pwrite(item.fd, content, strlen(content), 0) < 0)
		_exit(92);
	return item;
}

/* Sent when this returns. */
static void begin_to_keep(const struct fdstore_fd *item, size_t n, struct fdstore_request **request)
{
	struct fdstore_fd *copy = calloc(n, sizeof(*copy));
	memcpy(copy, item, n * sizeof(*copy));
	fdstore_keep(store, copy, n, on_kept, NULL, request);
}

/* The supervisor has it. */
static void put_new(const char *name, const char *content)
{
	struct fdstore_request *request;
	struct fdstore_fd item = new_item(name, content);
	begin_to_keep(&item, 1, &request);
	while (request)
		uv_run(&loop, UV_RUN_ONCE);
	close(item.fd);
}

static void read_stored(size_t i, char *out, size_t n)
{
	memset(out, 0, n);
	if (pread(fds[i].fd, out, n - 1, 0) < 0)
		_exit(95);
}

/* Counts its lives in a memfd and tells them, until it is killed. */
static void role_count(void)
{
	uint64_t lives = 0;
	char text[32];
	if (first_life()) {
		put_new("j1.control.0.1", "");
		kill(getpid(), SIGKILL); /* at the earliest instant that is safe */
	}
	if (n_fds != 1 || strcmp(fds[0].name, "j1.control.0.1") != 0)
		_exit(94);
	if (pread(fds[0].fd, &lives, sizeof(lives), 0) < 0)
		_exit(95);
	lives++;
	if (pwrite(fds[0].fd, &lives, sizeof(lives), 0) != sizeof(lives))
		_exit(96);
	snprintf(text, sizeof(text), "%d %d\n", (int)getpid(), (int)lives);
	report(text);
	for (;;)
		pause();
}

static void role_names(void)
{
	char text[96], content[16];
	if (first_life()) {
		struct fdstore_fd item[] = { new_item("a", "A"), new_item("b", "B"), new_item("c", "C") };
		struct fdstore_request *request;
		begin_to_keep(item, 3, &request);
		if (fdstore_remove(store, "b"))
			_exit(94);
		raise(SIGKILL); /* without an answer: what was sent is read all the same */
	}
	for (size_t i = 0; i < n_fds; i++) {
		read_stored(i, content, sizeof(content));
		snprintf(text, sizeof(text), "%s=%s ", fds[i].name, content);
		report(text);
	}
	_exit(0);
}

static void role_many(void)
{
	char name[32], text[32];
	if (first_life()) {
		for (int i = 0; i < MANY; i++) {
			snprintf(name, sizeof(name), "j1.slot.%d.1", i);
			put_new(name, name);
		}
		raise(SIGKILL);
	}
	for (size_t i = 0; i < n_fds; i++) {
		read_stored(i, text, sizeof(text));
		if (strcmp(text, fds[i].name) != 0)
			_exit(95);
	}
	snprintf(text, sizeof(text), "%zu", n_fds);
	last_report(text);
}

/* As many as the store has room for, of which the environment tells. */
static void role_fill(void)
{
	char name[32], text[64];
	struct rlimit l;
	getrlimit(RLIMIT_NOFILE, &l);
	if (first_life()) {
		for (uint64_t i = 0; i < fdstore_room(store); i++) {
			snprintf(name, sizeof(name), "j1.slot.%d.1", (int)i);
			put_new(name, name);
		}
		raise(SIGKILL);
	}
	snprintf(text, sizeof(text), "%zu of %d, limit %d", n_fds, (int)fdstore_room(store), (int)l.rlim_cur);
	last_report(text);
}

/* The first life makes its own child send; only the second tells what was kept. */
static void role_stranger(void)
{
	char text[96];
	char *notify = strdup(getenv("NOTIFY_SOCKET"));
	if (first_life()) {
		put_new("mine", "");
		if (fork() == 0) {
			setenv("NOTIFY_SOCKET", notify, 1);
			open_store();
			put_new("stranger", "");
			if (fdstore_remove(store, "mine"))
				_exit(97);
			_exit(0);
		}
		wait(NULL);
		raise(SIGKILL);
	}
	snprintf(text, sizeof(text), "%zu %s", n_fds, fds[0].name);
	last_report(text);
}

static void role_stop(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, NULL);
	report("up");
	for (int sig; !sigwait(&set, &sig);) { /* a handler and pause() would lose one that comes in between */
		report(sig == SIGTERM ? "term" : "hup");
		if (sig == SIGTERM)
			_exit(0);
	}
	_exit(97);
}

static void role_die_of_term(void)
{
	report("up");
	for (;;)
		pause();
}

/* READY, then silence; only a watchdog ends that. The next life sees what the first stored. */
static void role_silent(void)
{
	if (!first_life())
		last_report("again");
	put_new("x", "");
	if (fdstore_watchdog_us(store) != 50000 || fdstore_ready(store))
		_exit(98);
	for (;;)
		pause();
}

static void role_exit_2(void)
{
	report("x");
	_exit(2);
}

/* Wrong usage, but for what is kept: a configuration that was changed while jobs run. */
static void role_exit_2_with_memory(void)
{
	if (!first_life())
		last_report("again");
	put_new("x", "");
	role_exit_2();
}

/* Six lives. */
static void role_killed(void)
{
	uint64_t lives = 0;
	if (first_life())
		put_new("lives", "\1\0\0\0\0\0\0\0");
	else if (pread(fds[0].fd, &lives, sizeof(lives), 0) < 0 ||
		 (lives++, pwrite(fds[0].fd, &lives, sizeof(lives), 0) < 0))
		_exit(95);
	if (lives < 6)
		raise(SIGKILL);
	last_report("six");
}

static const struct {
	const char *name;
	void (*run)(void);
} roles[] = { { "count", role_count },
	      { "names", role_names },
	      { "many", role_many },
	      { "fill", role_fill },
	      { "stranger", role_stranger },
	      { "stop", role_stop },
	      { "die_of_term", role_die_of_term },
	      { "silent", role_silent },
	      { "exit_2", role_exit_2 },
	      { "exit_2_with_memory", role_exit_2_with_memory },
	      { "killed", role_killed } };

/* ---- tests ---- */

static pid_t supervisor;
static int reports;

static void start_with(const char *role, uint32_t backoff_ms, uint32_t watchdog_ms)
{
	int p[2];
	ck_assert_int_eq(pipe2(p, O_CLOEXEC), 0);
	supervisor = fork();
	if (supervisor == 0) {
		dup2(p[1], REPORT_FD);
		char *argv[] = { self, (char *)(uintptr_t) "--role", (char *)(uintptr_t)role, NULL };
		struct supervise_opts o = { argv, backoff_ms, watchdog_ms };
		_exit(supervise_run(&o));
	}
	close(p[1]);
	reports = p[0];
}

static void start(const char *role, uint32_t watchdog_ms)
{
	start_with(role, 0, watchdog_ms);
}

/* What the children say, until all have ended. */
static const char *all_reports(void)
{
	static char text[4096];
	size_t n = 0;
	for (ssize_t r; (r = read(reports, text + n, sizeof(text) - 1 - n)) > 0;)
		n += (size_t)r;
	text[n] = 0;
	return text;
}

static void expect_report(const char *want)
{
	char text[64] = "";
	ck_assert_int_eq(read(reports, text, strlen(want)), (ssize_t)strlen(want));
	ck_assert_str_eq(text, want);
}

static void expect_exit(int code)
{
	int ws;
	ck_assert_int_eq(waitpid(supervisor, &ws, 0), supervisor);
	ck_assert(WIFEXITED(ws));
	ck_assert_int_eq(WEXITSTATUS(ws), code);
	close(reports);
}

/* The supervisor ends with this code, and until then its children say this and no more. */
static void expect_end(const char *last_words, int code)
{
	ck_assert_str_eq(all_reports(), last_words);
	expect_exit(code);
}

START_TEST(memory_survives_sigkill)
{
	FILE *in;
	int pid = 0, lives = 0;
	start("count", 0);
	in = fdopen(dup(reports), "r");
	for (int i = 1; i <= 25; i++) {
		ck_assert_int_eq(fscanf(in, "%d %d", &pid, &lives), 2);
		ck_assert_int_eq(lives, i);
		ck_assert_int_eq(kill(pid, i < 25 ? SIGKILL : 0), 0);
	}
	fclose(in);
	kill(supervisor, SIGTERM);
	expect_exit(128 + SIGTERM);
	ck_assert_int_eq(kill(pid, 0), -1); /* nothing is left running */
}
END_TEST

START_TEST(descriptors_are_kept_by_name_and_removed)
{
	start("names", 0);
	const char *text = all_reports();
	ck_assert_ptr_nonnull(strstr(text, "a=A "));
	ck_assert_ptr_nonnull(strstr(text, "c=C "));
	ck_assert_int_eq(strlen(text), 8);
	expect_exit(0);
}
END_TEST

START_TEST(many_descriptors_are_not_mixed_up)
{
	char want[16];
	start("many", 0);
	snprintf(want, sizeof(want), "%d", MANY);
	expect_end(want, 0);
}
END_TEST

/* The descriptor on which they report is above the limit, and is handed down all the same. */
START_TEST(the_store_is_as_large_as_the_limit_allows)
{
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ REPORT_FD + 1, 700 }), 0);
	start("fill", 0);
	expect_end("334 of 334, limit 501", 0); /* 700 / 2 - 16 */
}
END_TEST

START_TEST(only_the_child_is_listened_to)
{
	start("stranger", 0);
	expect_end("1 mine", 0);
}
END_TEST

START_TEST(a_clean_stop_ends_all)
{
	start("stop", 0);
	expect_report("up");
	kill(supervisor, SIGHUP);
	expect_report("hup");
	kill(supervisor, _i ? SIGINT : SIGTERM);
	expect_end("term", 0);
}
END_TEST

START_TEST(a_child_that_dies_of_the_stop_is_not_started_again)
{
	start("die_of_term", 0);
	expect_report("up");
	kill(supervisor, SIGTERM);
	expect_end("", 128 + SIGTERM);
}
END_TEST

START_TEST(a_silent_child_is_killed_and_started_again)
{
	start("silent", 50);
	expect_end("again", 0);
}
END_TEST

START_TEST(wrong_usage_is_final)
{
	start("exit_2", 0);
	expect_end("x", 2);
}
END_TEST

START_TEST(wrong_usage_is_not_final_while_memory_is_kept)
{
	start("exit_2_with_memory", 0);
	expect_end("xagain", 0);
}
END_TEST

/* The pause grows only for what ends by itself: 100 ms each, and not 100, 200, 400 and so on. */
START_TEST(what_was_killed_comes_back_at_once)
{
	struct timespec from, to;
	clock_gettime(CLOCK_MONOTONIC, &from);
	start_with("killed", 100, 0);
	expect_end("six", 0);
	clock_gettime(CLOCK_MONOTONIC, &to);
	ck_assert_int_lt(to.tv_sec - from.tv_sec, 3);
}
END_TEST

START_TEST(a_program_that_is_not_there_is_final)
{
	char *argv[] = { (char *)(uintptr_t) "/nonexistent/gaccd", NULL };
	struct supervise_opts o = { argv, 0, 0 };
	ck_assert_int_eq(supervise_run(&o), 2);
}
END_TEST

static char tmp[SCRATCH_PATH];

static void setup(void)
{
	ck_assert(scratch_make(tmp));
	setenv("TMPDIR", tmp, 1);
}

/* rmdir fails if the supervisor left something there. */
static void teardown(void)
{
	ck_assert_int_eq(rmdir(tmp), 0);
}

int main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "--role") == 0)
		for (size_t i = 0; i < sizeof(roles) / sizeof(*roles); i++)
			if (strcmp(argv[2], roles[i].name) == 0)
				roles[i].run();
	log_init("test", LOG_TEXT, LOG_ERROR);
	self = realpath("/proc/self/exe", NULL);
	Suite *s = suite_create("supervise");
	TCase *c = tcase_create("supervise");
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_set_timeout(c, 30);
	suite_add_tcase(s, c);
	tcase_add_test(c, memory_survives_sigkill);
	tcase_add_test(c, descriptors_are_kept_by_name_and_removed);
	tcase_add_test(c, many_descriptors_are_not_mixed_up);
	tcase_add_test(c, the_store_is_as_large_as_the_limit_allows);
	tcase_add_test(c, only_the_child_is_listened_to);
	tcase_add_loop_test(c, a_clean_stop_ends_all, 0, 2);
	tcase_add_test(c, a_child_that_dies_of_the_stop_is_not_started_again);
	tcase_add_test(c, a_silent_child_is_killed_and_started_again);
	tcase_add_test(c, wrong_usage_is_final);
	tcase_add_test(c, wrong_usage_is_not_final_while_memory_is_kept);
	tcase_add_test(c, what_was_killed_comes_back_at_once);
	tcase_add_test(c, a_program_that_is_not_there_is_final);
	int code = suite_run(s);
	free(self);
	return code;
}
