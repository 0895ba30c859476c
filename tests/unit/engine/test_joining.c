/* SPDX-License-Identifier: Apache-2.0 */
/* Engines of several parts become members of communicators, over Gloo, as gaccd and the coordinator have them do. */
#include "parts_rig.h"

#include "base/clock.h"
#include "support/hanging_net.h"
#include "support/suite.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct parts p;

static void begin(uint32_t n)
{
	const struct rig_config c = rig_small();
	parts_open(&p, n, &c);
}

static void setup(void)
{
	begin(3);
	parts_start(&p);
}

static void teardown(void)
{
	parts_close(&p);
}

/* It does what it is told at once, and has said nothing unasked. */
static void expect_quiet(uint32_t part)
{
	ck_assert_uint_eq(rig_call(&p.rig[part], (struct engine_command){ .op = ENGINE_PING }).status, ST_OK);
	ck_assert_uint_eq(p.rig[part].n_progress, 0);
}

static unsigned threads_of(const struct rig *r)
{
	char path[64];
	unsigned n = 0;
	snprintf(path, sizeof(path), "/proc/%d/task", (int)r->pid);
	DIR *d = opendir(path);
	ck_assert_ptr_nonnull(d);
	for (struct dirent *e; (e = readdir(d));)
		n += *e->d_name != '.';
	closedir(d);
	return n;
}

/* ---- joining ---- */

START_TEST(engines_join_and_join_again)
{
	for (uint64_t k = 3; k < 6; k++)
		parts_join(&p, k);
	p.id.term = 2;
	parts_join(&p, 1);
	for (uint32_t s = 0; s < p.n; s++)
		expect_quiet(s);
}
END_TEST

START_TEST(a_job_of_one_part_has_nothing_of_it)
{
	struct rig one;
	const struct rig_config c = rig_small();
	rig_open(&one, &c);
	one.net = &parts_net;
	ck_assert_uint_eq(rig_start(&one).life, 0);
	struct engine_answer a = rig_call(&one, parts_command(&p, ENGINE_JOIN));
	ck_assert_uint_eq(a.status, ST_INVALID_ARGUMENT);
	ck_assert(!a.n_tail && strstr(a.text, "one part"));
	ck_assert_uint_eq(rig_call(&one, parts_command(&p, ENGINE_ABORT)).status, ST_OK);
	ck_assert_uint_eq(rig_call(&one, parts_command(&p, ENGINE_ADDRESS)).status, ST_STALE_ATTEMPT);
	const unsigned alone = threads_of(&one);
	ck_assert_uint_eq(threads_of(&p.rig[0]), alone); /* nor has one of several before the first JOIN */
	parts_offer(&p, 0);
	ck_assert_uint_gt(threads_of(&p.rig[0]), alone);
	rig_close(&one);
}
END_TEST

START_TEST(commands_may_be_sent_again)
{
	unsigned char blob[ENGINE_MAX_TAIL];
	struct engine_answer a;
	p.id.k = 5;
	for (uint32_t s = 0; s < p.n; s++)
		ck_assert_int_eq(parts_offer(&p, s), ST_OK);
	memcpy(blob, p.rig[0].tail, sizeof(blob));
	a = rig_call(&p.rig[0], parts_command(&p, ENGINE_JOIN));
	ck_assert(!a.status && a.n_tail && !memcmp(blob, p.rig[0].tail, a.n_tail));
	for (uint32_t s = 0; s < p.n; s++)
		parts_tell(&p, s);
	parts_tell(&p, 0);
	for (uint32_t s = 0; s < p.n; s++)
		ck_assert_uint_eq(parts_news(&p, s).news, COMM_JOINED);
	parts_tell(&p, 0);
	ck_assert_int_eq(parts_offer(&p, 0), ST_OK);
	expect_quiet(0);
}
END_TEST

START_TEST(what_does_not_fit_is_refused)
{
	struct rig *r = &p.rig[0];
	p.id.k = 5;
	ck_assert_int_eq(parts_offer(&p, 0), ST_OK);
	struct engine_command c = parts_command(&p, ENGINE_JOIN);
	c.comm = 4;
	ck_assert_uint_eq(rig_call(r, c).status, ST_STALE_ATTEMPT);
	c.comm = 9;
	c.term = 0;
	ck_assert_uint_eq(rig_call(r, c).status, ST_STALE_ATTEMPT);
	c.op = ENGINE_ABORT; /* not its own: nothing */
	ck_assert_uint_eq(rig_call(r, c).status, ST_OK);
	ck_assert_int_eq(parts_offer(&p, 0), ST_OK);

	struct {
		uint64_t comm, life;
		uint32_t part, n;
		enum status want;
	} wrong[] = { { 4, 8, 1, 4, ST_STALE_ATTEMPT },
		      { 5, 8, 3, 4, ST_INVALID_ARGUMENT },
		      { 5, 0, 1, 4, ST_INVALID_ARGUMENT },
		      { 5, 8, 1, 0, ST_INVALID_ARGUMENT },
		      { 5, 8, 0, 4, ST_MALFORMED },
		      { 5, p.life[0], 0, 4, ST_MALFORMED },
		      { 5, 8, 1, 4, ST_OK },
		      { 5, 9, 1, 4, ST_MALFORMED } };
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		struct engine_answer a;
		c = parts_command(&p, ENGINE_ADDRESS);
		c.comm = wrong[i].comm;
		c.part_life = wrong[i].life;
		c.slot = wrong[i].part;
		c.n_present = wrong[i].n;
		rig_send_with(r, c, "blob");
		ck_assert(rig_receive(r, &a));
		ck_assert_msg(a.status == (uint32_t)wrong[i].want, "%zu: %u", i, a.status);
	}
	parts_join(&p, 6);
}
END_TEST

START_TEST(a_program_may_have_no_net)
{
	struct engine_answer a;
	rig_kill(&p.rig[0]);
	p.rig[0].net = NULL;
	p.rig[0].stall_ns = 0;
	rig_start(&p.rig[0]);
	a = rig_call(&p.rig[0], parts_command(&p, ENGINE_JOIN));
	ck_assert_uint_eq(a.status, ST_INVALID_ARGUMENT);
	ck_assert(strstr(a.text, "no way to other engines"));
	p.rig[0].net = &parts_net;
	rig_kill(&p.rig[0]);
	rig_start(&p.rig[0]); /* without a time limit */
	a = rig_call(&p.rig[0], parts_command(&p, ENGINE_JOIN));
	ck_assert_uint_eq(a.status, ST_INVALID_ARGUMENT);
	ck_assert(strstr(a.text, "time limit"));
}
END_TEST

/* ---- deaths ---- */

/* Parts 0 and 1 could not join, because of part 2; who hears of it by the end of the other names that one. */
static void expect_lost(void)
{
	uint64_t named = 0;
	for (uint32_t s = 0; s < 2; s++) {
		struct engine_answer a = parts_news(&p, s);
		ck_assert_uint_eq(a.news, COMM_LOST);
		ck_assert_msg(a.status == ST_UNAVAILABLE || a.status == ST_STALLED, "%u", a.status);
		ck_assert_msg(!(a.suspects >> s & 1) && a.text[0], "part %u: %lx %s", s, (long)a.suspects, a.text);
		named |= a.suspects;
	}
	ck_assert(named >> 2 & 1);
}

/* It died before anybody knew its address: its successor takes its place. */
START_TEST(killed_before_its_blob)
{
	p.id.k = 1;
	ck_assert_int_eq(parts_offer(&p, 0), ST_OK);
	parts_new_life(&p, 1);
	parts_join(&p, 1);
}
END_TEST

/* After it: the board has its first life, so the second one needs the next communicator. */
START_TEST(killed_after_its_blob)
{
	p.id.k = 1;
	for (uint32_t s = 0; s < p.n; s++)
		ck_assert_int_eq(parts_offer(&p, s), ST_OK);
	parts_new_life(&p, 1);
	ck_assert_int_eq(parts_offer(&p, 1), ST_ALREADY_EXISTS);
	parts_join(&p, 2);
}
END_TEST

/* The others join without it, until their limit. */
START_TEST(killed_after_the_board)
{
	parts_close(&p);
	begin(3);
	p.stall_ns = 1000 * MS;
	parts_start(&p);
	p.id.k = 1;
	for (uint32_t s = 0; s < p.n; s++)
		ck_assert_int_eq(parts_offer(&p, s), ST_OK);
	rig_kill(&p.rig[2]);
	parts_tell(&p, 0);
	parts_tell(&p, 1);
	expect_lost();
	parts_new_life(&p, 2);
	parts_join(&p, 2);
}
END_TEST

/* Nobody waits for anybody: nobody hears of it. */
START_TEST(killed_while_all_are_idle)
{
	parts_join(&p, 1);
	parts_new_life(&p, 2);
	for (uint32_t s = 0; s < p.n; s++)
		expect_quiet(s);
	parts_join(&p, 2);
}
END_TEST

/* A stopped one is named by those that wait for it; when it goes on it finds that it is late. */
START_TEST(stopped_while_the_others_join)
{
	int64_t began;
	parts_close(&p);
	begin(3);
	p.stall_ns = 1000 * MS;
	parts_start(&p);
	p.id.k = 1;
	for (uint32_t s = 0; s < p.n; s++)
		ck_assert_int_eq(parts_offer(&p, s), ST_OK);
	kill(p.rig[2].pid, SIGSTOP);
	began = clock_ns(CLOCK_MONOTONIC);
	parts_tell(&p, 0);
	parts_tell(&p, 1);
	struct engine_answer moves = rig_progress(&p.rig[0]);
	ck_assert(moves.news == COMM_MOVES && moves.connected == 1 && moves.comm == 1 && !moves.status);
	expect_lost();
	ck_assert_int_lt(clock_ns(CLOCK_MONOTONIC) - began, COLL_ABORT_NS);
	kill(p.rig[2].pid, SIGCONT);
	parts_join(&p, 2);
}
END_TEST

/* ---- ends that were asked for ---- */

enum { AT_OFFERED, AT_JOINING, AT_READY };

static void come_to(int at)
{
	p.id.k = 1;
	if (at == AT_READY) {
		parts_join(&p, 1);
		return;
	}
	for (uint32_t s = 0; s < p.n; s++)
		ck_assert_int_eq(parts_offer(&p, s), ST_OK);
	if (at == AT_JOINING)
		parts_tell(&p, 0);
}

START_TEST(an_abort_ends_it)
{
	int64_t began = clock_ns(CLOCK_MONOTONIC);
	struct engine_command join = parts_command(&p, ENGINE_JOIN);
	come_to(_i);
	ck_assert_uint_eq(rig_call(&p.rig[0], parts_command(&p, ENGINE_ABORT)).status, ST_OK);
	join.comm = 1;
	ck_assert_uint_eq(rig_call(&p.rig[0], join).status, ST_STALE_ATTEMPT);
	ck_assert_uint_eq(rig_call(&p.rig[0], parts_command(&p, ENGINE_ABORT)).status, ST_OK);
	expect_quiet(0);
	parts_join(&p, 2);
	expect_quiet(0);
	ck_assert_int_lt(clock_ns(CLOCK_MONOTONIC) - began, COLL_ABORT_NS);
}
END_TEST

/* Of STOP, or of the channel; with code 0, and soon. */
START_TEST(it_ends_in_any_state)
{
	const int at = _i / 2;
	int64_t began = clock_ns(CLOCK_MONOTONIC);
	come_to(at);
	if (_i % 2)
		ck_assert_uint_eq(rig_call(&p.rig[0], (struct engine_command){ .op = ENGINE_STOP }).status, ST_OK);
	ck_assert_int_eq(rig_wait(&p.rig[0]), 0);
	ck_assert_int_lt(clock_ns(CLOCK_MONOTONIC) - began, COLL_ABORT_NS);
}
END_TEST

/* ---- a net that hangs ---- */

/* Whoever asks it to leave what hangs gets the end of the process instead, once the net's own time is over. */
START_TEST(a_call_that_hangs_ends_the_process)
{
	const int64_t began = clock_ns(CLOCK_MONOTONIC);
	begin(3);
	for (uint32_t s = 0; s < p.n; s++)
		p.rig[s].net = &hanging_net;
	parts_start(&p);
	p.id.k = 1;
	for (uint32_t s = 0; s < p.n; s++)
		ck_assert_int_eq(parts_offer(&p, s), ST_OK);
	for (uint32_t s = 0; s < p.n; s++)
		parts_tell(&p, s);
	ck_assert_uint_eq(rig_call(&p.rig[0], parts_command(&p, ENGINE_ABORT)).status, ST_OK);
	ck_assert_uint_eq(rig_call(&p.rig[1], (struct engine_command){ .op = ENGINE_STOP }).status, ST_OK);
	p.id.k = 2;
	parts_offer(&p, 2);
	for (uint32_t s = 0; s < p.n; s++) {
		struct engine_answer a;
		ck_assert(!rig_receive(&p.rig[s], &a)); /* it ends by itself */
		ck_assert_int_eq(rig_wait(&p.rig[s]), ENGINE_EXIT_HANGS);
	}
	const int64_t took = clock_ns(CLOCK_MONOTONIC) - began;
	ck_assert(took >= COLL_ABORT_NS && took < 2 * COLL_ABORT_NS);
	parts_close(&p);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("joining");
	TCase *t = tcase_create("joining"), *h = tcase_create("hanging");
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, engines_join_and_join_again);
	tcase_add_test(t, a_job_of_one_part_has_nothing_of_it);
	tcase_add_test(t, commands_may_be_sent_again);
	tcase_add_test(t, what_does_not_fit_is_refused);
	tcase_add_test(t, a_program_may_have_no_net);
	tcase_add_test(t, killed_before_its_blob);
	tcase_add_test(t, killed_after_its_blob);
	tcase_add_test(t, killed_after_the_board);
	tcase_add_test(t, killed_while_all_are_idle);
	tcase_add_test(t, stopped_while_the_others_join);
	tcase_add_loop_test(t, an_abort_ends_it, AT_OFFERED, AT_READY + 1);
	tcase_add_loop_test(t, it_ends_in_any_state, 2 * AT_OFFERED, 2 * AT_READY + 2);
	suite_add_tcase(s, t);
	tcase_add_test(h, a_call_that_hangs_ends_the_process);
	suite_add_tcase(s, h);
	return suite_run(s);
}
