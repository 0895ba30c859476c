/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that other nodes launch for a job which is coordinated here: what is ordered there and when, which of their
 * news are believed, and that a node which stays silent holds up nobody for ever. The test plays the nodes. */
#include "control/members.h"
#include "edge/hosted_life.h"
#include "edge/launching_impl.h"
#include "edge/links.h"
#include "edge/node_serve.h"
#include "edge_rig.h"
#include "fake_launcher.h"
#include "gacc/v1/common.pb-c.h"
#include "support/suite.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { JOB = 5, WORLD = 5, NODES = 2 };
#define MS INT64_C(1000000)
#define S (1000 * MS)

static struct hosted *h;
static struct now start; /* of the test; its clock is this and what has passed */
static const uint32_t first[NODES + 1] = { 0, 2, WORLD };
static struct launched news[NODES]; /* what each node says next */
static struct launch_rank ranks[WORLD];
static struct launch_wanted wanted[NODES]; /* the newest order to each */
static uint32_t n_wanted[NODES];

/* In place of the link, by the linker's --wrap. */
bool __wrap_links_send_down(struct daemon *from, uint32_t node, enum link_kind kind, uint64_t job, uint32_t part,
			    void *bytes, size_t n, struct shared *end);
bool __wrap_links_send_down(struct daemon *from, uint32_t node, enum link_kind kind, uint64_t job, uint32_t part,
			    void *bytes, size_t n, struct shared *end)
{
	char why[200];
	if (kind == LINK_LAUNCH) {
		ck_assert(job == JOB && part < NODES && node == h->part[part].node);
		ck_assert_msg(!launch_wanted_unpack(bytes, n, WORLD, &wanted[part], why, sizeof(why)), "%s", why);
		n_wanted[part]++;
	}
	free(bytes);
	return true;
}

static void on_two_nodes(Gacc__V1__JobSpec *spec)
{
	static char nodes[] = "b,c";
	with_launch(spec);
	spec->ranks = WORLD;
	spec->parts = 2;
	spec->nodes = nodes;
}

static void hello(const char *name)
{
	struct member_facts facts = {
		.boot_id = { 1 }, .incarnation = 1, .protocol_min = 1, .protocol_max = 1, .cpus = 1
	};
	uint64_t link;
	uint32_t index;
	char why[200] = "";
	snprintf(facts.node, sizeof(facts.node), "%s", name);
	snprintf(facts.data_address, sizeof(facts.data_address), "10.0.0.%d", name[0]);
	snprintf(facts.coll, sizeof(facts.coll), "gloo/1");
	ck_assert_msg(!members_hello(d.members, &facts, daemon_now(&d), &link, &index, why, sizeof(why)), "%s", why);
}

static void setup(void)
{
	rig_open();
	free(conf->node.name);
	conf->node.name = strdup("a");
	ck_assert_int_eq(node_serve_new(&d), ST_OK);
	h = rig_job(JOB, getuid(), "ana", on_two_nodes);
	h->submitted_here = true;
	start = daemon_now(&d);
	memset(n_wanted, 0, sizeof(n_wanted));
	memset(ranks, 0, sizeof(ranks));
	for (uint32_t i = 0; i < WORLD; i++)
		ranks[i] = (struct launch_rank){ .state = LAUNCH_RANK_RUNNING, .pid = 70 + i, .exit_status = -1 };
	for (uint32_t i = 0; i < NODES; i++)
		news[i] = (struct launched){ .job_id = JOB,
					     .epoch = coord_epoch(h->coord),
					     .incarnation = 8,
					     .part = i,
					     .first = first[i],
					     .n_ranks = first[i + 1] - first[i],
					     .rank = ranks + first[i] };
	hello("b");
	hello("c");
	launching_begin(h);
}

static void teardown(void)
{
	rig_close();
	node_serve_free(&d);
}

/* In a message that is about this part. */
static void say_about(uint32_t part, const struct launched *l, uint32_t node)
{
	size_t n;
	void *bytes = launched_pack(l, &n);
	const struct link_message m = { LINK_LAUNCHED, JOB, part, bytes, n, NULL, false, node };
	launching_take_news(&d, &m);
	free(bytes);
}

static void say_from(const struct launched *l, uint32_t node)
{
	say_about(l->part, l, node);
}

/* What the node has to say now, of its newest order too. */
static void say(uint32_t part)
{
	struct launched *l = &news[part];
	l->number++;
	l->term = wanted[part].term;
	l->order = wanted[part].number;
	say_from(l, h->part[part].node);
}

static void say_phase(uint32_t part, enum launch_phase phase)
{
	news[part].summary.phase = phase;
	news[part].summary.master_port = 4000;
	say(part);
}

static void tick_in(int64_t ns)
{
	const struct now now = { start.mono_ns + ns, start.unix_ns + ns };
	launching_tick(h, now);
}

/* The job's end is in the journal. */
static void wait_for_end(void)
{
	rig_run();
	ck_assert(hosted_ended(h));
	tick_in(0);
}

static void end_with(enum status st)
{
	start = daemon_now(&d);
	coord_end(h->coord, st, "by a test", start);
	wait_for_end();
}

static void end(void)
{
	end_with(ST_CANCELLED);
}

/* All ranks run. */
static void run(void)
{
	for (uint32_t k = 0; k < 2; k++)
		for (uint32_t i = 0; i < NODES; i++)
			say_phase(i, k ? LAUNCH_RUNNING : LAUNCH_IDLE);
	ck_assert(wanted[0].wish.want == LAUNCH_WANT_RUN && wanted[1].wish.want == LAUNCH_WANT_RUN);
}

/* ---- what is ordered ---- */

/* The port where ranks meet is chosen at the node with rank 0, and a launcher of an earlier coordinator's time may know
 * another one. */
START_TEST(the_first_node_starts_when_all_are_heard_and_then_the_others)
{
	ck_assert(n_wanted[0] == 1 && n_wanted[1] == 1 && wanted[0].wish.want == LAUNCH_WANT_NOTHING);
	ck_assert(!memcmp(wanted[0].uuid, h->uuid, sizeof(h->uuid)) && wanted[0].term == d.term);
	say_from(&(struct launched){ .job_id = JOB,
				     .epoch = 1,
				     .incarnation = 8,
				     .number = 1,
				     .part = 0,
				     .n_ranks = 2,
				     .rank = ranks },
		 h->part[0].node);
	ck_assert_int_eq(wanted[0].wish.want, LAUNCH_WANT_NOTHING);
	say(1);
	ck_assert_int_eq(wanted[0].wish.want, LAUNCH_WANT_RUN);
	ck_assert_int_eq(wanted[1].wish.want, LAUNCH_WANT_NOTHING);
	ck_assert(!wanted[0].wish.group && wanted[0].wish.n_groups == 2 && !wanted[0].wish.master_port);
	news[0].number = 1;
	say_phase(0, LAUNCH_IDLE);
	ck_assert_int_eq(wanted[1].wish.want, LAUNCH_WANT_RUN);
	ck_assert(wanted[1].wish.group == 1 && wanted[1].wish.master_port == 4000);
	ck_assert(wanted[1].wish.first == 2 && wanted[1].wish.n_ranks == 3 && wanted[1].part == 1);
	ck_assert_str_eq(wanted[1].wish.master_addr, "10.0.0.98"); /* b's */
}
END_TEST

START_TEST(an_order_is_repeated_until_it_is_taken)
{
	run();
	say(0);
	say(1);
	const uint32_t n = n_wanted[1];
	tick_in(5 * S);
	ck_assert_uint_eq(n_wanted[1], n);
	ranks[0].state = LAUNCH_RANK_WAITING;
	news[0].summary.wanted = 1; /* a new order to the first node; of the other nothing else is wanted */
	say(0);
	ck_assert_uint_eq(wanted[0].wish.allowed, 1);
	const uint32_t before = n_wanted[0];
	start = daemon_now(&d);
	tick_in(900 * MS);
	ck_assert_uint_eq(n_wanted[0], before);
	tick_in(1100 * MS);
	ck_assert_uint_eq(n_wanted[0], before + 1);
	news[0].number++;
	news[0].term = d.term - 1; /* the same number, of an earlier coordinator's order */
	news[0].order = wanted[0].number;
	say_from(&news[0], h->part[0].node);
	tick_in(2200 * MS);
	ck_assert_uint_eq(n_wanted[0], before + 2);
	say(0);
	tick_in(9 * S);
	ck_assert(n_wanted[0] == before + 2 && n_wanted[1] == n);
}
END_TEST

START_TEST(a_new_link_has_the_order_again)
{
	run();
	say(1);
	const uint32_t n[NODES] = { n_wanted[0], n_wanted[1] };
	const uint64_t number = wanted[1].number;
	launching_linked(h, 1, false);
	tick_in(0);
	ck_assert(n_wanted[0] == n[0] && n_wanted[1] == n[1] + 1 && wanted[1].number == number);
	news[1].incarnation = 3; /* its journal begins anew */
	news[1].number = 0;
	news[1].launcher_pid = 99;
	say(1);
	ck_assert_int_ne(h->launch->site[1].launcher_pid, 99);
	launching_linked(h, 1, true);
	say(1);
	ck_assert_int_eq(h->launch->site[1].launcher_pid, 99);
}
END_TEST

START_TEST(an_end_reaches_all_with_the_grace_of_a_cancel)
{
	run();
	end();
	launching_cancel(h, 3 * MS);
	for (uint32_t i = 0; i < NODES; i++)
		ck_assert(wanted[i].wish.want == LAUNCH_WANT_END && wanted[i].wish.grace_ns == 3 * MS);
}
END_TEST

/* News are throttled: a short job is complete before its coordinator has heard that the ranks of a node run. */
START_TEST(ranks_of_a_completed_job_exit_on_their_own)
{
	run();
	news[1].summary.phase = LAUNCH_IDLE;
	say(1);
	end_with(ST_OK);
	ck_assert_int_eq(hosted_state(h, NULL, NULL), JOB_COMPLETED);
	for (uint32_t i = 0; i < NODES; i++)
		ck_assert_int_eq(wanted[i].wish.want, LAUNCH_WANT_DRAIN);
	tick_in(599 * S);
	ck_assert_int_eq(wanted[1].wish.want, LAUNCH_WANT_DRAIN);
	h->launch->site[1].over = false; /* as if it had not been silent */
	tick_in(601 * S);
	ck_assert_int_eq(wanted[1].wish.want, LAUNCH_WANT_END);
}
END_TEST

/* ---- who is believed ---- */

START_TEST(only_newer_news_of_the_parts_node_are_believed)
{
	run();
	const uint32_t node = h->part[0].node, other_node = h->part[1].node;
	for (int i = 0; i < 11; i++) {
		struct launched l = news[0];
		uint32_t from = node;
		l.number++;
		l.launcher_pid = 99;
		switch (i) {
		case 0:
			from = other_node;
			break;
		case 1:
			from = 0; /* this gaccd */
			break;
		case 2:
			l.part = 1;
			break;
		case 3:
			l.epoch++;
			break;
		case 4:
			l.job_id++;
			break;
		case 5:
			l.n_ranks--;
			break;
		case 6:
			l.first++;
			break;
		case 7:
			l.incarnation--;
			break;
		case 8:
			l.number--;
			break;
		case 9:
			l.summary.allowed = 6; /* the job has 5 */
			break;
		default:
			l.summary.charged = 6;
			break;
		}
		say_about(0, &l, from);
		ck_assert_msg(h->launch->site[0].launcher_pid == 0 && h->launch->site[1].launcher_pid == 0, "%d", i);
	}
	ck_assert_uint_eq(h->launch->share[0].allowed, 0);
	news[0].launcher_pid = 99;
	say(0);
	ck_assert_int_eq(h->launch->site[0].launcher_pid, 99);
	news[0].incarnation++; /* it counts anew */
	news[0].number = 0;
	news[0].launcher_pid = 100;
	say(0);
	ck_assert_int_eq(h->launch->site[0].launcher_pid, 100);
}
END_TEST

static uint32_t count_events(const char *reason)
{
	uint32_t n = 0;
	for (uint64_t i = events_first(&h->events); i < h->events.n; i++)
		n += !strcmp(events_at(&h->events, i)->reason, reason);
	return n;
}

/* One false word would else take all restarts from the other nodes. */
START_TEST(a_node_cannot_claim_restarts_that_it_was_not_given)
{
	run();
	for (int i = 0; i < 2; i++) {
		uint32_t *claim = i ? &news[1].summary.charged : &news[1].summary.allowed;
		*claim = 5;
		say(1);
		*claim = 0;
		say(1);
	}
	ck_assert_uint_eq(h->launch->share[1].allowed, 0);
	ck_assert_uint_eq(count_events("RestartsDoubted"), 1);
	ranks[0].state = ranks[1].state = LAUNCH_RANK_WAITING;
	news[0].summary.wanted = 2;
	say(0);
	ck_assert(wanted[0].wish.allowed == 2 && !wanted[0].wish.final);
}
END_TEST

/* ---- failures ---- */

START_TEST(a_failure_names_rank_and_node)
{
	const char *reason;
	static char text[] = "here\ndisk on fire\n";
	run();
	news[1].summary.phase = LAUNCH_STOPPING;
	news[1].summary.result = LAUNCH_FAILED;
	news[1].summary.cause = (struct launch_cause){ true, 3, 73, 5, 1 };
	news[1].tail = text;
	news[1].n_tail = sizeof(text) - 1;
	say(1);
	wait_for_end();
	ck_assert_int_eq(hosted_state(h, &reason, NULL), JOB_FAILED);
	ck_assert_str_eq(reason, "rank 3 (pid 73) on node c exited with code 5: disk on fire");
	ck_assert(wanted[0].wish.want == LAUNCH_WANT_END && wanted[1].wish.want == LAUNCH_WANT_END);
}
END_TEST

START_TEST(a_node_that_cannot_launch_is_named)
{
	const char *reason;
	snprintf(news[0].failure, sizeof(news[0].failure), "no such user");
	say(0);
	wait_for_end();
	ck_assert_int_eq(hosted_state(h, &reason, NULL), JOB_FAILED);
	ck_assert_str_eq(reason, "node b: no such user");
}
END_TEST

/* ---- silence ---- */

START_TEST(an_ended_job_waits_a_minute_for_a_silent_node)
{
	run();
	tick_in(100 * S); /* of a job that runs nobody is given up */
	ck_assert(!launching_over(h));
	end();
	news[0].over = true;
	say_phase(0, LAUNCH_OVER);
	tick_in(59 * S);
	ck_assert(!launching_over(h) && !h->launch->kept);
	tick_in(62 * S);
	ck_assert(launching_over(h) && h->launch->kept);
	const uint32_t n = n_wanted[1];
	launching_cancel(h, 1);
	ck_assert_uint_eq(n_wanted[1], n);
}
END_TEST

/* It is the node's last word that counts, if that came after the end. */
START_TEST(a_node_that_is_heard_is_not_given_up)
{
	run();
	end();
	h->launch->ended_ns -= 50 * S;
	say(0);
	say(1);
	tick_in(55 * S); /* 105 s after the end */
	ck_assert(!launching_over(h));
	tick_in(62 * S);
	ck_assert(launching_over(h));
}
END_TEST

int main(void)
{
	Suite *s = suite_create("launching_far");
	TCase *c = tcase_create("launching_far");
	suite_add_tcase(s, c);
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, the_first_node_starts_when_all_are_heard_and_then_the_others);
	tcase_add_test(c, an_order_is_repeated_until_it_is_taken);
	tcase_add_test(c, a_new_link_has_the_order_again);
	tcase_add_test(c, an_end_reaches_all_with_the_grace_of_a_cancel);
	tcase_add_test(c, ranks_of_a_completed_job_exit_on_their_own);
	tcase_add_test(c, only_newer_news_of_the_parts_node_are_believed);
	tcase_add_test(c, a_node_cannot_claim_restarts_that_it_was_not_given);
	tcase_add_test(c, a_failure_names_rank_and_node);
	tcase_add_test(c, a_node_that_cannot_launch_is_named);
	tcase_add_test(c, an_ended_job_waits_a_minute_for_a_silent_node);
	tcase_add_test(c, a_node_that_is_heard_is_not_given_up);
	return suite_run(s);
}
