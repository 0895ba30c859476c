/* SPDX-License-Identifier: Apache-2.0 */
/* An update that dies between any two instructions: a process that is traced through it, one after the other. */
#include "update_job.h"

#include <check.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

Suite *update_steps_suite(void);

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
		update_run(u, &record, &sum);
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
		ck_assert_uint_eq(update_run(update, &record, &sum), digest);
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
	uint64_t digest = update_run(update, &record, &sum);
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

Suite *update_steps_suite(void)
{
	Suite *s = suite_create("update_steps");
	TCase *t = tcase_create("update_steps");
	tcase_set_timeout(t, 60);
	if (!SANITIZED) /* whose instructions are twenty times as many, and none of ours */
		tcase_add_loop_test(t, an_update_survives_a_death_between_any_two_instructions, 0, 2 * N_OPTIMIZERS);
	suite_add_tcase(s, t);
	return s;
}
