/* SPDX-License-Identifier: Apache-2.0 */
/* Events of parts: every field goes through its message, and what is wrong with one is said. */
#include "cluster/event_message.h"
#include "support/suite.h"
#include "unit/cluster/altered.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 12 };

static struct part_event full(void)
{
	return (struct part_event){ .job_id = 101,
				    .epoch = 102,
				    .part = 3,
				    .window = 104,
				    .warning = true,
				    .rank = 11,
				    .reason = "EngineExited",
				    .text = "killed \xc3\xa9" };
}

static enum status through(const struct part_event *e, struct part_event *out, char why[200])
{
	size_t n;
	void *bytes = event_pack(e, &n);
	ck_assert_ptr_nonnull(bytes);
	enum status st = event_unpack(bytes, n, RANKS, out, why, 200);
	free(bytes);
	return st;
}

static void expect_same(const struct part_event *e)
{
	struct part_event back;
	char why[200] = "";
	ck_assert_msg(through(e, &back, why) == ST_OK, "%s", why);
	ck_assert_uint_eq(back.job_id, e->job_id);
	ck_assert_uint_eq(back.epoch, e->epoch);
	ck_assert_uint_eq(back.part, e->part);
	ck_assert_uint_eq(back.window, e->window);
	ck_assert_int_eq(back.warning, e->warning);
	ck_assert_int_eq(back.rank, e->rank);
	ck_assert_str_eq(back.reason, e->reason);
	ck_assert_str_eq(back.text, e->text);
}

START_TEST(an_event_comes_back)
{
	struct part_event e = full();
	expect_same(&e);
	e.rank = 0;
	expect_same(&e);
	e.rank = -1;
	e.warning = false;
	e.text[0] = '\0';
	expect_same(&e);
}
END_TEST
/* A member that is added and not compared above changes the size. */
_Static_assert(sizeof(struct part_event) == 584, "compared above");

static void expect_refused(const struct part_event *e, const char *text)
{
	struct part_event back;
	char why[200] = "";
	ck_assert_int_eq(through(e, &back, why), ST_VERSION_SKEW);
	ck_assert_str_eq(why, text);
}

START_TEST(senseless_events_are_refused)
{
	struct part_event e = full(), back;
	char why[200];
	e.epoch = 0, expect_refused(&e, "PartEvent.epoch is missing"), e = full();
	e.reason[0] = '\0', expect_refused(&e, "PartEvent.reason is missing"), e = full();
	e.rank = 12, expect_refused(&e, "PartEvent.rank is 12, and the job has 12 ranks"), e = full();
	static const char *const no_words[] = { "Two words", "Line\n2", "\x1b[2J", "Caf\xc3\xa9", "a\"b" };
	for (size_t i = 0; i < sizeof(no_words) / sizeof(*no_words); i++) { /* as it is, it goes into logs */
		char said[80];
		strcpy(e.reason, no_words[i]);
		snprintf(said, sizeof(said), "PartEvent.reason has %zu bytes, and is no word of letters and digits",
			 strlen(e.reason));
		expect_refused(&e, said);
	}
	ck_assert_int_eq(event_unpack("\x0a", 1, RANKS, &back, why, sizeof(why)), ST_VERSION_SKEW);
}
END_TEST

START_TEST(texts_are_mended)
{
	struct part_event e = full(), back;
	char why[200];
	memset(e.text, 'x', sizeof(e.text) - 1);
	e.text[10] = '\xff';
	ck_assert_int_eq(through(&e, &back, why), ST_OK);
	ck_assert_uint_eq(strlen(back.text), sizeof(e.text) - 1);
	ck_assert_int_eq(back.text[10], '?');
}
END_TEST

static unsigned try_bytes(const uint8_t *bytes, size_t n)
{
	struct part_event e;
	char why[200] = "";
	enum status st = event_unpack(bytes, n, RANKS, &e, why, sizeof(why));
	ck_assert(st == ST_OK || (st == ST_VERSION_SKEW && *why));
	ck_assert(st || (e.epoch && isalnum((unsigned char)*e.reason) && e.rank >= -1 && e.rank < RANKS));
	return st == ST_OK;
}

START_TEST(any_bytes_are_read_or_refused)
{
	struct part_event e = full();
	size_t n;
	void *bytes = event_pack(&e, &n);
	altered_try(bytes, n, 6000, try_bytes);
	free(bytes);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("event_message");
	TCase *c = tcase_create("event_message");
	suite_add_tcase(s, c);
	tcase_add_test(c, an_event_comes_back);
	tcase_add_test(c, senseless_events_are_refused);
	tcase_add_test(c, texts_are_mended);
	tcase_add_test(c, any_bytes_are_read_or_refused);
	return suite_run(s);
}
