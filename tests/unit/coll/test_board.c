/* SPDX-License-Identifier: Apache-2.0 */
/* The board: each row of the table in board.h. */
#include "coll/board.h"

#include "support/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static struct board *b;

static void setup(void)
{
	b = board_new();
	ck_assert_ptr_nonnull(b);
}

static void teardown(void)
{
	board_free(b);
}

static struct coll_id id_of(uint64_t job, uint64_t epoch, uint64_t term, uint64_t k)
{
	return (struct coll_id){ job, epoch, term, k };
}

static enum status put(const struct coll_id *id, uint32_t part, uint64_t life, const char *text)
{
	return board_put(b, id, part, life, text, strlen(text));
}

START_TEST(complete_when_all_are_there)
{
	struct coll_id id = id_of(7, 1, 1, 1);
	uint32_t n = 0, part[COLL_MAX_PARTS];
	ck_assert_int_eq(board_state(b, &id), BOARD_NONE);
	ck_assert_int_eq(board_open(b, &id, 3), ST_OK);
	ck_assert_int_eq(put(&id, 2, 22, "two"), ST_OK);
	ck_assert_int_eq(put(&id, 0, 20, "zero"), ST_OK);
	ck_assert_int_eq(board_state(b, &id), BOARD_COLLECTING);
	ck_assert_ptr_null(board_addresses(b, &id, &n));
	ck_assert_uint_eq(board_missing(b, &id, part), 1);
	ck_assert_uint_eq(part[0], 1);
	ck_assert_int_eq(put(&id, 1, 21, "one"), ST_OK);
	ck_assert_int_eq(board_state(b, &id), BOARD_COMPLETE);
	ck_assert_uint_eq(board_missing(b, &id, part), 0);
	const struct coll_address *all = board_addresses(b, &id, &n);
	ck_assert_uint_eq(n, 3);
	static const char *const text[] = { "zero", "one", "two" };
	for (uint32_t s = 0; s < 3; s++) {
		ck_assert_uint_eq(all[s].life, 20 + s);
		ck_assert_uint_eq(all[s].n_blob, strlen(text[s]));
		ck_assert_mem_eq(all[s].blob, text[s], strlen(text[s]));
	}
}
END_TEST

START_TEST(bytes_are_copied)
{
	struct coll_id id = id_of(7, 1, 1, 1);
	char text[] = "mine";
	uint32_t n;
	board_open(b, &id, 1);
	ck_assert_int_eq(put(&id, 0, 1, text), ST_OK);
	memset(text, 'x', sizeof(text) - 1);
	ck_assert_mem_eq(board_addresses(b, &id, &n)->blob, "mine", 4);
}
END_TEST

START_TEST(what_was_sent_again_changes_nothing)
{
	struct coll_id id = id_of(7, 1, 1, 1);
	board_open(b, &id, 2);
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(put(&id, 0, 1, "zero"), ST_OK);
	ck_assert_int_eq(board_state(b, &id), BOARD_COLLECTING);
	ck_assert_int_eq(put(&id, 1, 2, "one"), ST_OK);
	ck_assert_int_eq(put(&id, 0, 1, "zero"), ST_OK);
	ck_assert_int_eq(board_state(b, &id), BOARD_COMPLETE);
	ck_assert_int_eq(put(&id, 0, 1, "Zero"), ST_MALFORMED);
	ck_assert_int_eq(put(&id, 0, 1, "zero and more"), ST_MALFORMED);
}
END_TEST

START_TEST(second_life_is_refused)
{
	struct coll_id id = id_of(7, 1, 1, 1), next = id_of(7, 1, 1, 2);
	uint32_t n;
	board_open(b, &id, 2);
	ck_assert_int_eq(put(&id, 0, 100, "zero"), ST_OK);
	ck_assert_int_eq(put(&id, 0, 101, "zero"), ST_ALREADY_EXISTS);
	ck_assert_int_eq(put(&id, 1, 200, "one"), ST_OK);
	ck_assert_int_eq(put(&id, 0, 101, "zero again"), ST_ALREADY_EXISTS); /* also when complete */
	ck_assert_uint_eq(board_addresses(b, &id, &n)->life, 100);
	board_open(b, &next, 2);
	ck_assert_int_eq(put(&next, 0, 101, "zero again"), ST_OK);
}
END_TEST

START_TEST(only_what_was_opened)
{
	struct coll_id id = id_of(7, 2, 3, 4);
	const struct coll_id others[] = { id_of(8, 2, 3, 4), id_of(7, 1, 3, 4), id_of(7, 2, 2, 4), id_of(7, 2, 3, 5) };
	uint32_t part[COLL_MAX_PARTS];
	board_open(b, &id, 1);
	for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) {
		ck_assert_int_eq(put(&others[i], 0, 1, "x"), ST_STALE_ATTEMPT);
		ck_assert_int_eq(board_state(b, &others[i]), BOARD_NONE);
		ck_assert_uint_eq(board_missing(b, &others[i], part), 0);
	}
	ck_assert_uint_eq(board_count(b), 1);
	ck_assert_int_eq(put(&id, 0, 1, "x"), ST_OK);
}
END_TEST

START_TEST(sizes_are_bounded)
{
	struct coll_id id = id_of(7, 1, 1, 1), big = id_of(7, 1, 1, 2);
	char *blob = calloc(1, COLL_MAX_BLOB + 1);
	ck_assert_int_eq(board_open(b, &id, 0), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(board_open(b, &id, COLL_MAX_PARTS + 1), ST_INVALID_ARGUMENT);
	ck_assert_uint_eq(board_count(b), 0);
	ck_assert_int_eq(board_open(b, &big, COLL_MAX_PARTS), ST_OK);
	ck_assert_int_eq(board_open(b, &id, 2), ST_OK);
	ck_assert_int_eq(board_open(b, &id, 2), ST_OK);
	ck_assert_int_eq(board_open(b, &id, 3), ST_INVALID_ARGUMENT);
	ck_assert_uint_eq(board_count(b), 2);
	ck_assert_int_eq(put(&id, 2, 1, "x"), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(put(&id, UINT32_MAX, 1, "x"), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(put(&id, 0, 0, "x"), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(put(&id, 0, 1, ""), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(board_put(b, &id, 0, 1, blob, COLL_MAX_BLOB + 1), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(board_put(b, &id, 0, 1, blob, COLL_MAX_BLOB), ST_OK);
	for (uint32_t s = 0; s < COLL_MAX_PARTS; s++)
		ck_assert_int_eq(put(&big, s, s + 1, "x"), ST_OK);
	ck_assert_int_eq(board_state(b, &big), BOARD_COMPLETE);
	free(blob);
}
END_TEST

START_TEST(purge_keeps_the_present_one)
{
	const struct coll_id id[] = { id_of(7, 1, 1, 1), id_of(7, 1, 1, 2), id_of(7, 1, 2, 0), id_of(7, 2, 2, 0),
				      id_of(8, 0, 0, 0) };
	enum { N = sizeof(id) / sizeof(*id) };
	for (int i = N; i-- > 0;) { /* not in their order */
		board_open(b, &id[i], 1);
		put(&id[i], 0, 1, "x");
	}
	board_purge(b, &id[0]);
	ck_assert_uint_eq(board_count(b), N);
	board_purge(b, &id[2]);
	ck_assert_uint_eq(board_count(b), N - 2);
	for (int i = 0; i < N; i++)
		ck_assert_int_eq(board_state(b, &id[i]), i < 2 ? BOARD_NONE : BOARD_COMPLETE);
	ck_assert_int_eq(put(&id[1], 0, 1, "x"), ST_STALE_ATTEMPT);
	board_purge_job(b, 7);
	ck_assert_uint_eq(board_count(b), 1);
	ck_assert_int_eq(board_state(b, &id[4]), BOARD_COMPLETE);
}
END_TEST

/* More than the array begins with, and opened again after a purge. */
START_TEST(many)
{
	for (uint64_t k = 0; k < 100; k++) {
		struct coll_id id = id_of(k % 3, 1, 1, k);
		ck_assert_int_eq(board_open(b, &id, 2), ST_OK);
		ck_assert_int_eq(put(&id, 1, k + 1, "x"), ST_OK);
	}
	for (uint64_t k = 0; k < 100; k++) {
		struct coll_id id = id_of(k % 3, 1, 1, k);
		ck_assert_int_eq(put(&id, 0, k + 1, "y"), ST_OK);
		ck_assert_int_eq(board_state(b, &id), BOARD_COMPLETE);
	}
	for (uint64_t job = 0; job < 3; job++)
		board_purge_job(b, job);
	ck_assert_uint_eq(board_count(b), 0);
	struct coll_id id = id_of(0, 1, 1, 0);
	ck_assert_int_eq(board_open(b, &id, 1), ST_OK);
	ck_assert_int_eq(board_state(b, &id), BOARD_COLLECTING);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("board");
	TCase *t = tcase_create("board");
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, complete_when_all_are_there);
	tcase_add_test(t, bytes_are_copied);
	tcase_add_test(t, what_was_sent_again_changes_nothing);
	tcase_add_test(t, second_life_is_refused);
	tcase_add_test(t, only_what_was_opened);
	tcase_add_test(t, sizes_are_bounded);
	tcase_add_test(t, purge_keeps_the_present_one);
	tcase_add_test(t, many);
	suite_add_tcase(s, t);
	return suite_run(s);
}
