/* SPDX-License-Identifier: Apache-2.0 */
/* Which node each part is on, and what a specification may say of it. */
#include "control/spec_nodes.h"
#include "support/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static char why[300];

static struct job_spec job(const char *nodes, uint32_t ranks, uint32_t parts)
{
	return (struct job_spec){ .ranks = ranks, .parts = parts, .nodes = (char *)nodes };
}

static bool is_ok(const char *nodes, uint32_t ranks, uint32_t parts)
{
	const struct job_spec s = job(nodes, ranks, parts);
	why[0] = '\0';
	return spec_nodes_check(&s, why, sizeof(why)) == ST_OK;
}

/* The nodes of all parts, each with a space behind it. */
static const char *all(const char *nodes, uint32_t parts)
{
	static char text[2000];
	const struct job_spec s = job(nodes, 16, parts);
	char name[NODE_NAME_MAX + 1];
	text[0] = '\0';
	for (uint32_t i = 0; i < parts; i++) {
		ck_assert(spec_node_of(&s, i, name) == (nodes && *nodes));
		strcat(strcat(text, name), " ");
	}
	return text;
}

START_TEST(parts_are_divided_over_the_nodes_in_order)
{
	ck_assert_str_eq(all("a", 1), "a ");
	ck_assert_str_eq(all("a,b", 2), "a b ");
	ck_assert_str_eq(all("b,a", 4), "b b a a ");
	ck_assert_str_eq(all("a,b", 3), "a a b ");
	ck_assert_str_eq(all("a:8,b:8", 2), "a b ");
	ck_assert_str_eq(all("n-1.x_Y,b,c", 7), "n-1.x_Y n-1.x_Y n-1.x_Y b b c c ");
	ck_assert_str_eq(all("", 2), "  ");
	ck_assert_str_eq(all(NULL, 2), "  ");
}
END_TEST

START_TEST(parts_on_a_node_are_counted)
{
	const struct job_spec three = job("a,b", 8, 3), none = job("", 8, 3);
	ck_assert_uint_eq(spec_parts_on(&three, "a"), 2);
	ck_assert_uint_eq(spec_parts_on(&three, "b"), 1);
	ck_assert_uint_eq(spec_parts_on(&three, "c"), 0);
	ck_assert_uint_eq(spec_parts_on(&none, "whatever"), 3);
	ck_assert_uint_eq(spec_part_on_node(&three, 0), 0);
	ck_assert_uint_eq(spec_part_on_node(&three, 1), 1);
	ck_assert_uint_eq(spec_part_on_node(&three, 2), 0);
	ck_assert_uint_eq(spec_part_on_node(&none, 2), 2);
}
END_TEST

START_TEST(ranks_of_a_node_are_a_block)
{
	const struct job_spec three = job("a,b", 8, 3), none = job("", 8, 3);
	uint32_t first = 77;
	ck_assert_uint_eq(spec_ranks_on(&three, "a", &first), 5);
	ck_assert_uint_eq(first, 0);
	ck_assert_uint_eq(spec_ranks_on(&three, "b", &first), 3);
	ck_assert_uint_eq(first, 5);
	ck_assert_uint_eq(spec_ranks_on(&three, "c", &first), 0);
	ck_assert_uint_eq(spec_ranks_on(&none, "whatever", &first), 8);
	ck_assert_uint_eq(first, 0);
}
END_TEST

START_TEST(ranks_must_be_those_of_the_equal_blocks)
{
	ck_assert(is_ok("", 8, 2) && is_ok(NULL, 8, 2));
	ck_assert(is_ok("a:4,b:4", 8, 2));
	ck_assert(is_ok("a:5,b:2", 7, 3) == false);
	ck_assert_str_eq(why, "nodes gives a 5 ranks: with 3 parts in equal blocks it has 4 (0 to 3)");
	ck_assert(is_ok("a:4,b:3", 7, 3));
	ck_assert(is_ok("a,b:3", 7, 3));
	ck_assert(!is_ok("a:4,b:4", 8, 1));
	ck_assert_str_eq(why, "nodes names 2 nodes for 1 parts: each node has at least one part");
}
END_TEST

START_TEST(what_is_no_list_is_refused_with_the_entry)
{
	static const char *const wrong[] = { ",",    "a,",   ",a", "a,,b",  "a b",   "a:",    "a:0",  "a:x",
					     "a:4x", "a:-1", ":4", "a:4:4", "a/b,c", "a,b c", "a:01", "a:1234567" };
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		ck_assert_msg(!is_ok(wrong[i], 8, 4), "%s", wrong[i]);
		ck_assert_msg(strstr(why, "must be names of at most 64"), "%s: %s", wrong[i], why);
	}
	ck_assert(!is_ok("a,b:2,a:3", 8, 4));
	ck_assert_str_eq(why, "nodes names a twice");
	ck_assert(!is_ok("a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q", 64, 16));
	ck_assert_str_eq(why, "nodes names more than 16 nodes");
}
END_TEST

START_TEST(a_name_has_a_bound)
{
	char name[NODE_NAME_MAX + 2];
	memset(name, 'x', sizeof(name));
	ck_assert(node_name_ok(name, NODE_NAME_MAX) && !node_name_ok(name, NODE_NAME_MAX + 1) &&
		  !node_name_ok(name, 0));
	name[NODE_NAME_MAX] = '\0';
	ck_assert(is_ok(name, 8, 1));
	name[NODE_NAME_MAX] = 'x';
	name[NODE_NAME_MAX + 1] = '\0';
	ck_assert(!is_ok(name, 8, 1));
	ck_assert(!node_name_ok("a\0b", 3));
}
END_TEST

START_TEST(without_a_number_of_parts_each_node_has_one)
{
	const char *field;
	struct job_spec s = { .name = "n", .ranks = 8, .micro_size = 1, .nodes = strdup("a,b,c") };
	s.optim.type = OPTIM_CLIENT;
	ck_assert_msg(job_spec_check(&s, &field, why, sizeof(why)) == ST_OK, "%s", why);
	ck_assert_uint_eq(s.parts, 3);
	s.parts = 2;
	ck_assert(job_spec_check(&s, &field, why, sizeof(why)) == ST_INVALID_SPEC);
	ck_assert_str_eq(field, "nodes");
	job_spec_fini(&s);
	ck_assert_ptr_null(s.nodes);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("spec_nodes");
	TCase *c = tcase_create("nodes");
	suite_add_tcase(s, c);
	tcase_add_test(c, parts_are_divided_over_the_nodes_in_order);
	tcase_add_test(c, parts_on_a_node_are_counted);
	tcase_add_test(c, ranks_of_a_node_are_a_block);
	tcase_add_test(c, ranks_must_be_those_of_the_equal_blocks);
	tcase_add_test(c, what_is_no_list_is_refused_with_the_entry);
	tcase_add_test(c, a_name_has_a_bound);
	tcase_add_test(c, without_a_number_of_parts_each_node_has_one);
	return suite_run(s);
}
