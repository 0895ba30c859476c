/* SPDX-License-Identifier: Apache-2.0 */
/* How many connections an address may open, with a clock of the test. */
#include "rpc/connect_rate.h"

#include "base/clock.h"
#include "support/suite.h"

#include <arpa/inet.h>
#include <check.h>
#include <stdio.h>
#include <string.h>

static struct connect_rate rate;
static int64_t now_ns;

static void setup(void)
{
	memset(&rate, 0, sizeof(rate));
	now_ns = CLOCK_NS_PER_S;
}

static bool take(const char *text)
{
	struct sockaddr_in v4 = { .sin_family = AF_INET };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6 };
	if (inet_pton(AF_INET, text, &v4.sin_addr) == 1)
		return connect_rate_take(&rate, (struct sockaddr *)&v4, now_ns);
	ck_assert_int_eq(inet_pton(AF_INET6, text, &v6.sin6_addr), 1);
	return connect_rate_take(&rate, (struct sockaddr *)&v6, now_ns);
}

static int take_all(const char *text)
{
	int n = 0;
	while (n < 1000 && take(text))
		n++;
	return n;
}

START_TEST(an_address_has_its_share)
{
	ck_assert_int_eq(take_all("10.0.0.9"), CONNECT_AT_ONCE);
	ck_assert(!take("10.0.0.9"));
	ck_assert_int_eq(take_all("10.0.0.8"), CONNECT_AT_ONCE);
	now_ns += CLOCK_NS_PER_S / CONNECT_PER_S - 1;
	ck_assert(!take("10.0.0.9"));
	now_ns++;
	ck_assert_int_eq(take_all("10.0.0.9"), 1);
	now_ns += 2 * CLOCK_NS_PER_S;
	ck_assert_int_eq(take_all("10.0.0.9"), 2 * CONNECT_PER_S);
	now_ns += 1000 * CLOCK_NS_PER_S; /* no more than at first */
	ck_assert_int_eq(take_all("10.0.0.9"), CONNECT_AT_ONCE);
}
END_TEST

START_TEST(which_addresses_are_one)
{
	ck_assert_int_eq(take_all("10.0.0.9"), CONNECT_AT_ONCE);
	ck_assert(!take("::ffff:10.0.0.9") && take("::ffff:10.0.0.7"));
	ck_assert_int_eq(take_all("fd00::1:1"), CONNECT_AT_ONCE);
	ck_assert(!take("fd00::2") && take("fd00:0:0:1::1"));
	ck_assert_int_eq(take_all("fe80::1"), CONNECT_AT_ONCE);
	ck_assert(take("fe80::2"));
	const struct sockaddr other = { .sa_family = AF_UNIX };
	for (int i = 0; i < CONNECT_AT_ONCE; i++)
		ck_assert(connect_rate_take(&rate, &other, now_ns));
	ck_assert(!connect_rate_take(&rate, &other, now_ns));
}
END_TEST

/* Who has opened most stays known, and who comes once has its connection. */
START_TEST(many_addresses)
{
	char text[32];
	take_all("10.0.0.9");
	for (int i = 0; i < 4 * CONNECT_ADDRESSES; i++) {
		snprintf(text, sizeof(text), "10.1.%d.%d", i / 256, i % 256);
		ck_assert(take(text));
	}
	ck_assert(!take("10.0.0.9"));
	now_ns += 1000 * CLOCK_NS_PER_S;
	ck_assert_int_eq(take_all("10.1.0.1"), CONNECT_AT_ONCE);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("connect_rate");
	TCase *c = tcase_create("connect_rate");
	tcase_add_checked_fixture(c, setup, NULL);
	suite_add_tcase(s, c);
	tcase_add_test(c, an_address_has_its_share);
	tcase_add_test(c, which_addresses_are_one);
	tcase_add_test(c, many_addresses);
	return suite_run(s);
}
