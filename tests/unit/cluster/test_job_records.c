/* SPDX-License-Identifier: Apache-2.0 */
/* COMMIT, UPDATE and RESTORED: every field goes through a record, and whatever is wrong with one is said, not believed.
 */
#include "cluster/job_records.h"
#include "cluster/record.h"
#include "support/suite.h"
#include "unit/cluster/altered.h"
#include "unit/cluster/fields.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, MAX_MICRO = 30, WORDS = 2 };
static const struct message_bounds bounds = { RANKS, MAX_MICRO, 1 };

/* All bytes are set; then what must be in range. */
static struct commit full_commit(unsigned seed)
{
	struct commit k;
	fields_fill(&k, sizeof(k), seed);
	k.outcome = OUTCOME_DROPPED;
	k.skip_reason = SKIP_OUTLIER;
	k.micro_size = 29;
	k.next_micro_size = 30;
	k.micro_count = RANKS * MAX_MICRO;
	k.last_rank = 2;
	k.final = 1;
	return k;
}

/* struct commit has no padding: compared as bytes, all members are. */
_Static_assert(sizeof(struct commit) == 37 * 8, "without padding; a new member is to be in Commit, too");

static struct update full_update(uint64_t window, uint32_t set)
{
	return (struct update){ window, set, { 7, 0.1, 0.2, 0.3 } };
}

static struct restored full_restored(uint32_t n_updates)
{
	struct restored b = {
		.window = 12, .applied_step = 11, .has_last = true, .last = full_commit(3), .n_updates = n_updates
	};
	b.last.window = 11;
	for (uint32_t i = 0; i < n_updates; i++)
		b.update[i] = full_update(12 + i, 15);
	return b;
}

static void expect_update(const struct update *is, const struct update *was)
{
	struct values a = { 0 }, b = { 0 };
	update_apply(&a, is);
	update_apply(&b, was);
	ck_assert(is->window == was->window && is->set == was->set);
	ck_assert(a.micro_size == b.micro_size && a.lr == b.lr && a.clip_norm == b.clip_norm &&
		  a.clip_value == b.clip_value);
}

static void expect_refused(const struct commit *k, const char *text)
{
	const uint64_t words[WORDS] = { 0 };
	struct decided back;
	char why[200] = "";
	size_t n;
	void *bytes = commit_record_pack(k, words, WORDS, &n);
	ck_assert_int_eq(commit_record_read(bytes, n, &bounds, k->window, &back, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_msg(strstr(why, text) != NULL, "%s, not: %s", why, text);
	free(bytes);
}

/* ---- round trips ---- */

START_TEST(a_commit_comes_back_as_it_was)
{
	for (unsigned seed = 0; seed < 59; seed++) {
		struct commit k = full_commit(seed);
		const uint64_t words[WORDS] = { UINT64_MAX, (UINT64_C(1) << (RANKS * MAX_MICRO - 64)) - 1 };
		struct decided back;
		char why[200];
		size_t n;
		void *bytes = commit_record_pack(&k, words, WORDS, &n);
		ck_assert_uint_eq(record_form(bytes, n), RECORD_MESSAGE);
		ck_assert_msg(!commit_record_read(bytes, n, &bounds, k.window, &back, why, sizeof(why)), "%s", why);
		ck_assert_mem_eq(&back.commit, &k, sizeof(k));
		ck_assert_uint_eq(back.n_words, WORDS);
		ck_assert_mem_eq(back.counted, words, sizeof(words));
		free(back.counted);
		free(bytes);
	}
}
END_TEST

/* What is not finite, and the ends of the ranges. */
START_TEST(extreme_numbers_come_back)
{
	const uint64_t words[WORDS] = { 0 };
	struct commit k = full_commit(1);
	struct decided back;
	char why[200];
	size_t n;
	k.job_id = k.epoch = k.term = k.attempt = k.digest = k.params_before = k.params_digest = UINT64_MAX;
	k.last_lag_ns = INT64_MIN;
	k.unix_nanos = INT64_MAX;
	k.grad_norm = -INFINITY;
	k.mean_loss = NAN;
	k.next.scale.scale = 5e-324;
	k.next.norms.sum = 0;
	k.next.norms.refused = UINT32_MAX;
	void *bytes = commit_record_pack(&k, words, WORDS, &n);
	ck_assert_int_eq(commit_record_read(bytes, n, &bounds, k.window, &back, why, sizeof(why)), ST_OK);
	ck_assert_mem_eq(&back.commit, &k, sizeof(k));
	free(back.counted);
	free(bytes);
}
END_TEST

START_TEST(updates_come_back)
{
	for (uint32_t set = 1; set <= 15; set++) {
		struct update u = full_update(UINT64_MAX - set, set), zero = { set, set, { 0 } }, back;
		char why[200];
		size_t n;
		void *bytes = update_record_pack(&u, &n);
		ck_assert_int_eq(update_record_read(bytes, n, u.window, &back, why, sizeof(why)), ST_OK);
		expect_update(&back, &u);
		free(bytes);
		bytes = update_record_pack(&zero, &n); /* a value that is set to 0 is set */
		ck_assert_int_eq(update_record_read(bytes, n, set, &back, why, sizeof(why)), ST_OK);
		expect_update(&back, &zero);
		free(bytes);
	}
}
END_TEST

START_TEST(where_a_restored_job_stands_comes_back)
{
	for (int i = 0; i < 3; i++) {
		struct restored b = full_restored(i == 0 ? RESTORED_MAX_UPDATES : i == 1 ? 1 : 0), back;
		char why[200];
		size_t n;
		b.has_last = i != 2;
		void *bytes = restored_record_pack(&b, &n);
		ck_assert_msg(!restored_record_read(bytes, n, &back, why, sizeof(why)), "%s", why);
		ck_assert(back.window == 12 && back.applied_step == 11 && back.has_last == b.has_last);
		ck_assert(!b.has_last || !memcmp(&back.last, &b.last, sizeof(b.last)));
		ck_assert_uint_eq(back.n_updates, b.n_updates);
		for (uint32_t k = 0; k < b.n_updates; k++)
			expect_update(&back.update[k], &b.update[k]);
		free(bytes);
	}
}
END_TEST

/* ---- what makes no sense ---- */

START_TEST(senseless_commits_are_refused)
{
	struct commit k = full_commit(0);
	k.outcome = OUTCOME_NONE, expect_refused(&k, "Commit.outcome is 0, and must be 1 to 4"), k = full_commit(0);
	k.outcome = 5, expect_refused(&k, "Commit.outcome is 5"), k = full_commit(0);
	k.outcome = UINT32_MAX, expect_refused(&k, "Commit.outcome is 4294967295"), k = full_commit(0);
	k.skip_reason = 3, expect_refused(&k, "Commit.skip_reason is 3"), k = full_commit(0);
	k.next_micro_size = 0, expect_refused(&k, "Commit.next_micro_size is 0"), k = full_commit(0);
	k.next_micro_size = 31, expect_refused(&k, "next_micro_size 31, and the job has at most 30"),
	k = full_commit(0);
	k.micro_size = 31, expect_refused(&k, "Commit.micro_size is 31"), k = full_commit(0);
	k.last_rank = 3, expect_refused(&k, "Commit.last_rank is 3, and the job has 3 ranks"), k = full_commit(0);
	k.micro_count = 91, expect_refused(&k, "Commit.micro_count is 91, and the job has at most 90"),
	k = full_commit(0);
	k.next.scale.scale = 0, expect_refused(&k, "Commit.next.scale.scale is 0"), k = full_commit(0);
	k.next.scale.scale = INFINITY, expect_refused(&k, "Commit.next.scale.scale is inf"), k = full_commit(0);
	k.next.norms.sum = NAN, expect_refused(&k, "Commit.next.norms is nan"), k = full_commit(0);
	k.next.norms.weight = -1, expect_refused(&k, "Commit.next.norms"), k = full_commit(0);
}
END_TEST

START_TEST(counted_must_be_the_jobs)
{
	const uint64_t words[3] = { 1, UINT64_C(1) << (RANKS * MAX_MICRO - 64), 0 };
	struct commit k = full_commit(0);
	struct decided back;
	char why[200];
	size_t n;
	for (uint32_t n_words = 0; n_words <= 3; n_words++) {
		void *bytes = commit_record_pack(&k, words, n_words, &n);
		ck_assert_int_eq(commit_record_read(bytes, n, &bounds, k.window, &back, why, sizeof(why)),
				 ST_VERSION_SKEW);
		ck_assert_ptr_nonnull(strstr(why, n_words == 2 ? "bits beyond 3 ranks of 30" : "and the job needs 2"));
		free(bytes);
	}
	void *bytes = commit_record_pack(&k, words + 2, 1, &n);
	const struct message_bounds small = { 2, 32, 1 };
	k.next_micro_size = 1;
	ck_assert_int_eq(commit_record_read(bytes, n, &small, k.window + 1, &back, why, sizeof(why)), ST_VERSION_SKEW);
	free(bytes);
}
END_TEST

START_TEST(a_commit_of_another_window_is_refused)
{
	const uint64_t words[WORDS] = { 0 };
	struct commit k = full_commit(0);
	struct decided back;
	char why[200], want[60];
	size_t n;
	void *bytes = commit_record_pack(&k, words, WORDS, &n);
	ck_assert_int_eq(commit_record_read(bytes, n, &bounds, k.window + 1, &back, why, sizeof(why)), ST_VERSION_SKEW);
	snprintf(want, sizeof(want), "Commit.window is %llu", (unsigned long long)k.window);
	ck_assert_str_eq(why, want);
	free(bytes);
}
END_TEST

START_TEST(senseless_restored_jobs_are_refused)
{
	struct restored b = full_restored(3), back;
	char why[200];
	size_t n;
	b.last.window = 12;
	void *bytes = restored_record_pack(&b, &n);
	ck_assert_int_eq(restored_record_read(bytes, n, &back, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_str_eq(why, "RestoredRecord.last is of window 12, and the job begins with 12");
	free(bytes);
	b = full_restored(3);
	b.update[1].window = 3;
	bytes = restored_record_pack(&b, &n);
	ck_assert_int_eq(restored_record_read(bytes, n, &back, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_ptr_nonnull(strstr(why, "not in the order of their windows"));
	free(bytes);
	b = full_restored(3);
	b.last.outcome = 9;
	bytes = restored_record_pack(&b, &n);
	ck_assert_int_eq(restored_record_read(bytes, n, &back, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_ptr_nonnull(strstr(why, "Commit.outcome is 9"));
	free(bytes);
}
END_TEST

/* Bytes by hand: what a newer gaccd may write, and what nobody writes. */
START_TEST(unknown_fields_are_passed_over_but_in_updates)
{
	/* UpdateRecord{update{window 5, lr 1.0 (field 3)}}, then a field 9 in it, then one behind it */
	const uint8_t known[] = { 16, 0, 0, 0, 0x0a, 11, 0x08, 5, 0x19, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f };
	uint8_t inside[sizeof(known) + 2], behind[sizeof(known) + 2];
	struct update u;
	char why[200];
	ck_assert_int_eq(update_record_read(known, sizeof(known), 5, &u, why, sizeof(why)), ST_OK);
	ck_assert(u.window == 5 && u.set == VALUE_LR && u.to.lr == 1);
	ck_assert_int_eq(update_record_read(known, sizeof(known), 6, &u, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_str_eq(why, "Update.window is 5");
	memcpy(inside, known, sizeof(known));
	memcpy(inside + sizeof(known), (uint8_t[]){ 0x48, 1 }, 2);
	inside[5] += 2;
	ck_assert_int_eq(update_record_read(inside, sizeof(inside), 5, &u, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_str_eq(why, "Update has a value that this gaccd does not know (field 9)");
	memcpy(behind, known, sizeof(known));
	memcpy(behind + sizeof(known), (uint8_t[]){ 0x48, 1 }, 2);
	ck_assert_int_eq(update_record_read(behind, sizeof(behind), 5, &u, why, sizeof(why)), ST_OK);
}
END_TEST

START_TEST(what_is_missing_is_named)
{
	const uint8_t empty[] = { 16, 0, 0, 0 }, no_carry[] = { 16, 0, 0, 0, 0x0a, 2, 0x38, 1 },
		      no_value[] = { 16, 0, 0, 0, 0x0a, 2, 0x08, 5 };
	struct decided k;
	struct update u;
	char why[200];
	ck_assert_int_eq(commit_record_read(empty, sizeof(empty), &bounds, 0, &k, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_str_eq(why, "CommitRecord.commit is missing");
	ck_assert_int_eq(commit_record_read(no_carry, sizeof(no_carry), &bounds, 0, &k, why, sizeof(why)),
			 ST_VERSION_SKEW);
	ck_assert_str_eq(why, "Commit.next.scale is missing");
	ck_assert_int_eq(update_record_read(empty, sizeof(empty), 0, &u, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_str_eq(why, "UpdateRecord.update is missing");
	ck_assert_int_eq(update_record_read(no_value, sizeof(no_value), 5, &u, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_str_eq(why, "Update sets no value");
}
END_TEST

/* ---- any bytes ---- */

/* Whatever they are: refused with a sentence, or something that keeps the rules. */
static unsigned try_bytes(const uint8_t *bytes, size_t n)
{
	struct decided k;
	struct update u;
	struct restored b;
	unsigned accepted = 0;
	char why[200] = "";
	enum status st = commit_record_read(bytes, n, &bounds, 7, &k, why, sizeof(why));
	ck_assert(st == ST_OK || (st == ST_VERSION_SKEW && *why));
	if (!st) {
		ck_assert(k.commit.last_rank < RANKS && k.commit.outcome <= OUTCOME_DROPPED && k.n_words == WORDS);
		ck_assert(k.commit.window == 7 && !(k.counted[1] >> (RANKS * MAX_MICRO - 64)));
		free(k.counted);
	}
	accepted += !st;
	*why = '\0';
	st = update_record_read(bytes, n, 9, &u, why, sizeof(why));
	ck_assert(st == ST_OK || (st == ST_VERSION_SKEW && *why));
	accepted += !st;
	*why = '\0';
	st = restored_record_read(bytes, n, &b, why, sizeof(why));
	ck_assert(st == ST_OK || (st == ST_VERSION_SKEW && *why));
	ck_assert(st || (b.n_updates <= RESTORED_MAX_UPDATES && updates_ascend(b.update, b.n_updates)));
	accepted += !st;
	return accepted;
}

START_TEST(any_bytes_are_read_or_refused)
{
	struct commit k = full_commit(2);
	const uint64_t words[WORDS] = { 5, 6 };
	struct update u = full_update(9, 15);
	struct restored b = full_restored(2);
	size_t n;
	k.window = 7;
	void *bytes = commit_record_pack(&k, words, WORDS, &n);
	altered_try(bytes, n, 3000, try_bytes);
	free(bytes);
	bytes = update_record_pack(&u, &n);
	altered_try(bytes, n, 3000, try_bytes);
	free(bytes);
	bytes = restored_record_pack(&b, &n);
	altered_try(bytes, n, 3000, try_bytes);
	free(bytes);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("job records");
	TCase *c = tcase_create("job records");
	suite_add_tcase(s, c);
	tcase_add_test(c, a_commit_comes_back_as_it_was);
	tcase_add_test(c, extreme_numbers_come_back);
	tcase_add_test(c, updates_come_back);
	tcase_add_test(c, where_a_restored_job_stands_comes_back);
	tcase_add_test(c, senseless_commits_are_refused);
	tcase_add_test(c, counted_must_be_the_jobs);
	tcase_add_test(c, a_commit_of_another_window_is_refused);
	tcase_add_test(c, senseless_restored_jobs_are_refused);
	tcase_add_test(c, unknown_fields_are_passed_over_but_in_updates);
	tcase_add_test(c, what_is_missing_is_named);
	tcase_add_test(c, any_bytes_are_read_or_refused);
	return suite_run(s);
}
