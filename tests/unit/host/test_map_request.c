/* SPDX-License-Identifier: Apache-2.0 */
#include "host/map_request.h"

#include "support/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define TOKEN "0123456789abcdef"

/* MapRequest{version, session{id 5, token}} by hand. */
START_TEST(a_request)
{
	static const char bytes[] = "\x08\x01\x12\x1b\x09\x05\0\0\0\0\0\0\0\x12\x10" TOKEN;
	struct map_request q;
	char why[128];
	ck_assert_int_eq(map_request_parse(bytes, sizeof(bytes) - 1, &q, why, sizeof(why)), ST_OK);
	ck_assert_uint_eq(q.session, 5);
	ck_assert_mem_eq(q.token, TOKEN, 16);
	ck_assert(!q.device);
	static const char device[] = "\x08\x01\x12\x1b\x09\x05\0\0\0\0\0\0\0\x12\x10" TOKEN "\x20\x01";
	ck_assert_int_eq(map_request_parse(device, sizeof(device) - 1, &q, why, sizeof(why)), ST_OK);
	ck_assert(q.device);
}
END_TEST

static const struct {
	const char *bytes;
	size_t n;
	enum status st;
	const char *why;
} bad[] = {
#define BAD(bytes, st, why)                                                                                            \
	{                                                                                                              \
		bytes, sizeof(bytes) - 1, st, why                                                                      \
	}
	BAD("\x08", ST_MALFORMED,
	    "gacc.v1.MapRequest.version at byte 1: a number does not end within the 0 bytes left"),
	BAD("garbage", ST_MALFORMED, "gacc.v1.MapRequest.12 at byte 1: wire type 7 is not allowed"),
	BAD("\x12\x05\x12\x7f"
	    "abc",
	    ST_MALFORMED, "gacc.v1.Session.token at byte 3: 127 bytes are announced, 3 are left"),
	BAD("", ST_VERSION_SKEW,
	    "version 0 of the attach socket's messages; this daemon speaks 1: update the older side"),
	BAD("\x08\x02", ST_VERSION_SKEW,
	    "version 2 of the attach socket's messages; this daemon speaks 1: update the older side"),
	BAD("\x08\x01", ST_SESSION_UNKNOWN, "session is missing: send the one that Attach gave"),
	BAD("\x08\x01\x12\x00", ST_SESSION_UNKNOWN,
	    "session.token has 0 bytes, must have 16: send the one that Attach gave"),
	BAD("\x08\x01\x12\x13\x12\x11" TOKEN "g", ST_SESSION_UNKNOWN,
	    "session.token has 17 bytes, must have 16: send the one that Attach gave"),
};

START_TEST(what_is_refused)
{
	struct map_request q;
	memset(&q, 7, sizeof(q));
	struct map_request before = q;
	char why[128] = "";
	char *exact = malloc(bad[_i].n ? bad[_i].n : 1); /* so that ASan sees a read past the end */
	memcpy(exact, bad[_i].bytes, bad[_i].n);
	ck_assert_int_eq(map_request_parse(exact, bad[_i].n, &q, why, sizeof(why)), bad[_i].st);
	ck_assert_str_eq(why, bad[_i].why);
	ck_assert_mem_eq(&q, &before, sizeof(q));
	free(exact);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("map_request");
	TCase *c = tcase_create("map_request");
	suite_add_tcase(s, c);
	tcase_add_test(c, a_request);
	tcase_add_loop_test(c, what_is_refused, 0, sizeof(bad) / sizeof(*bad));
	return suite_run(s);
}
