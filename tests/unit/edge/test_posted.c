/* SPDX-License-Identifier: Apache-2.0 */
/* Messages that are put off until their sender has returned: in which order and in which turn they come, and what
 * becomes of them when gaccd ends. */
#include "edge/daemon.h"

#include "support/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

struct letter {
	struct posted posted; /* first */
	char name;
	const char *more; /* what is posted when this is delivered */
};

static struct daemon d;
static char heard[32];

static void setup(void)
{
	d = (struct daemon){ .posted_tail = &d.posted };
	heard[0] = '\0';
	ck_assert_int_eq(uv_loop_init(&d.node.loop), 0);
	uv_idle_init(&d.node.loop, &d.idle);
	d.idle.data = &d;
}

static void teardown(void)
{
	daemon_drop_posted(&d);
	uv_close((uv_handle_t *)&d.idle, NULL);
	uv_run(&d.node.loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(uv_loop_close(&d.node.loop), 0);
}

static void post(const char *names, const char *more);

static void hear(struct posted *p)
{
	struct letter *l = (struct letter *)p;
	strncat(heard, &l->name, 1);
	post(l->more, "");
	free(l);
}

/* One letter for each character; the first of them brings `more`. */
static void post(const char *names, const char *more)
{
	for (; *names; names++, more = "") {
		struct letter *l = malloc(sizeof(*l));
		ck_assert_ptr_nonnull(l);
		l->name = *names;
		l->more = more;
		daemon_post(&d, &l->posted, hear);
	}
}

static void turn(void)
{
	uv_run(&d.node.loop, UV_RUN_NOWAIT);
}

START_TEST(letters_come_later_and_in_order)
{
	post("abc", "");
	ck_assert_str_eq(heard, "");
	turn();
	ck_assert_str_eq(heard, "abc");
	turn();
	ck_assert_str_eq(heard, "abc"); /* once */
	ck_assert(!uv_is_active((uv_handle_t *)&d.idle));
	ck_assert_ptr_null(d.posted);
	post("d", "");
	turn();
	ck_assert_str_eq(heard, "abcd");
}
END_TEST

/* What a letter causes waits for the next turn, so that sockets are served in between. */
START_TEST(answers_come_in_the_next_turn)
{
	post("abc", "xy");
	turn();
	ck_assert_str_eq(heard, "abc");
	ck_assert(uv_is_active((uv_handle_t *)&d.idle));
	post("d", "");
	turn();
	ck_assert_str_eq(heard, "abcxyd");
	ck_assert(!uv_is_active((uv_handle_t *)&d.idle));
}
END_TEST

/* The link's is a part of the daemon and is not freed; the others are (LeakSanitizer). */
START_TEST(letters_on_their_way_at_the_end_are_dropped)
{
	post("ab", "");
	daemon_post(&d, &d.link_post, hear);
	post("c", "");
	daemon_drop_posted(&d);
	ck_assert_ptr_null(d.posted);
	ck_assert(!uv_is_active((uv_handle_t *)&d.idle));
	turn();
	ck_assert_str_eq(heard, "");
}
END_TEST

int main(void)
{
	Suite *s = suite_create("posted");
	TCase *t = tcase_create("posted");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, letters_come_later_and_in_order);
	tcase_add_test(t, answers_come_in_the_next_turn);
	tcase_add_test(t, letters_on_their_way_at_the_end_are_dropped);
	return suite_run(s);
}
