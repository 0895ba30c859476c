/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of engines, and boards of them: every field goes through a message, and what is wrong with one is said,
 * without a byte of an address. */
#include "cluster/board_message.h"
#include "support/suite.h"
#include "unit/cluster/altered.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { PARTS = 3 };
static char why[200];
static uint8_t big[COLL_MAX_BLOB + 1];

static struct part_blob full_blob(void)
{
	return (struct part_blob){ .job_id = 1,
				   .epoch = 2,
				   .part = PARTS - 1,
				   .term = 3,
				   .comm = 4,
				   .life = UINT64_MAX,
				   .bytes = "secret",
				   .n = 6 };
}

static struct coll_address address[COLL_MAX_PARTS];

static struct part_board full_board(void)
{
	for (uint32_t i = 0; i < COLL_MAX_PARTS; i++)
		address[i] = (struct coll_address){ 100 + i, &"secret"[i % 5], 6 - i % 5 };
	return (struct part_board){
		.job_id = 1, .epoch = 2, .term = 3, .comm = 4, .n_parts = PARTS, .address = address
	};
}
/* A member that is added and not compared below changes the size. */
_Static_assert(sizeof(struct part_blob) == 64 && sizeof(struct part_board) == 48, "compared below");
_Static_assert(sizeof(struct coll_address) == 24, "compared below");

static enum status through(const struct part_blob *b, struct held_blob *back)
{
	size_t n;
	void *bytes = blob_pack(b, &n);
	*why = '\0';
	enum status st = blob_unpack(bytes, n, PARTS, back, why, sizeof(why));
	free(bytes);
	return st;
}

static enum status board_through(const struct part_board *b, uint32_t parts, struct held_board *back)
{
	size_t n;
	void *bytes = board_pack(b, &n);
	*why = '\0';
	enum status st = board_unpack(bytes, n, parts, back, why, sizeof(why));
	free(bytes);
	return st;
}

START_TEST(an_address_comes_back)
{
	struct part_blob b = full_blob();
	struct held_blob back;
	const size_t sizes[] = { 6, 1, COLL_MAX_BLOB };
	memset(big, 'x', sizeof(big));
	b.bytes = _i ? big : b.bytes;
	b.n = sizes[_i];
	ck_assert_msg(!through(&b, &back), "%s", why);
	ck_assert(back.blob.job_id == 1 && back.blob.epoch == 2 && back.blob.part == PARTS - 1 && back.blob.term == 3);
	ck_assert(back.blob.comm == 4 && back.blob.life == UINT64_MAX);
	ck_assert(back.blob.n == b.n && !memcmp(back.blob.bytes, b.bytes, b.n));
	blob_release(&back);
}
END_TEST

START_TEST(a_board_comes_back)
{
	struct part_board b = full_board();
	struct held_board back;
	b.n_parts = _i ? COLL_MAX_PARTS : PARTS;
	ck_assert_msg(!board_through(&b, b.n_parts, &back), "%s", why);
	ck_assert(back.board.job_id == 1 && back.board.epoch == 2 && back.board.term == 3 && back.board.comm == 4);
	ck_assert_uint_eq(back.board.n_parts, b.n_parts);
	for (uint32_t i = 0; i < b.n_parts; i++) {
		const struct coll_address *a = &back.board.address[i];
		ck_assert(a->life == 100 + i && a->n_blob == address[i].n_blob);
		ck_assert(!memcmp(a->blob, address[i].blob, a->n_blob));
	}
	board_release(&back);
}
END_TEST

#define REFUSED(change, text)                                                                                          \
	do {                                                                                                           \
		struct part_blob b = full_blob();                                                                      \
		struct held_blob back;                                                                                 \
		change;                                                                                                \
		ck_assert_int_eq(through(&b, &back), ST_VERSION_SKEW);                                                 \
		ck_assert_str_eq(why, text);                                                                           \
	} while (0)
#define REFUSED_BOARD(change, text)                                                                                    \
	do {                                                                                                           \
		struct part_board b = full_board();                                                                    \
		struct held_board back;                                                                                \
		change;                                                                                                \
		ck_assert_int_eq(board_through(&b, PARTS, &back), ST_VERSION_SKEW);                                    \
		ck_assert_str_eq(why, text);                                                                           \
	} while (0)

START_TEST(senseless_ones_are_refused)
{
	REFUSED(b.epoch = 0, "PartBlob.epoch is missing");
	REFUSED(b.term = 0, "PartBlob.term is missing");
	REFUSED(b.comm = 0, "PartBlob.comm is missing");
	REFUSED(b.life = 0, "PartBlob.life is missing");
	REFUSED(b.part = PARTS, "PartBlob.part is 3, and the job has 3 parts");
	REFUSED(b.n = 0, "PartBlob.address has 0 bytes, and must have 1 to 65536");
	REFUSED((b.bytes = big, b.n = COLL_MAX_BLOB + 1), "PartBlob.address has 65537 bytes, and must have 1 to 65536");
	REFUSED_BOARD(b.epoch = 0, "PartBoard.epoch is missing");
	REFUSED_BOARD(b.term = 0, "PartBoard.term is missing");
	REFUSED_BOARD(b.comm = 0, "PartBoard.comm is missing");
	REFUSED_BOARD(b.n_parts = 2, "PartBoard.part has 2 addresses, and the job has 3 parts");
	REFUSED_BOARD(b.n_parts = 4, "PartBoard.part has 4 addresses, and the job has 3 parts");
	REFUSED_BOARD(address[2].life = 0, "PartAddress.life is missing");
	REFUSED_BOARD(address[0].n_blob = 0, "PartAddress.address has 0 bytes, and must have 1 to 65536");
	REFUSED_BOARD((address[1].blob = big, address[1].n_blob = COLL_MAX_BLOB + 1),
		      "PartAddress.address has 65537 bytes, and must have 1 to 65536");
}
END_TEST

static unsigned try_bytes(const uint8_t *bytes, size_t n)
{
	static struct held_board board;
	struct held_blob blob;
	why[0] = '\0';
	enum status st = blob_unpack(bytes, n, PARTS, &blob, why, sizeof(why));
	ck_assert(st == ST_OK || (st == ST_VERSION_SKEW && *why));
	ck_assert_ptr_null(strstr(why, "sec"));
	if (!st) {
		ck_assert(blob.blob.life && blob.blob.part < PARTS && blob.blob.n && blob.blob.n <= n);
		blob_release(&blob);
	}
	why[0] = '\0';
	enum status other = board_unpack(bytes, n, PARTS, &board, why, sizeof(why));
	ck_assert(other == ST_OK || (other == ST_VERSION_SKEW && *why));
	ck_assert_ptr_null(strstr(why, "sec"));
	for (uint32_t i = 0; i < PARTS && !other; i++)
		ck_assert(board.address[i].life && board.address[i].n_blob && board.address[i].n_blob <= n);
	if (!other)
		board_release(&board);
	return (st == ST_OK) + (other == ST_OK);
}

START_TEST(altered_ones_do_no_harm)
{
	struct part_blob b = full_blob();
	struct part_board board = full_board();
	size_t n;
	void *bytes = _i ? board_pack(&board, &n) : blob_pack(&b, &n);
	altered_try(bytes, n, 20000, try_bytes);
	free(bytes);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("board_message");
	TCase *c = tcase_create("board_message");
	suite_add_tcase(suite, c);
	tcase_add_loop_test(c, an_address_comes_back, 0, 3);
	tcase_add_loop_test(c, a_board_comes_back, 0, 2);
	tcase_add_test(c, senseless_ones_are_refused);
	tcase_add_loop_test(c, altered_ones_do_no_harm, 0, 2);
	return suite_run(suite);
}
