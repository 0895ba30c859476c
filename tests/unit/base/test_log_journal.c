/* SPDX-License-Identifier: Apache-2.0 */
/* Lines to systemd's journal. Its socket has a fixed path, so this program has a /run of its own. Where no user may
 * have that, the test counts as skipped; root may.
 */
#include "base/log.h"

#include "support/suite.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define SKIPPED 77

static int own_run(void)
{
	if (unshare(CLONE_NEWNS) && unshare(CLONE_NEWUSER | CLONE_NEWNS))
		return -1;
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return -1;
	return mount("tmpfs", "/run", "tmpfs", 0, NULL);
}

static int text; /* what stderr is during a test */

static void capture(void)
{
	text = memfd_create("stderr", MFD_CLOEXEC);
	ck_assert_int_ge(dup2(text, STDERR_FILENO), 0);
}

static const char *captured(void)
{
	static char line[4096];
	ssize_t n = pread(text, line, sizeof(line) - 1, 0);
	ck_assert_int_ge(n, 0);
	line[n] = 0;
	return line;
}

START_TEST(without_a_journal_lines_are_text)
{
	capture();
	log_init("gaccd", LOG_JOURNAL, LOG_INFO);
	log_info("text");
	ck_assert_msg(strstr(captured(), "gaccd INFO: text\n") != NULL, "%s", captured());
}
END_TEST

START_TEST(the_journal_gets_fields)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX, .sun_path = "/run/systemd/journal/socket" };
	char got[4096] = "";
	mkdir("/run/systemd", 0755);
	mkdir("/run/systemd/journal", 0755);
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	capture();
	log_init("gaccd", LOG_JOURNAL, LOG_INFO);
	log_line(LOG_WARN, (struct log_fields){ 7, 3, 12, "RankLate" }, "late");
	ssize_t n = recv(fd, got, sizeof(got) - 1, 0);
#ifdef GACC_SYSTEMD
	static const char *const want[] = { "MESSAGE=late\n",	     "PRIORITY=4\n", "SYSLOG_IDENTIFIER=gaccd\n",
					    "GACC_EVENT=RankLate\n", "GACC_JOB=7\n", "GACC_RANK=3\n",
					    "GACC_WINDOW=12\n" };
	ck_assert_str_eq(captured(), "");
	ck_assert_int_gt(n, 0);
	for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++)
		ck_assert_msg(strstr(got, want[i]) != NULL, "no %s in %s", want[i], got);
#else
	ck_assert_int_lt(n, 0);
	ck_assert_msg(strstr(captured(), "gaccd WARN RankLate job=7 rank=3 window=12: late\n") != NULL, "%s",
		      captured());
#endif
}
END_TEST

int main(void)
{
	if (own_run()) {
		fprintf(stderr, "no /run of our own: %s\n", strerror(errno));
		return geteuid() ? SKIPPED : 1;
	}
	Suite *s = suite_create("log_journal");
	TCase *c = tcase_create("journal");
	suite_add_tcase(s, c);
	tcase_add_test(c, without_a_journal_lines_are_text);
	tcase_add_test(c, the_journal_gets_fields);
	return suite_run(s);
}
