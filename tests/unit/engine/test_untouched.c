/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs with untouched: skip, in real engines. A tensor that some windows have not touched must end with the bits that
 * it has in a job that steps everything and never had those windows; the others with those of one that had them all. */
#include "parts_rig.h"
#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WINDOWS = 6, MICROS = 4, PARTS = 3, HEAD = 3 };

Suite *touched_suite(void);

/* Which micro-batches of a window touch HEAD (bit i: number i); window 3 is one that nothing else touches either. */
static const unsigned with_head[WINDOWS] = { 0xf, 0, 0x8, 0, 0x2, 0xf };
#define ALL_BUT_HEAD 0x36 /* and tensor 0, which is touched through its alias, 4 */

/* How a job is run. */
struct way {
	bool skip, without; /* without: leaves out the windows that do not touch HEAD */
	bool kill;
	uint32_t n_parts, n_shards;
};

struct image {
	void *data[4];
	uint64_t bytes[4];
	uint64_t head, head_end; /* elements */
};

static struct optim_config optimizer(int i)
{
	static const struct optim_config all[] = {
		{ .type = OPTIM_ADAMW, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1 },
		{ .type = OPTIM_SGD, .lr = 0.1, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.1 },
		{ .type = OPTIM_LAMB, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.1 },
		{ .type = OPTIM_ADAM, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1 },
	};
	return all[i];
}

static const uint32_t roles[] = { SEG_PARAMS, SEG_MASTER, SEG_STATE0, SEG_STATE1 };

static struct rig_config job_of(int i, const struct way *w)
{
	struct rig_config c = rig_small();
	c.optim = optimizer(i % 4);
	c.skip_untouched = w->skip;
	c.reject_nonfinite = true;
	c.n_shards = w->n_shards;
	return c;
}

static struct image take(const struct rig *r)
{
	const struct plan_tensor *t = plan_tensors(r->plan);
	struct image i = { .head = t[HEAD].start, .head_end = t[HEAD].start + t[HEAD].count };
	for (int k = 0; k < 4; k++) {
		i.bytes[k] = plan_role_bytes(r->plan, (enum segment_role)roles[k]);
		i.data[k] = i.bytes[k] ? malloc(i.bytes[k]) : NULL;
		if (i.bytes[k])
			memcpy(i.data[k], rig_data(r, roles[k], 0), i.bytes[k]);
	}
	return i;
}

static void drop(struct image *i)
{
	for (int k = 0; k < 4; k++)
		free(i->data[k]);
}

static void push(struct rig *r, uint32_t micro, unsigned present, uint64_t seed)
{
	const uint32_t rank = micro / 2;
	const unsigned char bits[] = { (unsigned char)present };
	struct engine_command c = rig_add_command(r, rank, micro % 2, 1 + 0.25 * micro);
	struct engine_answer a;
	c.n_present = 1;
	rig_fill_slot(r, c.slot, seed);
	rig_send_with(r, c, bits);
	ck_assert(rig_receive(r, &a));
	ck_assert_msg(a.result == COUNTED, "%u %s", a.status, a.text);
}

static void die(struct rig *r, const struct way *w)
{
	if (!w->kill)
		return;
	rig_kill(r);
	ck_assert_uint_eq(rig_start(r).status, ST_OK);
}

static void push_window(struct rig *r, const struct way *w, uint64_t window)
{
	for (uint32_t k = 0; k < MICROS; k++) {
		const uint32_t micro = k % 2 * 2 + k / 2; /* canonical order */
		push(r, micro, ALL_BUT_HEAD | (with_head[window] >> micro & 1) << HEAD, 100 * window + micro + 1);
		if (k == 2)
			die(r, w);
	}
}

/* COMMIT, and death at some moment of it. */
static void commit(struct rig *r, const struct way *w, uint64_t window)
{
	if (!w->kill) {
		rig_step(r, APPLIED, 0.5, 0.1);
		return;
	}
	rig_close_window(r);
	ck_assert_uint_eq(rig_go(r, 1).status, ST_OK);
	const struct engine_command c = rig_commit_command(r, APPLIED, 0.5, 0.1);
	const uint64_t before = r->window;
	rig_send(r, c);
	usleep((useconds_t)(window * 60));
	die(r, w);
	if (r->window == before) /* it died before it had the command */
		ck_assert_uint_eq(rig_call(r, c).status, ST_OK);
	r->window = before + 1;
	r->applied_step++;
}

static struct image run(int i, const struct way w)
{
	struct rig r;
	rig_begin(&r, job_of(i, &w));
	rig_zero_params(&r);
	for (uint64_t window = 0; window < WINDOWS; window++) {
		if (w.without && !with_head[window])
			continue;
		push_window(&r, &w, window);
		commit(&r, &w, window);
	}
	struct image out = take(&r);
	rig_close(&r);
	return out;
}

/* Elements [from, end) of the arena, of all roles; all: everything but those. */
static void expect_same(const struct rig_config *c, const struct image *is, const struct image *want, bool head)
{
	struct rig r;
	rig_open(&r, c);
	for (int k = 0; k < 4; k++) {
		const char *a = is->data[k], *b = want->data[k];
		for (uint64_t i = 0; i < is->bytes[k]; i++) {
			const uint32_t g = plan_tensors(r.plan)[HEAD].dtype_group;
			const struct arena_group *at = &r.plan->group[g];
			const uint64_t size = k ? 4 : dtype_size(at->param_dtype);
			const uint64_t from = k ? is->head * 4 : at->param_offset + (is->head - at->start) * size;
			const bool inside = i >= from && i < from + (is->head_end - is->head) * size;
			if (inside == head)
				ck_assert_msg(a[i] == b[i], "role %u, byte %llu", roles[k], (unsigned long long)i);
		}
	}
	rig_close(&r);
}

static void check_against_jobs_that_step_all(int i, struct image is)
{
	const struct rig_config c = job_of(i, &(struct way){ .skip = true });
	struct image all = run(i, (struct way){ 0 }), without = run(i, (struct way){ .without = true });
	expect_same(&c, &is, &all, false);
	expect_same(&c, &is, &without, true);
	ck_assert(memcmp(without.data[1], all.data[1], all.bytes[1]) != 0); /* those windows would matter */
	drop(&all);
	drop(&without);
	drop(&is);
}

START_TEST(a_tensor_has_the_bits_of_a_job_without_the_windows_that_have_not_touched_it)
{
	check_against_jobs_that_step_all(_i, run(_i, (struct way){ .skip = true }));
}
END_TEST

START_TEST(also_when_engines_die_between_pushes_and_in_updates)
{
	check_against_jobs_that_step_all(_i, run(_i, (struct way){ .skip = true, .kill = true }));
}
END_TEST

static float *head_of(const struct rig *r)
{
	return (float *)rig_data(r, SEG_MASTER, 0) + plan_tensors(r->plan)[HEAD].start;
}

/* HEAD comes with a micro-batch that is refused, in one pass with others. */
START_TEST(a_void_micro_batch_touches_nothing)
{
	struct rig r;
	struct engine_answer a;
	const struct way w = { .skip = true };
	const unsigned char with[] = { ALL_BUT_HEAD | 1u << HEAD }, without[] = { ALL_BUT_HEAD };
	struct rig_config c = job_of(0, &w);
	rig_begin(&r, c);
	rig_zero_params(&r);
	push_window(&r, &w, 0);
	commit(&r, &w, 0);
	const float before = head_of(&r)[7];
	rig_fill_all(&r, 5, false);
	rig_set_gradient(&r, 2, HEAD, 7, _i ? NAN : 1);
	static const uint32_t order[] = { 2, 0, 3, 1 }; /* the first one waits for its turn */
	for (int k = 0; k < MICROS; k++) {
		struct engine_command p = rig_add_command(&r, order[k] / 2, order[k] % 2, 1);
		p.n_present = 1;
		rig_send_with(&r, p, order[k] == 2 ? with : without);
	}
	for (int k = 0; k < MICROS; k++) {
		ck_assert(rig_receive(&r, &a));
		ck_assert_uint_eq(a.result, a.rank == 1 && a.nonfinite_count ? VOID : COUNTED);
	}
	commit(&r, &w, 1);
	ck_assert(before != 0);
	ck_assert((head_of(&r)[7] == before) == !!_i);
	rig_close(&r);
}
END_TEST

/* Nothing is committed, so no step is left out. */
START_TEST(a_window_that_is_skipped_leaves_no_tensor_behind)
{
	struct rig r;
	const struct way w = { .skip = true };
	rig_begin(&r, job_of(0, &w));
	rig_zero_params(&r);
	push_window(&r, &w, 1);
	rig_step(&r, SKIPPED, 0.5, 0.1);
	push_window(&r, &w, 0);
	commit(&r, &w, 0);
	struct image is = take(&r);
	rig_close(&r);
	struct rig s;
	rig_begin(&s, job_of(0, &(struct way){ 0 }));
	rig_zero_params(&s);
	push_window(&s, &w, 0);
	commit(&s, &w, 0);
	struct image want = take(&s);
	for (int k = 0; k < 4; k++)
		ck_assert(!is.bytes[k] || !memcmp(is.data[k], want.data[k], is.bytes[k]));
	drop(&is);
	drop(&want);
	rig_close(&s);
}
END_TEST

/* ---- several parts ---- */

/* HEAD is touched by one rank of part 2 in window 2, and by nobody in windows 1 and 3. */
static unsigned parts_head(uint64_t window, uint32_t part)
{
	return with_head[window] == 0xf ? 0xf : part == 2 ? with_head[window] : 0;
}

static struct image run_parts(int i, const struct way w)
{
	struct parts p;
	const struct rig_config c = job_of(i, &w);
	parts_open(&p, PARTS, &c);
	parts_start(&p);
	for (uint32_t s = 0; s < PARTS; s++) {
		rig_attach_all(&p.rig[s]);
		rig_zero_params(&p.rig[s]);
	}
	uint64_t k = 1;
	parts_join(&p, k);
	for (uint64_t window = 0; window < WINDOWS; window++) {
		uint64_t attempt = 1;
		if (w.without && !with_head[window])
			continue;
		for (uint32_t s = window == 1; s < PARTS; s++) /* part 0 gives nothing to the second window */
			for (uint32_t m = 0; m < MICROS; m++) {
				const uint32_t micro = m % 2 * 2 + m / 2;
				push(&p.rig[s], micro, ALL_BUT_HEAD | (parts_head(window, s) >> micro & 1) << HEAD,
				     1000 * s + 100 * window + micro + 1);
			}
		parts_vote_all(&p, attempt);
		if (w.kill && window % 2) { /* the sum is taken once more, into the same half */
			parts_new_life(&p, (uint32_t)window % PARTS);
			parts_join(&p, ++k);
			parts_vote_all(&p, ++attempt);
		}
		parts_commit_all(&p, attempt, APPLIED);
	}
	struct image out = take(&p.rig[1]);
	parts_close(&p);
	return out;
}

static void check_parts(int i, struct image is)
{
	const struct rig_config c = job_of(i, &(struct way){ .skip = true });
	struct image all = run_parts(i, (struct way){ 0 }), without = run_parts(i, (struct way){ .without = true });
	expect_same(&c, &is, &all, false);
	expect_same(&c, &is, &without, true);
	drop(&all);
	drop(&without);
	drop(&is);
}

START_TEST(parts_agree_on_what_any_of_them_has_touched)
{
	check_parts(_i, run_parts(_i, (struct way){ .skip = true }));
}
END_TEST

START_TEST(also_when_engines_die_after_the_vote)
{
	check_parts(_i, run_parts(_i, (struct way){ .skip = true, .kill = true }));
}
END_TEST

/* Each part's shard of the state, and all of the parameters. */
START_TEST(a_sharded_job_has_the_same_parameters)
{
	struct image is = run_parts(_i, (struct way){ .skip = true, .n_shards = PARTS });
	struct image want = run_parts(_i, (struct way){ .skip = true });
	ck_assert_uint_eq(is.bytes[0], want.bytes[0]);
	ck_assert_mem_eq(is.data[0], want.data[0], is.bytes[0]);
	drop(&is);
	drop(&want);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("untouched");
	TCase *t = tcase_create("untouched");
	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, a_tensor_has_the_bits_of_a_job_without_the_windows_that_have_not_touched_it, 0, 4);
	tcase_add_loop_test(t, also_when_engines_die_between_pushes_and_in_updates, 0, 4);
	tcase_add_loop_test(t, a_void_micro_batch_touches_nothing, 0, 2);
	tcase_add_test(t, a_window_that_is_skipped_leaves_no_tensor_behind);
	tcase_add_loop_test(t, parts_agree_on_what_any_of_them_has_touched, 0, 2);
	tcase_add_loop_test(t, also_when_engines_die_after_the_vote, 0, 2);
	tcase_add_loop_test(t, a_sharded_job_has_the_same_parameters, 0, 2);
	suite_add_tcase(s, t);
	return suite_run(s, touched_suite());
}
