/* SPDX-License-Identifier: Apache-2.0 */
/* Ledgers of windows: every number goes through its message, and what is wrong with one is said. */
#include "cluster/commit_message.h"
#include "cluster/ledger_message.h"
#include "gacc/internal/v1/cluster.pb-c.h"
#include "support/suite.h"
#include "unit/cluster/altered.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 100, MAX_MICRO = 60, N = 3 };
static const struct message_bounds bounds = { RANKS, MAX_MICRO, 1 };
static uint32_t rank[LEDGER_PORTION + 1], micro[LEDGER_PORTION + 1];
static double weight[LEDGER_PORTION + 1], loss[LEDGER_PORTION + 1];
static uint64_t data_key[LEDGER_PORTION + 1];
static int64_t unix_nanos[LEDGER_PORTION + 1];

static struct part_ledger full(void)
{
	for (uint32_t i = 0; i <= LEDGER_PORTION; i++) {
		rank[i] = i % RANKS;
		micro[i] = i % MAX_MICRO;
		weight[i] = i + 0.5;
		loss[i] = -(double)i;
		data_key[i] = UINT64_MAX - i;
		unix_nanos[i] = -5 + (int64_t)i;
	}
	return (struct part_ledger){ .job_id = 101,
				     .epoch = 102,
				     .incarnation = 103,
				     .window = 104,
				     .total = 5000,
				     .counted = 4000,
				     .first = 4997,
				     .part = 3,
				     .n = N,
				     .rank = rank,
				     .micro = micro,
				     .weight = weight,
				     .loss = loss,
				     .data_key = data_key,
				     .unix_nanos = unix_nanos };
}

static enum status through(const struct part_ledger *l, struct part_ledger *out, char why[200])
{
	size_t n;
	void *bytes = ledger_pack(l, &n);
	ck_assert_ptr_nonnull(bytes);
	enum status st = ledger_unpack(bytes, n, &bounds, out, why, 200);
	free(bytes);
	return st;
}

static void expect_same(const struct part_ledger *l)
{
	struct part_ledger back;
	char why[200] = "";
	ck_assert_msg(through(l, &back, why) == ST_OK, "%s", why);
#define SAME(field) ck_assert_msg(back.field == l->field, "%s", #field)
	SAME(job_id), SAME(epoch), SAME(incarnation), SAME(window), SAME(total), SAME(counted), SAME(first), SAME(part);
	SAME(n);
	for (uint32_t i = 0; i < l->n; i++)
		SAME(rank[i]), SAME(micro[i]), SAME(weight[i]), SAME(loss[i]), SAME(data_key[i]), SAME(unix_nanos[i]);
#undef SAME
	ledger_release(&back);
	ck_assert_ptr_null(back.message);
}

START_TEST(a_ledger_comes_back)
{
	struct part_ledger l = full();
	expect_same(&l);
	l.n = LEDGER_PORTION;
	l.first = 0;
	expect_same(&l);
	l = (struct part_ledger){ .epoch = 1, .incarnation = 1 }; /* of a window without micro-batches */
	expect_same(&l);
}
END_TEST
/* A member that is added and not compared above changes the size. */
_Static_assert(sizeof(struct part_ledger) == 120, "compared above");

static void expect_refused(const struct part_ledger *l, const char *text)
{
	struct part_ledger back = { .n = 77 };
	char why[200] = "";
	ck_assert_int_eq(through(l, &back, why), ST_VERSION_SKEW);
	ck_assert_str_eq(why, text);
	ck_assert_uint_eq(back.n, 77);
}

START_TEST(senseless_ledgers_are_refused)
{
	struct part_ledger l = full(), back;
	char why[200];
#define REFUSED(change, text) change, expect_refused(&l, text), l = full()
	REFUSED(l.epoch = 0, "PartLedger.epoch is missing");
	REFUSED(l.incarnation = 0, "PartLedger.incarnation is missing");
	REFUSED(l.total = 6001, "PartLedger.total is 6001, and may be at most 6000");
	REFUSED(l.counted = 5001, "PartLedger.counted is 5001, and may be at most 5000");
	REFUSED(l.first = 4998, "PartLedger.first is 4998, and may be at most 4997");
	REFUSED(l.first = UINT64_MAX, "PartLedger.first is 18446744073709551615, and may be at most 4997");
	REFUSED((l.total = l.counted = 2, l.first = 0), "PartLedger.rank has 3 entries, and must have 1 to 2");
	REFUSED(l.n = 0, "PartLedger.rank has 0 entries, and must have 1 to 2048");
	REFUSED((l.n = LEDGER_PORTION + 1, l.first = 0), "PartLedger.rank has 2049 entries, and must have 1 to 2048");
	REFUSED(rank[2] = RANKS, "PartLedger.rank is 100, and may be at most 99");
	REFUSED(micro[2] = MAX_MICRO, "PartLedger.micro is 60, and may be at most 59");
#undef REFUSED
	ck_assert_int_eq(ledger_unpack("\x0a", 1, &bounds, &back, why, sizeof(why)), ST_VERSION_SKEW);
}
END_TEST

/* The coordinator holds the ledgers of all parts: together they are no more than that of one part may be. */
START_TEST(parts_share_the_bound_of_a_ledger)
{
	static const struct message_bounds large = { 65536, 64, 16 };
	for (uint64_t more = 0; more < 2; more++) {
		struct part_ledger l = full(), back;
		char why[200] = "";
		size_t n;
		l.total = l.counted = LEDGER_MOST / 16 + more;
		l.first = 0;
		void *bytes = ledger_pack(&l, &n);
		ck_assert_ptr_nonnull(bytes);
		enum status st = ledger_unpack(bytes, n, &large, &back, why, sizeof(why));
		free(bytes);
		ck_assert_int_eq(st, more ? ST_VERSION_SKEW : ST_OK);
		if (more)
			ck_assert_str_eq(why, "PartLedger.total is 16385, and may be at most 16384");
		else
			ledger_release(&back);
	}
}
END_TEST

/* Each column is short by one, or missing. */
START_TEST(columns_are_as_long_as_each_other)
{
	static const char *const names[] = { "micro", "weight", "loss", "data_key", "unix_nanos" };
	for (int k = 0; k < 10; k++) {
		struct part_ledger l = full(), back;
		Gacc__Internal__V1__PartLedger m = GACC__INTERNAL__V1__PART_LEDGER__INIT;
		size_t *const n[] = { &m.n_micro, &m.n_weight, &m.n_loss, &m.n_data_key, &m.n_unix_nanos };
		char why[200] = "", expected[200];
		m.epoch = m.incarnation = 1;
		m.total = N;
		m.rank = l.rank, m.micro = l.micro, m.weight = l.weight, m.loss = l.loss, m.data_key = l.data_key;
		m.unix_nanos = l.unix_nanos;
		m.n_rank = m.n_micro = m.n_weight = m.n_loss = m.n_data_key = m.n_unix_nanos = N;
		*n[k / 2] = k % 2 ? 0 : N - 1;
		size_t size = gacc__internal__v1__part_ledger__get_packed_size(&m);
		uint8_t *bytes = malloc(size);
		gacc__internal__v1__part_ledger__pack(&m, bytes);
		ck_assert_int_eq(ledger_unpack(bytes, size, &bounds, &back, why, sizeof(why)), ST_VERSION_SKEW);
		snprintf(expected, sizeof(expected), "PartLedger.%s has %d entries, and rank has 3", names[k / 2],
			 k % 2 ? 0 : N - 1);
		ck_assert_str_eq(why, expected);
		free(bytes);
	}
}
END_TEST

static unsigned try_bytes(const uint8_t *bytes, size_t n)
{
	struct part_ledger l;
	char why[200] = "";
	enum status st = ledger_unpack(bytes, n, &bounds, &l, why, sizeof(why));
	ck_assert(st == ST_OK || (st == ST_VERSION_SKEW && *why));
	if (st)
		return 0;
	ck_assert(l.epoch && l.incarnation && l.counted <= l.total && l.first + l.n <= l.total);
	for (uint32_t i = 0; i < l.n; i++)
		ck_assert(l.rank[i] < RANKS && l.micro[i] < MAX_MICRO);
	ledger_release(&l);
	return 1;
}

START_TEST(any_bytes_are_read_or_refused)
{
	struct part_ledger l = full();
	size_t n;
	void *bytes = ledger_pack(&l, &n);
	altered_try(bytes, n, 6000, try_bytes);
	free(bytes);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("ledger_message");
	TCase *c = tcase_create("ledger_message");
	suite_add_tcase(s, c);
	tcase_add_test(c, a_ledger_comes_back);
	tcase_add_test(c, senseless_ledgers_are_refused);
	tcase_add_test(c, parts_share_the_bound_of_a_ledger);
	tcase_add_test(c, columns_are_as_long_as_each_other);
	tcase_add_test(c, any_bytes_are_read_or_refused);
	return suite_run(s);
}
