/* The protocol's bytes, against a service manager that is a socket of the test. */
#include "host/fdstore.h"

#include "support/scratch.h"
#include "support/suite.h"

#include <check.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static char dir[SCRATCH_PATH], address[80];
static int manager;
static struct fdstore *store;
static struct fdstore_fd *fds;
static size_t n_fds;

static void setup(void)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	ck_assert(scratch_make(dir));
	snprintf(address, sizeof address, "%s/notify", dir);
	strcpy(at.sun_path, address);
	manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	ck_assert_int_eq(bind(manager, (struct sockaddr *)&at, sizeof at), 0);
	setenv("NOTIFY_SOCKET", address, 1);
}

static void teardown(void)
{
	fdstore_close(store);
	free(fds);
	close(manager);
	unlink(address);
	rmdir(dir);
}

static void open_store(void)
{
	ck_assert_int_eq(fdstore_open(&store, &fds, &n_fds), ST_OK);
}

/* The next message; *fd is -1 if it carries none. */
static const char *message(int *fd)
{
	static char text[1024];
	char control[CMSG_SPACE(sizeof(int))];
	struct iovec iov = { text, sizeof text - 1 };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
	ssize_t n = recvmsg(manager, &m, 0);
	struct cmsghdr *c = n >= 0 ? CMSG_FIRSTHDR(&m) : NULL;
	*fd = -1;
	if (c)
		memcpy(fd, CMSG_DATA(c), sizeof *fd);
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

START_TEST(put_sends_the_descriptor)
{
	int fd, mem = memfd_create("x", MFD_CLOEXEC);
	char got[8] = "";
	open_store();
	ck_assert_int_eq(pwrite(mem, "content", 7, 0), 7);
	ck_assert_int_eq(fdstore_put(store, "j7.accum.0.1", mem), ST_OK);
	ck_assert_str_eq(message(&fd), "FDSTORE=1\nFDNAME=j7.accum.0.1\nFDPOLL=0\n");
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(pread(fd, got, 7, 0), 7);
	ck_assert_str_eq(got, "content");
	ck_assert_int_eq(fdstore_put(store, "a:b", mem), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(fdstore_put(store, "a\nREADY=1", mem), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(fdstore_put(store, "", mem), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(fdstore_remove(store, "a\nb"), ST_INVALID_ARGUMENT);
	ck_assert_str_eq(message(&fd), "");
	close(mem);
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

START_TEST(a_barrier_waits_for_the_manager)
{
	int end, fd;
	open_store();
	ck_assert_int_eq(fdstore_barrier(store, &end), ST_OK);
	struct pollfd p = { end, POLLIN, 0 };
	ck_assert_int_eq(poll(&p, 1, 0), 0);
	ck_assert_str_eq(message(&fd), "BARRIER=1");
	ck_assert_int_eq(poll(&p, 1, 0), 0);
	close(fd);
	ck_assert_int_eq(poll(&p, 1, 0), 1);
	close(end);
}
END_TEST

START_TEST(children_do_not_speak_for_us)
{
	char pid[16];
	snprintf(pid, sizeof pid, "%d", (int)getpid());
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
	int end = -1;
	unsetenv("NOTIFY_SOCKET");
	open_store();
	ck_assert(!fdstore_active(store));
	ck_assert_int_eq(fdstore_ready(store), ST_OK);
	ck_assert_int_eq(fdstore_put(store, "a", 0), ST_UNAVAILABLE);
	ck_assert_int_eq(fdstore_remove(store, "a"), ST_OK);
	ck_assert_int_eq(fdstore_barrier(store, &end), ST_UNAVAILABLE);
	ck_assert_int_eq(end, -1);
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
	snprintf(pid, sizeof pid, "%d", (int)getpid());
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
	tcase_add_test(c, put_sends_the_descriptor);
	tcase_add_test(c, the_manager_says_how_many_it_keeps);
	tcase_add_test(c, a_barrier_waits_for_the_manager);
	tcase_add_test(c, children_do_not_speak_for_us);
	tcase_add_test(c, what_is_meant_for_another_process_is_not_taken);
	tcase_add_test(c, without_a_manager_nothing_is_kept);
	tcase_add_test(c, a_manager_that_is_gone_is_an_error);
	tcase_add_exit_test(child, inherited_descriptors_have_their_names, 0);
	return suite_run(s);
}
