/* SPDX-License-Identifier: Apache-2.0 */
/* The map between the numberings of a job's ranks and a part's, and the number of parts in a specification. */
#include "control/part.h"
#include "engine/control_page.h"

#include <check.h>
#include <stdio.h>

Suite *part_map_suite(void);

/* ---- the specification ---- */

START_TEST(a_job_has_at_most_as_many_parts_as_ranks)
{
	static const struct {
		uint32_t ranks, parts, taken; /* 0: refused */
	} cases[] = { { 3, 0, 1 }, { 3, 1, 1 }, { 3, 3, 3 }, { 3, 4, 0 }, { 64, 16, 16 }, { 64, 17, 0 } };
	struct job_spec spec = { .name = "t", .micro_size = 1, .master_f32 = true };
	const char *field = "";
	char why[200] = "", want[200];
	spec.optim = (struct optim_config){ .type = OPTIM_SGD, .lr = 0.1 };
	spec.ranks = cases[_i].ranks;
	spec.parts = cases[_i].parts;
	enum status st = job_spec_check(&spec, &field, why, sizeof(why));
	if (cases[_i].taken) {
		ck_assert_int_eq(st, ST_OK);
		ck_assert_uint_eq(spec.parts, cases[_i].taken);
		return;
	}
	ck_assert_int_eq(st, ST_INVALID_SPEC);
	ck_assert_str_eq(field, "parts");
	snprintf(want, sizeof(want), "parts is %u, must be 1..16, and not more than ranks (%u)", cases[_i].parts,
		 cases[_i].ranks);
	ck_assert_str_eq(why, want);
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

START_TEST(blocks_are_equal_or_differ_by_one_rank)
{
	for (uint32_t ranks = 1; ranks <= 40; ranks++)
		for (uint32_t n = 1; n <= PART_MAX && n <= ranks; n++) {
			ck_assert_uint_eq(part_block(ranks, n, 0), 0);
			ck_assert_uint_eq(part_block(ranks, n, n), ranks);
			for (uint32_t i = 0; i < n; i++) {
				uint32_t size = part_block(ranks, n, i + 1) - part_block(ranks, n, i);
				ck_assert(size == ranks / n || size == ranks / n + 1);
			}
		}
	ck_assert_uint_eq(part_block(7, 3, 1), 2);
	ck_assert_uint_eq(part_block(7, 3, 2), 4);
	ck_assert_uint_eq(part_block(SPEC_MAX_RANKS, PART_MAX, PART_MAX), SPEC_MAX_RANKS);
	ck_assert_uint_eq(part_block(UINT32_MAX, PART_MAX, PART_MAX), UINT32_MAX);
}
END_TEST

Suite *part_map_suite(void)
{
	Suite *s = suite_create("map of parts");
	TCase *c = tcase_create("map of parts");
	tcase_add_loop_test(c, a_job_has_at_most_as_many_parts_as_ranks, 0, 6);
	tcase_add_loop_test(c, bits_go_to_their_ranks_and_back, 0, 7);
	tcase_add_test(c, all_ranks_are_described);
	tcase_add_test(c, blocks_are_equal_or_differ_by_one_rank);
	suite_add_tcase(s, c);
	return s;
}
