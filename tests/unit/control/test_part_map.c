/* SPDX-License-Identifier: Apache-2.0 */
/* The map between the numberings of a job's ranks and a part's, and the number of parts in a specification. */
#include "control/part.h"
#include "engine/control_page.h"

#include <check.h>

Suite *part_map_suite(void);

/* ---- the specification ---- */

START_TEST(more_than_one_part_is_refused)
{
	struct job_spec spec = { .name = "t", .ranks = 3, .micro_size = 1, .master_f32 = true };
	const char *field = "";
	char why[200] = "";
	spec.optim = (struct optim_config){ .type = OPTIM_SGD, .lr = 0.1 };
	spec.parts = (uint32_t)_i;
	enum status st = job_spec_check(&spec, &field, why, sizeof(why));
	if (_i < 2) {
		ck_assert_int_eq(st, ST_OK);
		ck_assert_uint_eq(spec.parts, 1);
		return;
	}
	ck_assert_int_eq(st, ST_INVALID_SPEC);
	ck_assert_str_eq(field, "parts");
	ck_assert_str_eq(why, "parts is 2: more than 1 are refused until engines can sum over parts");
}
END_TEST

/* ---- the map ---- */

START_TEST(bits_go_to_their_ranks_and_back)
{
	static const uint32_t micros[] = { 1, 3, 7, 63, 64, 65, 200 };
	uint32_t max = micros[_i], some[] = { 0, 2, 3, 9 };
	uint64_t job_map[40] = { 0 }, part[40], again[40] = { 0 };
	const struct part_ranks ranks = { 4, some };
	for (uint32_t r = 0; r < 10; r++)
		for (uint32_t m = 0; m < max; m++)
			if ((r * 31 + m * 17) % 5 < 2)
				control_set_bit(job_map, max, r, m);
	part_pick_bits(&ranks, max, job_map, part);
	for (uint32_t i = 0; i < 4; i++)
		for (uint32_t m = 0; m < max; m++)
			ck_assert_int_eq(control_bit(part, max, i, m), control_bit(job_map, max, some[i], m));
	part_place_bits(&ranks, max, part, again);
	for (uint32_t r = 0; r < 10; r++)
		for (uint32_t m = 0; m < max; m++) {
			bool here = r == 0 || r == 2 || r == 3 || r == 9;
			ck_assert_int_eq(control_bit(again, max, r, m), here && control_bit(job_map, max, r, m));
		}
}
END_TEST

START_TEST(all_ranks_are_described)
{
	static const uint32_t few[] = { 0, 1, 2, 7 };
	uint32_t many[100];
	char text[60];
	struct job_spec s = { .ranks = 4 };
	struct part_spec p = { .spec = &s, .global = few };
	part_describe_ranks(&p, text, sizeof(text));
	ck_assert_str_eq(text, "0-2, 7");
	p.global = NULL;
	part_describe_ranks(&p, text, sizeof(text));
	ck_assert_str_eq(text, "0-3");
	for (uint32_t i = 0; i < 100; i++)
		many[i] = 2 * i;
	s.ranks = 100;
	p.global = many;
	part_describe_ranks(&p, text, sizeof(text));
	ck_assert_str_eq(text, "0, 2, 4, 6, 8, 10, 12, 14, 16, ...");
}
END_TEST

Suite *part_map_suite(void)
{
	Suite *s = suite_create("map of parts");
	TCase *c = tcase_create("map of parts");
	tcase_add_loop_test(c, more_than_one_part_is_refused, 0, 3);
	tcase_add_loop_test(c, bits_go_to_their_ranks_and_back, 0, 7);
	tcase_add_test(c, all_ranks_are_described);
	suite_add_tcase(s, c);
	return s;
}
