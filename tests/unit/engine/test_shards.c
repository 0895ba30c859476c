/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of a sharded job: real engines over Gloo; the test is gaccd and the coordinator. The bits of each step are
 * those of the same parts unsharded, also when engines die between record and next window. */
#include "engine/process.h"
#include "parts_rig.h"
#include "support/scratch.h"
#include "support/suite.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct parts sharded, whole;

/* ---- the order of writes ---- */

void __real_comm_gather(struct comm *, comm_fn *, void *arg);
void __wrap_comm_gather(struct comm *, comm_fn *, void *arg);

/* In every engine of this program: from a gather on, the other parts' shares may come into what trainers and
 * checkpoints read. So the update has begun before, which marks it for the trainers, and for those of the next life if
 * this one dies. One who serves writes nothing. */
void __wrap_comm_gather(struct comm *c, comm_fn *fn, void *arg)
{
	const struct engine *e = (const struct engine *)((const char *)arg - offsetof(struct engine, apply.task));
	if (!e->apply.task.whole && atomic_load(&e->mem.status->seq) % 2 == 0) {
		fprintf(stderr, "the gather of window %llu has begun before the update\n",
			(unsigned long long)e->state.r.commit_window);
		_exit(99); /* the test misses this engine */
	}
	__real_comm_gather(c, fn, arg);
}

/* ---- steps ---- */

static struct rig_config job_of(int i, bool small)
{
	static const enum optim_type types[] = { OPTIM_SGD, OPTIM_ADAM, OPTIM_ADAMW };
	struct rig_config c = small ? rig_small() : rig_large();
	c.optim = (struct optim_config){
		.type = types[i % 3], .lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.01
	};
	c.optim.momentum = c.optim.type == OPTIM_SGD ? 0.5 : 0;
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
	const struct engine_answer a = parts_vote_all(&whole, attempt), b = parts_vote_all(&sharded, attempt);
	ck_assert(a.sumsq == b.sumsq);
	ck_assert_uint_eq(a.digest, b.digest);
}

static void expect_same(enum segment_role role, uint32_t part, uint64_t from, uint64_t bytes)
{
	const char *want = rig_data(&whole.rig[0], role, 0), *is = rig_data(&sharded.rig[part], role, 0);
	ck_assert_msg(!memcmp(want + from, is, bytes), "part %u, role %u", part, role);
}

/* All parameters, and of all else the share. */
static void expect_same_memory(void)
{
	rig_read(&whole.rig[0]);
	for (uint32_t s = 0; s < sharded.n; s++) {
		const struct plan *p = sharded.rig[s].plan;
		uint64_t from, end;
		plan_own(p, &from, &end);
		expect_same(SEG_PARAMS, s, 0, p->param_bytes);
		for (uint32_t role = SEG_MASTER; role <= SEG_STATE1; role++) {
			const uint64_t bytes = plan_role_bytes(p, (enum segment_role)role);
			const uint64_t all = plan_role_bytes(whole.rig[0].plan, (enum segment_role)role);
			ck_assert_uint_eq(bytes, all ? (end - from) * sizeof(float) : 0);
			if (bytes)
				expect_same((enum segment_role)role, s, from * sizeof(float), bytes);
		}
		rig_read(&sharded.rig[s]);
		ck_assert_uint_eq(sharded.rig[s].state.r.params_digest, whole.rig[0].state.r.params_digest);
		ck_assert_uint_eq(
			atomic_load(&((struct status_page *)rig_data(&sharded.rig[s], SEG_STATUS, 0))->seq) % 2, 0);
	}
}

static void end(void)
{
	parts_close(&sharded);
	parts_close(&whole);
}

START_TEST(a_step_has_the_bits_of_one_that_is_not_sharded)
{
	begin_both(2 + (uint32_t)_i % 3, job_of(_i % 6, _i >= 6));
	for (uint64_t w = 1; w <= 3; w++) {
		vote(w, 1);
		parts_commit_all(&whole, 1, APPLIED);
		parts_commit_all(&sharded, 1, APPLIED);
		expect_same_memory();
	}
	end();
}
END_TEST

/* Two shards, each of which two parts have: in two groups. */
START_TEST(groups_of_parts_have_the_same_bits)
{
	begin_groups(4, 2, job_of(_i % 6, _i >= 6));
	for (uint64_t w = 1; w <= 3; w++) {
		vote(w, 1);
		parts_commit_all(&whole, 1, APPLIED);
		parts_commit_all(&sharded, 1, APPLIED);
		expect_same_memory();
	}
	end();
}
END_TEST

/* Two tensors of 16 bits, of which the second begins inside a block: shares begin in the middle of its draws. */
static struct rig_config job_of_halves(void)
{
	struct rig_config c = job_of(2, true);
	const struct tensor_spec t[] = { { .name = "p", .dtype = DTYPE_BF16, .n_dims = 1, .shape = { 100 } },
					 { .name = "q", .dtype = DTYPE_BF16, .n_dims = 1, .shape = { 60003 } } };
	memcpy(c.tensor, t, sizeof(t));
	c.n_tensors = 2;
	c.init = (struct init_rule){ .type = INIT_NORMAL, .a = 0, .b = 1 };
	return c;
}

static float widened(uint16_t bf16)
{
	const uint32_t bits = (uint32_t)bf16 << 16;
	float f;
	memcpy(&f, &bits, sizeof(f));
	return f;
}

/* Drawn by all parts (0), or by one that gives them to the others (1), whose masters can be no more precise then. */
START_TEST(first_parameters_and_their_masters)
{
	struct rig_config c = job_of_halves();
	const struct engine_command init = { .op = ENGINE_INIT_PARAMS };
	for (int k = 0; k < 2; k++) {
		struct parts *p = k ? &sharded : &whole;
		uint64_t id[3];
		c.n_shards = k ? 3 : 1;
		parts_open(p, 3, &c);
		parts_start(p);
		for (uint32_t s = 0; s < 3; s++) {
			rig_attach_all(&p->rig[s]);
			if (!_i || !s)
				ck_assert_uint_eq(rig_call(&p->rig[s], init).status, ST_OK);
		}
		parts_join(p, 1);
		for (uint32_t s = 0; s < 3 && _i; s++)
			id[s] = rig_send(&p->rig[s], parts_command(p, ENGINE_FILL));
		for (uint32_t s = 0; s < 3 && _i; s++)
			ck_assert_uint_eq(parts_answer_to(p, s, id[s]).status, ST_OK);
	}
	for (uint32_t s = 0; s < 3; s++) {
		const struct plan *p = sharded.rig[s].plan;
		const float *master = rig_data(&sharded.rig[s], SEG_MASTER, 0);
		const uint16_t *seen = rig_data(&sharded.rig[s], SEG_PARAMS, 0);
		uint64_t from, to;
		plan_own(p, &from, &to);
		ck_assert_uint_gt(to, from);
		expect_same(SEG_PARAMS, s, 0, p->param_bytes);
		if (!_i)
			expect_same(SEG_MASTER, s, from * sizeof(float), (to - from) * sizeof(float));
		for (uint64_t i = from; i < to && _i && s; i++)
			ck_assert(master[i - from] == widened(seen[i]));
	}
	end();
}
END_TEST

/* ---- deaths ---- */

/* What a part has, to be put back under its next life. */
struct copy {
	void *data[16];
};

static void keep(const struct rig *r, struct copy *out)
{
	for (int i = 0; i < r->n_segments && i < 16; i++) {
		out->data[i] = malloc(r->segment[i].data_bytes);
		memcpy(out->data[i], r->segment[i].data, r->segment[i].data_bytes);
	}
}

static void put_back(struct rig *r, struct copy *from)
{
	for (int i = 0; i < r->n_segments && i < 16; i++) {
		memcpy(r->segment[i].data, from->data[i], r->segment[i].data_bytes);
		free(from->data[i]);
	}
}

static void expect_phase(uint32_t part, uint32_t phase)
{
	rig_read(&sharded.rig[part]);
	ck_assert_uint_eq(sharded.rig[part].state.r.phase, phase);
}

static uint64_t send_commit(uint32_t part, uint64_t attempt)
{
	return rig_send(&sharded.rig[part], parts_commit_command(&sharded, part, attempt, APPLIED));
}

/* Part 1 dies before it has heard of the COMMIT. The others record it, update their share and wait for it in vain; in
 * the next communicator all get on, with the same COMMIT. */
START_TEST(a_commit_goes_on_in_another_communicator)
{
	begin_both(3, job_of(2, false));
	vote(1, 1);
	parts_commit_all(&whole, 1, APPLIED);
	rig_kill(&sharded.rig[1]);
	const uint64_t id[] = { send_commit(0, 1), 0, send_commit(2, 1) };
	for (uint32_t s = 0; s < 3; s += 2) {
		const struct engine_answer a = parts_answer_to(&sharded, s, id[s]);
		ck_assert_uint_eq(a.status, ST_UNAVAILABLE);
		ck_assert_uint_eq(a.result, WINDOW_APPLYING);
		ck_assert_uint_eq(a.suspects, 1u << 1);
		expect_phase(s, WINDOW_APPLYING);
		struct status_page *page = rig_data(&sharded.rig[s], SEG_STATUS, 0);
		ck_assert_uint_eq(atomic_load(&page->seq) % 2, 1); /* trainers must not read a mixture */
	}
	if (_i) { /* and part 2 dies with its share updated */
		parts_new_life(&sharded, 2);
		struct status_page *page = rig_data(&sharded.rig[2], SEG_STATUS, 0);
		ck_assert_uint_eq(atomic_load(&page->seq) % 2, 1);
	}
	parts_new_life(&sharded, 1);
	expect_phase(2, WINDOW_APPLYING);
	struct engine_answer a = rig_call(&sharded.rig[2], parts_commit_command(&sharded, 2, 1, APPLIED));
	ck_assert_uint_eq(a.status, _i ? ST_NOT_READY : ST_UNAVAILABLE);
	ck_assert_uint_eq(a.result, WINDOW_APPLYING);
	ck_assert_uint_eq(rig_call(&sharded.rig[0], parts_go_command(&sharded, 0, 2)).status, ST_NOT_READY);
	sharded.id.term = 2; /* of another coordinator; the COMMIT is that of the first one */
	parts_join(&sharded, 1);
	parts_commit_all(&sharded, 1, APPLIED);
	expect_same_memory();
	end();
}
END_TEST

/* Part 0 has opened the next window, and counts in it, when part 1 has to begin again: it gives its share once more. A
 * new life of part 0 does so, too. */
START_TEST(a_part_that_is_ahead_serves_its_share)
{
	struct copy before;
	begin_both(2, job_of(_i % 6, false));
	vote(1, 1);
	parts_commit_all(&whole, 1, APPLIED);
	keep(&sharded.rig[1], &before);
	parts_commit_all(&sharded, 1, APPLIED);
	rig_kill(&sharded.rig[1]);
	put_back(&sharded.rig[1], &before);
	sharded.rig[1].window--;
	sharded.rig[1].applied_step--;
	parts_new_life(&sharded, 1);
	expect_phase(1, WINDOW_PREPARED);
	if (_i % 2)
		parts_new_life(&sharded, 0);
	rig_fill_all(&sharded.rig[0], 2, false);
	rig_add_all(&sharded.rig[0], NULL);
	parts_join(&sharded, 2);
	struct engine_command again =
		parts_commit_command(&sharded, 1, 1, APPLIED); /* of the window that is over at 0 */
	const uint64_t serve = rig_send(&sharded.rig[0], again);
	struct engine_answer a = rig_call(&sharded.rig[1], again);
	ck_assert_msg(a.status == ST_OK, "%s", a.text);
	sharded.rig[1].window++;
	sharded.rig[1].applied_step++;
	a = parts_answer_to(&sharded, 0, serve);
	ck_assert_uint_eq(a.status, ST_OK);
	ck_assert_uint_eq(a.window, 1);
	expect_same_memory();
	a = rig_call(&sharded.rig[0], again); /* all has been given in this communicator */
	ck_assert_uint_eq(a.status, ST_OK);
	rig_fill_all(&sharded.rig[1], 2 + 17, false);
	rig_add_all(&sharded.rig[1], NULL);
	parts_push_all(&whole, 2, false);
	ck_assert_uint_eq(parts_vote_all(&sharded, 3).digest, parts_vote_all(&whole, 3).digest);
	parts_commit_all(&whole, 3, APPLIED);
	parts_commit_all(&sharded, 3, APPLIED);
	expect_same_memory();
	end();
}
END_TEST

/* Wherever in the update it dies: part 0, which has not heard of the COMMIT, cannot let it get further. */
START_TEST(an_update_goes_on_where_it_was)
{
	begin_both(2, job_of(_i % 6, false));
	vote(1, 1);
	parts_commit_all(&whole, 1, APPLIED);
	for (int k = 0; k < 3; k++) {
		send_commit(1, 1);
		usleep((unsigned)(_i * 150 + k * 40));
		parts_new_life(&sharded, 1);
		rig_read(&sharded.rig[1]);
		ck_assert_uint_ge(sharded.rig[1].state.r.phase, WINDOW_PREPARED);
		parts_join(&sharded, 2 + (uint64_t)k);
	}
	parts_commit_all(&sharded, 1, APPLIED);
	expect_same_memory();
	end();
}
END_TEST

enum ending { BY_ABORT, BY_JOIN, BY_STOP, ENDINGS };

START_TEST(a_commit_at_hand_ends_by_what_comes_next)
{
	begin_both(2, job_of(1, false));
	vote(1, 1);
	parts_commit_all(&whole, 1, APPLIED);
	const uint64_t first = send_commit(0, 1), id = send_commit(0, 1); /* repeated: the earlier one is let go */
	ck_assert_uint_eq(parts_answer_to(&sharded, 0, first).status, ST_CANCELLED);
	struct engine_command c = parts_command(&sharded, _i == BY_JOIN ? ENGINE_JOIN : ENGINE_ABORT);
	if (_i == BY_JOIN)
		c.comm = 2;
	if (_i == BY_STOP)
		c = (struct engine_command){ .op = ENGINE_STOP };
	const uint64_t next = rig_send(&sharded.rig[0], c);
	struct engine_answer a = parts_answer_to(&sharded, 0, id);
	ck_assert_uint_eq(a.status, _i == BY_STOP ? ST_ENGINE_DOWN : ST_CANCELLED);
	ck_assert_uint_eq(a.result, WINDOW_APPLYING);
	ck_assert_uint_eq(parts_answer_to(&sharded, 0, next).status, ST_OK);
	if (_i == BY_STOP) {
		ck_assert_int_eq(rig_wait(&sharded.rig[0]), 0);
		parts_new_life(&sharded, 0);
	}
	parts_join(&sharded, 5);
	parts_commit_all(&sharded, 1, APPLIED);
	expect_same_memory();
	end();
}
END_TEST

/* ---- outcomes ---- */

START_TEST(other_outcomes_gather_nothing)
{
	begin_both(2, job_of(2, false));
	vote(1, 1);
	ck_assert_uint_eq(rig_call(&sharded.rig[1], parts_command(&sharded, ENGINE_ABORT)).status, ST_OK);
	for (uint32_t s = 0; s < 2; s++) { /* each alone, and without a communicator */
		struct engine_command c = parts_commit_command(&sharded, s, 1, SKIPPED);
		c.comm = 0;
		ck_assert_uint_eq(rig_call(&sharded.rig[s], c).status, ST_OK);
		ck_assert_uint_eq(rig_call(&sharded.rig[s], c).status, ST_OK);
		sharded.rig[s].window++;
	}
	parts_commit_all(&whole, 1, SKIPPED);
	parts_join(&sharded, 2);
	vote(2, 1);
	parts_commit_all(&whole, 1, APPLIED);
	parts_commit_all(&sharded, 1, APPLIED);
	expect_same_memory();
	end();
}
END_TEST

/* A part whose trainers see other bytes than their owner has does not say the digest of the others. */
START_TEST(wrong_bytes_show_in_the_digest)
{
	begin_both(2, job_of(_i * 3, false));
	vote(1, 1);
	parts_commit_all(&whole, 1, APPLIED);
	parts_commit_all(&sharded, 1, APPLIED);
	vote(2, 1);
	parts_commit_all(&whole, 1, APPLIED);
	uint64_t from, to;
	plan_own(sharded.rig[1].plan, &from, &to);
	float *m = rig_data(&sharded.rig[1], SEG_PARAMS, 0);
	m[from + 77] += 1; /* its own, which all take from it: all have it, and it is another step's */
	parts_commit_all(&sharded, 1, APPLIED);
	rig_read(&sharded.rig[0]);
	ck_assert_uint_ne(sharded.rig[0].state.r.params_digest, whole.rig[0].state.r.params_digest);
	end();
}
END_TEST

static struct engine_answer save(uint32_t part, const char *path)
{
	const struct engine_command c = { .op = ENGINE_CHECKPOINT,
					  .own_only = part > 0,
					  .n_present = (uint32_t)strlen(path) };
	return parts_answer_to(&sharded, part, rig_send_with(&sharded.rig[part], c, path));
}

/* Part 0 the parameters, and each its share: as of the same step. Half through an update there is nothing to save. */
START_TEST(each_part_saves_its_share_between_windows)
{
	char dir[SCRATCH_PATH], path[SCRATCH_PATH + 16], command[SCRATCH_PATH + 16];
	ck_assert(scratch_make(dir));
	begin_both(2, job_of(2, false));
	vote(1, 1);
	parts_commit_all(&whole, 1, APPLIED);
	const uint64_t id = send_commit(1, 1);
	struct engine_answer a;
	for (rig_read(&sharded.rig[1]); sharded.rig[1].state.r.phase != WINDOW_APPLYING; rig_read(&sharded.rig[1]))
		usleep(1000);
	snprintf(path, sizeof(path), "%s/early", dir);
	const struct engine_command early = { .op = ENGINE_CHECKPOINT, .n_present = (uint32_t)strlen(path) };
	a = parts_answer_to(&sharded, 1, rig_send_with(&sharded.rig[1], early, path));
	ck_assert_uint_eq(a.status, ST_NOT_READY);
	const uint64_t other = send_commit(0, 1);
	ck_assert_uint_eq(parts_answer_to(&sharded, 0, other).status, ST_OK);
	ck_assert_uint_eq(parts_answer_to(&sharded, 1, id).status, ST_OK);
	rig_read(&whole.rig[0]);
	const uint64_t digest = whole.rig[0].state.r.params_digest;
	for (uint32_t s = 0; s < 2; s++) {
		snprintf(path, sizeof(path), "%s/%u", dir, s);
		a = save(s, path);
		ck_assert_msg(!a.status, "%s", a.text);
		ck_assert_uint_eq(a.applied_step, 1);
		ck_assert_uint_eq(a.digest, digest);
		ck_assert(!a.file[0].bytes == (s > 0)); /* the model */
		ck_assert(a.file[1].bytes && !a.file[2].bytes && !a.file[3].bytes);
	}
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	ck_assert_int_eq(system(command), 0);
	end();
}
END_TEST

int main(void)
{
	Suite *s = suite_create("shards");
	TCase *t = tcase_create("shards");
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, a_step_has_the_bits_of_one_that_is_not_sharded, 0, 12);
	tcase_add_loop_test(t, groups_of_parts_have_the_same_bits, 0, 12);
	tcase_add_loop_test(t, first_parameters_and_their_masters, 0, 2);
	tcase_add_loop_test(t, a_commit_goes_on_in_another_communicator, 0, 2);
	tcase_add_loop_test(t, a_part_that_is_ahead_serves_its_share, 0, 6);
	tcase_add_loop_test(t, an_update_goes_on_where_it_was, 0, 12);
	tcase_add_loop_test(t, a_commit_at_hand_ends_by_what_comes_next, 0, ENDINGS);
	tcase_add_test(t, other_outcomes_gather_nothing);
	tcase_add_loop_test(t, wrong_bytes_show_in_the_digest, 0, 2);
	tcase_add_test(t, each_part_saves_its_share_between_windows);
	suite_add_tcase(s, t);
	return suite_run(s);
}
