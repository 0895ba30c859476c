/* SPDX-License-Identifier: Apache-2.0 */
/* EXITS: both forms are read, member by member, and what is wrong with one is said. */
#include "cluster/exits_record.h"
#include "cluster/raw_records.h"
#include "support/suite.h"

#include <stdlib.h>
#include <string.h>

#define N 3

static struct launch_rank some_rank[N];

static struct exits full(void)
{
	for (uint32_t i = 0; i < N; i++)
		some_rank[i] =
			(struct launch_rank){ LAUNCH_RANK_EXITED, INT64_C(1) << (33 + i), 130 + (int32_t)i, 20 + i, 0 };
	some_rank[1].state = LAUNCH_RANK_WAITING;
	some_rank[2].exit_status = LAUNCH_NO_STATUS;
	return (struct exits){ { .phase = LAUNCH_OVER,
				 .result = LAUNCH_FAILED,
				 .charged = 7,
				 .cause = { true, 2, 99, 137, INT64_C(5) << 40 } },
			       some_rank,
			       N,
			       "last words",
			       10 };
}

static void expect_same(const void *bytes, size_t n, const struct exits *e)
{
	struct exits back;
	char why[200] = "";
	ck_assert_msg(!exits_record_read(bytes, n, e->n_ranks, &back, why, sizeof(why)), "%s", why);
	ck_assert_int_eq(back.summary.phase, e->summary.phase);
	ck_assert_int_eq(back.summary.result, e->summary.result);
	ck_assert_uint_eq(back.summary.charged, e->summary.charged);
	ck_assert_int_eq(back.summary.cause.known, e->summary.cause.known);
	ck_assert_uint_eq(back.summary.cause.rank, e->summary.cause.rank);
	ck_assert_int_eq(back.summary.cause.pid, e->summary.cause.pid);
	ck_assert_int_eq(back.summary.cause.exit_status, e->summary.cause.exit_status);
	ck_assert_int_eq(back.summary.cause.unix_ns, e->summary.cause.unix_ns);
	ck_assert_uint_eq(back.n_ranks, e->n_ranks);
	for (uint32_t i = 0; i < e->n_ranks; i++) {
		ck_assert_int_eq(back.rank[i].state, e->rank[i].state);
		ck_assert_int_eq(back.rank[i].pid, e->rank[i].pid);
		ck_assert_int_eq(back.rank[i].exit_status, e->rank[i].exit_status);
		ck_assert_uint_eq(back.rank[i].restarts, e->rank[i].restarts);
	}
	ck_assert_uint_eq(back.n_tail, e->n_tail);
	ck_assert_mem_eq(back.tail, e->tail, e->n_tail);
	free(back.rank);
}
/* A member that is added and not compared above changes the size; what only a launcher that lives knows is not kept. */
_Static_assert(sizeof(struct launch_rank) == 32 && sizeof(struct launch_summary) == 64, "compared above");

static void expect_refused(const void *bytes, size_t n, uint32_t ranks, const char *text)
{
	struct exits back;
	char why[200] = "";
	ck_assert_int_eq(exits_record_read(bytes, n, ranks, &back, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_msg(strstr(why, text) != NULL, "%s, not: %s", why, text);
}

static void expect_pack_refused(const struct exits *e, uint32_t ranks, const char *text)
{
	size_t n;
	void *bytes = exits_record_pack(e, &n);
	expect_refused(bytes, n, ranks, text);
	free(bytes);
}

START_TEST(exits_come_back)
{
	struct exits e = full();
	size_t n;
	void *bytes = exits_record_pack(&e, &n);
	expect_same(bytes, n, &e);
	free(bytes);
}
END_TEST

/* Columns of zeros take no room, and no cause is no cause. */
START_TEST(ranks_that_have_not_begun)
{
	struct launch_rank rank[N] = { { .state = LAUNCH_RANK_WAITING } };
	struct exits e = { .rank = rank, .n_ranks = N, .tail = "", .n_tail = 0 };
	size_t n;
	void *bytes = exits_record_pack(&e, &n);
	ck_assert_uint_eq(n, 4 + 2);
	expect_same(bytes, n, &e);
	free(bytes);
}
END_TEST

/* As earlier gaccds wrote it: four words, the summary, the ranks, the tail. */
START_TEST(raw_exits_are_read)
{
	struct exits e = full();
	uint32_t head[4] = { 1, N, (uint32_t)e.n_tail, 0 };
	enum { SUMMARY = offsetof(struct launch_summary, allowed) }; /* as it was then */
	char bytes[sizeof(head) + SUMMARY + sizeof(some_rank) + 10], *at = bytes;
	at = (char *)memcpy(at, head, sizeof(head)) + sizeof(head);
	at = (char *)memcpy(at, &e.summary, SUMMARY) + SUMMARY;
	at = (char *)memcpy(at, some_rank, sizeof(some_rank)) + sizeof(some_rank);
	memcpy(at, e.tail, e.n_tail);
	expect_same(bytes, sizeof(bytes), &e);
	expect_refused(bytes, sizeof(bytes), N + 1, "with 3 ranks");
	for (size_t n = 0; n < sizeof(bytes); n++)
		expect_refused(bytes, n, N, "another form");
	bytes[sizeof(head)] = 5; /* the phase */
	expect_refused(bytes, sizeof(bytes), N, "ExitsRecord.phase is 5");
}
END_TEST

START_TEST(what_is_out_of_range_is_refused)
{
	struct exits e = full();
	expect_pack_refused(&e, N + 1, "ExitsRecord.ranks is 3, and the job has 4");
	e.summary.phase = (enum launch_phase)(LAUNCH_OVER + 1);
	expect_pack_refused(&e, N, "ExitsRecord.phase is 5");
	e = full();
	e.summary.result = (enum launch_result)(LAUNCH_STOPPED + 1);
	expect_pack_refused(&e, N, "ExitsRecord.result is 4");
	e = full();
	e.summary.cause.rank = N;
	expect_pack_refused(&e, N, "ExitsRecord.cause.rank is 3");
	e = full();
	some_rank[1].state = (enum launch_rank_state)(LAUNCH_RANK_EXITED + 1);
	expect_pack_refused(&e, N, "ExitsRecord.state is 3");
}
END_TEST

/* Any cut and any changed byte is read or refused, and never more than that. */
START_TEST(altered_bytes)
{
	struct exits e = full(), back;
	size_t n;
	unsigned char *bytes = exits_record_pack(&e, &n);
	char why[200];
	for (size_t cut = 0; cut < n; cut++)
		if (!exits_record_read(bytes, cut, N, &back, why, sizeof(why)))
			free(back.rank);
	for (size_t i = 0; i < n * 8; i++) {
		bytes[i / 8] ^= (unsigned char)(1 << i % 8);
		if (!exits_record_read(bytes, n, N, &back, why, sizeof(why)))
			free(back.rank);
		bytes[i / 8] ^= (unsigned char)(1 << i % 8);
	}
	expect_same(bytes, n, &e);
	free(bytes);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("exits_record");
	TCase *t = tcase_create("exits");
	tcase_add_test(t, exits_come_back);
	tcase_add_test(t, ranks_that_have_not_begun);
	tcase_add_test(t, raw_exits_are_read);
	tcase_add_test(t, what_is_out_of_range_is_refused);
	tcase_add_test(t, altered_bytes);
	suite_add_tcase(s, t);
	return suite_run(s);
}
