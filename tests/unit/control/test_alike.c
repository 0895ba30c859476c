/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes may have parts of one job, and what is said of those that may not. */
#include "control/alike.h"
#include "control/members.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

static const struct member_facts a = {
	.node = "a", .version = "2", .coll = "gloo/2", .kernels = "avx512", .kernels_revision = 8, .cpus = 4
};
static struct member_facts b;
static char why[256];

static void setup(void)
{
	b = a;
	strcpy(b.node, "b");
	*why = '\0';
}

START_TEST(what_changes_no_bit_does_not_matter)
{
	strcpy(b.version, "1");
	strcpy(b.kernels, "sse2");
	b.cpus = 64;
	b.incarnation = 9;
	ck_assert(nodes_alike(&a, &b, why, sizeof(why)) && nodes_alike(&b, &a, why, sizeof(why)));
	ck_assert_str_eq(why, "");
}
END_TEST

START_TEST(engines_that_speak_otherwise)
{
	strcpy(b.coll, "gloo/1");
	ck_assert(!nodes_alike(&a, &b, why, sizeof(why)));
	ck_assert_str_eq(why,
			 "node b has gloo/1 between engines, and node a, which has part 0, gloo/2: upgrade the older");
}
END_TEST

START_TEST(engines_that_compute_otherwise)
{
	b.kernels_revision = 7;
	ck_assert(!nodes_alike(&a, &b, why, sizeof(why)));
	ck_assert_str_eq(why,
			 "node b has kernels of revision 7, and node a, which has part 0, of 8: upgrade the older");
	ck_assert(!nodes_alike(&b, &a, why, sizeof(why)));
	ck_assert_str_eq(why,
			 "node a has kernels of revision 8, and node b, which has part 0, of 7: upgrade the older");
}
END_TEST

START_TEST(engines_that_cannot_be_reached)
{
	static const char *const rows[][2] = { { "127.0.0.1", "127.0.0.2" },
					       { "::1", "127.0.0.1" },
					       { "10.0.0.1", "fd00::7" } };
	struct member_facts near = a;
	for (size_t i = 0; i < 3; i++) {
		strcpy(near.data_address, rows[i][0]);
		strcpy(b.data_address, rows[i][1]);
		ck_assert_msg(nodes_alike(&near, &b, why, sizeof(why)), "%s", why);
	}
	strcpy(near.data_address, "10.0.0.1");
	strcpy(b.data_address, "127.0.0.1");
	ck_assert(!nodes_alike(&near, &b, why, sizeof(why)));
	ck_assert_str_eq(why,
			 "node b has node.data_address 127.0.0.1, which node a (10.0.0.1) cannot reach: set it to an "
			 "address of b on the data network");
	strcpy(b.data_address, "::ffff:127.0.0.1");
	ck_assert(!nodes_reach(&near, &b, why, sizeof(why)));
	strcpy(b.data_address, "0.0.0.0");
	ck_assert(!nodes_reach(&near, &b, why, sizeof(why)));
	strcpy(b.data_address, "127.0.0.1");
	*why = '\0';
	ck_assert(!nodes_reach(&b, &near, why, sizeof(why)));
	ck_assert_str_eq(why,
			 "node b has node.data_address 127.0.0.1, which node a (10.0.0.1) cannot reach: set it to an "
			 "address of b on the data network");
}
END_TEST

int main(void)
{
	Suite *s = suite_create("alike");
	TCase *t = tcase_create("alike");
	tcase_add_checked_fixture(t, setup, NULL);
	tcase_add_test(t, what_changes_no_bit_does_not_matter);
	tcase_add_test(t, engines_that_speak_otherwise);
	tcase_add_test(t, engines_that_compute_otherwise);
	tcase_add_test(t, engines_that_cannot_be_reached);
	suite_add_tcase(s, t);
	return suite_run(s);
}
