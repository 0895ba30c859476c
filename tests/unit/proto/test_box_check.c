/* SPDX-License-Identifier: Apache-2.0 */
/* The check of mailbox cells is zlib's CRC-32, whatever computes it. */
#include "proto/box_check.h"

#include "support/suite.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define MOST 300 /* bytes: beyond every part of a mailbox that has a check */

static unsigned char bytes[MOST + 16];

static void fill(uint64_t seed)
{
	for (size_t i = 0; i < sizeof(bytes); i++) {
		seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		bytes[i] = (unsigned char)(seed >> 56);
	}
}

static void expect_zlibs(size_t at, size_t n)
{
	uint32_t zlibs = (uint32_t)crc32(0, bytes + at, (uInt)n);
	ck_assert_msg(box_check(bytes + at, n) == zlibs, "%zu bytes from %zu", n, at);
}

START_TEST(any_bytes_of_any_length)
{
	for (uint64_t seed = 0; seed < 50; seed++) {
		fill(seed);
		for (size_t n = 0; n <= MOST; n++)
			expect_zlibs(seed % 16, n);
	}
}
END_TEST

/* Each bit counts, in the request (124 bytes), the answer (60) and the step block (188). */
START_TEST(single_bits_and_equal_bytes)
{
	static const size_t sizes[] = { 60, 124, 188 };
	for (int i = 0; i < 3; i++) {
		for (size_t bit = 0; bit < 8 * sizes[i]; bit++) {
			memset(bytes, 0, sizeof(bytes));
			bytes[bit / 8] = (unsigned char)(1u << bit % 8);
			expect_zlibs(0, sizes[i]);
		}
		memset(bytes, 0xff, sizeof(bytes));
		expect_zlibs(0, sizes[i]);
	}
}
END_TEST

/* The first is what every description of this CRC gives; the others are Python's binascii.crc32. */
START_TEST(known_values)
{
	ck_assert_uint_eq(box_check("123456789", 9), 0xcbf43926);
	ck_assert_uint_eq(box_check("", 0), 0);
	memset(bytes, 0, 28);
	ck_assert_uint_eq(box_check(bytes, 28), 0x807077e9);
	for (int i = 0; i < 28; i++)
		bytes[i] = (unsigned char)i;
	ck_assert_uint_eq(box_check(bytes, 28), 0xd708085d);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("box check");
	TCase *t = tcase_create("box check");
	suite_add_tcase(s, t);
	tcase_add_test(t, any_bytes_of_any_length);
	tcase_add_test(t, single_bits_and_equal_bytes);
	tcase_add_test(t, known_values);
	return suite_run(s);
}
