/* SPDX-License-Identifier: Apache-2.0 */
/* The first parameters of a job of several parts, which one part has and the others take, over Gloo. */
#include "parts_rig.h"

#include "proto/segment_layout.h"
#include "support/suite.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#define ROOT 1u

static struct parts p;
static uint64_t digest; /* of the root's parameters */

/* Drawn, with masters of the 16-bit tensors. */
static struct engine_answer draw(uint32_t part)
{
	struct engine_answer a = rig_call(&p.rig[part], (struct engine_command){ .op = ENGINE_INIT_PARAMS });
	ck_assert_uint_eq(a.status, ST_OK);
	return a;
}

static void setup(void)
{
	struct rig_config c = rig_small();
	c.init = (struct init_rule){ .type = INIT_NORMAL, .b = 1 };
	parts_open(&p, 3, &c);
	ck_assert_uint_gt(rig_bytes(&p.rig[0], SEG_MASTER, 0), 0);
	parts_start(&p);
	digest = draw(ROOT).digest;
}

static void teardown(void)
{
	parts_close(&p);
}

static struct engine_command fill_command(void)
{
	struct engine_command c = parts_command(&p, ENGINE_FILL);
	c.slot = ROOT;
	return c;
}

static uint64_t send_fill(uint32_t part)
{
	return rig_send(&p.rig[part], fill_command());
}

static struct engine_answer answer_of(uint32_t part, uint64_t id)
{
	struct engine_answer a;
	ck_assert(rig_receive(&p.rig[part], &a));
	ck_assert_uint_eq(a.id, id);
	return a;
}

static const struct status_page *page_of(uint32_t part)
{
	return rig_data(&p.rig[part], SEG_STATUS, 0);
}

static bool is_odd(uint32_t part)
{
	return atomic_load(&((struct status_page *)page_of(part))->seq) & 1;
}

static bool is_ready(uint32_t part)
{
	rig_read(&p.rig[part]);
	return p.rig[part].state.r.params_ready;
}

static bool is_equal(uint32_t part, uint32_t role)
{
	return !memcmp(rig_data(&p.rig[part], role, 0), rig_data(&p.rig[ROOT], role, 0),
		       rig_bytes(&p.rig[ROOT], role, 0));
}

static void expect_filled(uint32_t part, const struct engine_answer *a)
{
	ck_assert_msg(a->op == ENGINE_FILL && !a->status, "part %u: %u %s", part, a->status, a->text);
	ck_assert_uint_eq(a->digest, digest);
	ck_assert_uint_eq(a->comm, p.id.k);
	ck_assert(is_ready(part) && !is_odd(part));
	ck_assert_uint_eq(p.rig[part].state.r.params_digest, digest);
	ck_assert(is_equal(part, SEG_PARAMS) && is_equal(part, SEG_MASTER));
}

static void fill_all(void)
{
	uint64_t id[3];
	for (uint32_t s = 0; s < p.n; s++)
		id[s] = send_fill(s);
	for (uint32_t s = 0; s < p.n; s++) {
		struct engine_answer a = answer_of(s, id[s]);
		expect_filled(s, &a);
	}
}

/* Part 0 takes, and gives up its own; the others have not been told, so it waits. */
static uint64_t begin_taking(void)
{
	rig_zero_params(&p.rig[0]);
	parts_join(&p, 1);
	uint64_t id = send_fill(0);
	ck_assert_uint_eq(
		rig_call(&p.rig[0], (struct engine_command){ .op = ENGINE_GO, .term = 1, .close = 1, .comm = p.id.k })
			.status,
		ST_NOT_READY);
	ck_assert(!is_ready(0) && is_odd(0));
	return id;
}

START_TEST(all_have_the_same_parameters)
{
	rig_zero_params(&p.rig[2]); /* has other ones, which it gives up */
	ck_assert(is_ready(2) && !is_equal(2, SEG_PARAMS));
	parts_join(&p, 1);
	fill_all();
	parts_join(&p, 2); /* whoever says so again finds the same */
	fill_all();
}
END_TEST

START_TEST(a_fill_waits_until_all_are_connected)
{
	uint64_t id[3];
	p.id.k = 1;
	for (uint32_t s = 0; s < p.n; s++)
		ck_assert_int_eq(parts_offer(&p, s), ST_OK);
	for (uint32_t s = 0; s < p.n; s++) {
		if (s == 2)
			parts_tell(&p, 2); /* the last one joins, the others have only offered */
		id[s] = send_fill(s);
	}
	rig_zero_params(&p.rig[0]); /* nothing has begun */
	parts_tell(&p, 0);
	parts_tell(&p, 1);
	for (uint32_t s = 0; s < p.n; s++) {
		struct engine_answer a = answer_of(s, id[s]);
		expect_filled(s, &a);
	}
}
END_TEST

START_TEST(a_fill_that_is_sent_again)
{
	uint64_t first = begin_taking(), second = send_fill(0);
	ck_assert_uint_eq(answer_of(0, first).status, ST_CANCELLED);
	uint64_t id[] = { second, send_fill(1), send_fill(2) };
	for (uint32_t s = 0; s < p.n; s++) {
		struct engine_answer a = answer_of(s, id[s]);
		expect_filled(s, &a);
	}
	for (uint32_t s = 0; s < p.n; s++) { /* done: from the record, and no other part is asked */
		rig_read(&p.rig[s]);
		uint64_t seq = p.rig[s].state.r.seq;
		struct engine_answer a = rig_call(&p.rig[s], fill_command());
		expect_filled(s, &a);
		ck_assert_uint_eq(p.rig[s].state.r.seq, seq);
	}
}
END_TEST

START_TEST(what_does_not_fit_is_refused)
{
	struct engine_command c = fill_command();
	c.comm = 1;
	ck_assert_uint_eq(rig_call(&p.rig[0], c).status, ST_NOT_READY); /* it was not told of that */
	parts_join(&p, 2);
	ck_assert_uint_eq(rig_call(&p.rig[0], c).status, ST_UNAVAILABLE);
	c.comm = p.id.k + 1;
	ck_assert_uint_eq(rig_call(&p.rig[0], c).status, ST_NOT_READY);
	c.comm = p.id.k;
	c.slot = 3;
	ck_assert_uint_eq(rig_call(&p.rig[0], c).status, ST_INVALID_ARGUMENT);
	c.slot = 0; /* it is to give, and has none */
	ck_assert_uint_eq(rig_call(&p.rig[0], c).status, ST_NOT_READY);
	ck_assert(is_ready(ROOT) && !is_odd(0));
	fill_all();
	ck_assert_uint_eq(rig_call(&p.rig[0], parts_command(&p, ENGINE_ABORT)).status, ST_OK);
	c.slot = 2;
	ck_assert_uint_eq(rig_call(&p.rig[0], c).status, ST_UNAVAILABLE);

	struct rig one;
	const struct rig_config config = rig_small();
	rig_open(&one, &config);
	rig_start(&one);
	c.slot = 0;
	ck_assert_uint_eq(rig_call(&one, c).status, ST_INVALID_ARGUMENT);
	rig_close(&one);
}
END_TEST

/* Its optimizer state would have to come, too. */
START_TEST(a_job_that_has_made_steps_is_not_filled)
{
	rig_kill(&p.rig[0]);
	rig_read(&p.rig[0]);
	p.rig[0].state.r.window = 1;
	control_page_publish(&p.rig[0].page, &p.rig[0].state);
	parts_new_life(&p, 0);
	parts_join(&p, 1);
	struct engine_answer a = rig_call(&p.rig[0], fill_command());
	ck_assert_uint_eq(a.status, ST_INVALID_ARGUMENT);
	ck_assert(strstr(a.text, "made steps"));
}
END_TEST

/* ---- while it takes ---- */

START_TEST(nobody_else_writes_meanwhile)
{
	uint64_t id = begin_taking();
	const enum engine_op writers[] = { ENGINE_PUT_PARAMS, ENGINE_INIT_PARAMS, ENGINE_RESTORE };
	for (size_t i = 0; i < sizeof(writers) / sizeof(*writers); i++) {
		struct engine_answer a =
			rig_call(&p.rig[0], (struct engine_command){ .op = writers[i], .sgen = 1, .last = 1 });
		ck_assert_msg(a.status == ST_NOT_READY, "%zu: %u %s", i, a.status, a.text);
	}
	ck_assert_uint_eq(rig_call(&p.rig[0], (struct engine_command){ .op = ENGINE_PING }).status, ST_OK);
	struct engine_command other = fill_command();
	other.slot = 2;
	ck_assert_uint_eq(rig_call(&p.rig[0], other).status, ST_NOT_READY);
	rig_zero_params(&p.rig[ROOT]); /* there it is as ever: they are ready */
	uint64_t others[] = { id, send_fill(1), send_fill(2) };
	for (uint32_t s = 0; s < p.n; s++) {
		struct engine_answer a = answer_of(s, others[s]);
		expect_filled(s, &a);
	}
}
END_TEST

START_TEST(the_source_is_killed)
{
	uint64_t id = begin_taking(), second = send_fill(2);
	rig_kill(&p.rig[ROOT]);
	struct engine_answer a[] = { answer_of(0, id), answer_of(2, second) };
	for (int i = 0; i < 2; i++) {
		ck_assert_uint_eq(a[i].status, ST_UNAVAILABLE);
		ck_assert(a[i].suspects && a[i].text[0]);
		ck_assert(!is_ready(i ? 2 : 0));
	}
	parts_new_life(&p, ROOT);
	ck_assert(is_ready(ROOT));
	parts_join(&p, 2);
	fill_all();
}
END_TEST

START_TEST(one_that_takes_is_killed)
{
	uint64_t id = begin_taking(), root = send_fill(ROOT);
	rig_kill(&p.rig[2]);
	ck_assert_uint_eq(answer_of(ROOT, root).status, ST_UNAVAILABLE);
	ck_assert_uint_eq(answer_of(0, id).status, ST_UNAVAILABLE);
	rig_kill(&p.rig[0]);
	parts_new_life(&p, 0); /* its predecessor had taken something, perhaps */
	parts_new_life(&p, 2);
	ck_assert(is_ready(ROOT) && !is_ready(0) && !is_ready(2));
	parts_join(&p, 2);
	fill_all();
}
END_TEST

/* Then it may be given parameters by its trainers again. */
START_TEST(an_abort_ends_it)
{
	uint64_t id = begin_taking(), abort = rig_send(&p.rig[0], parts_command(&p, ENGINE_ABORT));
	ck_assert_uint_eq(answer_of(0, id).status, ST_CANCELLED);
	ck_assert_uint_eq(answer_of(0, abort).status, ST_OK);
	struct engine_answer a;
	do
		a = rig_call(&p.rig[0], (struct engine_command){ .op = ENGINE_INIT_PARAMS });
	while (a.status == ST_NOT_READY);
	ck_assert_uint_eq(a.status, ST_OK);
	ck_assert(is_ready(0) && !is_odd(0));
	parts_join(&p, 2);
	fill_all();
}
END_TEST

START_TEST(a_join_ends_it)
{
	uint64_t id = begin_taking();
	p.id.k++;
	uint64_t join = rig_send(&p.rig[0], parts_command(&p, ENGINE_JOIN));
	ck_assert_uint_eq(answer_of(0, id).status, ST_CANCELLED);
	ck_assert_uint_eq(answer_of(0, join).status, ST_OK);
	parts_join(&p, 3);
	fill_all();
}
END_TEST

START_TEST(stop_ends_it)
{
	uint64_t id = begin_taking(), stop = rig_send(&p.rig[0], (struct engine_command){ .op = ENGINE_STOP });
	ck_assert_uint_eq(answer_of(0, id).status, ST_ENGINE_DOWN);
	ck_assert_uint_eq(answer_of(0, stop).status, ST_OK);
	ck_assert_int_eq(rig_wait(&p.rig[0]), 0);
	ck_assert(!is_ready(0));
}
END_TEST

int main(void)
{
	Suite *s = suite_create("fill");
	TCase *t = tcase_create("fill");
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, all_have_the_same_parameters);
	tcase_add_test(t, a_fill_waits_until_all_are_connected);
	tcase_add_test(t, a_fill_that_is_sent_again);
	tcase_add_test(t, what_does_not_fit_is_refused);
	tcase_add_test(t, a_job_that_has_made_steps_is_not_filled);
	tcase_add_test(t, nobody_else_writes_meanwhile);
	tcase_add_test(t, the_source_is_killed);
	tcase_add_test(t, one_that_takes_is_killed);
	tcase_add_test(t, an_abort_ends_it);
	tcase_add_test(t, a_join_ends_it);
	tcase_add_test(t, stop_ends_it);
	suite_add_tcase(s, t);
	return suite_run(s);
}
