/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns of tensors' names: they mean what fnmatch says, and cost what glob.h says. */
#include "control/glob.h"

#include "support/suite.h"

#include <check.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool matches(const char *pattern, const char *text)
{
	uint64_t steps = 0;
	struct glob *g = glob_new(pattern);
	bool yes = glob_match(g, text, &steps);
	glob_free(g);
	ck_assert_msg(steps <= (strlen(pattern) + 1) * (strlen(text) + 1), "%s, %s: %llu steps", pattern, text,
		      (unsigned long long)steps);
	return yes;
}

static void assert_as_fnmatch(const char *pattern, const char *text)
{
	bool want = !fnmatch(pattern, text, 0);
	ck_assert_msg(matches(pattern, text) == want, "\"%s\" %s \"%s\"", pattern,
		      want ? "must match" : "must not match", text);
}

START_TEST(patterns_mean_what_fnmatch_says)
{
	static const char *const patterns[] = {
		"",
		"*",
		"**",
		"?",
		"*.bias",
		"a*b*c",
		"[ab]",
		"[!ab]",
		"[^ab]",
		"[a-c]?",
		"[]a]",
		"[!]a]",
		"[a",
		"[",
		"[]",
		"[!",
		"a[",
		"*[",
		"\\*",
		"\\",
		"a\\",
		"[\\]]",
		"[a\\-c]",
		"[a-]",
		"[-a]",
		"[[:digit:]]",
		"[[:alpha:][:digit:]_]*",
		"[![:upper:]]",
		"x[[:nothing]",
		"*a",
		"a*",
		"*a*",
		"*a*a*a",
		"h*.[0-9]*.w?",
		"\\[a]",
		"?*?",
		"[z-a]",
		"*\\?",
	};
	static const char *const texts[] = { "",   "a",	  "b", "c",	  "ab",	 "abc", "aab", "]",	     "[",
					     "[a", "-",	  "*", "\\",	  "x:",	 "A",	"7",   "layer.bias", "h.3.w1",
					     "a]", "[a]", "é", "aXbXcXc", "aaa", "_9z", "a?" };
	for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++)
		for (size_t k = 0; k < sizeof(texts) / sizeof(texts[0]); k++)
			assert_as_fnmatch(patterns[i], texts[k]);
}
END_TEST

/* Few different characters, so that many pairs match. Not a - in a [ without its ], of which fnmatch has ideas of its
 * own. */
START_TEST(random_patterns_mean_what_fnmatch_says)
{
	static const char *const parts[] = { "a",    "b",   "*",   "?", "[ab]", "[!a]", "[a-c]",
					     "[]a]", "\\a", "\\*", "[", "]",	"*a",	"a*" };
	static const char in_text[] = "ab]-[";
	char pattern[64], text[10];
	srand(1);
	for (int i = 0; i < 200000; i++) {
		int n = rand() % 8, m = rand() % (int)sizeof(text);
		pattern[0] = '\0';
		for (int k = 0; k < n; k++)
			strcat(pattern, parts[(size_t)rand() % (sizeof(parts) / sizeof(parts[0]))]);
		for (int k = 0; k < m; k++)
			text[k] = in_text[(size_t)rand() % (sizeof(in_text) - 1)];
		text[m] = '\0';
		assert_as_fnmatch(pattern, text);
	}
}
END_TEST

/* What took fnmatch hours: the last character of the text is wrong. */
START_TEST(stars_cost_their_product_at_most)
{
	char pattern[256] = "", text[256] = "";
	for (int i = 0; i < 127; i++)
		strcat(pattern, "*a");
	memset(text, 'a', 254);
	text[254] = 'b';
	ck_assert(!matches(pattern, text));
	memset(pattern, '*', 255);
	pattern[255] = '\0';
	ck_assert(matches(pattern, text));
	strcpy(pattern, "*[");
	memset(pattern + 2, 'a', 250);
	strcpy(pattern + 252, "]c");
	ck_assert(!matches(pattern, text));
	pattern[252] = 'a'; /* without its ], each look goes to the end of the pattern in vain */
	ck_assert(!matches(pattern, text));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("glob");
	TCase *tc = tcase_create("glob");
	tcase_add_test(tc, patterns_mean_what_fnmatch_says);
	tcase_add_test(tc, random_patterns_mean_what_fnmatch_says);
	tcase_add_test(tc, stars_cost_their_product_at_most);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
