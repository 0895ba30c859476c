/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor sets as messages, there and back. */
#include "gacc/v1/common.pb-c.h"
#include "runtime/spec_message.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

Suite *tensors_suite(void);

static const struct tensor_spec set[] = {
	{ .name = "scalar", .dtype = DTYPE_F32 },
	{ .name = "w", .dtype = DTYPE_BF16, .n_dims = 2, .shape = { 3, INT64_MAX } },
	{ .name = "deep", .dtype = DTYPE_F16, .n_dims = ARENA_MAX_DIMS, .shape = { 1, 2, 3, 4, 5, 6, 7, 8 } },
	{ .name = "tied \xc3\xa9", .dtype = DTYPE_BF16, .n_dims = 1, .shape = { -4 }, .alias_of = "w" }
};
enum { N_SET = sizeof(set) / sizeof(*set) };

START_TEST(a_set_comes_back)
{
	size_t n;
	struct tensor_spec *back;
	char why[200] = "";
	void *bytes = tensors_to_message(set, N_SET, &n);
	Gacc__V1__JobSpec *pb = gacc__v1__job_spec__unpack(NULL, n, bytes);
	ck_assert_uint_eq(pb->n_tensors, N_SET);
	ck_assert_int_eq(tensors_from_message(pb->tensors, N_SET, &back, why, sizeof(why)), ST_OK);
	for (int i = 0; i < N_SET; i++) {
		ck_assert_str_eq(back[i].name, set[i].name);
		ck_assert_int_eq(back[i].dtype, set[i].dtype);
		ck_assert_int_eq(back[i].n_dims, set[i].n_dims);
		ck_assert_mem_eq(back[i].shape, set[i].shape, sizeof(set->shape));
		ck_assert_int_eq(back[i].alias_of != NULL, set[i].alias_of != NULL);
		ck_assert(!set[i].alias_of || !strcmp(back[i].alias_of, set[i].alias_of));
		ck_assert_ptr_eq(back[i].name, pb->tensors[i]->name); /* borrowed */
	}
	free(back);
	gacc__v1__job_spec__free_unpacked(pb, NULL);
	free(bytes);
}
END_TEST

/* The journal's TENSORS is the set and nothing else. */
START_TEST(nothing_else_is_in_the_message)
{
	size_t n, n_set = 0;
	void *bytes = tensors_to_message(set, N_SET, &n);
	Gacc__V1__JobSpec *pb = gacc__v1__job_spec__unpack(NULL, n, bytes);
	for (size_t i = 0; i < pb->n_tensors; i++) {
		size_t one = gacc__v1__tensor_spec__get_packed_size(pb->tensors[i]);
		n_set += 2 + 1 + one; /* the field's tag, its length, the tensor */
	}
	ck_assert_uint_eq(n, n_set);
	gacc__v1__job_spec__free_unpacked(pb, NULL);
	free(bytes);
}
END_TEST

START_TEST(more_dimensions_than_a_tensor_has)
{
	int64_t shape[ARENA_MAX_DIMS + 1] = { 1, 1, 1, 1, 1, 1, 1, 1, 1 };
	char fine[] = "fine", deep[] = "too deep", why[200] = "";
	Gacc__V1__TensorSpec a = GACC__V1__TENSOR_SPEC__INIT, b = a, *list[] = { &a, &b };
	struct tensor_spec *out = NULL;
	a.name = fine;
	a.shape = b.shape = shape;
	a.n_shape = ARENA_MAX_DIMS;
	b.name = deep;
	b.n_shape = ARENA_MAX_DIMS + 1;
	ck_assert_int_eq(tensors_from_message(list, 2, &out, why, sizeof(why)), ST_INVALID_ARGUMENT);
	ck_assert_str_eq(why, "tensor 1 \"too deep\" has 9 dimensions, at most 8 are allowed");
	ck_assert_ptr_null(out);
	ck_assert_int_eq(tensors_from_message(list, 1, &out, why, sizeof(why)), ST_OK);
	free(out);
}
END_TEST

START_TEST(no_tensors)
{
	struct tensor_spec *out = NULL;
	char why[200];
	ck_assert_int_eq(tensors_from_message(NULL, 0, &out, why, sizeof(why)), ST_OK);
	ck_assert_ptr_nonnull(out);
	free(out);
}
END_TEST

Suite *tensors_suite(void)
{
	Suite *s = suite_create("tensors");
	TCase *t = tcase_create("tensors");
	suite_add_tcase(s, t);
	tcase_add_test(t, a_set_comes_back);
	tcase_add_test(t, nothing_else_is_in_the_message);
	tcase_add_test(t, more_dimensions_than_a_tensor_has);
	tcase_add_test(t, no_tensors);
	return s;
}
