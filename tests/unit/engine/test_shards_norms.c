/* SPDX-License-Identifier: Apache-2.0 */
/* Norms of the tensors of a sharded job: those of the same parts unsharded, bit by bit, wherever shares begin. Real
 * engines over Gloo; the test is gaccd and the coordinator. */
#include "parts_rig.h"
#include "support/suite.h"

#include <string.h>

static struct parts sharded, whole;

static struct rig_config job_of(int i, bool small)
{
	struct rig_config c = small ? rig_small() : rig_large();
	c.optim = (struct optim_config){
		.type = i % 2 ? OPTIM_ADAM : OPTIM_SGD, .lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8
	};
	c.no_master = i / 3 % 2;
	return c;
}

static void begin(struct parts *p, uint32_t n, const struct rig_config *c)
{
	parts_open(p, n, c);
	parts_start(p);
	for (uint32_t s = 0; s < n; s++) {
		rig_attach_all(&p->rig[s]);
		rig_zero_params(&p->rig[s]);
	}
	parts_join(p, 1);
}

static void begin_groups(uint32_t n, uint32_t n_shards, struct rig_config c)
{
	c.n_shards = 1;
	begin(&whole, n, &c);
	c.n_shards = n_shards;
	begin(&sharded, n, &c);
}

static void begin_both(uint32_t n, struct rig_config c)
{
	begin_groups(n, n, c);
}

static void vote(uint64_t seed, uint64_t attempt)
{
	parts_push_all(&whole, seed, false);
	parts_push_all(&sharded, seed, false);
	parts_vote_all(&whole, attempt);
	parts_vote_all(&sharded, attempt);
}

static void end(void)
{
	parts_close(&sharded);
	parts_close(&whole);
}

/* Of whole[0] in all parts; what the test has left shows that they have been written. */
static void expect_same_norms(void)
{
	const struct tensor_norm *want = control_page_norms(&whole.rig[0].page);
	for (uint32_t s = 0; s < sharded.n; s++) {
		const struct tensor_norm *is = control_page_norms(&sharded.rig[s].page);
		rig_read(&sharded.rig[s]);
		ck_assert_uint_eq(sharded.rig[s].state.r.prepared_norms, 1);
		for (uint64_t t = 0; t < sharded.rig[s].plan->n_tensors; t++) {
			if (plan_tensors(sharded.rig[s].plan)[t].alias >= 0)
				continue;
			ck_assert_msg(!memcmp(&want[t], &is[t], sizeof(*want)), "part %u, tensor %d: %a %a, want %a %a",
				      s, (int)t, is[t].grad_sumsq, is[t].param_sumsq, want[t].grad_sumsq,
				      want[t].param_sumsq);
			ck_assert(is[t].grad_sumsq > 0);
		}
	}
}

/* Shares begin inside of blocks of the third and the fourth tensor, and the order in which they are declared is not
 * that of the arena. */
static struct rig_config job_of_odd_starts(int i)
{
	struct rig_config c = job_of(i, true);
	const struct tensor_spec t[] = {
		{ .name = "first of 16 bits", .dtype = DTYPE_BF16, .n_dims = 1, .shape = { 40 } },
		{ .name = "early", .dtype = DTYPE_F32, .n_dims = 1, .shape = { 100 } },
		{ .name = "next", .dtype = DTYPE_F32, .n_dims = 1, .shape = { 50001 } },
		{ .name = "late", .dtype = DTYPE_BF16, .n_dims = 1, .shape = { 40005 } },
		{ .name = "tied", .dtype = DTYPE_BF16, .n_dims = 1, .shape = { 40005 }, .alias_of = "late" }
	};
	memcpy(c.tensor, t, sizeof(t));
	c.n_tensors = 5;
	c.acc_dtype = i / 6 % 2 ? DTYPE_F64 : DTYPE_F32;
	return c;
}

START_TEST(norms_of_tensors_have_the_bits_of_one_that_is_not_sharded)
{
	const struct rig_config c = _i % 24 < 12 ? job_of_odd_starts(_i % 24) : job_of(_i % 24, _i % 24 >= 18);
	if (_i < 24)
		begin_both(2 + (uint32_t)_i % 3, c);
	else
		begin_groups(4, 2, c);
	vote(1, 1);
	rig_read(&sharded.rig[1]);
	ck_assert_uint_eq(sharded.rig[1].state.r.prepared_norms, 0); /* nobody has asked */
	parts_commit_all(&whole, 1, APPLIED);
	parts_commit_all(&sharded, 1, APPLIED);
	whole.norms = sharded.norms = true;
	for (uint32_t s = 0; s < sharded.n; s++)
		memset(control_page_norms(&sharded.rig[s].page), 0xff,
		       sharded.rig[s].plan->n_tensors * sizeof(struct tensor_norm));
	vote(2, 1);
	expect_same_norms();
	parts_commit_all(&whole, 1, APPLIED);
	parts_commit_all(&sharded, 1, APPLIED);
	end();
}
END_TEST

/* A vote that was given without them cannot bring them any more: no part has the sum. One that was given with them has
 * them in its next life, too. */
START_TEST(norms_come_with_the_sum_or_not_at_all)
{
	begin_both(2, job_of(2, false));
	whole.norms = sharded.norms = _i;
	vote(1, 1);
	whole.norms = sharded.norms = true;
	parts_vote_all(&whole, 1);
	if (_i)
		parts_new_life(&sharded, 1);
	for (uint32_t s = 0; s < 2; s++)
		ck_assert_uint_eq(rig_call(&sharded.rig[s], parts_go_command(&sharded, s, 1)).status, ST_OK);
	rig_read(&sharded.rig[1]);
	ck_assert_uint_eq(sharded.rig[1].state.r.prepared_norms, _i);
	if (_i)
		expect_same_norms();
	end();
}
END_TEST

int main(void)
{
	Suite *s = suite_create("norms of shards");
	TCase *t = tcase_create("norms of shards");
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, norms_of_tensors_have_the_bits_of_one_that_is_not_sharded, 0, 48);
	tcase_add_loop_test(t, norms_come_with_the_sum_or_not_at_all, 0, 2);
	suite_add_tcase(s, t);
	return suite_run(s);
}
