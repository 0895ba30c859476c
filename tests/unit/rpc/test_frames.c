/* SPDX-License-Identifier: Apache-2.0 */
/* What the frames of a connection make gRPC keep and do. */
#include "rpc/frames.h"

#include "support/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION };
enum { END_STREAM = 1, ACK = 1, END_HEADERS = 4 };
#define PREFACE "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#define S 1000000000ll
#define STREAMS 100

static uint8_t bytes[1 << 20];
static size_t n_bytes;
static struct frames f;

static void put(unsigned kind, unsigned flags, uint32_t id, uint32_t length, uint32_t code)
{
	uint8_t head[9] = { (uint8_t)(length >> 16), (uint8_t)(length >> 8), (uint8_t)length,
			    (uint8_t)kind,	     (uint8_t)flags,	     (uint8_t)(id >> 24),
			    (uint8_t)(id >> 16),     (uint8_t)(id >> 8),     (uint8_t)id };
	memcpy(bytes + n_bytes, head, sizeof(head));
	memset(bytes + n_bytes + sizeof(head), 0, length);
	if (length == 4)
		bytes[n_bytes + 12] = (uint8_t)code;
	n_bytes += sizeof(head) + length;
}

static void start(void)
{
	frames_init(&f, STREAMS, 0);
	ck_assert_ptr_null(frames_received(&f, PREFACE, 24, 0));
	n_bytes = 0;
}

static const char *receive(unsigned kind, unsigned flags, uint32_t id, uint32_t length);

/* A client that has acknowledged gaccd's settings. */
static void start_acknowledged(void)
{
	start();
	ck_assert_ptr_null(receive(SETTINGS, ACK, 0, 0));
}

/* What was put comes at this time. */
static const char *come(int64_t now)
{
	const char *why = frames_received(&f, bytes, n_bytes, now);
	n_bytes = 0;
	return why;
}

static void go(void)
{
	frames_sent(&f, bytes, n_bytes);
	n_bytes = 0;
}

static const char *receive(unsigned kind, unsigned flags, uint32_t id, uint32_t length)
{
	put(kind, flags, id, length, 8);
	return come(0);
}

static void send_frame(unsigned kind, unsigned flags, uint32_t id, uint32_t length, uint32_t code)
{
	put(kind, flags, id, length, code);
	go();
}

START_TEST(a_stream_is_open_until_somebody_ends_it)
{
	start();
	for (uint32_t id = 1; id < 11; id += 2)
		ck_assert_ptr_null(receive(HEADERS, END_HEADERS, id, 100));
	ck_assert_uint_eq(f.n_streams, 5);
	ck_assert_uint_eq(f.bytes, 5 * (FRAMES_CALL_BYTES + 200));
	ck_assert_ptr_null(receive(HEADERS, END_HEADERS | END_STREAM, 5, 50)); /* trailers: half-closed */
	ck_assert_ptr_null(receive(DATA, END_STREAM, 3, 5));
	const size_t small = f.bytes - 5 * (FRAMES_CALL_BYTES + 200) - 100; /* that piece of data */
	ck_assert(small > 5 && small < 200);
	ck_assert_ptr_null(receive(DATA, 0, 9, 1000)); /* which gRPC's quota counts */
	ck_assert_uint_eq(f.bytes, 5 * (FRAMES_CALL_BYTES + 200) + 100 + small);
	ck_assert_ptr_null(receive(RST_STREAM, 0, 5, 4));
	send_frame(HEADERS, END_HEADERS, 3, 10, 0);
	send_frame(DATA, 0, 3, 100, 0);
	ck_assert_uint_eq(f.n_streams, 4);
	send_frame(HEADERS, END_HEADERS | END_STREAM, 3, 10, 0);
	send_frame(RST_STREAM, 0, 3, 4, 0); /* once more: not another one's */
	send_frame(RST_STREAM, 0, 9, 4, 0);
	send_frame(DATA, END_STREAM, 1, 0, 0);
	ck_assert_uint_eq(f.n_streams, 1);
	ck_assert_uint_eq(f.bytes, FRAMES_CALL_BYTES + 200);
	ck_assert_uint_eq(f.stream[0].id, 7);
	ck_assert_uint_eq(f.throttled, 0);
	send_frame(RST_STREAM, 0, 7, 4, 11);
	ck_assert_uint_eq(f.throttled, 1);
	ck_assert(f.n_streams == 0 && f.bytes == 0);
	frames_fini(&f);
}
END_TEST

/* gRPC overlooks them. */
START_TEST(ids_that_begin_no_stream)
{
	start();
	ck_assert_ptr_null(receive(HEADERS, END_HEADERS, 0, 10));
	ck_assert_ptr_null(receive(HEADERS, END_HEADERS, 6, 10));
	ck_assert_ptr_null(receive(HEADERS, END_HEADERS, 5, 10));
	ck_assert_ptr_null(receive(RST_STREAM, 0, 5, 4));
	ck_assert_ptr_null(receive(HEADERS, END_HEADERS, 5, 10));
	ck_assert_ptr_null(receive(HEADERS, END_HEADERS, 3, 10));
	ck_assert(f.n_streams == 0 && f.bytes == 0);
	frames_fini(&f);
}
END_TEST

START_TEST(no_more_streams_than_may_be)
{
	start_acknowledged();
	for (uint32_t i = 0; i < STREAMS; i++)
		ck_assert_ptr_null(receive(HEADERS, END_HEADERS, 2 * i + 1, 1));
	send_frame(HEADERS, END_STREAM, 31, 1, 0);
	ck_assert_ptr_null(receive(HEADERS, END_HEADERS, 2 * STREAMS + 1, 1));
	ck_assert_ptr_nonnull(strstr(receive(HEADERS, END_HEADERS, 2 * STREAMS + 3, 1), "more calls"));
	frames_fini(&f);
}
END_TEST

START_TEST(headers_end)
{
	start_acknowledged();
	ck_assert_ptr_null(receive(HEADERS, 0, 1, FRAMES_BLOCK_MAX - 10));
	ck_assert_ptr_null(receive(CONTINUATION, END_HEADERS, 1, 10));
	ck_assert_ptr_null(receive(HEADERS, 0, 3, 10)); /* counted anew */
	ck_assert_ptr_null(receive(CONTINUATION, 0, 3, FRAMES_BLOCK_MAX - 10));
	ck_assert_ptr_null(receive(CONTINUATION, 0, 3, 0));
	ck_assert_ptr_nonnull(strstr(receive(CONTINUATION, 0, 3, 1), "headers of more"));
	frames_fini(&f);
	start_acknowledged();
	ck_assert_ptr_nonnull(strstr(receive(HEADERS, END_HEADERS, 1, FRAMES_BLOCK_MAX + 1), "headers of more"));
	frames_fini(&f);
}
END_TEST

START_TEST(little_before_the_acknowledgement)
{
	start();
	ck_assert_ptr_null(receive(HEADERS, END_HEADERS, 1, FRAMES_EARLY_BYTES - 5));
	ck_assert_ptr_null(receive(HEADERS, END_HEADERS, 3, 5));
	ck_assert_ptr_nonnull(strstr(receive(HEADERS, END_HEADERS, 5, 1), "before"));
	frames_fini(&f);
	frames_init(&f, 2 * FRAMES_EARLY_CALLS, 0);
	f.preface = 0;
	for (uint32_t i = 0; i < FRAMES_EARLY_CALLS; i++) {
		ck_assert_ptr_null(receive(HEADERS, END_HEADERS, 2 * i + 1, 1));
		ck_assert_ptr_null(receive(RST_STREAM, 0, 2 * i + 1, 4)); /* which changes nothing */
	}
	put(SETTINGS, ACK, 0, 0, 0); /* in time */
	put(HEADERS, END_HEADERS, 1001, 1, 0);
	put(HEADERS, END_HEADERS, 1003, FRAMES_EARLY_BYTES, 0);
	ck_assert_ptr_null(come(0));
	frames_fini(&f);
	frames_init(&f, 2 * FRAMES_EARLY_CALLS, 0);
	f.preface = 0;
	for (uint32_t i = 0; i < FRAMES_EARLY_CALLS; i++)
		ck_assert_ptr_null(receive(HEADERS, END_HEADERS, 2 * i + 1, 1));
	ck_assert_ptr_nonnull(strstr(receive(HEADERS, END_HEADERS, 1001, 1), "before"));
	frames_fini(&f);
}
END_TEST

START_TEST(all_in_time)
{
	const int64_t late = FRAMES_WHOLE_S * S + 1;
	start();
	put(PING, ACK, 0, 8, 0);
	ck_assert_ptr_null(come(late - 1));
	put(PING, ACK, 0, 8, 0);
	ck_assert_ptr_nonnull(strstr(come(late), "not acknowledged"));
	frames_fini(&f);
	start();
	put(SETTINGS, 0, 0, 0, 0); /* its own */
	put(SETTINGS, ACK, 0, 0, 0);
	ck_assert_ptr_null(come(0));
	put(HEADERS, 0, 1, 10, 0);
	ck_assert_ptr_null(come(late)); /* begun now */
	put(CONTINUATION, 0, 1, 1, 0);
	ck_assert_ptr_null(come(2 * late - 1));
	put(CONTINUATION, 0, 1, 1, 0);
	ck_assert_ptr_nonnull(strstr(come(2 * late), "not complete"));
	frames_fini(&f);
}
END_TEST

static int64_t idle_of(unsigned kind, unsigned flags, uint32_t length)
{
	f.idle = 0;
	ck_assert_ptr_null(receive(kind, flags, 1, length));
	return f.idle;
}

START_TEST(frames_that_nobody_needs)
{
	start();
	ck_assert_int_eq(idle_of(HEADERS, 0, 10), 0);
	ck_assert_int_ge(idle_of(CONTINUATION, END_HEADERS, 10), 50);
	ck_assert_int_eq(idle_of(DATA, 0, 1000), 0);
	ck_assert_int_eq(idle_of(DATA, END_STREAM, 0), 0);
	ck_assert_int_eq(idle_of(DATA, 0, 0), 1);
	ck_assert_int_eq(idle_of(DATA, 0, 100), 0);
	ck_assert_int_gt(idle_of(PING, 0, 8), 1);
	ck_assert_int_eq(idle_of(WINDOW_UPDATE, 0, 4), 1);
	ck_assert_int_eq(idle_of(0xbe, 0, 4), 1);
	ck_assert_int_eq(idle_of(SETTINGS, 0, 0), 1);
	ck_assert_int_eq(idle_of(SETTINGS, 0, 6000), 1001);
	ck_assert_int_gt(idle_of(RST_STREAM, 0, 4), 1);
	f.idle = 0;
	send_frame(DATA, 0, 1, 100, 0); /* for which a client may open its window */
	ck_assert_int_lt(f.idle, 0);
	frames_fini(&f);
}
END_TEST

/* The same, however it is cut. */
START_TEST(any_pieces)
{
	static const size_t sizes[] = { 1, 2, 3, 5, 8, 9, 10, 13, 64, 1000 };
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		n_bytes = 24;
		memcpy(bytes, PREFACE, 24);
		for (uint32_t id = 1; id < 61; id += 2) {
			put(HEADERS, END_HEADERS, id, id * 10, 0);
			put(HEADERS, END_HEADERS | END_STREAM, id, 7, 0);
			put(DATA, END_STREAM, id, 3 * id, 0);
			put(WINDOW_UPDATE, 0, 0, 4, 0);
		}
		frames_init(&f, STREAMS, 0);
		for (size_t at = 0; at < n_bytes; at += sizes[i])
			ck_assert_ptr_null(
				frames_received(&f, bytes + at, n_bytes - at < sizes[i] ? n_bytes - at : sizes[i], 0));
		ck_assert(f.n_streams == 30 && f.idle == 30 && !f.in_block);
		ck_assert_uint_eq(f.bytes, 30 * (FRAMES_CALL_BYTES + 14 + 128) + 20 * 30 * 30);
		n_bytes = 0;
		for (uint32_t id = 1; id < 61; id += 2) {
			put(DATA, 0, id, 3 * id, 0);
			put(RST_STREAM, 0, id, 4, id == 31 ? 11 : 8);
		}
		for (size_t at = 0; at < n_bytes; at += sizes[i])
			frames_sent(&f, bytes + at, n_bytes - at < sizes[i] ? n_bytes - at : sizes[i]);
		ck_assert(f.n_streams == 0 && f.bytes == 0 && f.throttled == 1);
		frames_fini(&f);
	}
}
END_TEST

/* Whatever comes: nothing is written where it should not be, and what is counted is what is there. */
START_TEST(garbage)
{
	srand(7);
	for (int round = 0; round < 300; round++) {
		frames_init(&f, STREAMS, 0);
		const char *why = NULL;
		for (int i = 0; i < 40 && !why; i++) {
			size_t n = 1 + (size_t)rand() % 300;
			for (size_t k = 0; k < n; k++)
				bytes[k] = (uint8_t)(rand() % 3 ? rand() % 12 : rand());
			why = frames_received(&f, bytes, n, 0);
			if (!why)
				frames_sent(&f, bytes, n);
			size_t sum = 0;
			for (unsigned k = 0; k < f.n_streams; k++)
				sum += f.stream[k].bytes;
			ck_assert_uint_eq(sum, f.bytes);
			for (unsigned k = 1; k < f.n_streams; k++)
				ck_assert_uint_lt(f.stream[k - 1].id, f.stream[k].id);
			ck_assert_uint_le(f.n_streams, STREAMS);
		}
		frames_fini(&f);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("frames");
	TCase *c = tcase_create("frames");
	suite_add_tcase(s, c);
	tcase_add_test(c, a_stream_is_open_until_somebody_ends_it);
	tcase_add_test(c, ids_that_begin_no_stream);
	tcase_add_test(c, no_more_streams_than_may_be);
	tcase_add_test(c, headers_end);
	tcase_add_test(c, little_before_the_acknowledgement);
	tcase_add_test(c, all_in_time);
	tcase_add_test(c, frames_that_nobody_needs);
	tcase_add_test(c, any_pieces);
	tcase_add_test(c, garbage);
	return suite_run(s);
}
