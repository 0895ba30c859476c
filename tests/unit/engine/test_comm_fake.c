/* SPDX-License-Identifier: Apache-2.0 */
/* The communicators of an engine over a net that does what real ones rarely do: calls that come back late or never, and
 * members that cannot be opened. */
#include "comm_crew.h"

#include "base/clock.h"

#include <poll.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define LATE_NS (COLL_ABORT_NS - CLOCK_NS_PER_S) /* after an abort: just in time */

static struct {
	struct coll_net net;
	enum status open; /* of the next coll_open */
	atomic_uint opened, aborted, left, calls;
	atomic_uint connected;
	_Atomic uint64_t pieces;
	sem_t release; /* one call, or one leaving, comes back for each */
	bool free_leaving;
} fake;

static struct comm *c;
static struct coll_id id;

static const void *fake_blob(const struct coll *m, size_t *n)
{
	(void)m;
	*n = 4;
	return "blob";
}

static enum status wait_for_release(void)
{
	unsigned aborted = fake.aborted;
	fake.calls++;
	while (sem_wait(&fake.release))
		;
	return fake.aborted > aborted ? ST_CANCELLED : ST_OK;
}

static enum status fake_join(struct coll *m, const struct coll_address *all)
{
	(void)m;
	(void)all;
	return wait_for_release();
}

static enum status fake_barrier(struct coll *m)
{
	(void)m;
	return wait_for_release();
}

static void fake_poll(struct coll *m, struct coll_state *out)
{
	(void)m;
	*out = (struct coll_state){ .phase = COLL_READY, .connected = fake.connected, .pieces = fake.pieces };
}

static void fake_at_work(struct coll *m)
{
	(void)m;
	fake.pieces++;
}

static enum status fake_fail(struct coll *m, enum status st, const char *text)
{
	(void)m;
	(void)text;
	fake.aborted++;
	return st;
}

static void fake_leave(struct coll *m)
{
	if (!fake.free_leaving)
		wait_for_release();
	fake.left++;
	free(m);
}

static enum status fake_open(struct coll_net *net, const struct coll_config *config, struct coll **out,
			     struct coll_failure *why)
{
	static const struct coll_ops ops = { .ordered = true,
					     .blob = fake_blob,
					     .join = fake_join,
					     .barrier = fake_barrier,
					     .poll = fake_poll,
					     .at_work = fake_at_work,
					     .fail = fake_fail,
					     .leave = fake_leave };
	(void)net;
	if (fake.open) {
		coll_failure_set(why, fake.open, 0, "no ports");
		return fake.open;
	}
	struct coll *m = calloc(1, sizeof(*m));
	*m = (struct coll){ .ops = &ops, .part = config->part, .n_parts = config->n_parts };
	*out = m;
	fake.opened++;
	return ST_OK;
}

static const struct coll_net_ops net_ops = { .open = fake_open };

static void setup(void)
{
	fake.net.ops = &net_ops;
	fake.free_leaving = true;
	sem_init(&fake.release, 0, 0);
	id = (struct coll_id){ .job = 7, .epoch = 1, .term = 1, .k = 1 };
	ck_assert_int_eq(comm_new(&fake.net, 5, 1, 0, &c), ST_OK);
}

static enum status offer(uint64_t k)
{
	const void *blob;
	size_t n;
	struct coll_failure why;
	id.k = k;
	enum status st = comm_join(c, &id, 0, 2, 1, &blob, &n, &why);
	if (st)
		ck_assert_str_eq(why.text, "no ports");
	else
		ck_assert(n == 4 && !memcmp(blob, "blob", 4));
	return st;
}

static void tell(void)
{
	ck_assert_int_eq(comm_address(c, &id, 0, 5, "blob", 4), ST_OK);
	ck_assert_int_eq(comm_address(c, &id, 1, 6, "blob", 4), ST_OK);
}

/* Until comm_next says something, or so many calls have begun. */
static bool next_within(int ms, struct comm_event *e)
{
	for (int i = 0; i < ms; i++) {
		if (comm_next(c, e))
			return true;
		poll(&(struct pollfd){ .fd = comm_fd(c), .events = POLLIN }, 1, 1);
	}
	return false;
}

static void wait_calls(unsigned n)
{
	struct comm_event e;
	for (int i = 0; fake.calls < n && i < 10000; i++)
		ck_assert(!next_within(1, &e));
	ck_assert_uint_eq(fake.calls, n);
}

static void join(uint64_t k)
{
	struct comm_event e;
	ck_assert_int_eq(offer(k), ST_OK);
	tell();
	sem_post(&fake.release);
	ck_assert(next_within(10000, &e));
	ck_assert(e.kind == COMM_EVENT_JOINED && e.id.k == k);
}

static enum status barrier(void *arg, struct coll *m)
{
	(void)arg;
	return coll_barrier(m);
}

/* What an engine with nothing else to do sees: it looks twice a second for so long, from `from` on. */
static enum comm_look look_for(int64_t from, int64_t ns)
{
	struct comm_event e;
	enum comm_look seen = COMM_LOOK_QUIET;
	for (int64_t t = 0; t <= ns && seen == COMM_LOOK_QUIET; t += CLOCK_NS_PER_S / 2)
		seen = comm_look(c, from + t, &e);
	return seen;
}

START_TEST(what_cannot_be_opened_may_be_tried_again)
{
	fake.open = ST_NO_MEMORY;
	ck_assert_int_eq(offer(1), ST_NO_MEMORY);
	ck_assert_int_eq(comm_state(c), COMM_NONE);
	ck_assert_int_eq(offer(1), ST_NO_MEMORY);
	fake.open = ST_OK;
	join(1);
	fake.open = ST_NO_MEMORY; /* the member before is over all the same */
	ck_assert_int_eq(offer(2), ST_NO_MEMORY);
	ck_assert_int_eq(comm_state(c), COMM_NONE);
	ck_assert_uint_eq(fake.aborted, 1);
	fake.open = ST_OK;
	join(2);
	ck_assert(comm_free(c, COLL_ABORT_NS));
	ck_assert_uint_eq(fake.left, fake.opened);
}
END_TEST

/* The next member is offered while a call of the old one hangs, and joins when that has come back and left. */
START_TEST(the_next_one_joins_when_the_old_one_has_left)
{
	struct comm_event e;
	int64_t now;
	join(1);
	comm_reduce(c, barrier, NULL);
	wait_calls(2);
	fake.free_leaving = false;
	ck_assert_int_eq(offer(2), ST_OK);
	now = clock_ns(CLOCK_MONOTONIC);
	ck_assert(comm_is_working(c));
	tell();
	ck_assert_int_eq(comm_state(c), COMM_OFFERED);
	ck_assert(!next_within(20, &e));
	ck_assert_int_eq(look_for(now, LATE_NS), COMM_LOOK_QUIET);
	ck_assert_int_gt(comm_patience_ms(c), 0);
	sem_post(&fake.release); /* the call */
	wait_calls(3);
	ck_assert(!comm_is_working(c));
	ck_assert_int_eq(comm_state(c), COMM_OFFERED);
	ck_assert_uint_eq(fake.left, 0);
	sem_post(&fake.release); /* the leaving */
	wait_calls(4);
	ck_assert_int_eq(comm_state(c), COMM_JOINING);
	ck_assert_uint_eq(fake.left, 1);
	sem_post(&fake.release); /* the join */
	ck_assert(next_within(10000, &e));
	ck_assert(e.kind == COMM_EVENT_JOINED && e.id.k == 2);
	fake.free_leaving = true;
	ck_assert(comm_free(c, COLL_ABORT_NS));
}
END_TEST

/* While the old one hangs, members are replaced that have never been in a call. */
START_TEST(many_are_offered_while_the_old_one_hangs)
{
	struct comm_event e;
	join(1);
	comm_fill(c, barrier, NULL);
	wait_calls(2);
	for (uint64_t k = 2; k < 9; k++) {
		ck_assert_int_eq(offer(k), ST_OK);
		tell();
		ck_assert_int_eq(comm_state(c), COMM_OFFERED);
	}
	ck_assert_uint_eq(fake.left, 6);
	ck_assert(comm_is_working(c));
	ck_assert(comm_abort(c, &id));
	ck_assert_int_eq(offer(9), ST_OK);
	tell();
	sem_post(&fake.release);
	wait_calls(3);
	sem_post(&fake.release);
	ck_assert(next_within(10000, &e));
	ck_assert(e.kind == COMM_EVENT_JOINED && e.id.k == 9);
	ck_assert(comm_free(c, COLL_ABORT_NS));
	ck_assert_uint_eq(fake.left, fake.opened);
}
END_TEST

/* A call, or a leaving, that does not come back. */
START_TEST(what_hangs_is_noticed)
{
	struct comm_event e;
	join(1);
	if (_i == 0) {
		comm_reduce(c, barrier, NULL);
		wait_calls(2);
		ck_assert_int_eq(comm_look(c, clock_ns(CLOCK_MONOTONIC) + 2 * COLL_ABORT_NS, &e), COMM_LOOK_QUIET);
	}
	fake.free_leaving = false;
	ck_assert(comm_abort(c, &id));
	wait_calls(2);
	int64_t now = clock_ns(CLOCK_MONOTONIC);
	ck_assert_int_eq(look_for(now, LATE_NS), COMM_LOOK_QUIET);
	ck_assert_int_eq(look_for(now + LATE_NS, 2 * CLOCK_NS_PER_S), COMM_LOOK_HANGS);
	ck_assert(!comm_free(c, CLOCK_NS_PER_S / 50));
	sem_post(&fake.release);
	sem_post(&fake.release);
	ck_assert(comm_free(c, COLL_ABORT_NS));
}
END_TEST

/* An update, or a machine that stood still, keeps the engine from looking for longer than a call may take to return.
 * The call has had as little time as the engine. */
START_TEST(time_in_which_nobody_looked_does_not_count)
{
	struct comm_event e;
	join(1);
	comm_reduce(c, barrier, NULL);
	wait_calls(2);
	ck_assert(comm_abort(c, &id));
	int64_t now = clock_ns(CLOCK_MONOTONIC);
	ck_assert_int_eq(look_for(now, LATE_NS - CLOCK_NS_PER_S), COMM_LOOK_QUIET);
	now += LATE_NS + 10 * COLL_ABORT_NS;
	ck_assert_int_eq(comm_look(c, now, &e), COMM_LOOK_QUIET);
	ck_assert_int_eq(look_for(now, 2 * CLOCK_NS_PER_S), COMM_LOOK_HANGS);
	sem_post(&fake.release);
	ck_assert(comm_free(c, COLL_ABORT_NS));
}
END_TEST

/* It has returned in time, and the engine looks before it takes that. */
START_TEST(a_call_that_has_returned_does_not_hang)
{
	struct comm_event e;
	join(1);
	comm_reduce(c, barrier, NULL);
	wait_calls(2);
	ck_assert(comm_abort(c, &id));
	sem_post(&fake.release);
	ck_assert_int_eq(poll(&(struct pollfd){ .fd = comm_fd(c), .events = POLLIN }, 1, 10000), 1);
	int64_t now = clock_ns(CLOCK_MONOTONIC);
	ck_assert_int_eq(look_for(now, 2 * COLL_ABORT_NS), COMM_LOOK_QUIET);
	fake.free_leaving = false; /* which may take as long again */
	wait_calls(3);
	ck_assert_int_eq(look_for(now + 2 * COLL_ABORT_NS, LATE_NS - CLOCK_NS_PER_S), COMM_LOOK_QUIET);
	sem_post(&fake.release);
	ck_assert(!next_within(20, &e));
	ck_assert_uint_eq(fake.left, 1);
	ck_assert(comm_free(c, COLL_ABORT_NS));
}
END_TEST

START_TEST(it_tells_twice_a_second_that_a_call_gets_on)
{
	struct comm_event e;
	int64_t now = clock_ns(CLOCK_MONOTONIC), s = CLOCK_NS_PER_S;
	ck_assert_int_eq(offer(1), ST_OK);
	tell();
	wait_calls(1);
	ck_assert_int_gt(comm_patience_ms(c), 0);
	ck_assert_int_eq(comm_look(c, now + s, &e), COMM_LOOK_QUIET);
	fake.connected = 1;
	ck_assert_int_eq(comm_look(c, now + 2 * s, &e), COMM_LOOK_MOVES);
	ck_assert(e.connected == 1 && e.id.k == 1);
	ck_assert_int_eq(comm_look(c, now + 3 * s, &e), COMM_LOOK_QUIET);
	sem_post(&fake.release);
	ck_assert(next_within(10000, &e));
	fake.pieces = 3;
	ck_assert_int_eq(comm_look(c, now + 4 * s, &e), COMM_LOOK_QUIET); /* nobody works */
	ck_assert_int_eq(comm_patience_ms(c), -1);
	comm_reduce(c, barrier, NULL);
	wait_calls(2);
	now = clock_ns(CLOCK_MONOTONIC);
	fake.pieces = 4;
	ck_assert_int_eq(comm_look(c, now, &e), COMM_LOOK_QUIET); /* it has just begun */
	ck_assert_int_eq(comm_look(c, now + s, &e), COMM_LOOK_MOVES);
	ck_assert_uint_eq(e.pieces, 4);
	fake.pieces = 5;
	ck_assert_int_eq(comm_look(c, now + s + s / 4, &e), COMM_LOOK_QUIET);
	ck_assert_int_eq(comm_look(c, now + s + s / 2, &e), COMM_LOOK_MOVES);
	sem_post(&fake.release);
	ck_assert(next_within(10000, &e));
	ck_assert(comm_free(c, COLL_ABORT_NS));
}
END_TEST

/* Whether its member is in a call or not, once it has joined. */
START_TEST(it_tells_that_the_caller_is_at_work)
{
	struct comm_event e;
	int64_t s = CLOCK_NS_PER_S, now = clock_ns(CLOCK_MONOTONIC) + s;
	comm_at_work(NULL);
	comm_at_work(c);
	ck_assert_int_eq(offer(1), ST_OK);
	comm_at_work(c);
	tell();
	comm_at_work(c);
	ck_assert_uint_eq(fake.pieces, 0);
	sem_post(&fake.release);
	ck_assert(next_within(10000, &e));
	comm_at_work(c);
	ck_assert_uint_eq(fake.pieces, 1);
	ck_assert_int_eq(comm_look(c, now, &e), COMM_LOOK_MOVES);
	ck_assert_uint_eq(e.pieces, 1);
	ck_assert_int_eq(comm_look(c, now + s, &e), COMM_LOOK_QUIET);
	comm_at_work(c);
	ck_assert_int_eq(comm_look(c, now + s / 4, &e), COMM_LOOK_QUIET);
	ck_assert_int_eq(comm_look(c, now + s / 2, &e), COMM_LOOK_MOVES);
	comm_reduce(c, barrier, NULL);
	comm_at_work(c);
	ck_assert_uint_eq(fake.pieces, 3);
	wait_calls(2);
	sem_post(&fake.release);
	ck_assert(next_within(10000, &e));
	ck_assert(comm_abort(c, &id));
	comm_at_work(c);
	ck_assert_uint_eq(fake.pieces, 3);
	ck_assert(comm_free(c, COLL_ABORT_NS));
}
END_TEST

/* The call has come back when it is aborted, and nobody has looked yet. */
START_TEST(an_abort_takes_back_what_was_done)
{
	struct comm_event e;
	join(1);
	comm_reduce(c, barrier, NULL);
	wait_calls(2);
	sem_post(&fake.release);
	ck_assert_int_eq(poll(&(struct pollfd){ .fd = comm_fd(c), .events = POLLIN }, 1, 10000), 1);
	ck_assert(comm_is_working(c)); /* nobody has taken it */
	ck_assert(comm_abort(c, &id));
	ck_assert(!next_within(20, &e));
	ck_assert(!comm_is_working(c));
	ck_assert_uint_eq(fake.left, 1);
	ck_assert(comm_free(c, COLL_ABORT_NS));
}
END_TEST

Suite *comm_fake_suite(void)
{
	Suite *s = suite_create("comm_fake");
	TCase *t = tcase_create("fake");
	tcase_add_checked_fixture(t, setup, NULL);
	tcase_add_test(t, what_cannot_be_opened_may_be_tried_again);
	tcase_add_test(t, the_next_one_joins_when_the_old_one_has_left);
	tcase_add_test(t, many_are_offered_while_the_old_one_hangs);
	tcase_add_loop_test(t, what_hangs_is_noticed, 0, 2);
	tcase_add_test(t, time_in_which_nobody_looked_does_not_count);
	tcase_add_test(t, a_call_that_has_returned_does_not_hang);
	tcase_add_test(t, it_tells_twice_a_second_that_a_call_gets_on);
	tcase_add_test(t, it_tells_that_the_caller_is_at_work);
	tcase_add_test(t, an_abort_takes_back_what_was_done);
	suite_add_tcase(s, t);
	return s;
}
