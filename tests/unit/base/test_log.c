/* SPDX-License-Identifier: Apache-2.0 */
/* Every line goes to stderr; a test puts a pipe there and reads what arrived. */
#include "base/log.h"

#include "support/suite.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int old_stderr, pipe_read;

static void capture(void)
{
	int p[2];
	ck_assert_int_eq(pipe2(p, O_CLOEXEC), 0);
	old_stderr = dup(STDERR_FILENO);
	dup2(p[1], STDERR_FILENO);
	close(p[1]);
	pipe_read = p[0];
}

static const char *captured(void)
{
	static char buf[65536];
	size_t n = 0;
	dup2(old_stderr, STDERR_FILENO);
	for (ssize_t r; (r = read(pipe_read, buf + n, sizeof(buf) - 1 - n)) > 0;)
		n += (size_t)r;
	buf[n] = 0;
	close(pipe_read);
	return buf;
}

static void assert_matches(const char *text, const char *pattern)
{
	regex_t re;
	ck_assert_int_eq(regcomp(&re, pattern, REG_EXTENDED | REG_NOSUB), 0);
	ck_assert_msg(regexec(&re, text, 0, NULL, 0) == 0, "\"%s\" does not match \"%s\"", text, pattern);
	regfree(&re);
}

#define TS "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3}Z"

START_TEST(text_line_has_fields_in_order)
{
	log_init("gaccd", LOG_TEXT, LOG_INFO);
	capture();
	log_line(LOG_WARN, (struct log_fields){ 7, 3, 12, "RankLate" }, "rank %d is late", 3);
	assert_matches(captured(), "^" TS " gaccd WARN RankLate job=7 rank=3 window=12: rank 3 is late\n$");
}
END_TEST

START_TEST(text_line_without_fields)
{
	log_init("engine 7", LOG_TEXT, LOG_INFO);
	capture();
	log_info("hello");
	assert_matches(captured(), "^" TS " engine 7 INFO: hello\n$");
}
END_TEST

START_TEST(rank_and_window_zero_are_set)
{
	log_init("gaccd", LOG_TEXT, LOG_INFO);
	capture();
	log_line(LOG_INFO, (struct log_fields){ 1, 0, 0, NULL }, "x");
	assert_matches(captured(), "INFO job=1 rank=0 window=0: x\n$");
}
END_TEST

START_TEST(json_line_is_one_object)
{
	log_init("gaccd", LOG_JSON, LOG_INFO);
	capture();
	log_line(LOG_ERROR, (struct log_fields){ 7, 3, 12, "RankLate" }, "a \"b\" \\ \n \xff ü");
	assert_matches(captured(),
		       "^\\{\"ts\":\"" TS "\",\"process\":\"gaccd\",\"level\":\"ERROR\",\"event\":\"RankLate\","
		       "\"msg\":\"a \\\\\"b\\\\\" \\\\\\\\ \\\\u000a \\\\ufffd ü\","
		       "\"job\":7,\"rank\":3,\"window\":12\\}\n$");
}
END_TEST

START_TEST(overlong_and_surrogate_bytes_are_no_utf8)
{
	log_init("gaccd", LOG_JSON, LOG_INFO);
	capture();
	log_info("\xc0\xaf \xe0\x80\xaf \xed\xa0\x80 \xf4\x90\x80\x80 \xe2\x82");
	const char *text = captured();
	for (const char *c = text; *c; c++)
		ck_assert_msg((unsigned char)*c < 0x80, "a byte of no UTF-8 sequence got through: %s", text);
}
END_TEST

START_TEST(a_message_cannot_forge_a_line)
{
	log_init("gaccd", LOG_TEXT, LOG_INFO);
	capture();
	log_info("name \"a\nb\x1b[31m\"");
	assert_matches(captured(), "^" TS " gaccd INFO: name \"a\\\\x0ab\\\\x1b\\[31m\"\n$");
}
END_TEST

START_TEST(format_characters_are_escaped)
{
	log_init("gaccd", _i ? LOG_JSON : LOG_TEXT, LOG_INFO);
	capture();
	log_info("name a\xe2\x80\xae"
		 "b\xc2\x9b"
		 "c");
	assert_matches(captured(), "name a\\\\u202eb\\\\u009bc");
}
END_TEST

START_TEST(level_filters)
{
	log_init("gaccd", LOG_TEXT, LOG_WARN);
	capture();
	log_info("hidden");
	log_warn("seen");
	log_init("gaccd", LOG_TEXT, LOG_DEBUG);
	log_debug("seen too");
	assert_matches(captured(), "^[^\n]*WARN: seen\n[^\n]*DEBUG: seen too\n$");
}
END_TEST

START_TEST(a_long_message_is_cut_with_dots)
{
	static char big[8000];
	memset(big, 1, sizeof(big) - 1); /* the worst case: every byte becomes six */
	log_init("gaccd", LOG_JSON, LOG_INFO);
	capture();
	log_info("%s", big);
	assert_matches(captured(), "\\\\u0001\\.\\.\\.\"\\}\n$");
}
END_TEST

START_TEST(errno_survives)
{
	log_init("gaccd", LOG_TEXT, LOG_INFO);
	capture();
	close(STDERR_FILENO);
	errno = ENOENT;
	log_info("nowhere to go");
	int e = errno;
	captured();
	ck_assert_int_eq(e, ENOENT);
}
END_TEST

static void *write_lines(void *arg)
{
	for (int i = 0; i < 200; i++)
		log_info("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
	return NULL;
}

START_TEST(lines_of_threads_do_not_mix)
{
	pthread_t t[3];
	log_init("gaccd", LOG_TEXT, LOG_INFO);
	capture();
	ck_assert_int_ge(fcntl(pipe_read, F_SETPIPE_SZ, 262144), 65536);
	for (int i = 0; i < 3; i++)
		pthread_create(&t[i], NULL, write_lines, NULL);
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
	assert_matches(captured(), "^(" TS " gaccd INFO: a{30}\n){600}$");
}
END_TEST

/* A pipe that nobody reads takes 64 KiB. */
START_TEST(who_does_not_read_holds_nobody_up)
{
	static char buf[1 << 20];
	char long_words[1500] = { 0 };
	memset(long_words, 'x', sizeof(long_words) - 1);
	log_init("gaccd", _i ? LOG_JSON : LOG_TEXT, LOG_INFO);
	capture();
	for (int i = 0; i < 2000; i++)
		log_info("%s %d", long_words, i);
	ssize_t n = read(pipe_read, buf, sizeof(buf) - 1);
	ck_assert_int_gt(n, 32768);
	log_info("here again");
	dup2(old_stderr, STDERR_FILENO);
	ck_assert_int_gt(read(pipe_read, buf, sizeof(buf) - 1), 0);
	assert_matches(strchr(buf, '\n') == buf ? buf + 1 : buf, "[0-9]+ lines of this log were lost: nobody read it");
	assert_matches(buf, "here again");
	close(pipe_read);
}
END_TEST

START_TEST(auto_format_is_text_unless_stderr_is_the_journal)
{
	char env[64];
	struct stat st;
	unsetenv("JOURNAL_STREAM");
	ck_assert_int_eq(log_auto_format(), LOG_TEXT);
	ck_assert_int_eq(fstat(STDERR_FILENO, &st), 0);
	snprintf(env, sizeof(env), "%llu:%llu", (unsigned long long)st.st_dev, (unsigned long long)st.st_ino);
	setenv("JOURNAL_STREAM", env, 1);
	ck_assert_int_eq(log_auto_format(), LOG_JOURNAL);
	setenv("JOURNAL_STREAM", "1:1", 1); /* inherited, but stderr was redirected since */
	ck_assert_int_eq(log_auto_format(), LOG_TEXT);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("log");
	TCase *c = tcase_create("log");
	suite_add_tcase(s, c);
	tcase_add_test(c, text_line_has_fields_in_order);
	tcase_add_test(c, text_line_without_fields);
	tcase_add_test(c, rank_and_window_zero_are_set);
	tcase_add_test(c, json_line_is_one_object);
	tcase_add_test(c, overlong_and_surrogate_bytes_are_no_utf8);
	tcase_add_test(c, a_message_cannot_forge_a_line);
	tcase_add_loop_test(c, format_characters_are_escaped, 0, 2);
	tcase_add_test(c, level_filters);
	tcase_add_test(c, a_long_message_is_cut_with_dots);
	tcase_add_test(c, errno_survives);
	tcase_add_test(c, lines_of_threads_do_not_mix);
	tcase_add_loop_test(c, who_does_not_read_holds_nobody_up, 0, 2);
	tcase_add_test(c, auto_format_is_text_unless_stderr_is_the_journal);
	return suite_run(s);
}
