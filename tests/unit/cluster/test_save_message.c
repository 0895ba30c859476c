/* SPDX-License-Identifier: Apache-2.0 */
/* A wish for a checkpoint and its answer: every field goes through its message, and what is wrong with one is said. */
#include "cluster/save_message.h"
#include "support/suite.h"
#include "unit/cluster/altered.h"
#include "unit/cluster/fields.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4 };

static char why[200];

static struct save full_save(void)
{
	struct save s = { .job_id = 101,
			  .epoch = 102,
			  .part = 3,
			  .term = 104,
			  .number = 105,
			  .window = 106,
			  .inside_window = true,
			  .own_only = true,
			  .states = true };
	memset(s.path, 'x', SAVE_MAX_PATH);
	s.path[0] = '/';
	return s;
}

static struct part_saved full_saved(void)
{
	struct part_saved s = { .job_id = 101,
				.epoch = 102,
				.part = 3,
				.term = 104,
				.number = 105,
				.passed = true,
				.status = ST_IO_ERROR,
				.text = "no room on node-\xc3\xa9",
				.window = 106,
				.applied_step = 105,
				.params_digest = UINT64_C(0xfedcba9876543210),
				.count = 107,
				.loss_scale = 0.5,
				.sum_weight = 1.5,
				.sum_loss = -2.5,
				.window_lr = 3.5,
				.micro_size = 108,
				.last_rank = 2,
				.lr_rank = 3,
				.dir = { 109, 110 },
				.n_states = 4 };
	fields_fill(s.file, sizeof(s.file), 1);
	fields_fill(&s.states, sizeof(s.states), 2);
	return s;
}
/* A member that is added and not compared below changes the size. */
_Static_assert(sizeof(struct save) == 56 + SAVE_MAX_PATH + 1 && sizeof(struct part_saved) == 512, "compared below");

static enum status save_through(const struct save *s, struct save *out)
{
	size_t n;
	void *bytes = save_pack(s, &n);
	enum status st = save_unpack(bytes, n, out, why, sizeof(why));
	free(bytes);
	return st;
}

static enum status saved_through(const struct part_saved *s, struct part_saved *out)
{
	size_t n;
	void *bytes = saved_pack(s, &n);
	enum status st = saved_unpack(bytes, n, RANKS, out, why, sizeof(why));
	free(bytes);
	return st;
}

START_TEST(a_wish_comes_back)
{
	struct save s = full_save(), back;
	memset(&back, 0x5a, sizeof(back));
	ck_assert_int_eq(save_through(&s, &back), ST_OK);
	ck_assert_uint_eq(back.job_id, 101);
	ck_assert_uint_eq(back.epoch, 102);
	ck_assert_uint_eq(back.part, 3);
	ck_assert_uint_eq(back.term, 104);
	ck_assert_uint_eq(back.number, 105);
	ck_assert_uint_eq(back.window, 106);
	ck_assert(back.inside_window && back.own_only && back.states && !back.states_alone);
	ck_assert_str_eq(back.path, s.path);
	ck_assert_uint_eq(strlen(back.path), SAVE_MAX_PATH);
	s.inside_window = s.own_only = false;
	s.states_alone = true;
	ck_assert_int_eq(save_through(&s, &back), ST_OK);
	ck_assert(!back.inside_window && !back.own_only && back.states && back.states_alone);
}
END_TEST

START_TEST(an_answer_comes_back)
{
	struct part_saved s = full_saved(), back;
	memset(&back, 0x5a, sizeof(back));
	ck_assert_int_eq(saved_through(&s, &back), ST_OK);
	ck_assert_uint_eq(back.job_id, 101);
	ck_assert_uint_eq(back.epoch, 102);
	ck_assert_uint_eq(back.part, 3);
	ck_assert_uint_eq(back.term, 104);
	ck_assert_uint_eq(back.number, 105);
	ck_assert(back.passed);
	ck_assert_int_eq(back.status, ST_IO_ERROR);
	ck_assert_str_eq(back.text, s.text);
	ck_assert_uint_eq(back.window, 106);
	ck_assert_uint_eq(back.applied_step, 105);
	ck_assert_uint_eq(back.params_digest, s.params_digest);
	ck_assert_uint_eq(back.count, 107);
	ck_assert_double_eq(back.loss_scale, 0.5);
	ck_assert_double_eq(back.sum_weight, 1.5);
	ck_assert_double_eq(back.sum_loss, -2.5);
	ck_assert_double_eq(back.window_lr, 3.5);
	ck_assert_uint_eq(back.micro_size, 108);
	ck_assert_uint_eq(back.last_rank, 2);
	ck_assert_uint_eq(back.lr_rank, 3);
	ck_assert_uint_eq(back.dir.dev, 109);
	ck_assert_uint_eq(back.dir.ino, 110);
	ck_assert_mem_eq(back.file, s.file, sizeof(s.file));
	ck_assert_mem_eq(&back.states, &s.states, sizeof(s.states));
	ck_assert_uint_eq(back.n_states, 4);
	s = (struct part_saved){ .epoch = 1, .term = 1, .number = 1, .last_rank = UINT32_MAX }; /* nobody pushed */
	ck_assert_int_eq(saved_through(&s, &back), ST_OK);
	ck_assert(!back.passed && back.status == ST_OK);
	ck_assert_uint_eq(back.last_rank, UINT32_MAX);
	ck_assert_str_eq(back.text, "");
}
END_TEST

#define REFUSED_SAVE(change, text)                                                                                     \
	do {                                                                                                           \
		struct save s = full_save(), back;                                                                     \
		change;                                                                                                \
		ck_assert_int_eq(save_through(&s, &back), ST_VERSION_SKEW);                                            \
		ck_assert_str_eq(why, text);                                                                           \
	} while (0)
#define REFUSED_SAVED(change, text)                                                                                    \
	do {                                                                                                           \
		struct part_saved s = full_saved(), back;                                                              \
		change;                                                                                                \
		ck_assert_int_eq(saved_through(&s, &back), ST_VERSION_SKEW);                                           \
		ck_assert_str_eq(why, text);                                                                           \
	} while (0)

START_TEST(senseless_ones_are_refused)
{
	REFUSED_SAVE(s.epoch = 0, "Save.epoch is missing");
	REFUSED_SAVE(s.term = 0, "Save.term is missing");
	REFUSED_SAVE(s.number = 0, "Save.number is missing");
	REFUSED_SAVE(s.states_alone = true, "Save.states_alone is set inside a window");
	REFUSED_SAVE(s.states_alone = true;
		     s.states = s.inside_window = false, "Save.states_alone is set without states");
	REFUSED_SAVE(s.path[0] = 'x', "Save.path has 4095 bytes, and is no absolute path of at most 4095");
	REFUSED_SAVE(s.path[0] = '\0', "Save.path has 0 bytes, and is no absolute path of at most 4095");
	REFUSED_SAVED(s.epoch = 0, "Saved.epoch is missing");
	REFUSED_SAVED(s.term = 0, "Saved.term is missing");
	REFUSED_SAVED(s.number = 0, "Saved.number is missing");
	REFUSED_SAVED(s.last_rank = RANKS, "Saved.last_rank is 4 and lr_rank 3, and the job has 4 ranks");
	REFUSED_SAVED(s.lr_rank = RANKS, "Saved.last_rank is 2 and lr_rank 4, and the job has 4 ranks");
	REFUSED_SAVED(s.n_states = RANKS + 1, "Saved.n_states is 5, and the job has 4 ranks");
	REFUSED_SAVED(s.states.bytes = 0, "Saved.states is no file, with n_states 4");
	REFUSED_SAVED(s.applied_step = 107, "Saved.applied_step is 107, before window 106");
}
END_TEST

/* The path has a NUL, or one byte more than there is room for; a file is missing, or its sum is short. */
START_TEST(what_no_gaccd_sends_is_refused)
{
	struct save s = full_save(), back;
	struct part_saved is = full_saved(), other;
	size_t n;
	s.own_only = s.states = false; /* which lie behind the path */
	uint8_t *bytes = save_pack(&s, &n);
	bytes[n - 1] = '\0';
	ck_assert_int_eq(save_unpack(bytes, n, &back, why, sizeof(why)), ST_VERSION_SKEW);
	bytes[n - 1] = 'x';
	ck_assert_int_eq(save_unpack(bytes, n, &back, why, sizeof(why)), ST_OK);
	/* the path is the last field, and its length are the two bytes before it: 4095 is ff 1f, 4096 is 80 20 */
	uint8_t *longer = malloc(n + 1);
	memcpy(longer, bytes, n);
	ck_assert_uint_eq(longer[n - SAVE_MAX_PATH - 2], 0xff);
	longer[n - SAVE_MAX_PATH - 2] = 0x80;
	longer[n - SAVE_MAX_PATH - 1] = 0x20;
	longer[n] = 'x';
	ck_assert_int_eq(save_unpack(longer, n + 1, &back, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_str_eq(why, "Save.path has 4096 bytes, and is no absolute path of at most 4095");
	free(longer);
	free(bytes);
	bytes = saved_pack(&is, &n);
	while (--n && bytes[n] != 0xb2) /* tag of Saved.file, of which its first byte is this: the last one goes */
		;
	ck_assert_int_eq(saved_unpack(bytes, n, RANKS, &other, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_str_eq(why, "Saved.file has 3 files, and must have 4");
	free(bytes);
}
END_TEST

START_TEST(texts_are_mended)
{
	struct part_saved s = full_saved(), back;
	memset(s.text, 'x', sizeof(s.text) - 1);
	s.text[10] = '\xff';
	ck_assert_int_eq(saved_through(&s, &back), ST_OK);
	ck_assert_uint_eq(strlen(back.text), sizeof(s.text) - 1);
	ck_assert_int_eq(back.text[10], '?');
}
END_TEST

static unsigned try_bytes(const uint8_t *bytes, size_t n)
{
	struct save s;
	struct part_saved is;
	why[0] = '\0';
	enum status st = save_unpack(bytes, n, &s, why, sizeof(why));
	ck_assert(st == ST_OK || (st == ST_VERSION_SKEW && *why));
	ck_assert(st || (s.path[0] == '/' && s.number));
	why[0] = '\0';
	enum status other = saved_unpack(bytes, n, RANKS, &is, why, sizeof(why));
	ck_assert(other == ST_OK || (other == ST_VERSION_SKEW && *why));
	ck_assert(other || !is.count || (is.last_rank < RANKS && is.lr_rank < RANKS));
	return (st == ST_OK) + (other == ST_OK);
}

START_TEST(altered_ones_do_no_harm)
{
	struct save s = full_save();
	struct part_saved is = full_saved();
	size_t n;
	strcpy(s.path, "/a/path");
	void *bytes = _i ? saved_pack(&is, &n) : save_pack(&s, &n);
	altered_try(bytes, n, 20000, try_bytes);
	free(bytes);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("save_message");
	TCase *c = tcase_create("save_message");
	suite_add_tcase(suite, c);
	tcase_add_test(c, a_wish_comes_back);
	tcase_add_test(c, an_answer_comes_back);
	tcase_add_test(c, senseless_ones_are_refused);
	tcase_add_test(c, what_no_gaccd_sends_is_refused);
	tcase_add_test(c, texts_are_mended);
	tcase_add_loop_test(c, altered_ones_do_no_harm, 0, 2);
	return suite_run(suite);
}
