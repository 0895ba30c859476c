/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that a node launches for a job which another gaccd coordinates: whose orders it takes, what it tells of them,
 * and that their launcher is found from the part's record alone. */
#include "edge/part_launch.h"

#include "edge/links.h"
#include "fake_launcher.h"
#include "gacc/v1/common.pb-c.h"
#include "pair_rig.h"

#include "edge/placing.h"
#include "support/suite.h"

#include <stdlib.h>
#include <unistd.h>

#define MS INT64_C(1000000)

static links_take *takes[LINK_KINDS];
static struct launched heard; /* the newest news; its ranks are freed */
static uint32_t n_heard;
static struct launch_wanted order;
static char uuid[UUID_TEXT];

static void take_news(struct daemon *from, const struct link_message *m)
{
	char why[200];
	ck_assert_msg(!launched_unpack(m->bytes, m->n, RANKS, 5, &heard, why, sizeof(why)), "%s", why);
	ck_assert(m->job == heard.job_id && m->part == heard.part);
	free((void *)heard.rank);
	n_heard++;
}

static void listen_to_news(void)
{
	memcpy(takes, other.link_takes, sizeof(takes));
	takes[LINK_LAUNCHED] = take_news;
	other.link_takes = takes;
}

static void setup(void)
{
	pair_open();
	fake_launcher_reset();
	listen_to_news();
	memset(&heard, 0, sizeof(heard));
	n_heard = 0;
	job = rig_job(JOB + 1, getuid(), "ana", with_launch);
	uuid_text(job->uuid, uuid);
	placing_send(job, node_now());
	UNTIL(there());
	order = (struct launch_wanted){ .job_id = job->id,
					.epoch = coord_epoch(job->coord),
					.term = 3,
					.number = 5,
					.wish = { .want = LAUNCH_WANT_RUN,
						  .allowed = 1,
						  .n_ranks = RANKS,
						  .n_groups = 1,
						  .master_addr = "10.0.0.7" } };
	memcpy(order.uuid, job->uuid, sizeof(order.uuid));
}

static void teardown(void)
{
	part_launch_free_all(&other);
	ck_assert(!fake.open && !other.starter);
	pair_close();
}

static void take(const struct launch_wanted *w, bool away)
{
	size_t n;
	void *bytes = launch_wanted_pack(w, &n);
	const struct link_message m = { LINK_LAUNCH, job->id, 0, bytes, n, NULL, away, 0 };
	part_launch_take(&other, &m);
	free(bytes);
}

/* The ranks run, and the coordinator knows. */
static void run(void)
{
	take(&order, true);
	fake_says_phase(LAUNCH_IDLE);
	UNTIL(n_heard == 1);
}

static void tick_in(int64_t ms)
{
	struct now now = node_now();
	now.mono_ns += ms * MS;
	part_launch_tick(&other, now);
	pair_turn(time(NULL) + 1, "");
}

/* ---- orders ---- */

START_TEST(an_order_starts_ranks_and_is_answered)
{
	run();
	ck_assert_str_eq(fake.uuid, uuid);
	ck_assert(fake.started == 1 && fake.n_orders == 1);
	ck_assert(fake_order()->op == LAUNCH_OP_START && fake_order()->n_ranks == RANKS);
	ck_assert_msg(strstr(fake.words, "|/tmp|/tmp/logs|10.0.0.7|train|now|A=b|") != NULL, "%s", fake.words);
#define IS(field, value) ck_assert_msg(heard.field == (value), "%s is %lld", #field, (long long)heard.field)
	IS(job_id, job->id), IS(epoch, order.epoch), IS(incarnation, other.node.incarnation), IS(number, 1);
	IS(term, 3), IS(order, 5), IS(part, 0), IS(first, 0), IS(n_ranks, RANKS), IS(over, false);
	IS(launcher_pid, FAKE_PID), IS(summary.phase, LAUNCH_IDLE), IS(summary.master_port, 4000), IS(failure[0], '\0');
}
END_TEST

/* Whatever else it may be, what was wanted stays. */
START_TEST(only_newer_orders_of_this_job_are_taken)
{
	run();
	for (int i = 0; i < 10; i++) {
		struct launch_wanted w = order;
		bool away = true;
		w.number++;
		w.wish.allowed = 2;
		switch (i) {
		case 0:
			w.uuid[15] ^= 1; /* another coordinator's, of the same id */
			break;
		case 1:
			w.epoch++;
			break;
		case 2:
			w.term--;
			break;
		case 3:
			w.number = order.number;
			break;
		case 4:
			w.number = order.number - 1;
			break;
		case 5:
			w.part = 1;
			break;
		case 6:
			w.job_id = JOB;
			break;
		case 7:
			w.wish.first = 1;
			w.wish.n_ranks = 1;
			break;
		case 8:
			w.wish.n_ranks = 1;
			break;
		default:
			away = false; /* from this gaccd itself */
			break;
		}
		take(&w, away);
		ck_assert_msg(other.part_launch->starter.wish.allowed == 1, "%d", i);
		ck_assert_uint_eq(other.part_launch->order, 5);
	}
	fake_says_phase(LAUNCH_RUNNING);
	order.term++; /* a later coordinator counts from 1 */
	order.number = 1;
	order.wish.allowed = 2;
	take(&order, true);
	ck_assert_uint_eq(other.part_launch->starter.wish.allowed, 2);
	ck_assert_int_eq(fake_order()->op, LAUNCH_OP_ALLOW);
	UNTIL((part_launch_tick(&other, node_now()), heard.order == 1));
	ck_assert_uint_eq(heard.term, 4);
}
END_TEST

START_TEST(an_order_of_another_job_starts_nothing)
{
	order.uuid[0] ^= 1;
	take(&order, true);
	ck_assert(!other.part_launch && !fake.started);
}
END_TEST

/* Nothing of it is here: an end is there already, and a start waits for the placement. */
START_TEST(without_the_part_an_end_is_done)
{
	there()->dropped = true;
	UNTIL(!there());
	order.wish.want = (enum launch_want)(LAUNCH_WANT_NOTHING + _i);
	take(&order, true);
	for (int i = 0; i < 5; i++)
		tick_in(0);
	const bool ends = order.wish.want >= LAUNCH_WANT_DRAIN;
	ck_assert_uint_eq(n_heard, ends);
	ck_assert(!ends || (heard.over && heard.order == 5 && heard.term == 3 && heard.n_ranks == RANKS));
	ck_assert(!other.part_launch && !fake.started);
}
END_TEST

/* There is no launcher: one is started if a dead one has left something. */
START_TEST(an_end_cleans_up_what_is_left)
{
	if (_i)
		fake_traces(conf->runtime_dir, job->id, uuid, true);
	order.wish.want = LAUNCH_WANT_END;
	take(&order, true);
	ck_assert_uint_eq(fake.started, _i);
	if (_i) {
		fake_says_phase(LAUNCH_IDLE);
		ck_assert_int_eq(fake_order()->op, LAUNCH_OP_END);
		fake_traces(conf->runtime_dir, job->id, uuid, false);
		fake_dies();
	}
	UNTIL((part_launch_tick(&other, node_now()), heard.over));
	ck_assert_uint_eq(heard.order, 5);
}
END_TEST

/* Nobody else would end them. */
START_TEST(ranks_whose_part_is_gone_are_ended)
{
	run();
	there()->dropped = true;
	tick_in(0);
	ck_assert_int_eq(fake_order()->op, LAUNCH_OP_END);
	fake_dies();
	UNTIL((part_launch_tick(&other, node_now()), heard.over));
	ck_assert(!other.part_launch && !other.starter);
}
END_TEST

/* ---- news ---- */

START_TEST(news_are_sent_soon_not_too_often_and_again)
{
	run();
	fake_says_phase(LAUNCH_RUNNING);
	tick_in(50);
	ck_assert_uint_eq(n_heard, 1);
	tick_in(150);
	ck_assert_uint_eq(n_heard, 2);
	ck_assert_int_eq(heard.summary.phase, LAUNCH_RUNNING);
	tick_in(9000);
	ck_assert_uint_eq(n_heard, 2);
	tick_in(10500); /* what was lost is replaced */
	ck_assert_uint_eq(n_heard, 3);
	ck_assert_uint_eq(heard.number, 3);
}
END_TEST

/* How the ranks are is not known while their launcher is replaced. */
START_TEST(nothing_is_told_without_a_launcher)
{
	run();
	fake_dies();
	tick_in(150);
	ck_assert_uint_eq(n_heard, 1);
	tick_in(1000);
	ck_assert_uint_eq(fake.started, 2);
	ck_assert_uint_eq(n_heard, 1);
	fake_says_phase(LAUNCH_IDLE);
	tick_in(1000);
	ck_assert_uint_eq(n_heard, 2);
}
END_TEST

START_TEST(launchers_that_die_are_a_failure)
{
	fake.refuses = true;
	take(&order, true);
	for (int i = 1; i < 5; i++)
		tick_in(10000);
	UNTIL((part_launch_tick(&other, node_now()), heard.over));
	ck_assert_str_eq(heard.failure, "5 launchers in a row have died; gaccd's log may say why");
}
END_TEST

START_TEST(restarts_that_are_on_their_way_to_a_launcher_count)
{
	run(); /* it has said that it was allowed none */
	ck_assert_uint_eq(heard.summary.allowed, 0);
	fake_says_phase(LAUNCH_RUNNING);
	tick_in(150);
	ck_assert_uint_eq(heard.summary.allowed, 1);
}
END_TEST

/* ---- users ---- */

START_TEST(a_node_with_a_certificate_launches_from_relay_min_uid_on)
{
	char why[320] = "";
	free(conf->tls.cert);
	conf->tls.cert = strdup("/etc/gacc/node.pem");
	conf->cluster.relay_min_uid = getuid();
	ck_assert_int_eq(part_launch_check(&other, getuid(), "ana", why, sizeof(why)), ST_OK);
	conf->cluster.relay_min_uid = getuid() + 1;
	ck_assert_int_eq(part_launch_check(&other, getuid(), "ana", why, sizeof(why)), ST_PERMISSION_DENIED);
	ck_assert_msg(strstr(why, "is below cluster.relay_min_uid of node ") != NULL, "%s", why);
	take(&order, true);
	UNTIL(n_heard == 1);
	ck_assert_str_eq(heard.failure, why);
	ck_assert_uint_eq(fake.started, 0);
	free(conf->tls.cert);
	conf->tls.cert = strdup("");
	ck_assert_int_eq(part_launch_check(&other, getuid(), "ana", why, sizeof(why)), ST_OK);
}
END_TEST

/* ---- the gaccd starts again ---- */

START_TEST(the_record_of_the_part_is_enough_to_find_a_launcher)
{
	run();
	fake.lives = _i; /* it may have ended meanwhile */
	const uint64_t before = other.node.incarnation;
	part_launch_free_all(&other);
	fake.lives = _i;
	pair_restart();
	listen_to_news();
	n_heard = 0;
	ck_assert_int_eq(part_launch_recover(&other), ST_OK);
	ck_assert(fake.found == (uint32_t)_i && fake.started == 1 && other.part_launch);
	ck_assert_str_eq(fake.uuid, uuid);
	const uint32_t n = fake.n_orders;
	if (_i)
		fake_says_phase(LAUNCH_RUNNING);
	UNTIL((part_launch_tick(&other, node_now()), n_heard == 1));
	ck_assert(heard.incarnation > before && !heard.order && !heard.over);
	ck_assert_int_eq(heard.summary.phase, _i ? LAUNCH_RUNNING : LAUNCH_IDLE);
	ck_assert_uint_eq(fake.n_orders, n); /* nobody has said what is wanted */
	take(&order, true);
	ck_assert_uint_eq(fake.started, _i ? 1 : 2);
}
END_TEST

static void by_hand(Gacc__V1__JobSpec *spec)
{
	with_launch(spec);
	spec->launch = GACC__V1__LAUNCH_MODE__LAUNCH_MODE_EXTERNAL;
	spec->launch_command = NULL;
}

START_TEST(ranks_that_others_start_have_no_launcher)
{
	job = rig_job(JOB + 2, getuid(), "ana", by_hand);
	placing_send(job, node_now());
	UNTIL(there());
	order.job_id = job->id;
	memcpy(order.uuid, job->uuid, sizeof(order.uuid));
	take(&order, true);
	ck_assert(!other.part_launch && !fake.started);
}
END_TEST

int main(int argc, char **argv)
{
	PAIR_ENGINE(argc, argv);
	Suite *s = suite_create("part_launch");
	TCase *c = tcase_create("part_launch");
	suite_add_tcase(s, c);
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_set_timeout(c, 60);
	tcase_add_test(c, an_order_starts_ranks_and_is_answered);
	tcase_add_test(c, only_newer_orders_of_this_job_are_taken);
	tcase_add_test(c, an_order_of_another_job_starts_nothing);
	tcase_add_loop_test(c, without_the_part_an_end_is_done, 0, 4);
	tcase_add_loop_test(c, an_end_cleans_up_what_is_left, 0, 2);
	tcase_add_test(c, ranks_whose_part_is_gone_are_ended);
	tcase_add_test(c, news_are_sent_soon_not_too_often_and_again);
	tcase_add_test(c, nothing_is_told_without_a_launcher);
	tcase_add_test(c, launchers_that_die_are_a_failure);
	tcase_add_test(c, restarts_that_are_on_their_way_to_a_launcher_count);
	tcase_add_test(c, a_node_with_a_certificate_launches_from_relay_min_uid_on);
	tcase_add_loop_test(c, the_record_of_the_part_is_enough_to_find_a_launcher, 0, 2);
	tcase_add_test(c, ranks_that_others_start_have_no_launcher);
	return suite_run(s);
}
