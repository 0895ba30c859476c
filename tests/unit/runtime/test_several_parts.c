/* SPDX-License-Identifier: Apache-2.0 */
/* Several parts of one job on a node, each with its engine, its ranks and its memory. */
#include "part_rig.h"

#include "gacc/v1/common.pb-c.h"
#include "host/process.h"
#include "runtime/engine_proc.h"
#include "runtime/part_place.h"
#include "runtime/stored.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

Suite *several_suite(void);

static const uint32_t first_rank[] = { 0 }, second_rank[] = { 1 };
static char why[320];

/* Part `i` of the rig's job of two parts: rank i. */
static struct placement of_part(uint32_t i)
{
	struct placement p = { .job_id = RIG_JOB,
			       .epoch = 1,
			       .term = 3,
			       .uid = getuid(),
			       .part = i,
			       .n_parts = 2,
			       .ranks = RIG_RANKS,
			       .max_micro_size = 64,
			       .begin = PLACEMENT_NEW,
			       .user = "ana",
			       .node = conf->node.name,
			       .rank = i ? second_rank : first_rank,
			       .n_ranks = 1 };
	memcpy(p.uuid, "of the rig's job", 16);
	return p;
}

/* Through its bytes, with the specification of the rig's parts. */
static enum status place(struct placement *p, struct part **out)
{
	struct placing read = { .status = ST_OK };
	struct part *like = rig_part(RIG_JOB + 9);
	const struct part_ports ports = like->ports;
	size_t n, n_spec;
	void *spec = specification_pack(like->text, &n_spec);
	part_free(like);
	p->spec = (struct placement_bytes){ spec, n_spec };
	void *bytes = placement_pack(p, &n);
	placing_open(&read, &node, bytes, n, NULL);
	if (!read.status)
		placing_read(&read);
	free(bytes);
	free(spec);
	enum status st = read.status;
	snprintf(why, sizeof(why), "%s", read.why);
	if (!st)
		st = part_place(&node, &read, &ports, out, why, sizeof(why));
	placing_fini(&read);
	return st;
}

static struct part *placed(uint32_t i, bool begun)
{
	struct part *out = NULL;
	struct placement p = of_part(i);
	p.begun = begun;
	ck_assert_msg(place(&p, &out) == ST_OK, "%s", why);
	return out;
}

/* Both have their engines, and what their rules draw. */
static void begin_both(struct part *p[2], bool earlier)
{
	part_begin(p[0], earlier);
	part_begin(p[1], earlier);
	UNTIL(said.engine_up == 2);
	for (int i = 0; i < 2; i++) { /* nobody is told of parameters before the job runs */
		struct order o = rig_order(p[i], WANT_NOTHING);
		part_on_order(p[i], &o);
	}
	UNTIL(job_params_ready(p[0]->job) && job_params_ready(p[1]->job));
}

static void count_one_of_the_second(struct part *p)
{
	struct order o = rig_order(p, WANT_NOTHING);
	part_on_order(p, &o);
	rig_attach(p, 1);
	uint64_t call = rig_push(p, 1, 0, 2);
	UNTIL(said.answered[call]);
	ck_assert_msg(!said.reply[call].status, "%s", said.reply[call].text);
	ck_assert_uint_eq(said.reply[call].push.result, PUSH_COUNTED);
}

/* ---- parts and their ranks ---- */

START_TEST(parts_of_a_job_are_found_by_number_and_rank)
{
	struct part *before = rig_part(RIG_JOB - 1), *behind = rig_part(RIG_JOB + 1), *p[2];
	ck_assert_ptr_null(part_first(&node, RIG_JOB));
	ck_assert_ptr_null(part_for_rank(&node, RIG_JOB, 0));
	p[1] = placed(1, false); /* in any order */
	ck_assert_ptr_eq(part_first(&node, RIG_JOB), p[1]);
	ck_assert_ptr_null(part_find(&node, RIG_JOB, 0));
	ck_assert_ptr_null(part_of_rank(&node, RIG_JOB, 0));
	ck_assert_ptr_null(part_for_rank(&node, RIG_JOB, 0));
	ck_assert_ptr_eq(part_for_rank(&node, RIG_JOB, 2), p[1]); /* the job has no such rank: it is refused there */
	p[0] = placed(0, false);
	for (uint32_t i = 0; i < 2; i++) {
		ck_assert_ptr_eq(part_find(&node, RIG_JOB, i), p[i]);
		ck_assert_ptr_eq(part_of_rank(&node, RIG_JOB, i), p[i]);
		ck_assert_ptr_eq(part_for_rank(&node, RIG_JOB, i), p[i]);
		ck_assert_uint_eq(p[i]->spec->ranks, 1);
		ck_assert_uint_eq(p[i]->text->spec.ranks, RIG_RANKS);
		ck_assert_uint_eq(job_part(p[i]->job)->number, i);
		ck_assert_uint_eq(job_part(p[i]->job)->n_parts, 2);
		ck_assert_uint_eq(job_part(p[i]->job)->world, RIG_RANKS);
	}
	ck_assert_ptr_null(part_find(&node, RIG_JOB, 2));
	ck_assert_ptr_null(part_of_rank(&node, RIG_JOB, 2));
	ck_assert_ptr_eq(part_for_rank(&node, RIG_JOB, 2), p[0]);
	ck_assert_ptr_eq(part_first(&node, RIG_JOB), p[0]);
	ck_assert_ptr_eq(part_next(p[0]), p[1]);
	ck_assert_ptr_null(part_next(p[1]));
	ck_assert_ptr_null(part_next(before));
	ck_assert_ptr_eq(part_of_rank(&node, RIG_JOB + 1, 1), behind);
	ck_assert_ptr_null(part_find(&node, RIG_JOB + 1, 1));
	ck_assert_uint_eq(node.n_parts, 4);
	part_free(p[0]);
	ck_assert_ptr_eq(part_first(&node, RIG_JOB), p[1]);
	ck_assert_ptr_eq(placed(1, false), p[1]); /* a repetition */
	ck_assert_uint_eq(node.n_parts, 3);
}
END_TEST

START_TEST(each_part_has_its_engine_and_its_ranks)
{
	struct part *p[2] = { placed(0, false), placed(1, false) };
	uint64_t need;
	struct job_spec own = *p[1]->spec; /* the rig's, which says nothing of parts */
	own.parts = 2;
	ck_assert_int_eq(part_need(&node, &own, job_arena(p[1]->job), &need), ST_OK);
	begin_both(p, false);
	ck_assert_int_ne(rig_engine_pid(p[0]), rig_engine_pid(p[1]));
	ck_assert_uint_eq(p[1]->mem.bytes, need);
	ck_assert_uint_eq(node.host_bytes, 2 * need);
	ck_assert_uint_eq(p[1]->mem.plan->part, 1);
	ck_assert_uint_eq(p[1]->mem.plan->n_parts, 2);
	count_one_of_the_second(p[1]);
	ck_assert_uint_eq(job_record(p[0]->job)->r.count, 0);
	ck_assert_uint_eq(job_record(p[1]->job)->r.count, 1);
	ck_assert_uint_eq(job_record(p[1]->job)->r.ranks, 1);
	const struct attach_args other = { .rank = 0,
					   .world_size = RIG_RANKS,
					   .uid = getuid(),
					   .pid = getpid(),
					   .start_time = process_start_time(getpid()) };
	job_attach(p[1]->job, RIG_CALLS - 1, &other, node_now());
	ck_assert_int_eq(said.reply[RIG_CALLS - 1].status, ST_RANK_OUT_OF_RANGE);
	ck_assert_str_eq(said.reply[RIG_CALLS - 1].text,
			 "rank 0 is not on this node: it has part 1 of job 7, with ranks 1");
}
END_TEST

/* Descriptors are counted once for the job, so its parts share what it may have. */
START_TEST(mailboxes_are_counted_over_all_parts)
{
	struct part *p[2] = { placed(0, false), placed(1, false) };
	conf->listen.connections_per_user = 1;
	begin_both(p, false);
	for (uint32_t i = 0; i < 2; i++) {
		struct order o = rig_order(p[i], WANT_NOTHING);
		part_on_order(p[i], &o);
		rig_attach(p[i], i);
	}
	ck_assert_ptr_nonnull(part_mailbox(p[0], 0));
	ck_assert_ptr_null(part_mailbox(p[1], 1));
	conf->listen.connections_per_user = 2;
	ck_assert_ptr_nonnull(part_mailbox(p[1], 1));
}
END_TEST

/* What a network does to an engine does not count against it. */
START_TEST(an_engine_that_a_network_holds_up_is_no_crash_loop)
{
	struct part *p = placed(0, false);
	part_begin(p, false);
	UNTIL(said.engine_up == 1 && said.report.life);
	const uint64_t life[] = { said.report.life, said.report.life + 1 };
	struct engine_command c = { .op = ENGINE_JOIN, .id = 1, .term = 1, .comm = 1, .join_ns = 1 };
	ck_assert(engine_proc_send(p->engine.proc, &c, NULL, NULL, 0));
	c.op = ENGINE_ADDRESS;
	c.n_present = 4; /* as support/hanging_net.c has them */
	for (c.slot = 0; c.slot < 2; c.slot++) {
		c.part_life = life[c.slot];
		ck_assert(engine_proc_send(p->engine.proc, &c, "blob", NULL, 0));
	}
	c = (struct engine_command){ .op = ENGINE_ABORT, .id = 4, .term = 1, .comm = 1 };
	ck_assert(engine_proc_send(p->engine.proc, &c, NULL, NULL, 0));
	UNTIL(p->engine.restarts.failures == 1);
	ck_assert_uint_eq(p->engine.restarts.own, 0);
	ck_assert_str_eq(said.event, "EngineExited");
	ck_assert_str_eq(said.event_text, "the engine could not end a call to the engines of other parts");
	UNTIL(said.engine_up == 2);
}
END_TEST

/* ---- memory ---- */

static ino_t inode_of(struct part *p)
{
	struct stat info;
	ck_assert_int_eq(fstat(part_segment(p, SEG_CONTROL, 0)->fd, &info), 0);
	return info.st_ino;
}

static int kept_of(uint32_t part)
{
	int n = 0;
	for (int i = 0; i < n_kept; i++) {
		uint32_t number;
		n += stored_job(&kept[i], &number, NULL) == RIG_JOB && number == part;
	}
	return n;
}

START_TEST(each_part_adopts_its_own_memory)
{
	struct part *p[2] = { placed(0, false), placed(1, false) };
	begin_both(p, false);
	count_one_of_the_second(p[1]);
	const ino_t inode[2] = { inode_of(p[0]), inode_of(p[1]) };
	const int n = p[0]->mem.n;
	ck_assert_int_eq(kept_of(0), n);
	ck_assert_int_eq(kept_of(1), n);
	rig_restart();
	p[1] = placed(1, true);
	p[0] = placed(0, true);
	begin_both(p, true);
	for (int i = 0; i < 2; i++) {
		ck_assert_uint_eq(inode_of(p[i]), inode[i]);
		ck_assert_uint_eq(job_record(p[i]->job)->r.count, (uint32_t)i);
	}
	part_release(p[0]);
	UNTIL(kept_of(0) == 0);
	ck_assert_int_eq(kept_of(1), n);
	ck_assert_uint_eq(node.host_bytes, p[1]->mem.bytes);
}
END_TEST

/* While its tensor set waits to be read. */
START_TEST(stored_memory_is_looked_into_by_part)
{
	struct part *p[2] = { placed(0, false), placed(1, false) };
	uint64_t window = 7;
	begin_both(p, false);
	rig_restart();
	for (uint32_t i = 0; i < 2; i++) {
		p[i] = placed(i, true);
		ck_assert_int_eq(part_pack_tensors(p[i]), ST_OK);
	}
	close(stored_take(&node, "j7.r1.0.1.p0"));
	ck_assert(!part_stored_window(p[0], &window));
	ck_assert(part_stored_window(p[1], &window));
	ck_assert_uint_eq(window, 0);
	p[0]->tensors.due = true; /* it is released before it was read */
	part_release(p[0]);
	ck_assert_uint_gt(stored_bytes(&node, RIG_JOB, NULL), 0); /* that of the other one */
	UNTIL(kept_of(0) == 1);					  /* what the test has taken */
	ck_assert_int_gt(kept_of(1), 1);
}
END_TEST

/* ---- wrong ---- */

static void expect_refused(struct placement p, const char *text)
{
	struct part *out = NULL;
	enum status st = place(&p, &out);
	ck_assert(st == ST_ALREADY_EXISTS || st == ST_VERSION_SKEW);
	ck_assert_msg(strstr(why, text) != NULL, "%s, not: %s", why, text);
	ck_assert_uint_eq(node.n_parts, 1);
}

START_TEST(parts_that_do_not_match_are_refused)
{
	static const uint32_t both[] = { 0, 1 };
	struct placement p = of_part(1);
	placed(1, false);
	p.rank = first_rank, expect_refused(p, "Placement.rank is not that of the part 1 that is here");
	p = of_part(1), p.ranks = 3, p.rank = both, p.n_ranks = 2, expect_refused(p, "has ranks 3");
	p = of_part(0), p.rank = second_rank;
	expect_refused(p, "Placement.rank of part 0 has 1, which is in part 1, and that is here");
	p = of_part(0), p.uuid[0] ^= 1, expect_refused(p, "and the job 7 that has a part here has uuid 6f662074-");
	p = of_part(0), p.n_parts = 1, p.rank = both, p.n_ranks = 2;
	expect_refused(p, "Placement.n_parts is 1, and the part that is here is one of 2");
	p = of_part(0), p.rank = both, p.n_ranks = 2; /* the others would have none */
	expect_refused(p, "Placement.part 0 has 2 of 2 ranks, and the job has 2 parts");
	p = of_part(0), p.n_parts = PART_MAX + 1, expect_refused(p, "Placement.n_parts is 17, and may be 16");
	p = of_part(1), p.epoch = 2, expect_refused(p, "Placement.epoch is 2");
}
END_TEST

Suite *several_suite(void)
{
	Suite *s = suite_create("several parts");
	TCase *t = tcase_create("several parts");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, rig_open, rig_close);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, parts_of_a_job_are_found_by_number_and_rank);
	tcase_add_test(t, each_part_has_its_engine_and_its_ranks);
	tcase_add_test(t, mailboxes_are_counted_over_all_parts);
	tcase_add_test(t, an_engine_that_a_network_holds_up_is_no_crash_loop);
	tcase_add_test(t, parts_that_do_not_match_are_refused);
	TCase *managed = tcase_create("kept");
	suite_add_tcase(s, managed);
	tcase_add_checked_fixture(managed, rig_open_managed, rig_close);
	tcase_set_timeout(managed, 60);
	tcase_add_test(managed, each_part_adopts_its_own_memory);
	tcase_add_test(managed, stored_memory_is_looked_into_by_part);
	return s;
}
