/* SPDX-License-Identifier: Apache-2.0 */
/* What follows a placement: every field goes through its message, and what is wrong with one is said. */
#include "cluster/placed_message.h"
#include "support/suite.h"
#include "unit/cluster/altered.h"

#include <stdlib.h>
#include <string.h>

static struct placed full(void)
{
	return (struct placed){ .job_id = 101,
				.epoch = 102,
				.part = 3,
				.refused = true,
				.status = ST_RESOURCE_EXHAUSTED,
				.text = "no room on node-\xc3\xa9",
				.save_bytes = 104,
				.carry_bytes = 105 };
}

static enum status through(const struct placed *p, struct placed *out, char why[200])
{
	size_t n;
	void *bytes = placed_pack(p, &n);
	ck_assert_ptr_nonnull(bytes);
	enum status st = placed_unpack(bytes, n, out, why, 200);
	free(bytes);
	return st;
}

START_TEST(an_answer_comes_back)
{
	struct placed p = full(), back;
	char why[200];
	ck_assert_int_eq(through(&p, &back, why), ST_OK);
	ck_assert_uint_eq(back.job_id, 101);
	ck_assert_uint_eq(back.epoch, 102);
	ck_assert_uint_eq(back.part, 3);
	ck_assert(back.refused);
	ck_assert_int_eq(back.status, ST_RESOURCE_EXHAUSTED);
	ck_assert_str_eq(back.text, p.text);
	ck_assert_uint_eq(back.save_bytes, 104);
	ck_assert_uint_eq(back.carry_bytes, 105);
	p = (struct placed){ .epoch = 1 };
	ck_assert_int_eq(through(&p, &back, why), ST_OK);
	ck_assert(!back.refused);
	ck_assert_int_eq(back.status, ST_OK);
	ck_assert_str_eq(back.text, "");
}
END_TEST
/* A member that is added and not compared above changes the size. */
_Static_assert(sizeof(struct placed) == 368 && sizeof(struct drop) == 40, "compared above");

START_TEST(texts_are_mended)
{
	struct placed p = full(), back;
	char why[200];
	memset(p.text, 'x', sizeof(p.text) - 1);
	p.text[10] = '\xff';
	ck_assert_int_eq(through(&p, &back, why), ST_OK);
	ck_assert_uint_eq(strlen(back.text), sizeof(p.text) - 1);
	ck_assert_int_eq(back.text[10], '?');
}
END_TEST

START_TEST(senseless_answers_are_refused)
{
	struct placed p = full(), back;
	char why[200] = "";
	p.epoch = 0;
	ck_assert_int_eq(through(&p, &back, why), ST_VERSION_SKEW);
	ck_assert_str_eq(why, "Placed.epoch is missing");
	p = full();
	p.status = ST_OK;
	ck_assert_int_eq(through(&p, &back, why), ST_VERSION_SKEW);
	ck_assert_str_eq(why, "Placed.status is missing");
	ck_assert_int_eq(placed_unpack("\x0a", 1, &back, why, sizeof(why)), ST_VERSION_SKEW);
}
END_TEST

START_TEST(a_drop_comes_back)
{
	const struct drop d = { .job_id = 101, .epoch = 102, .uuid_high = 103, .uuid_low = 104, .part = 3 },
			  none = { .job_id = 101, .part = 3 };
	struct drop back;
	char why[200] = "";
	size_t n;
	void *bytes = drop_pack(&d, &n);
	ck_assert_int_eq(drop_unpack(bytes, n, &back, why, sizeof(why)), ST_OK);
	ck_assert_mem_eq(&back.job_id, &d.job_id, 32);
	ck_assert_uint_eq(back.part, 3);
	free(bytes);
	bytes = drop_pack(&none, &n);
	ck_assert_int_eq(drop_unpack(bytes, n, &back, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_str_eq(why, "Drop.epoch is missing");
	free(bytes);
}
END_TEST

static unsigned try_bytes(const uint8_t *bytes, size_t n)
{
	struct placed p;
	struct drop d;
	char why[200] = "";
	enum status st = placed_unpack(bytes, n, &p, why, sizeof(why));
	ck_assert(st == ST_OK || (st == ST_VERSION_SKEW && *why));
	ck_assert(st || (p.epoch && (!p.refused || p.status)));
	why[0] = '\0';
	enum status other = drop_unpack(bytes, n, &d, why, sizeof(why));
	ck_assert(other == ST_OK || (other == ST_VERSION_SKEW && *why));
	return st == ST_OK;
}

START_TEST(any_bytes_are_read_or_refused)
{
	struct placed p = full();
	size_t n;
	void *bytes = placed_pack(&p, &n);
	altered_try(bytes, n, 6000, try_bytes);
	free(bytes);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("placed");
	TCase *c = tcase_create("placed");
	suite_add_tcase(s, c);
	tcase_add_test(c, an_answer_comes_back);
	tcase_add_test(c, texts_are_mended);
	tcase_add_test(c, senseless_answers_are_refused);
	tcase_add_test(c, a_drop_comes_back);
	tcase_add_test(c, any_bytes_are_read_or_refused);
	return suite_run(s);
}
