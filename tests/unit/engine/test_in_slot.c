/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs without accumulators: the one micro-batch of a window stays in its slot, and each step has the bits that it has
 * with accumulators. */
#include "rig.h"
#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 3 };

static struct rig sum, slot; /* the same job, with accumulators and without */

static struct optim_config optimizer(int i)
{
	static const struct optim_config all[] = {
		{ .type = OPTIM_SGD, .lr = 0.1, .momentum = 0.9 },
		{ .type = OPTIM_ADAMW, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1 },
		{ .type = OPTIM_LAMB, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.1 },
	};
	return all[i];
}

static struct rig_config alone(struct rig_config c)
{
	c.ranks = c.micro_size = 1;
	return c;
}

static void begin(struct rig_config c)
{
	c = alone(c);
	rig_begin(&sum, c);
	rig_zero_params(&sum);
	c.in_slot = true;
	rig_begin(&slot, c);
	rig_zero_params(&slot);
}

static void end(void)
{
	rig_close(&slot); /* first: its engine has inherited the other's channel */
	rig_close(&sum);
}

/* Into both, as good as the slot's dtype has it; noise between the tensors of one. */
static void fill(uint64_t seed)
{
	memset(rig_data(&slot, SEG_SLOT, 0), 0x3e, rig_bytes(&slot, SEG_SLOT, 0));
	rig_fill_slot(&sum, 0, seed);
	rig_fill_slot(&slot, 0, seed);
}

static struct engine_answer push(struct rig *r, struct engine_command c, const unsigned char *present)
{
	struct engine_answer a;
	uint64_t id;
	c.n_present = present ? (uint32_t)(r->config.n_tensors + 7) / 8 : 0;
	id = rig_send_with(r, c, present);
	ck_assert(rig_receive(r, &a));
	ck_assert_uint_eq(a.id, id);
	return a;
}

static void push_both(double weight, const unsigned char *present)
{
	ck_assert_uint_eq(push(&sum, rig_add_command(&sum, 0, 0, weight), present).result, COUNTED);
	ck_assert_uint_eq(push(&slot, rig_add_command(&slot, 0, 0, weight), present).result, COUNTED);
}

static struct engine_answer vote(struct rig *r, uint64_t attempt)
{
	rig_close_window(r);
	struct engine_answer a = rig_call(
		r, (struct engine_command){
			   .op = ENGINE_GO, .window = r->window, .term = 1, .attempt = attempt, .want_norms = 1 });
	ck_assert_uint_eq(a.status, ST_OK);
	return a;
}

static void same_votes(void)
{
	const uint64_t n = slot.plan->n_tensors;
	struct engine_answer want = vote(&sum, 1), got = vote(&slot, 1);
	ck_assert(want.sumsq > 0);
	ck_assert_mem_eq(&got.sumsq, &want.sumsq, sizeof(want.sumsq));
	ck_assert_uint_eq(got.digest, want.digest);
	ck_assert_uint_eq(got.nonfinite, want.nonfinite);
	const struct tensor_norm *a = control_page_norms(&sum.page), *b = control_page_norms(&slot.page);
	for (uint64_t t = 0; t < n; t++)
		if (plan_tensors(slot.plan)[t].alias < 0)
			ck_assert_mem_eq(&a[t], &b[t], sizeof(*a));
}

static struct engine_answer commit(struct rig *r)
{
	struct engine_answer a = rig_call(r, rig_commit_command(r, APPLIED, 0.5, 0.1));
	ck_assert_msg(a.status == ST_OK, "commit: %u %s", a.status, a.text);
	r->applied_step++;
	r->window++;
	return a;
}

static void same_memory(void)
{
	static const enum segment_role roles[] = { SEG_PARAMS, SEG_MASTER, SEG_STATE0, SEG_STATE1 };
	for (size_t i = 0; i < sizeof(roles) / sizeof(*roles); i++)
		if (plan_role_bytes(sum.plan, roles[i]))
			ck_assert_mem_eq(rig_data(&slot, roles[i], 0), rig_data(&sum, roles[i], 0),
					 rig_bytes(&sum, roles[i], 0));
}

static bool is_zero(const struct rig *r, uint32_t s)
{
	const unsigned char *at = rig_data(r, SEG_SLOT, s);
	for (uint64_t i = 0; i < rig_bytes(r, SEG_SLOT, s); i++)
		if (at[i])
			return false;
	return true;
}

START_TEST(a_step_has_the_bits_of_one_with_accumulators)
{
	static const enum dtype dtypes[] = { DTYPE_NONE, DTYPE_BF16 };
	struct rig_config c = _i % 2 ? rig_small() : rig_large();
	c.optim = optimizer(_i / 2 % 3);
	c.grad_dtype = dtypes[_i / 6];
	c.frozen = 1u << 1 | 1u << 16;
	begin(c);
	for (uint64_t s = 0; s < STEPS; s++) {
		fill(s + 1);
		push_both(1 + 0.3 * (double)s, NULL);
		same_votes();
		ck_assert_uint_eq(commit(&slot).digest, commit(&sum).digest);
		same_memory();
	}
	end();
}
END_TEST

/* Their values, which are not finite here, are no part of the sum. An alias stands for its target. */
START_TEST(absent_tensors_count_as_zeros)
{
	const unsigned char present[] = { 0x36 }; /* all but 0, which comes as its alias 4, and 3 */
	begin(rig_small());
	fill(1);
	rig_set_gradient(&slot, 0, 3, 7, NAN);
	rig_set_gradient(&slot, 0, 3, 3000, INFINITY);
	push_both(2, present);
	same_votes();
	ck_assert(control_page_norms(&slot.page)[0].grad_sumsq > 0); /* in both jobs */
	ck_assert(control_page_norms(&slot.page)[3].grad_sumsq == 0);
	ck_assert_uint_eq(commit(&slot).digest, commit(&sum).digest);
	same_memory();
	end();
}
END_TEST

START_TEST(there_is_no_accumulator)
{
	struct plan_segment s[16];
	begin(rig_small());
	int n = plan_segments(slot.plan, s, 16);
	for (int i = 0; i < n; i++)
		ck_assert(s[i].role != SEG_ACCUM0 && s[i].role != SEG_ACCUM1);
	ck_assert_int_eq(plan_segments(sum.plan, s, 16), n + 2 - 1); /* and one slot fewer */
	end();
}
END_TEST

/* An engine that comes after the push looks at the slot again, and goes on with an update that another one began. */
START_TEST(a_successor_finds_the_sum_in_the_slot)
{
	struct rig_config c = rig_large();
	c.optim = optimizer(1 + _i % 2);
	c.reject_nonfinite = true;
	begin(c);
	fill(9);
	push_both(3, NULL);
	rig_kill(&slot);
	ck_assert_uint_eq(rig_start(&slot).status, ST_OK);
	same_votes();
	commit(&sum);
	rig_send(&slot, rig_commit_command(&slot, APPLIED, 0.5, 0.1));
	usleep((useconds_t)_i * 150);
	rig_kill(&slot);
	ck_assert_uint_eq(rig_start(&slot).status, ST_OK);
	if (slot.window == 0) /* it died before it had the command */
		commit(&slot);
	same_memory();
	end();
}
END_TEST

START_TEST(a_slot_is_zeroed_when_its_window_is_over)
{
	begin(rig_small());
	fill(4);
	struct engine_command c = rig_add_command(&slot, 0, 0, 1);
	c.zero_after = 1;
	ck_assert_uint_eq(push(&slot, c, NULL).result, COUNTED);
	ck_assert(!is_zero(&slot, 0));
	if (_i) {
		rig_kill(&slot);
		ck_assert_uint_eq(rig_start(&slot).status, ST_OK);
	}
	ck_assert(!is_zero(&slot, 0));
	rig_step(&slot, _i == 2 ? SKIPPED : APPLIED, 0.5, 0.1);
	ck_assert(is_zero(&slot, 0));
	end();
}
END_TEST

START_TEST(a_void_micro_batch_is_no_sum)
{
	struct rig_config c = rig_small();
	c.reject_nonfinite = true;
	begin(c);
	fill(5);
	rig_set_gradient(&slot, 0, 3, 7, NAN);
	rig_set_gradient(&slot, 0, 5, 9998, INFINITY);
	struct engine_answer a = push(&slot, rig_add_command(&slot, 0, 0, 1), NULL);
	ck_assert_uint_eq(a.result, VOID);
	ck_assert_uint_eq(a.nonfinite_count, 2);
	rig_read(&slot);
	ck_assert_uint_eq(slot.state.r.filled, 0);
	ck_assert(vote(&slot, 1).sumsq == 0);
	end();
}
END_TEST

START_TEST(the_second_slot_can_be_the_sum)
{
	begin(rig_small());
	fill(6);
	memcpy(rig_data(&slot, SEG_SLOT, 1), rig_data(&slot, SEG_SLOT, 0), rig_bytes(&slot, SEG_SLOT, 0));
	memset(rig_data(&slot, SEG_SLOT, 0), 0x41, rig_bytes(&slot, SEG_SLOT, 0));
	struct engine_command c = rig_add_command(&slot, 0, 0, 1);
	c.slot = 1;
	ck_assert_uint_eq(push(&slot, c, NULL).result, COUNTED);
	ck_assert_uint_eq(push(&sum, rig_add_command(&sum, 0, 0, 1), NULL).result, COUNTED);
	same_votes();
	ck_assert_uint_eq(commit(&slot).digest, commit(&sum).digest);
	same_memory();
	end();
}
END_TEST

START_TEST(a_record_that_names_no_slot_of_the_plan_is_refused)
{
	begin(rig_small());
	rig_kill(&slot);
	rig_read(&slot);
	slot.state.r.filled = 2 + (uint32_t)_i; /* there are two slots */
	control_page_publish(&slot.page, &slot.state);
	struct engine_answer a;
	rig_spawn(&slot);
	ck_assert(rig_receive(&slot, &a));
	ck_assert_uint_eq(a.status, _i ? ST_SEGMENT_CORRUPT : ST_OK);
	rig_kill(&slot);
	end();
}
END_TEST

START_TEST(it_is_one_micro_batch_of_one_rank)
{
	char why[200];
	begin(rig_small());
	struct plan *p = malloc(slot.plan->bytes);
#define WRONG(change)                                                                                                  \
	do {                                                                                                           \
		memcpy(p, slot.plan, slot.plan->bytes);                                                                \
		ck_assert_int_eq(plan_check(p, p->bytes, why, sizeof(why)), ST_OK);                                    \
		change;                                                                                                \
		ck_assert_int_eq(plan_check(p, p->bytes, why, sizeof(why)), ST_INVALID_ARGUMENT);                      \
		ck_assert_ptr_nonnull(strstr(why, "a sum that stays in its slot"));                                    \
	} while (0)
	WRONG(p->ranks = 2);
	WRONG(p->max_micro_size = 2);
	WRONG(p->n_parts = 2);
	WRONG(p->acc_dtype = DTYPE_F64);
	WRONG(p->optim.type = OPTIM_CLIENT);
	WRONG(p->in_slot = 2);
	free(p);
	end();
}
END_TEST

/* There is nothing to save but the slot. */
START_TEST(the_sum_is_not_saved)
{
	begin(rig_small());
	const char path[] = "/tmp/gacc-never-made";
	struct engine_command c = { .op = ENGINE_CHECKPOINT, .inside_window = 1, .n_present = sizeof(path) - 1 };
	uint64_t id = rig_send_with(&slot, c, path);
	struct engine_answer a;
	ck_assert(rig_receive(&slot, &a));
	ck_assert_uint_eq(a.id, id);
	ck_assert_uint_eq(a.status, ST_INVALID_ARGUMENT);
	ck_assert_ptr_nonnull(strstr(a.text, "no accumulator"));
	end();
}
END_TEST

int main(void)
{
	Suite *s = suite_create("in_slot");
	TCase *t = tcase_create("in_slot");
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, a_step_has_the_bits_of_one_with_accumulators, 0, 12);
	tcase_add_test(t, absent_tensors_count_as_zeros);
	tcase_add_test(t, there_is_no_accumulator);
	tcase_add_loop_test(t, a_successor_finds_the_sum_in_the_slot, 0, 24);
	tcase_add_loop_test(t, a_slot_is_zeroed_when_its_window_is_over, 0, 3);
	tcase_add_test(t, a_void_micro_batch_is_no_sum);
	tcase_add_test(t, the_second_slot_can_be_the_sum);
	tcase_add_loop_test(t, a_record_that_names_no_slot_of_the_plan_is_refused, 0, 2);
	tcase_add_test(t, it_is_one_micro_batch_of_one_rank);
	tcase_add_test(t, the_sum_is_not_saved);
	suite_add_tcase(s, t);
	return suite_run(s);
}
