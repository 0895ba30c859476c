/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor sets on their way to the coordinator, in two pieces and in one, and the answers. */
#include "cluster/tensors_message.h"
#include "support/suite.h"
#include "unit/cluster/altered.h"

#include <stdlib.h>
#include <string.h>

static const struct part_tensor_set about = { .job_id = 101, .epoch = 102, .part = 3 };
static struct shared *set;
static uint8_t *bytes;
static size_t n;
static char why[200];

static void make(size_t n_set)
{
	char *data = malloc(n_set);
	for (size_t i = 0; i < n_set; i++)
		data[i] = (char)(i * 7);
	set = shared_new(data, n_set);
	bytes = tensor_set_pack(&about, set, &n);
	ck_assert_ptr_nonnull(bytes);
	why[0] = '\0';
}

static void drop(void)
{
	ck_assert_uint_eq(atomic_load(&set->holders), 1);
	shared_drop(set);
	free(bytes);
}

static void expect_good(const struct part_tensor_set *t, const struct shared *got)
{
	ck_assert_uint_eq(t->job_id, 101);
	ck_assert_uint_eq(t->epoch, 102);
	ck_assert_uint_eq(t->part, 3);
	ck_assert_uint_eq(got->n, set->n);
	ck_assert_mem_eq(got->data, set->data, set->n);
}
/* A member that is added and not compared above changes the size. */
_Static_assert(sizeof(struct part_tensor_set) == 24 && sizeof(struct tensors_kept) == 24, "compared above");

static const size_t sizes[] = { 1, 127, 128, 300, 20000, 3 << 20 };

START_TEST(a_set_is_lent_within_a_process)
{
	struct part_tensor_set t;
	struct shared *got;
	make(sizes[_i]);
	ck_assert_uint_lt(n, 32);
	ck_assert_msg(!tensor_set_unpack(bytes, n, set, &t, &got, why, sizeof(why)), "%s", why);
	ck_assert_ptr_eq(got, set); /* not copied */
	expect_good(&t, got);
	shared_drop(got);
	drop();
}
END_TEST

/* What a peer reads from its stream. */
START_TEST(both_pieces_are_one_message)
{
	struct part_tensor_set t;
	struct shared *got;
	make(sizes[_i]);
	uint8_t *whole = malloc(n + set->n);
	memcpy(whole, bytes, n);
	memcpy(whole + n, set->data, set->n);
	ck_assert_msg(!tensor_set_unpack(whole, n + set->n, NULL, &t, &got, why, sizeof(why)), "%s", why);
	memset(whole, 0xee, n + set->n); /* nothing points there */
	free(whole);
	expect_good(&t, got);
	shared_drop(got);
	drop();
}
END_TEST

static void expect_refused(size_t n_bytes, struct shared *with, const char *text)
{
	struct part_tensor_set t;
	struct shared *got;
	ck_assert_int_eq(tensor_set_unpack(bytes, n_bytes, with, &t, &got, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_msg(strstr(why, text) != NULL, "%s, not: %s", why, text);
}

START_TEST(senseless_sets_are_refused)
{
	make(200);
	struct shared *shorter = shared_new(malloc(100), 100);
	expect_refused(n, shorter, "TensorSet.set is not the 100 bytes that follow");
	expect_refused(n - 1, set, "TensorSet.set is not the 200 bytes that follow");
	expect_refused(1, set, "TensorSet.set is not the 200 bytes that follow");
	expect_refused(n - 3, NULL, "TensorSet.set is missing"); /* without what announces it */
	expect_refused(n, NULL, "TensorSet");			 /* it is cut off */
	free(bytes);
	const struct part_tensor_set none = { .job_id = 1 };
	bytes = tensor_set_pack(&none, set, &n);
	expect_refused(n, set, "TensorSet.epoch is missing");
	shared_drop(shorter);
	drop();
}
END_TEST

START_TEST(a_set_is_not_there_twice)
{
	make(1);
	uint8_t *twice = malloc(n + 1 + 3);
	memcpy(twice, bytes, n);
	twice[n] = 0;
	memcpy(twice + n + 1, bytes + n - 2, 2); /* announced once more */
	free(bytes);
	bytes = twice;
	expect_refused(n + 3, set, "TensorSet.set is there twice");
	drop();
}
END_TEST

START_TEST(an_answer_comes_back)
{
	const struct tensors_kept k = { 101, 102, 3, ST_STORE_FAILED }, none = { .job_id = 1 };
	struct tensors_kept back;
	void *packed = tensors_kept_pack(&k, &n);
	ck_assert_int_eq(tensors_kept_unpack(packed, n, &back, why, sizeof(why)), ST_OK);
	ck_assert_uint_eq(back.job_id, 101);
	ck_assert_uint_eq(back.epoch, 102);
	ck_assert_uint_eq(back.part, 3);
	ck_assert_int_eq(back.status, ST_STORE_FAILED);
	free(packed);
	packed = tensors_kept_pack(&none, &n);
	ck_assert_int_eq(tensors_kept_unpack(packed, n, &back, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_str_eq(why, "TensorsKept.epoch is missing");
	free(packed);
}
END_TEST

static unsigned try_bytes(const uint8_t *at, size_t n_at)
{
	struct part_tensor_set t;
	struct tensors_kept k;
	struct shared *got = NULL;
	why[0] = '\0';
	enum status st = tensor_set_unpack(at, n_at, NULL, &t, &got, why, sizeof(why));
	ck_assert(st == ST_OK ? t.epoch && got->n : st == ST_VERSION_SKEW && *why);
	shared_drop(got);
	got = NULL;
	enum status lent = tensor_set_unpack(at, n_at, set, &t, &got, why, sizeof(why));
	ck_assert(lent == ST_OK ? t.epoch && got == set : lent == ST_VERSION_SKEW);
	shared_drop(got);
	enum status other = tensors_kept_unpack(at, n_at, &k, why, sizeof(why));
	ck_assert(other == ST_OK || other == ST_VERSION_SKEW);
	return st == ST_OK;
}

START_TEST(any_bytes_are_read_or_refused)
{
	make(40);
	uint8_t *whole = malloc(n + set->n);
	memcpy(whole, bytes, n);
	memcpy(whole + n, set->data, set->n);
	altered_try(whole, n + set->n, 6000, try_bytes);
	free(whole);
	drop();
}
END_TEST

int main(void)
{
	Suite *s = suite_create("tensors_message");
	TCase *c = tcase_create("tensors_message");
	suite_add_tcase(s, c);
	tcase_add_loop_test(c, a_set_is_lent_within_a_process, 0, 6);
	tcase_add_loop_test(c, both_pieces_are_one_message, 0, 6);
	tcase_add_test(c, senseless_sets_are_refused);
	tcase_add_test(c, a_set_is_not_there_twice);
	tcase_add_test(c, an_answer_comes_back);
	tcase_add_test(c, any_bytes_are_read_or_refused);
	return suite_run(s);
}
