/* SPDX-License-Identifier: Apache-2.0 */
/* Pushes, flushes and what they leave in the accumulator. */
#include "rig.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

Suite *window_suite(void);

static struct rig rig;

static void *copy_sum(void)
{
	void *out = malloc(rig_bytes(&rig, SEG_ACCUM0, 0));
	rig_read(&rig);
	memcpy(out, rig_data(&rig, SEG_ACCUM0 + rig.state.r.x, 0), rig_bytes(&rig, SEG_ACCUM0, 0));
	return out;
}

static const enum dtype grads[] = { DTYPE_NONE, DTYPE_F32, DTYPE_F16, DTYPE_BF16 };

/* Whole numbers: the sum has one right answer, in every dtype, with and without a canonical order. */
START_TEST(sums_are_exact)
{
	struct rig_config c = _i / 16 ? rig_large() : rig_small();
	uint32_t order[16];
	c.grad_dtype = grads[_i % 4];
	c.acc_dtype = _i / 4 % 2 ? DTYPE_F64 : DTYPE_F32;
	c.arrival = _i / 8 % 2;
	c.ranks = 3;
	rig_begin(&rig, c);
	rig_fill_all(&rig, 1, true);
	rig_shuffle(order, rig.plan->slots, (uint64_t)_i);
	rig_add_all(&rig, order);
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.r.count, 6);
	ck_assert_double_eq(rig.state.r.sum_weight, 21);
	ck_assert_double_eq(rig.state.r.sum_loss, 21 * 1.5);
	uint64_t wrong = 0;
	double sumsq = 0;
	for (int t = 0; t < c.n_tensors; t++)
		for (uint64_t i = 0; rig.arena.tensor[t].alias < 0 && i < rig.arena.tensor[t].count; i++) {
			double want = 0;
			for (uint32_t s = 0; s < rig.plan->slots; s++)
				want += (1 + s) * (double)rig_gradient(&rig, s, t, i);
			wrong += rig_sum(&rig, rig.state.r.x, t, i) != want;
			sumsq += want * want;
		}
	ck_assert_uint_eq(wrong, 0);
	struct engine_answer a = rig_close_window(&rig);
	ck_assert_uint_eq(a.count, 6);
	ck_assert_double_eq(a.sum_weight, 21);
	a = rig_go(&rig, 1);
	ck_assert_double_eq_tol(a.sumsq, sumsq, 1e-6 * sumsq);
	ck_assert_uint_eq(a.nonfinite, 0);
	rig_close(&rig);
}
END_TEST

/* Random values, any order of arrival, one pass or many, with a restart before GO: the same bits. */
START_TEST(order_of_arrival_does_not_change_a_bit)
{
	struct rig_config c = rig_small();
	c.ranks = 3;
	c.micro_size = 3;
	uint32_t order[16];
	void *want = NULL;
	struct engine_answer first = { 0 }, a;
	for (int round = 0; round < 8; round++) {
		rig_begin(&rig, c);
		rig_fill_all(&rig, 5, false);
		rig_shuffle(order, rig.plan->slots, (uint64_t)round);
		if (round == 0)
			for (uint32_t m = 0; m < 3; m++)
				for (uint32_t r = 0; r < 3; r++)
					ck_assert_uint_eq(rig_add(&rig, r, m, 1 + r * 3 + m).result, COUNTED);
		else
			rig_add_all(&rig, order);
		void *got = copy_sum();
		if (round % 2) {
			rig_kill(&rig);
			rig_start(&rig);
		}
		rig_close_window(&rig);
		a = rig_go(&rig, 1);
		if (!want) {
			want = got;
			first = a;
		} else {
			ck_assert_mem_eq(got, want, rig_bytes(&rig, SEG_ACCUM0, 0));
			ck_assert_double_eq(a.sumsq, first.sumsq);
			ck_assert_uint_eq(a.digest, first.digest);
			ck_assert_double_eq(a.sum_weight, first.sum_weight);
			ck_assert_uint_eq(a.last_rank, 2);
			free(got);
		}
		rig_close(&rig);
	}
	free(want);
}
END_TEST

START_TEST(present_bitmaps_arrive_with_the_push)
{
	rig_begin(&rig, rig_small());
	unsigned char present = 1u << 3 | 1u << 5;
	struct engine_command c = rig_add_command(&rig, 0, 0, 2);
	struct engine_answer a;
	rig_fill_slot_exact(&rig, 0, 1);
	c.n_present = 1;
	ck_assert_int_eq(packet_send(rig.fd, &c, sizeof(c), &present, 1, NULL, 0), 0);
	ck_assert(rig_receive(&rig, &a));
	ck_assert_uint_eq(a.result, COUNTED);
	rig_read(&rig);
	uint64_t wrong = 0;
	for (int t = 0; t < rig.config.n_tensors; t++)
		for (uint64_t i = 0; i < rig.arena.tensor[t].count; i++)
			wrong += rig_sum(&rig, rig.state.r.x, t, i) !=
				 (t == 3 || t == 5 ? 2 * (double)rig_gradient(&rig, 0, t, i) : 0);
	ck_assert_uint_eq(wrong, 0);
	c = rig_add_command(&rig, 1, 0, 2);
	c.n_present = 2;
	ck_assert_int_eq(packet_send(rig.fd, &c, sizeof(c), "\xff\xff", 2, NULL, 0), 0);
	ck_assert(rig_receive(&rig, &a));
	ck_assert_uint_eq(a.status, ST_INVALID_ARGUMENT);
	rig_close(&rig);
}
END_TEST

static bool slot_is_zero(uint32_t slot)
{
	const unsigned char *p = rig_data(&rig, SEG_SLOT, slot);
	for (size_t i = 0; i < rig.plan->slot_bytes; i++)
		if (p[i])
			return false;
	return true;
}

START_TEST(zero_after_leaves_a_zero_slot)
{
	struct rig_config config = rig_small();
	config.reject_nonfinite = true;
	rig_begin(&rig, config);
	struct engine_command c = rig_add_command(&rig, 0, 0, 1), bad = rig_add_command(&rig, 1, 0, 1);
	c.zero_after = bad.zero_after = 1;
	rig_fill_all(&rig, 1, true);
	rig_set_gradient(&rig, c.slot, 0, 0, 5);
	rig_set_gradient(&rig, bad.slot, 0, 0, NAN);
	ck_assert_uint_eq(rig_call(&rig, c).result, COUNTED);
	ck_assert(slot_is_zero(c.slot));
	ck_assert(!slot_is_zero(bad.slot));
	ck_assert_uint_eq(rig_call(&rig, bad).result, VOID);
	ck_assert(slot_is_zero(bad.slot));
	ck_assert_double_eq(rig_sum(&rig, 1, 0, 0), 5);
	ck_assert_uint_eq(rig_add(&rig, 0, 1, 1).result, COUNTED);
	ck_assert(!slot_is_zero(1));
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.r.n_zero, 0);
	rig_close(&rig);
}
END_TEST

/* The engine died between the flip and the answer: its successor zeroes, and not what has been answered. */
START_TEST(a_successor_zeroes_what_the_record_names)
{
	rig_begin(&rig, rig_small());
	rig_fill_all(&rig, 1, true);
	ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, COUNTED);
	rig_kill(&rig);
	rig_read(&rig);
	rig.state.r.n_zero = 2;
	rig.state.r.zero_slot[0] = 0;
	rig.state.r.zero_slot[1] = 3;
	control_page_publish(&rig.page, &rig.state);
	rig_start(&rig);
	ck_assert(slot_is_zero(0) && slot_is_zero(3));
	ck_assert(!slot_is_zero(1) && !slot_is_zero(2));
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.r.n_zero, 0);
	rig_close(&rig);
}
END_TEST

START_TEST(non_finite_micro_batches_become_void)
{
	struct rig_config config = rig_small();
	config.reject_nonfinite = true;
	config.ranks = 4;
	config.micro_size = 1;
	rig_begin(&rig, config);
	struct engine_answer a;
	rig_fill_all(&rig, 2, true);
	rig_set_gradient(&rig, 1, 3, 7, INFINITY);
	rig_set_gradient(&rig, 1, 5, 7, NAN);
	rig_set_gradient(&rig, 3, 1, 7, -INFINITY);
	/* the last in canonical order first, so that all four are in one pass */
	for (uint32_t i = 4; i-- > 0;)
		rig_send(&rig, rig_add_command(&rig, i, 0, 1 + i));
	uint32_t voids = 0;
	for (uint32_t i = 0; i < 4; i++) {
		ck_assert(rig_receive(&rig, &a));
		bool bad = a.rank == 1 || a.rank == 3;
		ck_assert_uint_eq(a.status, ST_OK);
		ck_assert_uint_eq(a.result, bad ? VOID : COUNTED);
		ck_assert_uint_eq(a.nonfinite_count, a.rank == 1 ? 2 : a.rank == 3);
		voids += bad;
	}
	ck_assert_uint_eq(voids, 2);
	rig_read(&rig);
	for (uint32_t i = 0; i < 4; i++)
		ck_assert_uint_eq(rig.state.rank[i].counted, i == 0 || i == 2);
	ck_assert_uint_eq(rig.state.r.count, 2);
	ck_assert_double_eq(rig.state.r.sum_weight, 4);
	ck_assert_uint_eq(rig.state.r.last_rank, 2);
	uint64_t wrong = 0;
	for (uint64_t i = 0; i < 3001; i++)
		wrong += rig_sum(&rig, rig.state.r.x, 3, i) !=
			 rig_gradient(&rig, 0, 3, i) + 3 * rig_gradient(&rig, 2, 3, i);
	ck_assert_uint_eq(wrong, 0);
	ck_assert_uint_eq(rig_add(&rig, 1, 0, 1).result, VOID);
	ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, DUPLICATE);
	a = rig_close_window(&rig);
	ck_assert_uint_eq(a.count, 2);
	ck_assert_uint_eq(rig_go(&rig, 1).nonfinite, 0);
	ck_assert_uint_eq(rig_call(&rig, rig_commit_command(&rig, DROPPED, 0, 0)).status, ST_OK);
	rig.window++;
	rig_fill_all(&rig, 3, true); /* what was void is not so in the next window */
	for (uint32_t i = 0; i < 2; i++)
		ck_assert_uint_eq(rig_add(&rig, i, 0, 1).result, COUNTED);
	rig_close(&rig);
}
END_TEST

START_TEST(a_window_of_void_pushes_stays_empty)
{
	struct rig_config config = rig_small();
	config.reject_nonfinite = true;
	config.ranks = 1;
	config.micro_size = 1;
	rig_begin(&rig, config);
	rig_zero_params(&rig);
	rig_set_gradient(&rig, 0, 0, 0, NAN);
	ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, VOID);
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.r.filled, 0);
	ck_assert_uint_eq(rig.state.r.x, 0);
	struct engine_answer a = rig_close_window(&rig);
	ck_assert_uint_eq(a.count, 0);
	ck_assert_uint_eq(a.last_rank, UINT32_MAX);
	a = rig_go(&rig, 1);
	ck_assert_double_eq(a.sumsq, 0);
	ck_assert_uint_eq(rig_call(&rig, rig_commit_command(&rig, APPLIED, 1, 1)).status, ST_INVALID_ARGUMENT);
	ck_assert_uint_eq(rig_call(&rig, rig_commit_command(&rig, EMPTY, 0, 0)).status, ST_OK);
	rig_close(&rig);
}
END_TEST

START_TEST(without_rejection_non_finite_values_show_in_the_vote)
{
	struct rig_config config = rig_small();
	config.ranks = config.micro_size = 1;
	rig_begin(&rig, config);
	rig_set_gradient(&rig, 0, 0, 0, NAN);
	ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, COUNTED);
	rig_close_window(&rig);
	ck_assert_uint_eq(rig_go(&rig, 1).nonfinite, 1);
	rig_close(&rig);
}
END_TEST

START_TEST(attach_fences_older_sessions)
{
	struct engine_answer a;
	rig_begin(&rig, rig_small());
	uint64_t waits = rig_send(&rig, rig_add_command(&rig, 1, 0, 1));
	struct engine_command attach = { .op = ENGINE_ATTACH, .rank = 1, .sgen = 5 };
	memset(attach.session.token, 0xab, sizeof(attach.session.token));
	uint64_t id = rig_send(&rig, attach);
	ck_assert(rig_receive(&rig, &a));
	ck_assert_uint_eq(a.id, waits);
	ck_assert_uint_eq(a.status, ST_SESSION_FENCED);
	ck_assert(rig_receive(&rig, &a));
	ck_assert_uint_eq(a.id, id);
	ck_assert_uint_eq(a.status, ST_OK);
	ck_assert_uint_eq(rig_add(&rig, 1, 0, 1).status, ST_SESSION_FENCED);
	attach.sgen = 4;
	ck_assert_uint_eq(rig_call(&rig, attach).status, ST_SESSION_FENCED);
	rig_kill(&rig);
	rig_start(&rig);
	ck_assert_uint_eq(rig_add(&rig, 1, 0, 1).status, ST_SESSION_FENCED);
	attach.sgen = 5;
	ck_assert_uint_eq(rig_call(&rig, attach).status, ST_OK);
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.rank[1].sgen, 5);
	ck_assert_uint_eq(rig.state.rank[1].session.token[15], 0xab);
	rig_close(&rig);
}
END_TEST

START_TEST(flush_is_durable_and_completes_the_window)
{
	struct engine_answer a;
	rig_begin(&rig, rig_small());
	rig_fill_all(&rig, 1, true);
	uint64_t waits = rig_send(&rig, rig_add_command(&rig, 1, 0, 1)); /* its turn has not come */
	uint64_t id = rig_send(&rig, (struct engine_command){ .op = ENGINE_FLUSH, .rank = 1, .sgen = 1 });
	ck_assert(rig_receive(&rig, &a));
	ck_assert_uint_eq(a.id, waits);
	ck_assert_uint_eq(a.status, ST_FLUSHED);
	ck_assert(rig_receive(&rig, &a));
	ck_assert_uint_eq(a.id, id);
	ck_assert_uint_eq(a.status, ST_OK);
	ck_assert_uint_eq(rig_add(&rig, 1, 0, 1).status, ST_FLUSHED);
	rig_kill(&rig);
	rig_start(&rig);
	ck_assert_uint_eq(rig_add(&rig, 1, 0, 1).status, ST_FLUSHED);
	ck_assert_uint_eq(rig_flush(&rig, 1, false).status, ST_OK);
	ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, COUNTED);
	ck_assert_uint_eq(rig_add(&rig, 0, 1, 2).result, COUNTED); /* waits for nobody */
	rig_step(&rig, SKIPPED, 0, 0);
	ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, COUNTED);
	ck_assert_uint_eq(rig_add(&rig, 1, 0, 1).result, COUNTED); /* a flush is of one window */
	ck_assert_uint_eq(rig_call(&rig, (struct engine_command){ .op = ENGINE_FLUSH, .rank = 1, .sgen = 1 }).status,
			  ST_WINDOW_CLOSED);
	rig_close(&rig);
}
END_TEST

START_TEST(a_push_whose_turn_it_is_counts_before_flush_and_close)
{
	struct engine_answer a;
	rig_begin(&rig, rig_small());
	rig_send(&rig, rig_add_command(&rig, 0, 0, 1));
	rig_send(&rig, (struct engine_command){ .op = ENGINE_FLUSH, .rank = 0, .sgen = 1 });
	rig_send(&rig, rig_add_command(&rig, 1, 0, 1));
	uint64_t waits = rig_send(&rig, rig_add_command(&rig, 1, 1, 1));
	rig_send(&rig, (struct engine_command){ .op = ENGINE_CLOSE });
	ck_assert(rig_receive(&rig, &a));
	ck_assert(a.op == ENGINE_ADD && a.result == COUNTED);
	ck_assert(rig_receive(&rig, &a));
	ck_assert(a.op == ENGINE_FLUSH && a.status == ST_OK);
	for (int i = 0; i < 2; i++) {
		ck_assert(rig_receive(&rig, &a));
		ck_assert(a.op == ENGINE_ADD && a.result == COUNTED && a.rank == 1);
	}
	ck_assert_uint_eq(a.id, waits);
	ck_assert(rig_receive(&rig, &a));
	ck_assert(a.op == ENGINE_CLOSE && a.status == ST_OK && a.count == 3);
	rig_close(&rig);
}
END_TEST

START_TEST(who_has_left_is_not_waited_for_until_it_comes_back)
{
	rig_begin(&rig, rig_small());
	rig_zero_params(&rig);
	ck_assert_uint_eq(rig_flush(&rig, 1, true).status, ST_OK);
	ck_assert_uint_eq(rig_flush(&rig, 1, false).status, ST_OK); /* still gone for good */
	for (int w = 0; w < 2; w++) {
		ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, COUNTED);
		ck_assert_uint_eq(rig_add(&rig, 0, 1, 1).result, COUNTED);
		rig_step(&rig, APPLIED, 1, 1);
	}
	ck_assert_uint_eq(rig_call(&rig, (struct engine_command){ .op = ENGINE_ATTACH, .rank = 1, .sgen = 2 }).status,
			  ST_OK);
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.rank[1].flushed, 1);
	struct engine_command c = rig_add_command(&rig, 1, 0, 1);
	c.sgen = 2;
	ck_assert_uint_eq(rig_call(&rig, c).status, ST_FLUSHED); /* from the next window on */
	rig_close_window(&rig);
	c = (struct engine_command){ .op = ENGINE_FLUSH, .rank = 0, .sgen = 1, .window = rig.window };
	ck_assert_uint_eq(rig_call(&rig, c).status, ST_WINDOW_CLOSED);
	c.leave = 1;
	ck_assert_uint_eq(rig_call(&rig, c).status, ST_OK); /* of a frozen window: holds from the next one on */
	rig_step(&rig, EMPTY, 0, 0);
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.rank[0].flushed, 2);
	ck_assert_uint_eq(rig.state.rank[1].flushed, 0);
	rig_close(&rig);
}
END_TEST

Suite *window_suite(void)
{
	Suite *s = suite_create("window");
	TCase *t = tcase_create("window");
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, sums_are_exact, 0, 32);
	tcase_add_test(t, order_of_arrival_does_not_change_a_bit);
	tcase_add_test(t, present_bitmaps_arrive_with_the_push);
	tcase_add_test(t, zero_after_leaves_a_zero_slot);
	tcase_add_test(t, a_successor_zeroes_what_the_record_names);
	tcase_add_test(t, non_finite_micro_batches_become_void);
	tcase_add_test(t, a_window_of_void_pushes_stays_empty);
	tcase_add_test(t, without_rejection_non_finite_values_show_in_the_vote);
	tcase_add_test(t, attach_fences_older_sessions);
	tcase_add_test(t, flush_is_durable_and_completes_the_window);
	tcase_add_test(t, a_push_whose_turn_it_is_counts_before_flush_and_close);
	tcase_add_test(t, who_has_left_is_not_waited_for_until_it_comes_back);
	suite_add_tcase(s, t);
	return s;
}
