/* SPDX-License-Identifier: Apache-2.0 */
/* The update: what it computes, and that an engine may die in any of its calls, any number of times. */
#include "update_job.h"

#include "engine/finite.h"
#include "support/suite.h"

#include <check.h>
#include <float.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

Suite *update_steps_suite(void);

/* LAMB's first phase over a range; multiplies the learning rate by the ratio. */
static void lamb_by_hand(const struct plan_range *r, const struct optim_group *g, const struct kernel_params *p,
			 struct kernel_update *u)
{
	uint64_t n = (r->count + KERNEL_BLOCK - 1) / KERNEL_BLOCK;
	double *sumsq[2] = { calloc(n, sizeof(double)), calloc(n, sizeof(double)) };
	kernels_get(NULL)->lamb_moments(p, (float *)mem.accum[0] + r->start, DTYPE_F32, r->count, u, NULL,
					&(struct kernel_lamb_norms){ sumsq[0], sumsq[1] });
	double trust = optim_trust_ratio(g, kernel_sum(sumsq[0], n), kernel_sum(sumsq[1], n));
	ck_assert(g->weight_decay == 0 ? trust == 1 : trust != 1);
	u->lr = (float)(0.1 * g->lr_scale * trust);
	free(sumsq[0]);
	free(sumsq[1]);
}

/* One kernel call over everything, by the plan's ranges: what an undisturbed update must equal. */
static void apply_by_hand(void)
{
	for (uint64_t i = 0; i < rig.plan->n_ranges; i++) {
		const struct plan_range *r = &plan_ranges(rig.plan)[i];
		const struct optim_group *g = &plan_optim_groups(rig.plan)[r->optim_group];
		struct kernel_params p;
		struct kernel_update u;
		if (g->frozen)
			continue;
		memory_params(&mem, r->dtype_group, r->start, &p);
		optim_step(&rig.plan->optim, g, 3, 0.1, 0.25, 0.2, &u);
		if (rig.plan->optim.type == OPTIM_LAMB)
			lamb_by_hand(r, g, &p, &u);
		optim_apply(kernels_get(NULL), &rig.plan->optim, &p, (float *)mem.accum[0] + r->start, DTYPE_F32,
			    r->count, &u, NULL, NULL);
	}
}

START_TEST(an_update_is_the_optimizer_over_all_ranges)
{
	struct rig_config c = _i % 2 ? rig_small() : rig_large();
	c.optim = optimizer(_i / 2 % N_OPTIMIZERS);
	c.no_master = _i / 2 / N_OPTIMIZERS % 2;
	c.frozen = 1u << 1 | 1u << 16;
	c.threads = 3;
	open_update(c, 3);
	struct image before = save_image();
	apply_by_hand();
	struct image want = save_image();
	load_image(&before);
	ck_assert(!equals_image(&want));
	update_begin(update, WINDOW);
	uint64_t digest = update_run(update, &record, &sum);
	ck_assert(equals_image(&want));
	ck_assert_uint_eq(digest, update_digest(update));
	ck_assert_uint_eq(digest, update_run(update, &record, &sum)); /* done is done */
	ck_assert(equals_image(&want));
	load_image(&before);
	ck_assert_uint_ne(digest, update_digest(update));
	free_image(&before);
	free_image(&want);
	close_update();
}
END_TEST

/* A table whose n-th optimizer call kills the process: before it, half way, or after it. */
static const struct kernels *real;
static _Atomic int calls_left;
static int where;

/* Is this call the one to die in? Those after it, in other threads, wait for death: how much a life gets done must not
 * depend on how long it takes to die. */
static bool is_last_call(void)
{
	int left = --calls_left;
	while (left < 0)
		pause();
	return left == 0;
}

static void dying(kernel_update_fn *apply, const struct kernel_params *p, const void *g, enum dtype acc, size_t n,
		  const struct kernel_update *u, const struct kernel_undo *undo, const struct kernel_partials *out)
{
	if (!is_last_call()) {
		apply(p, g, acc, n, u, undo, out);
		return;
	}
	if (where)
		apply(p, g, acc, where == 1 ? n / 2 / KERNEL_UNIT * KERNEL_UNIT : n, u, undo, out);
	raise(SIGKILL);
}

static void dying_sgd(const struct kernel_params *p, const void *g, enum dtype acc, size_t n,
		      const struct kernel_update *u, const struct kernel_undo *undo, const struct kernel_partials *out)
{
	dying(real->sgd, p, g, acc, n, u, undo, out);
}

static void dying_adam(const struct kernel_params *p, const void *g, enum dtype acc, size_t n,
		       const struct kernel_update *u, const struct kernel_undo *undo, const struct kernel_partials *out)
{
	dying(real->adam, p, g, acc, n, u, undo, out);
}

static void dying_adamw(const struct kernel_params *p, const void *g, enum dtype acc, size_t n,
			const struct kernel_update *u, const struct kernel_undo *undo,
			const struct kernel_partials *out)
{
	dying(real->adamw, p, g, acc, n, u, undo, out);
}

static void dying_lamb(const struct kernel_params *p, const void *g, enum dtype acc, size_t n,
		       const struct kernel_update *u, const struct kernel_undo *undo, const struct kernel_partials *out)
{
	dying(real->lamb, p, g, acc, n, u, undo, out);
}

static void dying_lamb_moments(const struct kernel_params *p, const void *g, enum dtype acc, size_t n,
			       const struct kernel_update *u, const struct kernel_undo *undo,
			       const struct kernel_lamb_norms *out)
{
	if (!is_last_call()) {
		real->lamb_moments(p, g, acc, n, u, undo, out);
		return;
	}
	if (where)
		real->lamb_moments(p, g, acc, where == 1 ? n / 2 / KERNEL_UNIT * KERNEL_UNIT : n, u, undo, out);
	raise(SIGKILL);
}

/* A life of the engine that goes on with the update and dies in its n-th call; true when it ended before that. */
static bool live(int n, int at)
{
	int status;
	pid_t pid = fork();
	if (pid == 0) {
		struct kernels table = *kernels_get(NULL);
		struct workers *w;
		struct update *u;
		real = kernels_get(NULL);
		calls_left = n;
		where = at;
		table.sgd = dying_sgd;
		table.adam = dying_adam;
		table.adamw = dying_adamw;
		table.lamb = dying_lamb;
		table.lamb_moments = dying_lamb_moments;
		if (workers_new(&w, rig.config.threads) || update_new(&u, &mem, &table, w))
			_exit(2);
		if (!update_can_resume(u, WINDOW))
			_exit(3);
		update_run(u, &record, &sum);
		_exit(0);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0);
	return WIFEXITED(status);
}

/* Dies once in one of the first calls, or in some of the later ones, at each of the three places, then finishes. */
START_TEST(an_update_survives_a_death_in_any_call)
{
	struct rig_config c = rig_small();
	c.optim = optimizer(_i % N_OPTIMIZERS);
	c.no_master = _i / N_OPTIMIZERS % 2;
	c.threads = 1 + (uint32_t)_i / N_OPTIMIZERS % 3;
	c.frozen = 1u << 19 | (_i % 2 ? 1u << 5 : 0);
	open_update(c, 1);
	struct image before = save_image();
	update_begin(update, WINDOW);
	uint64_t digest = update_run(update, &record, &sum);
	struct image want = save_image();
	int n = 1, deaths = 0;
	for (bool ended = false; !ended; n += 1 + n / 8)
		for (int at = 0; at < 3; at++) {
			begin_again(&before);
			ended = live(n, at);
			deaths += !ended;
			ck_assert(update_can_resume(update, WINDOW));
			ck_assert_uint_eq(update_run(update, &record, &sum), digest);
			ck_assert(equals_image(&want));
		}
	ck_assert_int_ge(deaths, 9);
	free_image(&before);
	free_image(&want);
	close_update();
}
END_TEST

/* Values that are not finite after the update, in each way: in the parameter, in its 16-bit copy alone, in v. A frozen
 * tensor may have them. How many elements, and the tensor of the first. */
static struct nonfinite plant(void)
{
	struct nonfinite n = { 0, UINT64_MAX };
	for (uint64_t i = 0; i < rig.plan->n_ranges; i++) {
		const struct plan_range *r = &plan_ranges(rig.plan)[i];
		bool frozen = plan_optim_groups(rig.plan)[r->optim_group].frozen;
		struct kernel_params p;
		if (n.count > 3 && !frozen)
			continue;
		memory_params(&mem, r->dtype_group, r->start, &p);
		if (p.p)
			p.p[3] = !p.p16 ? NAN : p.p16_dtype == DTYPE_F16 ? 1e6f : FLT_MAX;
		else
			((uint16_t *)p.p16)[3] = p.p16_dtype == DTYPE_F16 ? 0x7c00 : 0x7f80;
		if (p.v)
			p.v[5] = INFINITY;
		for (uint64_t t = 0; !frozen && !n.count && t < rig.plan->n_tensors; t++)
			if (plan_tensors(rig.plan)[t].alias < 0 && plan_tensors(rig.plan)[t].start == r->start)
				n.tensor = t;
		n.count += frozen ? 0 : p.v ? 2 : 1;
	}
	ck_assert_uint_ne(n.tensor, UINT64_MAX);
	return n;
}

static void check_found(const struct nonfinite *want)
{
	ck_assert(update_is_suspect(update));
	const struct nonfinite found = finite_find(&mem, kernels_get(NULL), workers);
	ck_assert_uint_eq(found.count, want->count);
	ck_assert_uint_eq(found.tensor, want->tensor);
}

/* The same whether the update ran once, or was resumed after a death anywhere. */
START_TEST(lost_values_are_found_however_the_update_ran)
{
	struct rig_config c = rig_small();
	c.optim = optimizer(_i % N_OPTIMIZERS);
	c.no_master = _i / N_OPTIMIZERS % 2;
	c.threads = 1 + (uint32_t)_i / N_OPTIMIZERS % 3;
	c.frozen = 1u << 19 | (_i % 2 ? 1u << 5 : 0);
	open_update(c, 1);
	record.commit_clip_value = 0;
	update_begin(update, WINDOW);
	update_run(update, &record, &sum);
	ck_assert(!update_is_suspect(update));
	ck_assert_uint_eq(finite_find(&mem, kernels_get(NULL), workers).count, 0);
	const struct nonfinite want = plant();
	struct image before = save_image();
	update_begin(update, WINDOW);
	update_run(update, &record, &sum);
	check_found(&want);
	for (int n = 1; n < 40; n += 1 + n / 4)
		for (int at = 0; at < 3; at++) {
			begin_again(&before);
			live(n, at);
			update_run(update, &record, &sum);
			check_found(&want);
		}
	free_image(&before);
	close_update();
}
END_TEST

/* Life after life dies in one of its first calls. A life that dies in its second has finished one; one of LAMB takes
 * the norms of all that is done before it can go on. */
START_TEST(an_update_survives_many_deaths)
{
	struct rig_config c = _i % 2 ? rig_large() : rig_small();
	bool lamb = _i >= 6;
	c.optim = optimizer(3 + lamb);
	c.threads = 1 + (uint32_t)_i % 3;
	open_update(c, 1);
	struct image before = save_image();
	update_begin(update, WINDOW);
	uint64_t digest = update_run(update, &record, &sum);
	struct image want = save_image();
	begin_again(&before);
	int lives = 0;
	for (bool ended = false; !ended; lives += !ended) {
		uint64_t most = lamb && lives > 2 ? 60 : 3;
		ck_assert_int_lt(lives, 1000);
		ended = live(1 + (int)(rig_mix((uint64_t)lives + 1000 * (uint64_t)_i) % most), lives % 3);
	}
	ck_assert_int_ge(lives, lamb ? 3 : 5);
	ck_assert(equals_image(&want));
	ck_assert_uint_eq(update_digest(update), digest);
	free_image(&before);
	free_image(&want);
	close_update();
}
END_TEST

START_TEST(foreign_stamps_are_no_progress)
{
	struct rig_config c = rig_small();
	open_update(c, 1);
	struct undo_stamp *s = control_page_stamp(&mem.page, 0);
	update_begin(update, WINDOW);
	ck_assert(update_can_resume(update, WINDOW));
	ck_assert(!update_can_resume(update, WINDOW + 1));
	uint64_t state = s->state;
	s->state = UINT64_MAX;
	ck_assert(!update_can_resume(update, WINDOW));
	s->state = control_page_stamp(&mem.page, 1)->state | UNDO_HELD; /* the neighbour's first chunk */
	ck_assert(!update_can_resume(update, WINDOW));
	s->state = state;
	ck_assert(update_can_resume(update, WINDOW));
	close_update();
}
END_TEST

/* Steps that the update tells of itself; workers.c tells of items without this symbol. */
static atomic_uint steps;
void __real_workers_note_step(struct workers *, uint32_t);
void __wrap_workers_note_step(struct workers *, uint32_t);

void __wrap_workers_note_step(struct workers *w, uint32_t worker)
{
	steps++;
	__real_workers_note_step(w, worker);
}

/* An update is one item of work for each thread: it is told for each piece that it gets on. */
START_TEST(each_piece_is_a_step)
{
	struct rig_config c = rig_large();
	open_update(c, 2);
	steps = 0;
	update_begin(update, WINDOW);
	update_run(update, &record, &sum);
	ck_assert_uint_ge(steps, 4 * rig.plan->threads); /* the work of each is cut */
	close_update();
}
END_TEST

int main(void)
{
	Suite *s = suite_create("update");
	TCase *t = tcase_create("update");
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, an_update_is_the_optimizer_over_all_ranges, 0, 4 * N_OPTIMIZERS);
	tcase_add_loop_test(t, an_update_survives_a_death_in_any_call, 0, 3 * N_OPTIMIZERS);
	tcase_add_loop_test(t, lost_values_are_found_however_the_update_ran, 0, 3 * N_OPTIMIZERS);
	tcase_add_loop_test(t, an_update_survives_many_deaths, 0, 12);
	tcase_add_test(t, foreign_stamps_are_no_progress);
	tcase_add_test(t, each_piece_is_a_step);
	suite_add_tcase(s, t);
	return suite_run(s, update_steps_suite());
}
