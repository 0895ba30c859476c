/* SPDX-License-Identifier: Apache-2.0 */
/* The update: what it computes, and that an engine may die in it between any two instructions, any number of times. */
#include "engine/finite.h"
#include "engine/update.h"
#include "rig.h"
#include "support/suite.h"

#include <check.h>
#include <float.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define WINDOW 5

static struct rig rig;
static struct memory mem;
static struct workers *workers;
static struct update *update;
static struct control_record record;

static const uint32_t roles[] = { SEG_PARAMS, SEG_MASTER, SEG_STATE0, SEG_STATE1 };
#define N_ROLES 4

/* Bytes of all segments that an update writes. */
struct image {
	void *data[N_ROLES];
};

static bool has_role(uint32_t role)
{
	struct plan_segment s[64];
	int n = plan_segments(rig.plan, s, 64);
	for (int i = 0; i < n; i++)
		if (s[i].role == role)
			return true;
	return false;
}

static struct image save_image(void)
{
	struct image image = { { NULL } };
	for (int i = 0; i < N_ROLES; i++)
		if (has_role(roles[i])) {
			image.data[i] = malloc(rig_bytes(&rig, roles[i], 0));
			memcpy(image.data[i], rig_data(&rig, roles[i], 0), rig_bytes(&rig, roles[i], 0));
		}
	return image;
}

static void load_image(const struct image *image)
{
	for (int i = 0; i < N_ROLES; i++)
		if (image->data[i])
			memcpy(rig_data(&rig, roles[i], 0), image->data[i], rig_bytes(&rig, roles[i], 0));
}

static bool equals_image(const struct image *image)
{
	for (int i = 0; i < N_ROLES; i++)
		if (image->data[i] && memcmp(rig_data(&rig, roles[i], 0), image->data[i], rig_bytes(&rig, roles[i], 0)))
			return false;
	return true;
}

static void free_image(struct image *image)
{
	for (int i = 0; i < N_ROLES; i++)
		free(image->data[i]);
}

static void fill_floats(float *at, uint64_t n, uint64_t seed, bool positive)
{
	for (uint64_t i = 0; at && i < n; i++) {
		float v = (float)(int32_t)rig_mix(seed + i) * 0x1p-31f;
		at[i] = positive ? fabsf(v) : v;
	}
}

static struct optim_config optimizer(int i)
{
	static const struct optim_config all[] = {
		{ .type = OPTIM_SGD, .lr = 0.1, .weight_decay = 0.01 },
		{ .type = OPTIM_SGD, .lr = 0.1, .momentum = 0.9, .nesterov = true },
		{ .type = OPTIM_ADAM, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1 },
		{ .type = OPTIM_ADAMW, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1 },
		{ .type = OPTIM_LAMB, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.1 },
	};
	return all[i];
}
#define N_OPTIMIZERS 5

/* n workers: 1 in tests that fork, since a process with threads should not */
static void open_update(struct rig_config c, uint32_t n)
{
	char why[200];
	rig_open(&rig, &c);
	mem = MEMORY_NONE;
	ck_assert_int_eq(memory_take(&mem, dup(rig.plan_fd), RIG_GENERATION, why, sizeof(why)), ST_OK);
	for (int i = 0; i < rig.n_segments; i++)
		ck_assert_int_eq(memory_take(&mem, dup(rig.segment[i].fd), RIG_GENERATION, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(memory_missing(&mem), 0);
	ck_assert_int_eq(workers_new(&workers, n), ST_OK);
	ck_assert_int_eq(update_new(&update, &mem, kernels_get(NULL), workers), ST_OK);
	uint64_t size = rig.plan->n_elements;
	fill_floats((float *)mem.accum[0], size, 1, false);
	fill_floats(mem.master, size, 2, false);
	fill_floats(mem.state[0], size, 3, false);
	fill_floats(mem.state[1], size, 4, true);
	for (uint32_t g = 0; g < rig.plan->n_groups; g++) {
		const struct arena_group *group = &rig.plan->group[g];
		float *value = malloc(group->count * sizeof(float));
		fill_floats(value, group->count, 5 + g, false);
		if (group->param_dtype == DTYPE_F32)
			memcpy(mem.params + group->param_offset, value, group->count * sizeof(float));
		else
			kernels_get(NULL)->from_f32(mem.params + group->param_offset, group->param_dtype, value,
						    group->count);
		free(value);
	}
	record = (struct control_record){ .window = WINDOW,
					  .commit_window = WINDOW,
					  .commit_applied_step = 3,
					  .commit_scale = 0.25,
					  .commit_lr = 0.1,
					  .commit_clip_value = 0.2 };
}

static void close_update(void)
{
	update_free(update);
	workers_free(workers);
	memory_fini(&mem);
	rig_close(&rig);
}

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
	uint64_t digest = update_run(update, &record, mem.accum[0]);
	ck_assert(equals_image(&want));
	ck_assert_uint_eq(digest, update_digest(update));
	ck_assert_uint_eq(digest, update_run(update, &record, mem.accum[0])); /* done is done */
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
		update_run(u, &record, mem.accum[0]);
		_exit(0);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0);
	return WIFEXITED(status);
}

/* As before the update, with nothing left of an earlier one that could help. */
static void begin_again(const struct image *before)
{
	load_image(before);
	update_begin(update, WINDOW);
	memset(control_page_trust(&mem.page), 0x5a, rig.plan->n_tensors * sizeof(double));
	for (uint32_t i = 0; i < rig.page.shares; i++)
		memset(control_page_undo(&mem.page, i), 0x5a, UNDO_AREA_BYTES);
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
	uint64_t digest = update_run(update, &record, mem.accum[0]);
	struct image want = save_image();
	int n = 1, deaths = 0;
	for (bool ended = false; !ended; n += 1 + n / 8)
		for (int at = 0; at < 3; at++) {
			begin_again(&before);
			ended = live(n, at);
			deaths += !ended;
			ck_assert(update_can_resume(update, WINDOW));
			ck_assert_uint_eq(update_run(update, &record, mem.accum[0]), digest);
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
	update_run(update, &record, mem.accum[0]);
	ck_assert(!update_is_suspect(update));
	ck_assert_uint_eq(finite_find(&mem, kernels_get(NULL), workers).count, 0);
	const struct nonfinite want = plant();
	struct image before = save_image();
	update_begin(update, WINDOW);
	update_run(update, &record, mem.accum[0]);
	check_found(&want);
	for (int n = 1; n < 40; n += 1 + n / 4)
		for (int at = 0; at < 3; at++) {
			begin_again(&before);
			live(n, at);
			update_run(update, &record, mem.accum[0]);
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
	uint64_t digest = update_run(update, &record, mem.accum[0]);
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

/* What a death would leave: the memory of a stopped process, the control segment with it. */
struct moment {
	struct image image;
	void *control;
};

static struct moment save_moment(void)
{
	size_t bytes = rig_bytes(&rig, SEG_CONTROL, 0);
	struct moment m = { save_image(), malloc(bytes) };
	memcpy(m.control, rig_data(&rig, SEG_CONTROL, 0), bytes);
	return m;
}

#define LIVE 1024 /* elements at the start of a dtype group that an update of tiny() may change */

/* Looks at these only: there are tens of thousands of moments to look at. */
static bool equals_moment(const struct moment *m)
{
	if (memcmp(m->control, rig_data(&rig, SEG_CONTROL, 0), rig_bytes(&rig, SEG_CONTROL, 0)))
		return false;
	for (uint32_t g = 0; g < rig.plan->n_groups; g++)
		for (int i = 0; i < N_ROLES; i++) {
			const struct arena_group *group = &rig.plan->group[g];
			bool own = roles[i] == SEG_PARAMS;
			size_t size = own ? dtype_size(group->param_dtype) : sizeof(float);
			size_t at = own ? group->param_offset : group->start * size;
			if (m->image.data[i] && memcmp((char *)m->image.data[i] + at,
						       (char *)rig_data(&rig, roles[i], 0) + at, LIVE * size))
				return false;
		}
	return true;
}

static void load_moment(const struct moment *m)
{
	load_image(&m->image);
	memcpy(rig_data(&rig, SEG_CONTROL, 0), m->control, rig_bytes(&rig, SEG_CONTROL, 0));
}

static void free_moment(struct moment *m)
{
	free_image(&m->image);
	free(m->control);
}

/* A process that stops right before its update. */
static pid_t stopped_life(const struct kernels *table)
{
	int status;
	pid_t pid = fork();
	if (pid == 0) {
		struct workers *w;
		struct update *u;
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) || workers_new(&w, 1) || update_new(&u, &mem, table, w))
			_exit(2);
		raise(SIGSTOP);
		update_run(u, &record, mem.accum[0]);
		_exit(0);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_msg(WIFSTOPPED(status), "status %#x: may processes here trace their children?", (unsigned)status);
	return pid;
}

/* One instruction; false at the end of the life. */
static bool step(pid_t pid)
{
	int status;
	ck_assert_int_eq(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFSTOPPED(status) || WEXITSTATUS(status) == 0);
	return WIFSTOPPED(status);
}

/* Goes on from every state of the memory that the life passes through, then lets it take the next step. */
static int follow(pid_t pid, const struct image *want, uint64_t digest)
{
	int moments = 0;
	struct moment last = save_moment();
	while (step(pid)) {
		if (equals_moment(&last))
			continue;
		free_moment(&last);
		last = save_moment();
		moments++;
		ck_assert(update_can_resume(update, WINDOW));
		ck_assert_uint_eq(update_run(update, &record, mem.accum[0]), digest);
		ck_assert(equals_image(want));
		load_moment(&last);
	}
	free_moment(&last);
	return moments;
}

#define SHORT 11
#ifdef __has_feature
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

/* Few elements, because every instruction costs two context switches, but so many ranges that a share has several: one
 * of three units, short ones whose groups alternate, and of each dtype a frozen rest. Numbers of neighbours in a share
 * have the same parity. */
static struct rig_config tiny(void)
{
	static const char *const names[SHORT] = { "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l" };
	struct rig_config c = rig_small();
	int n = 0;
	c.tensor[n++] = (struct tensor_spec){ .name = "a", .dtype = DTYPE_F32, .n_dims = 1, .shape = { 131 } };
	for (int i = 0; i < SHORT; i++) {
		c.frozen |= i % 2 ? 0 : 1u << (16 + n);
		c.tensor[n++] =
			(struct tensor_spec){ .name = names[i], .dtype = DTYPE_F32, .n_dims = 1, .shape = { 33 } };
	}
	c.tensor[n++] = (struct tensor_spec){ .name = "x", .dtype = DTYPE_F16, .n_dims = 1, .shape = { 90 } };
	c.frozen |= 1u << n;
	c.tensor[n++] = (struct tensor_spec){ .name = "frozen16", .dtype = DTYPE_F16, .n_dims = 1, .shape = { 900 } };
	c.tensor[n++] = (struct tensor_spec){ .name = "y", .dtype = DTYPE_BF16, .n_dims = 1, .shape = { 70 } };
	c.frozen |= 1u << n;
	c.tensor[n++] = (struct tensor_spec){ .name = "frozenb", .dtype = DTYPE_BF16, .n_dims = 1, .shape = { 900 } };
	c.n_tensors = n;
	c.threads = 1;
	return c;
}
#define TINY_UNITS (3 + SHORT + 2 + 2)

/* The fast tables take turns; what is left over from their whole units goes through the reference. */
START_TEST(an_update_survives_a_death_between_any_two_instructions)
{
	const struct kernels *const *table;
	struct rig_config c = tiny();
	int n_tables = kernels_list(&table);
	c.optim = optimizer(_i % N_OPTIMIZERS);
	c.no_master = _i / N_OPTIMIZERS % 2;
	open_update(c, 1);
	struct image before = save_image();
	update_begin(update, WINDOW);
	uint64_t digest = update_run(update, &record, mem.accum[0]);
	struct image want = save_image();
	ck_assert(!equals_image(&before));
	begin_again(&before);
	int moments = follow(stopped_life(table[n_tables > 1 ? 1 + _i % (n_tables - 1) : 0]), &want, digest);
	ck_assert_int_ge(moments, 3 * TINY_UNITS);
	ck_assert(equals_image(&want));
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

int main(void)
{
	Suite *s = suite_create("update");
	TCase *t = tcase_create("update");
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, an_update_is_the_optimizer_over_all_ranges, 0, 4 * N_OPTIMIZERS);
	tcase_add_loop_test(t, an_update_survives_a_death_in_any_call, 0, 3 * N_OPTIMIZERS);
	tcase_add_loop_test(t, lost_values_are_found_however_the_update_ran, 0, 3 * N_OPTIMIZERS);
	tcase_add_loop_test(t, an_update_survives_many_deaths, 0, 12);
	if (!SANITIZED) /* whose instructions are twenty times as many, and none of ours */
		tcase_add_loop_test(t, an_update_survives_a_death_between_any_two_instructions, 0, 2 * N_OPTIMIZERS);
	tcase_add_test(t, foreign_stamps_are_no_progress);
	suite_add_tcase(s, t);
	return suite_run(s);
}
