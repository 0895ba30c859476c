/* Server and client of the RPC layer against each other. */
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <grpc/status.h>
#include <protobuf-c/protobuf-c.h>
#include "gacc/v1/gradient.pb-c.h"
#include "gacc/v1/job.pb-c.h"
#include "grpc/health/v1/health.pb-c.h"
#include "grpc/reflection/v1/reflection.pb-c.h"
#include "grpc/reflection/v1alpha/reflection.pb-c.h"
#include "lib/channel.h"
#include "support/rpc_fixture.h"

#define GRADIENT (&gacc__v1__gradient_service__descriptor)
#define SECONDS 1000

static struct fixture *server;
static struct rpc_channel *channel;
static struct rpc_failure failure;

static struct rpc_channel *open_channel(const char *target, const char *token)
{
	struct rpc_channel *opened;
	ck_assert_int_eq(rpc_channel_open(&(struct rpc_channel_options){ .target = target, .token = token }, &opened), ST_OK);
	return opened;
}

static void start_with(struct fixture_options options)
{
	options.grace_ms = options.grace_ms ? options.grace_ms : 100;
	server = fixture_start(&options);
	channel = open_channel(server->target, NULL);
}

static void set_up(void)
{
	start_with((struct fixture_options){ .drain_ms = 0 });
}

static void tear_down(void)
{
	rpc_channel_close(channel);
	fixture_stop(server);
}

static enum status flush_on(struct rpc_channel *on, uint64_t window, int64_t timeout_ms, unsigned flags,
			    uint32_t *out_count, struct rpc_failure *f)
{
	Gacc__V1__FlushRequest request = GACC__V1__FLUSH_REQUEST__INIT;
	ProtobufCMessage *reply;
	request.window = window;
	enum status st = rpc_channel_call(on, GRADIENT, "Flush", &request.base, timeout_ms, flags, &reply, f);
	if (st == ST_OK) {
		*out_count = ((Gacc__V1__FlushResponse *)reply)->micro_count;
		bytes_free(reply);
	}
	return st;
}

static enum status flush(uint64_t window, int64_t timeout_ms, uint32_t *out_count)
{
	return flush_on(channel, window, timeout_ms, RPC_NO_RETRY, out_count, &failure);
}

static bool any_begun(const struct fixture_counts *counts)
{
	return counts->begun > 0;
}

static bool any_broken(const struct fixture_counts *counts)
{
	return counts->broken > 0;
}

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
	ck_assert_uint_ge(n, sizeof failure.message - 4);
	ck_assert_uint_eq((uint8_t)failure.message[n - 2], 0xc3);
	ck_assert_uint_eq((uint8_t)failure.message[n - 1], 0xa4);
}
END_TEST

START_TEST(unknown_method)
{
	ProtobufCMethodDescriptor method = { "Nope", &gacc__v1__flush_request__descriptor, &gacc__v1__flush_response__descriptor };
	ProtobufCServiceDescriptor service = gacc__v1__gradient_service__descriptor;
	Gacc__V1__FlushRequest request = GACC__V1__FLUSH_REQUEST__INIT;
	ProtobufCMessage *reply;
	service.methods = &method;
	service.n_methods = 1;
	ck_assert_int_eq(rpc_channel_call(channel, &service, "Nope", &request.base, 10 * SECONDS, 0, &reply, &failure),
			 ST_UNIMPLEMENTED);
	ck_assert_str_eq(failure.reason, "UNIMPLEMENTED");
	ck_assert_int_eq(rpc_channel_call(channel, GRADIENT, "Nope", &request.base, 10 * SECONDS, 0, &reply, &failure),
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
	ck_assert_int_eq(rpc_channel_call(channel, GRADIENT, "Flush", &wrong.base, 10 * SECONDS, 0, &reply, &failure),
			 ST_MALFORMED);
	ck_assert_int_eq(failure.grpc_code, GRPC_STATUS_INVALID_ARGUMENT);
	ck_assert_str_eq(failure.field, "gacc.v1.FlushRequest");
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
	ck_assert_int_eq(rpc_channel_call(channel, GRADIENT, "Push", &request.base, 10 * SECONDS, 0, &reply, &failure), ST_OK);
	bytes_free(reply);
}
END_TEST

/* A slow call that is given up: the id dies with it, and a late answer finds nobody. */
static void find_last(struct fixture *fixture, void *arg)
{
	*(bool *)arg = rpc_find(fixture->server, fixture->counts.last_id) != NULL;
}

static struct rpc_stream *parked_call(void)
{
	Gacc__V1__FlushRequest request = GACC__V1__FLUSH_REQUEST__INIT;
	struct rpc_stream *stream;
	request.window = FIXTURE_PARK;
	ck_assert_int_eq(rpc_stream_open(channel, GRADIENT, "Flush", 60 * SECONDS, 0, &stream), ST_OK);
	ck_assert_int_eq(rpc_stream_send(stream, &request.base), ST_OK);
	return stream;
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
	ck_assert_int_lt(rpc_deadline_left_ns(call), 60000000000);
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

START_TEST(client_stream_of_bulk)
{
	enum { CHUNK = 3 << 20, N = 8 };
	uint8_t *data = malloc(CHUNK * N);
	uint64_t sum = 0;
	atomic_int released = 0;
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
	ck_assert_int_eq(released, N);
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
	atomic_int released = 0;
	size_t sent;
	struct rpc_stream *stream;
	ck_assert_int_eq(push_chunks(FIXTURE_HOLD, 1 * SECONDS, N, data, CHUNK, &released, &sent, &stream), ST_UNAVAILABLE);
	ck_assert_uint_le(sent, 8);
	ck_assert_int_eq(rpc_stream_finish(stream, &failure), ST_STALLED);
	rpc_stream_free(stream);
	ck_assert_int_eq(released, sent);
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

static struct rpc_stream *get_parameters(uint64_t bytes, uint64_t chunk)
{
	Gacc__V1__GetParametersRequest request = GACC__V1__GET_PARAMETERS_REQUEST__INIT;
	struct rpc_stream *stream;
	request.bytes = bytes;
	request.offset = chunk;
	ck_assert_int_eq(rpc_stream_open(channel, GRADIENT, "GetParameters", 60 * SECONDS, BYTES_BULK_FIELD, &stream), ST_OK);
	ck_assert_int_eq(rpc_stream_send(stream, &request.base), ST_OK);
	ck_assert_int_eq(rpc_stream_close_send(stream), ST_OK);
	return stream;
}

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

static struct rpc_stream *watch(uint64_t n)
{
	Gacc__V1__WatchSessionRequest request = GACC__V1__WATCH_SESSION_REQUEST__INIT;
	Gacc__V1__Session session = GACC__V1__SESSION__INIT;
	struct rpc_stream *stream;
	session.id = n;
	request.session = &session;
	ck_assert_int_eq(rpc_stream_open(channel, GRADIENT, "WatchSession", 60 * SECONDS, 0, &stream), ST_OK);
	ck_assert_int_eq(rpc_stream_send(stream, &request.base), ST_OK);
	return stream;
}

static size_t read_all(struct rpc_stream *stream)
{
	const ProtobufCMessage *msg;
	size_t n = 0;
	for (;; n++) {
		ck_assert_int_eq(rpc_stream_next(stream, -1, &msg, NULL), ST_OK);
		if (!msg)
			return n;
	}
}

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

START_TEST(limit_of_calls)
{
	struct rpc_stream *parked[2];
	uint32_t count;
	tear_down();
	start_with((struct fixture_options){ .config = { .max_calls = 2 } });
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

static atomic_int n_ok, n_bad;

static void *call_many(void *arg)
{
	struct rpc_failure f;
	for (uint32_t i = 0; i < 250; i++) {
		uint32_t count = 0;
		if (flush_on(channel, i, 60 * SECONDS, 0, &count, &f) == ST_OK && count == i)
			n_ok++;
		else
			n_bad++;
	}
	return arg;
}

START_TEST(a_thousand_calls_from_four_threads)
{
	pthread_t threads[4];
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, call_many, NULL);
	struct rpc_stream *stream = get_parameters(8u << 20, 1u << 20);
	ck_assert_uint_eq(read_all(stream), 8);
	rpc_stream_free(stream);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	ck_assert_int_eq(n_ok, 1000);
	ck_assert_int_eq(n_bad, 0);
}
END_TEST

static atomic_int codes[17];

/* Calls without retry until the server is gone, and notes the codes. */
static void *call_until_down(void *arg)
{
	struct rpc_channel *own = open_channel(server->target, NULL);
	struct rpc_failure f;
	uint32_t count;
	while (flush_on(own, 1, 10 * SECONDS, RPC_NO_RETRY, &count, &f) == ST_OK)
		codes[0]++;
	codes[f.grpc_code]++;
	for (int i = 0; i < 50; i++) {
		if (flush_on(own, 1, 10 * SECONDS, RPC_NO_RETRY, &count, &f) != ST_OK)
			codes[f.grpc_code]++;
	}
	rpc_channel_close(own);
	return arg;
}

/* Calls during the stop hear UNAVAILABLE and never CANCELLED, so that clients know to repeat them. */
START_TEST(stop_under_load_answers_unavailable)
{
	pthread_t threads[2];
	tear_down();
	start_with((struct fixture_options){ .drain_ms = 100, .grace_ms = 1000 });
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, call_until_down, NULL);
	while (fixture_wait(server, any_begun).begun < 20)
		;
	fixture_stop_begin(server);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	ck_assert_int_gt(codes[GRPC_STATUS_OK], 0);
	ck_assert_int_gt(codes[GRPC_STATUS_UNAVAILABLE], 0);
	for (int i = 1; i < 17; i++)
		if (i != GRPC_STATUS_UNAVAILABLE)
			ck_assert_msg(codes[i] == 0, "code %d came %d times", i, codes[i]);
}
END_TEST

START_TEST(drain_ends_long_streams)
{
	struct rpc_stream *stream = watch(2);
	fixture_wait(server, any_begun);
	fixture_stop_begin(server);
	ck_assert_uint_eq(read_all(stream), 2);
	ck_assert_int_eq(rpc_stream_finish(stream, &failure), ST_DRAINING);
	rpc_stream_free(stream);
}
END_TEST

/* A call that nobody answers is cancelled when the grace is over. */
START_TEST(stop_does_not_wait_for_ever)
{
	struct rpc_stream *stream = parked_call();
	fixture_wait(server, any_begun);
	fixture_stop_begin(server);
	ck_assert_int_ne(rpc_stream_finish(stream, &failure), ST_OK);
	rpc_stream_free(stream);
}
END_TEST

static void *call_once(void *arg)
{
	struct rpc_failure f;
	uint32_t count;
	*(enum status *)arg = flush_on(channel, 3, 30 * SECONDS, 0, &count, &f);
	return NULL;
}

/* A unary call outlives a restart of the server. */
START_TEST(restart)
{
	char path[64], dir[] = "/tmp/rpc-XXXXXX";
	uint32_t count;
	pthread_t thread;
	enum status st;
	tear_down();
	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/s", dir);
	start_with((struct fixture_options){ .socket = path });
	ck_assert_int_eq(flush(1, 10 * SECONDS, &count), ST_OK);
	fixture_stop(server);
	ck_assert_int_eq(flush(1, 10 * SECONDS, &count), ST_UNAVAILABLE);
	pthread_create(&thread, NULL, call_once, &st);
	server = fixture_start(&(struct fixture_options){ .socket = path, .grace_ms = 100 });
	pthread_join(thread, NULL);
	ck_assert_int_eq(st, ST_OK);
	tear_down();
	rmdir(dir);
	set_up();
}
END_TEST

static bool token_is_right(void *context, const char *token, size_t len)
{
	return len == strlen(context) && memcmp(token, context, len) == 0;
}

static enum status health_on(struct rpc_channel *on, const char *name, int *out_state)
{
	Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
	ProtobufCMessage *reply;
	char service[64];
	request.service = strcpy(service, name);
	enum status st = rpc_channel_call(on, &grpc__health__v1__health__descriptor, "Check", &request.base, 10 * SECONDS,
					  RPC_NO_RETRY, &reply, &failure);
	if (st == ST_OK) {
		*out_state = (int)((Grpc__Health__V1__HealthCheckResponse *)reply)->status;
		bytes_free(reply);
	}
	return st;
}

START_TEST(tcp_needs_the_token)
{
	static char secret[] = "s3cret";
	struct rpc_tcp_identity identity = { .token_ok = token_is_right, .context = secret };
	const char *tokens[] = { NULL, "wrong", "s3cret" };
	enum status expected[] = { ST_UNAUTHENTICATED, ST_UNAUTHENTICATED, ST_OK };
	char target[64];
	uint32_t count;
	int state;
	tear_down();
	start_with((struct fixture_options){ .tcp = &identity });
	snprintf(target, sizeof target, "ipv4:127.0.0.1:%d", server->tcp_port);
	for (int i = 0; i < 3; i++) {
		struct rpc_channel *tcp = open_channel(target, tokens[i]);
		ck_assert_int_eq(flush_on(tcp, 8, 10 * SECONDS, RPC_NO_RETRY, &count, &failure), expected[i]);
		ck_assert_int_eq(health_on(tcp, "", &state), ST_OK);
		rpc_channel_close(tcp);
	}
	ck_assert_int_eq(flush(8, 10 * SECONDS, &count), ST_OK);
}
END_TEST

static void set_serving(struct fixture *fixture, void *arg)
{
	ck_assert_int_eq(rpc_health_set(fixture->health, "gacc.v1.JobService", *(bool *)arg), ST_OK);
}

static int next_state(struct rpc_stream *stream)
{
	const ProtobufCMessage *msg;
	ck_assert_int_eq(rpc_stream_next(stream, -1, &msg, NULL), ST_OK);
	ck_assert_ptr_nonnull(msg);
	return (int)((const Grpc__Health__V1__HealthCheckResponse *)msg)->status;
}

START_TEST(health)
{
	Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
	struct rpc_stream *stream;
	int state;
	char name[] = "gacc.v1.JobService";
	ck_assert_int_eq(health_on(channel, "", &state), ST_OK);
	ck_assert_int_eq(state, 1);
	ck_assert_int_ne(health_on(channel, name, &state), ST_OK);
	ck_assert_int_eq(failure.grpc_code, GRPC_STATUS_NOT_FOUND);

	request.service = name;
	ck_assert_int_eq(rpc_stream_open(channel, &grpc__health__v1__health__descriptor, "Watch", 0, 0, &stream), ST_OK);
	ck_assert_int_eq(rpc_stream_send(stream, &request.base), ST_OK);
	ck_assert_int_eq(next_state(stream), 3);
	fixture_do(server, set_serving, &(bool){ true });
	ck_assert_int_eq(next_state(stream), 1);
	fixture_do(server, set_serving, &(bool){ true }); /* no change, no message */
	fixture_do(server, set_serving, &(bool){ false });
	ck_assert_int_eq(next_state(stream), 2);
	ck_assert_int_eq(health_on(channel, name, &state), ST_OK);
	ck_assert_int_eq(state, 2);
	rpc_stream_free(stream);
}
END_TEST

typedef Grpc__Reflection__V1__ServerReflectionResponse reflection_reply;
#define ASK(name) GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##name
#define GOT(name) GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##name

static const reflection_reply *ask(struct rpc_stream *stream, int what, const char *text)
{
	Grpc__Reflection__V1__ServerReflectionRequest request = GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__INIT;
	const ProtobufCMessage *msg;
	char value[64];
	request.message_request_case = (Grpc__Reflection__V1__ServerReflectionRequest__MessageRequestCase)what;
	request.file_containing_symbol = strcpy(value, text); /* the string members share a union */
	ck_assert_int_eq(rpc_stream_send(stream, &request.base), ST_OK);
	ck_assert_int_eq(rpc_stream_next(stream, -1, &msg, NULL), ST_OK);
	ck_assert_ptr_nonnull(msg);
	return (const reflection_reply *)msg;
}

static void reflect(const ProtobufCServiceDescriptor *service)
{
	struct rpc_stream *stream;
	const char *found[] = { "gacc.v1.GradientService", "gacc.v1.GradientService.Push", "gacc.v1.PushRequest",
				"gacc.v1.PushRequest.micro", "gacc.v1.PushResult" };
	const char *absent[] = { "gacc.v1.Nope", "gacc.v1.GradientService.Nope", "gacc.v1.PushRequest.nope", "gacc.v1", "x" };
	ck_assert_int_eq(rpc_stream_open(channel, service, "ServerReflectionInfo", 10 * SECONDS, 0, &stream), ST_OK);
	const reflection_reply *reply = ask(stream, ASK(LIST_SERVICES), "");
	ck_assert_int_eq(reply->message_response_case, GOT(LIST_SERVICES_RESPONSE));
	ck_assert_uint_eq(reply->list_services_response->n_service, 6);
	ck_assert_str_eq(reply->list_services_response->service[0]->name, "gacc.v1.GradientService");
	for (size_t i = 0; i < 5; i++) {
		reply = ask(stream, ASK(FILE_CONTAINING_SYMBOL), found[i]);
		ck_assert_int_eq(reply->message_response_case, GOT(FILE_DESCRIPTOR_RESPONSE));
		ck_assert_uint_eq(reply->file_descriptor_response->n_file_descriptor_proto, 2); /* and common.proto */
		reply = ask(stream, ASK(FILE_CONTAINING_SYMBOL), absent[i]);
		ck_assert_int_eq(reply->message_response_case, GOT(ERROR_RESPONSE));
		ck_assert_int_eq(reply->error_response->error_code, GRPC_STATUS_NOT_FOUND);
	}
	reply = ask(stream, ASK(FILE_BY_FILENAME), "gacc/v1/node.proto");
	ck_assert_uint_eq(reply->file_descriptor_response->n_file_descriptor_proto, 1);
	reply = ask(stream, ASK(FILE_BY_FILENAME), "nope.proto");
	ck_assert_int_eq(reply->message_response_case, GOT(ERROR_RESPONSE));
	ck_assert_int_eq(rpc_stream_finish(stream, &failure), ST_OK);
	rpc_stream_free(stream);
}

START_TEST(reflection)
{
	reflect(&grpc__reflection__v1__server_reflection__descriptor);
	reflect(&grpc__reflection__v1alpha__server_reflection__descriptor);
}
END_TEST

static enum status start_with_rows(const struct rpc_method *rows, size_t n)
{
	struct rpc_server *own;
	ck_assert_int_eq(rpc_server_new(&(struct rpc_config){ 0 }, &own), ST_OK);
	enum status st = rpc_server_add(own, rows, n, NULL);
	if (st == ST_OK)
		st = rpc_server_start(own);
	rpc_server_free(own);
	return st;
}

/* Rows that do not match the .proto: refused before anything listens. */
START_TEST(rows_must_match_the_protos)
{
	struct rpc_method rows[FIXTURE_ROWS + 1];
	fixture_rows(rows);
	ck_assert_int_eq(start_with_rows(rows, FIXTURE_ROWS - 1), ST_INTERNAL); /* GetNode is missing */
	ck_assert_int_eq(start_with_rows(rows, 13), ST_INTERNAL); /* two services are */
	rows[0].kind = RPC_CLIENT_STREAM;
	rows[0].on_half_close = rows[2].on_half_close;
	ck_assert_int_eq(start_with_rows(rows, FIXTURE_ROWS), ST_INTERNAL);
	fixture_rows(rows);
	rows[2].on_half_close = NULL;
	ck_assert_int_eq(start_with_rows(rows, FIXTURE_ROWS), ST_INTERNAL);
	fixture_rows(rows);
	rows[FIXTURE_ROWS] = rows[3];
	ck_assert_int_eq(start_with_rows(rows, FIXTURE_ROWS + 1), ST_INTERNAL);
	rows[0].name = "Nope";
	ck_assert_int_eq(start_with_rows(rows, FIXTURE_ROWS), ST_INTERNAL);
}
END_TEST

START_TEST(tcp_without_identity_is_refused)
{
	static char secret[] = "x";
	struct rpc_tcp_identity token = { .token_ok = token_is_right, .context = secret }, none = { 0 };
	struct rpc_tcp_identity files = { .cert_path = "/nonexistent", .key_path = "/nonexistent", .ca_path = "/nonexistent" };
	struct rpc_server *own;
	int port;
	ck_assert_int_eq(rpc_server_new(&(struct rpc_config){ 0 }, &own), ST_OK);
	ck_assert_int_eq(rpc_server_listen_tcp(own, "127.0.0.1:0", &none, &port), ST_INVALID_CONFIG);
	ck_assert_int_eq(rpc_server_listen_tcp(own, "0.0.0.0:0", &token, &port), ST_INVALID_CONFIG);
	ck_assert_int_eq(rpc_server_listen_tcp(own, "[::]:0", &token, &port), ST_INVALID_CONFIG);
	ck_assert_int_eq(rpc_server_listen_tcp(own, "127.0.0.1.evil.example:0", &token, &port), ST_INVALID_CONFIG);
	ck_assert_int_eq(rpc_server_listen_tcp(own, "127.0.0.1:0", &files, &port), ST_IO_ERROR);
	ck_assert_int_eq(rpc_server_listen_tcp(own, "127.0.0.1:0", &token, &port), ST_OK);
	ck_assert_int_gt(port, 0);
	rpc_server_free(own);
}
END_TEST

START_TEST(channel_options_are_checked)
{
	struct rpc_channel *opened;
	struct rpc_channel_options bad[] = { { 0 },
					     { .target = "127.0.0.1:1" },
					     { .target = "unix:" },
					     { .target = "unix:/x", .cert_path = "/x" } };
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		ck_assert_int_eq(rpc_channel_open(&bad[i], &opened), ST_INVALID_ARGUMENT);
	struct rpc_channel_options files = {
		.target = "unix:/x", .cert_path = "/nonexistent", .key_path = "/nonexistent", .ca_path = "/nonexistent"
	};
	ck_assert_int_eq(rpc_channel_open(&files, &opened), ST_IO_ERROR);
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
	tcase_add_test(tc, limit_of_calls);
	tcase_add_test(tc, a_thousand_calls_from_four_threads);
	tcase_add_test(tc, stop_under_load_answers_unavailable);
	tcase_add_test(tc, drain_ends_long_streams);
	tcase_add_test(tc, stop_does_not_wait_for_ever);
	tcase_add_test(tc, restart);
	tcase_add_test(tc, tcp_needs_the_token);
	tcase_add_test(tc, health);
	tcase_add_test(tc, reflection);
	tcase_set_timeout(tc, 60);
	suite_add_tcase(suite, tc);
	tc = tcase_create("settings");
	tcase_add_test(tc, rows_must_match_the_protos);
	tcase_add_test(tc, tcp_without_identity_is_refused);
	tcase_add_test(tc, channel_options_are_checked);
	suite_add_tcase(suite, tc);
	SRunner *runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	int failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
