/* SPDX-License-Identifier: Apache-2.0 */
/* The communicators of engines by themselves: the table of engine/comm.h, over members in one process and over Gloo. */
#include "comm_crew.h"

#include "base/clock.h"
#include "support/suite.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>

static struct crew w;

static void setup_local(void)
{
	crew_open(&w, 3, false);
}

static void setup_gloo(void)
{
	crew_open(&w, 3, true);
}

static void teardown(void)
{
	crew_close(&w);
}

/* ---- work ---- */

#define COUNT 64

struct task {
	float in[COUNT], out[COUNT];
	pthread_t thread;
	bool takes_signals;
};
static struct task task[CREW];

static enum status add(void *arg, const struct coll_piece *p, const void *const *source, uint32_t n)
{
	float *out = (float *)arg + p->from / sizeof(float);
	for (size_t i = 0; i < p->n / sizeof(float); i++) {
		out[i] = 0;
		for (uint32_t s = 0; s < n; s++)
			out[i] += ((const float *)source[s])[i];
	}
	return ST_OK;
}

static enum status reduce(void *arg, struct coll *coll)
{
	struct task *t = arg;
	uint64_t bounds[CREW + 1] = { 0 };
	sigset_t blocked;
	for (uint32_t s = 1; s <= coll->n_parts; s++)
		bounds[s] = sizeof(t->in) * s / coll->n_parts / 4 * 4;
	t->thread = pthread_self();
	pthread_sigmask(SIG_SETMASK, NULL, &blocked);
	t->takes_signals = !sigismember(&blocked, SIGTERM);
	enum status st = coll_exchange(
		coll, &(struct coll_exchange){
			      .in = t->in, .bounds = bounds, .piece = 32, .element = 4, .sum = add, .arg = t->out });
	if (!st)
		st = coll_gather(coll, &(struct coll_gather){ .buffer = t->out, .bounds = bounds, .piece = 32 });
	return st;
}

static enum status fill(void *arg, struct coll *coll)
{
	struct task *t = arg;
	return coll_broadcast(coll, t->out, sizeof(t->out), 1);
}

static void begin_sum(uint32_t part, float base)
{
	struct task *t = &task[part];
	for (uint32_t i = 0; i < COUNT; i++)
		t->in[i] = base * (float)(part + 1) + (float)i;
	memset(t->out, 0xff, sizeof(t->out));
	comm_reduce(w.comm[part], reduce, t);
	ck_assert(comm_is_working(w.comm[part]));
	ck_assert_int_eq(comm_state(w.comm[part]), COMM_BUSY);
}

static void expect_done(uint32_t part, enum comm_task kind)
{
	struct comm_event e = crew_wait(&w, part);
	ck_assert_msg(e.kind == COMM_EVENT_DONE && e.status == ST_OK, "part %u: %s", part, e.text);
	ck_assert(e.task == kind && !coll_id_compare(&e.id, &w.id) && e.pieces > 0);
	ck_assert(!comm_is_working(w.comm[part]));
	ck_assert_int_eq(comm_state(w.comm[part]), COMM_READY);
}

static void sum_all(float base)
{
	for (uint32_t s = 0; s < w.n; s++)
		begin_sum(s, base);
	for (uint32_t s = 0; s < w.n; s++)
		expect_done(s, COMM_REDUCE);
	for (uint32_t s = 0; s < w.n; s++)
		for (uint32_t i = 0; i < COUNT; i++)
			ck_assert_float_eq(task[s].out[i], base * 6 + 3 * (float)i);
}

START_TEST(sums_go_on_in_a_warm_communicator)
{
	crew_join(&w, 5);
	for (int i = 0; i < 5; i++)
		sum_all((float)i);
	for (uint32_t s = 0; s < w.n; s++) {
		ck_assert(!pthread_equal(task[s].thread, pthread_self()));
		ck_assert(!task[s].takes_signals);
		memset(task[s].out, (int)s, sizeof(task[s].out));
		comm_fill(w.comm[s], fill, &task[s]);
	}
	for (uint32_t s = 0; s < w.n; s++)
		expect_done(s, COMM_FILL);
	for (uint32_t s = 0; s < w.n; s++)
		ck_assert(!memcmp(task[s].out, task[1].out, sizeof(task[s].out)) && ((char *)task[s].out)[3] == 1);
	sum_all(7);
}
END_TEST

START_TEST(the_next_communicator_replaces_a_warm_one)
{
	for (uint64_t k = 1; k < 6; k++) {
		crew_join(&w, k);
		sum_all((float)k);
	}
	w.id.term = 2; /* of a new coordinator: k begins again */
	crew_join(&w, 1);
	sum_all(9);
}
END_TEST

/* ---- joining ---- */

static enum status join_as(uint64_t term, uint64_t k, const void **blob, size_t *n)
{
	struct coll_failure why = { .status = ST_OK };
	struct coll_id id = { .job = 7, .epoch = 1, .term = term, .k = k };
	enum status st = comm_join(w.comm[0], &id, 0, w.n, 1000 * MS, blob, n, &why);
	ck_assert_int_eq(why.status, st);
	ck_assert(!st == !why.text[0]);
	return st;
}

START_TEST(a_join_sent_again_has_the_same_blob)
{
	const void *first, *again;
	size_t n_first, n_again;
	ck_assert_int_eq(comm_state(w.comm[0]), COMM_NONE);
	ck_assert_int_gt(comm_compare(w.comm[0], &w.id), 0);
	w.id.k = 3;
	ck_assert_int_eq(crew_offer(&w, 0), ST_OK);
	ck_assert_int_eq(comm_state(w.comm[0]), COMM_OFFERED);
	ck_assert_int_eq(join_as(1, 3, &first, &n_first), ST_OK);
	ck_assert_int_eq(join_as(1, 3, &again, &n_again), ST_OK);
	ck_assert(n_first == n_again && !memcmp(first, again, n_first));
	ck_assert_int_eq(comm_compare(w.comm[0], &w.id), 0);
	for (uint32_t s = 1; s < w.n; s++)
		ck_assert_int_eq(crew_offer(&w, s), ST_OK);
	for (uint32_t s = 0; s < w.n; s++)
		crew_tell(&w, s);
	ck_assert_int_eq(comm_state(w.comm[0]), COMM_JOINING);
	ck_assert_int_eq(crew_offer(&w, 0), ST_OK); /* the board finds the same */
	for (uint32_t s = 0; s < w.n; s++)
		ck_assert_int_eq(crew_wait(&w, s).kind, COMM_EVENT_JOINED);
	ck_assert_int_eq(crew_offer(&w, 0), ST_OK);
	ck_assert_int_eq(comm_state(w.comm[0]), COMM_READY);
	crew_tell(&w, 0); /* so are the addresses */
	crew_expect_nothing(&w, 0);
	sum_all(2);
}
END_TEST

START_TEST(older_ones_and_those_that_were_left_are_stale)
{
	const void *blob;
	size_t n;
	w.id.k = 3;
	ck_assert_int_eq(crew_offer(&w, 0), ST_OK);
	ck_assert_int_eq(join_as(1, 2, &blob, &n), ST_STALE_ATTEMPT);
	ck_assert_int_eq(join_as(0, 9, &blob, &n), ST_STALE_ATTEMPT);
	ck_assert_int_eq(comm_state(w.comm[0]), COMM_OFFERED);
	ck_assert(comm_abort(w.comm[0], &w.id));
	ck_assert_int_eq(comm_state(w.comm[0]), COMM_BROKEN);
	ck_assert_int_eq(join_as(1, 3, &blob, &n), ST_STALE_ATTEMPT);
	ck_assert(!comm_abort(w.comm[0], &w.id));
	ck_assert_int_eq(comm_compare(w.comm[0], &w.id), 0);
	ck_assert_int_eq(join_as(1, 4, &blob, &n), ST_OK);
	ck_assert_int_lt(comm_compare(w.comm[0], &w.id), 0);
	ck_assert(!comm_abort(w.comm[0], &w.id));
	ck_assert_int_eq(comm_state(w.comm[0]), COMM_OFFERED);
	ck_assert_int_eq(join_as(2, 1, &blob, &n), ST_OK);
}
END_TEST

START_TEST(addresses_are_compared)
{
	const void *blob, *own;
	size_t n, n_own;
	struct comm *c = w.comm[0];
	w.id.k = 3;
	struct coll_id other = w.id;
	other.k = 2;
	ck_assert_int_eq(comm_address(c, &w.id, 1, 5, "blob", 4), ST_STALE_ATTEMPT);
	ck_assert_int_eq(join_as(1, 3, &own, &n_own), ST_OK);
	ck_assert_int_eq(comm_address(c, &other, 1, 5, "blob", 4), ST_STALE_ATTEMPT);
	ck_assert_int_eq(comm_address(c, &w.id, 3, 5, "blob", 4), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(comm_address(c, &w.id, 1, 0, "blob", 4), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(comm_address(c, &w.id, 1, 5, "blob", 0), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(comm_address(c, &w.id, 1, 5, "blob", COLL_MAX_BLOB + 1), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(comm_address(c, &w.id, 1, 5, "blob", 4), ST_OK);
	ck_assert_int_eq(comm_address(c, &w.id, 1, 5, "blob", 4), ST_OK);
	ck_assert_int_eq(comm_address(c, &w.id, 1, 6, "blob", 4), ST_MALFORMED);
	ck_assert_int_eq(comm_address(c, &w.id, 1, 5, "blot", 4), ST_MALFORMED);
	ck_assert_int_eq(comm_address(c, &w.id, 1, 5, "blob", 3), ST_MALFORMED);
	ck_assert_int_eq(comm_address(c, &w.id, 0, w.life[0] + 1, own, n_own), ST_MALFORMED);
	ck_assert_int_eq(comm_address(c, &w.id, 0, w.life[0], own, n_own - 1), ST_MALFORMED);
	ck_assert_int_eq(comm_address(c, &w.id, 0, w.life[0], own, n_own), ST_OK);
	ck_assert_int_eq(comm_state(c), COMM_OFFERED); /* part 2 is missing */
	ck_assert_int_eq(comm_address(c, &w.id, 2, 6, "blob", 4), ST_OK);
	struct comm_event e = crew_wait(&w, 0); /* those are no addresses */
	ck_assert_int_eq(e.kind, COMM_EVENT_LOST);
	ck_assert_int_eq(e.status, ST_MALFORMED);
	ck_assert(e.suspects && e.text[0]);
	ck_assert_int_eq(comm_state(c), COMM_BROKEN);
	ck_assert_int_eq(comm_address(c, &w.id, 2, 6, "blob", 4), ST_STALE_ATTEMPT);
	ck_assert_int_eq(join_as(1, 4, &blob, &n), ST_OK);
}
END_TEST

START_TEST(a_second_life_needs_the_next_communicator)
{
	w.id.k = 1;
	for (uint32_t s = 0; s < w.n; s++)
		ck_assert_int_eq(crew_offer(&w, s), ST_OK);
	crew_new_life(&w, 2);
	ck_assert_int_eq(crew_offer(&w, 2), ST_ALREADY_EXISTS); /* the net's word, or the board's */
	crew_join(&w, 2);
	sum_all(3);
}
END_TEST

/* ---- ends ---- */

START_TEST(who_has_died_is_named)
{
	crew_join(&w, 1);
	begin_sum(0, 1);
	begin_sum(1, 1);
	crew_new_life(&w, 2);
	for (uint32_t s = 0; s < 2; s++) {
		struct comm_event e = crew_wait(&w, s);
		ck_assert(e.kind == COMM_EVENT_DONE && e.task == COMM_REDUCE);
		ck_assert_int_eq(e.status, ST_UNAVAILABLE);
		ck_assert_msg(e.suspects & 7 && !(e.suspects >> s & 1) && e.text[0], "%s", e.text);
		ck_assert_int_eq(comm_state(w.comm[s]), COMM_BROKEN);
	}
	crew_join(&w, 2);
	sum_all(1);
}
END_TEST

START_TEST(an_abort_ends_what_waits)
{
	const enum comm_state at = (enum comm_state)_i;
	int64_t began = clock_ns(CLOCK_MONOTONIC);
	w.id.k = 1;
	if (at >= COMM_READY)
		crew_join(&w, 1);
	for (uint32_t s = 0; s < w.n && at < COMM_READY; s++)
		ck_assert_int_eq(crew_offer(&w, s), ST_OK);
	if (at == COMM_JOINING)
		crew_tell(&w, 0);
	if (at == COMM_BUSY)
		begin_sum(0, 1);
	ck_assert_int_eq(comm_state(w.comm[0]), at);
	ck_assert(comm_abort(w.comm[0], &w.id));
	ck_assert_int_eq(comm_state(w.comm[0]), COMM_BROKEN);
	crew_wait_idle(&w, 0);
	crew_expect_nothing(&w, 0);
	crew_join(&w, 2);
	sum_all(4);
	ck_assert_int_lt(clock_ns(CLOCK_MONOTONIC) - began, COLL_ABORT_NS); /* nobody has waited for a limit */
}
END_TEST

/* A later communicator ends the calls of the one before. */
START_TEST(a_join_aborts_the_member_before)
{
	crew_join(&w, 1);
	begin_sum(0, 1);
	w.id.k = 2;
	ck_assert_int_eq(crew_offer(&w, 0), ST_OK);
	ck_assert_int_eq(comm_state(w.comm[0]), COMM_OFFERED);
	crew_wait_idle(&w, 0);
	crew_join(&w, 3);
	sum_all(4);
}
END_TEST

static enum status refuse(void *arg, struct coll *coll)
{
	(void)arg;
	(void)coll;
	return ST_CHECKSUM;
}

START_TEST(a_function_that_fails_breaks_it_for_all)
{
	crew_join(&w, 1);
	begin_sum(1, 1);
	comm_reduce(w.comm[0], refuse, NULL);
	struct comm_event e = crew_wait(&w, 0);
	ck_assert(e.kind == COMM_EVENT_DONE && e.status == ST_CHECKSUM && !e.suspects);
	ck_assert_str_eq(e.text, status_info(ST_CHECKSUM)->text);
	ck_assert_int_eq(crew_wait(&w, 1).status, ST_UNAVAILABLE);
	crew_join(&w, 2);
	sum_all(4);
}
END_TEST

START_TEST(nobody_is_nobody)
{
	ck_assert(comm_free(NULL, 1) && !comm_is_working(NULL) && !comm_abort(NULL, &w.id));
	ck_assert(comm_state(NULL) == COMM_NONE && comm_compare(NULL, &w.id) > 0);
	ck_assert(comm_patience_ms(NULL) == -1 && comm_look(NULL, 0, NULL) == COMM_LOOK_QUIET);
	ck_assert_int_eq(comm_address(NULL, &w.id, 0, 1, "", 1), ST_STALE_ATTEMPT);
	ck_assert(!comm_next(NULL, NULL));
	ck_assert_int_eq(comm_patience_ms(w.comm[0]), -1);
	crew_join(&w, 1); /* who waits for the next window wakes for nothing */
	ck_assert_int_eq(comm_patience_ms(w.comm[0]), -1);
}
END_TEST

static void add_tests(TCase *c)
{
	tcase_add_test(c, sums_go_on_in_a_warm_communicator);
	tcase_add_test(c, the_next_communicator_replaces_a_warm_one);
	tcase_add_test(c, a_join_sent_again_has_the_same_blob);
	tcase_add_test(c, older_ones_and_those_that_were_left_are_stale);
	tcase_add_test(c, addresses_are_compared);
	tcase_add_test(c, a_second_life_needs_the_next_communicator);
	tcase_add_test(c, who_has_died_is_named);
	tcase_add_loop_test(c, an_abort_ends_what_waits, COMM_OFFERED, COMM_BUSY + 1);
	tcase_add_test(c, a_join_aborts_the_member_before);
	tcase_add_test(c, a_function_that_fails_breaks_it_for_all);
	tcase_add_test(c, nobody_is_nobody);
}

int main(void)
{
	Suite *s = suite_create("comm");
	TCase *local = tcase_create("local"), *gloo = tcase_create("gloo");
	tcase_add_checked_fixture(local, setup_local, teardown);
	tcase_add_checked_fixture(gloo, setup_gloo, teardown);
	add_tests(local);
	add_tests(gloo);
	suite_add_tcase(s, local);
	suite_add_tcase(s, gloo);
	return suite_run(s, comm_fake_suite());
}
