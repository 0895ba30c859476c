/* SPDX-License-Identifier: Apache-2.0 */
/* The list of a job's checkpoints: pages of it by id, while ids are missing and checkpoints are deleted. */
#include "runtime/saved_list.h"

#include "support/suite.h"

#include <check.h>

static const uint8_t request_id[16] = { 1 };
static struct saved_list list;

static void add(uint64_t from, uint64_t to, uint64_t step)
{
	for (uint64_t id = from; id <= to; id += step)
		ck_assert_ptr_nonnull(saved_add(&list, id, request_id));
}

static void expect(uint64_t before_id, uint32_t limit, size_t n, uint64_t first, uint64_t last)
{
	size_t got, at = saved_page(&list, before_id, limit, &got);
	ck_assert_uint_eq(got, n);
	ck_assert_uint_le(at + got, list.n);
	if (n) {
		ck_assert_uint_eq(list.saved[at].id, first);
		ck_assert_uint_eq(list.saved[at + n - 1].id, last);
	}
}

START_TEST(pages_are_the_newest_below_an_id)
{
	expect(0, 0, 0, 0, 0);
	expect(5, 3, 0, 0, 0);
	add(10, 100, 10);
	expect(0, 0, 10, 10, 100);
	expect(0, 3, 3, 80, 100);
	expect(80, 3, 3, 50, 70);
	expect(50, 3, 3, 20, 40);
	expect(20, 3, 1, 10, 10);
	expect(10, 3, 0, 0, 0);
	expect(1, 3, 0, 0, 0);
	expect(UINT64_MAX, 1, 1, 100, 100);
	expect(55, 2, 2, 40, 50); /* of an id that has been deleted */
	saved_remove(&list, 50);
	expect(55, 2, 2, 30, 40);
}
END_TEST

START_TEST(a_page_has_a_bound_whatever_is_asked_for)
{
	add(1, SAVED_MAX_PAGE + 1, 1);
	expect(0, 0, SAVED_MAX_PAGE, 2, SAVED_MAX_PAGE + 1);
	expect(0, SAVED_MAX_PAGE - 1, SAVED_MAX_PAGE - 1, 3, SAVED_MAX_PAGE + 1);
	expect(0, UINT32_MAX, SAVED_MAX_PAGE, 2, SAVED_MAX_PAGE + 1);
	expect(2, UINT32_MAX, 1, 1, 1);
}
END_TEST

static void teardown(void)
{
	saved_fini(&list);
}

int main(void)
{
	Suite *s = suite_create("saved_list");
	TCase *c = tcase_create("saved_list");
	suite_add_tcase(s, c);
	tcase_add_checked_fixture(c, NULL, teardown);
	tcase_add_test(c, pages_are_the_newest_below_an_id);
	tcase_add_test(c, a_page_has_a_bound_whatever_is_asked_for);
	return suite_run(s);
}
