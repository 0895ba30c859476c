/* SPDX-License-Identifier: Apache-2.0 */
/* The norm of several parts has the bits of the norm of one, however the blocks are divided. */
#include "math/norm_tree.h"

#include "math/kernels.h"
#include "support/suite.h"

#include <stdlib.h>
#include <string.h>

#define MAX_PARTS 16
#define MAX_BLOCKS 4000

static double block[MAX_BLOCKS];
static struct norm_tree tree[MAX_PARTS];
static const struct norm_tree *all[MAX_PARTS];

/* Of very different sizes: another order of additions has other bits. */
static void draw(unsigned seed)
{
	srand(seed);
	for (int i = 0; i < MAX_BLOCKS; i++)
		block[i] = (double)rand() * (1 + rand() % 1000) / (1 + (double)(rand() % 100000));
}

/* The shares of plan_shares: whole units of 8 blocks, the last one may be short. */
static void divide(uint64_t blocks, uint32_t n)
{
	const uint64_t units = (blocks + 7) / 8;
	for (uint32_t s = 0; s < n; s++) {
		uint64_t from = s * units / n * 8, to = s + 1 == n ? blocks : (s + 1) * units / n * 8;
		norm_tree_take(block + from, from, to, blocks, &tree[s]);
		all[s] = &tree[s];
	}
}

static bool same_bits(double a, double b)
{
	return !memcmp(&a, &b, sizeof(a));
}

START_TEST(any_division_has_the_bits_of_the_whole)
{
	draw((unsigned)_i);
	for (uint64_t blocks = 1; blocks <= 600; blocks++)
		for (uint32_t n = 1; n <= MAX_PARTS; n++) {
			double is = -1;
			divide(blocks, n);
			ck_assert(norm_tree_join(all, n, &is));
			ck_assert_msg(same_bits(is, kernel_sum(block, blocks)), "%lu blocks, %u parts", blocks, n);
		}
	divide(MAX_BLOCKS, 7);
	double is = -1;
	ck_assert(norm_tree_join(all, 7, &is) && same_bits(is, kernel_sum(block, MAX_BLOCKS)));
}
END_TEST

/* Borders that no rule of equal shares gives: at all multiples of 8. */
START_TEST(any_border_will_do)
{
	draw(99);
	for (uint64_t a = 0; a <= 200; a += 8)
		for (uint64_t b = a; b <= 200; b += 8) {
			const uint64_t at[] = { 0, a, b, 203 };
			double is = -1;
			for (int s = 0; s < 3; s++) {
				norm_tree_take(block + at[s], at[s], at[s + 1], 203, &tree[s]);
				all[s] = &tree[s];
			}
			ck_assert(norm_tree_join(all, 3, &is) && same_bits(is, kernel_sum(block, 203)));
		}
}
END_TEST

START_TEST(what_is_not_one_whole_is_refused)
{
	double is = -1;
	draw(3);
	divide(200, 3);
	ck_assert(!norm_tree_join(all, 0, &is));
	ck_assert(!norm_tree_join(all, 2, &is)); /* the end is missing */
	const struct norm_tree *other[] = { all[1], all[0], all[2] };
	ck_assert(!norm_tree_join(other, 3, &is));
	tree[1].n--;
	ck_assert(!norm_tree_join(all, 3, &is));
	tree[1].n += 2;
	ck_assert(!norm_tree_join(all, 3, &is));
	tree[1].n = NORM_TREE_MAX + 1;
	ck_assert(!norm_tree_join(all, 3, &is));
	divide(200, 3);
	tree[2].n++;
	ck_assert(!norm_tree_join(all, 3, &is));
	divide(200, 3);
	tree[1].of = 201;
	ck_assert(!norm_tree_join(all, 3, &is));
	divide(200, 3);
	tree[0].to -= 4; /* in the middle of a run */
	tree[1].from -= 4;
	ck_assert(!norm_tree_join(all, 3, &is));
	ck_assert(is == -1);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("norm_tree");
	TCase *t = tcase_create("norm_tree");
	tcase_add_loop_test(t, any_division_has_the_bits_of_the_whole, 0, 3);
	tcase_add_test(t, any_border_will_do);
	tcase_add_test(t, what_is_not_one_whole_is_refused);
	suite_add_tcase(s, t);
	return suite_run(s);
}
