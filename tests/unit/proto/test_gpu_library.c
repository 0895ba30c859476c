/* SPDX-License-Identifier: Apache-2.0 */
/* Loading libraries at run time, tried with those of libc. */
#include "proto/gpu_library.h"

#include "support/suite.h"

#include <check.h>
#include <string.h>

struct table {
	void *untouched;
	int (*compare)(const char *, const char *);
	size_t (*length)(const char *);
};

static const struct gpu_symbol there[] = {
	{ "strcmp", offsetof(struct table, compare) },
	{ "strlen", offsetof(struct table, length) },
};

START_TEST(functions_are_found)
{
	struct table table = { &table, NULL, NULL };
	const char *missing = "";
	ck_assert(gpu_library_load("libc.so.6", there, 2, &table, &missing));
	ck_assert_ptr_null(missing);
	ck_assert_ptr_eq(table.untouched, &table);
	ck_assert_uint_eq(table.length("abc"), 3);
	ck_assert_int_eq(table.compare("a", "a"), 0);
}
END_TEST

START_TEST(a_symbol_that_is_missing_is_named)
{
	static const struct gpu_symbol symbols[] = { { "strcmp", offsetof(struct table, compare) },
						     { "strlen_v9", offsetof(struct table, length) } };
	struct table table = { 0 };
	const char *missing;
	ck_assert(!gpu_library_load("libc.so.6", symbols, 2, &table, &missing));
	ck_assert_str_eq(missing, "strlen_v9");
	ck_assert_ptr_null(table.compare);
}
END_TEST

START_TEST(a_library_that_is_missing)
{
	struct table table = { 0 };
	const char *missing = "";
	ck_assert(!gpu_library_load("libnowhere.so.1", there, 2, &table, &missing));
	ck_assert_ptr_null(missing);
	ck_assert_ptr_null(table.compare);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("gpu_library");
	TCase *t = tcase_create("gpu_library");
	tcase_add_test(t, functions_are_found);
	tcase_add_test(t, a_symbol_that_is_missing_is_named);
	tcase_add_test(t, a_library_that_is_missing);
	suite_add_tcase(s, t);
	return suite_run(s);
}
