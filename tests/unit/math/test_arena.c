/* SPDX-License-Identifier: Apache-2.0 */
#include "math/arena.h"
#include "math/kernels.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char why[300];

static struct tensor_spec tensor(const char *name, enum dtype t, int n_dims, int64_t d0, int64_t d1)
{
	return (struct tensor_spec){ .name = name, .dtype = t, .n_dims = n_dims, .shape = { d0, d1 } };
}

static struct arena lay_out(const struct tensor_spec *t, uint64_t n, enum dtype grad)
{
	struct arena a;
	ck_assert_msg(arena_init(&a, t, n, grad, why, sizeof(why)) == ST_OK, "%s", why);
	return a;
}

/* Refused, the reason holds `part`, and the output is untouched. */
static void assert_refused(const struct tensor_spec *t, uint64_t n, const char *part)
{
	struct arena a = { .n_tensors = 12345 };
	why[0] = 0;
	ck_assert_int_eq(arena_init(&a, t, n, DTYPE_NONE, why, sizeof(why)), ST_INVALID_ARGUMENT);
	ck_assert_msg(strstr(why, part) != NULL, "'%s' does not say '%s'", why, part);
	ck_assert_uint_eq(a.n_tensors, 12345);
}

START_TEST(groups_come_by_dtype_and_tensors_as_declared)
{
	struct tensor_spec t[] = { tensor("h", DTYPE_F16, 1, 5, 0), tensor("w", DTYPE_F32, 2, 3, 11),
				   tensor("b", DTYPE_BF16, 1, 1024, 0), tensor("s", DTYPE_F32, 0, 0, 0) };
	struct arena a = lay_out(t, 4, DTYPE_NONE);
	ck_assert_int_eq(a.n_groups, 3);
	ck_assert_int_eq(a.group[0].param_dtype, DTYPE_F32);
	ck_assert_int_eq(a.group[1].param_dtype, DTYPE_BF16);
	ck_assert_int_eq(a.group[2].grad_dtype, DTYPE_F16);
	ck_assert_uint_eq(a.tensor[1].start, 0);
	ck_assert_uint_eq(a.tensor[3].start, 64); /* 33 elements, then the next multiple of 32 */
	ck_assert_uint_eq(a.tensor[3].slot_offset, 256);
	ck_assert_uint_eq(a.tensor[3].count, 1);
	ck_assert_uint_eq(a.tensor[2].start, 1024);
	ck_assert_uint_eq(a.tensor[2].param_offset, 4096);
	ck_assert_uint_eq(a.group[1].count, 1024);
	ck_assert_uint_eq(a.tensor[0].start, 2048);
	ck_assert_uint_eq(a.tensor[0].param_offset, 4096 + 2048);
	ck_assert_uint_eq(a.tensor[0].group, 2);
	ck_assert_uint_eq(a.n_elements, 3072);
	ck_assert_uint_eq(a.n_parameters, 5 + 33 + 1024 + 1);
	ck_assert_uint_eq(a.slot_bytes, 4096 + 2048 + 2048);
	ck_assert_uint_eq(a.param_bytes, 4096 + 2048 + 2048);
	arena_fini(&a);
}
END_TEST

START_TEST(one_gradient_dtype_for_all)
{
	struct tensor_spec t[] = { tensor("w", DTYPE_F32, 1, 100, 0), tensor("b", DTYPE_BF16, 1, 100, 0) };
	struct arena a = lay_out(t, 2, DTYPE_F16);
	ck_assert_int_eq(a.group[0].grad_dtype, DTYPE_F16);
	ck_assert_int_eq(a.group[1].grad_dtype, DTYPE_F16);
	ck_assert_uint_eq(a.group[1].slot_offset, 2048);
	ck_assert_uint_eq(a.group[1].param_offset, 4096);
	ck_assert_uint_eq(a.slot_bytes, 4096);
	ck_assert_uint_eq(a.param_bytes, 4096 + 2048);
	arena_fini(&a);
}
END_TEST

START_TEST(aliases_share_the_first_owner)
{
	struct tensor_spec t[] = { tensor("w", DTYPE_F32, 1, 10, 0), tensor("x", DTYPE_F32, 1, 40, 0),
				   tensor("a", DTYPE_F32, 1, 40, 0), tensor("b", DTYPE_F32, 1, 40, 0) };
	t[2].alias_of = "x";
	t[3].alias_of = "a";
	struct arena a = lay_out(t, 4, DTYPE_NONE);
	ck_assert_int_eq(a.tensor[0].alias, -1);
	ck_assert_int_eq(a.tensor[2].alias, 1);
	ck_assert_int_eq(a.tensor[3].alias, 1);
	ck_assert_uint_eq(a.tensor[3].start, a.tensor[1].start);
	ck_assert_uint_eq(a.tensor[3].slot_offset, 128);
	ck_assert_uint_eq(a.n_parameters, 50);
	ck_assert_uint_eq(a.n_elements, 1024);
	arena_fini(&a);
}
END_TEST

START_TEST(indices_pass_2_to_the_32)
{
	struct tensor_spec t[] = { tensor("big", DTYPE_BF16, 2, 100000, 100003), tensor("next", DTYPE_BF16, 1, 7, 0),
				   tensor("f", DTYPE_F32, 2, 65536, 65537) };
	struct arena a = lay_out(t, 3, DTYPE_F32);
	/* is 32 * 312509375 */
	const uint64_t f32 = UINT64_C(65536) * 65537, big = UINT64_C(10000300000), after = 10000300000;
	ck_assert_uint_eq(a.group[0].count, f32);
	ck_assert_uint_eq(a.tensor[0].start, f32);
	ck_assert_uint_eq(a.tensor[0].count, big);
	ck_assert_uint_eq(a.tensor[1].start, f32 + after);
	ck_assert_uint_eq(a.tensor[1].slot_offset, (f32 + after) * 4);
	ck_assert_uint_eq(a.tensor[1].param_offset, f32 * 4 + after * 2);
	ck_assert_uint_eq(a.n_elements % KERNEL_BLOCK, 0);
	ck_assert_uint_eq(a.n_parameters, f32 + big + 7);
	arena_fini(&a);
}
END_TEST

START_TEST(the_first_overflow_is_named)
{
	struct tensor_spec product = tensor("p", DTYPE_F32, 2, INT64_C(1) << 40, INT64_C(1) << 40);
	assert_refused(&product, 1, "tensor 0 'p': more than");
	struct tensor_spec most = tensor("m", DTYPE_F32, 1, INT64_MAX / 8, 0);
	assert_refused(&most, 1, "tensor 0 'm': the arena would exceed"); /* rounded up to a block it is too long */
	struct tensor_spec fits = tensor("m", DTYPE_F32, 1, INT64_MAX / 8 - 1023, 0);
	struct arena a = lay_out(&fits, 1, DTYPE_NONE);
	ck_assert_uint_eq(a.n_elements, (uint64_t)INT64_MAX / 8 / 1024 * 1024);
	arena_fini(&a);
	struct tensor_spec two[] = { fits, tensor("n", DTYPE_F32, 1, 1, 0) };
	assert_refused(two, 2, "tensor 1 'n': the arena would exceed");
	struct tensor_spec halves[] = { tensor("m", DTYPE_F32, 1, INT64_C(1) << 59, 0),
					tensor("n", DTYPE_BF16, 1, INT64_C(1) << 59, 0) };
	assert_refused(halves, 2, "tensor 1 'n': the arena would exceed");
}
END_TEST

START_TEST(bad_tensors_are_named)
{
	char long_name[ARENA_MAX_NAME + 2];
	memset(long_name, 'x', sizeof(long_name) - 1);
	long_name[sizeof(long_name) - 1] = 0;
	struct tensor_spec ok = tensor("ok", DTYPE_F32, 1, 4, 0);
	const struct {
		struct tensor_spec t;
		const char *part;
	} cases[] = {
		{ tensor("", DTYPE_F32, 1, 4, 0), "tensor 1 has no name" },
		{ tensor(NULL, DTYPE_F32, 1, 4, 0), "tensor 1 has no name" },
		{ tensor(long_name, DTYPE_F32, 1, 4, 0), "longer than 255 bytes" },
		{ tensor("d", DTYPE_F64, 1, 4, 0), "tensor 1 'd': dtype f64" },
		{ tensor("d", DTYPE_NONE, 1, 4, 0), "dtype none" },
		{ tensor("z", DTYPE_F32, 2, 4, 0), "tensor 1 'z': dimension 1 is 0" },
		{ tensor("z", DTYPE_F32, 2, -3, 1), "dimension 0 is -3" },
		{ tensor("n", DTYPE_F32, 9, 1, 1), "9 dimensions" },
		{ tensor("n", DTYPE_F32, -1, 1, 1), "-1 dimensions" },
		{ tensor("ok", DTYPE_F32, 1, 4, 0), "tensors 0 and 1 are both named 'ok'" },
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct tensor_spec t[] = { ok, cases[i].t };
		assert_refused(t, 2, cases[i].part);
	}
	assert_refused(&ok, 0, "0 tensors");
	assert_refused(&ok, ARENA_MAX_TENSORS + 1, "1000001 tensors");
}
END_TEST

START_TEST(bad_aliases_are_named)
{
	struct tensor_spec t[] = { tensor("w", DTYPE_F32, 2, 3, 4), tensor("a", DTYPE_F32, 2, 3, 4) };
	t[1].alias_of = "nobody";
	assert_refused(t, 2, "tensor 1 'a': alias_of 'nobody' names no earlier tensor");
	t[1].alias_of = "a";
	assert_refused(t, 2, "names no earlier tensor");
	t[0].alias_of = "a";
	t[1].alias_of = NULL;
	assert_refused(t, 2, "tensor 0 'w': alias_of 'a' names no earlier tensor");
	t[0].alias_of = NULL;
	t[1] = tensor("a", DTYPE_F32, 2, 4, 3);
	t[1].alias_of = "w";
	assert_refused(t, 2, "is f32 [4, 3] but its alias_of 'w' is f32 [3, 4]");
	t[1] = tensor("a", DTYPE_BF16, 2, 3, 4);
	t[1].alias_of = "w";
	assert_refused(t, 2, "is bf16 [3, 4]");
}
END_TEST

START_TEST(fingerprint_depends_on_all_that_is_declared)
{
	struct tensor_spec t[] = { tensor("w", DTYPE_F32, 2, 3, 4), tensor("x", DTYPE_F32, 2, 3, 4) };
	struct tensor_spec u[] = { t[0], t[1] };
	struct arena a = lay_out(t, 2, DTYPE_NONE), b = lay_out(u, 2, DTYPE_NONE);
	ck_assert_uint_eq(a.fingerprint, b.fingerprint);
	arena_fini(&b);
	const struct tensor_spec changes[] = { tensor("y", DTYPE_F32, 2, 3, 4), tensor("x", DTYPE_BF16, 2, 3, 4),
					       tensor("x", DTYPE_F32, 2, 4, 3), tensor("x", DTYPE_F32, 1, 12, 0) };
	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
		u[1] = changes[i];
		b = lay_out(u, 2, DTYPE_NONE);
		ck_assert_uint_ne(a.fingerprint, b.fingerprint);
		arena_fini(&b);
	}
	u[1] = t[1];
	u[1].alias_of = "w";
	b = lay_out(u, 2, DTYPE_NONE);
	ck_assert_uint_ne(a.fingerprint, b.fingerprint);
	arena_fini(&b);
	b = lay_out(t, 2, DTYPE_BF16);
	ck_assert_uint_ne(a.fingerprint, b.fingerprint);
	arena_fini(&b);
	arena_fini(&a);
}
END_TEST

static void assert_difference(const struct tensor_spec *a, uint64_t n_a, const struct tensor_spec *b, uint64_t n_b,
			      const char *want)
{
	ck_assert(tensor_set_differs(a, n_a, b, n_b, why, sizeof(why)));
	ck_assert_str_eq(why, want);
}

START_TEST(the_first_difference_is_a_sentence)
{
	struct tensor_spec a[] = { tensor("w", DTYPE_F32, 2, 3, 4), tensor("x", DTYPE_F32, 1, 4, 0) };
	struct tensor_spec b[] = { a[0], a[1] };
	ck_assert(!tensor_set_differs(a, 2, b, 2, why, sizeof(why)));
	b[1].alias_of = "";
	ck_assert(!tensor_set_differs(a, 2, b, 2, why, sizeof(why)));
	assert_difference(a, 2, b, 1, "2 tensors against 1: 'x' is in one set only");
	assert_difference(a, 1, b, 2, "1 tensors against 2: 'x' is in one set only");
	b[1].alias_of = "w";
	assert_difference(a, 2, b, 2, "tensor 1 'x': alias_of '' against 'w'");
	b[1] = tensor("x", DTYPE_F32, 1, 5, 0);
	assert_difference(a, 2, b, 2, "tensor 1 'x': shape [4] against [5]");
	b[1] = tensor("x", DTYPE_F16, 1, 5, 0);
	assert_difference(a, 2, b, 2, "tensor 1 'x': dtype f32 against f16");
	b[0].name = "v";
	assert_difference(a, 2, b, 2, "tensor 0 is named 'w' in one set and 'v' in the other");
}
END_TEST

START_TEST(many_tensors)
{
	enum { N = 20000 };
	struct tensor_spec *t = calloc(N, sizeof(*t));
	char(*name)[16] = calloc(N, sizeof(*name));
	for (int i = 0; i < N; i++) {
		snprintf(name[i], sizeof(name[i]), "layer.%d", i);
		t[i] = tensor(name[i], DTYPE_F32, 1, 33, 0);
	}
	struct arena a = lay_out(t, N, DTYPE_NONE);
	ck_assert_uint_eq(a.tensor[N - 1].start, (uint64_t)(N - 1) * 64);
	arena_fini(&a);
	arena_fini(&a);
	arena_fini(NULL);
	free(t);
	free(name);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("arena");
	TCase *tc = tcase_create("layout");
	tcase_add_test(tc, groups_come_by_dtype_and_tensors_as_declared);
	tcase_add_test(tc, one_gradient_dtype_for_all);
	tcase_add_test(tc, aliases_share_the_first_owner);
	tcase_add_test(tc, indices_pass_2_to_the_32);
	tcase_add_test(tc, the_first_overflow_is_named);
	tcase_add_test(tc, bad_tensors_are_named);
	tcase_add_test(tc, bad_aliases_are_named);
	tcase_add_test(tc, fingerprint_depends_on_all_that_is_declared);
	tcase_add_test(tc, the_first_difference_is_a_sentence);
	tcase_add_test(tc, many_tensors);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
