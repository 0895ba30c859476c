/* SPDX-License-Identifier: Apache-2.0 */
/* A record of two halves: whole or not at all, whatever byte of it is damaged and wherever its writer stops. */
#include "base/halves.h"

#include <check.h>
#include <string.h>

enum { BYTES = 64 };

static uint64_t page[2 * BYTES / 8];
static const struct halves h = { (unsigned char *)page, BYTES };

static void fill(unsigned char *image, int with)
{
	memset(image, with, BYTES);
}

static void publish(uint64_t number, int with)
{
	unsigned char image[BYTES];
	fill(image, with);
	halves_publish(&h, image, number);
}

/* A valid record in this half that says only `with`. */
static bool says(unsigned half, int with)
{
	unsigned char image[BYTES], wanted[BYTES];
	fill(wanted, with);
	return halves_copy(&h, image, half) && !memcmp(image + 8, wanted + 8, BYTES - 16);
}

static void begin(void)
{
	memset(page, 0, sizeof(page));
}

START_TEST(nothing_is_there_at_first)
{
	unsigned char image[BYTES];
	ck_assert(!halves_copy(&h, image, 0) && !halves_copy(&h, image, 1));
	ck_assert_uint_eq(halves_number(&h, 0) + halves_number(&h, 1), 0);
}
END_TEST

START_TEST(a_record_leaves_the_one_before)
{
	publish(1, 11);
	publish(2, 22);
	ck_assert(says(1, 11) && says(0, 22));
	publish(3, 33);
	ck_assert(says(1, 33) && says(0, 22));
	ck_assert(halves_number(&h, 1) == 3 && halves_number(&h, 0) == 2);
}
END_TEST

START_TEST(any_damaged_bit_is_seen)
{
	unsigned char image[BYTES];
	publish(1, 11);
	unsigned char *at = (unsigned char *)page + BYTES;
	for (unsigned i = 0; i < 8 * BYTES; i++) {
		at[i / 8] ^= (unsigned char)(1u << i % 8);
		ck_assert_msg(!halves_copy(&h, image, 1), "bit %u", i);
		at[i / 8] ^= (unsigned char)(1u << i % 8);
	}
	ck_assert(says(1, 11));
}
END_TEST

/* The writer has died before it stored the number: the half still has the number of the record before the last. */
START_TEST(what_has_no_number_yet_is_not_valid)
{
	unsigned char image[BYTES];
	publish(1, 11);
	publish(2, 22);
	publish(3, 33);
	page[BYTES / 8] = 1;
	ck_assert(!halves_copy(&h, image, 1));
	ck_assert(says(0, 22));
}
END_TEST

/* A whole record in the half of the other numbers was never published there. */
START_TEST(a_record_belongs_to_its_half)
{
	unsigned char image[BYTES];
	publish(1, 11);
	memcpy(page, (unsigned char *)page + BYTES, BYTES);
	ck_assert(!halves_copy(&h, image, 0));
}
END_TEST

int main(void)
{
	Suite *s = suite_create("halves");
	TCase *t = tcase_create("halves");
	tcase_add_checked_fixture(t, begin, NULL);
	tcase_add_test(t, nothing_is_there_at_first);
	tcase_add_test(t, a_record_leaves_the_one_before);
	tcase_add_test(t, any_damaged_bit_is_seen);
	tcase_add_test(t, what_has_no_number_yet_is_not_valid);
	tcase_add_test(t, a_record_belongs_to_its_half);
	suite_add_tcase(s, t);
	SRunner *r = srunner_create(s);
	srunner_run_all(r, CK_ENV);
	int failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? 1 : 0;
}
