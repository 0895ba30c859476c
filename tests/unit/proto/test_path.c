/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/path.h"

#include "support/suite.h"

#include <check.h>
#include <stdlib.h>

START_TEST(ids_and_names_are_put_in)
{
	static const struct {
		const char *pattern, *name, *path;
	} cases[] = {
		{ "", "mlp", "" },
		{ "/logs/%j-%x", "mlp", "/logs/42-mlp" },
		{ "/logs/%j-%u", "mlp", "/logs/42-00010203-0405-0607-0809-0a0b0c0d0eff" },
		{ "/logs/100%%/%q%", "mlp", "/logs/100%/%q%" },
		{ "/logs/%x", "%j", "/logs/%j" },
		/* a name is no way to another place */
		{ "/logs/%x/log", "../../etc", "/logs/_._.._etc/log" },
		{ "/logs/%x", "..", "/logs/_." },
		{ "/logs/%x", "a/b.c", "/logs/a_b.c" },
	};
	static const uint8_t uuid[16] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255 };
	char text[UUID_TEXT];
	uuid_text(uuid, text);
	char *path = path_expand(cases[_i].pattern, 42, cases[_i].name, text);
	ck_assert_pstr_eq(path, cases[_i].path);
	free(path);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("path");
	TCase *t = tcase_create("path");
	tcase_add_loop_test(t, ids_and_names_are_put_in, 0, 8);
	suite_add_tcase(s, t);
	return suite_run(s);
}
