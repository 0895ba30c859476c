/* SPDX-License-Identifier: Apache-2.0 */
/* Which orders a launcher gets, when it is replaced, and what its messages mean, with a launcher that the test plays.
 */
#include "edge/starter.h"

#include "edge_rig.h"
#include "fake_launcher.h"
#include "gacc/v1/common.pb-c.h"
#include "support/suite.h"

#include <string.h>
#include <unistd.h>

enum { JOB = 7, WORLD = 6, FIRST = 2, N = 3 };
#define MS INT64_C(1000000)

static struct hosted *h;
static struct starter s;
static struct launch_rank rank[N + 1]; /* the last one is not of its ranks */
static struct launch_wish wish;
static char uuid[UUID_TEXT], event_text[200], event_reason[32];
static uint32_t n_events, n_changes;
static int64_t event_rank;
static bool event_warns, ended, no_spec;

/* ---- the owner ---- */

static const Gacc__V1__JobSpec *spec_of(const void *owner)
{
	ck_assert_ptr_eq(owner, h);
	return no_spec ? NULL : h->text->pb;
}

static bool is_ended(const void *owner)
{
	return ended;
}

static void on_event(void *owner, bool warning, const char *reason, int64_t of, const char *text)
{
	n_events++;
	event_warns = warning;
	event_rank = of;
	snprintf(event_reason, sizeof(event_reason), "%s", reason);
	snprintf(event_text, sizeof(event_text), "%s", text);
}

static void on_changed(void *owner)
{
	n_changes++;
}

static const struct starter_ports ports = {
	.spec = spec_of, .ended = is_ended, .event = on_event, .changed = on_changed
};

static void of_six(Gacc__V1__JobSpec *spec)
{
	with_launch(spec);
	spec->ranks = WORLD;
}

static void begin(bool may_be_old)
{
	const struct starter_job job = {
		.id = JOB, .uid = getuid(), .uuid = h->uuid, .spec = h->spec, .may_be_old = may_be_old
	};
	starter_init(&s, &d, &job, FIRST, N, rank, &ports, h);
}

static void setup(void)
{
	rig_open();
	fake_launcher_reset();
	h = rig_job(JOB, getuid(), "ana", of_six);
	uuid_text(h->uuid, uuid);
	n_events = n_changes = 0;
	ended = no_spec = false;
	memset(rank, 0, sizeof(rank));
	wish = (struct launch_wish){ .want = LAUNCH_WANT_RUN,
				     .allowed = 1,
				     .fresh = true,
				     .first = FIRST,
				     .n_ranks = N,
				     .group = 1,
				     .n_groups = 2,
				     .master_port = 4001,
				     .master_addr = "10.0.0.7" };
	begin(false);
}

static void teardown(void)
{
	starter_fini(&s);
	ck_assert(!fake.open);
	rig_close();
}

/* A launcher that runs the ranks. */
static void run(void)
{
	starter_wish(&s, &wish);
	ck_assert_int_eq(starter_open(&s, true), ST_OK);
	fake_says_phase(LAUNCH_IDLE);
	fake_says_phase(LAUNCH_RUNNING);
	ck_assert_uint_eq(fake.n_orders, 1);
}

static struct now in_ms(int64_t ms)
{
	struct now now = daemon_now(&d);
	now.mono_ns += ms * MS;
	return now;
}

/* ---- orders ---- */

START_TEST(a_start_has_all_that_ranks_need)
{
	starter_wish(&s, &wish);
	ck_assert_int_eq(starter_open(&s, false), ST_UNAVAILABLE);
	ck_assert_uint_eq(s.deaths, 0);
	ck_assert_int_eq(starter_open(&s, true), ST_OK);
	ck_assert_str_eq(fake.uuid, uuid);
	starter_tick(&s, in_ms(0));
	ck_assert_uint_eq(fake.n_orders, 0); /* it may be one that runs already */
	fake_says_phase(LAUNCH_IDLE);
	ck_assert_uint_eq(fake.n_orders, 1);
	const struct launch_order *o = fake_order();
	ck_assert_int_eq(o->op, LAUNCH_OP_START);
	ck_assert_uint_eq(o->version, LAUNCH_CHANNEL_VERSION);
#define IS(field, value) ck_assert_msg(o->field == (value), "%s is %lld", #field, (long long)o->field)
	IS(job_id, JOB), IS(n_ranks, N), IS(first, FIRST), IS(world, WORLD), IS(group, 1), IS(n_groups, 2);
	IS(max_restarts, 1), IS(final, false), IS(master_port, 4001), IS(micro_size, 2), IS(uid, getuid());
	IS(fresh, true), IS(grace_ns, 700 * MS), IS(n_command, 2), IS(n_environment, 1);
	IS(log_max, conf->log.rank_max), IS(change_user, geteuid() == 0);
	char words[FAKE_WORDS];
	snprintf(words, sizeof(words), "unix:%s|/tmp|/tmp/logs|10.0.0.7|train|now|A=b|", conf->listen.socket);
	ck_assert_str_eq(fake.words, words);
	fake_says_phase(LAUNCH_IDLE);
	starter_tick(&s, in_ms(0));
	ck_assert_uint_eq(fake.n_orders, 1);
}
END_TEST

START_TEST(one_that_runs_is_not_started)
{
	fake.lives = true;
	starter_wish(&s, &wish);
	ck_assert_int_eq(starter_open(&s, false), ST_OK);
	fake_says_phase(LAUNCH_RUNNING);
	ck_assert(fake.found == 1 && !fake.started && fake.n_orders == 1);
	ck_assert_int_eq(fake_order()->op, LAUNCH_OP_ALLOW); /* an earlier gaccd may have allowed less */
	ck_assert_uint_eq(fake_order()->max_restarts, 1);
}
END_TEST

START_TEST(restarts_are_allowed_when_they_are_others)
{
	run();
	starter_wish(&s, &wish);
	ck_assert_uint_eq(fake.n_orders, 1);
	wish.allowed = 2;
	starter_wish(&s, &wish);
	starter_wish(&s, &wish);
	ck_assert_uint_eq(fake.n_orders, 2);
	ck_assert(fake_order()->op == LAUNCH_OP_ALLOW && fake_order()->max_restarts == 2 && !fake_order()->final);
	wish.final = true;
	starter_wish(&s, &wish);
	starter_wish(&s, &wish);
	ck_assert_uint_eq(fake.n_orders, 3);
	ck_assert(fake_order()->op == LAUNCH_OP_ALLOW && fake_order()->max_restarts == 2 && fake_order()->final);
}
END_TEST

START_TEST(ends_are_ordered_once_and_a_shorter_grace_again)
{
	run();
	wish.want = LAUNCH_WANT_DRAIN;
	starter_wish(&s, &wish);
	starter_tick(&s, in_ms(0));
	ck_assert_uint_eq(fake.n_orders, 2);
	ck_assert_int_eq(fake_order()->op, LAUNCH_OP_DRAIN);
	wish.want = LAUNCH_WANT_END;
	starter_wish(&s, &wish);
	starter_tick(&s, in_ms(0));
	ck_assert_uint_eq(fake.n_orders, 3);
	ck_assert(fake_order()->op == LAUNCH_OP_END && fake_order()->grace_ns == 700 * MS);
	wish.grace_ns = 5 * MS;
	starter_wish(&s, &wish);
	starter_tick(&s, in_ms(0));
	ck_assert_uint_eq(fake.n_orders, 4);
	ck_assert(fake_order()->op == LAUNCH_OP_END && fake_order()->grace_ns == 5 * MS);
	wish.want = LAUNCH_WANT_DRAIN; /* an order that is overtaken */
	starter_wish(&s, &wish);
	ck_assert_uint_eq(fake.n_orders, 4);
}
END_TEST

/* START, ALLOW, DRAIN and END to a socket that is full. */
START_TEST(what_cannot_be_sent_is_sent_by_the_tick)
{
	static const enum launch_want want[] = { LAUNCH_WANT_RUN, LAUNCH_WANT_RUN, LAUNCH_WANT_DRAIN, LAUNCH_WANT_END };
	static const enum launch_op op[] = { LAUNCH_OP_START, LAUNCH_OP_ALLOW, LAUNCH_OP_DRAIN, LAUNCH_OP_END };
	if (_i)
		run();
	fake.full = true;
	wish.want = want[_i];
	wish.allowed = 3;
	starter_wish(&s, &wish);
	if (!_i) {
		ck_assert_int_eq(starter_open(&s, true), ST_OK);
		fake_says_phase(LAUNCH_IDLE);
	}
	const uint32_t n = fake.n_orders;
	fake.full = false;
	starter_tick(&s, in_ms(0));
	starter_tick(&s, in_ms(0));
	ck_assert_uint_eq(fake.n_orders, n + 1);
	ck_assert_int_eq(fake_order()->op, op[_i]);
}
END_TEST

START_TEST(a_job_that_is_over_starts_nothing)
{
	no_spec = true;
	starter_wish(&s, &wish);
	ck_assert_int_eq(starter_open(&s, true), ST_OK);
	fake_says_phase(LAUNCH_IDLE);
	ck_assert_uint_eq(fake.n_orders, 0);
}
END_TEST

/* ---- what it says ---- */

START_TEST(ranks_are_numbered_as_in_the_job)
{
	run();
	fake_says_rank(1, LAUNCH_RANK_RUNNING, 77, LAUNCH_NO_STATUS, 0);
	fake_says_rank(N, LAUNCH_RANK_RUNNING, 78, LAUNCH_NO_STATUS, 0); /* there is none */
	ck_assert_uint_eq(n_events, 0);
	ck_assert(rank[1].pid == 77 && !rank[N].pid);
	fake_says_rank(1, LAUNCH_RANK_RUNNING, 79, 3, 1);
	ck_assert_str_eq(event_reason, "RankRestarted");
	ck_assert_str_eq(event_text, "rank 3 (pid 77) exited with code 3; it is started again");
	ck_assert(event_rank == FIRST + 1 && event_warns && n_events == 1);
	fake_says_rank(1, LAUNCH_RANK_EXITED, 79, 0, 1);
	ck_assert_str_eq(event_reason, "RankExited");
	ck_assert_str_eq(event_text, "rank 3 (pid 79) exited with code 0");
	ck_assert(!event_warns && n_events == 2);
	const struct launch_summary is = { .phase = LAUNCH_STOPPING, .cause = { true, 1, 79, 3, 5 } };
	fake_says(&is);
	ck_assert_uint_eq(s.summary.cause.rank, FIRST + 1);
	ck_assert(s.n_tail == 10 && !memcmp(s.tail, "last words", 10) && !s.ended_ranks);
	fake_says_phase(LAUNCH_OVER);
	ck_assert(s.ended_ranks && n_changes == 4);
}
END_TEST

/* What happened before this gaccd listened is no news; and of a job that has ended a failure is none. */
START_TEST(old_exits_are_no_events)
{
	starter_wish(&s, &wish);
	fake.lives = true;
	rank[0] = (struct launch_rank){ .state = LAUNCH_RANK_RUNNING, .pid = 77 };
	ck_assert_int_eq(starter_open(&s, false), ST_OK);
	fake_says_rank(0, LAUNCH_RANK_RUNNING, 78, 3, 1);
	ck_assert_uint_eq(n_events, 0);
	fake_says_phase(LAUNCH_RUNNING);
	ended = true;
	fake_says_rank(0, LAUNCH_RANK_EXITED, 78, 9, 1);
	ck_assert(n_events == 1 && !event_warns);
}
END_TEST

START_TEST(one_that_cleans_up_does_not_change_how_ranks_ended)
{
	run();
	fake_says_rank(0, LAUNCH_RANK_EXITED, 77, 9, 0);
	const struct launch_summary is = { .phase = LAUNCH_OVER,
					   .result = LAUNCH_FAILED,
					   .cause = { true, 0, 77, 9, 5 } };
	fake_says(&is);
	ended = true;
	wish.want = LAUNCH_WANT_END;
	fake_traces(conf->runtime_dir, JOB, uuid, true);
	fake_dies();
	ck_assert_int_eq(starter_open(&s, true), ST_OK);
	starter_wish(&s, &wish);
	fake_says_phase(LAUNCH_IDLE);
	ck_assert_int_eq(s.summary.result, LAUNCH_FAILED);
	ck_assert_int_eq(rank[0].state, LAUNCH_RANK_EXITED);
	ck_assert_int_eq(fake_order()->op, LAUNCH_OP_END);
	fake_traces(conf->runtime_dir, JOB, uuid, false);
	fake_dies();
	ck_assert(s.done && s.ended_ranks);
}
END_TEST

/* ---- its life ---- */

START_TEST(one_that_dies_is_replaced)
{
	run();
	fake_says_rank(0, LAUNCH_RANK_RUNNING, 77, LAUNCH_NO_STATUS, 0);
	fake_dies();
	ck_assert_str_eq(event_reason, "LauncherLost");
	ck_assert_str_eq(event_text, "the launcher (pid 4321) is gone, and its ranks with it: they are started again");
	ck_assert(event_warns && event_rank == -1 && n_events == 1);
	starter_tick(&s, in_ms(150));
	ck_assert_uint_eq(fake.started, 1);
	starter_tick(&s, in_ms(210));
	ck_assert_uint_eq(fake.started, 2);
	fake_says_phase(LAUNCH_IDLE);
	ck_assert_int_eq(rank[0].state, LAUNCH_RANK_WAITING);
	ck_assert(fake.n_orders == 2 && fake_order()->op == LAUNCH_OP_START);
	fake_dies();
	starter_tick(&s, in_ms(350)); /* the longer the more have died */
	ck_assert_uint_eq(fake.started, 2);
	starter_tick(&s, in_ms(410));
	ck_assert_uint_eq(fake.started, 3);
}
END_TEST

/* They die, or cannot be started. */
START_TEST(five_deaths_in_a_row_are_enough)
{
	char why[200] = "";
	starter_wish(&s, &wish);
	fake.refuses = _i;
	for (int i = 0; i < 5; i++) {
		ck_assert(!starter_gave_up(&s, why, sizeof(why)) && !s.done);
		if (!_i)
			fake.lives = false;
		if (!i)
			ck_assert_int_eq(starter_open(&s, true), _i ? ST_IO_ERROR : ST_OK);
		else
			starter_tick(&s, in_ms(10000));
		if (!_i)
			fake_dies();
	}
	ck_assert(starter_gave_up(&s, why, sizeof(why)) && s.done);
	ck_assert_str_eq(why, "5 launchers in a row have died; gaccd's log may say why");
	starter_tick(&s, in_ms(100000));
	ck_assert_uint_eq(fake.started, _i ? 0 : 5);
}
END_TEST

START_TEST(one_that_lived_long_ends_the_row)
{
	char why[200];
	run();
	s.deaths = 4;
	s.opened_ns -= 61000 * MS;
	fake_dies();
	ck_assert(s.deaths == 1 && !starter_gave_up(&s, why, sizeof(why)));
}
END_TEST

/* Ended as ordered, it has left nothing, or files: then what was in them may still run. */
START_TEST(an_ordered_end_is_the_end)
{
	run();
	wish.want = LAUNCH_WANT_END;
	starter_wish(&s, &wish);
	if (_i)
		fake_traces(conf->runtime_dir, JOB, uuid, true);
	fake_dies();
	ck_assert(s.ended_ranks && s.done == !_i);
	ck_assert_uint_eq(n_events, _i);
	if (_i) {
		ck_assert_msg(strstr(event_text, "another one ends what they have left behind") != NULL, "%s",
			      event_text);
		starter_tick(&s, in_ms(300));
		fake_says_phase(LAUNCH_IDLE);
		ck_assert_int_eq(fake_order()->op, LAUNCH_OP_END);
		fake_traces(conf->runtime_dir, JOB, uuid, false);
	}
	starter_tick(&s, in_ms(10000));
	ck_assert_uint_eq(fake.started, 1 + (uint32_t)_i);
}
END_TEST

/* ---- names and users ---- */

/* Files that are named after the id alone are an older gaccd's, of a job that may be older; with a name of its own the
 * job has had a launcher since. */
START_TEST(an_older_gaccds_launcher_is_found_by_the_id)
{
	starter_fini(&s);
	fake_traces(conf->runtime_dir, JOB, "", true);
	begin(false);
	ck_assert_str_eq(s.uuid, uuid);
	ck_assert(!starter_left_traces(&s));
	starter_fini(&s);
	begin(true);
	ck_assert_str_eq(s.uuid, "");
	ck_assert(starter_left_traces(&s));
	starter_fini(&s);
	fake_traces(conf->runtime_dir, JOB, uuid, true);
	begin(true);
	ck_assert_str_eq(s.uuid, uuid);
	fake_traces(conf->runtime_dir, JOB, uuid, false);
	fake_traces(conf->runtime_dir, JOB, "", false);
}
END_TEST

START_TEST(users_are_known_here)
{
	char why[320] = "";
	ck_assert_int_eq(starter_check(getuid(), "ana", why, sizeof(why)), ST_OK);
	ck_assert_int_eq(starter_check(4000000001U, "ana", why, sizeof(why)), ST_PERMISSION_DENIED);
	ck_assert_str_eq(why, "launch: daemon: user id 4000000001 is not in this machine's user database");
}
END_TEST

static void without_log_dir(Gacc__V1__JobSpec *spec)
{
	static char none[] = "";
	of_six(spec);
	spec->log_dir = none;
}

/* In state_dir a log may have what is left of the user's share, which is told again when it has become another. */
START_TEST(logs_in_state_dir_have_a_share)
{
	starter_fini(&s);
	h = rig_job(JOB + 1, getuid(), "ana", without_log_dir);
	begin(false);
	run();
	ck_assert(s.default_logs && fake_order()->log_max && strstr(fake.words, "/logs/"));
	starter_limit_logs(&s);
	ck_assert_uint_eq(fake.n_orders, 1);
	const uint64_t was = conf->log.rank_max;
	conf->log.rank_max = fake_order()->log_max / 2;
	starter_limit_logs(&s);
	starter_limit_logs(&s);
	ck_assert_uint_eq(fake.n_orders, 2);
	ck_assert(fake_order()->op == LAUNCH_OP_LOGS && fake_order()->log_max == conf->log.rank_max);
	conf->log.rank_max = was;
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("starter");
	TCase *c = tcase_create("starter");
	suite_add_tcase(suite, c);
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, a_start_has_all_that_ranks_need);
	tcase_add_test(c, one_that_runs_is_not_started);
	tcase_add_test(c, restarts_are_allowed_when_they_are_others);
	tcase_add_test(c, ends_are_ordered_once_and_a_shorter_grace_again);
	tcase_add_loop_test(c, what_cannot_be_sent_is_sent_by_the_tick, 0, 4);
	tcase_add_test(c, a_job_that_is_over_starts_nothing);
	tcase_add_test(c, ranks_are_numbered_as_in_the_job);
	tcase_add_test(c, old_exits_are_no_events);
	tcase_add_test(c, one_that_cleans_up_does_not_change_how_ranks_ended);
	tcase_add_test(c, one_that_dies_is_replaced);
	tcase_add_loop_test(c, five_deaths_in_a_row_are_enough, 0, 2);
	tcase_add_test(c, one_that_lived_long_ends_the_row);
	tcase_add_loop_test(c, an_ordered_end_is_the_end, 0, 2);
	tcase_add_test(c, an_older_gaccds_launcher_is_found_by_the_id);
	tcase_add_test(c, users_are_known_here);
	tcase_add_test(c, logs_in_state_dir_have_a_share);
	return suite_run(suite);
}
