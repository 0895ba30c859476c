/* SPDX-License-Identifier: Apache-2.0 */
/* Messages in frames: they come back whole, of every size, and what does not go on with a message is refused. */
#include "cluster/peer_frames.h"
#include "support/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static char why[300];

static struct shared *bytes_of(size_t n, unsigned seed)
{
	uint8_t *data = malloc(n ? n : 1);
	for (size_t i = 0; i < n; i++)
		data[i] = (uint8_t)(seed + i * 31 + (i >> 9));
	return shared_new(data, n);
}

/* Sends and receives; how many frames it took. `a` may have had others before. */
static unsigned pass(struct peer_assembly *a, size_t n_head, size_t n_end)
{
	struct shared *head = bytes_of(n_head, 1), *end = n_end ? bytes_of(n_end, 2) : NULL;
	const struct link_message m = {
		.kind = LINK_PLACEMENT, .job = 9, .part = 3, .bytes = head->data, .n = n_head, .end = end
	};
	struct link_message out;
	struct peer_carried c, again;
	struct peer_frames f;
	unsigned frames = 0;
	bool whole = false;
	ck_assert_int_eq(peer_frames_begin(&f, &m, why, sizeof(why)), ST_OK);
	while (peer_frames_next(&f, &c)) {
		ck_assert(!whole && c.n && c.n <= PEER_FRAME);
		ck_assert(peer_frames_next(&f, &again) && again.bytes == c.bytes && again.rest == c.rest);
		peer_frames_sent(&f, &c);
		ck_assert_msg(!peer_assembly_take(a, &c, &out, &whole, why, sizeof(why)), "%s", why);
		ck_assert_uint_le(a->room, 2 * (n_head + n_end - c.rest));
		frames++;
	}
	ck_assert(whole && out.kind == LINK_PLACEMENT && out.job == 9 && out.part == 3 && !out.end);
	ck_assert_uint_eq(out.n, n_head + n_end);
	ck_assert(!memcmp(out.bytes, head->data, n_head));
	ck_assert(!n_end || !memcmp((const uint8_t *)out.bytes + n_head, end->data, n_end));
	shared_drop(head);
	shared_drop(end);
	return frames;
}

START_TEST(messages_come_back)
{
	struct peer_assembly a = { 0 };
	const size_t f = PEER_FRAME;
	ck_assert_uint_eq(pass(&a, 1, 0), 1);
	ck_assert_ptr_null(a.bytes); /* no copy */
	ck_assert_uint_eq(pass(&a, f, 0), 1);
	ck_assert_ptr_null(a.bytes);
	ck_assert_uint_eq(pass(&a, f + 1, 0), 2);
	ck_assert_uint_eq(pass(&a, 10, 1), 2);
	ck_assert_uint_eq(pass(&a, 5 * f - 1, 0), 5);
	ck_assert_uint_eq(pass(&a, 10, f), 2);
	ck_assert_uint_eq(pass(&a, f, f + 1), 3);
	ck_assert_uint_eq(pass(&a, 2 * f + 7, 20 * f), 23);
	ck_assert_uint_eq(pass(&a, 3, 0), 1);
	ck_assert_ptr_null(a.bytes); /* nor is the memory of the one before kept */
	ck_assert_uint_eq(pass(&a, 0, 5), 1);
	peer_assembly_clear(&a);
}
END_TEST

START_TEST(a_message_that_the_other_side_would_refuse_is_not_begun)
{
	struct shared end = { .n = (16 << 20) - 1 };
	struct link_message m = { .kind = LINK_REPORT, .job = 1, .bytes = "x", .n = 1, .end = &end };
	struct peer_frames f;
	ck_assert_int_eq(peer_frames_begin(&f, &m, why, sizeof(why)), ST_OK);
	end.n++;
	ck_assert_int_eq(peer_frames_begin(&f, &m, why, sizeof(why)), ST_RESOURCE_EXHAUSTED);
	ck_assert_str_eq(why, "a message of kind 0 has 16777217 bytes, and may have 16777216");
	m.kind = LINK_TENSORS;
	end.n = (128 << 20) - 1;
	ck_assert_int_eq(peer_frames_begin(&f, &m, why, sizeof(why)), ST_OK);
	end.n++;
	ck_assert_int_eq(peer_frames_begin(&f, &m, why, sizeof(why)), ST_RESOURCE_EXHAUSTED);
	m.kind = LINK_PLACEMENT;
	end.n--;
	ck_assert_int_eq(peer_frames_begin(&f, &m, why, sizeof(why)), ST_OK);
}
END_TEST

static const struct peer_carried first = { LINK_TENSORS, 5, 2, "0123", 4, 6 };

static enum status second(struct peer_carried c, struct link_message *out, bool *whole)
{
	static struct peer_assembly a;
	peer_assembly_clear(&a);
	*why = '\0';
	ck_assert(!peer_assembly_take(&a, &first, out, whole, why, sizeof(why)) && !*whole);
	enum status st = peer_assembly_take(&a, &c, out, whole, why, sizeof(why));
	ck_assert(!st || !*whole);
	return st;
}

#define REFUSED(change, text)                                                                                          \
	do {                                                                                                           \
		struct peer_carried c = first;                                                                         \
		struct link_message out;                                                                               \
		bool whole;                                                                                            \
		c.rest = 2;                                                                                            \
		change;                                                                                                \
		ck_assert_int_eq(second(c, &out, &whole), ST_VERSION_SKEW);                                            \
		ck_assert_str_eq(why, text);                                                                           \
	} while (0)

START_TEST(frames_that_go_on_are_taken)
{
	struct peer_carried c = first;
	struct link_message out;
	bool whole;
	c.rest = 2;
	ck_assert(!second(c, &out, &whole) && !whole);
	c.n = 1;
	c.rest = 5;
	ck_assert(!second(c, &out, &whole) && !whole);
}
END_TEST

START_TEST(frames_that_do_not_go_on_are_refused)
{
	REFUSED(c.kind = LINK_KEPT, "Carried.kind is 7 in the middle of a message of kind 6");
	REFUSED(c.job = 6, "Carried.job_id is 6 in the middle of a message about job 5");
	REFUSED(c.part = 1, "Carried.part is 1 in the middle of a message about part 2");
	REFUSED(c.rest = 3, "Carried.rest is 3 after 4 bytes, where 6 were to come in all");
	REFUSED(c.rest = 1, "Carried.rest is 1 after 4 bytes, where 6 were to come in all");
	REFUSED(c.rest = 0, "Carried.rest is 0 after 4 bytes, where 6 were to come in all");
	REFUSED((c.bytes = "0123456", c.n = 7, c.rest = 0),
		"Carried.rest is 0 after 7 bytes, where 6 were to come in all");
	REFUSED((c.bytes = "0123456", c.n = 7, c.rest = UINT64_C(0) - 1),
		"Carried.rest is 18446744073709551615 after 7 bytes, where 6 were to come in all");
}
END_TEST

/* A frame that announces the most and brings one byte costs two. */
START_TEST(what_is_announced_takes_no_memory)
{
	struct peer_assembly a = { 0 };
	struct link_message out;
	bool whole;
	struct peer_carried c = { LINK_PLACEMENT, 1, 0, "x", 1, (UINT64_C(128) << 20) - 1 };
	for (unsigned i = 1; i < 100; i++, c.rest--) {
		ck_assert(!peer_assembly_take(&a, &c, &out, &whole, why, sizeof(why)) && !whole);
		ck_assert_uint_le(a.room, 2 * i);
		ck_assert_uint_eq(a.n, i);
	}
	peer_assembly_clear(&a);
	/* what a broken link left half is no beginning of the next one's */
	c.rest = 0;
	ck_assert(!peer_assembly_take(&a, &c, &out, &whole, why, sizeof(why)) && whole && out.n == 1);
	peer_assembly_clear(&a);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("peer frames");
	TCase *c = tcase_create("peer frames");
	suite_add_tcase(s, c);
	tcase_add_test(c, messages_come_back);
	tcase_add_test(c, a_message_that_the_other_side_would_refuse_is_not_begun);
	tcase_add_test(c, frames_that_go_on_are_taken);
	tcase_add_test(c, frames_that_do_not_go_on_are_refused);
	tcase_add_test(c, what_is_announced_takes_no_memory);
	return suite_run(s);
}
