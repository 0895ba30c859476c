/* SPDX-License-Identifier: Apache-2.0 */
/* The states of a cluster's nodes, row by row: links, leases, who may come, and what operators are told. */
#include "control/members.h"
#include "control/messages.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECOND INT64_C(1000000000)
#define LEASE (15 * SECOND)
enum { TERM = 7 };

static struct members *m;
static struct now now;
static char events[20000], why[400]; /* "!NodeSuspect node b: ...\n" */
static uint64_t closed[8];
static unsigned n_closed, n_changed, n_events;

static void on_event(void *ctx, bool warning, const char *reason, const char *text)
{
	size_t n = strlen(events);
	n_events++;
	snprintf(events + n, sizeof(events) - n, "%s%s: %s\n", warning ? "!" : "", reason, text);
}

static void on_changed(void *ctx, uint32_t index)
{
	n_changed++;
}

static void on_close(void *ctx, uint64_t link)
{
	ck_assert_ptr_null(members_of_link(m, link));
	closed[n_closed++] = link;
}

static void setup(void)
{
	m = members_new(&(struct members_ports){ NULL, on_event, on_changed, on_close }, "head", LEASE, TERM);
	now = (struct now){ 1000 * SECOND, 5 };
}

static void teardown(void)
{
	members_free(m);
}

#define EVENTS(text)                                                                                                   \
	do {                                                                                                           \
		ck_assert_str_eq(events, text);                                                                        \
		*events = '\0';                                                                                        \
	} while (0)

static struct member_facts facts(const char *name, uint64_t incarnation)
{
	struct member_facts f = { .boot_id = { (uint8_t)name[0] },
				  .incarnation = incarnation,
				  .protocol_min = 1,
				  .protocol_max = 1,
				  .memory_limit = 100,
				  .term_seen = TERM };
	snprintf(f.node, sizeof(f.node), "%s", name);
	snprintf(f.data_address, sizeof(f.data_address), "10.0.0.%d", name[0] % 100);
	return f;
}

static enum status hello_of(struct member_facts f, uint64_t *link)
{
	uint32_t index = 9999;
	*why = '\0';
	enum status st = members_hello(m, &f, now, link, &index, why, sizeof(why));
	ck_assert(!st == !*why && (st || members_at(m, index) == members_find(m, f.node)));
	return st;
}

static uint64_t hello(const char *name, uint64_t incarnation)
{
	uint64_t link = 0;
	ck_assert_msg(!hello_of(facts(name, incarnation), &link), "%s", why);
	ck_assert(members_of_link(m, link) == members_find(m, name));
	return link;
}

/* So much time, in which these links speak. */
static void pass(int64_t ns, const uint64_t *link, unsigned n_links)
{
	for (int64_t end = now.mono_ns + ns; now.mono_ns < end;) {
		now.mono_ns += SECOND / 2;
		now.unix_ns += SECOND / 2;
		for (unsigned i = 0; i < n_links; i++)
			ck_assert(members_heard(m, link[i], now, NULL));
		members_tick(m, now);
	}
}

static enum member_state state_of(const char *name)
{
	return members_find(m, name)->state;
}

START_TEST(names_of_nodes)
{
	char long_name[MEMBER_NAME + 1];
	memset(long_name, 'x', sizeof(long_name));
	long_name[MEMBER_NAME] = '\0';
	ck_assert(!node_name_ok(long_name, strlen(long_name)) && node_name_ok(long_name + 1, strlen(long_name + 1)));
	ck_assert(node_name_ok("a", strlen("a")) && node_name_ok("Z9.-_", strlen("Z9.-_")));
	ck_assert(!node_name_ok("", strlen("")) && !node_name_ok("a b", strlen("a b")) &&
		  !node_name_ok("a/b", strlen("a/b")) && !node_name_ok("\xc3\xa9", strlen("\xc3\xa9")));
}
END_TEST

START_TEST(a_node_comes)
{
	uint64_t link = hello("b", 4);
	const struct member *b = members_find(m, "b");
	ck_assert_uint_eq(link, (UINT64_C(7) << 32) + 1);
	ck_assert(b->state == MEMBER_UP && b->link == link && b->known && !b->expected && !b->drained);
	ck_assert(b->since_ns == now.mono_ns - 0 && b->heard_unix_ns == 5 && b->facts.incarnation == 4);
	ck_assert_str_eq(member_state_name(b->state), "UP");
	ck_assert(members_n(m) == 1 && n_changed && !members_find(m, "c") && !members_of_link(m, 0));
	EVENTS("NodeUp: node b is up: 10.0.0.98, incarnation 4\n");
	now.mono_ns++;
	ck_assert(members_heard(m, link, now, &(struct member_beat){ 200, 50 }));
	ck_assert(b->facts.memory_limit == 200 && b->facts.memory_used == 50 && b->heard_ns == now.mono_ns);
	ck_assert(!members_heard(m, link + 1, now, NULL) && !members_heard(m, 0, now, NULL));
	ck_assert_uint_eq(hello("c", 1), link + 1);
}
END_TEST

START_TEST(a_silent_node_is_suspect_then_down_then_back)
{
	uint64_t b = hello("b", 4), c = hello("c", 1);
	members_tick(m, now);
	*events = '\0';
	pass(5 * SECOND / 2, &c, 1);
	ck_assert_int_eq(state_of("b"), MEMBER_UP);
	pass(SECOND / 2, &c, 1);
	ck_assert_int_eq(state_of("b"), MEMBER_SUSPECT);
	ck_assert_int_eq(members_find(m, "b")->since_ns, now.mono_ns);
	ck_assert_uint_eq(members_find(m, "b")->link, b);
	EVENTS("!NodeSuspect: node b: no word for 3 s; its jobs wait\n");
	pass(LEASE - 7 * SECOND / 2, &c, 1);
	ck_assert_int_eq(state_of("b"), MEMBER_SUSPECT);
	EVENTS("");
	pass(SECOND / 2, &c, 1);
	ck_assert_int_eq(state_of("b"), MEMBER_DOWN);
	EVENTS("!NodeDown: node b is down: no word for 15 s; its jobs wait\n");
	pass(20 * SECOND, &c, 1);
	ck_assert(members_heard(m, b, now, NULL)); /* it was frozen */
	ck_assert_int_eq(state_of("b"), MEMBER_UP);
	EVENTS("NodeBack: node b is back\n");
	pass(SECOND, &c, 1);
	EVENTS("");
}
END_TEST

START_TEST(a_link_ends)
{
	uint64_t b = hello("b", 4), c = hello("c", 1), again;
	*events = '\0';
	ck_assert(members_link_gone(m, b, "", now) && !members_link_gone(m, b, "late", now) &&
		  !members_heard(m, b, now, NULL));
	ck_assert(state_of("b") == MEMBER_SUSPECT && !members_find(m, "b")->link);
	members_tick(m, now);
	EVENTS("!NodeSuspect: node b: its link has ended; its jobs wait\n");
	again = hello("b", 4);
	ck_assert(again > c && state_of("b") == MEMBER_UP && !n_closed);
	EVENTS("NodeBack: node b is back\n");
	members_link_gone(m, again, "", now);
	hello("b", 4); /* between two ticks: nobody need know */
	members_tick(m, now);
	EVENTS("");
	ck_assert(!members_heard(m, again, now, NULL));
	members_link_gone(m, members_find(m, "b")->link, "", now);
	pass(LEASE, &c, 1);
	ck_assert_int_eq(state_of("b"), MEMBER_DOWN);
	*events = '\0';
	hello("b", 5);
	EVENTS("NodeUp: node b is up: 10.0.0.98, incarnation 5\n"); /* another life */
}
END_TEST

START_TEST(the_coordinators_own_pauses_do_not_count)
{
	uint64_t c = hello("c", 1);
	hello("b", 4);
	members_tick(m, now);
	now.mono_ns += 3600 * SECOND; /* stopped */
	members_tick(m, now);
	ck_assert(state_of("b") == MEMBER_UP && state_of("c") == MEMBER_UP);
	now.mono_ns += 3600 * SECOND;
	members_tick(m, now);
	ck_assert_int_eq(members_find(m, "b")->silent_ns, 2 * SECOND);
	members_heard(m, c, now, NULL);
	now.mono_ns += SECOND;
	members_tick(m, now);
	ck_assert(state_of("b") == MEMBER_SUSPECT && state_of("c") == MEMBER_UP);
	now.mono_ns -= 10 * SECOND; /* no clock does this */
	members_tick(m, now);
	ck_assert_int_eq(members_find(m, "b")->silent_ns, 3 * SECOND);
}
END_TEST

START_TEST(most_nodes_silent_is_the_coordinators_own_network)
{
	const char *const names[] = { "b", "c", "d", "e" };
	uint64_t link[4];
	for (int i = 0; i < 4; i++)
		link[i] = hello(names[i], 1);
	members_tick(m, now);
	*events = '\0';
	pass(100 * SECOND, link, 2);
	ck_assert(members_isolated(m));
	ck_assert(state_of("b") == MEMBER_UP && state_of("d") == MEMBER_SUSPECT && state_of("e") == MEMBER_SUSPECT);
	EVENTS("!CoordinatorIsolated: 2 of 4 nodes are silent: more likely by the coordinator's own network; none "
	       "counts as down by it\n");
	pass(100 * SECOND, NULL, 0);
	ck_assert(state_of("b") == MEMBER_SUSPECT && state_of("d") == MEMBER_SUSPECT);
	EVENTS("");
	pass(SECOND, link, 3);
	ck_assert(!members_isolated(m));
	EVENTS("CoordinatorIsolated: it is over: 3 of 4 nodes are up\n!NodeSuspect: node e: no word for 3 s; its jobs "
	       "wait\n");
	pass(LEASE - 5 * SECOND, link, 3); /* what it was silent before counts, and no more */
	ck_assert_int_eq(state_of("e"), MEMBER_SUSPECT);
	pass(2 * SECOND, link, 3);
	ck_assert_int_eq(state_of("e"), MEMBER_DOWN);
	*events = '\0';
	pass(LEASE, link, 2); /* one of the three that are left */
	ck_assert(!members_isolated(m) && state_of("d") == MEMBER_DOWN);
	pass(LEASE, link, 1); /* one of two */
	ck_assert(!members_isolated(m) && state_of("c") == MEMBER_DOWN);
	pass(LEASE, NULL, 0); /* the last one */
	ck_assert(!members_isolated(m) && state_of("b") == MEMBER_DOWN);
}
END_TEST

START_TEST(links_that_end_at_once_are_isolation_too)
{
	uint64_t b = hello("b", 1), c = hello("c", 1);
	*events = '\0';
	members_link_gone(m, b, "", now);
	members_link_gone(m, c, "", now);
	pass(10 * LEASE, NULL, 0);
	ck_assert(state_of("b") == MEMBER_SUSPECT && state_of("c") == MEMBER_SUSPECT);
	EVENTS("!CoordinatorIsolated: 2 of 2 nodes are silent: more likely by the coordinator's own network; none "
	       "counts as down by it\n");
	hello("b", 1);
	hello("c", 1);
	members_tick(m, now);
	EVENTS("CoordinatorIsolated: it is over: 2 of 2 nodes are up\n"); /* and no NodeBack of what was not told */
}
END_TEST

START_TEST(nodes_that_are_expected)
{
	uint64_t c = hello("c", 1);
	*events = '\0';
	ck_assert_int_eq(members_expect(m, "b", true, now), ST_OK);
	ck_assert_int_eq(members_expect(m, "head", true, now), ST_OK);
	ck_assert_int_eq(members_expect(m, "a b", true, now), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(members_expect(m, "x", false, now), ST_OK);
	ck_assert(members_n(m) == 2 && !members_find(m, "head") && !members_find(m, "x"));
	const struct member *b = members_find(m, "b");
	ck_assert(b->state == MEMBER_SUSPECT && !b->known && b->expected && !b->link && b->since_ns == now.mono_ns);
	members_tick(m, now);
	pass(LEASE - SECOND, &c, 1);
	ck_assert_int_eq(b->state, MEMBER_SUSPECT);
	EVENTS("");
	pass(SECOND, &c, 1);
	ck_assert_int_eq(b->state, MEMBER_DOWN);
	EVENTS("!NodeDown: node b is down: it has not come in the 15 s since this coordinator began; its jobs wait\n");
	hello("b", 3);
	EVENTS("NodeUp: node b is up: 10.0.0.98, incarnation 3\n");
	ck_assert(b->expected && b->known);
	ck_assert_int_eq(members_expect(m, "b", true, now), ST_OK);
	ck_assert_int_eq(b->state, MEMBER_UP);
	ck_assert_int_eq(members_expect(m, "b", false, now), ST_OK);
	ck_assert(!b->expected);
	ck_assert_int_eq(members_expect(m, "d", true, now), ST_OK);
	hello("d", 1);
	EVENTS("NodeUp: node d is up: 10.0.0.0, incarnation 1\n");
}
END_TEST

START_TEST(drain)
{
	hello("b", 1);
	n_changed = 0;
	ck_assert_int_eq(members_drain(m, "c", true), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(members_drain(m, "b", true), ST_OK);
	ck_assert_int_eq(members_drain(m, "b", true), ST_OK);
	ck_assert(members_find(m, "b")->drained && n_changed == 1);
	hello("b", 2); /* stays */
	ck_assert(members_find(m, "b")->drained);
	ck_assert_int_eq(members_drain(m, "b", false), ST_OK);
	ck_assert(!members_find(m, "b")->drained);
}
END_TEST

#define REFUSED(change, st, text)                                                                                      \
	do {                                                                                                           \
		struct member_facts f = facts("b", 4);                                                                 \
		uint64_t none = 0;                                                                                     \
		change;                                                                                                \
		ck_assert_int_eq(hello_of(f, &none), st);                                                              \
		ck_assert_str_eq(why, text);                                                                           \
	} while (0)

START_TEST(who_may_not_come)
{
	uint64_t link;
	REFUSED(f.protocol_min = f.protocol_max = 3, ST_VERSION_SKEW,
		"node b speaks protocol 3 to 3, and coordinator head 1 to 2: update the older");
	REFUSED(strcpy(f.node, "head"), ST_ALREADY_EXISTS,
		"head is the coordinator's own name; give the node at 10.0.0.98 another node.name");
	ck_assert_uint_eq(members_n(m), 0);
	EVENTS("!NodeRefused: node b speaks protocol 3 to 3, and coordinator head 1 to 2: update the older\n"
	       "!NodeRefused: head is the coordinator's own name; give the node at 10.0.0.98 another node.name\n");
	REFUSED(f.term_seen = 8, ST_STALE_TERM,
		"node b has seen term 8 of a coordinator, and this one, head, has 7: its journal is not the newest, or "
		"the node belongs to another cluster");
	EVENTS("!NodeAhead: node b has seen term 8 of a coordinator, and this one, head, has 7: its journal is not the "
	       "newest, or the node belongs to another cluster\n");
	struct member_facts f = facts("b", 4);
	f.protocol_max = 9;
	ck_assert(!hello_of(f, &link));
}
END_TEST

START_TEST(a_second_gaccd_with_a_name_that_is_up)
{
	uint64_t b = hello("b", 4), c = hello("c", 1), other;
	*events = '\0';
#define IS_UP "a node with the name b is up: 10.0.0.98, incarnation 4; this one is 10.0.0.98, incarnation "
	REFUSED(, ST_ALREADY_EXISTS, IS_UP "4");
	REFUSED(f.incarnation = 3, ST_ALREADY_EXISTS, IS_UP "3");
	REFUSED((f.incarnation = 5, f.boot_id[15] = 1), ST_ALREADY_EXISTS, IS_UP "5");
	pass(11 * SECOND / 2, (uint64_t[]){ b, c }, 2);
	REFUSED(, ST_ALREADY_EXISTS, IS_UP "4");
	EVENTS(""); /* so far it may be a link that broke unseen */
	pass(SECOND / 2, (uint64_t[]){ b, c }, 2);
	REFUSED(, ST_ALREADY_EXISTS, IS_UP "4");
	EVENTS("!NodeNameTwice: " IS_UP "4\n");
	pass(61 * SECOND, (uint64_t[]){ b, c }, 2);
	REFUSED(, ST_ALREADY_EXISTS, IS_UP "4");
	EVENTS("");
	ck_assert(members_find(m, "b")->link == b && !n_closed);
	pass(3 * SECOND, &c, 1); /* and that it is */
	ck_assert_int_eq(state_of("b"), MEMBER_SUSPECT);
	other = hello("b", 4);
	ck_assert(n_closed == 1 && closed[0] == b && state_of("b") == MEMBER_UP);
	ck_assert(!members_heard(m, b, now, NULL) && members_heard(m, other, now, NULL));
}
END_TEST

START_TEST(a_later_life_takes_the_place_of_the_old_link)
{
	uint64_t b = hello("b", 4);
	*events = '\0';
	uint64_t next = hello("b", 5);
	ck_assert(n_closed == 1 && closed[0] == b && next > b);
	EVENTS("NodeUp: node b is up: 10.0.0.98, incarnation 5\n");
	members_tick(m, now);
	ck_assert(!members_link_gone(m, b, "", now) && state_of("b") == MEMBER_UP);
	pass(3 * SECOND, NULL, 0);
	struct member_facts f = facts("b", 1); /* with a new state_dir, and after a start of the machine */
	f.boot_id[0] = 1;
	ck_assert(!hello_of(f, &b));
	ck_assert(n_closed == 2 && closed[1] == next && members_find(m, "b")->facts.incarnation == 1);
}
END_TEST

START_TEST(logs_do_not_fill_up)
{
	uint64_t b = hello("b", 4), c = hello("c", 1);
	n_events = 0;
	for (int i = 0; i < 60; i++) { /* seconds */
		members_link_gone(m, b, "", now);
		pass(SECOND / 2, &c, 1);
		b = hello("b", 4);
		pass(SECOND / 2, &c, 1);
	}
	ck_assert_uint_le(n_events, 2 * 10);
	ck_assert_uint_ge(n_events, 9);
	*events = '\0';
	for (int i = 0; i < 5; i++) {
		members_link_gone(m, b, "", now);
		members_tick(m, now);
		b = hello("b", 4);
	}
	members_link_gone(m, b, "", now);
	now.mono_ns += SECOND;
	members_tick(m, now);
	*events = '\0';
	pass(11 * SECOND, &c, 1); /* what it is in the end is told later */
	now.mono_ns += 60 * SECOND;
	pass(10 * SECOND, &c, 1);
	EVENTS("!NodeDown: node b is down: no word for 15 s; its jobs wait\n");
	n_events = 0;
	for (int i = 0; i < 1000; i++)
		REFUSED(f.term_seen = 8, ST_STALE_TERM,
			"node b has seen term 8 of a coordinator, and this one, head, has 7: its journal is not the "
			"newest, or the node belongs to another cluster");
	ck_assert_uint_eq(n_events, 10);
	now.mono_ns += 60 * SECOND;
	*events = '\0';
	uint64_t link;
	struct member_facts f = facts("d", 1);
	f.term_seen = 9;
	ck_assert_int_eq(hello_of(f, &link), ST_STALE_TERM);
	ck_assert_ptr_nonnull(strstr(events, "another cluster (990 more were not told)\n"));
}
END_TEST

START_TEST(there_is_room_for_so_many)
{
	char name[MEMBER_NAME];
	uint64_t link[MEMBERS_MAX], other;
	for (uint32_t i = 0; i < MEMBERS_MAX; i++) {
		snprintf(name, sizeof(name), "n%u", i);
		link[i] = hello(name, 1);
		now.mono_ns++;
		*events = '\0';
	}
	const char *const full = "this coordinator knows 1024 nodes, or has had 2^32 links: it takes no more";
	REFUSED(, ST_RESOURCE_EXHAUSTED, full);
	ck_assert_ptr_nonnull(strstr(events, "!NodeRefused: node b: this coordinator knows"));
	ck_assert_int_eq(members_expect(m, "b", true, now), ST_RESOURCE_EXHAUSTED);
	for (uint32_t i = 3; i < 6; i++) /* all of these will be missed, and n0 to n2 have links */
		members_link_gone(m, link[i], "", now);
	members_drain(m, "n3", true);
	members_expect(m, "n4", true, now);
	members_tick(m, now);
	pass(LEASE, link + 6, MEMBERS_MAX - 6);
	hello("n5", 1);
	ck_assert(state_of("n0") == MEMBER_DOWN && state_of("n3") == MEMBER_DOWN && state_of("n4") == MEMBER_DOWN);
	REFUSED(, ST_RESOURCE_EXHAUSTED, full);
	members_link_gone(m, link[0], "", now);
	pass(SECOND, link + 1, 2);
	pass(SECOND, link + 6, MEMBERS_MAX - 6); /* n1, n2 are back, n0 is DOWN for longest */
	members_link_gone(m, link[1], "", now);
	pass(LEASE, link + 6, MEMBERS_MAX - 6);
	ck_assert_int_eq(state_of("n1"), MEMBER_DOWN);
	ck_assert_int_eq(hello_of(facts("b", 1), &other), ST_OK);
	ck_assert(!members_find(m, "n0") && members_find(m, "b"));
	ck_assert_int_eq(hello_of(facts("c", 1), &other), ST_OK);
	ck_assert(!members_find(m, "n1") && members_find(m, "c"));
	ck_assert_int_eq(hello_of(facts("d", 1), &other), ST_RESOURCE_EXHAUSTED);
	ck_assert_uint_eq(members_n(m), MEMBERS_MAX);
}
END_TEST

START_TEST(a_short_lease)
{
	members_free(m);
	m = members_new(&(struct members_ports){ NULL, on_event, on_changed, on_close }, "head", SECOND, UINT32_MAX);
	uint64_t c = hello("c", 1);
	hello("b", 1);
	ck_assert_uint_eq(c, (UINT64_C(0xffffffff) << 32) + 1);
	members_tick(m, now);
	pass(5 * SECOND / 2, &c, 1);
	ck_assert_int_eq(state_of("b"), MEMBER_UP);
	*events = '\0';
	pass(SECOND / 2, &c, 1);
	ck_assert_int_eq(state_of("b"), MEMBER_DOWN);
	EVENTS("!NodeDown: node b is down: no word for 3 s; its jobs wait\n");
	members_link_gone(m, hello("b", 1), "", now); /* nor does it run faster once the link has ended */
	pass(5 * SECOND / 2, &c, 1);
	ck_assert_int_eq(state_of("b"), MEMBER_SUSPECT);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("members");
	TCase *c = tcase_create("members");
	suite_add_tcase(s, c);
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, names_of_nodes);
	tcase_add_test(c, a_node_comes);
	tcase_add_test(c, a_silent_node_is_suspect_then_down_then_back);
	tcase_add_test(c, a_link_ends);
	tcase_add_test(c, the_coordinators_own_pauses_do_not_count);
	tcase_add_test(c, most_nodes_silent_is_the_coordinators_own_network);
	tcase_add_test(c, links_that_end_at_once_are_isolation_too);
	tcase_add_test(c, nodes_that_are_expected);
	tcase_add_test(c, drain);
	tcase_add_test(c, who_may_not_come);
	tcase_add_test(c, a_second_gaccd_with_a_name_that_is_up);
	tcase_add_test(c, a_later_life_takes_the_place_of_the_old_link);
	tcase_add_test(c, logs_do_not_fill_up);
	tcase_add_test(c, there_is_room_for_so_many);
	tcase_add_test(c, a_short_lease);
	return suite_run(s);
}
