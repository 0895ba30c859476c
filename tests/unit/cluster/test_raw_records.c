/* SPDX-License-Identifier: Apache-2.0 */
/* Records of earlier gaccds, made here byte by byte: every field comes out where it belongs, and what is cut, too long
 * or of another version is refused. tests/golden/journals has whole journals of them. */
#include "cluster/raw_records.h"
#include "support/suite.h"
#include "unit/cluster/fields.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, MAX_MICRO = 30, WORDS = 2, COMMIT_BYTES = 296, BEFORE_AT = 184, UPDATE_BYTES = 48, BARE_BYTES = 320 };
static const struct message_bounds bounds = { RANKS, MAX_MICRO, 1 };

/* struct commit has not changed since they were written, so that all of its bytes can be compared. When it does, this
 * is to compare field by field. */
_Static_assert(sizeof(struct commit) == COMMIT_BYTES && offsetof(struct commit, params_before) == BEFORE_AT,
	       "the same");
_Static_assert(sizeof(struct update) == UPDATE_BYTES, "the same");

static struct commit full_commit(void)
{
	struct commit k;
	fields_fill(&k, sizeof(k), 5);
	k.window = 11;
	k.outcome = OUTCOME_SKIPPED;
	k.skip_reason = SKIP_NONFINITE;
	k.micro_size = 2;
	k.next_micro_size = 3;
	k.micro_count = 6;
	k.last_rank = 2;
	return k;
}

static size_t put(uint8_t *to, size_t at, const void *from, size_t n)
{
	memcpy(to + at, from, n);
	return at + n;
}

static size_t put_commit(uint8_t *to, size_t at, const struct commit *k, bool older)
{
	const size_t after = BEFORE_AT + sizeof(uint64_t);
	at = put(to, at, k, older ? BEFORE_AT : after);
	return put(to, at, (const char *)k + after, sizeof(*k) - after);
}

static size_t put_words(uint8_t *to, uint32_t version, uint32_t second)
{
	const uint32_t head[2] = { version, second };
	return put(to, 0, head, sizeof(head));
}

static size_t make_commit(uint8_t *to, const struct commit *k, uint32_t version)
{
	const uint64_t words[WORDS] = { 77, 78 };
	size_t n = put_words(to, version, WORDS);
	return put(to, put_commit(to, n, k, version == 2), words, sizeof(words));
}

static size_t make_restored(uint8_t *to, const struct commit *last, uint32_t version, bool older, uint64_t n_updates)
{
	const uint64_t numbers[2] = { 12, 9 };
	size_t n = put(to, put_words(to, version, 1), numbers, sizeof(numbers));
	n = put_commit(to, n, last, older);
	if (version == 1)
		return n;
	n = put(to, n, &n_updates, sizeof(n_updates));
	for (uint64_t i = 0; i < n_updates; i++) {
		struct update u = { 12 + i, 15, { 4, 0.5, 0.25, (double)i } };
		n = put(to, n, &u, sizeof(u));
	}
	return n;
}

START_TEST(commits_of_both_forms_are_read)
{
	for (uint32_t version = 2; version <= 3; version++) {
		struct commit k = full_commit();
		struct decided back;
		uint8_t bytes[COMMIT_BYTES + 64];
		char why[200];
		size_t n = make_commit(bytes + 1, &k, version); /* at an odd address */
		ck_assert_msg(!commit_record_read(bytes + 1, n, &bounds, 11, &back, why, sizeof(why)), "%s", why);
		if (version == 2)
			k.params_before = 0;
		ck_assert_mem_eq(&back.commit, &k, sizeof(k));
		ck_assert(back.n_words == WORDS && back.counted[0] == 77 && back.counted[1] == 78);
		free(back.counted);
	}
}
END_TEST

START_TEST(commits_that_are_none_are_refused)
{
	struct commit k = full_commit();
	struct decided back;
	uint8_t bytes[COMMIT_BYTES + 64] = { 0 };
	char why[200];
	size_t n = make_commit(bytes, &k, 3);
	for (size_t cut = 0; cut <= n + 8; cut++)
		ck_assert_int_eq(commit_record_read(bytes, cut, &bounds, 11, &back, why, sizeof(why)),
				 cut == n ? ST_OK : ST_VERSION_SKEW);
	free(back.counted);
	bytes[0] = 1;
	ck_assert_int_eq(commit_record_read(bytes, n, &bounds, 11, &back, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_str_eq(why, "it has another form: 1 in 320 bytes");
	k.outcome = 7; /* judged as messages are */
	make_commit(bytes, &k, 3);
	ck_assert_int_eq(commit_record_read(bytes, n, &bounds, 11, &back, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_ptr_nonnull(strstr(why, "Commit.outcome is 7"));
}
END_TEST

START_TEST(updates_are_read)
{
	const struct update u = { 9, 13, { 4, 0.5, 0.25, 0.125 } };
	struct update back;
	uint8_t bytes[64] = { 0 };
	char why[200];
	size_t n = put(bytes, put_words(bytes, 1, 0), &u, sizeof(u));
	ck_assert_int_eq(update_record_read(bytes, n, 9, &back, why, sizeof(why)), ST_OK);
	ck_assert(back.window == 9 && back.set == 13 && back.to.micro_size == 4 && back.to.lr == 0.5 &&
		  back.to.clip_norm == 0.25 && back.to.clip_value == 0.125);
	ck_assert_int_eq(update_record_read(bytes, n - 1, 9, &back, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_int_eq(update_record_read(bytes, n, 8, &back, why, sizeof(why)), ST_VERSION_SKEW);
	bytes[16] = 16; /* `set` */
	ck_assert_int_eq(update_record_read(bytes, n, 9, &back, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_str_eq(why, "Update has a value that this gaccd does not know");
	bytes[16] = 13;
	bytes[0] = 2;
	ck_assert_int_eq(update_record_read(bytes, n, 9, &back, why, sizeof(why)), ST_VERSION_SKEW);
}
END_TEST

START_TEST(where_restored_jobs_stand_is_read_in_all_forms)
{
	uint8_t bytes[BARE_BYTES + 8 + (RESTORED_MAX_UPDATES + 1) * UPDATE_BYTES];
	for (uint64_t n_updates = 0; n_updates <= RESTORED_MAX_UPDATES + 1; n_updates++)
		for (int form = 0; form < (n_updates ? 2 : 3); form++) {
			struct commit k = full_commit();
			struct restored back;
			char why[200];
			size_t n = make_restored(bytes, &k, form == 2 ? 1 : 2, form > 0, n_updates);
			enum status st = restored_record_read(bytes, n, &back, why, sizeof(why));
			ck_assert_int_eq(st, n_updates > RESTORED_MAX_UPDATES ? ST_VERSION_SKEW : ST_OK);
			if (st)
				continue;
			if (form > 0)
				k.params_before = 0;
			ck_assert(back.window == 12 && back.applied_step == 9 && back.has_last);
			ck_assert_mem_eq(&back.last, &k, sizeof(k));
			ck_assert_uint_eq(back.n_updates, n_updates);
			ck_assert(!n_updates || back.update[n_updates - 1].to.clip_value == (double)(n_updates - 1));
			ck_assert_int_eq(restored_record_read(bytes, n - 1, &back, why, sizeof(why)), ST_VERSION_SKEW);
		}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("raw records");
	TCase *c = tcase_create("raw records");
	suite_add_tcase(s, c);
	tcase_add_test(c, commits_of_both_forms_are_read);
	tcase_add_test(c, commits_that_are_none_are_refused);
	tcase_add_test(c, updates_are_read);
	tcase_add_test(c, where_restored_jobs_stand_is_read_in_all_forms);
	return suite_run(s);
}
