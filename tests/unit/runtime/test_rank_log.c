/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces of a rank's log: from the beginning or its last lines, across a rotation, and only what is its owner's. */
#include "runtime/rank_log.h"

#include "support/scratch.h"
#include "support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RANK = 3 };
static char dir[SCRATCH_PATH], path[SCRATCH_PATH + 32], older[SCRATCH_PATH + 32];
static uint8_t room[LOG_PIECE_BYTES];
static struct log_piece piece;

static void setup(void)
{
	ck_assert(scratch_make(dir));
	snprintf(path, sizeof(path), "%s/worker_%d.log", dir, RANK);
	snprintf(older, sizeof(older), "%s/worker_%d.log.1", dir, RANK);
}

static void append(const char *text)
{
	FILE *f = fopen(path, "a");
	ck_assert(f && fputs(text, f) >= 0 && !fclose(f));
}

/* What follows the piece before. */
static void next(void)
{
	const struct log_ask a = { .rank = RANK, .file = piece.file, .offset = piece.offset };
	rank_log_read(dir, RANK_LOG_OF_DIR, &a, room, &piece);
}

static void expect(const char *text, bool more)
{
	ck_assert_int_eq(piece.status, ST_OK);
	ck_assert_uint_eq(piece.n, strlen(text));
	ck_assert(!memcmp(piece.data, text, piece.n) && piece.more == more && !piece.missing);
}

static void expect_tail(uint64_t tail, const char *text)
{
	const struct log_ask a = { .rank = RANK, .from_end = true, .tail = tail };
	rank_log_read(dir, RANK_LOG_OF_DIR, &a, room, &piece);
	expect(text, false);
}

START_TEST(a_log_is_read_as_it_grows)
{
	next();
	ck_assert(piece.missing && !piece.file && !piece.n && !piece.status);
	append("one\n");
	next();
	expect("one\n", false);
	next();
	expect("", false);
	append("two\nthr");
	next();
	expect("two\nthr", false);
	ck_assert_uint_eq(piece.offset, 11);
}
END_TEST

START_TEST(a_rotation_loses_no_line)
{
	append("one\n");
	next();
	append("two\n");
	ck_assert(!rename(path, older));
	append("three\n");
	next();
	expect("two\n", true);
	next();
	expect("three\n", false);
	ck_assert(!rename(path, older));
	append("four\n");
	next(); /* the older one has been read to its end */
	expect("four\n", false);
	ck_assert(!truncate(path, 2));
	next(); /* it begins anew */
	expect("fo", false);
}
END_TEST

START_TEST(the_last_lines_are_found)
{
	append("one\ntwo\nthree\n");
	expect_tail(0, "");
	expect_tail(1, "three\n");
	expect_tail(2, "two\nthree\n");
	expect_tail(3, "one\ntwo\nthree\n");
	expect_tail(UINT64_MAX, "one\ntwo\nthree\n");
	append("half");
	expect_tail(1, "half");
	expect_tail(2, "three\nhalf");
}
END_TEST

/* They are not looked for in all of a long log. */
START_TEST(the_last_lines_of_a_long_log_are_bounded)
{
	const struct log_ask a = { .rank = RANK, .from_end = true, .tail = 1 };
	append("one\n");
	ck_assert(!truncate(path, RANK_LOG_SCAN + 100));
	append("x");
	rank_log_read(dir, RANK_LOG_OF_DIR, &a, room, &piece);
	ck_assert_uint_eq(piece.n, LOG_PIECE_BYTES);
	ck_assert_uint_eq(piece.offset, 101 + LOG_PIECE_BYTES);
	ck_assert(piece.more);
}
END_TEST

START_TEST(a_piece_has_a_size)
{
	append("one\n");
	ck_assert(!truncate(path, LOG_PIECE_BYTES + 1));
	next();
	ck_assert(piece.n == LOG_PIECE_BYTES && piece.more);
	next();
	ck_assert(piece.n == 1 && !piece.more);
}
END_TEST

static void expect_unreadable(uint32_t owner)
{
	const struct log_ask a = { .rank = RANK };
	rank_log_read(dir, owner, &a, room, &piece);
	ck_assert_int_eq(piece.status, ST_IO_ERROR);
	ck_assert(!piece.n && !piece.missing && strstr(piece.text, "cannot read "));
}

START_TEST(only_regular_files_of_the_owner_are_logs)
{
	ck_assert(!mkfifo(path, 0600));
	expect_unreadable(geteuid());
	ck_assert(!unlink(path) && !symlink("/etc/passwd", path));
	expect_unreadable(geteuid());
	ck_assert(!unlink(path));
	append("one\n");
	expect_unreadable(geteuid() + 70001);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("rank_log");
	TCase *t = tcase_create("rank_log");
	tcase_add_checked_fixture(t, setup, NULL);
	suite_add_tcase(s, t);
	tcase_add_test(t, a_log_is_read_as_it_grows);
	tcase_add_test(t, a_rotation_loses_no_line);
	tcase_add_test(t, the_last_lines_are_found);
	tcase_add_test(t, the_last_lines_of_a_long_log_are_bounded);
	tcase_add_test(t, a_piece_has_a_size);
	tcase_add_test(t, only_regular_files_of_the_owner_are_logs);
	return suite_run(s);
}
