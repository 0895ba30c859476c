/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of a job's last events: what is there after it is full, after it has shrunk, and in what form. */
#include "runtime/events.h"

#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

static struct events events;

static void add(uint64_t id, const char *reason)
{
	char message[32];
	snprintf(message, sizeof(message), "message %d", (int)id);
	const struct event *e = events_add(
		&events,
		&(struct event){ .id = id, .unix_ns = 1000 + (int64_t)id, .window = id / 2, .warning = id % 2 }, reason,
		"job", message);
	ck_assert_uint_eq(e->id, id);
}

/* Events first .. n - 1 are there, in this order, with all that they had. */
static void expect(uint64_t first, uint64_t n)
{
	char message[32];
	ck_assert_uint_eq(events_first(&events), first);
	ck_assert_uint_eq(events.n, n);
	for (uint64_t i = first; i < n; i++) {
		const struct event *e = events_at(&events, i);
		snprintf(message, sizeof(message), "message %d", (int)i);
		ck_assert(e->id == i && e->window == i / 2 && e->warning == (i % 2) && e->unix_ns == 1000 + (int64_t)i);
		ck_assert_str_eq(e->message, message);
	}
}

START_TEST(the_oldest_make_room)
{
	ck_assert(events_init(&events, 5));
	expect(0, 0);
	for (uint64_t i = 0; i < 13; i++) {
		add(i, "Any");
		expect(i < 5 ? 0 : i - 4, i + 1);
	}
}
END_TEST

START_TEST(a_smaller_ring_keeps_the_newest)
{
	ck_assert(events_init(&events, 7));
	events_shrink(&events, 3); /* nothing is there */
	ck_assert_uint_eq(events.room, 7);
	for (uint64_t i = 0; i < 9; i++)
		add(i, "Any");
	events_shrink(&events, 7); /* as large as it is */
	expect(2, 9);
	events_shrink(&events, 4);
	expect(5, 9);
	for (uint64_t i = 9; i < 12; i++)
		add(i, "Any");
	expect(8, 12);
	events_shrink(&events, 9); /* it does not grow */
	ck_assert_uint_eq(events.room, 4);
	expect(8, 12);
}
END_TEST

START_TEST(a_ring_that_is_not_full_takes_what_it_has)
{
	ck_assert(events_init(&events, 8));
	for (uint64_t i = 0; i < 3; i++)
		add(i, "Any");
	events_shrink(&events, 5);
	ck_assert_uint_eq(events.room, 3);
	expect(0, 3);
}
END_TEST

START_TEST(when_one_of_a_kind_was)
{
	ck_assert(events_init(&events, 4));
	ck_assert_int_eq(events_when(&events, "Paused"), 0);
	add(0, "Paused");
	add(1, "Resumed");
	add(2, "Paused");
	add(3, "Any");
	ck_assert_int_eq(events_when(&events, "Paused"), 1002);
	ck_assert_int_eq(events_when(&events, "Resumed"), 1001);
	ck_assert_int_eq(events_when(&events, "Pause"), 0);
	add(4, "Any");
	add(5, "Any"); /* in the place of Resumed */
	ck_assert_int_eq(events_when(&events, "Resumed"), 0);
}
END_TEST

START_TEST(long_texts_are_cut_between_characters)
{
	char text[400];
	memset(text, 'a', 254);
	strcpy(text + 254, "\xc3\xa9 and more"); /* of the two bytes only one would fit */
	ck_assert(events_init(&events, 1));
	const struct event *e = events_add(&events, &(struct event){ .id = 1 }, text, text, text);
	ck_assert_uint_eq(strlen(e->reason), 31);
	ck_assert_uint_eq(strlen(e->object), 31);
	ck_assert_uint_ge(strlen(e->message), 254);
	ck_assert_ptr_null(strchr(e->message, '\xc3'));
}
END_TEST

static void teardown(void)
{
	events_fini(&events);
}

int main(void)
{
	Suite *s = suite_create("events");
	TCase *c = tcase_create("events");
	suite_add_tcase(s, c);
	tcase_add_checked_fixture(c, NULL, teardown);
	tcase_add_test(c, the_oldest_make_room);
	tcase_add_test(c, a_smaller_ring_keeps_the_newest);
	tcase_add_test(c, a_ring_that_is_not_full_takes_what_it_has);
	tcase_add_test(c, when_one_of_a_kind_was);
	tcase_add_test(c, long_texts_are_cut_between_characters);
	return suite_run(s);
}
