/* SPDX-License-Identifier: Apache-2.0 */
/* Questions for pieces of logs, and their answers: every number goes through its message, and what is wrong with one is
 * said. */
#include "cluster/log_message.h"
#include "support/suite.h"
#include "unit/cluster/altered.h"

#include <stdlib.h>
#include <string.h>

static uint8_t data[LOG_PIECE_BYTES + 1];

static struct log_ask some_ask(void)
{
	return (struct log_ask){ .job_id = 101,
				 .number = 102,
				 .uuid = "fifteen letters",
				 .rank = 103,
				 .file = 104,
				 .offset = 105,
				 .from_end = true,
				 .tail = 106 };
}

static struct log_piece some_piece(void)
{
	memset(data, 0xff, sizeof(data));
	return (struct log_piece){ .job_id = 101,
				   .number = 102,
				   .status = ST_IO_ERROR,
				   .text = "no",
				   .missing = true,
				   .more = true,
				   .file = 103,
				   .offset = LOG_PIECE_BYTES,
				   .data = data,
				   .n = LOG_PIECE_BYTES };
}

START_TEST(a_question_comes_back)
{
	const struct log_ask a = some_ask();
	struct log_ask back;
	char why[200];
	size_t n;
	void *bytes = log_ask_pack(&a, &n);
	ck_assert_int_eq(log_ask_unpack(bytes, n, &back, why, sizeof(why)), ST_OK);
	ck_assert(back.job_id == 101 && back.number == 102 && back.rank == 103 && back.file == 104);
	ck_assert(back.offset == 105 && back.from_end && back.tail == 106 && !memcmp(back.uuid, a.uuid, 16));
	free(bytes);
}
END_TEST
/* A member that is added and not compared above changes the size. */
_Static_assert(sizeof(struct log_ask) == 72, "compared above");

START_TEST(senseless_questions_are_refused)
{
	struct log_ask a, back;
	char why[200];
	size_t n;
	for (int k = 0; k < 2; k++) {
		a = some_ask();
		*(k ? &a.number : &a.job_id) = 0;
		void *bytes = log_ask_pack(&a, &n);
		ck_assert_int_eq(log_ask_unpack(bytes, n, &back, why, sizeof(why)), ST_VERSION_SKEW);
		ck_assert_str_eq(why, k ? "LogAsk.number is missing" : "LogAsk.job_id is missing");
		free(bytes);
	}
	ck_assert_int_eq(log_ask_unpack("\x08\x01\x10\x01", 4, &back, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_str_eq(why, "LogAsk.uuid has 0 bytes, and must have 16");
	ck_assert_int_eq(log_ask_unpack("\x0a", 1, &back, why, sizeof(why)), ST_VERSION_SKEW);
}
END_TEST

static enum status through(const struct log_piece *p, struct log_piece *out, char why[200])
{
	size_t n;
	void *bytes = log_piece_pack(p, &n);
	ck_assert_ptr_nonnull(bytes);
	enum status st = log_piece_unpack(bytes, n, out, why, 200);
	free(bytes);
	return st;
}

START_TEST(a_piece_comes_back)
{
	const struct log_piece p = some_piece();
	struct log_piece back;
	char why[200];
	ck_assert_int_eq(through(&p, &back, why), ST_OK);
	ck_assert(back.job_id == 101 && back.number == 102 && back.status == ST_IO_ERROR && !strcmp(back.text, "no"));
	ck_assert(back.missing && back.more && back.file == 103 && back.offset == LOG_PIECE_BYTES);
	ck_assert(back.n == LOG_PIECE_BYTES && !memcmp(back.data, data, back.n));
	log_piece_release(&back);
	ck_assert_ptr_null(back.message);
}
END_TEST
_Static_assert(sizeof(struct log_piece) == 264, "compared above");

START_TEST(senseless_pieces_are_refused)
{
	struct log_piece p = some_piece(), back;
	char why[200];
#define REFUSED(change, text_)                                                                                         \
	do {                                                                                                           \
		change;                                                                                                \
		ck_assert_int_eq(through(&p, &back, why), ST_VERSION_SKEW);                                            \
		ck_assert_str_eq(why, text_);                                                                          \
		p = some_piece();                                                                                      \
	} while (0)
	REFUSED(p.job_id = 0, "LogPiece.job_id is missing");
	REFUSED(p.number = 0, "LogPiece.number is missing");
	REFUSED(p.file = 0, "LogPiece.file is missing");
	REFUSED(p.n++, "LogPiece.data has 32769 bytes, and may have 32768");
	REFUSED(p.offset--, "LogPiece.offset is 32767 after 32768 bytes");
#undef REFUSED
	ck_assert_int_eq(log_piece_unpack("\x0a", 1, &back, why, sizeof(why)), ST_VERSION_SKEW);
}
END_TEST

static unsigned try_bytes(const uint8_t *bytes, size_t n)
{
	struct log_piece p;
	char why[200] = "";
	enum status st = log_piece_unpack(bytes, n, &p, why, sizeof(why));
	ck_assert(st == ST_OK || (st == ST_VERSION_SKEW && *why));
	if (!st) {
		ck_assert(p.n <= n && p.offset >= p.n);
		log_piece_release(&p);
	}
	return st == ST_OK;
}

START_TEST(any_bytes_are_read_or_refused)
{
	struct log_piece p = some_piece();
	size_t n;
	p.n = 10;
	p.offset = 11;
	void *bytes = log_piece_pack(&p, &n);
	altered_try(bytes, n, 6000, try_bytes);
	free(bytes);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("log message");
	TCase *c = tcase_create("log message");
	suite_add_tcase(s, c);
	tcase_add_test(c, a_question_comes_back);
	tcase_add_test(c, senseless_questions_are_refused);
	tcase_add_test(c, a_piece_comes_back);
	tcase_add_test(c, senseless_pieces_are_refused);
	tcase_add_test(c, any_bytes_are_read_or_refused);
	return suite_run(s);
}
