/* SPDX-License-Identifier: Apache-2.0 */
/* The control page. */
#include "engine/control_page.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Suite *control_suite(void);

#define RANKS 3
#define MAX_MICRO 30
#define THREADS 2
#define TENSORS 5

static struct control_page page;
static struct control_state state, seen;
static unsigned char *memory;
static size_t memory_bytes;

static void setup(void)
{
	memory_bytes = control_page_bytes(RANKS, MAX_MICRO, THREADS, TENSORS);
	memory = aligned_alloc(64, memory_bytes);
	memset(memory, 0, memory_bytes);
	control_page_view(&page, memory, RANKS, MAX_MICRO, THREADS, TENSORS);
	ck_assert_int_eq(control_state_init(&state, RANKS, MAX_MICRO), ST_OK);
	ck_assert_int_eq(control_state_init(&seen, RANKS, MAX_MICRO), ST_OK);
	state.r.micro_size = 4;
}

static void teardown(void)
{
	control_state_fini(&state);
	control_state_fini(&seen);
	control_state_fini(NULL);
	free(memory);
}

static bool read_page(void)
{
	bool corrupt;
	return control_page_read(&page, &seen, &corrupt);
}

/* Changes every part of the state, so that a mixture of two records shows. */
static void publish_next(void)
{
	state.r.window++;
	state.r.sum_weight += 0.5;
	state.r.commit_next_loss_scale += 1;
	state.rank[RANKS - 1].counted++;
	control_set_bit(state.counted, MAX_MICRO, RANKS - 1, (uint32_t)state.r.window % MAX_MICRO);
	control_set_bit(state.voided, MAX_MICRO, 0, (uint32_t)state.r.window % MAX_MICRO);
	state.last_counted[state.n_words - 1] = state.r.window;
	control_page_publish(&page, &state);
}

static void assert_seen(const struct control_state *want)
{
	ck_assert_mem_eq(&seen.r, &want->r, sizeof(seen.r));
	ck_assert_mem_eq(seen.rank, want->rank, RANKS * sizeof(*seen.rank));
	ck_assert_mem_eq(seen.counted, want->counted, seen.n_words * 8);
	ck_assert_mem_eq(seen.voided, want->voided, seen.n_words * 8);
	ck_assert_mem_eq(seen.last_counted, want->last_counted, seen.n_words * 8);
}

START_TEST(parts_are_aligned_and_do_not_overlap)
{
	unsigned char *end = memory + 2 * page.record_bytes;
	ck_assert_uint_eq(page.bytes, memory_bytes);
	ck_assert_uint_eq(page.record_bytes % 64, 0);
	ck_assert_ptr_eq(control_page_ledger(&page, 0, 0), end);
	end = (unsigned char *)(control_page_ledger(&page, RANKS - 1, MAX_MICRO - 1) + 1);
	for (uint32_t i = 0; i < THREADS * UNDO_SHARES; i++) {
		unsigned char *stamp = (unsigned char *)control_page_stamp(&page, i);
		ck_assert_uint_eq((uintptr_t)stamp % 64, 0);
		ck_assert(stamp >= end);
		end = stamp + sizeof(struct undo_stamp);
	}
	for (uint32_t i = 0; i < THREADS * UNDO_SHARES; i++) {
		unsigned char *undo = control_page_undo(&page, i);
		ck_assert_uint_eq((uintptr_t)undo % 64, 0);
		ck_assert(undo >= end);
		end = undo + UNDO_AREA_BYTES;
	}
	unsigned char *norms = (unsigned char *)control_page_norms(&page);
	ck_assert_uint_eq((uintptr_t)norms % 64, 0);
	ck_assert_ptr_eq(end, norms);
	end = (unsigned char *)(control_page_norms(&page) + TENSORS);
	unsigned char *trust = (unsigned char *)control_page_trust(&page);
	ck_assert_uint_eq((uintptr_t)trust % 64, 0);
	ck_assert(trust >= end);
	end = (unsigned char *)(control_page_trust(&page) + TENSORS);
	ck_assert(end <= memory + memory_bytes && memory + memory_bytes - end < 64);
	ck_assert_uint_eq(control_page_bytes(UINT32_MAX, UINT32_MAX, 1, 1), 0);
	ck_assert_uint_eq(control_page_bytes(1, 1, 1, UINT64_MAX), 0);
}
END_TEST

START_TEST(a_new_page_is_empty_and_a_damaged_one_corrupt)
{
	bool corrupt = true;
	ck_assert(!control_page_read(&page, &seen, &corrupt));
	ck_assert(!corrupt);
	memory[page.record_bytes + 100] = 1;
	ck_assert(!control_page_read(&page, &seen, &corrupt));
	ck_assert(corrupt);
}
END_TEST

/* A sound checksum around a state that no engine writes: as good as no record. */
static const struct {
	size_t offset;
	uint32_t value;
} absurd[] = {
	{ offsetof(struct control_record, micro_size), MAX_MICRO + 1 },
	{ offsetof(struct control_record, commit_micro_size), MAX_MICRO + 1 },
	{ offsetof(struct control_record, phase), WINDOW_APPLYING + 1 },
	{ offsetof(struct control_record, x), 2 },
	{ offsetof(struct control_record, n_zero), SEGMENT_MAX_ZERO + 1 },
	{ offsetof(struct control_record, last_rank), RANKS },
	{ offsetof(struct control_record, ranks), RANKS + 1 },
};

START_TEST(a_record_that_points_outside_is_refused)
{
	publish_next();
	struct control_record good = state.r;
	memcpy((unsigned char *)&state.r + absurd[_i].offset, &absurd[_i].value, sizeof(uint32_t));
	control_page_publish(&page, &state);
	state.r = good;
	ck_assert(read_page()); /* the one before it */
	ck_assert_uint_eq(seen.r.seq, 1);
	assert_seen(&state);
}
END_TEST

START_TEST(the_last_record_is_in_force)
{
	for (int i = 0; i < 5; i++) {
		publish_next();
		ck_assert(read_page());
		ck_assert_uint_eq(seen.r.seq, i + 1);
		assert_seen(&state);
	}
}
END_TEST

/* A page of other dimensions must not be taken for ours, even when its checksum is right. */
START_TEST(a_record_of_another_job_shape_is_corrupt)
{
	bool corrupt = false;
	state.r.ranks = RANKS - 1;
	publish_next();
	ck_assert(!control_page_read(&page, &seen, &corrupt));
	ck_assert(corrupt);
}
END_TEST

/* Against the bits one by one, for rank 1 and every count; bits of ranks 0 and 2 lie in the same words. */
START_TEST(bits_of_a_rank_are_counted)
{
	enum { BITS = 150 };
	uint64_t map[(3 * BITS + 63) / 64] = { 0 };
	for (uint32_t i = 0; i < 3 * BITS; i += 1 + i % 7)
		control_set_bit(map, BITS, i / BITS, i % BITS);
	uint32_t count = 0;
	for (uint32_t n = 0; n <= BITS; n++) {
		ck_assert_uint_eq(control_count(map, BITS, 1, n), count);
		count += n < BITS && control_bit(map, BITS, 1, n);
	}
	ck_assert_uint_gt(count, BITS / 7);
}
END_TEST

START_TEST(any_damaged_byte_falls_back_to_the_other_record)
{
	publish_next();
	publish_next();
	ck_assert(read_page());
	struct control_state last = state;
	publish_next();
	unsigned char *half = memory + (state.r.seq & 1) * page.record_bytes;
	for (size_t i = 0; i < page.record_bytes; i++) {
		half[i] ^= 0x10;
		ck_assert(read_page());
		ck_assert_uint_eq(seen.r.seq, last.r.seq);
		half[i] ^= 0x10;
	}
	ck_assert(read_page());
	ck_assert_uint_eq(seen.r.seq, state.r.seq);
}
END_TEST

/* The writer died after having written any prefix, or any suffix, of the next record over the idle one. */
START_TEST(a_torn_record_is_the_old_one_or_the_new_one)
{
	bool from_end = _i;
	for (int i = 0; i < 3; i++)
		publish_next();
	unsigned char *before = malloc(memory_bytes), *after = malloc(memory_bytes);
	memcpy(before, memory, memory_bytes);
	ck_assert(read_page());
	uint64_t seq = seen.r.seq;
	publish_next();
	memcpy(after, memory, memory_bytes);
	size_t at = (state.r.seq & 1) * page.record_bytes, n = page.record_bytes;
	for (size_t k = 0; k <= n; k++) {
		memcpy(memory, before, memory_bytes);
		size_t from = from_end ? n - k : 0;
		memcpy(memory + at + from, after + at + from, k);
		ck_assert(read_page());
		bool whole = memcmp(memory, after, memory_bytes) == 0;
		ck_assert_uint_eq(seen.r.seq, whole ? seq + 1 : seq);
		if (whole)
			assert_seen(&state);
	}
	free(before);
	free(after);
}
END_TEST

/* The stores of publish itself, one 8-byte word after the other: the words, the checksum, and seq last. */
START_TEST(every_store_of_a_publish_leaves_one_valid_record)
{
	for (int i = 0; i < 3; i++)
		publish_next();
	uint64_t *after = malloc(memory_bytes), *now = (uint64_t *)memory, seq = state.r.seq;
	unsigned char *before = malloc(memory_bytes);
	memcpy(before, memory, memory_bytes);
	publish_next();
	memcpy(after, memory, memory_bytes);
	memcpy(memory, before, memory_bytes);
	size_t at = (state.r.seq & 1) * page.record_bytes / 8, n = page.record_bytes / 8;
	for (size_t i = 1; i < n; i++) {
		ck_assert(read_page());
		ck_assert_uint_eq(seen.r.seq, seq);
		now[at + i] = after[at + i];
	}
	ck_assert(read_page());
	ck_assert_uint_eq(seen.r.seq, seq);
	now[at] = after[at];
	ck_assert(read_page());
	ck_assert_uint_eq(seen.r.seq, seq + 1);
	free(after);
	free(before);
}
END_TEST

Suite *control_suite(void)
{
	Suite *s = suite_create("control");
	TCase *t = tcase_create("page");
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, parts_are_aligned_and_do_not_overlap);
	tcase_add_test(t, a_new_page_is_empty_and_a_damaged_one_corrupt);
	tcase_add_loop_test(t, a_record_that_points_outside_is_refused, 0, sizeof(absurd) / sizeof(absurd[0]));
	tcase_add_test(t, the_last_record_is_in_force);
	tcase_add_test(t, a_record_of_another_job_shape_is_corrupt);
	tcase_add_test(t, bits_of_a_rank_are_counted);
	tcase_add_test(t, any_damaged_byte_falls_back_to_the_other_record);
	tcase_add_loop_test(t, a_torn_record_is_the_old_one_or_the_new_one, 0, 2);
	tcase_add_test(t, every_store_of_a_publish_leaves_one_valid_record);
	suite_add_tcase(s, t);
	return s;
}
