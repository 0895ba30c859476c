/* SPDX-License-Identifier: Apache-2.0 */
/* Calls and streams between the two halves of the RPC layer. */
#include "rpc_calls.h"
#include "support/suite.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <grpc/status.h>

START_TEST(unary)
{
	uint32_t count;
	for (uint64_t i = 0; i < 100; i++) {
		ck_assert_int_eq(flush(i, 10 * SECONDS, &count), ST_OK);
		ck_assert_uint_eq(count, i);
	}
}
END_TEST

START_TEST(peer_is_the_kernels_word)
{
	uint32_t value;
	ck_assert_int_eq(flush(FIXTURE_UID, 10 * SECONDS, &value), ST_OK);
	ck_assert_uint_eq(value, getuid());
	ck_assert_int_eq(flush(FIXTURE_PID, 10 * SECONDS, &value), ST_OK);
	ck_assert_uint_eq(value, (uint32_t)getpid());
}
END_TEST

START_TEST(error_detail_comes_back)
{
	uint32_t count;
	ck_assert_int_eq(flush(FIXTURE_FAIL, 10 * SECONDS, &count), ST_WINDOW_CLOSED);
	ck_assert_int_eq(failure.status, ST_WINDOW_CLOSED);
	ck_assert_int_eq(failure.grpc_code, GRPC_STATUS_FAILED_PRECONDITION);
	ck_assert_str_eq(failure.reason, "WINDOW_CLOSED");
	ck_assert_str_eq(failure.message, "window 7 closed");
	ck_assert_str_eq(failure.hint, "go on");
	ck_assert_str_eq(failure.field, "window");
	ck_assert_int_eq(failure.retry_after_ms, 5);
	ck_assert_uint_eq(failure.n_missing_ranks, 2);
	ck_assert_uint_eq(failure.missing_ranks[0], 3);
	ck_assert_uint_eq(failure.missing_ranks[1], 5);
}
END_TEST

/* More text and ranks than metadata takes: the detail arrives, cut between two characters. */
START_TEST(long_error_is_cut)
{
	uint32_t count;
	ck_assert_int_eq(flush(FIXTURE_LONG_ERROR, 10 * SECONDS, &count), ST_STALLED);
	ck_assert_str_eq(failure.reason, "STALLED");
	ck_assert_uint_eq(failure.n_missing_ranks, RPC_MISSING_MAX);
	size_t n = strlen(failure.message);
	ck_assert_uint_ge(n, sizeof(failure.message) - 4);
	ck_assert_uint_eq((uint8_t)failure.message[n - 2], 0xc3);
	ck_assert_uint_eq((uint8_t)failure.message[n - 1], 0xa4);
}
END_TEST

START_TEST(unknown_method)
{
	ProtobufCMethodDescriptor method = { "Nope", &gacc__v1__flush_request__descriptor,
					     &gacc__v1__flush_response__descriptor };
	ProtobufCServiceDescriptor service = gacc__v1__gradient_service__descriptor;
	Gacc__V1__FlushRequest request = GACC__V1__FLUSH_REQUEST__INIT;
	ProtobufCMessage *reply;
	service.methods = &method;
	service.n_methods = 1;
	ck_assert_int_eq(rpc_channel_call(channel, &service, "Nope", &request.base, 10 * SECONDS, &reply, &failure),
			 ST_UNIMPLEMENTED);
	ck_assert_str_eq(failure.reason, "UNIMPLEMENTED");
	ck_assert_int_eq(rpc_channel_call(channel, GRADIENT, "Nope", &request.base, 10 * SECONDS, &reply, &failure),
			 ST_UNIMPLEMENTED);
}
END_TEST

/* A Label where a FlushRequest belongs: field 1 is text, not a session. */
START_TEST(malformed)
{
	Gacc__V1__Label wrong = GACC__V1__LABEL__INIT;
	ProtobufCMessage *reply;
	char key[] = "\x7f";
	wrong.key = key;
	ck_assert_int_eq(rpc_channel_call(channel, GRADIENT, "Flush", &wrong.base, 10 * SECONDS, &reply, &failure),
			 ST_MALFORMED);
	ck_assert_int_eq(failure.grpc_code, GRPC_STATUS_INVALID_ARGUMENT);
	ck_assert_str_eq(failure.field, "gacc.v1.FlushRequest");
	ck_assert_str_eq(failure.message, "gacc.v1.Session.15 at byte 3: wire type 7 is not allowed");
	ck_assert_ptr_nonnull(strstr(failure.hint, "proto/gacc/v1"));
}
END_TEST

START_TEST(oversize)
{
	Gacc__V1__PushInlineRequest request = GACC__V1__PUSH_INLINE_REQUEST__INIT;
	struct rpc_stream *stream;
	request.data.len = BYTES_MESSAGE_MAX + 1;
	request.data.data = calloc(1, request.data.len);
	ck_assert_int_eq(rpc_stream_open(channel, GRADIENT, "PushInline", 10 * SECONDS, 0, &stream), ST_OK);
	ck_assert_int_eq(rpc_stream_send(stream, &request.base), ST_OK);
	ck_assert_int_eq(rpc_stream_finish(stream, &failure), ST_RESOURCE_EXHAUSTED);
	rpc_stream_free(stream);
	free(request.data.data);
}
END_TEST

START_TEST(deadline_reaches_both_sides)
{
	uint32_t count;
	ck_assert_int_eq(flush(FIXTURE_PARK, 100, &count), ST_STALLED);
	ck_assert_int_eq(failure.grpc_code, GRPC_STATUS_DEADLINE_EXCEEDED);
	struct fixture_counts counts = fixture_wait(server, any_broken);
	ck_assert_uint_eq(counts.begun, 1);
	ck_assert_uint_eq(counts.broken, 1);
}
END_TEST

START_TEST(mutating_method_needs_a_deadline)
{
	Gacc__V1__PushRequest request = GACC__V1__PUSH_REQUEST__INIT;
	struct rpc_stream *stream;
	ProtobufCMessage *reply;
	ck_assert_int_eq(rpc_stream_open(channel, GRADIENT, "Push", 0, 0, &stream), ST_OK);
	rpc_stream_send(stream, &request.base);
	ck_assert_int_eq(rpc_stream_finish(stream, &failure), ST_INVALID_ARGUMENT);
	ck_assert_ptr_nonnull(strstr(failure.hint, "deadline"));
	rpc_stream_free(stream);
	ck_assert_int_eq(rpc_channel_call(channel, GRADIENT, "Push", &request.base, 10 * SECONDS, &reply, &failure),
			 ST_OK);
	bytes_free(reply);
}
END_TEST

/* A slow call that is given up: the id dies with it, and a late answer finds nobody. */
static void find_last(struct fixture *fixture, void *arg)
{
	*(bool *)arg = rpc_find(fixture->server, fixture->counts.last_id) != NULL;
}

START_TEST(cancel_ends_the_call)
{
	struct rpc_stream *stream = parked_call();
	bool found;
	fixture_wait(server, any_begun);
	fixture_do(server, find_last, &found);
	ck_assert(found);
	rpc_stream_cancel(stream);
	ck_assert_int_eq(rpc_stream_finish(stream, &failure), ST_CANCELLED);
	struct fixture_counts counts = fixture_wait(server, any_broken);
	ck_assert_uint_eq(counts.broken, 1);
	fixture_do(server, find_last, &found);
	ck_assert(!found);
	rpc_stream_free(stream);

	uint32_t count;
	uint64_t old = counts.last_id;
	ck_assert_int_eq(flush(1, 10 * SECONDS, &count), ST_OK);
	ck_assert_uint_ne(fixture_wait(server, any_begun).last_id, old);
}
END_TEST

static void answer_last(struct fixture *fixture, void *arg)
{
	Gacc__V1__FlushResponse reply = GACC__V1__FLUSH_RESPONSE__INIT;
	struct rpc_call *call = rpc_find(fixture->server, fixture->counts.last_id);
	ck_assert_ptr_nonnull(call);
	ck_assert_int_gt(rpc_deadline_left_ns(call), 0);
	ck_assert_int_lt(rpc_deadline_left_ns(call), 61000000000); /* 60 s, which gRPC rounds up on the wire */
	reply.micro_count = 77;
	rpc_finish(call, &reply.base);
	ck_assert_ptr_null(rpc_find(fixture->server, fixture->counts.last_id));
	rpc_fail(call, &(struct rpc_error){ .status = ST_INTERNAL }); /* the first answer counts */
}

START_TEST(late_answer_by_id)
{
	struct rpc_stream *stream = parked_call();
	const ProtobufCMessage *msg;
	fixture_wait(server, any_begun);
	fixture_do(server, answer_last, NULL);
	ck_assert_int_eq(rpc_stream_next(stream, -1, &msg, NULL), ST_OK);
	ck_assert_uint_eq(((const Gacc__V1__FlushResponse *)msg)->micro_count, 77);
	ck_assert_int_eq(rpc_stream_finish(stream, &failure), ST_OK);
	rpc_stream_free(stream);
}
END_TEST

/* The number of a connection's descriptor must stay taken as long as one of its calls exists, or the next connection
 * could inherit its identity (rpc_peer.c). on_end is the last that a call sees. */
START_TEST(descriptor_outlives_its_calls)
{
	struct rpc_stream *stream = parked_call();
	fixture_wait(server, any_begun);
	rpc_stream_free(stream);
	rpc_channel_close(channel);
	ck_assert(fixture_wait(server, any_broken).fd_open_at_end);
	channel = open_channel(server->target, NULL);
}
END_TEST

static void count_release(void *arg)
{
	atomic_fetch_add((atomic_int *)arg, 1);
}

static enum status push_chunks(uint64_t window, int64_t timeout_ms, size_t n_chunks, const uint8_t *data, size_t chunk,
			       atomic_int *released, size_t *out_sent, struct rpc_stream **out_stream)
{
	Gacc__V1__PushRequest header = GACC__V1__PUSH_REQUEST__INIT;
	enum status st = rpc_stream_open(channel, GRADIENT, "PushInline", timeout_ms, 0, out_stream);
	header.window = window;
	for (*out_sent = 0; st == ST_OK && *out_sent < n_chunks; ++*out_sent) {
		Gacc__V1__PushInlineRequest msg = GACC__V1__PUSH_INLINE_REQUEST__INIT;
		msg.header = *out_sent == 0 ? &header : NULL;
		msg.offset = *out_sent * chunk;
		st = rpc_stream_send_bulk(*out_stream, &msg.base, BYTES_BULK_FIELD, data + *out_sent * chunk, chunk,
					  count_release, released);
	}
	return st;
}

/* gRPC's own threads let go of the last pieces, sooner or later. */
static void wait_for_releases(atomic_int *released, size_t n)
{
	for (int ms = 0; ms < 10000 && (size_t)atomic_load(released) < n; ms++)
		usleep(1000);
	ck_assert_uint_eq((size_t)atomic_load(released), n);
}

START_TEST(client_stream_of_bulk)
{
	enum { CHUNK = 3 << 20, N = 8 };
	uint8_t *data = malloc(CHUNK * N);
	uint64_t sum = 0;
	/* written by threads of gRPC, which the thread sanitizer does not see being started */
	static atomic_int released;
	size_t sent;
	struct rpc_stream *stream;
	const ProtobufCMessage *msg;
	for (size_t i = 0; i < CHUNK * N; i++)
		sum += data[i] = (uint8_t)(i * 31 >> 3);
	ck_assert_int_eq(push_chunks(1, 60 * SECONDS, N, data, CHUNK, &released, &sent, &stream), ST_OK);
	ck_assert_int_eq(rpc_stream_close_send(stream), ST_OK);
	ck_assert_int_eq(rpc_stream_next(stream, -1, &msg, NULL), ST_OK);
	const Gacc__V1__PushResponse *reply = (const void *)msg;
	ck_assert_int_eq(reply->parked_ns, CHUNK * N);
	ck_assert_uint_eq(reply->micro_count, N);
	ck_assert_uint_eq(reply->window, sum);
	ck_assert_int_eq(rpc_stream_finish(stream, &failure), ST_OK);
	rpc_stream_free(stream);
	wait_for_releases(&released, N);
	free(data);
}
END_TEST

START_TEST(empty_client_stream)
{
	struct rpc_stream *stream;
	const ProtobufCMessage *msg;
	ck_assert_int_eq(rpc_stream_open(channel, GRADIENT, "PushInline", 10 * SECONDS, 0, &stream), ST_OK);
	ck_assert_int_eq(rpc_stream_close_send(stream), ST_OK);
	ck_assert_int_eq(rpc_stream_next(stream, -1, &msg, NULL), ST_OK);
	ck_assert_uint_eq(((const Gacc__V1__PushResponse *)msg)->micro_count, 0);
	ck_assert_int_eq(rpc_stream_finish(stream, NULL), ST_OK);
	rpc_stream_free(stream);
}
END_TEST

/* A server that does not ask for the next message holds the client back; the deadline ends it. */
START_TEST(back_pressure)
{
	enum { CHUNK = 1 << 20, N = 64 };
	uint8_t *data = calloc(1, (size_t)CHUNK * N);
	/* written by threads of gRPC, which the thread sanitizer does not see being started */
	static atomic_int released;
	size_t sent;
	struct rpc_stream *stream;
	ck_assert_int_eq(push_chunks(FIXTURE_HOLD, 1 * SECONDS, N, data, CHUNK, &released, &sent, &stream),
			 ST_UNAVAILABLE);
	ck_assert_uint_le(sent, 8);
	ck_assert_int_eq(rpc_stream_finish(stream, &failure), ST_STALLED);
	rpc_stream_free(stream);
	wait_for_releases(&released, sent);
	ck_assert_uint_eq(fixture_wait(server, any_broken).messages, 1);
	free(data);
}
END_TEST

START_TEST(server_ends_a_client_stream_early)
{
	struct rpc_stream *stream;
	Gacc__V1__PutParametersInlineRequest msg = GACC__V1__PUT_PARAMETERS_INLINE_REQUEST__INIT;
	ck_assert_int_eq(rpc_stream_open(channel, GRADIENT, "PutParametersInline", 10 * SECONDS, 0, &stream), ST_OK);
	for (int i = 0; i < 100 && rpc_stream_send(stream, &msg.base) == ST_OK; i++)
		;
	ck_assert_int_eq(rpc_stream_finish(stream, &failure), ST_BAD_SLOT);
	ck_assert_str_eq(failure.message, "no");
	ck_assert_int_eq(rpc_stream_send(stream, &msg.base), ST_UNAVAILABLE);
	rpc_stream_free(stream);
}
END_TEST

static uint64_t check_chunk(const ProtobufCMessage *base, struct bytes_view view)
{
	const Gacc__V1__GetParametersResponse *msg = (const void *)base;
	uint64_t at = msg->offset, n = view.left;
	const uint8_t *piece;
	size_t len;
	ck_assert_uint_eq(msg->data.len, 0);
	ck_assert_uint_eq(msg->window, 9);
	while (bytes_next(&view, &piece, &len))
		for (size_t i = 0; i < len; i++, at++)
			if (piece[i] != at % 251)
				ck_abort_msg("byte %zu is wrong", (size_t)at);
	return n;
}

static bool released_14(const struct fixture_counts *counts)
{
	return counts->released >= 14;
}

START_TEST(server_stream_of_bulk)
{
	const ProtobufCMessage *msg;
	struct bytes_view view;
	uint64_t got = 0;
	struct rpc_stream *stream = get_parameters(27u << 20, 2u << 20);
	for (;;) {
		ck_assert_int_eq(rpc_stream_next(stream, -1, &msg, &view), ST_OK);
		if (!msg)
			break;
		got += check_chunk(msg, view);
	}
	ck_assert_uint_eq(got, 27u << 20);
	ck_assert_int_eq(rpc_stream_finish(stream, &failure), ST_OK);
	rpc_stream_free(stream);
	fixture_wait(server, released_14);
}
END_TEST

/* Leaving in the middle gives the lent memory back and ends the call. */
START_TEST(reader_leaves)
{
	const ProtobufCMessage *msg;
	struct bytes_view view;
	struct rpc_stream *stream = get_parameters(32u << 20, 4u << 20);
	ck_assert_int_eq(rpc_stream_next(stream, -1, &msg, &view), ST_OK);
	ck_assert_uint_eq(check_chunk(msg, view), 4u << 20);
	rpc_stream_free(stream);
	ck_assert_uint_eq(fixture_wait(server, any_broken).broken, 1);
}
END_TEST

/* 100000 messages of 1 KiB into a queue of 8 MiB: the call ends with an error instead of eating memory. */
START_TEST(slow_reader_is_dropped)
{
	struct rpc_stream *stream = watch(100000);
	fixture_wait(server, any_begun);
	ck_assert_uint_lt(read_all(stream), 10000);
	ck_assert_int_eq(rpc_stream_finish(stream, &failure), ST_RESOURCE_EXHAUSTED);
	ck_assert_ptr_nonnull(strstr(failure.message, "slow reader"));
	rpc_stream_free(stream);
}
END_TEST

START_TEST(next_times_out_and_goes_on)
{
	struct rpc_stream *stream = watch(3);
	const ProtobufCMessage *msg;
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(rpc_stream_next(stream, -1, &msg, NULL), ST_OK);
	ck_assert_int_eq(rpc_stream_next(stream, 1, &msg, NULL), ST_STALLED);
	ck_assert_int_eq(rpc_stream_next(stream, 0, &msg, NULL), ST_STALLED);
	rpc_stream_free(stream);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("rpc");
	TCase *tc = tcase_create("calls");
	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, unary);
	tcase_add_test(tc, peer_is_the_kernels_word);
	tcase_add_test(tc, error_detail_comes_back);
	tcase_add_test(tc, long_error_is_cut);
	tcase_add_test(tc, unknown_method);
	tcase_add_test(tc, malformed);
	tcase_add_test(tc, oversize);
	tcase_add_test(tc, deadline_reaches_both_sides);
	tcase_add_test(tc, mutating_method_needs_a_deadline);
	tcase_add_test(tc, cancel_ends_the_call);
	tcase_add_test(tc, late_answer_by_id);
	tcase_add_test(tc, descriptor_outlives_its_calls);
	tcase_add_test(tc, client_stream_of_bulk);
	tcase_add_test(tc, empty_client_stream);
	tcase_add_test(tc, back_pressure);
	tcase_add_test(tc, server_ends_a_client_stream_early);
	tcase_add_test(tc, server_stream_of_bulk);
	tcase_add_test(tc, reader_leaves);
	tcase_add_test(tc, slow_reader_is_dropped);
	tcase_add_test(tc, next_times_out_and_goes_on);
	tcase_set_timeout(tc, 60);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
