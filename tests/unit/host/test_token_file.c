/* SPDX-License-Identifier: Apache-2.0 */
/* Files with the token of TCP callers: what is read of them, and which are refused. */
#include "host/token_file.h"

#include "base/log.h"
#include "support/scratch.h"
#include "support/suite.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static char path[SCRATCH_PATH + 16], token[TOKEN_MAX];

static enum status read_of(const char *text, mode_t mode)
{
	char dir[SCRATCH_PATH];
	ck_assert(scratch_make(dir));
	snprintf(path, sizeof(path), "%s/token", dir);
	FILE *f = fopen(path, "we");
	ck_assert_ptr_nonnull(f);
	ck_assert_int_ge(fputs(text, f), 0);
	ck_assert_int_eq(fclose(f), 0);
	ck_assert_int_eq(chmod(path, mode), 0);
	memset(token, '?', sizeof(token));
	return token_file_read("listen.token_file", path, token);
}

START_TEST(the_token_is_the_first_line)
{
	static const char *const files[] = { "0123456789abcdef", "0123456789abcdef\n", "0123456789abcdef\r\nmore\n" };
	ck_assert_int_eq(read_of(files[_i], 0600), ST_OK);
	ck_assert_str_eq(token, "0123456789abcdef");
}
END_TEST

START_TEST(short_ones_are_refused)
{
	ck_assert_int_eq(read_of("0123456789abcde", 0600), ST_INVALID_CONFIG);
	ck_assert_int_eq(read_of("0123456789abcde\nfghijk", 0600), ST_INVALID_CONFIG);
	ck_assert_int_eq(read_of("", 0600), ST_INVALID_CONFIG);
}
END_TEST

START_TEST(one_that_others_may_read_is_refused)
{
	static const mode_t modes[] = { 0640, 0604, 0620, 0602, 0610, 0601 };
	ck_assert_int_eq(read_of("0123456789abcdef", modes[_i]), ST_INVALID_CONFIG);
	ck_assert_int_eq(read_of("0123456789abcdef", 0400), ST_OK);
}
END_TEST

START_TEST(one_that_is_not_there_is_refused)
{
	char dir[SCRATCH_PATH];
	ck_assert(scratch_make(dir));
	snprintf(path, sizeof(path), "%s/none", dir);
	ck_assert_int_eq(token_file_read("cluster.token_file", path, token), ST_INVALID_CONFIG);
	ck_assert_int_eq(token_file_read("cluster.token_file", dir, token), ST_INVALID_CONFIG); /* a folder */
}
END_TEST

START_TEST(a_long_one_has_its_end)
{
	char text[TOKEN_MAX + 50];
	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	ck_assert_int_eq(read_of(text, 0600), ST_OK);
	ck_assert_uint_eq(strlen(token), TOKEN_MAX - 1);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("token_file");
	TCase *t = tcase_create("token_file");
	suite_add_tcase(s, t);
	log_init("test", LOG_TEXT, LOG_ERROR);
	tcase_add_loop_test(t, the_token_is_the_first_line, 0, 3);
	tcase_add_test(t, short_ones_are_refused);
	tcase_add_loop_test(t, one_that_others_may_read_is_refused, 0, 6);
	tcase_add_test(t, one_that_is_not_there_is_refused);
	tcase_add_test(t, a_long_one_has_its_end);
	return suite_run(s);
}
