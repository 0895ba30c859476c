/* SPDX-License-Identifier: Apache-2.0 */
/* Votes and commits. */
#include "rig.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

Suite *step_suite(void);

static struct rig rig;

static bool has_master(int tensor)
{
	return !rig.config.no_master && dtype_size(rig.config.tensor[tensor].dtype) == 2;
}

START_TEST(close_freezes_and_go_repeats)
{
	struct engine_answer a, b;
	rig_begin(&rig, rig_small());
	rig_fill_all(&rig, 1, true);
	rig_add(&rig, 0, 0, 1);
	uint64_t waits = rig_send(&rig, rig_add_command(&rig, 0, 1, 1));
	uint64_t id = rig_send(&rig, (struct engine_command){ .op = ENGINE_CLOSE });
	ck_assert(rig_receive(&rig, &a));
	ck_assert_uint_eq(a.id, waits);
	ck_assert_uint_eq(a.status, ST_WINDOW_CLOSED);
	ck_assert(rig_receive(&rig, &a));
	ck_assert_uint_eq(a.id, id);
	ck_assert_uint_eq(rig_add(&rig, 1, 0, 1).status, ST_WINDOW_CLOSED);
	ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, DUPLICATE);
	b = rig_close_window(&rig);
	ck_assert_uint_eq(b.count, a.count);
	a = rig_go(&rig, 2);
	ck_assert_uint_eq(rig_go(&rig, 1).status, ST_STALE_ATTEMPT);
	b = rig_go(&rig, 2);
	ck_assert_double_eq(a.sumsq, b.sumsq);
	ck_assert_uint_eq(a.digest, b.digest);
	b = rig_go(&rig, 3);
	ck_assert_uint_eq(b.status, ST_OK);
	ck_assert_uint_eq(a.digest, b.digest);
	ck_assert_uint_eq(rig_close_window(&rig).status, ST_OK);
	ck_assert_uint_eq(rig_call(&rig, (struct engine_command){ .op = ENGINE_GO, .term = 2, .attempt = 1 }).status,
			  ST_OK);
	ck_assert_uint_eq(rig_go(&rig, 9).status, ST_STALE_TERM);
	rig_kill(&rig);
	rig_start(&rig);
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.r.phase, WINDOW_PREPARED); /* a vote survives the voter */
	ck_assert_uint_eq(rig.state.r.prepared_attempt, 1);
	struct engine_command c = rig_commit_command(&rig, SKIPPED, 0, 0);
	ck_assert_uint_eq(rig_call(&rig, c).status, ST_STALE_ATTEMPT);
	c.term = 2;
	ck_assert_uint_eq(rig_call(&rig, c).status, ST_OK);
	rig_close(&rig);
}
END_TEST

START_TEST(go_may_close)
{
	struct engine_answer a;
	struct engine_command go = { .op = ENGINE_GO, .window = 0, .term = 1, .attempt = 1, .close = 1 };
	rig_begin(&rig, rig_small());
	rig_fill_all(&rig, 1, true);
	rig_add(&rig, 0, 0, 1);
	uint64_t waits = rig_send(&rig, rig_add_command(&rig, 0, 1, 1));
	go.window = 1;
	ck_assert_uint_eq(rig_call(&rig, go).status, ST_NOT_CURRENT_WINDOW);
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.r.phase, WINDOW_OPEN);
	go.window = 0;
	uint64_t id = rig_send(&rig, go);
	ck_assert(rig_receive(&rig, &a));
	ck_assert_uint_eq(a.id, waits);
	ck_assert_uint_eq(a.status, ST_WINDOW_CLOSED);
	ck_assert(rig_receive(&rig, &a));
	ck_assert_uint_eq(a.id, id);
	ck_assert_uint_eq(a.status, ST_OK);
	ck_assert_uint_eq(a.count, 1);
	ck_assert(a.sumsq > 0);
	ck_assert_uint_eq(rig_add(&rig, 1, 0, 1).status, ST_WINDOW_CLOSED);
	ck_assert_uint_eq(rig_call(&rig, rig_commit_command(&rig, SKIPPED, 0, 0)).status, ST_OK);
	rig_close(&rig);
}
END_TEST

static void check_norms(bool filled)
{
	const struct tensor_norm *row = control_page_norms(&rig.page);
	for (int t = 0; t < rig.config.n_tensors; t++) {
		const struct plan_tensor *at = &plan_tensors(rig.plan)[t];
		const float *master = has_master(t) ? (float *)rig_data(&rig, SEG_MASTER, 0) + at->start : NULL;
		double grad = 0, param = 0;
		for (uint64_t i = 0; i < at->count; i++) {
			double g = filled ? rig_sum(&rig, rig.state.r.x, t, i) : 0,
			       p = master ? master[i] : rig_param(&rig, t, i);
			grad += g * g;
			param += p * p;
		}
		if (at->alias >= 0) {
			ck_assert(row[t].grad_sumsq == -1 && row[t].param_sumsq == -1); /* as the test left it */
			continue;
		}
		ck_assert(fabs(row[t].grad_sumsq - grad) <= 1e-6 * grad);
		ck_assert(fabs(row[t].param_sumsq - param) <= 1e-6 * param);
		ck_assert(param > 0 && (grad > 0) == (filled && !(rig.config.frozen >> t & 1)));
	}
}

static struct engine_command go_with_norms(uint64_t attempt)
{
	return (struct engine_command){
		.op = ENGINE_GO, .window = rig.window, .term = 1, .attempt = attempt, .want_norms = 1
	};
}

/* Of every tensor, with the vote or after it, from one thread or more, in f32 or f64, with a master or without. */
START_TEST(norms_of_tensors_on_request)
{
	struct rig_config c = _i & 1 ? rig_large() : rig_small();
	struct tensor_norm *row;
	c.threads = 1 + (uint32_t)_i % 3;
	c.no_master = _i & 2;
	c.acc_dtype = _i & 4 ? DTYPE_F64 : DTYPE_F32;
	c.frozen = 1u << 1;
	c.init = (struct init_rule){ INIT_NORMAL, 0, 1 };
	rig_begin(&rig, c);
	row = control_page_norms(&rig.page);
	for (int t = 0; t < c.n_tensors; t++)
		row[t] = (struct tensor_norm){ -1, -1 };
	rig_call(&rig, (struct engine_command){ .op = ENGINE_INIT_PARAMS });
	rig_fill_all(&rig, 5, false);
	rig_add_all(&rig, NULL);
	rig_close_window(&rig);
	struct engine_answer a = rig_go(&rig, 1), b;
	rig_read(&rig);
	ck_assert(rig.state.r.prepared_norms == 0 && row[0].grad_sumsq == -1);
	b = rig_call(&rig, go_with_norms(1));
	ck_assert(b.status == ST_OK && a.sumsq == b.sumsq && a.digest == b.digest);
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.r.prepared_norms, 1);
	check_norms(true);
	rig_kill(&rig);
	row[0].grad_sumsq = 0;
	rig_start(&rig);
	ck_assert_uint_eq(rig_call(&rig, go_with_norms(1)).status, ST_OK);
	ck_assert(row[0].grad_sumsq == 0); /* the record says that they are there */
	ck_assert_uint_eq(rig_call(&rig, go_with_norms(2)).status, ST_OK);
	check_norms(true);
	struct engine_command commit = rig_commit_command(&rig, APPLIED, 0.25, 0.1);
	commit.attempt = 2;
	ck_assert_uint_eq(rig_call(&rig, commit).status, ST_OK);
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.r.prepared_norms, 0);
	rig.window++;
	rig_close_window(&rig);
	ck_assert_uint_eq(rig_call(&rig, go_with_norms(1)).status, ST_OK);
	check_norms(false); /* an empty window; parameters have moved */
	rig_close(&rig);
}
END_TEST

START_TEST(a_commit_is_checked_and_done_once)
{
	rig_begin(&rig, rig_small());
	rig_fill_all(&rig, 3, true);
	rig_add_all(&rig, NULL);
	struct engine_command good = rig_commit_command(&rig, APPLIED, 1, 1);
	ck_assert_uint_eq(rig_call(&rig, good).status, ST_NOT_READY); /* no vote */
	rig_close_window(&rig);
	rig_go(&rig, 1);
	ck_assert_uint_eq(rig_call(&rig, good).status, ST_NOT_READY); /* no parameters */
	rig_zero_params(&rig);
	REFUSED(c.outcome = 0, INVALID_ARGUMENT);
	REFUSED(c.outcome = 5, INVALID_ARGUMENT);
	REFUSED(c.next_micro_size = 0, INVALID_ARGUMENT);
	REFUSED(c.next_micro_size = 6, INVALID_ARGUMENT);
	REFUSED(c.applied_step = 0, INVALID_ARGUMENT);
	REFUSED(c.applied_step = 2, INVALID_ARGUMENT);
	REFUSED(c.scale = NAN, INVALID_ARGUMENT);
	REFUSED(c.clip_value = -1, INVALID_ARGUMENT);
	REFUSED(c.next_loss_scale = 0, INVALID_ARGUMENT);
	REFUSED(c.attempt = 2, STALE_ATTEMPT);
	REFUSED(c.window = 1, NOT_CURRENT_WINDOW);
	good.next_micro_size = 3;
	good.next_loss_scale = 8;
	struct engine_answer a = rig_call(&rig, good), b = rig_call(&rig, good);
	ck_assert_uint_eq(a.status, ST_OK);
	ck_assert_uint_eq(b.status, ST_OK);
	ck_assert_uint_ne(a.digest, 0);
	ck_assert_uint_eq(a.digest, b.digest);
	REFUSED(c.attempt = 2, WINDOW_CLOSED); /* another attempt than the committed one */
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.r.window, 1);
	ck_assert_uint_eq(rig.state.r.applied_step, 1);
	ck_assert_uint_eq(rig.state.r.micro_size, 3);
	ck_assert_double_eq(rig.state.r.loss_scale, 8);
	ck_assert_uint_eq(rig.state.r.count, 0);
	ck_assert_uint_eq(rig.state.rank[0].counted, 0);
	struct status_page *page = rig_data(&rig, SEG_STATUS, 0);
	ck_assert_uint_eq(page->seq, 2);
	ck_assert_uint_eq(page->window, 1);
	ck_assert_uint_eq(page->applied_step, 1);
	ck_assert_uint_eq(page->micro_size, 3);
	uint64_t wrong = 0;
	for (uint64_t i = 0; i < 9999; i++) {
		double want = 0;
		for (uint32_t s = 0; s < 4; s++)
			want -= (1 + s) * rig_gradient(&rig, s, 5, i);
		wrong += rig_param(&rig, 5, i) != want;
	}
	ck_assert_uint_eq(wrong, 0);
	struct engine_command late = rig_add_command(&rig, 1, 1, 1);
	late.window = 0;
	ck_assert_uint_eq(rig_call(&rig, late).result, ALREADY_COMMITTED);
	rig_close(&rig);
}
END_TEST

START_TEST(late_pushes_learn_whether_they_count)
{
	rig_begin(&rig, rig_small());
	rig_zero_params(&rig);
	rig_fill_all(&rig, 3, true);
	ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, COUNTED);
	rig_flush(&rig, 0, false);
	rig_flush(&rig, 1, false);
	rig_step(&rig, APPLIED, 1, 1);
	struct engine_command in = rig_add_command(&rig, 0, 0, 1), out = rig_add_command(&rig, 1, 0, 1);
	in.window = out.window = 0;
	ck_assert_uint_eq(rig_call(&rig, in).result, ALREADY_COMMITTED);
	ck_assert_uint_eq(rig_call(&rig, out).status, ST_WINDOW_CLOSED);
	rig_kill(&rig);
	rig_start(&rig);
	ck_assert_uint_eq(rig_call(&rig, in).result, ALREADY_COMMITTED);
	rig_close(&rig);
}
END_TEST

/* Three steps of each optimizer against its kernel over the whole arena; skipped windows leave everything as it was. */
START_TEST(steps_are_those_of_the_optimizer)
{
	static const struct optim_config optims[] = {
		{ .type = OPTIM_SGD, .lr = 0.5, .momentum = 0.9 },
		{ .type = OPTIM_ADAM, .lr = 0.5, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1 },
		{ .type = OPTIM_ADAMW, .lr = 0.5, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1 },
	};
	struct rig_config c = _i / 3 ? rig_large() : rig_small();
	c.optim = optims[_i % 3];
	c.init = (struct init_rule){ INIT_NORMAL, 0, 1 };
	rig_begin(&rig, c);
	ck_assert_uint_eq(rig_call(&rig, (struct engine_command){ .op = ENGINE_INIT_PARAMS }).status, ST_OK);
	uint64_t n = rig.arena.group[0].count;
	size_t bytes = n * sizeof(float);
	float *p = aligned_alloc(64, bytes), *m = aligned_alloc(64, bytes), *v = aligned_alloc(64, bytes);
	memcpy(p, rig_data(&rig, SEG_PARAMS, 0), bytes);
	memset(m, 0, bytes);
	memset(v, 0, bytes);
	const struct optim_group group = { 1, c.optim.weight_decay, false };
	for (int step = 1; step <= 3; step++) {
		rig_fill_all(&rig, (uint64_t)step, false);
		rig_add_all(&rig, NULL);
		rig_read(&rig);
		const void *sum = rig_data(&rig, SEG_ACCUM0 + rig.state.r.x, 0);
		struct kernel_params k = { .p = p, .m = m, .v = c.optim.type == OPTIM_SGD ? NULL : v };
		struct kernel_update u;
		optim_step(&c.optim, &group, (uint64_t)step, 0.5 / step, 0.25, 0, &u);
		optim_apply(kernels_get(NULL), &c.optim, &k, sum, DTYPE_F32, n, &u, NULL, NULL);
		rig_step(&rig, APPLIED, 0.25, 0.5 / step);
		ck_assert_mem_eq(rig_data(&rig, SEG_PARAMS, 0), p, bytes);
		rig_add_all(&rig, NULL);
		uint64_t digest = rig_step(&rig, SKIPPED, 0.25, 1).digest;
		ck_assert_mem_eq(rig_data(&rig, SEG_PARAMS, 0), p, bytes);
		rig_read(&rig);
		ck_assert_uint_eq(rig.state.r.params_digest, digest);
		ck_assert_uint_eq(rig.state.r.applied_step, (uint64_t)step);
	}
	free(p);
	free(m);
	free(v);
	rig_close(&rig);
}
END_TEST

/* Optimizer CLIENT: the reduced gradient stays put in P[1-x] until it is acknowledged. */
START_TEST(client_gradients_stay_until_acknowledged)
{
	struct rig_config c = rig_small();
	struct engine_answer a;
	c.optim = (struct optim_config){ .type = OPTIM_CLIENT, .lr = 1 };
	c.ranks = 1;
	rig_begin(&rig, c);
	for (uint64_t w = 0; w < 4; w++) {
		rig_fill_all(&rig, w + 1, true);
		rig_add_all(&rig, NULL);
		ck_assert_uint_eq(rig_close_window(&rig).status, ST_OK);
		ck_assert_uint_eq(rig_go(&rig, 1).status, ST_OK);
		struct engine_command commit = rig_commit_command(&rig, APPLIED, 0.5, 1);
		a = rig_call(&rig, commit);
		ck_assert_uint_eq(a.status, ST_OK);
		rig.window++;
		rig.applied_step++;
		uint32_t half = 1 - a.x;
		double want[2], *sum = want;
		for (uint32_t s = 0; s < 2; s++)
			sum[s] = rig_gradient(&rig, s, 3, 77);
		double reduced = 0.5 * (want[0] + 2 * want[1]);
		ck_assert_double_eq(rig_sum(&rig, half, 3, 77), reduced);
		void *kept = malloc(rig_bytes(&rig, SEG_ACCUM0, 0));
		memcpy(kept, rig_data(&rig, SEG_ACCUM0 + half, 0), rig_bytes(&rig, SEG_ACCUM0, 0));
		/* the next window's first push is added, the second waits */
		rig_fill_all(&rig, w + 50, true);
		ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, COUNTED);
		uint64_t second = rig_send(&rig, rig_add_command(&rig, 0, 1, 2));
		ck_assert_uint_eq(rig_call(&rig, (struct engine_command){ .op = ENGINE_ATTACH, .sgen = 1 }).status,
				  ST_OK);
		ck_assert_mem_eq(rig_data(&rig, SEG_ACCUM0 + half, 0), kept, rig_bytes(&rig, SEG_ACCUM0, 0));
		rig_read(&rig);
		ck_assert_uint_eq(rig.state.r.client_pending, 1);
		ck_assert_uint_eq(rig.state.r.client_window, rig.window - 1);
		ck_assert_uint_eq(1 - rig.state.r.x, half);
		if (w) /* an acknowledgement of the step before changes nothing */
			ck_assert_uint_eq(rig_call(&rig, (struct engine_command){ .op = ENGINE_ACK_STEP,
										  .sgen = 1,
										  .window = rig.window - 3 })
						  .status,
					  ST_OK);
		rig_send(&rig,
			 (struct engine_command){ .op = ENGINE_ACK_STEP, .window = rig.window - 1, .last = true });
		ck_assert(rig_receive(&rig, &a) && a.op == ENGINE_ACK_STEP && a.status == ST_OK);
		ck_assert(rig_receive(&rig, &a) && a.id == second && a.result == COUNTED);
		rig_read(&rig);
		ck_assert_double_eq(rig_sum(&rig, rig.state.r.x, 3, 77),
				    rig_gradient(&rig, 0, 3, 77) + 2 * rig_gradient(&rig, 1, 3, 77));
		rig_step(&rig, DROPPED, 0, 0);
		free(kept);
	}
	rig_close(&rig);
}
END_TEST

START_TEST(a_client_commit_waits_for_the_last_acknowledgement)
{
	struct rig_config c = rig_small();
	c.optim = (struct optim_config){ .type = OPTIM_CLIENT, .lr = 1 };
	c.ranks = c.micro_size = 1;
	rig_begin(&rig, c);
	rig_add(&rig, 0, 0, 1);
	rig_step(&rig, APPLIED, 1, 1);
	rig_add(&rig, 0, 0, 1);
	rig_close_window(&rig);
	rig_go(&rig, 1);
	ck_assert_uint_eq(rig_call(&rig, rig_commit_command(&rig, APPLIED, 1, 1)).status, ST_NOT_READY);
	rig_kill(&rig);
	rig_start(&rig);
	ck_assert_uint_eq(rig_call(&rig, rig_commit_command(&rig, APPLIED, 1, 1)).status, ST_NOT_READY);
	ck_assert_uint_eq(
		rig_call(&rig, (struct engine_command){ .op = ENGINE_ACK_STEP, .window = 0, .last = true }).status,
		ST_OK);
	ck_assert_uint_eq(rig_call(&rig, rig_commit_command(&rig, APPLIED, 1, 1)).status, ST_OK);
	rig_close(&rig);
}
END_TEST

/* Sent before its successor attached, and read behind that: the successor may not have read the gradient. */
START_TEST(a_fenced_session_acknowledges_nothing)
{
	struct engine_command ack = { .op = ENGINE_ACK_STEP, .rank = 1, .sgen = 1 };
	struct rig_config c = rig_small();
	c.optim = (struct optim_config){ .type = OPTIM_CLIENT, .lr = 1 };
	rig_begin(&rig, c);
	rig_add_all(&rig, NULL);
	rig_step(&rig, APPLIED, 1, 1);
	ck_assert_uint_eq(rig_call(&rig, (struct engine_command){ .op = ENGINE_ATTACH, .rank = 1, .sgen = 2 }).status,
			  ST_OK);
	ck_assert_uint_eq(rig_call(&rig, ack).status, ST_SESSION_FENCED);
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.rank[1].session.step_acked, 0);
	ack.sgen = 2;
	ck_assert_uint_eq(rig_call(&rig, ack).status, ST_OK);
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.rank[1].session.step_acked, 1);
	ck_assert_uint_eq(rig_call(&rig, (struct engine_command){ .op = ENGINE_ATTACH, .rank = 1, .sgen = 3 }).status,
			  ST_OK);
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.rank[1].session.step_acked, 1); /* it is said once, whichever session goes on */
	rig_close(&rig);
}
END_TEST

Suite *step_suite(void)
{
	Suite *s = suite_create("step");
	TCase *t = tcase_create("step");
	tcase_set_timeout(t, 60);
	tcase_add_test(t, close_freezes_and_go_repeats);
	tcase_add_test(t, go_may_close);
	tcase_add_loop_test(t, norms_of_tensors_on_request, 0, 8);
	tcase_add_test(t, a_commit_is_checked_and_done_once);
	tcase_add_test(t, late_pushes_learn_whether_they_count);
	tcase_add_loop_test(t, steps_are_those_of_the_optimizer, 0, 6);
	tcase_add_test(t, client_gradients_stay_until_acknowledged);
	tcase_add_test(t, a_client_commit_waits_for_the_last_acknowledgement);
	tcase_add_test(t, a_fenced_session_acknowledges_nothing);
	suite_add_tcase(s, t);
	return s;
}
