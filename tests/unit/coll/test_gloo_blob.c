/* SPDX-License-Identifier: Apache-2.0 */
/* Whose addresses a blob has. Those that members really make go through the same function in every job over nodes. */
#include "coll/gloo_blob.h"
#include "support/suite.h"

#include <arpa/inet.h>
#include <check.h>
#include <string.h>

static struct gloo_blob b;

static struct sockaddr_storage at(const char *ip, uint16_t port)
{
	struct sockaddr_storage out = { 0 };
	struct sockaddr_in *v4 = (struct sockaddr_in *)&out;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&out;
	if (inet_pton(AF_INET, ip, &v4->sin_addr) == 1) {
		out.ss_family = AF_INET;
		v4->sin_port = htons(port);
		return out;
	}
	ck_assert_int_eq(inet_pton(AF_INET6, ip, &v6->sin6_addr), 1);
	out.ss_family = AF_INET6;
	v6->sin6_port = htons(port);
	return out;
}

/* Of part 1 of three, which has no address for itself. */
static void make(const char *first, const char *last)
{
	b = (struct gloo_blob){ .magic = GLOO_MAGIC, .part = 1, .n_parts = 3, .life = 7 };
	b.address[0] = at(first, 4000);
	b.address[2] = at(last, 4002);
}

static bool is_at(const char *ip)
{
	return gloo_blob_is_at(&b, gloo_blob_size(3), ip);
}

START_TEST(of_its_node)
{
	make("10.0.0.7", "10.0.0.7");
	ck_assert(is_at("10.0.0.7") && !is_at("10.0.0.8") && !is_at("fd00::7") && !is_at("") && !is_at("x"));
	make("fd00::7", "fd00::7");
	ck_assert(is_at("fd00::7") && is_at("fd00:0:0::0:7") && !is_at("fd00::8") && !is_at("10.0.0.7"));
}
END_TEST

START_TEST(of_another)
{
	make("10.0.0.7", "10.0.0.8");
	ck_assert(!is_at("10.0.0.7") && !is_at("10.0.0.8"));
	make("10.0.0.8", "10.0.0.7");
	ck_assert(!is_at("10.0.0.7") && !is_at("10.0.0.8"));
	make("10.0.0.7", "fd00::7");
	ck_assert(!is_at("10.0.0.7") && !is_at("fd00::7"));
	make("10.0.0.7", "10.0.0.7");
	b.address[2].ss_family = AF_UNIX;
	ck_assert(!is_at("10.0.0.7"));
}
END_TEST

/* Left to the members, which refuse it. */
START_TEST(of_another_build)
{
	make("10.0.0.7", "10.0.0.7");
	b.magic++;
	ck_assert(is_at("10.0.0.8"));
	make("10.0.0.7", "10.0.0.7");
	b.n_parts = COLL_MAX_PARTS + 1;
	ck_assert(is_at("10.0.0.8"));
	make("10.0.0.7", "10.0.0.7");
	ck_assert(gloo_blob_is_at(&b, gloo_blob_size(2), "10.0.0.8") && gloo_blob_is_at(&b, 0, "10.0.0.8") &&
		  gloo_blob_is_at(&b, gloo_blob_size(0) - 1, "10.0.0.8"));
}
END_TEST

int main(void)
{
	Suite *s = suite_create("gloo_blob");
	TCase *t = tcase_create("addresses");
	tcase_add_test(t, of_its_node);
	tcase_add_test(t, of_another);
	tcase_add_test(t, of_another_build);
	suite_add_tcase(s, t);
	return suite_run(s);
}
