/* SPDX-License-Identifier: Apache-2.0 */
/* TensorNorms of a job whose part is elsewhere: from the engine's vote over the link to the calls that wait; what is
 * lost, what is repeated, and what comes from others. The test plays the callers. */
#include "pair_rig.h"

#include "cluster/norms_message.h"
#include "edge/hosted_norms.h"
#include "edge/node_facts.h"
#include "edge/part_norms.h"
#include "edge/placing.h"
#include "gacc/v1/job.pb-c.h"
#include "support/suite.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- callers, in place of the RPC server's ---- */

struct caller {
	bool waits;
	uint32_t n_answers;
	enum status status;
	char text[300];
	uint64_t window;
	size_t n;
	double grad, param; /* of the first tensor */
	char name[16];
};

static struct caller caller[80];

struct rpc_call *__wrap_rpc_find(struct rpc_server *server, uint64_t id);
void __wrap_rpc_failf(struct rpc_call *call, enum status status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void __wrap_rpc_finish_made(struct rpc_call *call, const ProtobufCMessage *(*make)(void *), void (*release)(void *),
			    void *arg);

struct rpc_call *__wrap_rpc_find(struct rpc_server *server, uint64_t id)
{
	return caller[id].waits ? (struct rpc_call *)&caller[id] : NULL;
}

void __wrap_rpc_failf(struct rpc_call *call, enum status status, const char *fmt, ...)
{
	struct caller *c = (struct caller *)call;
	va_list args;
	va_start(args, fmt);
	vsnprintf(c->text, sizeof(c->text), fmt, args);
	va_end(args);
	c->status = status;
	c->waits = false;
	c->n_answers++;
}

void __wrap_rpc_finish_made(struct rpc_call *call, const ProtobufCMessage *(*make)(void *), void (*release)(void *),
			    void *arg)
{
	struct caller *c = (struct caller *)call;
	const Gacc__V1__TensorNormsResponse *m = (const Gacc__V1__TensorNormsResponse *)make(arg);
	c->waits = false;
	c->n_answers++;
	c->window = m->window;
	c->n = m->n_norms;
	c->grad = m->norms[0]->grad_norm;
	c->param = m->norms[0]->param_norm;
	snprintf(c->name, sizeof(c->name), "%s", m->norms[0]->name);
	release(arg);
}

static enum status asks(uint32_t i, char why[200])
{
	caller[i] = (struct caller){ .waits = true };
	return hosted_norms_add(job, i, why, 200);
}

static void asked(uint32_t i)
{
	char why[200];
	ck_assert_int_eq(asks(i, why), ST_OK);
}

static void heard(uint32_t i, enum status st, const char *text)
{
	const struct caller *c = &caller[i];
	ck_assert_msg(c->n_answers == 1 && c->status == st && !strcmp(c->text, text), "%u %s: %s", c->n_answers,
		      status_info(c->status)->name, c->text);
}

/* ---- the job ---- */

static struct session_key key[RANKS];

static void open_job(void)
{
	pair_open();
	memset(caller, 0, sizeof(caller));
	placing_send(job, node_now());
	UNTIL(there() && coord_phase(job->coord) == COORD_COLLECT);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		key[rank] = pair_attach(rank);
}

/* The mean of four gradients of this value. */
static void window(float value)
{
	const uint64_t w = job_window(there()->job);
	for (uint32_t micro = 0; micro < 2; micro++)
		for (uint32_t rank = 0; rank < RANKS; rank++)
			pair_push(&key[rank], micro, value);
	UNTIL(job_window(there()->job) == w + 1);
}

START_TEST(those_of_a_part_elsewhere)
{
	asked(0);
	asked(1);
	window(3);
	UNTIL(caller[0].n_answers && caller[1].n_answers);
	for (int i = 0; i < 2; i++) {
		heard((uint32_t)i, ST_OK, "");
		ck_assert(caller[i].window == 0 && caller[i].n == 1 && !strcmp(caller[i].name, "w"));
		ck_assert_double_eq(caller[i].grad, 3 * sqrt(RIG_ELEMENTS));
	}
	ck_assert_uint_eq(seen.n[LINK_NORMS_ASK], 1);
	window(1);
	ck_assert_uint_eq(seen.n[LINK_NORMS_ASK], 1); /* nobody has asked */
	asked(2);
	window(2);
	UNTIL(caller[2].n_answers);
	heard(2, ST_OK, "");
	ck_assert_uint_eq(caller[2].window, 2);
	ck_assert_double_eq(caller[2].grad, 2 * sqrt(RIG_ELEMENTS));
	ck_assert_uint_eq(job->n_holders, 0);
}
END_TEST

/* Windows go on while the question or its answer is lost: the copy is that of the vote. One who asks meanwhile gets a
 * later window's. */
START_TEST(what_is_lost_is_asked_again)
{
	const enum link_kind lost = _i ? LINK_NORMS : LINK_NORMS_ASK;
	seen.lost[lost] = true;
	asked(0);
	window(3);
	UNTIL(seen.n[lost] == 1);
	asked(1);
	window(1);
	window(2);
	ck_assert(!caller[0].n_answers && !caller[1].n_answers);
	seen.lost[lost] = false;
	UNTIL(caller[0].n_answers);
	ck_assert(caller[0].window == 0 && caller[0].grad == 3 * sqrt(RIG_ELEMENTS));
	ck_assert_uint_ge(seen.n[LINK_NORMS_ASK], 2);
	window(4);
	UNTIL(caller[1].n_answers);
	ck_assert(caller[1].window == 3 && caller[1].grad == 4 * sqrt(RIG_ELEMENTS));
}
END_TEST

START_TEST(a_node_that_does_not_answer_is_named)
{
	seen.lost[LINK_NORMS] = true;
	asked(0);
	window(3);
	UNTIL(seen.n[LINK_NORMS] == 1);
	asked(1);
	const int64_t silent = node_now().mono_ns + INT64_C(10) * 1000000000;
	hosted_norms_tick(job, (struct now){ silent, 0 });
	char text[300];
	snprintf(text, sizeof(text), "job 7: node %s, which has part 0, has not sent the norms for 10 s; ask again",
		 conf->node.name);
	heard(0, ST_UNAVAILABLE, text);
	ck_assert(!caller[1].n_answers);
	seen.lost[LINK_NORMS] = false;
	window(5);
	UNTIL(caller[1].n_answers);
	heard(1, ST_OK, "");
	ck_assert_uint_eq(caller[1].window, 1);
}
END_TEST

/* The node's gaccd starts again between the vote and the question. */
START_TEST(what_the_node_has_lost_is_said)
{
	seen.lost[LINK_NORMS_ASK] = true;
	asked(0);
	window(3);
	free(there()->norms);
	there()->norms = NULL;
	seen.lost[LINK_NORMS_ASK] = false;
	UNTIL(caller[0].n_answers);
	heard(0, ST_ATTEMPT_FAILED, "job 7: the engine has left no norms of window 0; ask again");
}
END_TEST

static struct norms_ask question(void)
{
	struct norms_ask a = { .job_id = JOB, .epoch = 1, .number = 9 };
	const struct part_norms_kept *k = there()->norms;
	ck_assert_ptr_nonnull(k);
	a.window = k->window;
	a.term = k->term;
	a.attempt = k->attempt;
	node_uuid_halves(job->uuid, &a.uuid_high, &a.uuid_low);
	return a;
}

static uint32_t n_said;
static struct part_norms said; /* without its columns */

static void hear(struct daemon *from, const struct link_message *m)
{
	char why[200];
	ck_assert_int_eq(m->kind, LINK_NORMS);
	struct part_norms n;
	ck_assert_msg(!norms_unpack(m->bytes, m->n, &n, why, sizeof(why)), "%s", why);
	said = n;
	norms_release(&n);
	n_said++;
}

/* What the node answers. */
static const struct part_norms *answers(struct norms_ask a)
{
	static links_take *const takes[LINK_KINDS] = { [LINK_NORMS] = hear };
	links_take *const *before = other.link_takes;
	const uint32_t n_before = n_said;
	size_t n;
	links_run_now(&other);
	void *bytes = norms_ask_pack(&a, &n);
	const struct link_message m = { LINK_NORMS_ASK, JOB, 0, bytes, n, NULL, true, 0 };
	part_take_norms_ask(&other, &m);
	free(bytes);
	other.link_takes = takes;
	links_run_now(&other);
	other.link_takes = before;
	return n_said > n_before ? &said : NULL;
}

START_TEST(a_node_answers_its_own_coordinator_about_one_vote)
{
	asked(0);
	window(3);
	UNTIL(caller[0].n_answers);
	const struct norms_ask good = question();
	const struct part_norms *is = answers(good);
	ck_assert_msg(is && !is->status && is->number == 9 && is->first == 0 && is->total == 1, "%s",
		      is ? is->text : "none");
#define REFUSED(change, status_, text_)                                                                                \
	do {                                                                                                           \
		struct norms_ask a = good;                                                                             \
		change;                                                                                                \
		is = answers(a);                                                                                       \
		ck_assert_msg(is && is->status == (status_) && strstr(is->text, text_), "%s", is ? is->text : "");     \
	} while (0)
	REFUSED(a.window++, ST_ATTEMPT_FAILED, "has left no norms of window 1; ask again");
	REFUSED(a.term++, ST_ATTEMPT_FAILED, "has left no norms");
	REFUSED(a.attempt++, ST_ATTEMPT_FAILED, "has left no norms");
	REFUSED(a.first = 1, ST_ATTEMPT_FAILED, "has left no norms");
	REFUSED(a.epoch++, ST_JOB_NOT_FOUND, "does not have part 0");
	REFUSED(a.uuid_low++, ST_JOB_NOT_FOUND, "does not have part 0");
#undef REFUSED
	struct norms_ask a = good;
	a.job_id++;
	ck_assert_ptr_null(answers(a));
	a = good;
	a.part++;
	ck_assert_ptr_null(answers(a));
	part_norms_tick(there(), node_now());
	ck_assert_ptr_nonnull(there()->norms);
	part_norms_tick(there(), (struct now){ node_now().mono_ns + PART_NORMS_KEPT_NS + 1, 0 });
	ck_assert_ptr_null(there()->norms);
}
END_TEST

static void say(struct part_norms n)
{
	size_t size;
	void *bytes = norms_pack(&n, &size);
	const struct link_message m = { LINK_NORMS, JOB, 0, bytes, size, NULL, false, 0 };
	hosted_take_norms(&d, &m);
	free(bytes);
}

/* An answer that nobody has asked for, and one with another number of tensors than the job has. */
START_TEST(other_answers_are_not_believed)
{
	double value[2] = { 1, 1 };
	struct part_norms n = {
		.job_id = JOB, .epoch = 1, .number = 1, .total = 2, .n = 2, .grad = value, .param = value
	};
	say(n);
	ck_assert_ptr_null(job->norms);
	seen.lost[LINK_NORMS] = true;
	asked(0);
	window(3);
	UNTIL(seen.n[LINK_NORMS]);
	n.epoch++;
	say(n);
	n.epoch--;
	n.job_id++;
	say(n);
	n.job_id--;
	n.part++;
	say(n);
	n.part--;
	n.number++;
	say(n);
	n.number--;
	rig_run();
	ck_assert(!caller[0].n_answers);
	say(n);
	UNTIL(caller[0].n_answers);
	heard(0, ST_INTERNAL, "job 7: the node of part 0 has norms of another number of tensors");
}
END_TEST

START_TEST(calls_that_wait_have_a_bound)
{
	char why[200];
	seen.lost[LINK_NORMS] = true;
	for (uint32_t i = 0; i < 40; i++)
		asked(i);
	window(3);
	UNTIL(seen.n[LINK_NORMS]);
	for (uint32_t i = 40; i < HOSTED_MAX_NORMS_CALLS; i++)
		asked(i);
	ck_assert_int_eq(asks(70, why), ST_RESOURCE_EXHAUSTED);
	ck_assert_str_eq(why, "64 calls wait for its norms already");
	hosted_norms_remove(job, 3); /* gone; it waits for the answer */
	asked(70);
	hosted_norms_remove(job, 50);
	asked(71);
	ck_assert_int_eq(asks(72, why), ST_RESOURCE_EXHAUSTED);
}
END_TEST

int main(int argc, char **argv)
{
	PAIR_ENGINE(argc, argv);
	Suite *s = suite_create("norms");
	TCase *c = tcase_create("norms");
	suite_add_tcase(s, c);
	tcase_set_timeout(c, 60);
	tcase_add_checked_fixture(c, open_job, pair_close);
	tcase_add_test(c, those_of_a_part_elsewhere);
	tcase_add_loop_test(c, what_is_lost_is_asked_again, 0, 2);
	tcase_add_test(c, a_node_that_does_not_answer_is_named);
	tcase_add_test(c, what_the_node_has_lost_is_said);
	tcase_add_test(c, a_node_answers_its_own_coordinator_about_one_vote);
	tcase_add_test(c, other_answers_are_not_believed);
	tcase_add_test(c, calls_that_wait_have_a_bound);
	return suite_run(s);
}
