/* SPDX-License-Identifier: Apache-2.0 */
/* Which jobs may exchange, by hand and in a simulation with random jobs, nodes and times that judges every grant by
 * counts of its own. */
#include "control/exchanges.h"

#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MS INT64_C(1000000)

static struct exchanges *e;

static void begin(uint32_t limit)
{
	ck_assert_int_eq(exchanges_new(&e, limit), ST_OK);
}

/* "ab": on nodes a and b. */
static void add(struct exchanger *x, uint64_t job, const char *on)
{
	char name[8][2];
	const char *node[8];
	uint32_t n = (uint32_t)strlen(on);
	for (uint32_t i = 0; i < n; i++) {
		snprintf(name[i], sizeof(name[i]), "%c", on[i]);
		node[i] = name[i];
	}
	ck_assert_int_eq(exchanges_add(e, x, job, node, n), ST_OK);
}

static void remove_all(struct exchanger *x, int n)
{
	for (int i = 0; i < n; i++)
		exchanges_remove(e, &x[i], 0);
	exchanges_free(e);
}

/* ---- by hand ---- */

START_TEST(a_node_has_so_many_slots)
{
	struct exchanger x[4];
	begin(2);
	for (int i = 0; i < 4; i++)
		add(&x[i], 3 + (uint64_t)i, "ab");
	ck_assert(exchanges_ask(e, &x[0], 0));
	ck_assert(exchanges_ask(e, &x[1], 0));
	ck_assert(!exchanges_ask(e, &x[2], 0));
	ck_assert(!exchanges_ask(e, &x[3], 0));
	ck_assert(!exchanges_granted(e));
	exchanges_give(e, &x[1], 5 * MS);
	ck_assert(exchanges_granted(e));
	ck_assert_ptr_eq(exchanges_next(e), &x[2]);
	ck_assert_ptr_null(exchanges_next(e));
	ck_assert(exchanges_ask(e, &x[2], 6 * MS));
	ck_assert(!exchanges_ask(e, &x[3], 6 * MS)); /* its place stays */
	ck_assert(!exchanges_ask(e, &x[1], 6 * MS)); /* behind it */
	exchanges_give(e, &x[0], 7 * MS);
	ck_assert_ptr_eq(exchanges_next(e), &x[3]);
	remove_all(x, 4);
}
END_TEST

/* The deadlock of slots that are taken one by one: A and B would hold node a, C and D node b. */
START_TEST(all_of_its_nodes_or_none)
{
	struct exchanger x[3];
	begin(1);
	add(&x[0], 1, "a");
	add(&x[1], 2, "ab");
	add(&x[2], 3, "b");
	ck_assert(exchanges_ask(e, &x[0], 0));
	ck_assert(!exchanges_ask(e, &x[1], 0)); /* and holds nothing on b */
	ck_assert(exchanges_ask(e, &x[2], MS));
	exchanges_give(e, &x[0], 2 * MS);
	ck_assert_ptr_null(exchanges_next(e));
	exchanges_give(e, &x[2], 3 * MS);
	ck_assert_ptr_eq(exchanges_next(e), &x[1]);
	remove_all(x, 3);
}
END_TEST

START_TEST(parts_on_one_node_count_once)
{
	struct exchanger x[2];
	begin(1);
	add(&x[0], 1, "aaa");
	add(&x[1], 2, "bab");
	ck_assert(exchanges_ask(e, &x[0], 0));
	ck_assert(!exchanges_ask(e, &x[1], 0));
	exchanges_give(e, &x[0], 1);
	ck_assert_ptr_eq(exchanges_next(e), &x[1]);
	exchanges_give(e, &x[1], 1);
	ck_assert(exchanges_ask(e, &x[0], 1));
	remove_all(x, 2);
}
END_TEST

START_TEST(nobody_passes_one_that_has_waited_for_long)
{
	struct exchanger x[5];
	begin(1);
	add(&x[0], 1, "a");
	add(&x[1], 2, "ab");
	add(&x[2], 3, "b");
	add(&x[3], 4, "b");
	add(&x[4], 5, "c");
	ck_assert(exchanges_ask(e, &x[0], 0));
	ck_assert(!exchanges_ask(e, &x[1], 0));
	ck_assert(exchanges_ask(e, &x[2], EXCHANGES_PASS_NS)); /* it passes: not more than a second yet */
	exchanges_give(e, &x[2], EXCHANGES_PASS_NS);
	ck_assert(!exchanges_ask(e, &x[3], EXCHANGES_PASS_NS + 1));
	ck_assert(exchanges_ask(e, &x[4], EXCHANGES_PASS_NS + 1)); /* on other nodes */
	exchanges_give(e, &x[0], EXCHANGES_PASS_NS + 2);
	ck_assert_ptr_eq(exchanges_next(e), &x[1]);
	ck_assert_ptr_null(exchanges_next(e));
	exchanges_give(e, &x[1], EXCHANGES_PASS_NS + 3);
	ck_assert_ptr_eq(exchanges_next(e), &x[3]);
	remove_all(x, 5);
}
END_TEST

START_TEST(one_that_does_not_want_to_any_more_is_not_in_the_way)
{
	struct exchanger x[4];
	begin(1);
	add(&x[0], 1, "a");
	add(&x[1], 2, "ab");
	add(&x[2], 3, "b");
	add(&x[3], 4, "a");
	ck_assert(exchanges_ask(e, &x[0], 0));
	ck_assert(!exchanges_ask(e, &x[1], 0));
	ck_assert(!exchanges_ask(e, &x[2], 2 * EXCHANGES_PASS_NS));
	exchanges_give(e, &x[1], 2 * EXCHANGES_PASS_NS);
	ck_assert(exchanges_granted(e));
	exchanges_give(e, &x[2], 2 * EXCHANGES_PASS_NS); /* has not heard of its turn yet */
	ck_assert(!exchanges_granted(e));
	ck_assert(exchanges_ask(e, &x[2], 2 * EXCHANGES_PASS_NS));
	ck_assert(!exchanges_ask(e, &x[3], 2 * EXCHANGES_PASS_NS));
	exchanges_remove(e, &x[0], 3 * EXCHANGES_PASS_NS); /* gives back */
	exchanges_remove(e, &x[0], 3 * EXCHANGES_PASS_NS);
	ck_assert_ptr_eq(exchanges_next(e), &x[3]);
	remove_all(x, 4);
}
END_TEST

START_TEST(what_a_job_waits_for)
{
	struct exchanger x[7];
	char text[200];
	begin(2);
	for (int i = 0; i < 5; i++)
		add(&x[i], 11 + (uint64_t)i, "b");
	add(&x[5], 20, "cb");
	add(&x[6], 21, "c");
	exchanges_describe(e, &x[0], text, sizeof(text), 0);
	ck_assert_str_eq(text, "");
	exchanges_ask(e, &x[0], 0);
	exchanges_ask(e, &x[1], 0);
	exchanges_ask(e, &x[5], 0);
	exchanges_describe(e, &x[5], text, sizeof(text), 0);
	ck_assert_str_eq(text, "an exchange slot on node b: jobs 11 and 12 exchange");
	exchanges_ask(e, &x[6], 2 * EXCHANGES_PASS_NS);
	exchanges_describe(e, &x[6], text, sizeof(text), 2 * EXCHANGES_PASS_NS);
	ck_assert_str_eq(text, "an exchange slot on node c: job 20 waits for one for longer");
	exchanges_describe(e, &x[0], text, sizeof(text), 0);
	ck_assert_str_eq(text, "");
	remove_all(x, 7);
	begin(1);
	add(&x[0], 7, "d");
	add(&x[1], 8, "d");
	exchanges_ask(e, &x[0], 0);
	exchanges_ask(e, &x[1], 0);
	exchanges_describe(e, &x[1], text, sizeof(text), 0);
	ck_assert_str_eq(text, "an exchange slot on node d: job 7 exchanges");
	remove_all(x, 2);
	begin(5);
	for (int i = 0; i < 6; i++) {
		add(&x[i], 1 + (uint64_t)i, "d");
		exchanges_ask(e, &x[i], 0);
	}
	exchanges_describe(e, &x[5], text, sizeof(text), 0);
	ck_assert_str_eq(text, "an exchange slot on node d: jobs 1, 2, 3 and 2 more exchange");
	remove_all(x, 6);
}
END_TEST

/* ---- a simulation ---- */

/* Where libcheck's own would take most of the time. */
#define must(is, ...)                                                                                                  \
	do {                                                                                                           \
		if (!(is))                                                                                             \
			ck_abort_msg(__VA_ARGS__);                                                                     \
	} while (0)
#define JOBS 12
#define NODES 6
#define HOLD_MAX (1500 * MS)
#define RUNS 400
#define EVENTS 500

static struct sim_job {
	struct exchanger x;
	uint32_t nodes; /* bits */
	enum { RESTS, WAITS, HOLDS } state;
	int64_t due_ns, since_ns;
	uint64_t turn; /* in which order they have asked */
	uint32_t ahead;
} job[JOBS];

static uint32_t n_jobs, n_nodes, limit, held[NODES];
static uint64_t turns;
static int64_t now_ns;
static unsigned seed;

static uint32_t draw(uint32_t n)
{
	seed = seed * 1664525u + 1013904223u;
	return (seed >> 8) % n;
}

static bool fits(const struct sim_job *j)
{
	for (uint32_t i = 0; i < n_nodes; i++)
		if (j->nodes >> i & 1 && held[i] >= limit)
			return false;
	return true;
}

static void sim_add(struct sim_job *j, uint64_t id)
{
	static const char *const name[NODES] = { "a", "b", "c", "d", "e", "f" };
	const char *node[NODES + 2];
	uint32_t n = 0;
	*j = (struct sim_job){ .nodes = 1 + draw((1u << n_nodes) - 1), .due_ns = now_ns + draw(1000) * MS };
	for (uint32_t i = 0; i < n_nodes; i++)
		if (j->nodes >> i & 1)
			node[n++] = name[i];
	node[n] = node[0]; /* sometimes two parts are on one node */
	ck_assert_int_eq(exchanges_add(e, &j->x, id, node, n + draw(2)), ST_OK);
}

/* The nodes that are kept for jobs before this one. */
static uint32_t kept_before(const struct sim_job *j)
{
	uint32_t kept = 0;
	for (const struct sim_job *b = job; b < job + n_jobs; b++)
		if (b->state == WAITS && b->turn < j->turn && now_ns - b->since_ns > EXCHANGES_PASS_NS)
			kept |= b->nodes;
	return kept;
}

/* It goes: rightly? */
static void goes(struct sim_job *j)
{
	must(j->state == WAITS, "seed %u: job %u goes that does not wait", seed, (unsigned)j->x.job);
	must(fits(j), "seed %u: job %u goes where a node is full", seed, (unsigned)j->x.job);
	for (struct sim_job *b = job; b < job + n_jobs; b++) {
		if (b->state != WAITS || b->turn >= j->turn || !(b->nodes & j->nodes))
			continue;
		must(!fits(b) || (kept_before(b) & b->nodes), "seed %u: job %u passes %u, which could go", seed,
		     (unsigned)j->x.job, (unsigned)b->x.job);
		must(now_ns - b->since_ns <= EXCHANGES_PASS_NS, "seed %u: job %u passes %u after a second", seed,
		     (unsigned)j->x.job, (unsigned)b->x.job);
	}
	must(now_ns - j->since_ns <= EXCHANGES_PASS_NS + (j->ahead + 1) * HOLD_MAX,
	     "seed %u: job %u has waited for %lld ms behind %u", seed, (unsigned)j->x.job,
	     (long long)((now_ns - j->since_ns) / MS), j->ahead);
	for (uint32_t i = 0; i < n_nodes; i++)
		held[i] += j->nodes >> i & 1;
	j->state = HOLDS;
	j->due_ns = now_ns + (1 + draw(draw(3) ? 50 : HOLD_MAX / MS)) * MS;
}

static void serve(void)
{
	for (struct exchanger *x; (x = exchanges_next(e));)
		goes((struct sim_job *)x); /* it is the first member */
	for (struct sim_job *j = job; j < job + n_jobs; j++)
		must(j->state != WAITS || !fits(j) || (kept_before(j) & j->nodes),
		     "seed %u: job %u could go, and waits", seed, (unsigned)j->x.job);
}

static void asks(struct sim_job *j)
{
	j->state = WAITS;
	j->since_ns = now_ns;
	j->due_ns = draw(8) ? INT64_MAX : now_ns + draw(1500) * MS; /* then it ends, or its node is away */
	j->turn = ++turns;
	j->ahead = 0;
	for (struct sim_job *b = job; b < job + n_jobs; b++)
		j->ahead += b != j && b->state == WAITS;
	if (exchanges_ask(e, &j->x, now_ns))
		goes(j);
}

static void gives(struct sim_job *j)
{
	for (uint32_t i = 0; i < n_nodes; i++)
		held[i] -= j->state == HOLDS && (j->nodes >> i & 1);
	j->state = RESTS;
	j->due_ns = now_ns + draw(draw(2) ? 20 : 900) * MS;
	if (draw(20)) {
		exchanges_give(e, &j->x, now_ns);
		return;
	}
	const uint64_t id = j->x.job;
	exchanges_remove(e, &j->x, now_ns);
	sim_add(j, id + JOBS);
}

static void sim(unsigned first_seed)
{
	seed = first_seed;
	now_ns = turns = 0;
	n_jobs = 2 + draw(JOBS - 1);
	n_nodes = 1 + draw(NODES);
	limit = 1 + draw(3);
	memset(held, 0, sizeof(held));
	begin(limit);
	for (uint32_t i = 0; i < n_jobs; i++)
		sim_add(&job[i], 1 + i);
	for (int i = 0; i < EVENTS; i++) {
		struct sim_job *next = job;
		for (struct sim_job *j = job; j < job + n_jobs; j++)
			next = j->due_ns < next->due_ns ? j : next;
		must(next->due_ns < INT64_MAX, "seed %u: all wait for ever", first_seed);
		now_ns = next->due_ns;
		if (next->state == RESTS)
			asks(next);
		else
			gives(next);
		serve();
	}
	for (uint32_t i = 0; i < n_jobs; i++)
		exchanges_give(e, &job[i].x, now_ns);
	for (uint32_t i = 0; i < n_jobs; i++)
		exchanges_give(e, &job[i].x, now_ns);
	for (uint32_t i = 0; i < n_jobs; i++) { /* everything is given back */
		ck_assert(exchanges_ask(e, &job[i].x, now_ns));
		exchanges_give(e, &job[i].x, now_ns);
	}
	for (uint32_t i = 0; i < n_jobs; i++)
		exchanges_remove(e, &job[i].x, now_ns);
	exchanges_free(e);
}

START_TEST(random_jobs)
{
	for (unsigned i = 0; i < RUNS; i++)
		sim(1 + i);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("exchanges");
	TCase *t = tcase_create("exchanges");
	tcase_add_test(t, a_node_has_so_many_slots);
	tcase_add_test(t, all_of_its_nodes_or_none);
	tcase_add_test(t, parts_on_one_node_count_once);
	tcase_add_test(t, nobody_passes_one_that_has_waited_for_long);
	tcase_add_test(t, one_that_does_not_want_to_any_more_is_not_in_the_way);
	tcase_add_test(t, what_a_job_waits_for);
	tcase_add_test(t, random_jobs);
	suite_add_tcase(s, t);
	return suite_run(s);
}
