/* SPDX-License-Identifier: Apache-2.0 */
/* The link of a gaccd to itself: when messages are delivered, in which order, and what is lost. */
#include "cluster/link.h"
#include "support/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static struct link *l;
static int n_woken, n_arrived;
static struct {
	enum link_kind kind;
	uint64_t job;
	uint32_t part;
	size_t n;
	char text[16];
} arrived[64];
static char answers[64]; /* a letter each, sent while the next message is delivered; "": none */

static bool send_text(enum link_kind kind, const char *text)
{
	return link_send(l, kind, 7, 2, strdup(text), strlen(text));
}

static void on_wake(void *ctx)
{
	ck_assert_ptr_eq(ctx, &n_woken);
	ck_assert(!link_is_empty(l)); /* what woke it is there already */
	n_woken++;
}

static void on_arrived(void *ctx, const struct link_message *m)
{
	char letter[2] = { answers[0] };
	ck_assert_ptr_eq(ctx, &n_woken);
	ck_assert_uint_lt(m->n, sizeof(arrived->text));
	int i = n_arrived++ % 64;
	arrived[i].kind = m->kind;
	arrived[i].job = m->job;
	arrived[i].part = m->part;
	arrived[i].n = m->n;
	memcpy(arrived[i].text, m->bytes, m->n);
	arrived[i].text[m->n] = '\0';
	if (!letter[0])
		return;
	memmove(answers, answers + 1, strlen(answers));
	int before = n_arrived;
	ck_assert(send_text(LINK_ORDER, letter));
	ck_assert_int_eq(n_arrived, before); /* its sender is at work */
}

static void setup(void)
{
	const struct link_ends ends = { .ctx = &n_woken, .wake = on_wake, .arrived = on_arrived };
	n_woken = n_arrived = 0;
	answers[0] = '\0';
	ck_assert_int_eq(link_new(&ends, &l), ST_OK);
}

static void teardown(void)
{
	link_free(l);
}

START_TEST(nothing_is_delivered_before_the_run)
{
	ck_assert(link_is_empty(l));
	ck_assert(send_text(LINK_REPORT, "a"));
	ck_assert_int_eq(n_arrived, 0);
	ck_assert(!link_is_empty(l));
	link_run(l);
	ck_assert_int_eq(n_arrived, 1);
	ck_assert(link_is_empty(l));
	link_run(l);
	ck_assert_int_eq(n_arrived, 1);
}
END_TEST

START_TEST(a_message_arrives_as_it_was_sent)
{
	static const char bytes[] = { 'x', 0, (char)0xff };
	char *copy = malloc(sizeof(bytes));
	memcpy(copy, bytes, sizeof(bytes));
	ck_assert(link_send(l, LINK_REPORT, UINT64_MAX - 1, 12, copy, sizeof(bytes)));
	ck_assert(link_send(l, LINK_ORDER, 5, 0, malloc(1), 0)); /* an empty message is one */
	link_run(l);
	ck_assert_int_eq(n_arrived, 2);
	ck_assert_int_eq(arrived[0].kind, LINK_REPORT);
	ck_assert_uint_eq(arrived[0].job, UINT64_MAX - 1);
	ck_assert_uint_eq(arrived[0].part, 12);
	ck_assert_uint_eq(arrived[0].n, sizeof(bytes));
	ck_assert_mem_eq(arrived[0].text, bytes, sizeof(bytes));
	ck_assert_int_eq(arrived[1].kind, LINK_ORDER);
	ck_assert_uint_eq(arrived[1].job, 5);
	ck_assert_uint_eq(arrived[1].part, 0);
	ck_assert_uint_eq(arrived[1].n, 0);
}
END_TEST

START_TEST(order_is_kept)
{
	const char *sent[] = { "a", "b", "c", "d", "e" };
	for (int i = 0; i < 5; i++)
		ck_assert(send_text(i % 2 ? LINK_ORDER : LINK_REPORT, sent[i]));
	link_run(l);
	ck_assert_int_eq(n_arrived, 5);
	for (int i = 0; i < 5; i++)
		ck_assert_str_eq(arrived[i].text, sent[i]);
}
END_TEST

START_TEST(answers_go_into_the_next_run)
{
	ck_assert(send_text(LINK_REPORT, "1"));
	ck_assert(send_text(LINK_REPORT, "2"));
	strcpy(answers, "xyz");
	link_run(l);
	ck_assert_int_eq(n_arrived, 2);
	ck_assert_str_eq(arrived[0].text, "1");
	ck_assert_str_eq(arrived[1].text, "2");
	ck_assert(!link_is_empty(l));
	link_run(l);
	ck_assert_int_eq(n_arrived, 4);
	ck_assert_str_eq(arrived[2].text, "x");
	ck_assert_str_eq(arrived[3].text, "y");
	link_run(l);
	ck_assert_str_eq(arrived[4].text, "z");
	link_run(l);
	ck_assert_int_eq(n_arrived, 5);
}
END_TEST

START_TEST(it_wakes_once_for_each_time_that_it_fills)
{
	for (int i = 0; i < 3; i++)
		send_text(LINK_REPORT, "r");
	ck_assert_int_eq(n_woken, 1);
	link_run(l);
	ck_assert_int_eq(n_woken, 1);
	send_text(LINK_REPORT, "r");
	ck_assert_int_eq(n_woken, 2);
	send_text(LINK_REPORT, "s");
	strcpy(answers, "xy"); /* both are sent during one run, into an empty queue */
	link_run(l);
	ck_assert_int_eq(n_woken, 3);
	link_run(l);
	ck_assert_int_eq(n_woken, 3);
	ck_assert(link_is_empty(l));
}
END_TEST

START_TEST(what_could_not_be_packed_is_lost)
{
	ck_assert(!link_send(l, LINK_REPORT, 7, 0, NULL, 3));
	ck_assert_int_eq(n_woken, 0);
	ck_assert(link_is_empty(l));
	send_text(LINK_REPORT, "a");
	ck_assert(!link_send(l, LINK_ORDER, 7, 0, NULL, 0));
	send_text(LINK_REPORT, "b");
	link_run(l);
	ck_assert_int_eq(n_arrived, 2);
	ck_assert_str_eq(arrived[1].text, "b");
	ck_assert_int_eq(n_woken, 1);
}
END_TEST

/* LeakSanitizer says whether their bytes are freed. */
START_TEST(what_is_queued_goes_with_the_link)
{
	for (int i = 0; i < 3; i++)
		send_text(LINK_ORDER, "queued");
	link_free(l);
	l = NULL;
	ck_assert_int_eq(n_arrived, 0);
	link_free(NULL);
}
END_TEST

START_TEST(many_messages)
{
	enum { MANY = 20000 };
	for (int round = 0; round < 3; round++) {
		int before = n_arrived;
		for (uint64_t i = 0; i < MANY; i++)
			ck_assert(link_send(l, LINK_REPORT, i, (uint32_t)i, calloc(1, 8), 8));
		link_run(l);
		ck_assert_int_eq(n_arrived - before, MANY);
		ck_assert_uint_eq(arrived[(n_arrived - 1) % 64].job, MANY - 1);
	}
	ck_assert_int_eq(n_woken, 3);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("link");
	TCase *t = tcase_create("link");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, nothing_is_delivered_before_the_run);
	tcase_add_test(t, a_message_arrives_as_it_was_sent);
	tcase_add_test(t, order_is_kept);
	tcase_add_test(t, answers_go_into_the_next_run);
	tcase_add_test(t, it_wakes_once_for_each_time_that_it_fills);
	tcase_add_test(t, what_could_not_be_packed_is_lost);
	tcase_add_test(t, what_is_queued_goes_with_the_link);
	tcase_add_test(t, many_messages);
	return suite_run(s);
}
