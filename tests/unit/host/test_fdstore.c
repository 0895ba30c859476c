/* SPDX-License-Identifier: Apache-2.0 */
/* The protocol's bytes, and what happens when they are not read, against a service manager that is a socket of the
 * test. */
#include "host/fdstore.h"

#include "support/scratch.h"
#include "support/suite.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

static char dir[SCRATCH_PATH], address[80];
static int manager;
static struct fdstore *store;
static struct fdstore_fd *fds;
static size_t n_fds;
static uv_loop_t loop;

static void setup(void)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	ck_assert(scratch_make(dir));
	snprintf(address, sizeof(address), "%s/notify", dir);
	strcpy(at.sun_path, address);
	manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	ck_assert_int_eq(bind(manager, (struct sockaddr *)&at, sizeof(at)), 0);
	setenv("NOTIFY_SOCKET", address, 1);
	ck_assert_int_eq(uv_loop_init(&loop), 0);
}

static void teardown(void)
{
	fdstore_close(store);
	uv_run(&loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(uv_loop_close(&loop), 0);
	free(fds);
	close(manager);
	unlink(address);
	rmdir(dir);
}

static void open_store(void)
{
	ck_assert_int_eq(fdstore_open(&store, &fds, &n_fds), ST_OK);
	ck_assert_int_eq(fdstore_start(store, &loop), ST_OK);
}

/* One turn of gaccd's loop, which waits for nothing. */
static void turn(void)
{
	for (int i = 0; i < 3; i++)
		uv_run(&loop, UV_RUN_NOWAIT);
}

static char story[256]; /* "a0": request "a" was answered with status 0 */

static void on_kept(void *arg, enum status st)
{
	size_t n = strlen(story);
	snprintf(story + n, sizeof(story) - n, "%s%s%d", n ? " " : "", (const char *)arg, (int)st);
}

/* n duplicates of fd as NAME.0, NAME.1, .. */
static struct fdstore_request *begin_to_keep(const char *name, int fd, size_t n)
{
	static struct fdstore_request *request[8];
	static int used;
	struct fdstore_fd *item = calloc(n, sizeof(*item));
	for (size_t i = 0; i < n; i++) {
		snprintf(item[i].name, sizeof(item[i].name), "%s.%zu", name, i);
		item[i].fd = fd;
	}
	struct fdstore_request **handle = &request[used++ % 8];
	fdstore_keep(store, item, n, on_kept, (void *)(uintptr_t)name, handle);
	return *handle;
}

/* The next message; *fd is -1 if it carries none. */
static const char *message(int *fd)
{
	static char text[1024];
	char control[CMSG_SPACE(sizeof(int))];
	struct iovec iov = { text, sizeof(text) - 1 };
	struct msghdr m = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)
	};
	ssize_t n = recvmsg(manager, &m, 0);
	struct cmsghdr *c = n >= 0 ? CMSG_FIRSTHDR(&m) : NULL;
	*fd = -1;
	if (c)
		memcpy(fd, CMSG_DATA(c), sizeof(*fd));
	text[n > 0 ? n : 0] = 0;
	return text;
}

START_TEST(messages_are_those_of_sd_notify)
{
	int fd;
	open_store();
	ck_assert(fdstore_active(store));
	ck_assert_int_eq(fdstore_ready(store), ST_OK);
	ck_assert_str_eq(message(&fd), "READY=1\n");
	ck_assert_int_eq(fdstore_watchdog(store), ST_OK);
	ck_assert_str_eq(message(&fd), "WATCHDOG=1\n");
	ck_assert_int_eq(fdstore_stopping(store), ST_OK);
	ck_assert_str_eq(message(&fd), "STOPPING=1\n");
	ck_assert_int_eq(fdstore_remove(store, "j7.slot.3.1"), ST_OK);
	ck_assert_str_eq(message(&fd), "FDSTOREREMOVE=1\nFDNAME=j7.slot.3.1\n");
	ck_assert_int_eq(fd, -1);
}
END_TEST

/* A start may take long: the manager's limit is put off, once a second. */
START_TEST(a_start_that_gets_on_is_not_ended)
{
	int fd;
	open_store();
	for (int64_t now_ns = 5; now_ns < INT64_C(3000000000); now_ns += 400000000) {
		fdstore_starting(store, now_ns);
		bool due = now_ns == 5 || now_ns == 1200000005 || now_ns == 2400000005;
		ck_assert_str_eq(message(&fd), due ? "EXTEND_TIMEOUT_USEC=60000000\n" : "");
	}
}
END_TEST

/* Reads all there is; counts descriptors of FDSTORE, answers barriers, notes removals. */
static struct {
	int stored, removed, barriers, watchdogs;
	char last[64];
} seen;

static void read_all(void)
{
	int fd;
	for (const char *text = message(&fd); *text; text = message(&fd)) {
		seen.stored += !strncmp(text, "FDSTORE=1", 9);
		seen.removed += !strncmp(text, "FDSTOREREMOVE=1", 15);
		seen.barriers += !strcmp(text, "BARRIER=1");
		seen.watchdogs += !strcmp(text, "WATCHDOG=1\n");
		snprintf(seen.last, sizeof(seen.last), "%.63s", text);
		if (fd >= 0)
			close(fd);
	}
	turn();
}

START_TEST(a_request_sends_descriptors_and_waits_for_the_manager)
{
	int fd, end, mem = memfd_create("x", MFD_CLOEXEC);
	char got[8] = "";
	open_store();
	ck_assert_int_eq(pwrite(mem, "content", 7, 0), 7);
	begin_to_keep("j7.accum", mem, 1);
	ck_assert_str_eq(message(&fd), "FDSTORE=1\nFDNAME=j7.accum.0\nFDPOLL=0\n");
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(pread(fd, got, 7, 0), 7);
	ck_assert_str_eq(got, "content");
	close(fd);
	ck_assert_str_eq(message(&end), "BARRIER=1");
	turn();
	ck_assert_str_eq(story, "");
	close(end);
	turn();
	ck_assert_str_eq(story, "j7.accum0");
	ck_assert_str_eq(message(&fd), "");
	close(mem);
}
END_TEST

START_TEST(names_are_checked)
{
	static const char *const wrong[] = { "a:b", "a\nREADY=1", "" };
	int fd;
	open_store();
	for (size_t i = 0; i < 3; i++) {
		struct fdstore_request *request = NULL;
		struct fdstore_fd *item = calloc(1, sizeof(*item));
		strcpy(item->name, wrong[i]);
		fdstore_keep(store, item, 1, on_kept, (void *)(uintptr_t) "w", &request);
		ck_assert_ptr_null(request);
	}
	ck_assert_int_eq(fdstore_remove(store, "a\nb"), ST_INVALID_ARGUMENT);
	char want[32];
	snprintf(want, sizeof(want), "w%d w%d w%d", ST_INVALID_ARGUMENT, ST_INVALID_ARGUMENT, ST_INVALID_ARGUMENT);
	ck_assert_str_eq(story, want);
	ck_assert_str_eq(message(&fd), "");
}
END_TEST

/* Linux counts descriptors in flight together for all of a user's processes: a large job must not use them up, however
 * slow the manager is. */
START_TEST(few_descriptors_are_in_flight_at_a_time)
{
	open_store();
	begin_to_keep("big", 0, 2 * FDSTORE_IN_FLIGHT + 1);
	begin_to_keep("next", 0, 1);
	for (int want = FDSTORE_IN_FLIGHT; want < 2 * FDSTORE_IN_FLIGHT + 1;) {
		read_all();
		if (seen.stored == want) { /* the socket has room for fewer messages (net.unix.max_dgram_qlen) */
			ck_assert_int_eq(seen.barriers, want / FDSTORE_IN_FLIGHT);
			want += FDSTORE_IN_FLIGHT;
		}
		ck_assert_str_eq(story, "");
	}
	while (!*story)
		read_all();
	ck_assert_str_eq(story, "big0");
	while (seen.stored < 2 * FDSTORE_IN_FLIGHT + 2 || seen.barriers < 4)
		read_all();
	ck_assert_str_eq(story, "big0 next0");
}
END_TEST

/* Fills the manager's socket; how many messages it took. */
static int fill(void)
{
	int n = 0;
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	strcpy(at.sun_path, address);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	while (send(fd, "X", 1, 0) == 1)
		n++;
	close(fd);
	return n;
}

static int64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

START_TEST(a_manager_that_does_not_read_blocks_nothing)
{
	open_store();
	ck_assert_int_gt(fill(), 0);
	int64_t before = now_ns();
	for (int i = 0; i < 100; i++) {
		ck_assert_int_eq(fdstore_watchdog(store), ST_OK);
		ck_assert_int_eq(fdstore_remove(store, "old"), ST_OK);
		turn();
	}
	begin_to_keep("a", 0, 2);
	begin_to_keep("b", 0, 1);
	turn();
	ck_assert_int_lt(now_ns() - before, 500000000); /* one that waited waited for a second */
	ck_assert_str_eq(story, "");
	while (!strstr(story, "b0"))
		read_all();
	ck_assert_str_eq(story, "a0 b0");
	ck_assert_int_eq(seen.removed, 100);
	ck_assert_int_eq(seen.stored, 3);
	ck_assert_int_ge(seen.watchdogs, 1);
	ck_assert_int_le(seen.watchdogs, 3); /* those that waited are one */
}
END_TEST

START_TEST(a_request_that_is_cancelled)
{
	open_store();
	struct fdstore_request *a = begin_to_keep("a", 0, FDSTORE_IN_FLIGHT + 1), *b = begin_to_keep("b", 0, 1);
	begin_to_keep("c", 0, 1);
	fdstore_cancel(b);
	fdstore_cancel(a); /* some of it is on its way, which the manager must read before anything follows */
	fdstore_cancel(NULL);
	while (!*story) {
		read_all();
		ck_assert(seen.stored <= FDSTORE_IN_FLIGHT || seen.barriers > 0);
	}
	read_all();
	ck_assert_str_eq(story, "c0");
	ck_assert_int_eq(seen.stored, seen.removed + 1); /* what came of a was taken away, nothing came of b */
	ck_assert_int_gt(seen.removed, 0);
	ck_assert_int_le(seen.removed, FDSTORE_IN_FLIGHT);
}
END_TEST

START_TEST(closing_forgets_what_waits)
{
	open_store();
	begin_to_keep("a", 0, 3); /* teardown looks for what is left in the loop */
	begin_to_keep("b", 0, 3);
	ck_assert_int_gt(fill() + 1, 0);
	fdstore_ready(store);
}
END_TEST

START_TEST(the_manager_says_how_many_it_keeps)
{
	setenv("FDSTORE", "512", 1);
	open_store();
	ck_assert_uint_eq(fdstore_room(store), 512);
	ck_assert_ptr_null(getenv("FDSTORE"));
	fdstore_close(store);
	open_store();
	ck_assert_uint_eq(fdstore_room(store), UINT64_MAX); /* systemd before 254 */
	fdstore_close(store);
	unsetenv("NOTIFY_SOCKET");
	setenv("FDSTORE", "512", 1);
	open_store();
	ck_assert_uint_eq(fdstore_room(store), UINT64_MAX);
}
END_TEST

START_TEST(children_do_not_speak_for_us)
{
	char pid[16];
	snprintf(pid, sizeof(pid), "%d", (int)getpid());
	setenv("WATCHDOG_USEC", "30000000", 1);
	setenv("WATCHDOG_PID", pid, 1);
	open_store();
	ck_assert_uint_eq(fdstore_watchdog_us(store), 30000000);
	ck_assert_ptr_null(getenv("NOTIFY_SOCKET"));
	ck_assert_ptr_null(getenv("WATCHDOG_USEC"));
}
END_TEST

START_TEST(what_is_meant_for_another_process_is_not_taken)
{
	setenv("WATCHDOG_USEC", "30000000", 1);
	setenv("WATCHDOG_PID", "1", 1);
	setenv("LISTEN_FDS", "1", 1);
	setenv("LISTEN_PID", "1", 1);
	setenv("LISTEN_FDNAMES", "j1.slot.0.1", 1);
	open_store();
	ck_assert_uint_eq(fdstore_watchdog_us(store), 0);
	ck_assert_uint_eq(n_fds, 0);
	ck_assert_ptr_null(getenv("LISTEN_FDS"));
}
END_TEST

START_TEST(without_a_manager_nothing_is_kept)
{
	unsetenv("NOTIFY_SOCKET");
	open_store();
	ck_assert(!fdstore_active(store));
	ck_assert_int_eq(fdstore_ready(store), ST_OK);
	ck_assert_int_eq(fdstore_remove(store, "a"), ST_OK);
	char want[16];
	snprintf(want, sizeof(want), "a%d", ST_UNAVAILABLE);
	ck_assert_ptr_null(begin_to_keep("a", 0, 1));
	ck_assert_str_eq(story, want);
}
END_TEST

START_TEST(a_manager_that_is_gone_is_an_error)
{
	struct fdstore *none = NULL;
	open_store();
	close(manager);
	ck_assert_int_eq(fdstore_ready(store), ST_UNAVAILABLE);
	setenv("NOTIFY_SOCKET", address, 1);
	ck_assert_int_eq(fdstore_open(&none, &fds, &n_fds), ST_UNAVAILABLE);
	setenv("NOTIFY_SOCKET", "relative", 1);
	ck_assert_int_eq(fdstore_open(&none, &fds, &n_fds), ST_INVALID_CONFIG);
	ck_assert_ptr_null(none);
}
END_TEST

/* Numbers from 3 on belong to the test runner, so a child takes them. */
static void inherit_in_child(void)
{
	char pid[16], got[2] = "";
	for (int fd = 3; fd <= 5; fd++) {
		int mem = memfd_create("m", MFD_CLOEXEC);
		if (pwrite(mem, &"abc"[fd - 3], 1, 0) != 1 || (mem != fd && dup2(mem, fd) != fd))
			_exit(1);
	}
	snprintf(pid, sizeof(pid), "%d", (int)getpid());
	unsetenv("NOTIFY_SOCKET");
	setenv("LISTEN_PID", pid, 1);
	setenv("LISTEN_FDS", "3", 1);
	setenv("LISTEN_FDNAMES", "j1.slot.0.1:stored by/another:j1.slot.1.1", 1);
	if (fdstore_open(&store, &fds, &n_fds) || n_fds != 2)
		_exit(2);
	if (strcmp(fds[0].name, "j1.slot.0.1") != 0 || strcmp(fds[1].name, "j1.slot.1.1") != 0)
		_exit(3);
	if (pread(fds[1].fd, got, 1, 0) != 1 || strcmp(got, "c") != 0 || fcntl(4, F_GETFD) != -1)
		_exit(4);
	_exit(fcntl(fds[0].fd, F_GETFD) == FD_CLOEXEC && !getenv("LISTEN_FDS") ? 0 : 5);
}

START_TEST(inherited_descriptors_have_their_names)
{
	inherit_in_child();
}
END_TEST

int main(void)
{
	Suite *s = suite_create("fdstore");
	TCase *c = tcase_create("fdstore"), *child = tcase_create("inherit");
	tcase_add_checked_fixture(c, setup, teardown);
	suite_add_tcase(s, c);
	suite_add_tcase(s, child);
	tcase_add_test(c, messages_are_those_of_sd_notify);
	tcase_add_test(c, a_start_that_gets_on_is_not_ended);
	tcase_add_test(c, a_request_sends_descriptors_and_waits_for_the_manager);
	tcase_add_test(c, names_are_checked);
	tcase_add_test(c, few_descriptors_are_in_flight_at_a_time);
	tcase_add_test(c, a_manager_that_does_not_read_blocks_nothing);
	tcase_add_test(c, a_request_that_is_cancelled);
	tcase_add_test(c, closing_forgets_what_waits);
	tcase_add_test(c, the_manager_says_how_many_it_keeps);
	tcase_add_test(c, children_do_not_speak_for_us);
	tcase_add_test(c, what_is_meant_for_another_process_is_not_taken);
	tcase_add_test(c, without_a_manager_nothing_is_kept);
	tcase_add_test(c, a_manager_that_is_gone_is_an_error);
	tcase_add_exit_test(child, inherited_descriptors_have_their_names, 0);
	return suite_run(s);
}
