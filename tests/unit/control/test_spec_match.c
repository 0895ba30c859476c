/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of a specification and tensors: the first that matches wins, and the work has bounds. */
#include "control/job.h"

#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct job_spec spec;
static struct spec_match match;
static char why[300];
static const struct plan_place at = { .job_id = 5, .n_parts = 1, .slots = 2, .threads = 1 };

static void setup(void)
{
	spec = (struct job_spec){ .name = "t", .ranks = 1, .micro_size = 1, .optim = { .type = OPTIM_SGD, .lr = 0.1 } };
	spec.group = calloc(SPEC_MAX_RULES, sizeof(*spec.group));
	spec.init = calloc(SPEC_MAX_RULES, sizeof(*spec.init));
	why[0] = '\0';
}

static void teardown(void)
{
	job_spec_fini(&spec);
}

static void add_group(const char *pattern)
{
	spec.group[spec.n_groups++] = (struct spec_group){ .pattern = strdup(pattern), .values = { .lr_scale = 1 } };
}

/* Beside its pattern, which may be "". */
static void add_names(const char *const *names, uint32_t n)
{
	struct spec_group *g = &spec.group[spec.n_groups - 1];
	g->tensor = malloc(n * sizeof(*names));
	g->n_tensors = n;
	memcpy(g->tensor, names, n * sizeof(*names));
}

static void add_init(const char *pattern)
{
	uint32_t i = spec.n_init++;
	spec.init[i] = (struct spec_init){ .pattern = strdup(pattern), .rule = { .type = INIT_ZEROS, .a = i } };
}

static struct tensor_spec *tensors(uint64_t n, const char *name)
{
	struct tensor_spec *t = calloc(n, sizeof(*t));
	for (uint64_t i = 0; i < n; i++)
		t[i] = (struct tensor_spec){ .name = name, .dtype = DTYPE_F32 };
	return t;
}

START_TEST(the_first_rule_wins)
{
	const struct tensor_spec t[] = { { .name = "a.bias" }, { .name = "b" }, { .name = "c.bias" } };
	add_group("a*");
	add_group("*.bias");
	add_init("b");
	add_init("*");
	ck_assert_int_eq(spec_match(&spec, t, 3, &match, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(spec_match_group(&match, 0), 0);
	ck_assert_int_eq(spec_match_group(&match, 1), -1);
	ck_assert_int_eq(spec_match_group(&match, 2), 1);
	ck_assert_ptr_eq(spec_match_init(&match, &spec, 0), &spec.init[1].rule);
	ck_assert_ptr_eq(spec_match_init(&match, &spec, 1), &spec.init[0].rule);
	spec_match_fini(&match);
}
END_TEST

/* In the order of the groups, whichever way one matches; a name has no wild cards. */
START_TEST(groups_name_tensors)
{
	const struct tensor_spec t[] = { { .name = "a.bias" }, { .name = "b" },	 { .name = "c.bias" },
					 { .name = "w[0]" },   { .name = "w0" }, { .name = "tied", .alias_of = "b" } };
	const char *const first[] = { "w[0]", "b", "a.bias" }, *const last[] = { "c.bias", "tied", "b" };
	static const int want[] = { 0, 0, 1, 0, -1, 2 };
	add_group("");
	add_names(first, 3);
	add_group("*.bias");
	add_group("");
	add_names(last, 3);
	ck_assert_int_eq(spec_match(&spec, t, 6, &match, why, sizeof(why)), ST_OK);
	for (uint64_t i = 0; i < 6; i++)
		ck_assert_msg(spec_match_group(&match, i) == want[i], "%s", t[i].name);
	spec_match_fini(&match);
	ck_assert_int_eq(spec_match(&spec, t, 5, &match, why, sizeof(why)), ST_INVALID_SPEC);
	ck_assert_str_eq(why, "param_groups[2].tensors: there is no tensor \"tied\"");
}
END_TEST

START_TEST(a_group_has_a_pattern_or_names_and_not_too_many)
{
	const char *field, *one[] = { "a" };
	add_group("");
	ck_assert_int_eq(job_spec_check(&spec, &field, why, sizeof(why)), ST_INVALID_SPEC);
	ck_assert_str_eq(field, "param_groups.pattern");
	add_names(one, 1);
	ck_assert_msg(job_spec_check(&spec, &field, why, sizeof(why)) == ST_OK, "%s: %s", field, why);
	spec.group[0].n_tensors = SPEC_MAX_NAMED;
	ck_assert_int_eq(job_spec_check(&spec, &field, why, sizeof(why)), ST_OK);
	spec.group[0].n_tensors++;
	ck_assert_int_eq(job_spec_check(&spec, &field, why, sizeof(why)), ST_INVALID_SPEC);
	ck_assert_str_eq(field, "param_groups.tensors");
}
END_TEST

#define SAID "rules without effect, as no tensor's name matches them, or an earlier rule matches first:"

/* A mistyped pattern, and one that an earlier rule hides, are named; a rule of a tied tensor alone is in use. */
START_TEST(rules_that_hold_for_no_tensor_are_named)
{
	const struct tensor_spec t[] = { { .name = "a.bias" }, { .name = "b" }, { .name = "tied", .alias_of = "b" } };
	char text[256];
	add_group("*.bias");
	add_group("a.*");
	add_init("tied");
	add_init("*");
	ck_assert_int_eq(spec_match(&spec, t, 3, &match, why, sizeof(why)), ST_OK);
	spec_match_unused(&match, &spec, text, sizeof(text));
	ck_assert_str_eq(text, SAID " param_groups[1] (pattern \"a.*\")");
	spec_match_fini(&match);
	add_init("wieght");
	ck_assert_int_eq(spec_match(&spec, t, 3, &match, why, sizeof(why)), ST_OK);
	spec_match_unused(&match, &spec, text, sizeof(text));
	ck_assert_str_eq(text, SAID " param_groups[1] (pattern \"a.*\"), init[2] (pattern \"wieght\")");
	spec_match_fini(&match);
	for (int i = 0; i < 9; i++)
		add_group("x");
	ck_assert_int_eq(spec_match(&spec, t, 3, &match, why, sizeof(why)), ST_OK);
	spec_match_unused(&match, &spec, text, sizeof(text));
	ck_assert_str_eq(text, SAID " param_groups[1] (pattern \"a.*\"), param_groups[2] (pattern \"x\") and 9 more");
	spec_match_unused(&match, &spec, text, 60); /* ends where the room does */
	ck_assert_uint_eq(strlen(text), 59);
	spec_match_fini(&match);
	while (spec.n_groups > 1)
		free(spec.group[--spec.n_groups].pattern);
	while (spec.n_init > 2)
		free(spec.init[--spec.n_init].pattern);
	ck_assert_int_eq(spec_match(&spec, t, 3, &match, why, sizeof(why)), ST_OK);
	spec_match_unused(&match, &spec, text, sizeof(text));
	ck_assert_str_eq(text, "");
	spec_match_fini(&match);
}
END_TEST

/* They have no pattern to show. */
START_TEST(groups_of_names_without_effect_are_shown_by_a_name)
{
	const struct tensor_spec t[] = { { .name = "a.bias" }, { .name = "b.bias" }, { .name = "c.bias" } };
	const char *const one[] = { "a.bias" }, *const two[] = { "b.bias", "c.bias" };
	char text[256];
	add_group("*.bias");
	add_group("");
	add_names(one, 1);
	add_group("");
	add_names(two, 2);
	ck_assert_int_eq(spec_match(&spec, t, 3, &match, why, sizeof(why)), ST_OK);
	spec_match_unused(&match, &spec, text, sizeof(text));
	ck_assert_str_eq(text, SAID " param_groups[1] (tensor \"a.bias\"), param_groups[2] (first tensor \"b.bias\")");
	spec_match_fini(&match);
}
END_TEST

START_TEST(without_rules_there_is_nothing_to_match)
{
	const struct tensor_spec t = { .name = "a" };
	ck_assert_int_eq(spec_match(&spec, &t, 1, &match, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(spec_match_group(&match, 0), -1);
	ck_assert_ptr_null(spec_match_init(&match, &spec, 0));
	spec_match_fini(&match);
}
END_TEST

/* An alias has its target's values. */
START_TEST(each_tensor_with_storage_needs_an_init_rule)
{
	const struct tensor_spec t[] = { { .name = "a" },
					 { .name = "tied", .alias_of = "a" },
					 { .name = "b", .alias_of = "" } };
	add_init("a");
	ck_assert_int_eq(spec_match(&spec, t, 2, &match, why, sizeof(why)), ST_OK);
	spec_match_fini(&match);
	ck_assert_int_eq(spec_match(&spec, t, 3, &match, why, sizeof(why)), ST_INVALID_SPEC);
	ck_assert_str_eq(why, "no init rule matches tensor \"b\": add one with pattern \"*\"");
}
END_TEST

START_TEST(rules_times_tensors_are_bounded)
{
	const uint64_t most = SPEC_MAX_MATCHES / 128;
	struct tensor_spec *t = tensors(most + 1, "a");
	for (int i = 0; i < 64; i++) {
		add_group("a");
		add_init("a");
	}
	ck_assert_int_eq(spec_match(&spec, t, most, &match, why, sizeof(why)), ST_OK);
	spec_match_fini(&match);
	ck_assert_int_eq(spec_match(&spec, t, most + 1, &match, why, sizeof(why)), ST_INVALID_SPEC);
	ck_assert_msg(strstr(why, "128 rules for 524289 tensors") && strstr(why, "use fewer rules"), "%s", why);
	free(t);
}
END_TEST

/* As many steps as a pattern and a name of 255 bytes can cost, for each of the pairs. */
START_TEST(steps_are_bounded)
{
	char pattern[256] = "*", name[256];
	memset(name, 'a', 255);
	name[255] = '\0';
	memset(pattern + 1, 'a', 127);
	strcpy(pattern + 128, "b");
	struct tensor_spec *t = tensors(500, name);
	for (int i = 0; i < 256; i++)
		add_group(pattern);
	ck_assert_int_eq(spec_match(&spec, t, 50, &match, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(spec_match_group(&match, 49), -1);
	spec_match_fini(&match);
	ck_assert_int_eq(spec_match(&spec, t, 500, &match, why, sizeof(why)), ST_INVALID_SPEC);
	ck_assert_msg(strstr(why, "param_groups: ") && strstr(why, "use fewer patterns"), "%s", why);
	free(t);
}
END_TEST

START_TEST(patterns_are_as_long_as_names_at_most)
{
	char pattern[SPEC_MAX_PATTERN + 2];
	const char *field;
	memset(pattern, 'a', sizeof(pattern) - 2);
	pattern[sizeof(pattern) - 2] = '\0';
	add_group(pattern);
	add_init(pattern);
	ck_assert_int_eq(job_spec_check(&spec, &field, why, sizeof(why)), ST_OK);
	strcpy(pattern + SPEC_MAX_PATTERN, "a");
	add_init(pattern);
	ck_assert_int_eq(job_spec_check(&spec, &field, why, sizeof(why)), ST_INVALID_SPEC);
	ck_assert_str_eq(field, "init.pattern");
	ck_assert_msg(strstr(why, "init[1].pattern has 256 bytes"), "%s", why);
	spec.n_init--;
	free(spec.init[1].pattern);
	add_group(pattern);
	ck_assert_int_eq(job_spec_check(&spec, &field, why, sizeof(why)), ST_INVALID_SPEC);
	ck_assert_str_eq(field, "param_groups.pattern");
}
END_TEST

/* What the engine gets of it. */
START_TEST(the_plan_has_the_rules_of_each_tensor)
{
	const struct tensor_spec t[] = { { .name = "a", .dtype = DTYPE_F32, .n_dims = 1, .shape = { 40 } },
					 { .name = "b.bias", .dtype = DTYPE_F32 },
					 { .name = "tied", .dtype = DTYPE_F32, .alias_of = "b.bias" } };
	struct tensor_set set;
	struct plan *plan, head;
	add_group("*.bias");
	add_init("b*");
	add_init("a");
	ck_assert_int_eq(tensor_set_init(&set, &spec, t, 3, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(tensor_set_match(&set, &spec, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(plan_build(&spec, &set, &at, &plan), ST_OK);
	ck_assert_uint_eq(plan_rank_number(plan, 0), 0);
	ck_assert_int_eq((int)plan_tensors(plan)[0].init.a, 1);
	ck_assert_int_eq((int)plan_tensors(plan)[1].init.a, 0);
	ck_assert_int_eq(plan_tensors(plan)[2].init.type, 0);
	ck_assert_str_eq(plan_name(plan, &plan_tensors(plan)[2]), "tied");
	ck_assert_uint_eq(plan->n_ranges, 2);
	ck_assert_uint_eq(plan_ranges(plan)[0].optim_group, 0);
	ck_assert_uint_eq(plan_ranges(plan)[1].optim_group, 1);
	plan_head(&head, &spec, &set.arena, &at);
	ck_assert_int_eq(plan_segments(&head, NULL, 0), plan_segments(plan, NULL, 0));
	ck_assert_uint_eq(head.n_tensors, 3);
	ck_assert_uint_eq(plan->slots_per_rank, spec.slots_per_rank);
	free(plan);
	const uint32_t number = 7;
	const struct plan_place second = { 5, 1, 2, &number, 2, 1, 0 };
	ck_assert_int_eq(plan_build(&spec, &set, &second, &plan), ST_OK);
	ck_assert_uint_eq(plan_rank_number(plan, 0), 7);
	ck_assert(plan->part == 1 && plan->n_parts == 2 && plan->job_id == 5);
	ck_assert_str_eq(plan_name(plan, &plan_tensors(plan)[2]), "tied");
	free(plan);
	tensor_set_fini(&set);
}
END_TEST

/* nonfinite: what becomes void, and whether its trainer hears of an error. */
START_TEST(the_plan_says_what_a_value_that_is_not_finite_does)
{
	static const enum nonfinite rule[] = { NONFINITE_SKIP_STEP, NONFINITE_REJECT_MICRO, NONFINITE_ERROR };
	const struct tensor_spec t = { .name = "a", .dtype = DTYPE_F32, .n_dims = 1, .shape = { 40 } };
	struct tensor_set set;
	struct plan plan;
	ck_assert_int_eq(tensor_set_init(&set, &spec, &t, 1, why, sizeof(why)), ST_OK);
	for (uint32_t i = 0; i < 3; i++) {
		spec.nonfinite = rule[i];
		plan_head(&plan, &spec, &set.arena, &at);
		ck_assert_uint_eq(plan.reject_nonfinite, i > 0);
		ck_assert_uint_eq(plan.void_is_error, i == 2);
	}
	tensor_set_fini(&set);
}
END_TEST

/* Tensors of two groups whose borders lie in the middle of chunks: where a share begins in a chunk, its range is cut.
 */
START_TEST(no_chunk_of_an_update_is_in_two_shares)
{
	const struct tensor_spec t[] = { { .name = "a", .dtype = DTYPE_F32, .n_dims = 1, .shape = { 100 } },
					 { .name = "x.bias", .dtype = DTYPE_F32, .n_dims = 1, .shape = { 33333 } },
					 { .name = "b", .dtype = DTYPE_F32, .n_dims = 1, .shape = { 70000 } },
					 { .name = "h", .dtype = DTYPE_BF16, .n_dims = 1, .shape = { 50001 } } };
	struct tensor_set set;
	add_group("*.bias");
	spec.optim = (struct optim_config){ .type = OPTIM_ADAM, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8 };
	spec.ranks = 16;
	spec.micro_size = 1;
	const char *field;
	ck_assert_msg(!job_spec_check(&spec, &field, why, sizeof(why)), "%s", why);
	spec.master_f32 = true;
	ck_assert_int_eq(tensor_set_init(&set, &spec, t, 4, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(tensor_set_match(&set, &spec, why, sizeof(why)), ST_OK);
	for (uint32_t n = 1; n <= 16; n++) {
		uint64_t owned = 0;
		uint32_t cuts = 0;
		for (uint32_t part = 0; part < n; part++) {
			const struct plan_place place = { 5, part, n, NULL, 2 * 16, 1, 0 };
			struct plan *p[2];
			for (int k = 0; k < 2; k++) {
				spec.parts = n;
				spec.sharding = k ? SHARDING_FULL : SHARDING_NONE;
				ck_assert_int_eq(plan_build(&spec, &set, &place, &p[k]), ST_OK);
				ck_assert_msg(!plan_check(p[k], p[k]->bytes, why, sizeof(why)), "%s", why);
				ck_assert_uint_eq(p[k]->n_shards, k ? n : 1);
			}
			ck_assert(p[0]->n_ranges == p[1]->n_ranges && plan_ranges_hash(p[0]) == plan_ranges_hash(p[1]));
			uint64_t from, end;
			plan_own(p[1], &from, &end);
			ck_assert_uint_eq(from, owned);
			owned = end;
			ck_assert_uint_eq(plan_role_bytes(p[1], SEG_STATE1), 4 * (end - from));
			ck_assert_uint_eq(plan_role_bytes(p[1], SEG_MASTER), 4 * (end - from));
			ck_assert_uint_eq(plan_role_bytes(p[0], SEG_STATE1), 4 * p[0]->n_elements);
			ck_assert_uint_eq(plan_role_bytes(p[1], SEG_ACCUM1), 4 * p[1]->n_elements);
			ck_assert_uint_eq(plan_role_bytes(p[1], SEG_PARAMS), p[1]->param_bytes);
			cuts = (uint32_t)p[1]->n_ranges;
			if (cuts > 4) { /* one that is not cut is refused */
				struct plan_range *r = (struct plan_range *)((char *)p[1] + p[1]->ranges_offset);
				uint64_t i = 0;
				while (r[i].optim_group != r[i + 1].optim_group ||
				       r[i].dtype_group != r[i + 1].dtype_group)
					i++;
				r[i].count += r[i + 1].count;
				p[1]->n_ranges--;
				memmove(&r[i + 1], &r[i + 2], (p[1]->n_ranges - i - 1) * sizeof(*r));
				ck_assert_int_eq(plan_check(p[1], p[1]->bytes, why, sizeof(why)), ST_INVALID_ARGUMENT);
			}
			free(p[0]);
			free(p[1]);
		}
		ck_assert_uint_eq(owned, set.arena.n_elements);
		ck_assert_uint_ge(cuts, n == 1 ? 4 : 5);
	}
	spec.sharding = SHARDING_NONE;
	tensor_set_fini(&set);
}
END_TEST

/* Every share is summed by one part, and lies in the shard that this part updates; each group has all shards. */
START_TEST(shares_lie_in_the_shards_of_their_parts)
{
	for (uint32_t n = 1; n <= PLAN_MAX_PARTS; n++)
		for (uint32_t k = 1; k <= n; k++) {
			struct plan p = { .n_parts = n, .n_shards = k, .n_elements = 1000 * PLAN_SHARE_ALIGN + 32 };
			uint64_t share[PLAN_MAX_PARTS + 1], from, end, group_end = 0;
			uint32_t summed = 0;
			if (n % k)
				continue;
			plan_shares(&p, share);
			for (p.part = 0; p.part < n; p.part++) {
				const uint32_t s = plan_share_of(&p, p.part);
				plan_own(&p, &from, &end);
				ck_assert(s < n && share[s] >= from && share[s + 1] <= end);
				ck_assert_uint_eq(from, p.part % k ? group_end : 0);
				group_end = end;
				ck_assert(p.part % k < k - 1 || end == p.n_elements);
				summed |= 1u << s;
			}
			ck_assert_uint_eq(summed, (UINT32_C(1) << n) - 1);
		}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("spec_match");
	TCase *tc = tcase_create("spec_match");
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, the_first_rule_wins);
	tcase_add_test(tc, rules_that_hold_for_no_tensor_are_named);
	tcase_add_test(tc, groups_of_names_without_effect_are_shown_by_a_name);
	tcase_add_test(tc, without_rules_there_is_nothing_to_match);
	tcase_add_test(tc, each_tensor_with_storage_needs_an_init_rule);
	tcase_add_test(tc, rules_times_tensors_are_bounded);
	tcase_add_test(tc, steps_are_bounded);
	tcase_add_test(tc, groups_name_tensors);
	tcase_add_test(tc, a_group_has_a_pattern_or_names_and_not_too_many);
	tcase_add_test(tc, patterns_are_as_long_as_names_at_most);
	tcase_add_test(tc, the_plan_has_the_rules_of_each_tensor);
	tcase_add_test(tc, no_chunk_of_an_update_is_in_two_shares);
	tcase_add_test(tc, shares_lie_in_the_shards_of_their_parts);
	tcase_add_test(tc, the_plan_says_what_a_value_that_is_not_finite_does);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
