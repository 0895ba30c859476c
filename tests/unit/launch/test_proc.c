/* SPDX-License-Identifier: Apache-2.0 */
/* gaccd's end of a launcher's socket, with a test at the other: what happens to a launcher whose messages cannot be
 * understood. */
#include "launch/proc.h"

#include "base/log.h"
#include "support/suite.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#define JOB 7
#define UUID "d5e15a60-9e46-49e1-090b-f59ce3da2a4b"
#define ANOTHER_VERSION (LAUNCH_CHANNEL_VERSION + 98)

static char dir[64];
static struct sockaddr_un at = { .sun_family = AF_UNIX };
static int listener;
static uv_loop_t loop;
static uv_timer_t keep_alive; /* gaccd's loop runs without launchers, too, so that their handles do not count */
static bool gone;

static void on_time(uv_timer_t *t)
{
	ck_abort_msg("the launcher is not given up");
}

static void setup(void)
{
	strcpy(dir, "/tmp/gacc-proc-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	const struct launcher_args named = { .job_id = JOB, .uuid = UUID, .runtime_dir = dir };
	ck_assert(launcher_socket_path(&named, at.sun_path, sizeof(at.sun_path)));
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(listener, (struct sockaddr *)&at, sizeof(at)), 0);
	ck_assert_int_eq(listen(listener, 1), 0);
	ck_assert_int_eq(uv_loop_init(&loop), 0);
	uv_timer_init(&loop, &keep_alive);
	uv_timer_start(&keep_alive, on_time, 60000, 0);
	gone = false;
}

static void teardown(void)
{
	close(listener);
	unlink(at.sun_path);
	ck_assert_int_eq(rmdir(dir), 0);
	uv_close((uv_handle_t *)&keep_alive, NULL);
	uv_run(&loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(uv_loop_close(&loop), 0);
}

static void on_rank(void *arg, uint32_t rank, const struct launch_rank *r)
{
	ck_abort_msg("a rank of another version was understood");
}

static void on_summary(void *arg, const struct launch_summary *s, const char *tail, uint32_t n)
{
	ck_abort_msg("a summary of another version was understood");
}

static void on_gone(void *arg)
{
	gone = true;
}

/* A process with these arguments behind "gaccd"; it runs main() below, which waits. */
static pid_t start_process(const char *role, const char *job)
{
	int ready[2];
	char byte;
	ck_assert_int_eq(pipe2(ready, O_CLOEXEC), 0);
	pid_t pid = fork();
	if (pid == 0) {
		execl("/proc/self/exe", "gaccd", role, job, dir, NULL);
		_exit(1);
	}
	close(ready[1]);
	ck_assert_int_eq(read(ready[0], &byte, 1), 0); /* it has executed */
	close(ready[0]);
	return pid;
}

/* gaccd hears a message of another version that names this process. */
static void hear_of(pid_t pid)
{
	static const struct launch_proc_events events = { on_rank, on_summary, on_gone };
	struct launcher_args args = { .job_id = JOB, .uuid = UUID, .runtime_dir = dir };
	struct launch_word word = { .version = ANOTHER_VERSION, .kind = LAUNCH_WORD_SUMMARY, .pid = pid };
	struct launch_proc *p;
	ck_assert_int_eq(launch_proc_open(&loop, &args, false, &events, NULL, &p), ST_OK);
	int fd = accept(listener, NULL, NULL);
	ck_assert_int_eq(send(fd, &word, sizeof(word), 0), sizeof(word));
	while (!gone)
		uv_run(&loop, UV_RUN_ONCE);
	close(fd);
}

START_TEST(a_launcher_of_another_version_is_killed)
{
	int status;
	pid_t pid = start_process("--launcher", "7");
	hear_of(pid);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}
END_TEST

START_TEST(a_process_that_is_no_launcher_of_this_job_lives)
{
	static const char *const other[][2] = { { "--launcher", "70" }, { "--launcher", "8" }, { "--engine", "7" } };
	pid_t pid = start_process(other[_i][0], other[_i][1]);
	int status;
	hear_of(pid);
	kill(pid, SIGTERM); /* a SIGKILL that is on its way comes first */
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}
END_TEST

START_TEST(files_are_named_after_the_uuid)
{
	const struct launcher_args own = { .job_id = JOB, .uuid = UUID, .runtime_dir = "/r" },
				   other = { .job_id = JOB,
					     .uuid = "d5e15a60-9e46-49e2-090b-f59ce3da2a4b",
					     .runtime_dir = dir },
				   older = { .job_id = JOB, .uuid = "", .runtime_dir = "/r" };
	char path[200];
	ck_assert(launcher_socket_path(&own, path, sizeof(path)));
	ck_assert_str_eq(path, "/r/launch-7.d5e15a609e4649e1.sock");
	launcher_state_path(&own, path, sizeof(path));
	ck_assert_str_eq(path, "/r/launch-7.d5e15a609e4649e1.state");
	ck_assert(launcher_socket_path(&older, path, sizeof(path)));
	ck_assert_str_eq(path, "/r/launch-7.sock");
	ck_assert(!launcher_left_traces(&other)); /* dir has this job's socket */
	const struct launcher_args here = { .job_id = JOB, .uuid = UUID, .runtime_dir = dir };
	ck_assert(launcher_left_traces(&here));
}
END_TEST

static const struct {
	const char *name, *digits;
	bool file, socket;
} entries[] = { { "launch-7.d5e15a609e4649e1.sock", "d5e15a609e4649e1", true, true },
		{ "launch-7.d5e15a609e4649e1.state", "d5e15a609e4649e1", true, false },
		{ "launch-7.sock", "", true, true },
		{ "launch-7.state", "", true, false },
		{ "launch-7.d5e15a609e4649e1.state.new", "", false, false },
		{ "launch-7.d5e15a60.sock", "", false, false },
		{ "gaccd.sock", "", false, false },
		{ "launch-7", "", false, false } };

START_TEST(a_launchers_file_says_whose_it_is)
{
	uint64_t job = 0;
	char digits[LAUNCHER_DIGITS + 1] = "";
	bool socket = false;
	ck_assert_int_eq(launcher_is_file(entries[_i].name, &job, digits, &socket), entries[_i].file);
	if (!entries[_i].file)
		return;
	ck_assert_uint_eq(job, 7);
	ck_assert_str_eq(digits, entries[_i].digits);
	ck_assert_int_eq(socket, entries[_i].socket);
}
END_TEST

int main(int argc, char **argv)
{
	if (argc == 4)
		for (;;)
			pause();
	log_init("test", LOG_TEXT, LOG_ERROR);
	Suite *s = suite_create("proc");
	TCase *c = tcase_create("proc");
	tcase_add_checked_fixture(c, setup, teardown);
	suite_add_tcase(s, c);
	tcase_add_test(c, a_launcher_of_another_version_is_killed);
	tcase_add_loop_test(c, a_process_that_is_no_launcher_of_this_job_lives, 0, 3);
	tcase_add_test(c, files_are_named_after_the_uuid);
	tcase_add_loop_test(c, a_launchers_file_says_whose_it_is, 0, (int)(sizeof(entries) / sizeof(*entries)));
	return suite_run(s);
}
