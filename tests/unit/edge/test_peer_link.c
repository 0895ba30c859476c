/* SPDX-License-Identifier: Apache-2.0 */
/* What waits for another gaccd of the cluster: its order, its frames, its bound, and Beats between. The stream is the
 * test's, and says how much room it has; what it was given is read and joined as the other side does it. */
#include "edge/peer_link.h"

#include "base/log.h"
#include "gacc/internal/v1/peer.pb-c.h"
#include "support/suite.h"

#include <stdlib.h>
#include <string.h>

#define JOB 7
#define FRAME_ROOM 256 /* that a frame needs beside its bytes */
#define MOST 32

struct arrived {
	enum link_kind kind;
	uint32_t part;
	size_t n;
	uint8_t first, last;
};

static struct peer_link l;
static struct {
	size_t room;
	bool fails; /* each send */
	uint32_t n_failed;
	uint32_t n_frames, n_beats;
	uint64_t sent;	/* bytes of messages */
	size_t largest; /* frame */
	uint32_t n;	/* messages that are whole */
	struct arrived got[MOST];
	struct peer_assembly at;
} other;

static void take_frame(const struct peer_carried *c)
{
	struct link_message m;
	bool whole;
	char why[200];
	ck_assert_uint_le(c->n + FRAME_ROOM, other.room);
	other.n_frames++;
	other.sent += c->n;
	if (c->n > other.largest)
		other.largest = c->n;
	ck_assert_msg(!peer_assembly_take(&other.at, c, &m, &whole, why, sizeof(why)), "%s", why);
	other.room -= c->n + FRAME_ROOM;
	if (!whole)
		return;
	const uint8_t *bytes = m.bytes;
	ck_assert_uint_lt(other.n, MOST);
	ck_assert_uint_eq(m.job, JOB);
	other.got[other.n++] = (struct arrived){ m.kind, m.part, m.n, bytes[0], bytes[m.n - 1] };
}

static enum status send_there(void *ctx, const Gacc__Internal__V1__PeerMessage *pb)
{
	struct peer_message m;
	char why[200];
	ck_assert_ptr_eq(ctx, &other);
	if (other.fails) {
		other.n_failed++;
		return ST_RESOURCE_EXHAUSTED;
	}
	ck_assert_msg(!peer_message_read(pb, &m, why, sizeof(why)), "%s", why);
	other.n_beats += m.kind == PEER_BEAT;
	if (m.kind == PEER_CARRIED)
		take_frame(&m.carried);
	peer_message_release(&m);
	return ST_OK;
}

static size_t room_there(const void *ctx)
{
	return other.room;
}

static void setup(void)
{
	const struct peer_link_stream s = { .ctx = &other, .send = send_there, .room = room_there };
	log_init("test", LOG_TEXT, LOG_ERROR);
	memset(&other, 0, sizeof(other));
	peer_link_init(&l, &s, 5);
	ck_assert_int_eq(l.heard_ns, 5);
}

static void teardown(void)
{
	peer_link_fini(&l);
	ck_assert_ptr_null(l.first);
	ck_assert_uint_eq(l.queued, 0);
	peer_assembly_clear(&other.at);
}

/* Its first byte is `first`, its last one is first + 1. */
static uint8_t *bytes_of(size_t n, uint8_t first)
{
	uint8_t *bytes = calloc(n, 1);
	ck_assert_ptr_nonnull(bytes);
	bytes[n - 1] = (uint8_t)(first + 1);
	bytes[0] = first;
	return bytes;
}

static bool post(uint32_t part, size_t n)
{
	return peer_link_post(&l, LINK_TENSORS, JOB, part, bytes_of(n, (uint8_t)part), n, NULL);
}

static void pump(size_t room)
{
	other.room = room;
	peer_link_pump(&l);
}

static void check(uint32_t i, uint32_t part, size_t n)
{
	ck_assert_uint_lt(i, other.n);
	ck_assert_uint_eq(other.got[i].part, part);
	ck_assert_uint_eq(other.got[i].n, n);
	ck_assert_uint_eq(other.got[i].first, part);
	ck_assert_uint_eq(other.got[i].last, part + 1);
}

/* ---- frames ---- */

START_TEST(what_there_is_room_for_goes_at_once)
{
	other.room = 1 << 20;
	ck_assert(post(1, 100));
	ck_assert_uint_eq(other.n, 1);
	check(0, 1, 100);
	ck_assert_uint_eq(l.queued, 0);
	ck_assert_ptr_null(l.first);
}
END_TEST

START_TEST(messages_keep_their_order)
{
	for (uint32_t i = 0; i < 5; i++)
		ck_assert(post(i, 1000 + i));
	ck_assert_uint_eq(other.n_frames, 0);
	ck_assert_uint_eq(l.queued, 5 * 1000 + 10);
	pump(2 * (1001 + FRAME_ROOM));
	ck_assert_uint_eq(other.n, 2);
	ck_assert(post(5, 10)); /* behind those that wait, and the third has begun */
	pump(1 << 20);
	ck_assert_uint_eq(other.n, 6);
	for (uint32_t i = 0; i < 6; i++)
		check(i, i, i < 5 ? 1000 + i : 10);
	ck_assert_uint_eq(l.queued, 0);
	ck_assert(post(6, 10)); /* and it can be used when it was empty */
	check(6, 6, 10);
}
END_TEST

START_TEST(frames_are_as_large_as_the_room)
{
	ck_assert(post(3, 1000));
	pump(FRAME_ROOM); /* the frame itself has no room */
	ck_assert_uint_eq(other.n_frames, 0);
	pump(FRAME_ROOM + 1);
	ck_assert_uint_eq(other.sent, 1);
	pump(FRAME_ROOM + 600);
	ck_assert_uint_eq(other.sent, 601);
	ck_assert_uint_eq(other.n, 0);
	ck_assert_uint_eq(l.queued, 1000); /* held until all is sent */
	pump(FRAME_ROOM + 399);
	ck_assert_uint_eq(other.n_frames, 3);
	check(0, 3, 1000);
	ck_assert_ptr_null(l.first);
}
END_TEST

START_TEST(large_messages_are_many_frames)
{
	ck_assert(post(3, 3 * PEER_FRAME + 5));
	pump(64 << 20);
	ck_assert_uint_eq(other.n_frames, 4);
	ck_assert_uint_eq(other.largest, PEER_FRAME);
	check(0, 3, 3 * PEER_FRAME + 5);
}
END_TEST

START_TEST(a_frame_that_could_not_be_sent_is_sent_again)
{
	ck_assert(post(1, 2 * PEER_FRAME));
	pump(FRAME_ROOM + PEER_FRAME);
	ck_assert_uint_eq(other.sent, PEER_FRAME);
	other.fails = true;
	pump(8 << 20);
	ck_assert_uint_eq(other.n_failed, 1); /* it is not tried in a circle */
	ck_assert(post(2, 10));
	other.fails = false;
	pump(8 << 20);
	ck_assert_uint_eq(other.n, 2);
	check(0, 1, 2 * PEER_FRAME);
	check(1, 2, 10);
	ck_assert_uint_eq(other.sent, 2 * PEER_FRAME + 10);
	ck_assert_uint_eq(l.lost, 0);
}
END_TEST

START_TEST(an_end_that_is_shared_follows_and_is_let_go)
{
	uint8_t *data = bytes_of(3000, 8);
	struct shared *end = shared_new(data, 3000);
	ck_assert(peer_link_post(&l, LINK_TENSORS, JOB, 4, bytes_of(100, 4), 100, end));
	ck_assert_uint_eq(atomic_load(&end->holders), 2);
	ck_assert_uint_eq(l.queued, 3100);
	pump(1 << 20);
	ck_assert_uint_eq(atomic_load(&end->holders), 1);
	ck_assert_uint_eq(l.queued, 0);
	ck_assert_uint_eq(other.n, 1);
	ck_assert_uint_eq(other.got[0].n, 3100);
	ck_assert_uint_eq(other.got[0].first, 4);
	ck_assert_uint_eq(other.got[0].last, 9);
	shared_drop(end);
}
END_TEST

/* ---- what is lost ---- */

START_TEST(what_waits_is_bounded)
{
	ck_assert(post(0, PEER_LINK_QUEUE - 10));
	ck_assert(post(1, 10)); /* as much as may wait */
	ck_assert(!post(2, 1));
	ck_assert_uint_eq(l.lost, 1);
	ck_assert_uint_eq(l.queued, PEER_LINK_QUEUE);
	pump(SIZE_MAX / 2);
	ck_assert_uint_eq(other.n, 2);
	check(1, 1, 10);
	ck_assert(post(3, 10));
	check(2, 3, 10);
	ck_assert_uint_eq(l.lost, 1);
}
END_TEST

/* And a refused message's end is not held. */
START_TEST(one_message_may_be_larger_than_the_bound)
{
	struct shared *end = shared_new(bytes_of(PEER_LINK_QUEUE, 1), PEER_LINK_QUEUE);
	ck_assert(peer_link_post(&l, LINK_TENSORS, JOB, 0, bytes_of(100, 1), 100, end));
	ck_assert(!peer_link_post(&l, LINK_TENSORS, JOB, 0, bytes_of(100, 1), 100, end));
	ck_assert_uint_eq(atomic_load(&end->holders), 2);
	pump(SIZE_MAX / 2);
	ck_assert_uint_eq(other.n, 1);
	ck_assert_uint_eq(other.got[0].n, PEER_LINK_QUEUE + 100);
	shared_drop(end);
}
END_TEST

START_TEST(what_could_not_be_packed_is_lost)
{
	ck_assert(!peer_link_post(&l, LINK_REPORT, JOB, 0, NULL, 0, NULL));
	ck_assert_uint_eq(l.lost, 1);
	ck_assert_ptr_null(l.first);
}
END_TEST

/* The other side would refuse it, with the whole link. */
START_TEST(a_message_that_is_too_large_is_left_out)
{
	const size_t n = (size_t)peer_most(LINK_REPORT) + 1;
	ck_assert(post(1, 10));
	ck_assert(peer_link_post(&l, LINK_REPORT, JOB, 2, bytes_of(n, 2), n, NULL));
	ck_assert(post(3, 10));
	pump(1 << 20);
	ck_assert_uint_eq(other.n, 2);
	check(0, 1, 10);
	check(1, 3, 10);
	ck_assert_uint_eq(l.lost, 1);
	ck_assert_uint_eq(l.queued, 0);
}
END_TEST

START_TEST(what_waits_is_dropped_with_the_link)
{
	struct shared *end = shared_new(bytes_of(3000, 8), 3000);
	ck_assert(post(0, 3000));
	pump(FRAME_ROOM + 100);
	for (uint32_t i = 1; i < 4; i++)
		ck_assert(peer_link_post(&l, LINK_TENSORS, JOB, i, bytes_of(100, 4), 100, end));
	ck_assert_uint_eq(atomic_load(&end->holders), 4);
	peer_link_fini(&l);
	ck_assert_uint_eq(atomic_load(&end->holders), 1);
	ck_assert_uint_eq(other.n, 0);
	shared_drop(end);
}
END_TEST

/* ---- beats ---- */

#define SECOND INT64_C(1000000000)

START_TEST(beats_go_once_a_second)
{
	const struct member_beat beat = { .memory_limit = 2, .memory_used = 1 };
	peer_link_beat(&l, &beat, 100 * SECOND);
	peer_link_beat(&l, &beat, 101 * SECOND - 1);
	ck_assert_uint_eq(other.n_beats, 1);
	peer_link_beat(&l, &beat, 101 * SECOND);
	ck_assert_uint_eq(other.n_beats, 2);
	other.fails = true;
	peer_link_beat(&l, &beat, 102 * SECOND);
	other.fails = false;
	peer_link_beat(&l, &beat, 102 * SECOND + 1); /* the last one has not gone */
	peer_link_beat(&l, &beat, 102 * SECOND + 2);
	ck_assert_uint_eq(other.n_beats, 3);
}
END_TEST

/* They overtake what waits, in the middle of a message too, and send what could not be sent before. */
START_TEST(beats_go_between_frames)
{
	const struct member_beat beat = { .memory_limit = 2 };
	ck_assert(post(1, 1000));
	pump(FRAME_ROOM + 400);
	peer_link_beat(&l, &beat, 100 * SECOND);
	ck_assert_uint_eq(other.n_beats, 1);
	ck_assert_uint_eq(other.sent, 400);
	other.room = 1 << 20;
	peer_link_beat(&l, &beat, 101 * SECOND);
	check(0, 1, 1000);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("peer_link");
	TCase *t = tcase_create("peer_link");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 30);
	tcase_add_test(t, what_there_is_room_for_goes_at_once);
	tcase_add_test(t, messages_keep_their_order);
	tcase_add_test(t, frames_are_as_large_as_the_room);
	tcase_add_test(t, large_messages_are_many_frames);
	tcase_add_test(t, a_frame_that_could_not_be_sent_is_sent_again);
	tcase_add_test(t, an_end_that_is_shared_follows_and_is_let_go);
	tcase_add_test(t, what_waits_is_bounded);
	tcase_add_test(t, one_message_may_be_larger_than_the_bound);
	tcase_add_test(t, what_could_not_be_packed_is_lost);
	tcase_add_test(t, a_message_that_is_too_large_is_left_out);
	tcase_add_test(t, what_waits_is_dropped_with_the_link);
	tcase_add_test(t, beats_go_once_a_second);
	tcase_add_test(t, beats_go_between_frames);
	return suite_run(s);
}
