/* SPDX-License-Identifier: Apache-2.0 */
/* Questions for norms, and their answers: every number goes through its message, and what is wrong with one is said. */
#include "cluster/norms_message.h"
#include "support/suite.h"
#include "unit/cluster/altered.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double grad[NORMS_PORTION + 1], param[NORMS_PORTION + 1];

static struct norms_ask some_ask(void)
{
	return (struct norms_ask){ 101, 102, 103, 104, 105, 106, 107, UINT64_MAX - 1, UINT64_MAX - 2, 3 };
}

static struct part_norms some_norms(void)
{
	for (int i = 0; i <= NORMS_PORTION; i++) {
		grad[i] = i + 0.5;
		param[i] = 2 * i;
	}
	grad[1] = INFINITY;
	param[1] = NAN;
	return (struct part_norms){ .job_id = 101,
				    .epoch = 102,
				    .number = 103,
				    .first = 104,
				    .total = NORMS_PORTION + 105,
				    .part = 3,
				    .n = NORMS_PORTION,
				    .grad = grad,
				    .param = param };
}

START_TEST(a_question_comes_back)
{
	const struct norms_ask a = some_ask();
	struct norms_ask back;
	char why[200];
	size_t n;
	void *bytes = norms_ask_pack(&a, &n);
	ck_assert_int_eq(norms_ask_unpack(bytes, n, &back, why, sizeof(why)), ST_OK);
	ck_assert(back.job_id == 101 && back.epoch == 102 && back.number == 103 && back.window == 104);
	ck_assert(back.term == 105 && back.attempt == 106 && back.first == 107 && back.part == 3);
	ck_assert(back.uuid_high == UINT64_MAX - 1 && back.uuid_low == UINT64_MAX - 2);
	free(bytes);
}
END_TEST
/* A member that is added and not compared above changes the size. */
_Static_assert(sizeof(struct norms_ask) == 80, "compared above");

START_TEST(senseless_questions_are_refused)
{
	static const char *const field[] = { "epoch", "number", "term", "attempt" };
	struct norms_ask back;
	char why[200], text[60];
	size_t n;
	for (int k = 0; k < 4; k++) {
		struct norms_ask a = some_ask();
		*(k == 0 ? &a.epoch : k == 1 ? &a.number : k == 2 ? &a.term : &a.attempt) = 0;
		void *bytes = norms_ask_pack(&a, &n);
		ck_assert_int_eq(norms_ask_unpack(bytes, n, &back, why, sizeof(why)), ST_VERSION_SKEW);
		snprintf(text, sizeof(text), "NormsAsk.%s is missing", field[k]);
		ck_assert_str_eq(why, text);
		free(bytes);
	}
	ck_assert_int_eq(norms_ask_unpack("\x0a", 1, &back, why, sizeof(why)), ST_VERSION_SKEW);
}
END_TEST

static enum status through(const struct part_norms *p, struct part_norms *out, char why[200])
{
	size_t n;
	void *bytes = norms_pack(p, &n);
	ck_assert_ptr_nonnull(bytes);
	enum status st = norms_unpack(bytes, n, out, why, 200);
	free(bytes);
	return st;
}

START_TEST(norms_come_back)
{
	struct part_norms p = some_norms(), back;
	char why[200];
	ck_assert_int_eq(through(&p, &back, why), ST_OK);
	ck_assert(back.job_id == 101 && back.epoch == 102 && back.number == 103 && back.first == 104);
	ck_assert(back.total == NORMS_PORTION + 105 && back.part == 3 && back.n == NORMS_PORTION && !back.status);
	ck_assert(!memcmp(back.grad, grad, sizeof(*grad) * back.n) &&
		  !memcmp(back.param, param, sizeof(*param) * back.n));
	norms_release(&back);
	ck_assert_ptr_null(back.message);
	p.n = 0;
	p.status = ST_ATTEMPT_FAILED;
	strcpy(p.text, "no");
	ck_assert_int_eq(through(&p, &back, why), ST_OK);
	ck_assert(!back.n && back.status == ST_ATTEMPT_FAILED && !strcmp(back.text, "no"));
	norms_release(&back);
}
END_TEST
_Static_assert(sizeof(struct part_norms) == 240, "compared above");

START_TEST(senseless_norms_are_refused)
{
	struct part_norms p = some_norms(), back;
	char why[200];
#define REFUSED(change, text_)                                                                                         \
	do {                                                                                                           \
		change;                                                                                                \
		ck_assert_int_eq(through(&p, &back, why), ST_VERSION_SKEW);                                            \
		ck_assert_str_eq(why, text_);                                                                          \
		p = some_norms();                                                                                      \
	} while (0)
	REFUSED(p.epoch = 0, "PartNorms.epoch is missing");
	REFUSED(p.number = 0, "PartNorms.number is missing");
	REFUSED((p.n++, p.total++), "PartNorms.grad has 16385 values, and must have 1 to 16384");
	REFUSED(p.n = 0, "PartNorms.grad has 0 values, and must have 1 to 16384");
	REFUSED(p.status = ST_IO_ERROR, "PartNorms.grad has 16384 values, and must have none beside a status");
	REFUSED(p.total = 1000001, "PartNorms.total is 1000001, with 104 tensors before these 16384");
	REFUSED(p.total = NORMS_PORTION - 1, "PartNorms.total is 16383, with 104 tensors before these 16384");
	REFUSED(p.first = 106, "PartNorms.total is 16489, with 106 tensors before these 16384");
	REFUSED(p.first = UINT64_MAX, "PartNorms.total is 16489, with 18446744073709551615 tensors before these 16384");
	REFUSED(grad[7] = -1, "PartNorms.grad is -1, and a sum of squares is not negative");
	REFUSED(param[7] = -INFINITY, "PartNorms.param is -inf, and a sum of squares is not negative");
#undef REFUSED
	/* epoch, number and total 1, one grad, no param */
	static const uint8_t lame[] = { 0x10, 1, 0x20, 1, 0x30, 1, 0x3a, 8, 0, 0, 0, 0, 0, 0, 0, 0 };
	ck_assert_int_eq(norms_unpack(lame, sizeof(lame), &back, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_str_eq(why, "PartNorms.param has 0 values, and grad has 1");
	ck_assert_int_eq(norms_unpack("\x0a", 1, &back, why, sizeof(why)), ST_VERSION_SKEW);
}
END_TEST

static unsigned try_bytes(const uint8_t *bytes, size_t n)
{
	struct part_norms p;
	char why[200] = "";
	enum status st = norms_unpack(bytes, n, &p, why, sizeof(why));
	ck_assert(st == ST_OK || (st == ST_VERSION_SKEW && *why));
	if (!st) {
		ck_assert(!p.n == !!p.status && p.first + p.n <= p.total && p.total <= 1000000);
		norms_release(&p);
	}
	return st == ST_OK;
}

START_TEST(any_bytes_are_read_or_refused)
{
	struct part_norms p = some_norms();
	size_t n;
	p.n = 3;
	void *bytes = norms_pack(&p, &n);
	altered_try(bytes, n, 6000, try_bytes);
	free(bytes);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("norms message");
	TCase *c = tcase_create("norms message");
	suite_add_tcase(s, c);
	tcase_add_test(c, a_question_comes_back);
	tcase_add_test(c, senseless_questions_are_refused);
	tcase_add_test(c, norms_come_back);
	tcase_add_test(c, senseless_norms_are_refused);
	tcase_add_test(c, any_bytes_are_read_or_refused);
	return suite_run(s);
}
