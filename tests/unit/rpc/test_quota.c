/* SPDX-License-Identifier: Apache-2.0 */
/* What all users share: nobody gets all of it. */
#include "rpc/quota.h"

#include "support/suite.h"

#include <check.h>
#include <stdint.h>
#include <sys/types.h>

START_TEST(one_user_gets_half_and_the_next_half_of_the_rest)
{
	struct rpc_quota s = { .most = 100 };
	for (int i = 0; i < 50; i++)
		ck_assert(rpc_quota_take(&s, 7, 1));
	ck_assert(!rpc_quota_take(&s, 7, 1));
	for (int i = 0; i < 25; i++)
		ck_assert(rpc_quota_take(&s, 8, 1));
	ck_assert(!rpc_quota_take(&s, 8, 1) && !rpc_quota_take(&s, 7, 1));
	ck_assert(rpc_quota_take(&s, 9, 12) && !rpc_quota_take(&s, 9, 1));
	ck_assert_uint_eq(s.used, 87);
	rpc_quota_give(&s, 7, 50);
	ck_assert(rpc_quota_used(&s, 7) == 0 && s.n_users == 2);
	ck_assert(rpc_quota_take(&s, 8, 19) && !rpc_quota_take(&s, 8, 1)); /* 44, as 44 are left */
	rpc_quota_give(&s, 8, 44);
	rpc_quota_give(&s, 9, 12);
	ck_assert(s.used == 0 && s.n_users == 0);
	rpc_quota_fini(&s);
}
END_TEST

START_TEST(what_is_too_much_changes_nothing)
{
	struct rpc_quota s = { .most = 10 };
	ck_assert(!rpc_quota_take(&s, 1, 6) && !rpc_quota_take(&s, 1, 11) && !rpc_quota_take(&s, 1, SIZE_MAX));
	ck_assert(rpc_quota_take(&s, 1, 5) && !rpc_quota_take(&s, 2, 3) && rpc_quota_take(&s, 2, 0));
	ck_assert(s.used == 5 && s.n_users == 1 && rpc_quota_used(&s, 2) == 0);
	rpc_quota_give(&s, 2, 0);
	rpc_quota_fini(&s);
}
END_TEST

START_TEST(unauthenticated_clients_are_one_user_with_a_limit)
{
	struct rpc_quota s = { .most = 100, .most_unauthenticated = 10 };
	ck_assert_uint_eq(rpc_quota_left(&s, RPC_UNAUTHENTICATED), 10);
	ck_assert(!rpc_quota_take(&s, RPC_UNAUTHENTICATED, 11) && rpc_quota_take(&s, RPC_UNAUTHENTICATED, 10));
	ck_assert(!rpc_quota_take(&s, RPC_UNAUTHENTICATED, 1) && rpc_quota_left(&s, RPC_UNAUTHENTICATED) == 0);
	ck_assert_uint_eq(rpc_quota_left(&s, (uid_t)-1), 45);
	ck_assert(rpc_quota_take(&s, (uid_t)-1, 45)); /* callers over TCP who have the token */
	rpc_quota_give(&s, RPC_UNAUTHENTICATED, 10);
	ck_assert_uint_eq(rpc_quota_left(&s, RPC_UNAUTHENTICATED), 10);
	ck_assert(rpc_quota_take(&s, 7, 20) && rpc_quota_take(&s, 8, 10) && rpc_quota_take(&s, 9, 10));
	ck_assert_uint_eq(rpc_quota_left(&s, RPC_UNAUTHENTICATED), 7); /* of the 15 that are left */
	ck_assert(!rpc_quota_take(&s, RPC_UNAUTHENTICATED, 8) && rpc_quota_take(&s, RPC_UNAUTHENTICATED, 7));
	rpc_quota_fini(&s);
}
END_TEST

START_TEST(many_users)
{
	struct rpc_quota s = { .most = 100000 };
	for (uid_t uid = 0; uid < 100; uid++)
		ck_assert(rpc_quota_take(&s, uid, uid + 1));
	for (uid_t uid = 0; uid < 100; uid++) {
		ck_assert_uint_eq(rpc_quota_used(&s, uid), uid + 1);
		rpc_quota_give(&s, uid, uid + 1);
	}
	ck_assert_uint_eq(s.used, 0);
	rpc_quota_fini(&s);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("shares");
	TCase *c = tcase_create("shares");
	suite_add_tcase(s, c);
	tcase_add_test(c, one_user_gets_half_and_the_next_half_of_the_rest);
	tcase_add_test(c, what_is_too_much_changes_nothing);
	tcase_add_test(c, unauthenticated_clients_are_one_user_with_a_limit);
	tcase_add_test(c, many_users);
	return suite_run(s);
}
