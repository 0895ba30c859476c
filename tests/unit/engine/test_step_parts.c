/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of a job of several parts: real engines over Gloo; the test is gaccd and the coordinator. What a sum must be is
 * taken from the parts' accumulators before the vote, and whole steps are compared with a job of one part. */
#include "parts_rig.h"
#include "support/suite.h"

#include <float.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct parts parts;

static void begin(uint32_t n, struct rig_config c)
{
	parts_open(&parts, n, &c);
	parts_start(&parts);
	for (uint32_t s = 0; s < n; s++) {
		rig_attach_all(&parts.rig[s]);
		if (c.optim.type != OPTIM_CLIENT)
			rig_zero_params(&parts.rig[s]);
	}
	parts_join(&parts, 1);
}

static struct rig_config job_of(enum optim_type type)
{
	struct rig_config c = rig_small();
	c.optim = (struct optim_config){ .type = type, .lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8 };
	c.optim.momentum = type == OPTIM_SGD ? 0.5 : 0;
	return c;
}

/* ---- sums ---- */

static uint32_t half_of(uint32_t part)
{
	rig_read(&parts.rig[part]);
	return parts.rig[part].state.r.x;
}

static void *half(uint32_t part, uint32_t h)
{
	return rig_data(&parts.rig[part], SEG_ACCUM0 + h, 0);
}

static double in_order(uint32_t n, void *const *own, enum dtype acc, uint64_t i)
{
	double d = 0;
	float f = 0;
	for (uint32_t s = 0; s < n && acc == DTYPE_F64; s++)
		d += ((double *)own[s])[i];
	for (uint32_t s = 0; s < n && acc == DTYPE_F32; s++)
		f += ((float *)own[s])[i];
	return acc == DTYPE_F64 ? d : (double)f;
}

START_TEST(the_sum_is_that_of_all_parts_in_their_order)
{
	static const enum dtype accs[] = { DTYPE_F32, DTYPE_F64 };
	struct rig_config c = job_of(OPTIM_ADAMW);
	c.acc_dtype = accs[_i % 2];
	begin(_i < 2 ? 2 : 3, c);
	parts_push_all(&parts, 1, false);
	void *own[PARTS_MAX], *sum[PARTS_MAX];
	for (uint32_t s = 0; s < parts.n; s++) {
		own[s] = half(s, half_of(s));
		sum[s] = half(s, 1 - half_of(s));
	}
	const uint64_t n = parts.rig[0].plan->n_elements;
	parts_vote_all(&parts, 1);
	for (uint64_t i = 0; i < n; i++) {
		double want = in_order(parts.n, own, c.acc_dtype, i);
		for (uint32_t s = 0; s < parts.n; s++) {
			double is = c.acc_dtype == DTYPE_F64 ? ((double *)sum[s])[i] : (double)((float *)sum[s])[i];
			ck_assert_msg(is == want, "part %u, element %lu: %g, not %g", s, i, is, want);
		}
	}
	parts_commit_all(&parts, 1, APPLIED);
	parts_close(&parts);
}
END_TEST

/* Whole numbers, whose sums are exact in any order: then several parts must do what one does. */
static void steps_of_one(struct rig *one, const struct rig_config *c, uint32_t n_parts, int windows)
{
	struct rig_config whole = *c;
	whole.ranks *= n_parts;
	rig_begin(one, whole);
	if (c->optim.type != OPTIM_CLIENT)
		rig_zero_params(one);
	for (int w = 1; w <= windows; w++) {
		for (uint32_t s = 0; s < n_parts; s++)
			for (uint32_t k = 0; k < c->ranks * c->micro_size; k++)
				rig_fill_slot_exact(one, s * c->ranks * c->micro_size + k,
						    ((uint64_t)w + s * 17) * 100 + k);
		/* the weights that the parts give */
		for (uint32_t micro = 0; micro < c->micro_size; micro++)
			for (uint32_t rank = 0; rank < whole.ranks; rank++) {
				uint32_t k = rank * c->micro_size + micro;
				rig_send(one, rig_add_command(one, rank, micro, 1 + k % (c->ranks * c->micro_size)));
			}
		for (uint32_t k = 0; k < whole.ranks * c->micro_size; k++) {
			struct engine_answer a;
			ck_assert(rig_receive(one, &a) && a.result == COUNTED);
		}
		rig_step(one, APPLIED, 0.125, 0.01);
	}
}

START_TEST(several_parts_step_like_one)
{
	static const enum optim_type types[] = { OPTIM_SGD, OPTIM_ADAM, OPTIM_ADAMW, OPTIM_LAMB };
	const struct rig_config c = job_of(types[_i]);
	struct rig one;
	begin(2 + (uint32_t)_i % 2, c);
	for (uint64_t w = 1; w <= 3; w++) {
		parts_push_all(&parts, w, true);
		parts_vote_all(&parts, 1);
		parts_commit_all(&parts, 1, APPLIED);
	}
	steps_of_one(&one, &c, parts.n, 3);
	for (uint32_t role = SEG_PARAMS; role <= SEG_STATE1; role++) {
		uint64_t bytes = plan_role_bytes(one.plan, (enum segment_role)role);
		for (uint32_t s = 0; s < parts.n && bytes; s++)
			ck_assert_msg(!memcmp(rig_data(&one, role, 0), rig_data(&parts.rig[s], role, 0), bytes),
				      "part %u, role %u", s, role);
	}
	rig_close(&one);
	parts_close(&parts);
}
END_TEST

/* Its accumulator holds what an earlier window has left. */
START_TEST(a_part_that_counted_nothing_steps_with_the_others)
{
	begin(2, job_of(OPTIM_SGD));
	parts_push_all(&parts, 1, true);
	parts_vote_all(&parts, 1);
	parts_commit_all(&parts, 1, APPLIED);
	rig_fill_all(&parts.rig[0], 5, true);
	rig_add_all(&parts.rig[0], NULL);
	for (uint32_t rank = 0; rank < 2; rank++)
		ck_assert_uint_eq(rig_flush(&parts.rig[1], rank, false).status, ST_OK);
	const struct engine_answer v = parts_vote_all(&parts, 1);
	double sumsq = 0;
	const float *own = half(0, half_of(0));
	for (uint64_t i = 0; i < parts.rig[0].plan->n_elements; i++)
		sumsq += (double)own[i] * (double)own[i];
	ck_assert_double_eq_tol(v.sumsq / sumsq, 1, 1e-6);
	parts_commit_all(&parts, 1, APPLIED);
	parts_close(&parts);
}
END_TEST

/* ---- the client's optimizer ---- */

static void expect_reduced(uint32_t part, const float *sum)
{
	rig_read(&parts.rig[part]);
	const struct control_record *r = &parts.rig[part].state.r;
	const float *reduced = half(part, 1 - r->x);
	ck_assert(r->client_pending && r->client_window == r->window - 1);
	for (uint64_t i = 0; i < parts.rig[part].plan->n_elements; i++)
		ck_assert(reduced[i] == 0.125f * sum[i]);
}

static void ack(uint64_t window)
{
	const struct engine_command c = { .op = ENGINE_ACK_STEP, .last = 1, .window = window };
	for (uint32_t s = 0; s < parts.n; s++)
		ck_assert_uint_eq(rig_call(&parts.rig[s], c).status, ST_OK);
}

START_TEST(a_reduced_gradient_is_not_overwritten_while_it_is_read)
{
	begin(2, job_of(OPTIM_CLIENT));
	const uint64_t bytes = parts.rig[0].plan->n_elements * sizeof(float);
	float *sum = malloc(bytes);
	for (uint64_t w = 1; w <= 3; w++) {
		if (w > 1) {
			ck_assert_uint_eq(rig_call(&parts.rig[0], parts_go_command(&parts, 0, 1)).status, ST_NOT_READY);
			expect_reduced(0, sum);
			ack(w - 2);
		}
		parts_push_all(&parts, w, true);
		parts_vote_all(&parts, 1);
		memcpy(sum, half(1, 1 - half_of(1)), bytes);
		parts_commit_all(&parts, 1, APPLIED);
		expect_reduced(0, sum);
		expect_reduced(1, sum);
	}
	free(sum);
	parts_close(&parts);
}
END_TEST

/* ---- lives and attempts ---- */

/* Its record has the vote, and the other half the sum: it needs no communicator for either. */
START_TEST(the_next_life_votes_again_and_commits)
{
	begin(2, job_of(OPTIM_ADAMW));
	parts_push_all(&parts, 1, true);
	const struct engine_answer v = parts_vote_all(&parts, 1);
	parts_new_life(&parts, 0);
	const struct engine_answer again = rig_call(&parts.rig[0], parts_go_command(&parts, 0, 1));
	ck_assert_uint_eq(again.status, ST_OK);
	ck_assert_uint_eq(again.digest, v.digest);
	parts_new_life(&parts, 1);
	parts_commit_all(&parts, 1, APPLIED);
	parts_close(&parts);
}
END_TEST

/* Part 1 is silent: the vote of attempt 1 is gone, and nobody may commit it any more. */
START_TEST(a_later_attempt_withdraws_the_vote_before_it_writes)
{
	begin(2, job_of(OPTIM_ADAMW));
	parts_push_all(&parts, 1, false);
	const struct engine_answer v = parts_vote_all(&parts, 1);
	parts_join(&parts, 2);
	parts_send_go(&parts, 0, 2);
	struct control_record *r = &parts.rig[0].state.r;
	for (int i = 0; i < 2000; i++) {
		rig_read(&parts.rig[0]);
		if (r->phase == WINDOW_CLOSED)
			break;
		usleep(5000);
	}
	ck_assert_uint_eq(r->phase, WINDOW_CLOSED);
	ck_assert(!r->prepared_term && !r->prepared_attempt && !r->prepared_digest);
	parts_new_life(&parts, 0);
	struct engine_answer a = rig_call(&parts.rig[0], parts_commit_command(&parts, 0, 1, APPLIED));
	ck_assert_uint_eq(a.status, ST_NOT_READY);
	parts_join(&parts, 3);
	ck_assert_uint_eq(parts_vote_all(&parts, 3).digest, v.digest);
	parts_commit_all(&parts, 3, APPLIED);
	parts_close(&parts);
}
END_TEST

START_TEST(a_go_waits_until_the_communicator_is_connected)
{
	begin(2, job_of(OPTIM_SGD));
	parts_push_all(&parts, 1, true);
	parts.id.k = 2;
	for (uint32_t s = 0; s < 2; s++)
		ck_assert_int_eq(parts_offer(&parts, s), ST_OK);
	uint64_t first = parts_send_go(&parts, 0, 2),
		 id = parts_send_go(&parts, 0, 2); /* repeated: the earlier one is let go */
	ck_assert_uint_eq(parts_answer_to(&parts, 0, first).status, ST_CANCELLED);
	parts_tell(&parts, 0);
	parts_tell(&parts, 1);
	uint64_t other = parts_send_go(&parts, 1, 2);
	ck_assert_uint_eq(parts_answer_to(&parts, 0, id).status, ST_OK);
	ck_assert_uint_eq(parts_answer_to(&parts, 1, other).status, ST_OK);
	parts_commit_all(&parts, 2, APPLIED);
	parts_close(&parts);
}
END_TEST

START_TEST(a_go_names_a_communicator_that_there_is)
{
	begin(2, job_of(OPTIM_SGD));
	parts_push_all(&parts, 1, true);
	parts.id.k = 2; /* nobody has told of it */
	struct engine_answer a = rig_call(&parts.rig[0], parts_go_command(&parts, 0, 2));
	ck_assert_uint_eq(a.status, ST_NOT_READY);
	ck_assert_str_ne(a.text, "");
	parts.id.k = 1;
	ck_assert_uint_eq(rig_call(&parts.rig[0], parts_command(&parts, ENGINE_ABORT)).status, ST_OK);
	a = rig_call(&parts.rig[0], parts_go_command(&parts, 0, 2));
	ck_assert_uint_eq(a.status, ST_UNAVAILABLE);
	rig_read(&parts.rig[0]);
	ck_assert_uint_eq(a.result, parts.rig[0].state.r.phase);
	struct engine_command c = parts_go_command(&parts, 0, 3);
	c.armed = 1;
	ck_assert_uint_eq(rig_call(&parts.rig[0], c).status, ST_INVALID_ARGUMENT);
	parts_join(&parts, 3);
	parts_vote_all(&parts, 3);
	parts_commit_all(&parts, 3, APPLIED);
	parts_close(&parts);
}
END_TEST

enum ending { BY_ABORT, BY_JOIN, BY_LATER_GO, BY_STOP, ENDINGS };

/* Part 1 never answers: what part 0 has at hand ends, and is answered, by what comes next. */
START_TEST(a_go_at_hand_ends_by_what_comes_next)
{
	begin(2, job_of(OPTIM_SGD));
	parts_push_all(&parts, 1, true);
	const uint64_t go = parts_send_go(&parts, 0, 1);
	struct engine_command c = parts_command(&parts, _i == BY_JOIN ? ENGINE_JOIN : ENGINE_ABORT);
	if (_i == BY_JOIN)
		c.comm = 2;
	if (_i == BY_LATER_GO)
		c = parts_go_command(&parts, 0, 2); /* in the same communicator, which is over by that */
	if (_i == BY_STOP)
		c = (struct engine_command){ .op = ENGINE_STOP };
	const uint64_t id = rig_send(&parts.rig[0], c);
	ck_assert_uint_eq(parts_answer_to(&parts, 0, go).status, _i == BY_STOP ? ST_ENGINE_DOWN : ST_CANCELLED);
	ck_assert_uint_eq(parts_answer_to(&parts, 0, id).status, _i == BY_LATER_GO ? ST_UNAVAILABLE : ST_OK);
	if (_i == BY_STOP) {
		ck_assert_int_eq(rig_wait(&parts.rig[0]), 0);
		parts_new_life(&parts, 0);
	}
	parts_join(&parts, 5);
	parts_vote_all(&parts, 5);
	parts_commit_all(&parts, 5, APPLIED);
	parts_close(&parts);
}
END_TEST

/* Idle, and killed: the next sum fails at once, and names it. */
START_TEST(a_dead_engine_costs_an_attempt)
{
	begin(3, job_of(OPTIM_ADAMW));
	parts_push_all(&parts, 1, false);
	rig_kill(&parts.rig[1]);
	const uint64_t id[] = { parts_send_go(&parts, 0, 1), 0, parts_send_go(&parts, 2, 1) };
	for (uint32_t s = 0; s < 3; s += 2) {
		struct engine_answer a = parts_answer_to(&parts, s, id[s]);
		ck_assert_uint_eq(a.status, ST_UNAVAILABLE);
		ck_assert_uint_eq(a.suspects, 1u << 1);
		ck_assert_uint_eq(a.result, WINDOW_CLOSED);
		ck_assert_str_ne(a.text, "");
	}
	parts_new_life(&parts, 1);
	parts_join(&parts, 2);
	parts_vote_all(&parts, 2);
	parts_commit_all(&parts, 2, APPLIED);
	parts_close(&parts);
}
END_TEST

/* ---- kills at random ---- */

enum phase { VOTES, COMMITS };

/* Sends GO, or COMMIT, to those of which `to` has the bit, and kills one of them a little later. Returns of which the
 * answer was OK; the others have failed, or are gone. */
static uint32_t send_and_kill(enum phase phase, uint32_t to, uint32_t victim, useconds_t after)
{
	uint64_t id[PARTS_MAX];
	uint32_t ok = 0;
	for (uint32_t s = 0; s < parts.n; s++)
		if (to >> s & 1)
			id[s] = rig_send(&parts.rig[s], phase == VOTES
								? parts_go_command(&parts, s, parts.id.k)
								: parts_commit_command(&parts, s, parts.id.k, APPLIED));
	if (victim < parts.n) {
		usleep(after);
		kill(parts.rig[victim].pid, SIGKILL);
	}
	for (uint32_t s = 0; s < parts.n; s++) {
		struct engine_answer a = { 0 };
		if (!(to >> s & 1))
			continue;
		if (rig_receive(&parts.rig[s], &a)) {
			ck_assert_uint_eq(a.id, id[s]);
			ok |= (a.status == ST_OK) << s;
		}
	}
	if (victim < parts.n) {
		const uint64_t window = parts.rig[victim].window;
		parts_new_life(&parts, victim);
		parts.rig[victim].window = window; /* it may have finished the update, and be in the next one */
	}
	return ok;
}

/* Whatever has failed is tried again, in the next communicator; one engine dies in the first vote, one in the first
 * COMMIT. */
static void step_with_kills(uint64_t seed)
{
	const uint32_t all = (1u << parts.n) - 1;
	uint32_t victim = (uint32_t)(rig_mix(seed) % parts.n);
	useconds_t after = (useconds_t)(rig_mix(seed + 1) % 4000);
	while (send_and_kill(VOTES, all, victim, after) != all) {
		victim = parts.n;
		parts_join(&parts, parts.id.k + 1);
	}
	victim = (uint32_t)(rig_mix(seed + 2) % parts.n);
	after = (useconds_t)(rig_mix(seed + 3) % 3000);
	uint32_t left = all;
	while ((left &= ~send_and_kill(COMMITS, left, victim, after)))
		victim = parts.n;
	for (uint32_t s = 0; s < parts.n; s++) {
		parts.rig[s].applied_step++;
		parts.rig[s].window++;
	}
	parts_join(&parts, parts.id.k + 1);
}

static uint64_t undisturbed(const struct rig_config *c, int windows)
{
	begin(2, *c);
	for (int w = 1; w <= windows; w++) {
		parts_push_all(&parts, (uint64_t)w, false);
		parts_vote_all(&parts, 1);
		parts_commit_all(&parts, 1, APPLIED);
	}
	rig_read(&parts.rig[0]);
	uint64_t digest = parts.rig[0].state.r.params_digest;
	parts_close(&parts);
	return digest;
}

START_TEST(kills_anywhere_in_a_step_change_no_bit)
{
	enum { WINDOWS = 16 };
	struct rig_config c = rig_large();
	c.optim = job_of(OPTIM_ADAMW).optim;
	const uint64_t digest = undisturbed(&c, WINDOWS);
	begin(2, c);
	for (int w = 1; w <= WINDOWS; w++) {
		parts_push_all(&parts, (uint64_t)w, false);
		step_with_kills((uint64_t)w * 10);
	}
	for (uint32_t s = 0; s < 2; s++) {
		rig_read(&parts.rig[s]);
		ck_assert_uint_eq(parts.rig[s].state.r.params_digest, digest);
		ck_assert_uint_eq(parts.rig[s].state.r.window, WINDOWS);
	}
	parts_close(&parts);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("step_parts");
	TCase *t = tcase_create("step_parts");
	tcase_add_loop_test(t, the_sum_is_that_of_all_parts_in_their_order, 0, 4);
	tcase_add_loop_test(t, several_parts_step_like_one, 0, 4);
	tcase_add_test(t, a_part_that_counted_nothing_steps_with_the_others);
	tcase_add_test(t, a_reduced_gradient_is_not_overwritten_while_it_is_read);
	tcase_add_test(t, the_next_life_votes_again_and_commits);
	tcase_add_test(t, a_later_attempt_withdraws_the_vote_before_it_writes);
	tcase_add_test(t, a_go_waits_until_the_communicator_is_connected);
	tcase_add_test(t, a_go_names_a_communicator_that_there_is);
	tcase_add_loop_test(t, a_go_at_hand_ends_by_what_comes_next, 0, ENDINGS);
	tcase_add_test(t, a_dead_engine_costs_an_attempt);
	tcase_add_test(t, kills_anywhere_in_a_step_change_no_bit);
	suite_add_tcase(s, t);
	return suite_run(s);
}
