/* SPDX-License-Identifier: Apache-2.0 */
/* A node's side of its link to the coordinator, over real sockets: what it says, whom it believes, and when it dials
 * again. The time of its ticks is the test's. */
#include "../rpc/two_servers.h"
#include "edge/links.h"
#include "edge/node_dial.h"
#include "far_rig.h"
#include "support/suite.h"

#include <stdlib.h>
#include <string.h>

enum { JOB = 5 };
#define MS INT64_C(1000000)

static struct now at; /* of the ticks */
static uint32_t n_taken[LINK_KINDS];

static void count(struct daemon *to, const struct link_message *m)
{
	n_taken[m->kind]++;
	ck_assert(m->away);
	ck_assert_uint_eq(m->node, 0);
}

static void setup(void)
{
	static links_take *takes[LINK_KINDS];
	rig_open();
	for (int i = 0; i < LINK_KINDS; i++)
		takes[i] = count;
	d.link_takes = takes;
	free(conf->node.name);
	conf->node.name = strdup("b");
	far_coordinate();
	at = daemon_now(&d);
}

static void teardown(void)
{
	far_close();
	rig_close();
}

static void tick(int64_t later_ns)
{
	at.mono_ns += later_ns;
	node_dial_tick(&d, at);
}

/* With ticks, as in a loop that runs. */
static void pass(int64_t ns)
{
	for (; ns > 0; ns -= 500 * MS)
		tick(500 * MS);
}

static void a_while(void)
{
	for (int i = 0; i < 50; i++)
		far_turn();
}

/* Its Hello has come, on the newest stream. */
static void dialled(void)
{
	const uint32_t n = far[0].n[PEER_HELLO];
	tick(0);
	FAR_UNTIL(far[0].n[PEER_HELLO] == n + 1);
}

static void welcome(uint64_t term)
{
	const struct peer_message m = { .kind = PEER_WELCOME,
					.welcome = { .link = 1, .term = term, .coordinator = "a", .lease_ms = 9000 } };
	far_say(&far[0], &m);
}

static void linked(uint64_t term)
{
	dialled();
	welcome(term);
	FAR_UNTIL(node_dial_link(&d));
}

/* The node ends the stream, because of what it has heard. */
static void gives_up(void)
{
	const uint32_t n = far[0].ended;
	FAR_UNTIL(far[0].ended > n);
	ck_assert_ptr_null(node_dial_link(&d));
}

/* Ticks until it has dialled for the n-th time: it may not have heard yet that the stream has ended. */
static void again(uint32_t n)
{
	const uint64_t end = uv_hrtime() + UINT64_C(10000000000);
	while (far[0].n[PEER_HELLO] < n && uv_hrtime() < end) {
		at = daemon_now(&d);
		tick(1000 * MS);
		far_turn();
	}
	ck_assert_uint_eq(far[0].begun, n);
	ck_assert_uint_eq(far[0].n[PEER_HELLO], n);
}

START_TEST(it_says_hello_and_is_linked)
{
	dialled();
	ck_assert_str_eq(far[0].facts.node, "b");
	ck_assert_uint_eq(far[0].facts.incarnation, d.node.incarnation);
	ck_assert_uint_eq(far[0].facts.term_seen, 0);
	ck_assert_uint_eq(far[0].n_held, 0);
	ck_assert_ptr_null(node_dial_link(&d)); /* nothing is sent before it is welcome */
	tick(1000 * MS);
	welcome(3);
	FAR_UNTIL(node_dial_link(&d));
	ck_assert_uint_eq(far[0].n[PEER_BEAT], 0);
	tick(1000 * MS);
	FAR_UNTIL(far[0].n[PEER_BEAT] == 1);
}
END_TEST

START_TEST(what_goes_up_goes_over_the_link)
{
	links_send(&d, LINK_REPORT, JOB, 1, strdup("lost"), 4);
	linked(3);
	links_send(&d, LINK_REPORT, JOB, 1, strdup("x"), 1);
	FAR_UNTIL(far[0].carried[LINK_REPORT]);
	ck_assert_uint_eq(far[0].job, JOB);
	ck_assert_uint_eq(far[0].part, 1);
	a_while();
	ck_assert_uint_eq(far[0].carried[LINK_REPORT], 1);
	ck_assert(link_is_empty(d.link));
}
END_TEST

START_TEST(welcome_comes_once)
{
	linked(3);
	welcome(3);
	gives_up();
}
END_TEST

START_TEST(welcome_comes_first)
{
	const struct peer_message beat = { .kind = PEER_BEAT };
	dialled();
	if (_i)
		far_carry(&far[0], LINK_ORDER, JOB, 0, "x", 1);
	else
		far_say(&far[0], &beat);
	gives_up();
	ck_assert_uint_eq(n_taken[LINK_ORDER], 0);
}
END_TEST

START_TEST(a_coordinator_says_no_hello)
{
	linked(3);
	far_hello(&far[0], "a", 1, 0);
	gives_up();
}
END_TEST

/* Its journal is an old copy. */
START_TEST(a_lower_term_is_not_believed)
{
	linked(3);
	rpc_failf(far[0].call, ST_UNAVAILABLE, "ends");
	FAR_UNTIL(!node_dial_link(&d));
	again(2);
	ck_assert_uint_eq(far[0].facts.term_seen, 3);
	welcome(2);
	gives_up();
	again(3);
	ck_assert_uint_eq(far[0].facts.term_seen, 3);
	welcome(3);
	FAR_UNTIL(node_dial_link(&d));
}
END_TEST

START_TEST(coordinators_do_not_send_what_nodes_send)
{
	static const enum link_kind kinds[] = { LINK_REPORT,   LINK_PLACED,    LINK_EVENT,  LINK_TENSORS,
						LINK_SAVED,    LINK_VIEW,      LINK_LEDGER, LINK_BLOB,
						LINK_LAUNCHED, LINK_LOG_PIECE, LINK_NORMS };
	linked(3);
	far_carry(&far[0], kinds[_i], JOB, 0, "x", 1);
	gives_up();
	ck_assert_uint_eq(n_taken[kinds[_i]], 0);
}
END_TEST

START_TEST(each_kind_that_goes_down_is_taken)
{
	static const enum link_kind kinds[] = { LINK_ORDER, LINK_PLACEMENT, LINK_DROP,	  LINK_KEPT,	 LINK_SAVE,
						LINK_BOARD, LINK_LAUNCH,    LINK_LOG_ASK, LINK_NORMS_ASK };
	linked(3);
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
		far_carry(&far[0], kinds[i], JOB, 0, "x", 1);
		FAR_UNTIL(n_taken[kinds[i]] == 1);
	}
	ck_assert_ptr_nonnull(node_dial_link(&d));
}
END_TEST

/* 100 ms at first, then twice as long each time, 300 ms at most; a Welcome begins anew. */
START_TEST(it_dials_again_with_pauses)
{
	static const int64_t pauses[] = { 100, 200, 300, 300, 300, 300, 100 };
	dialled();
	for (uint32_t i = 0; i < sizeof(pauses) / sizeof(*pauses); i++) {
		if (i == 6) {
			welcome(3);
			FAR_UNTIL(node_dial_link(&d));
		}
		const int64_t before = daemon_now(&d).mono_ns;
		const uint32_t n_events = d.n_events;
		rpc_failf(far[0].call, ST_UNAVAILABLE, "no %u", i); /* another reason, which is told */
		FAR_UNTIL(d.n_events > n_events);
		at.mono_ns = before + pauses[i] * MS - 1;
		tick(0); /* it has heard of the end after `before` */
		a_while();
		ck_assert_uint_eq(far[0].begun, i + 1);
		at.mono_ns = daemon_now(&d).mono_ns + pauses[i] * MS;
		tick(0);
		FAR_UNTIL(far[0].n[PEER_HELLO] == i + 2);
	}
}
END_TEST

START_TEST(silence_ends_a_link)
{
	const struct peer_message beat = { .kind = PEER_BEAT };
	linked(3);
	at = daemon_now(&d);
	pass(PEER_LINK_SILENT_NS - 1000 * MS);
	a_while();
	ck_assert_ptr_nonnull(node_dial_link(&d));
	const int64_t heard = node_dial_link(&d)->heard_ns;
	far_say(&far[0], &beat);
	FAR_UNTIL(node_dial_link(&d)->heard_ns > heard);
	tick(60 * PEER_LINK_SILENT_NS); /* this gaccd was stopped: a second of that counts */
	pass(PEER_LINK_SILENT_NS - 1000 * MS);
	ck_assert_ptr_nonnull(node_dial_link(&d));
	tick(1);
	ck_assert_ptr_null(node_dial_link(&d));
	gives_up();
	again(2);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("node_dial");
	TCase *t = tcase_create("node_dial");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 30);
	tcase_add_test(t, it_says_hello_and_is_linked);
	tcase_add_test(t, what_goes_up_goes_over_the_link);
	tcase_add_test(t, welcome_comes_once);
	tcase_add_loop_test(t, welcome_comes_first, 0, 2);
	tcase_add_test(t, a_coordinator_says_no_hello);
	tcase_add_test(t, a_lower_term_is_not_believed);
	tcase_add_loop_test(t, coordinators_do_not_send_what_nodes_send, 0, 10);
	tcase_add_test(t, each_kind_that_goes_down_is_taken);
	tcase_add_test(t, it_dials_again_with_pauses);
	tcase_add_test(t, silence_ends_a_link);
	return suite_run(s);
}
