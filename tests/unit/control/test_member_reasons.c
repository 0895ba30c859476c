/* SPDX-License-Identifier: Apache-2.0 */
/* Why a node is not UP, as operators read it; test_members.c has the states themselves. */
#include "control/members.h"
#include "control/messages.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

#define SECOND INT64_C(1000000000)

static struct members *m;
static struct now now = { 1000 * SECOND, 5 };
static char event[400]; /* the last one */

static void on_event(void *ctx, bool warning, const char *reason, const char *text)
{
	snprintf(event, sizeof(event), "%s", text);
}

static void on_changed(void *ctx, uint32_t index)
{
}

static void on_close(void *ctx, uint64_t link)
{
}

static uint64_t hello(const char *name)
{
	struct member_facts f = { .incarnation = 1, .protocol_min = 1, .protocol_max = 1, .term_seen = 1 };
	uint64_t link = 0;
	uint32_t index;
	char why[400];
	snprintf(f.node, sizeof(f.node), "%s", name);
	ck_assert_int_eq(members_hello(m, &f, now, &link, &index, why, sizeof(why)), ST_OK);
	return link;
}

static const char *reason_of(const char *name)
{
	static char text[MEMBER_REASON];
	members_reason(m, members_find(m, name), text);
	return text;
}

START_TEST(reasons)
{
	uint64_t b = hello("b"), c = hello("c");
	ck_assert_str_eq(reason_of("b"), "");
	ck_assert_int_eq(members_expect(m, "d", true, now), ST_OK);
	ck_assert_str_eq(reason_of("d"), "it has not come since this coordinator began");
	for (int i = 0; i < 4; i++) {
		now.mono_ns += SECOND;
		ck_assert(members_heard(m, c, now, NULL));
		members_tick(m, now);
	}
	ck_assert_str_eq(reason_of("b"), "no word for 3 s");
	ck_assert(members_link_gone(m, b, "its certificate (serial 7) is revoked", now));
	ck_assert_str_eq(reason_of("b"), "its link has ended: its certificate (serial 7) is revoked");
	hello("e"), hello("f"), hello("g"), hello("h"); /* so that the coordinator is not isolated */
	members_tick(m, now);
	*event = '\0';
	ck_assert(members_link_gone(m, c, "its gaccd has hung up", now));
	members_tick(m, now);
	ck_assert_str_eq(event, "node c: its link has ended: its gaccd has hung up; its jobs wait");
	b = hello("b");
	ck_assert_str_eq(reason_of("b"), "");
	ck_assert(members_link_gone(m, b, "", now)); /* an old reason is not told again */
	ck_assert_str_eq(reason_of("b"), "its link has ended");
}
END_TEST

int main(void)
{
	Suite *s = suite_create("member_reasons");
	TCase *c = tcase_create("reasons");
	m = members_new(&(struct members_ports){ NULL, on_event, on_changed, on_close }, "head", 15 * SECOND, 1);
	tcase_add_test(c, reasons);
	suite_add_tcase(s, c);
	const int code = suite_run(s);
	members_free(m);
	return code;
}
