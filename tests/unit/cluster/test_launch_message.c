/* SPDX-License-Identifier: Apache-2.0 */
/* What is wanted of the ranks that a node launches, and how they are: every number goes through its message, and what
 * is wrong with one is said. */
#include "cluster/launch_message.h"
#include "gacc/internal/v1/cluster.pb-c.h"
#include "proto/bytes.h"
#include "support/suite.h"
#include "unit/cluster/altered.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 100, N = 3, RESTARTS = 111 };

/* ---- what is wanted ---- */

static struct launch_wanted some_wanted(void)
{
	return (struct launch_wanted){ .job_id = 101,
				       .epoch = 102,
				       .term = 103,
				       .number = 104,
				       .uuid = "fifteen letters",
				       .part = 5,
				       .wish = { .want = LAUNCH_WANT_DRAIN,
						 .grace_ns = 106,
						 .allowed = 107,
						 .final = true,
						 .fresh = true,
						 .first = 90,
						 .n_ranks = 10,
						 .group = 7,
						 .n_groups = 8,
						 .master_port = 65535,
						 .master_addr = "fd00::7" } };
}

static enum status wanted_through(const struct launch_wanted *w, struct launch_wanted *out, char why[200])
{
	size_t n;
	void *bytes = launch_wanted_pack(w, &n);
	ck_assert_ptr_nonnull(bytes);
	enum status st = launch_wanted_unpack(bytes, n, RANKS, out, why, 200);
	free(bytes);
	return st;
}

START_TEST(an_order_comes_back)
{
	struct launch_wanted w = some_wanted(), back;
	char why[200] = "";
	for (int k = 0; k < 2; k++) {
		ck_assert_msg(wanted_through(&w, &back, why) == ST_OK, "%s", why);
#define SAME(field) ck_assert_msg(back.field == w.field, "%s", #field)
		SAME(job_id), SAME(epoch), SAME(term), SAME(number), SAME(part);
		SAME(wish.want), SAME(wish.grace_ns), SAME(wish.allowed), SAME(wish.final), SAME(wish.fresh);
		SAME(wish.first), SAME(wish.n_ranks), SAME(wish.group), SAME(wish.n_groups), SAME(wish.master_port);
#undef SAME
		ck_assert_str_eq(back.wish.master_addr, w.wish.master_addr);
		ck_assert_mem_eq(back.uuid, w.uuid, sizeof(w.uuid));
		w = (struct launch_wanted){ .epoch = 1, .term = 1, .number = 1 };
		w.wish = (struct launch_wish){
			.want = LAUNCH_WANT_NOTHING, .n_ranks = RANKS, .n_groups = 1, .master_addr = "10.0.0.7"
		};
	}
}
END_TEST
/* A member that is added and not compared above changes the size. */
_Static_assert(sizeof(struct launch_wanted) == 152, "compared above");

START_TEST(senseless_orders_are_refused)
{
	struct launch_wanted w = some_wanted(), back;
	char why[200];
#define REFUSED(change, text)                                                                                          \
	do {                                                                                                           \
		change;                                                                                                \
		ck_assert_int_eq(wanted_through(&w, &back, why), ST_VERSION_SKEW);                                     \
		ck_assert_str_eq(why, text);                                                                           \
		w = some_wanted();                                                                                     \
	} while (0)
	REFUSED(w.epoch = 0, "LaunchOrder.epoch is missing");
	REFUSED(w.term = 0, "LaunchOrder.term is missing");
	REFUSED(w.number = 0, "LaunchOrder.number is missing");
	REFUSED(w.wish.want = 0, "LaunchOrder.want is 0, and must be 1 to 4");
	REFUSED(w.wish.want = 5, "LaunchOrder.want is 5, and must be 1 to 4");
	REFUSED(w.wish.grace_ns = -1, "LaunchOrder.grace_ns is -1, and must be 0 or more");
	REFUSED(w.wish.master_port = 65536, "LaunchOrder.master_port is 65536, and must be a port");
	REFUSED(w.wish.group = 8,
		"LaunchOrder.group is 8, and must be below n_groups, and those as many as ranks at most");
	REFUSED(w.wish.n_groups = 101,
		"LaunchOrder.group is 7, and must be below n_groups, and those as many as ranks at most");
	REFUSED(strcpy(w.wish.master_addr, "here"), "LaunchOrder.master_addr is \"here\", and must be an IP address");
	REFUSED(w.wish.n_ranks = 0, "LaunchOrder has 0 ranks from 90 on, and the job has 100");
	REFUSED(w.wish.n_ranks = 11, "LaunchOrder has 11 ranks from 90 on, and the job has 100");
	REFUSED(w.wish.first = UINT32_MAX, "LaunchOrder has 10 ranks from 4294967295 on, and the job has 100");
#undef REFUSED
	ck_assert_int_eq(launch_wanted_unpack("\x10\x01\x18\x01\x28\x01\x30\x01", 8, RANKS, &back, why, sizeof(why)),
			 ST_VERSION_SKEW);
	ck_assert_str_eq(why, "LaunchOrder.uuid is 0, and must be of 16 bytes");
	ck_assert_int_eq(launch_wanted_unpack("\x0a", 1, RANKS, &back, why, sizeof(why)), ST_VERSION_SKEW);
}
END_TEST

/* ---- how they are ---- */

static struct launch_rank rank[N];
static char tail[LAUNCHED_MAX_TAIL + 1];

static struct launched some_launched(void)
{
	for (uint32_t i = 0; i < N; i++)
		rank[i] = (struct launch_rank){ .state = (enum launch_rank_state)i,
						.pid = INT64_MAX - i,
						.exit_status = (int32_t)i - 1,
						.restarts = UINT32_MAX - i };
	memset(tail, 0xff, sizeof(tail));
	return (struct launched){ .job_id = 101,
				  .epoch = 102,
				  .incarnation = 103,
				  .number = 104,
				  .term = 105,
				  .order = 106,
				  .part = 7,
				  .first = 97,
				  .n_ranks = N,
				  .over = true,
				  .launcher_pid = 109,
				  .summary = { .phase = LAUNCH_OVER,
					       .result = LAUNCH_STOPPED,
					       .charged = 110,
					       .allowed = 111,
					       .wanted = 3,
					       .master_port = 65535,
					       .cause = { true, 99, 112, 113, 114 } },
				  .rank = rank,
				  .tail = tail,
				  .n_tail = LAUNCHED_MAX_TAIL,
				  .failure = "no" };
}

static enum status launched_through(const struct launched *l, struct launched *out, char why[200])
{
	size_t n;
	void *bytes = launched_pack(l, &n);
	ck_assert_ptr_nonnull(bytes);
	enum status st = launched_unpack(bytes, n, RANKS, RESTARTS, out, why, 200);
	free(bytes);
	return st;
}

START_TEST(news_come_back)
{
	struct launched l = some_launched(), back;
	char why[200] = "";
	for (int k = 0; k < 2; k++) {
		ck_assert_msg(launched_through(&l, &back, why) == ST_OK, "%s", why);
#define SAME(field) ck_assert_msg(back.field == l.field, "%s", #field)
		SAME(job_id), SAME(epoch), SAME(incarnation), SAME(number), SAME(term), SAME(order), SAME(part);
		SAME(first), SAME(n_ranks), SAME(over), SAME(launcher_pid), SAME(n_tail);
		SAME(summary.phase), SAME(summary.result), SAME(summary.charged), SAME(summary.allowed);
		SAME(summary.wanted), SAME(summary.master_port), SAME(summary.cause.known), SAME(summary.cause.rank);
		SAME(summary.cause.pid), SAME(summary.cause.exit_status), SAME(summary.cause.unix_ns);
		for (uint32_t i = 0; i < l.n_ranks; i++)
			SAME(rank[i].state), SAME(rank[i].pid), SAME(rank[i].exit_status), SAME(rank[i].restarts);
#undef SAME
		ck_assert_str_eq(back.failure, l.failure);
		ck_assert(!memcmp(back.tail, tail, l.n_tail));
		free((void *)back.rank);
		l = (struct launched){ .epoch = 1, .incarnation = 1, .number = 1, .n_ranks = 1, .rank = rank };
	}
}
END_TEST
_Static_assert(sizeof(struct launched) == 360, "compared above");

START_TEST(senseless_news_are_refused)
{
	struct launched l = some_launched(), back = { .part = 77 };
	char why[200];
#define REFUSED(change, text)                                                                                          \
	do {                                                                                                           \
		change;                                                                                                \
		ck_assert_int_eq(launched_through(&l, &back, why), ST_VERSION_SKEW);                                   \
		ck_assert_str_eq(why, text);                                                                           \
		ck_assert_uint_eq(back.part, 77);                                                                      \
		l = some_launched();                                                                                   \
	} while (0)
	REFUSED(l.epoch = 0, "Launched.epoch is missing");
	REFUSED(l.incarnation = 0, "Launched.incarnation is missing");
	REFUSED(l.number = 0, "Launched.number is missing");
	REFUSED(l.launcher_pid = -1, "Launched.launcher_pid is -1, and must be 0 or more");
	REFUSED(l.summary.phase = 5, "Launched.phase is 5, and must be 4 at most");
	REFUSED(l.summary.result = 4, "Launched.result is 4, and must be 3 at most");
	REFUSED(l.summary.master_port = 65536, "Launched.master_port is 65536, and must be a port");
	REFUSED(l.n_tail = LAUNCHED_MAX_TAIL + 1, "Launched.tail is 8193, and must be 8192 bytes at most");
	REFUSED(l.summary.wanted = 4, "Launched.wanted is 4, and must be as many as ranks at most");
	REFUSED(l.summary.allowed = 112, "Launched.allowed is 112, and the job has launch.max_restarts 111");
	REFUSED(l.summary.charged = 112, "Launched.charged is 112, and the job has launch.max_restarts 111");
	REFUSED(l.first = 98, "Launched has 3 ranks from 98 on, and the job has 100");
	REFUSED(l.n_ranks = 0, "Launched has 0 ranks from 97 on, and the job has 100");
	REFUSED(rank[2].state = 3, "Launched.state is 3, and must be 2 at most");
	REFUSED(rank[2].pid = -1, "Launched.pid is -1, and must be 0 or more");
	REFUSED(rank[2].exit_status = -2, "Launched.exit_status is -2, and must be -1 or more");
	REFUSED(l.summary.cause.rank = 100, "LaunchCause.rank is 100, and must be one of the message's ranks");
	REFUSED(l.summary.cause.rank = 96, "LaunchCause.rank is 96, and must be one of the message's ranks");
	REFUSED(l.summary.cause.pid = -1, "LaunchCause.pid is -1, and must be 0 or more");
	REFUSED((l.summary.result = LAUNCH_FAILED, l.summary.cause.known = false), "Launched.cause is missing");
#undef REFUSED
	ck_assert_int_eq(launched_unpack("\x0a", 1, RANKS, RESTARTS, &back, why, sizeof(why)), ST_VERSION_SKEW);
}
END_TEST

/* Each column is short by one, or missing. */
START_TEST(columns_are_as_long_as_each_other)
{
	uint32_t number[N] = { 0 };
	int32_t status[N] = { 0 };
	int64_t pid[N] = { 0 };
	for (int k = 0; k < 8; k++) {
		Gacc__Internal__V1__Launched m = GACC__INTERNAL__V1__LAUNCHED__INIT;
		size_t *length[] = { &m.n_state, &m.n_pid, &m.n_exit_status, &m.n_restarts };
		struct launched back;
		char why[200];
		size_t n;
		m.epoch = m.incarnation = m.number = 1;
		m.state = m.restarts = number;
		m.pid = pid;
		m.exit_status = status;
		for (int i = 0; i < 4; i++)
			*length[i] = N;
		*length[k / 2] = k % 2 ? N - 1 : 0;
		void *bytes = bytes_pack(&m.base, &n);
		ck_assert_int_eq(launched_unpack(bytes, n, RANKS, RESTARTS, &back, why, sizeof(why)), ST_VERSION_SKEW);
		ck_assert_msg(strstr(why, "Launched has columns of ") == why, "%s", why);
		free(bytes);
	}
}
END_TEST

static unsigned try_bytes(const uint8_t *bytes, size_t n)
{
	struct launched l;
	struct launch_wanted w;
	char why[200] = "";
	enum status st = launched_unpack(bytes, n, RANKS, RESTARTS, &l, why, sizeof(why));
	ck_assert(st == ST_OK || (st == ST_VERSION_SKEW && *why));
	if (!st) {
		ck_assert(l.n_ranks && l.first + l.n_ranks <= RANKS);
		ck_assert(l.summary.allowed <= RESTARTS && l.summary.charged <= RESTARTS);
		free((void *)l.rank);
	}
	why[0] = '\0';
	enum status other = launch_wanted_unpack(bytes, n, RANKS, &w, why, sizeof(why));
	ck_assert(other == ST_OK || (other == ST_VERSION_SKEW && *why));
	return st == ST_OK || other == ST_OK;
}

START_TEST(any_bytes_are_read_or_refused)
{
	struct launched l = some_launched();
	const struct launch_wanted w = some_wanted();
	size_t n;
	l.n_tail = 10;
	void *bytes = launched_pack(&l, &n);
	altered_try(bytes, n, 6000, try_bytes);
	free(bytes);
	bytes = launch_wanted_pack(&w, &n);
	altered_try(bytes, n, 6000, try_bytes);
	free(bytes);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("launch message");
	TCase *c = tcase_create("launch message");
	suite_add_tcase(s, c);
	tcase_add_test(c, an_order_comes_back);
	tcase_add_test(c, senseless_orders_are_refused);
	tcase_add_test(c, news_come_back);
	tcase_add_test(c, senseless_news_are_refused);
	tcase_add_test(c, columns_are_as_long_as_each_other);
	tcase_add_test(c, any_bytes_are_read_or_refused);
	return suite_run(s);
}
