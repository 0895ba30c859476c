/* SPDX-License-Identifier: Apache-2.0 */
/* What may be shown of text that others have written, and what stands for the rest. */
#include "proto/utf8.h"

#include "support/suite.h"

#include <stdio.h>
#include <string.h>

static const char *escaped(const char *text, size_t n, enum utf8_style style)
{
	static char out[512];
	char escape[UTF8_ESCAPE_MAX];
	size_t used = 0;
	for (const char *end = text + n; text < end;) {
		size_t one = utf8_escape(text, end, style, escape);
		ck_assert_uint_ge(one, 1);
		used += (size_t)sprintf(out + used, "%.*s", *escape ? 99 : (int)one, *escape ? escape : text);
		text += one;
	}
	return out;
}

static const struct {
	const char *text, *shown, *json; /* NULL: as it is */
} row[] = {
	{ "plain ~ \"\\", NULL, NULL },
	/* a no-break space, joiners, an accent */
	{ "\xc2\xa0\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \xe2\x80\x8d \xe2\x80\x8c \xcc\x81", NULL, NULL },
	{ "\x1b[2J\r\n\t\x7f", "\\x1b[2J\\x0d\\x0a\\x09\\x7f", "\\u001b[2J\\u000d\\u000a\\u0009\\u007f" },
	{ "\xc2\x80-\xc2\x9b-\xc2\x9f", "\\u0080-\\u009b-\\u009f", "\\u0080-\\u009b-\\u009f" }, /* C1: CSI and others */
	{ "\xe2\x80\xaa\xe2\x80\xae", "\\u202a\\u202e", "\\u202a\\u202e" }, /* embeddings and overrides */
	{ "\xe2\x81\xa6\xe2\x81\xa9", "\\u2066\\u2069", "\\u2066\\u2069" }, /* isolates */
	{ "\xe2\x80\x8e\xe2\x80\x8f\xd8\x9c", "\\u200e\\u200f\\u061c", "\\u200e\\u200f\\u061c" }, /* marks */
	{ "\xe2\x80\xa8\xe2\x80\xa9\xef\xbb\xbf", "\\u2028\\u2029\\ufeff", "\\u2028\\u2029\\ufeff" },
	{ "\xf3\xa0\x80\x81\xf3\xa0\x81\xbf", "\\U000e0001\\U000e007f", "\\udb40\\udc01\\udb40\\udc7f" }, /* tags */
	{ "\xff\xc3", "\\xff\\xc3", "\\ufffd\\ufffd" },
	{ "\xe2\x80", "\\xe2\\x80", "\\ufffd\\ufffd" }, /* cut */
};

START_TEST(what_acts_is_escaped)
{
	const char *text = row[_i].text;
	ck_assert_str_eq(escaped(text, strlen(text), UTF8_TEXT), row[_i].shown ? row[_i].shown : text);
	ck_assert_str_eq(escaped(text, strlen(text), UTF8_JSON), row[_i].json ? row[_i].json : text);
}
END_TEST

START_TEST(a_nul_is_a_character)
{
	ck_assert_str_eq(escaped("a\0b", 3, UTF8_TEXT), "a\\x00b");
}
END_TEST

int main(void)
{
	Suite *s = suite_create("utf8");
	TCase *c = tcase_create("utf8");
	suite_add_tcase(s, c);
	tcase_add_loop_test(c, what_acts_is_escaped, 0, sizeof(row) / sizeof(*row));
	tcase_add_test(c, a_nul_is_a_character);
	return suite_run(s);
}
