/* SPDX-License-Identifier: Apache-2.0 */
/* What a user may have of the server's calls, of whole requests, and of replies that nobody reads. */
#include "gacc/v1/job.pb-c.h"
#include "rpc_calls.h"
#include "support/suite.h"

#include <stdio.h>
#include <string.h>

/* One user has half of them at most. */
START_TEST(limit_of_calls)
{
	struct rpc_stream *parked[2];
	uint32_t count;
	tear_down();
	start_with((struct fixture_options){ .config = { .max_calls = 4 } });
	parked[0] = parked_call();
	fixture_wait(server, any_begun);
	ck_assert_int_eq(flush(5, 10 * SECONDS, &count), ST_OK);
	parked[1] = parked_call();
	while (fixture_wait(server, any_begun).begun < 3)
		;
	ck_assert_int_eq(flush(5, 10 * SECONDS, &count), ST_RESOURCE_EXHAUSTED);
	rpc_stream_free(parked[0]);
	fixture_wait(server, any_broken);
	ck_assert_int_eq(flush(5, 10 * SECONDS, &count), ST_OK);
	rpc_stream_free(parked[1]);
}
END_TEST

/* Parked requests count, and are taken off when their calls end. */
START_TEST(limit_of_held_bytes)
{
	uint32_t count;
	tear_down();
	start_with((struct fixture_options){ .config = { .max_held_bytes = 8 } });
	struct rpc_stream *stream = parked_call(); /* 3 bytes: field 2 = 1001 */
	fixture_wait(server, any_begun);
	ck_assert_int_eq(flush(5, 10 * SECONDS, &count), ST_RESOURCE_EXHAUSTED); /* 2 bytes */
	rpc_stream_free(stream);
	fixture_wait(server, any_broken);
	for (int i = 0; i < 10; i++)
		ck_assert_int_eq(flush(5, 10 * SECONDS, &count), ST_OK);
}
END_TEST

/* A user has half of it at most, however many streams it does not read; and it comes back. */
START_TEST(limit_of_queued_bytes)
{
	tear_down();
	start_with((struct fixture_options){ .config = { .max_queued_all = 2u << 20 } });
	for (int i = 0; i < 3; i++) {
		unsigned sent = 0;
		struct rpc_stream *stream = watch(100000); /* messages of 1 KiB */
		read_all(stream);
		ck_assert_int_eq(rpc_stream_finish(stream, &failure), ST_RESOURCE_EXHAUSTED);
		ck_assert_int_eq(sscanf(failure.message, "slow reader after %u", &sent), 1);
		ck_assert(sent > 900 && sent < 1100);
		rpc_stream_free(stream);
	}
}
END_TEST

static unsigned wanted; /* calls that have begun */

static bool all_begun(const struct fixture_counts *counts)
{
	return counts->begun >= wanted;
}

/* What was queued for a stream is dropped when the stream fails, and not when its client has read the end. */
START_TEST(a_failed_stream_keeps_no_room)
{
	struct rpc_stream *unread[3];
	tear_down();
	start_with((struct fixture_options){ .config = { .max_queued_all = 2u << 20 } });
	for (wanted = 1; wanted <= 3; wanted++) {
		unread[wanted - 1] = watch(100000);
		fixture_wait(server, all_begun);
	}
	for (int i = 0; i < 3; i++) {
		unsigned sent = 0;
		read_all(unread[i]);
		ck_assert_int_eq(rpc_stream_finish(unread[i], &failure), ST_RESOURCE_EXHAUSTED);
		ck_assert_int_eq(sscanf(failure.message, "slow reader after %u", &sent), 1);
		ck_assert_msg(sent > 900, "stream %d: %u", i, sent);
		rpc_stream_free(unread[i]);
	}
}
END_TEST

static struct rpc_stream *get(const char *bytes)
{
	Gacc__V1__GetRequest request = GACC__V1__GET_REQUEST__INIT;
	struct rpc_stream *stream;
	char text[16];
	request.job = strcpy(text, bytes);
	ck_assert_int_eq(rpc_stream_open(channel, &gacc__v1__job_service__descriptor, "Get", 60 * SECONDS, 0, &stream),
			 ST_OK);
	ck_assert_int_eq(rpc_stream_send(stream, &request.base), ST_OK);
	return stream;
}

static enum status get_end(struct rpc_stream *stream)
{
	const ProtobufCMessage *msg;
	ck_assert_int_eq(rpc_stream_next(stream, -1, &msg, NULL), ST_OK);
	enum status st = rpc_stream_finish(stream, &failure);
	ck_assert_int_eq(msg != NULL, st == ST_OK);
	rpc_stream_free(stream);
	return st;
}

static bool all_over(const struct fixture_counts *counts)
{
	return counts->begun == counts->completed + counts->broken;
}

/* Replies that clients do not read count, too; small ones are never refused. What was read or cancelled is given back.
 * A client takes up to 16 MiB of a reply that nobody reads, as soon as gRPC has measured the connection. */
START_TEST(limit_of_unread_replies)
{
	struct rpc_stream *unread[2];
	tear_down();
	start_with((struct fixture_options){ .config = { .max_queued_all = 160u << 20 } });
	for (unsigned round = 0; round < 3; round++) {
		for (int i = 0; i < 2; i++)
			unread[i] = get("40000000");
		while (fixture_wait(server, any_begun).begun < 5 * round + 2)
			;
		ck_assert_int_eq(get_end(get("40000000")), ST_RESOURCE_EXHAUSTED);
		ck_assert_ptr_nonnull(strstr(failure.message, "answers that nobody has read yet hold 80000"));
		ck_assert_int_eq(get_end(get("60000")), ST_OK);
		ck_assert_int_eq(get_end(unread[0]), ST_OK);
		rpc_stream_free(unread[1]);
		fixture_wait(server, all_over);
		ck_assert_int_eq(get_end(get("60000000")), ST_OK);
		fixture_wait(server, all_over);
	}
}
END_TEST

START_TEST(small_replies_need_no_room)
{
	tear_down();
	start_with((struct fixture_options){ .config = { .max_queued_all = 1 } });
	for (int i = 0; i < 3; i++) {
		ck_assert_int_eq(get_end(get("65000")), ST_OK);
		ck_assert_int_eq(get_end(get("66000")), ST_RESOURCE_EXHAUSTED);
	}
}
END_TEST

/* A call whose queue is empty always has room for a small message; with a larger one it ends: nobody would wake it up
 * again. */
START_TEST(a_stream_goes_on_without_room)
{
	tear_down();
	start_with((struct fixture_options){ .config = { .max_queued_all = 1 } });
	struct rpc_stream *stream = get_parameters(8 * 65000, 65000);
	ck_assert_uint_eq(read_all(stream), 8);
	ck_assert_int_eq(rpc_stream_finish(stream, &failure), ST_OK);
	rpc_stream_free(stream);
	stream = get_parameters(8u << 20, 1u << 20);
	ck_assert_uint_eq(read_all(stream), 0);
	ck_assert_int_eq(rpc_stream_finish(stream, &failure), ST_RESOURCE_EXHAUSTED);
	rpc_stream_free(stream);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("rpc_limits");
	TCase *tc = tcase_create("limits");
	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, limit_of_calls);
	tcase_add_test(tc, limit_of_held_bytes);
	tcase_add_test(tc, limit_of_queued_bytes);
	tcase_add_test(tc, a_failed_stream_keeps_no_room);
	tcase_add_test(tc, limit_of_unread_replies);
	tcase_add_test(tc, small_replies_need_no_room);
	tcase_add_test(tc, a_stream_goes_on_without_room);
	tcase_set_timeout(tc, 60);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
