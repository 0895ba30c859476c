/* SPDX-License-Identifier: Apache-2.0 */
/* Placements: every field goes through a message, and what is wrong with one is said, not believed. */
#include "cluster/placement_message.h"
#include "gacc/internal/v1/placement.pb-c.h"
#include "support/suite.h"
#include "unit/cluster/altered.h"
#include "unit/cluster/fields.h"

#include <stdlib.h>
#include <string.h>

enum { N = 3, MAX_MICRO = 30, WORDS = 2 };
static const uint32_t list[N] = { 2, 5, 9 };
static uint64_t bits[PLACEMENT_MAX_WINDOWS][WORDS];
static struct decided windows[PLACEMENT_MAX_WINDOWS];

static struct shared its_tensors = { .holders = 1, .n = 11, .data = (char[]){ "its tensors" } };

static struct placement full(void)
{
	struct placement p = { .job_id = 101,
			       .epoch = 102,
			       .term = 103,
			       .uid = 104,
			       .part = 2,
			       .n_parts = 4,
			       .ranks = 12,
			       .max_micro_size = MAX_MICRO,
			       .begin = PLACEMENT_HEAL,
			       .heal_from = 3,
			       .user = "ann\xc3\xa9",
			       .node = "node-b",
			       .rank = list,
			       .n_ranks = N,
			       .spec = { "the spec", 8 },
			       .tensors = &its_tensors,
			       .window = windows,
			       .n_windows = PLACEMENT_MAX_WINDOWS,
			       .begun = true };
	fields_fill(p.cluster, 16, 1);
	fields_fill(p.uuid, 16, 40);
	for (uint32_t i = 0; i < PLACEMENT_MAX_WINDOWS; i++) {
		struct commit *k = &windows[i].commit;
		fields_fill(k, sizeof(*k), i);
		k->job_id = 101;
		k->window = 800 + i;
		k->outcome = OUTCOME_APPLIED;
		k->skip_reason = SKIP_NONE;
		k->micro_size = k->next_micro_size = 4;
		k->micro_count = 300; /* of the whole job */
		k->last_rank = 11;
		k->final = 0;
		bits[i][0] = 1000 + i;
		windows[i].counted = bits[i];
		windows[i].n_words = WORDS;
	}
	return p;
}

START_TEST(a_placement_comes_back)
{
	struct placement p = full();
	struct held_placement back;
	char why[200];
	size_t n;
	void *bytes = placement_pack(&p, &n);
	ck_assert_msg(!placement_unpack(bytes, n, p.tensors, &back, why, sizeof(why)), "%s", why);
	free(bytes);
	const struct placement *q = &back.placement;
#define SAME(field) ck_assert_msg(!memcmp(&p.field, &q->field, sizeof(p.field)), "%s", #field)
	SAME(cluster), SAME(uuid), SAME(job_id), SAME(epoch), SAME(term), SAME(uid), SAME(part), SAME(n_parts);
	SAME(ranks), SAME(max_micro_size), SAME(begin), SAME(heal_from), SAME(n_ranks), SAME(n_windows);
	SAME(spec.n), SAME(begun);
#undef SAME
	ck_assert_str_eq(q->user, p.user);
	ck_assert_str_eq(q->node, p.node);
	ck_assert_mem_eq(q->rank, list, sizeof(list));
	ck_assert_mem_eq(q->spec.data, "the spec", 8);
	ck_assert_ptr_eq(q->tensors, &its_tensors); /* nothing of it is copied */
	for (uint32_t i = 0; i < PLACEMENT_MAX_WINDOWS; i++) {
		ck_assert_mem_eq(&q->window[i].commit, &windows[i].commit, sizeof(struct commit));
		ck_assert_uint_eq(q->window[i].n_words, WORDS);
		ck_assert_mem_eq(q->window[i].counted, bits[i], sizeof(bits[i]));
	}
	placement_release(&back);
}
END_TEST
/* A member that is added and not compared above or below changes the size. */
_Static_assert(sizeof(struct placement) == 168, "compared above, restore below");

static char path[RESTORE_MAX_PATH + 1];
static struct part_restore some_restore;

/* Of a job that begins with a checkpoint. */
static struct placement restored(void)
{
	struct placement p = full();
	fields_fill(&some_restore.from, sizeof(some_restore.from), 7);
	some_restore.from.window = 800;
	some_restore.from.applied_step = 799;
	some_restore.from.micro_size = MAX_MICRO;
	some_restore.from.same_ranges = some_restore.from.carry = 1; /* they are bool on the wire */
	some_restore.from.n_shares = ENGINE_SHARES;
	some_restore.from.reserved = 0;
	memset(path, 'x', sizeof(path));
	path[0] = '/';
	some_restore.path = path;
	some_restore.n_path = RESTORE_MAX_PATH;
	p.begin = PLACEMENT_RESTORE;
	p.begun = false;
	p.restore = &some_restore;
	return p;
}

START_TEST(a_restore_comes_back)
{
	struct placement p = restored();
	struct held_placement back;
	char why[200];
	size_t n;
	void *bytes = placement_pack(&p, &n);
	ck_assert_msg(!placement_unpack(bytes, n, p.tensors, &back, why, sizeof(why)), "%s", why);
	free(bytes);
	const struct part_restore *r = back.placement.restore;
	ck_assert_ptr_nonnull(r);
	ck_assert_mem_eq(&r->from, &some_restore.from, sizeof(r->from));
	ck_assert_uint_eq(r->n_path, RESTORE_MAX_PATH);
	ck_assert_mem_eq(r->path, path, RESTORE_MAX_PATH);
	placement_release(&back);
	some_restore.from.same_ranges = some_restore.from.carry = 0;
	some_restore.n_path = 1;
	bytes = placement_pack(&p, &n);
	ck_assert_int_eq(placement_unpack(bytes, n, p.tensors, &back, why, sizeof(why)), ST_OK);
	free(bytes);
	ck_assert_mem_eq(&back.placement.restore->from, &some_restore.from, sizeof(r->from));
	ck_assert_uint_eq(back.placement.restore->n_path, 1);
	placement_release(&back);
}
END_TEST

START_TEST(tensors_can_be_taken_out)
{
	struct placement p = full();
	struct held_placement back;
	char why[200];
	size_t n;
	uint8_t *bytes = placement_pack(&p, &n), *whole = malloc(n + 11);
	ck_assert_int_eq(placement_unpack(bytes, n, _i ? NULL : &its_tensors, &back, why, sizeof(why)),
			 _i ? ST_VERSION_SKEW : ST_OK);
	memcpy(whole, bytes, n);
	memcpy(whole + n, "its tensors", 11);
	if (_i) /* of a stream: one after the other */
		ck_assert_int_eq(placement_unpack(whole, n + 11, NULL, &back, why, sizeof(why)), ST_OK);
	free(bytes);
	free(whole);
	struct shared *tensors = placement_take_tensors(&back);
	ck_assert_uint_eq(tensors->n, 11);
	ck_assert_mem_eq(tensors->data, "its tensors", 11);
	shared_drop(tensors);
	ck_assert_ptr_null(back.placement.tensors);
	ck_assert_ptr_null(placement_take_tensors(&back));
	placement_release(&back);
	ck_assert_uint_eq(its_tensors.holders, 1);
}
END_TEST

START_TEST(tensors_that_were_not_announced_are_refused)
{
	static char bytes_of_longer[] = "its tensors!";
	static struct shared longer = { .holders = 1, .n = 12, .data = bytes_of_longer };
	struct placement p = full();
	struct held_placement back;
	char why[200];
	size_t n;
	uint8_t *bytes = placement_pack(&p, &n), *whole = malloc(n + 11 + 2);
	ck_assert_int_eq(placement_unpack(bytes, n, &longer, &back, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_str_eq(why, "Placement.tensors is not the 12 bytes that follow");
	ck_assert_int_eq(placement_unpack(bytes, 1, &its_tensors, &back, why, sizeof(why)), ST_VERSION_SKEW);
	memcpy(whole, bytes, n);
	memcpy(whole + n, "its tensors", 11);
	memcpy(whole + n + 11, bytes + n - 2, 2);
	ck_assert_int_eq(placement_unpack(whole, n + 13, &its_tensors, &back, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_str_eq(why, "Placement.tensors is there twice");
	free(bytes);
	free(whole);
	ck_assert_uint_eq(its_tensors.holders, 1);
}
END_TEST

static void expect_refused(const struct placement *p, const char *text)
{
	struct held_placement back;
	char why[200] = "";
	size_t n;
	void *bytes = placement_pack(p, &n);
	ck_assert_int_eq(placement_unpack(bytes, n, p->tensors, &back, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_msg(strstr(why, text) != NULL, "%s, not: %s", why, text);
	free(bytes);
}

START_TEST(senseless_placements_are_refused)
{
	static const uint32_t twice[N] = { 2, 5, 5 }, high[N] = { 2, 5, 12 };
	struct held_placement back;
	struct placement p = full();
	char why[200];
	p.part = 4, expect_refused(&p, "Placement.part is 4 and heal_from 3, and the job has 4 parts"), p = full();
	p.heal_from = 4, expect_refused(&p, "heal_from 4"), p = full();
	p.n_parts = 0, expect_refused(&p, "the job has 0 parts"), p = full();
	p.epoch = 0, expect_refused(&p, "Placement.epoch is missing"), p = full();
	p.spec.n = 0, expect_refused(&p, "Placement.spec is missing"), p = full();
	p.begin = 0, expect_refused(&p, "Placement.begin is 0"), p = full();
	p.begin = 4, expect_refused(&p, "Placement.begin is 4"), p = full();
	p.n_ranks = 0, expect_refused(&p, "Placement has 0 of 12 ranks"), p = full();
	p.ranks = SPEC_MAX_RANKS + 1, expect_refused(&p, "of 65537 ranks"), p = full();
	p.max_micro_size = 0, expect_refused(&p, "max_micro_size 0"), p = full();
	p.rank = twice, expect_refused(&p, "Placement.rank has 5, and must ascend below 12"), p = full();
	p.rank = high, expect_refused(&p, "Placement.rank has 12, and must ascend below 12"), p = full();
	windows[3].n_words = 1, expect_refused(&p, "CommitRecord.counted has 1 words, and the job needs 2"), p = full();
	windows[3].commit.outcome = 7, expect_refused(&p, "Commit.outcome is 7"), p = full();
	windows[3].commit.window = 9, expect_refused(&p, "has window 9 of job 101 in the wrong place"), p = full();
	windows[0].commit.job_id = 9, expect_refused(&p, "has window 800 of job 9 in the wrong place");
	ck_assert_int_eq(placement_unpack("", 0, NULL, &back, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_str_eq(why, "Placement.cluster and uuid have 0 and 0 bytes, and must have 16");
}
END_TEST

START_TEST(senseless_restores_are_refused)
{
	struct placement p = restored();
	struct engine_restore *r = &some_restore.from;
	p.restore = NULL, expect_refused(&p, "Placement.restore is missing"), p = restored();
	p.begun = true, expect_refused(&p, "Placement.restore is there, and nothing is to be restored"), p = restored();
	p.begin = PLACEMENT_NEW, expect_refused(&p, "Placement.restore is there"), p = restored();
	some_restore.n_path = 0, expect_refused(&p, "Restore.path has 0 bytes"), p = restored();
	some_restore.n_path++, expect_refused(&p, "Restore.path has 4096 bytes"), p = restored();
	path[0] = 'x', expect_refused(&p, "is no absolute path of at most 4095"), p = restored();
	path[9] = '\0', expect_refused(&p, "is no absolute path"), p = restored();
	r->applied_step = 801, expect_refused(&p, "Restore.applied_step is 801, before window 800"), p = restored();
	r->window = UINT64_MAX, expect_refused(&p, "before window 18446744073709551615"), p = restored();
	r->micro_size = 0, expect_refused(&p, "Restore.micro_size is 0, and must be 1..30"), p = restored();
	r->micro_size = 31, expect_refused(&p, "Restore.micro_size is 31, and must be 1..30"), p = restored();
}
END_TEST

/* Files that are altered on the way: a wrong number of them, or a sum that is cut. */
START_TEST(other_files_are_refused)
{
	struct placement p = restored();
	struct held_placement back;
	char why[200] = "";
	size_t n;
	p.tensors = NULL;
	void *bytes = placement_pack(&p, &n);
	Gacc__Internal__V1__Placement *m = gacc__internal__v1__placement__unpack(NULL, n, bytes);
	size_t *const alter[] = { &m->restore->n_file, &m->restore->file[3]->sha256.len, &m->restore->n_share,
				  &m->restore->share[15]->sha256.len };
	size_t *of = alter[_i], was = *of;
	*of = _i == 2 ? 1 : was - 1;
	n = gacc__internal__v1__placement__pack(m, bytes);
	*of = was;
	gacc__internal__v1__placement__free_unpacked(m, NULL);
	ck_assert_int_eq(placement_unpack(bytes, n, p.tensors, &back, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_str_eq(why, _i % 2 ? "RestoreFile.sha256 has 31 bytes, and must have 32"
			      : _i   ? "Restore.share has 1 files, and must have none, or 2..16"
				     : "Restore.file has 3 files, and must have 4");
	free(bytes);
}
END_TEST

static unsigned try_bytes(const uint8_t *bytes, size_t n)
{
	struct held_placement back;
	char why[200] = "";
	enum status st = placement_unpack(bytes, n, NULL, &back, why, sizeof(why));
	ck_assert(st == ST_OK || (st == ST_VERSION_SKEW && *why));
	if (st)
		return 0;
	ck_assert(back.placement.rank[back.placement.n_ranks - 1] < back.placement.ranks);
	ck_assert(back.placement.part < back.placement.n_parts);
	ck_assert(!back.placement.restore || !back.placement.begun);
	placement_release(&back);
	return 1;
}

START_TEST(any_bytes_are_read_or_refused)
{
	struct placement p = _i ? restored() : full();
	size_t n;
	p.n_windows = 2;
	p.tensors = NULL;
	some_restore.n_path = 9;
	void *bytes = placement_pack(&p, &n);
	altered_try(bytes, n, 6000, try_bytes);
	free(bytes);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("placements");
	TCase *c = tcase_create("placements");
	suite_add_tcase(s, c);
	tcase_add_test(c, a_placement_comes_back);
	tcase_add_loop_test(c, tensors_can_be_taken_out, 0, 2);
	tcase_add_test(c, tensors_that_were_not_announced_are_refused);
	tcase_add_test(c, senseless_placements_are_refused);
	tcase_add_test(c, a_restore_comes_back);
	tcase_add_test(c, senseless_restores_are_refused);
	tcase_add_loop_test(c, other_files_are_refused, 0, 4);
	tcase_add_loop_test(c, any_bytes_are_read_or_refused, 0, 2);
	return suite_run(s);
}
