/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters on a device against the host's, bit for bit: initial values, several windows of passes and updates with
 * each optimizer, digests, norms, lost values; and an update that another life goes on with. */
#include "twin.h"

#include "support/suite.h"

#include <check.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 3

static const struct optim_config optimizers[] = {
	{ .type = OPTIM_SGD, .lr = 0.1, .weight_decay = 0.01 },
	{ .type = OPTIM_SGD, .lr = 0.1, .momentum = 0.9, .nesterov = true },
	{ .type = OPTIM_ADAM, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1 },
	{ .type = OPTIM_ADAMW, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1 },
	{ .type = OPTIM_LAMB, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.1 },
};
#define N_OPTIMIZERS ((int)(sizeof(optimizers) / sizeof(*optimizers)))

static const enum segment_role written[] = { SEG_PARAMS, SEG_MASTER, SEG_STATE0, SEG_STATE1 };

static void same(struct twin *t, bool nans)
{
	for (size_t i = 0; i < sizeof(written) / sizeof(*written); i++)
		if (plan_role_bytes(t->rig.plan, written[i]))
			twin_same(t, written[i], nans);
}

static struct rig_config config(int i)
{
	struct rig_config c = rig_small();
	c.optim = optimizers[i % N_OPTIMIZERS];
	c.no_master = i / N_OPTIMIZERS % 2;
	c.frozen = i % 3 == 0 ? 1u << 3 | 1u << 16 : 0;
	c.init = (struct init_rule){ .type = INIT_NORMAL, .a = 0, .b = 0.5 };
	return c;
}

static void check_params(const struct arith_params *host, const struct arith_params *device, bool lost)
{
	if (!lost) /* NaNs may differ */
		ck_assert_uint_eq(device->digest, host->digest);
	ck_assert_uint_eq(device->nonfinite.count, host->nonfinite.count);
	ck_assert_uint_eq(device->nonfinite.tensor, host->nonfinite.tensor);
	ck_assert_int_eq(host->nonfinite.count > 0, lost);
}

/* Moments that would move also what gets no gradient. */
static void give_state(struct twin *t, enum segment_role role)
{
	const uint64_t n = plan_role_bytes(t->rig.plan, role) / sizeof(float);
	float *values = n ? rig_data(&t->rig, role, 0) : NULL;
	for (uint64_t i = 0; i < n; i++)
		values[i] = (float)(rig_mix(i + role) % 1000 + 1) / 1000;
	if (n)
		twin_give(t, role);
}

static void count(void *n)
{
	++*(unsigned *)n;
}

static void begin(struct twin *t, const struct rig_config *c)
{
	struct arith_params a, b;
	unsigned signs = 0;
	twin_open(t, c);
	give_state(t, SEG_STATE0);
	give_state(t, SEG_STATE1);
	OK(t->host->ops->init(t->host));
	t->cuda->at_work = count;
	t->cuda->at_work_arg = &signs;
	OK(t->cuda->ops->init(t->cuda));
	t->cuda->at_work = NULL;
	ck_assert_uint_gt(signs, 0);
	same(t, false);
	OK(t->host->ops->inspect_params(t->host, &a));
	OK(t->cuda->ops->inspect_params(t->cuda, &b));
	check_params(&a, &b, false);
}

static void add_all(struct twin *t, uint64_t seed, float special)
{
	struct arith_source s[4];
	for (uint32_t i = 0; i < 4; i++) {
		rig_fill_slot(&t->rig, i, seed * 10 + i);
		if (i == 2 && special != 0)
			rig_set_gradient(&t->rig, i, 5, 777, special);
		twin_give_slot(t, i);
		s[i] = (struct arith_source){ i, 0.5, NULL };
	}
	twin_add(t, 0, 0, true, s, 2, false);
	twin_add(t, 1, 0, false, s + 2, 2, true);
}

static struct control_record record(uint64_t step)
{
	return (struct control_record){ .window = step,
					.commit_window = step,
					.commit_applied_step = step,
					.commit_scale = 0.25,
					.commit_lr = 0.1,
					.commit_clip_value = step % 2 ? 0.2 : 0 };
}

static void step(struct twin *t, uint64_t n, bool lost)
{
	const struct control_record r = record(n);
	struct arith_params a, b;
	bool can = false;
	OK(t->host->ops->update_begin(t->host, n));
	OK(t->cuda->ops->update_begin(t->cuda, n));
	OK(t->cuda->ops->update_can_resume(t->cuda, n, &can));
	ck_assert(can);
	OK(t->cuda->ops->update_can_resume(t->cuda, n + 1, &can));
	ck_assert(!can);
	OK(t->host->ops->update_run(t->host, &r, 1, &a));
	OK(t->cuda->ops->update_run(t->cuda, &r, 1, &b));
	check_params(&a, &b, lost);
	same(t, lost);
	OK(t->cuda->ops->update_run(t->cuda, &r, 1, &b)); /* done is done */
	check_params(&a, &b, lost);
	same(t, lost);
}

/* Rows of both, which share the page. */
static void norms(struct twin *t, uint32_t half)
{
	const size_t bytes = t->rig.plan->n_tensors * sizeof(struct tensor_norm);
	struct tensor_norm *row = control_page_norms(&t->mem.page), *host = malloc(bytes);
	OK(t->host->ops->norms(t->host, half));
	memcpy(host, row, bytes);
	for (uint64_t i = 0; i < t->rig.plan->n_tensors; i++)
		if (plan_tensors(t->rig.plan)[i].alias < 0)
			row[i] = (struct tensor_norm){ -1, -1 };
	OK(t->cuda->ops->norms(t->cuda, half));
	ck_assert_mem_eq(row, host, bytes);
	free(host);
}

START_TEST(steps_have_the_bits_of_the_host)
{
	const struct rig_config c = config(_i);
	struct twin t;
	twin_environment((uint64_t)_i);
	begin(&t, &c);
	for (uint64_t n = 1; n <= STEPS; n++) {
		add_all(&t, (uint64_t)_i * 100 + n, 0);
		step(&t, n, false);
		norms(&t, 1);
	}
	norms(&t, ARITH_NO_HALF);
	twin_close(&t);
}
END_TEST

START_TEST(lost_values_are_counted_and_named)
{
	const struct rig_config c = config(_i);
	struct twin t;
	struct arith_params a, b;
	twin_environment(3);
	begin(&t, &c);
	add_all(&t, 1, _i % 2 ? NAN : INFINITY);
	step(&t, 2, true); /* which clips nothing: an inf would be a number then */
	OK(t.host->ops->inspect_params(t.host, &a));
	OK(t.cuda->ops->inspect_params(t.cuda, &b));
	check_params(&a, &b, true);
	twin_close(&t);
}
END_TEST

/* Parameters through a slot, in portions that begin and end anywhere. */
START_TEST(uploaded_parameters_are_those_of_the_host)
{
	const struct rig_config c = config(_i);
	struct twin t;
	uint64_t offset = 0;
	twin_environment(2);
	begin(&t, &c);
	for (uint64_t k = 0; offset < t.rig.plan->param_bytes; k++) {
		const uint64_t left = t.rig.plan->param_bytes - offset, n = 1 + rig_mix(k) % 20000;
		const uint64_t bytes = n < left ? n : left;
		for (uint64_t i = 0; i < t.rig.plan->slot_bytes; i++)
			t.mem.slot[1][i] = (unsigned char)(rig_mix(k * 1000003 + i) & 0x3f);
		twin_give_slot(&t, 1);
		OK(t.host->ops->put(t.host, 1, offset, bytes));
		OK(t.cuda->ops->put(t.cuda, 1, offset, bytes));
		offset += bytes;
	}
	same(&t, false);
	twin_close(&t);
}
END_TEST

/* Another life, on the same descriptors. */
static void next_life(struct twin *t, bool others_are_over)
{
	char why[200] = "";
	int fds[64];
	struct cuda_memory m;
	for (int i = 0; i < t->memory.n; i++)
		fds[i] = fcntl(t->memory.arena[i].fd, F_DUPFD_CLOEXEC, 0);
	OK(cuda_memory_adopt(&m, &t->device, t->rig.plan, RIG_GENERATION, fds, t->memory.n, why, sizeof(why)));
	t->cuda->ops->close(t->cuda);
	cuda_memory_fini(&t->memory);
	t->memory = m;
	ck_assert_msg(arith_cuda_open(&t->cuda, &t->memory, &t->mem.page, others_are_over, TWIN_QUIET_NS, why,
				      sizeof(why)) == ST_OK,
		      "%s", why);
}

START_TEST(another_life_goes_on_with_what_was_begun)
{
	const struct rig_config c = config(_i);
	const struct control_record r = record(1);
	struct arith_params a, b;
	struct twin t;
	bool can = false;
	twin_environment((uint64_t)_i + 1);
	begin(&t, &c);
	add_all(&t, 1, 0);
	OK(t.host->ops->update_begin(t.host, 1));
	OK(t.host->ops->update_run(t.host, &r, 1, &a));
	OK(t.cuda->ops->update_begin(t.cuda, 1));
	next_life(&t, false);
	OK(t.cuda->ops->update_can_resume(t.cuda, 1, &can));
	ck_assert(can);
	OK(t.cuda->ops->update_run(t.cuda, &r, 1, &b));
	check_params(&a, &b, false);
	next_life(&t, false); /* after the last store, before anybody heard */
	OK(t.cuda->ops->update_run(t.cuda, &r, 1, &b));
	check_params(&a, &b, false);
	same(&t, false);
	twin_close(&t);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("cuda_update");
	TCase *t = tcase_create("update");
	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, steps_have_the_bits_of_the_host, 0, 2 * N_OPTIMIZERS);
	tcase_add_loop_test(t, lost_values_are_counted_and_named, 3, 3 + N_OPTIMIZERS); /* with masters, and without */
	tcase_add_loop_test(t, uploaded_parameters_are_those_of_the_host, 0, 2);
	tcase_add_loop_test(t, another_life_goes_on_with_what_was_begun, 0, N_OPTIMIZERS);
	suite_add_tcase(s, t);
	return suite_run(s);
}
